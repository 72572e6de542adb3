"""Keep the lists of docs/audit.md in step with the events of the audit; its words are written by hand.

``python -m tools.audit`` rewrites the lists; ``--check`` only compares.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace_server.access import audit_trail
from tailrace_server.access.audit_trail import AuditLine
from tools.pages import renew

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parent.parent / "docs" / "audit.md"

HEAD = "## Fields of every line\n"
FORMS = {
    "str": "",
    "int": " (number)",
    "float | None": " (number or null)",
    "Sequence[str]": " (list of texts)",
}


def kinds() -> tuple[type[AuditLine], ...]:
    """Return the class of each event, in their order in the code."""
    return tuple(
        each
        for each in vars(audit_trail).values()
        if isinstance(each, type) and issubclass(each, AuditLine) and each is not AuditLine
    )


def render(page: str) -> str:
    """Return the page with all that stands below the head of its lists renewed.

    Raises:
        SystemExit: The page has no such head.
    """
    words, head, _ = page.partition(HEAD)
    if not head:
        raise SystemExit(f"docs/audit.md has no heading {HEAD!r}")
    parts = [words, head, "\nFields are texts unless marked.\n\n"]
    parts.append("- `event`: What happened: one of the names below.\n")
    parts.extend(rows(AuditLine))
    parts.append("\n## Events, and the fields that each has besides\n")
    for each in kinds():
        parts.append(f"\n### `{each.event()}`\n\n{inspect.getdoc(each)}\n")
        if own := list(rows(each)):
            parts.extend(["\n", *own])
    return "".join(parts)


def rows(kind: type[AuditLine]) -> Iterator[str]:
    """Yield a line for each field that a class adds, from its annotation and docstring."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for statement, following in itertools.pairwise(body.body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name), annotation=form),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                words = " ".join(text.split())
                yield f"- `{name}`{FORMS[ast.unparse(form)]}: {words}\n"


def main(arguments: list[str]) -> None:
    """Renew the page, or with ``--check`` fail if it is behind."""
    renew(PAGE, render(PAGE.read_text()), arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
