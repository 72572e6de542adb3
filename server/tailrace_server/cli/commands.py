"""Which commands there are, where each is, and the extra of the distribution that it needs.

Nothing but the standard library is imported here: the table is read also where nothing else is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Command:
    """A command, as it is found and installed."""

    module: str
    attribute: str
    """Its function or its group of commands in the module."""
    extra: str | None
    """The least extra with which it begins; None: it runs with the client alone."""


_CLI: Final = "tailrace_server.cli"
COMMANDS: Final[dict[str, Command]] = {
    "play": Command("tailrace_server.demo.play", "play", "server"),
    "demo": Command("tailrace_server.demo.command", "demo", "spark"),
    "ingest": Command(f"{_CLI}.ingest", "ingest_app", "server"),
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
"""By name, in the order of the help. A requirement of only some of its work, as Spark for large files, is
reported when that work begins."""


def named(arguments: Sequence[str]) -> str | None:
    """Return the name of the command in a command line, known or not; None where there is none."""
    return next((each for each in arguments if not each.startswith("-")), None)
