"""Pages that are made, in whole or in part, of something else in the repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def renew(page: Path, text: str, arguments: list[str], *, made_of: str = "code") -> None:
    """Write a page, or with ``--check`` only compare.

    Args:
        page: Its file.
        text: What it has to say.
        arguments: Of the command line.
        made_of: What it is behind if it says something else.

    Raises:
        SystemExit: ``--check``, and it says something else.
    """
    if arguments != ["--check"]:
        page.write_text(text)
    elif not page.exists() or page.read_text() != text:
        raise SystemExit(f"docs/{page.name} is behind the {made_of}: run `make docs`")
