"""Paths in backticks name what exists, in documents and docstrings; the architecture lists every folder."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from tools import tree
from tools.structure import ROOT

_BASES: Final = (
    "",
    "server/tailrace_server/",
    "client/tailrace/",
    "client/",
    "server/",
    "tests/",
    "tests/server/",
)
_INVENTED: Final = frozenset(
    {
        "api/kafka/",
        "pipeline/sources/maxwell/",
        "tests/server/pipeline/sources/maxwell/",
    }
)
"""Folders that the architecture's instructions ask a reader to make."""
_THIS: Final = "tests/rules/test_paths.py"
_IN_BACKTICKS: Final = re.compile(r"`([\w-]+(?:[/.][\w.-]+)+/?)`")


def tracked() -> list[str]:
    """Return the paths of all files of the repository."""
    found = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [each for each in found.splitlines() if (ROOT / each).exists()]


def wrong_paths(text: str, known: frozenset[str], folder: str, *, is_code: bool) -> list[str]:
    """Return the paths in backticks that name nothing, and in code the dotted modules of the server.

    Args:
        text: A document, or a module with its docstrings.
        known: All files and folders of the repository.
        folder: The folder of the text, to which its paths may be relative.
        is_code: Documents for users have names with dots that are no modules.
    """
    bases = (*_BASES, f"{folder}/")
    roots = {each.split("/")[0] for each in known} | {
        each.removeprefix(base).split("/")[0]
        for base in _BASES[1:3]
        for each in known
        if each.startswith(base)
    }

    def exists(path: str) -> bool:
        return any(base + path.rstrip("/") in known for base in bases)

    wrong = []
    for name in _IN_BACKTICKS.findall(text):
        parts = name.rstrip("/").split("/")
        if "/" in name:
            is_path = parts[0] in roots
            found = exists(name) or name in _INVENTED
        elif name.endswith(".py"):
            is_path = True
            found = exists(name) or any(each.endswith(f"/{name}") for each in known)
        else:
            dotted = name.split(".")
            is_path = is_code and f"{_BASES[1]}{dotted[0]}" in known
            joined = ["/".join(dotted[:end]) for end in range(2, len(dotted) + 1)]
            found = any(exists(each) or exists(f"{each}.py") for each in joined)
        if is_path and not found:
            wrong.append(name)
    return wrong


def _wrong_in(file: str, known: frozenset[str]) -> list[str]:
    text, folder = (ROOT / file).read_text(), str(Path(file).parent)
    return wrong_paths(text, known, folder, is_code=file.endswith(".py"))


def test_every_path_in_backticks_exists() -> None:
    files = tracked()
    known = frozenset({*files, *(str(each) for file in files for each in Path(file).parents)})
    wrong = {
        file: found
        for file in files
        if file.endswith((".md", ".py")) and "/v1/" not in file and file != _THIS
        if (found := _wrong_in(file, known))
    }
    assert wrong == {}


def test_a_path_that_names_nothing_is_found() -> None:
    known = frozenset({"server/tailrace_server/live", "server/tailrace_server/live/ring.py"})
    text = "`live/ring.py`, `live.ring`, `ring.py`; `live/rung.py`, `live.rung`, `rung.py`"
    assert wrong_paths(text, known, "docs", is_code=True) == [
        "live/rung.py",
        "live.rung",
        "rung.py",
    ]


def test_the_architecture_lists_every_folder_in_its_own_words() -> None:
    tree.main(["--check"])
