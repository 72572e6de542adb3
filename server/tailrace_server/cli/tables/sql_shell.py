r"""``tailrace sql CATALOG`` without a statement: one after another, as they are typed.

A statement ends with a line that ends with ``;``. An error ends the statement and not the shell; Ctrl-C ends
what is run or typed, Ctrl-D or ``\q`` the shell.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.errors import TailraceError
from tailrace_server.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_HISTORY_LINES: Final = 1_000
_WORDS: Final = (
    *(
        "SELECT",
        "FROM",
        "WHERE",
        "GROUP BY",
        "ORDER BY",
        "LIMIT",
        "JOIN",
        "USING",
        "AND",
        "OR",
        "NOT",
    ),
    *("FOR VERSION AS OF", "FOR TIMESTAMP AS OF", "CHANGES(", "DESCRIBE", "SHOW TABLES", "EXPLAIN"),
)
_HELP: Final = r"\d lists tables, \d NAME the columns of one; \q or Ctrl-D ends"


class SqlShell:
    """Reads statements and runs them."""

    def __init__(self, run: Callable[[str], None], ask: Callable[[str], Sequence[str]]) -> None:
        """Bind to a catalog.

        Args:
            run: Shows the answer to a statement.
            ask: Returns the first column of one.
        """
        self._run = run
        self._ask = ask

    def loop(self, read: Callable[[str], str] = input) -> None:
        """Read until the input ends; ``read`` returns the next line behind a prompt."""
        note(_HELP)
        lines: list[str] = []
        while True:
            try:
                line = read("     > " if lines else "sql  > ").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                sys.stdout.write("\n")
                lines.clear()
                continue
            if not lines and line.startswith("\\"):
                if line == r"\q":
                    return
                self._command(line)
                continue
            if line:
                lines.append(line)
            if line.endswith(";"):
                self._shown("\n".join(lines))
                lines.clear()

    def _command(self, line: str) -> None:
        name, _, table = line.partition(" ")
        if name != r"\d":
            note(f"{name} is not known; {_HELP}")
            return
        self._shown(f"DESCRIBE {table.strip()}" if table.strip() else "SHOW TABLES")

    def _shown(self, text: str) -> None:
        try:
            self._run(text)
        except TailraceError as error:
            note(f"{error.code}: {error}")
        except KeyboardInterrupt:
            note("stopped")

    def names(self) -> list[str]:
        """Return the tables and their columns, as far as they can be asked for."""
        found: list[str] = []
        with suppress(TailraceError):
            for table in self._ask("SHOW TABLES"):
                quoted = table.replace('"', '""')
                found += [table, *self._ask(f'DESCRIBE "{quoted}"')]
        return [*dict.fromkeys(found)]


def completions(names: Iterable[str], text: str) -> list[str]:
    """Return what a beginning may become: names as they are, and words of SQL."""
    begun = text.lower()
    return [each for each in (*names, *_WORDS) if each.lower().startswith(begun)] if text else []


@contextmanager
def line_editing(shell: SqlShell) -> Iterator[None]:
    """Have lines edited, completed and remembered, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    names = shell.names()

    def complete(text: str, state: int) -> str | None:
        found = completions(names, text)
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,;=<>().")
    readline.parse_and_bind("tab: complete")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    history = Path(state) / "tailrace" / "sql_history"
    with suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch(mode=0o600)  # what is asked may be nobody else's business
            readline.write_history_file(history)
