"""Options of a command, declared once for both ways to read a command line.

``watch`` and ``changes`` run where the client alone is installed. So what they take is declared here without
a package: `typed` makes Typer's options of it, and `plain` those of argparse. Both read the annotations of
the command's function: ``Annotated[type, Option(…)]``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """An option that is given by name; of a list it may be given repeatedly."""

    name: str
    """With its dashes."""
    help: str
    metavar: str | None = None
    panel: str = "Options"
    """Heading under which the help shows it."""
    environment: str | None = None
    """Variable that says it where the command line does not."""
    least: int | None = None
    """Smallest value of a number."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that is given by its place."""

    metavar: str
    help: str
