"""The table of commands: the module of each, and the extra of the distribution that it needs.

This module imports only the standard library, since the table is also read if nothing else is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its place in the code, and the extra that installs what it needs."""

    module: str
    attribute: str
    """Name of the command's function, or of its group of commands, in the module."""
    extra: str | None
    """Smallest extra with which the command can start; None: it needs only the client."""


_CLI: Final = "tailrace_server.cli"
COMMANDS: Final[dict[str, Command]] = {
    "play": Command("tailrace_server.demo.play", "play", "server"),
    "demo": Command("tailrace_server.demo.command", "demo", "spark"),
    "ingest": Command(f"{_CLI}.ingest.app", "ingest_app", "server"),
    "export": Command(f"{_CLI}.export", "export_app", "server"),
    "serve": Command(f"{_CLI}.serve", "serve_command", "server"),
    "watch": Command(f"{_CLI}.watch", "watch", None),
    "changes": Command(f"{_CLI}.changes", "changes", None),
    "state": Command(f"{_CLI}.tables.state", "state", "cli"),
    "sql": Command(f"{_CLI}.tables.sql", "sql", "server"),
    "ps": Command(f"{_CLI}.operator.commands", "ps", "cli"),
    "top": Command(f"{_CLI}.operator.commands", "top", "cli"),
    "catalog": Command(f"{_CLI}.catalog", "app", "cli"),
    "subscription": Command(f"{_CLI}.subscription", "app", "cli"),
    "log": Command(f"{_CLI}.log", "app", "log"),
    "keys": Command(f"{_CLI}.keys", "app", "cli"),
    "policy": Command(f"{_CLI}.policy", "app", "server"),
}
"""The commands by name, in the order of the help. Packages that a command needs only for some of its work, such
as Spark for large files, are checked when that work begins."""


def named(arguments: Sequence[str]) -> str | None:
    """Return the name of the command in a command line, known or unknown; None if there is none."""
    return next((each for each in arguments if not each.startswith("-")), None)
