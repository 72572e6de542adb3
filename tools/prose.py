"""Check the English of docstrings, documents and commit subjects; part of ``make check``.

``python -m tools.prose`` counts the sentences that have to be read twice, by the patterns below, and fails
above `BOUNDS`. ``python -m tools.prose PATH …`` prints these sentences in the files below the paths.
``python -m tools.prose --subject FILE`` checks the first line of a commit message; `make hooks` installs that.

A bound may only fall: a commit that lowers a count lowers its bound too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
BOUNDS: Final = {"docstrings": 0, "documents": 10}
"""The most unclear sentences of each kind."""
SUBJECT_MAX: Final = 72

_PATTERNS: Final = {
    "begins without a noun or a verb": (
        r"^(Who|What|Whose|Whom|Where|Whether|Those|Of)\b|(?<=[.;:] )[Ww]ho\b"
    ),
    "names the thing late": r"\b[Oo]f (which|whom|whose)\b",
    "says that somebody does nothing": r"\b[Nn]obody\b",
    "is not the usual word of the field": r"\bstands?\b|\btold\b|\btells\b|\bgo(es)? on\b|\bjudged?\b",
}
_UNCLEAR: Final = re.compile("|".join(_PATTERNS.values()))
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_CODE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SUBJECT: Final = re.compile(r"[a-z][\w ,/-]*: \S.*")


class Sentence(NamedTuple):
    """A sentence that has to be read twice."""

    path: str
    line: int
    text: str


def is_unclear(sentence: str) -> bool:
    """Return True if a sentence has one of the patterns."""
    return bool(_UNCLEAR.search(" ".join(sentence.split())))


def subject_fault(subject: str) -> str | None:
    """Return what is wrong with a commit's subject; None if nothing is."""
    if len(subject) > SUBJECT_MAX:
        return f"{len(subject)} characters; at most {SUBJECT_MAX}"
    if not _SUBJECT.fullmatch(subject):
        return "write `area: imperative`, as in `sql: reuse the process after an empty poll`"
    return None


def docstrings(root: Path = ROOT) -> Iterator[Sentence]:
    """Yield the unclear sentences of the docstrings in both packages, of fields too."""
    for path in _git(root, "ls-files", "client/*.py", "server/*.py"):
        if "/v1/" in path:  # generated
            continue
        for node in ast.walk(ast.parse((root / path).read_text())):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = node.value.value
                if isinstance(text, str):
                    yield from _unclear(path, node.lineno, text)


def documents(root: Path = ROOT) -> Iterator[Sentence]:
    """Yield the unclear sentences of the documents, code left out."""
    for path in _git(root, "ls-files", "*.md"):
        text = _CODE.sub(lambda code: "\n" * code[0].count("\n"), (root / path).read_text())
        yield from _unclear(path, 1, text)


def _unclear(path: str, line: int, text: str) -> Iterator[Sentence]:
    for sentence in _SENTENCE_END.split(text.strip()):
        if is_unclear(sentence):
            yield Sentence(
                path, line + text[: text.index(sentence)].count("\n"), " ".join(sentence.split())
            )


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _new_subjects() -> list[str]:
    """Return the subjects of the commits since these were first checked."""
    first = _git(ROOT, "log", "--diff-filter=A", "--format=%H", "--", "tools/prose.py")
    return _git(ROOT, "log", "--no-merges", "--format=%s", f"{first[-1]}..") if first else []


def _faults() -> Iterator[str]:
    for kind, found in {"docstrings": docstrings, "documents": documents}.items():
        count, bound = sum(1 for _ in found()), BOUNDS[kind]
        if count > bound:
            yield (
                f"{kind}: {count} unclear sentences; at most {bound}. Rewrite yours: "
                "`python -m tools.prose PATH` prints those of a file"
            )
    for subject in _new_subjects():
        if fault := subject_fault(subject):
            yield f"commit subject {subject!r}: {fault}"


def main(arguments: list[str]) -> int:
    """Check everything, a subject, or print the unclear sentences of some files."""
    if arguments[:1] == ["--subject"]:
        subject = Path(arguments[1]).read_text().partition("\n")[0]
        found = [f"commit subject: {fault}"] if (fault := subject_fault(subject)) else []
    elif arguments:
        found = [
            f"{path}:{line}: {text}"
            for path, line, text in (*docstrings(), *documents())
            if path.startswith(tuple(arguments))
        ]
    else:
        found = [*_faults()]
    print("\n".join(found or ["the English is as its bounds say"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
