"""Keep the error table of docs/protocol.md what tailrace_server/api/errors.py says.

``python -m tools.protocol`` rewrites it; ``--check`` only compares.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.status import FIGURES
from tailrace_server.api.errors import GRPC_STATUS, HTTP_STATUS

if TYPE_CHECKING:
    from tailrace.errors import TailraceError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
BEGIN = "<!-- errors: written by `python -m tools.protocol` -->\n"
END = "<!-- end of errors -->"


def table() -> str:
    """Return the table of all errors, in the order of the tree."""
    lines = [
        "| Error | Code | gRPC status | HTTP | Retry | Figures | Raised when |",
        "|---|---|---|---|---|---|---|",
    ]
    for error, status in GRPC_STATUS.items():
        figures = ", ".join(f"`{name}`" for name, _ in FIGURES.get(error, {}).values())
        retry = "yes" if error.retriable else "no"
        lines.append(
            f"| `{error.__name__}` | `{error.code}` | {status.name} | {HTTP_STATUS[error]} | {retry} "
            f"| {figures} | {_when(error)} |"
        )
    return "\n".join(lines) + "\n"


def render(page: str) -> str:
    """Return the page with its table renewed."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table()}{END}{tail}"


def main(arguments: list[str]) -> None:
    """Renew the page, or with ``--check`` fail if it is behind."""
    page = PAGE.read_text()
    renewed = render(page)
    if arguments == ["--check"]:
        if renewed != page:
            raise SystemExit("docs/protocol.md is behind api/errors.py: python -m tools.protocol")
    else:
        PAGE.write_text(renewed)


def _when(error: type[TailraceError]) -> str:
    text = " ".join((error.__doc__ or "").split("\n\n")[0].split())
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main(sys.argv[1:])
