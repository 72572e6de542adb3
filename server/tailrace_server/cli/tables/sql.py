r"""``tailrace sql``: one SQL statement over a catalog's log, or an interactive shell for many.

In the shell, a line that ends with ``;`` completes a statement. An error ends the statement, but not the shell.
Ctrl-C ends the statement that is running or being typed. Ctrl-D or ``\q`` ends the shell.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailrace.errors import InvalidRequest, TailraceError
from tailrace_server.cli.tables import sql_output
from tailrace_server.cli.tables.sql_sources import ServerAnswers, SqlStatement, local_answers
from tailrace_server.cli.terminal.options import (
    AS_JSON,
    FORM,
    VERSION_OR_TIME,
    CatalogOptions,
    ServerOptions,
)
from tailrace_server.cli.terminal.output import Palette, note
from tailrace_server.cli.terminal.signals import run
from tailrace_server.option_fields import BYTES, FLAG, TIME, OptionForm, argument, option
from tailrace_server.sql.interruption import Interruption
from tailrace_server.sql.query import QueryLimits
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tailrace_server.cli.tables.sql_sources import ShownAnswer

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
    """A loop that reads statements and runs them."""

    def __init__(self, run: Callable[[str], None], ask: Callable[[str], Sequence[str]]) -> None:
        """Store the functions that run statements.

        Args:
            run: Function that prints the answer to a statement.
            ask: Function that returns the first column of an answer.
        """
        self._run = run
        self._ask = ask

    def loop(self, read: Callable[[str], str] = input) -> None:
        """Read and run statements until the input ends; ``read`` prints a prompt and returns the next line."""
        note(_HELP)
        lines: list[str] = []
        while True:
            try:
                line = read("     > " if lines else "sql  > ").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                # As in other shells: Ctrl-C drops the lines that were typed, and the shell continues.
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
        """Return the names of tables and their columns; fewer or none if a request fails."""
        found: list[str] = []
        with suppress(TailraceError):
            for table in self._ask("SHOW TABLES"):
                quoted = table.replace('"', '""')
                found += [table, *self._ask(f'DESCRIBE "{quoted}"')]
        return [*dict.fromkeys(found)]


def completions(names: Iterable[str], text: str) -> list[str]:
    """Return the names and SQL words that begin with a text, ignoring case; empty for an empty text."""
    begun = text.lower()
    return [each for each in (*names, *_WORDS) if each.lower().startswith(begun)] if text else []


@contextmanager
def line_editing(shell: SqlShell) -> Iterator[None]:
    """Enable editing, completion and history of lines, if Python has readline."""
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
            history.touch(mode=0o600)  # statements may contain private data
            readline.write_history_file(history)


_WHERE: Final = "Where"
_STATEMENT: Final = "The statement"
_BOUNDS: Final = "Limits"


def _named_values(flag: str, given: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidRequest(f"{flag} {each!r}: write NAME=VALUE")
        found[name] = value
    return found


@dataclass(frozen=True, kw_only=True)
class StatementOptions(CatalogOptions):
    """The statement, its parameters, and how it is repeated."""

    statement: str | None = argument(
        "STATEMENT",
        "One SQL statement; - reads it from the standard input. Without a statement, a prompt "
        "opens.",
        None,
    )
    parameter: Mapping[str, str] = option(
        "--param",
        "Value of the parameter $NAME in the statement.",
        OptionForm(kind=list[str], parse=_named_values, metavar="NAME=VALUE"),
        factory=dict,
        panel=_STATEMENT,
    )
    follow: bool = option(
        "--follow",
        "Keep running and repeat the statement for new changes: $from and $to are the versions "
        "since the last answer.",
        FLAG,
        False,
        panel=_STATEMENT,
    )
    since: int | datetime | None = option(
        "--since",
        "Start of --follow: a version, a time, or an age such as 15m. [default: the oldest "
        "retained version]",
        VERSION_OR_TIME,
        None,
        panel=_STATEMENT,
    )
    every_s: float = option(
        "--every",
        "Interval at which --follow looks for new versions: 500ms, 1s.",
        TIME,
        1.0,
        panel=_STATEMENT,
    )


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """The form of an answer, and the limits of its statement."""

    as_json: bool = option(*AS_JSON, panel=FORM)
    csv: bool = option("--csv", "Print CSV.", FLAG, False, panel=FORM)
    arrow: bool = option("--arrow", "Write a stream of Arrow batches.", FLAG, False, panel=FORM)
    timeout_s: float = option(
        "--timeout",
        "Longest time of the statement: 30s, 5m. A server has its own limit.",
        TIME,
        300.0,
        panel=_BOUNDS,
    )
    memory_bytes: int = option(
        "--memory",
        "Most memory for sorts, groups and joins. A server has its own limit.",
        replace(BYTES, metavar="SIZE"),
        512 << 20,
        panel=_BOUNDS,
    )
    on_misfit: OnMisfit = option(
        "--misfits",
        "For a value that its column's type cannot hold: refuse ends the statement with an "
        "error; null reads NULL and puts the text of the value into the column _misfits.",
        OptionForm(
            kind=str,
            parse=lambda _, given: OnMisfit.named(given),
            show=lambda default: default.value,
            metavar="refuse,null",
        ),
        OnMisfit.RAISE,
        panel=_BOUNDS,
    )

    @property
    def form(self) -> str:
        """Return the form: json, csv, arrow or text.

        Raises:
            InvalidRequest: More than one is given.
        """
        forms = {"json": self.as_json, "csv": self.csv, "arrow": self.arrow}
        given = [name for name, is_given in forms.items() if is_given]
        if len(given) > 1:
            raise InvalidRequest("--json, --csv and --arrow: give one of them")
        return given[0] if given else "text"


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ServerOptions):
    """The log root that is read, or the server that answers."""

    log: Path | None = option(
        "--log",
        "Log root, with one folder per catalog; not with --server.",
        OptionForm(kind=Path, metavar="ROOT"),
        None,
        environment="TAILRACE_LOG",
    )
    server: str = option(
        "--server",
        "Query this server instead of a log root. [env: TAILRACE_SERVER, if there is no log root]",
        OptionForm(kind=str, parse=lambda _, given: given or "", metavar="HOST:PORT"),
        factory=str,
        panel=_WHERE,
    )

    def resolved(self) -> SourceOptions:
        """Return the options with the server of the environment, if neither was given.

        Raises:
            InvalidRequest: There is neither a log root nor a server.
        """
        if self.server or self.log is not None:
            return self
        server = os.environ.get("TAILRACE_SERVER")
        if not server:
            raise InvalidRequest(
                "give --log ROOT (or TAILRACE_LOG) to read a log, or --server HOST:PORT (or TAILRACE_SERVER)"
            )
        return replace(self, server=server)


def sql(asked: StatementOptions, answer: AnswerOptions, source: SourceOptions) -> int:
    """Query a catalog in SQL: the state of tables, earlier states, and changes.

    Every entity type is a table. FOR VERSION AS OF 12 or FOR TIMESTAMP AS OF
    '…' after its name reads an earlier state; CHANGES('product', from, to)
    reads its changes. SHOW TABLES and DESCRIBE list tables and columns.
    """
    form, follow = answer.form, asked.follow
    if asked.since is not None and not follow:
        raise InvalidRequest(
            "--since is the start of --follow; give both, or write the bounds into CHANGES"
        )
    source = source.resolved()
    text = sys.stdin.read() if asked.statement == "-" else asked.statement or ""
    begin = (asked.since or 0) if follow else None
    given = SqlStatement(
        asked.catalog, text, asked.parameter, begin, asked.every_s, answer.on_misfit
    )
    limits = QueryLimits(answer.memory_bytes, answer.timeout_s)
    if source.log is not None and not source.server:
        local = source.log

        def show(one: SqlStatement) -> int:
            _show_local(one, local, limits, form)
            return 0

        def ask(text: str) -> list[str]:
            statement = SqlStatement(asked.catalog, text, {})
            with closing(local_answers(statement, local, limits, Interruption())) as found:
                return [each for batch in next(found).batches for each in batch[0].to_pylist()]
    else:

        def show(one: SqlStatement) -> int:
            return run(_show_of_server(source, one, form))

        def ask(text: str) -> list[str]:
            return asyncio.run(_first_column(source, asked.catalog, text))

    if asked.statement is not None:
        return show(given)
    if follow:
        raise InvalidRequest("--follow needs a statement")

    # A statement with a parameter that it does not use would be refused, so pass only those that it uses.
    def show_typed(text: str) -> None:
        named = {name: each for name, each in given.parameters.items() if f"${name}" in text}
        show(replace(given, text=text, parameters=named))

    shell = SqlShell(show_typed, ask)
    if sys.stdin.isatty():
        with line_editing(shell):
            shell.loop()
    else:
        shell.loop(lambda _: input())  # a file has no use for prompts
    return 0


async def _first_column(server: ServerOptions, catalog: str, text: str) -> list[str]:
    async with server.connect() as client, client.sql(catalog, text) as answer:
        return [next(iter(row.values())) async for row in answer]


def _show_local(asked: SqlStatement, root: Path, limits: QueryLimits, form: str) -> None:
    stopped = Interruption()
    with closing(local_answers(asked, root, limits, stopped)) as found:
        try:
            _show(found, form, follows=asked.since is not None)
        except KeyboardInterrupt:
            # DuckDB may be computing in a thread: ask it to stop before the query is closed.
            stopped.ask("stopped")
            raise


async def _show_of_server(server: ServerOptions, asked: SqlStatement, form: str) -> None:
    async with server.connect() as client:
        found = ServerAnswers(client, asked)

        def show() -> None:
            with closing(found.answers()) as given:
                _show(given, form, follows=asked.since is not None)

        # Print in a thread: Arrow reads its stream synchronously, and a slow pager must not block the event
        # loop.
        await asyncio.to_thread(show)


def _show(found: Generator[ShownAnswer, None, None], form: str, *, follows: bool) -> None:
    """Write all answers as one; the later ones must have the columns of the first."""
    began = time.monotonic()
    count = 0
    first = next(found)

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal count
        answer: ShownAnswer | None = first
        while answer is not None:
            # A stream of Arrow batches or CSV has one schema: a column that was added meanwhile ends it.
            if answer.schema != first.schema:
                raise InvalidRequest(
                    f"the columns of the answer have changed at version {answer.version}: begin again with "
                    f"--since {answer.version}"
                )
            for batch in answer.batches:
                count += len(batch)
                yield batch
            if follows:
                sys.stdout.buffer.flush()  # the next answer may come much later
            answer = next(found, None)

    _write(first.schema, batches(), form)
    if form == "text" and not follows:
        seconds = time.monotonic() - began
        note(f"{counted(count, 'row')} as of version {first.version}, in {seconds:.2f} s")


def _write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: str) -> None:
    sink = sys.stdout.buffer
    if form == "arrow":
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return
    if form == "json":
        lines = sql_output.json_lines(schema, batches)
    elif form == "csv":
        lines = sql_output.csv_lines(schema, batches)
    else:
        lines = sql_output.text_lines(schema, batches, Palette.of(sys.stdout))
    for line in lines:
        sink.write(line)
    sink.flush()


__all__ = ["sql"]
