"""One SQL statement over a log: its answer as record batches, with limits on time, memory and rows.

A statement reads all its tables as of one version, the newest when it began, unless it names another version.
"""

# Long: the start of a statement, its answer, its errors and its end share one state.

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

import duckdb
import pyarrow as pa
from sqlglot import exp

from tailrace.errors import InvalidRequest, NotPermitted, PositionCompacted, TailraceError
from tailrace.errors.requests import nearest
from tailrace.position import END, Position
from tailrace_server.filters.parsing import sql_text
from tailrace_server.sql.ddl import Show, parsed_ddl, statement_start
from tailrace_server.sql.defined_names import DefinedNames
from tailrace_server.sql.definitions import Definer, described, line_of, shown
from tailrace_server.sql.duck.databases import HERE, told
from tailrace_server.sql.expansion import expand
from tailrace_server.sql.interruption import Interruption
from tailrace_server.sql.parsing import TOO_DEEP, named_parameters, parsed
from tailrace_server.sql.scans import StatementScan
from tailrace_server.sql.statements import (
    Tables,
    bound,
    names_in,
)
from tailrace_server.sql.version_bounds import first_version, last_version, refuse_forgotten
from tailrace_server.typed.misfits import OnMisfit
from tailrace_server.units import format_seconds
from tailrace_server.wal.sequences.definitions import newest_definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tailrace_server.sql.ddl import Defining
    from tailrace_server.sql.duck.databases import Database, Databases
    from tailrace_server.sql.scans import LogSource
    from tailrace_server.sql.statements import Bounds, Statement, TableUse

_ALONE: Final = re.compile(
    r"(?:describe|desc)\s+(?P<table>\"[^\"]+\"|[^\s;]+)\s*;?\s*|explain\s+(?P<explained>.+)",
    re.IGNORECASE | re.DOTALL,
)
_READ_TWICE: Final = "has already been consumed"
"""Arrow's error when DuckDB reads a table a second time, as the recursive part of a WITH does."""
_WRONG: Final = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.InvalidInputException,
    duckdb.OutOfRangeException,
    duckdb.ParserException,
)
"""DuckDB's errors for statements that it refuses."""
_UNKNOWN_COLUMN: Final = re.compile(
    r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"'
    r'|Could not find key "([^"]+)" in struct'
)


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """The limits of one statement."""

    memory_bytes: int = 256 << 20
    """DuckDB's memory for sorts, groups and joins. Small batches of its input and its answer come on top."""
    seconds: float = 60.0
    """Time from the start of the statement to its last row."""
    rows: int | None = None
    """The most rows that the answer may have; None: no limit."""
    threads: int = 1


class Query:
    """One running statement: a context manager whose batches are iterated once.

    All methods block. Threads may take turns with a query. Any thread may end the query through its
    `Interruption`.
    """

    def __init__(
        self,
        source: LogSource,
        text: str,
        parameters: Mapping[str, object] | None = None,
        limits: QueryLimits | None = None,
        interruption: Interruption | None = None,
        *,
        pushes: bool = True,
        polled: tuple[int, int] | None = None,
        may_define: bool = False,
        databases: Databases | None = None,
        readers_of: Callable[[str], int] = lambda name: 0,
        on_misfit: OnMisfit = OnMisfit.RAISE,
    ) -> None:
        """Look up the tables of the statement, and begin it.

        Args:
            source: The log.
            text: The text of one statement.
            parameters: The values of ``$name`` in the statement.
            limits: The limits of the statement.
            interruption: Ends the statement, also while it begins.
            pushes: True to let the conditions of the statement narrow its scans. False gives the same answer;
                tests compare the two.
            polled: The values of ``$from`` and ``$to`` of a poll, both inclusive; None: the statement is not a
                poll.
            may_define: True if the statement may create, alter and drop views and change tables.
            databases: The databases that can compute the statement; None: databases in this process.
            readers_of: Returns the number of subscriptions that read a view now. A view with readers is not
                dropped.
            on_misfit: What happens to a value that its column's type cannot hold.

        Raises:
            InvalidRequest: The statement is wrong; the message says what, and where.
            PositionCompacted: The statement reads versions that the log no longer has.
        """
        self.version = source.view.published
        """The version that the statement reads."""
        self._limits = limits or QueryLimits()
        self._source = source
        self._may_define = may_define
        self._readers_of = readers_of
        self._began_us = time.time_ns() // 1_000
        self._parameters = dict(parameters or {})
        self._pushes = pushes
        self._polled = polled
        self._on_misfit = on_misfit
        self._error: Exception | None = None
        """The first error of the log while DuckDB read from it."""
        self._is_closed = False
        self._is_clean = True
        """True if the database can be reused: no work of this statement is unfinished in it."""
        self._is_over = False
        """True once the statement is finished: from then on its database must not be interrupted."""
        self._databases = databases or HERE
        self._taken: Database | None = None
        self.interruption = interruption or Interruption()
        """Ends the statement on request, or when its time is over."""
        self.scans: list[StatementScan] = []
        """The scans of the log that feed the statement's tables."""
        try:
            # Watch before anything is read: the beginning of a statement may take long too.
            self.interruption.watch(
                self,
                self._limits.seconds,
                f"the statement took longer than {format_seconds(self._limits.seconds)}: read less, or give it "
                "more time (sql_s of a server, --timeout of `tailrace sql`)",
            )
            with self.interruption.heeding_ctrl_c():
                self._reader = self._begun(text)
        except RecursionError:
            self.close()
            raise InvalidRequest(TOO_DEEP) from None
        except BaseException:
            self.close()
            raise
        self.schema: pa.Schema = self._reader.schema

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the database and stop the watching thread. Idempotent."""
        # Stop the watching thread first: it must not interrupt a database that another statement uses by then.
        self.interruption.close()
        self._reader = pa.RecordBatchReader.from_batches(pa.schema([]), ())
        if self._is_closed:
            return
        self._is_closed = True
        if self._taken is not None:
            # An interrupt before the end may have left work half done. After the end none reaches the database.
            was_interrupted = self.interruption.is_asked and not self._is_over
            self._taken.give_back(is_clean=self._is_clean and not was_interrupted)

    def interrupt(self) -> None:
        """Interrupt the running computation. Any thread may call this, also repeatedly."""
        if self._taken is not None and not self._is_over:
            self._taken.interrupt()

    def _end_well(self) -> None:
        """Mark the statement as finished, with no unfinished work.

        Later requests to interrupt have no effect.
        """
        # First: a thread that asked before this line may still be about to interrupt.
        self._is_over = True
        self._is_clean = not self.interruption.is_asked

    @property
    def _database(self) -> Database:
        """The database that computes the statement.

        It is taken on first use, as most wrong statements fail earlier.
        """
        if self._taken is None:
            # Set it before it begins: getting ready may take long, and `interrupt` must reach it.
            self._taken = self._databases.take(self._limits.memory_bytes, self._limits.threads)
            self._taken.begin()
        return self._taken

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the answer.

        Raises:
            InvalidRequest: A value cannot be computed, or the answer exceeds a limit.
            TailraceError: The log could not be read.
        """
        count = 0
        while True:
            self._refuse_stopped()
            try:
                with self.interruption.heeding_ctrl_c():
                    batch = self._reader.read_next_batch()
            except StopIteration:
                self._end_well()
                return
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise self._told(error) from None
            count += len(batch)
            if self._limits.rows is not None and count > self._limits.rows:
                raise InvalidRequest(
                    f"the answer has more than {self._limits.rows:,} rows: read fewer, or add LIMIT"
                )
            yield batch

    def _refuse_stopped(self) -> None:
        if self.interruption.reason is not None:
            raise InvalidRequest(self.interruption.reason)

    def _told(self, error: Exception, *, is_last: bool = True) -> TailraceError:
        """Return the error to raise for an error of DuckDB, Arrow or the log.

        If the statement itself is wrong, it is finished then, and its database can be reused. ``is_last`` is
        False for a constant that DuckDB cannot compute alone: the scan is then not narrowed, and the statement
        continues.
        """
        self._is_clean = False
        if is_last and self._error is None and type(error) in _WRONG:
            self._end_well()
        if self.interruption.reason is not None:
            return InvalidRequest(self.interruption.reason)
        if isinstance(self._error, TailraceError):
            return self._error
        if _READ_TWICE in str(error):
            return InvalidRequest(
                "each table in a statement is read once, but this statement reads one repeatedly: put that "
                "table into WITH … AS MATERIALIZED (SELECT …), and read that"
            )
        unknown = _UNKNOWN_COLUMN.search(str(error))
        if unknown is not None:
            # DuckDB knows only the columns that the statement names, so its own hint cannot have the right one.
            names = {name for scan in self.scans for name in scan.all_columns}
            name = unknown[unknown.lastindex or 0]
            changes = [each for each in self.scans if each.use.changes and each.use.form is None]
            if any(name in scan.all_columns for scan in changes):
                return InvalidRequest(
                    f"there is no column {name!r}: of changes, write after.{name} or before.{name}"
                )
            return InvalidRequest(f"there is no column {name!r}{nearest(name, names)}")
        return told(error)

    # How it begins.

    def _begun(self, text: str) -> pa.RecordBatchReader:
        # DDL, DESCRIBE and EXPLAIN are recognized by their first words; everything else must be a query.
        statement = parsed_ddl(text)
        if statement is not None:
            return self._defined(statement)
        alone = _ALONE.fullmatch(text, statement_start(text))
        if alone is None:
            return self._run(self._bound(text))
        if alone["table"] is not None:
            return self._described(alone["table"])
        return self._explained(self._bound(alone["explained"]))

    def _bound(self, text: str) -> Statement:
        view = self._source.view
        tables = Tables(
            view.published,
            self._source.schema_of,
            self._last_version,
            self._first_version,
            view.oldest.version,
            view.schemas,
            view.version_at,
            self._constant,
            self._names.unknown,
            self._pushes,
            self._names.through.get,
            self._polled is not None,
        )
        with_misfits = self._on_misfit is OnMisfit.NULL
        with parsed(text) as query:
            self._take_parameters(named_parameters(query))
            given = (query, self._names, names_in(query), self._last_version, self._began_us)
            expand(*given, with_misfits=with_misfits)
            return bound(query, tables)

    def _take_parameters(self, named: set[str]) -> None:
        """Add ``$from`` and ``$to`` of a poll.

        Refuse values for parameters that the statement does not have.
        """
        if self._polled is not None:
            if "from" not in named:
                raise InvalidRequest(
                    "a poll must read changes from $from on: CHANGES('product', $from, $to)"
                )
            polled = dict(zip(("from", "to"), self._polled, strict=True))
            self._parameters |= {name: each for name, each in polled.items() if name in named}
        for name in sorted(self._parameters.keys() - named):
            hint = nearest(name, named) if named else ", which has none"
            raise InvalidRequest(f"there is no parameter ${name} in the statement{hint}")

    def _run(self, statement: Statement, prefix: str = "") -> pa.RecordBatchReader:
        for use in statement.uses:
            self._refuse_trimmed(use.changes)
            self._refuse_older(use)
            given = (self._source, use, lambda: self.interruption.is_asked, self._on_misfit)
            self.scans.append(StatementScan(*given))
        values = self._values(statement.parameters)
        self._refuse_stopped()
        # A database is reused only after its answer was read to the end; any other way out leaves work in it.
        self._is_clean = False  # until the last row was read
        try:
            for scan in self.scans:
                self._database.register(scan.use.alias, self._kept(scan))
            return self._database.run(prefix + statement.text, values)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self._told(error) from None

    def _kept(self, scan: StatementScan) -> pa.RecordBatchReader:
        """Return a reader of a scan's batches that stores errors of the log.

        DuckDB would pass on only their text.
        """

        def read() -> Iterator[pa.RecordBatch]:
            try:
                yield from scan.batches()
            except Exception as error:
                self._error = self._error or error
                raise

        return pa.RecordBatchReader.from_batches(scan.schema, read())

    def _refuse_trimmed(self, changes: Bounds | None) -> None:
        view = self._source.view
        if changes is not None and changes[0] < view.oldest.version:
            raise PositionCompacted(
                Position(changes[0], 0), view.oldest, Position(view.published, 0)
            )

    def _refuse_older(self, use: TableUse) -> None:
        """Raise if a statement reads a change table from a time before its lookback: rows would be missing."""
        if use.form is None or not use.asked_us:
            return
        refuse_forgotten(self._source.view, use.asked_us)
        if use.asked_us < use.form.oldest_us:
            view = self._source.view
            asked, oldest = (view.version_at(each) for each in (use.asked_us, use.form.oldest_us))
            lookback = format_seconds(use.form.lookback_us / 1_000_000)
            raise PositionCompacted(
                Position(asked, 0),
                Position(oldest, 0),
                Position(view.published, END),
                f"{use.form.table} reaches back {lookback}: read later changes, or ALTER CDC {use.form.table} "
                "SET MAX_LOOKBACK = …",
            )

    # Versions.

    def _last_version(self, constant: exp.Expr) -> int:
        """Return the version that a constant names: a version number, or the last version up to a time."""
        return last_version(self._source.view, self._value(constant))

    def _first_version(self, constant: exp.Expr) -> int:
        """Return the version that a constant names: a version number, or the first version from a time on."""
        return first_version(self._source.view, self._value(constant))

    def _values(self, named: set[str]) -> dict[str, object] | None:
        """Return the values of the parameters in ``named``, as DuckDB accepts no others.

        None if there are none.
        """
        missing = sorted(named - self._parameters.keys())
        if missing:
            raise InvalidRequest(f"parameter ${missing[0]} has no value")
        return {name: self._parameters[name] for name in named} or None

    def _value(self, constant: exp.Expr) -> int | datetime:
        """Return the value of a constant expression, as computed by DuckDB.

        Raises:
            InvalidRequest: The value is neither a version nor a time.
        """
        text = sql_text(constant, "duckdb")
        value: Any = self._computed(constant, "{}")
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                value = None
        # A date means its first moment in UTC.
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
        if isinstance(value, datetime):
            return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise InvalidRequest(
            f"{text}: neither a version nor a time; write a time as TIMESTAMP '2026-05-04 10:30:00', UTC "
            "unless it has a zone, or now() - INTERVAL 15 MINUTE"
        )

    def _constant(self, constant: exp.Expr, kind: str | None) -> object:
        """Return the value of a constant that is compared with a column.

        Args:
            constant: The expression.
            kind: The type to cast the value to, for times: the result is in µs then. None: no cast.

        Returns:
            The value; None if it is NULL, or not of that type, or if DuckDB cannot compute it alone.

        Raises:
            InvalidRequest: The statement has to end.
        """
        if kind is None and isinstance(constant, exp.Literal):
            return constant.to_py()
        typed = "struct_pack(value := TRY({0}), type := typeof(TRY({0})))"
        form = typed if kind is None else f"epoch_us(TRY_CAST(TRY({{}}) AS {kind}))"
        try:
            found: Any = self._computed(constant, form, is_last=False)
        except InvalidRequest:
            # DuckDB may understand the constant only in its statement. If it does not, running the statement
            # raises the error.
            self._refuse_stopped()
            return None
        if kind is not None or found is None:
            return found
        # Arrow returns some types as text that DuckDB does not compare as text: a UUID has many spellings.
        is_other = isinstance(found["value"], str) and found["type"] != "VARCHAR"
        return None if is_other else found["value"]

    def _computed(self, constant: exp.Expr, form: str, *, is_last: bool = True) -> object:
        text = form.format(sql_text(constant, "duckdb"))
        try:
            values = self._values(named_parameters(constant))
            return self._database.computed(f"SELECT {text}", values)
        except duckdb.Error as error:
            raise self._told(error, is_last=is_last) from None

    # Statements that stand alone.

    @cached_property
    def _names(self) -> DefinedNames:
        """The meaning of each name, by the definitions at the start of the statement."""
        view = self._source.view
        definitions = newest_definitions(self._source.reader.store, view.uuid)
        return DefinedNames(view, self._source.schema_of, definitions, self._source.of_view)

    def _defined(self, statement: Defining) -> pa.RecordBatchReader:
        if isinstance(statement, Show):
            return shown(statement, self._names).to_reader()
        if not self._may_define:
            raise NotPermitted(
                "defining views and change tables needs grants to operate the catalog and to read all of it"
            )
        source = self._source
        definer = Definer(source.reader.store, source.view, self._began_us, self._readers_of)
        done = definer.run(statement)
        return pa.table({"done": pa.array([done], pa.string())}).to_reader()

    def _described(self, written: str) -> pa.RecordBatchReader:
        # A statement that reads no rows has the columns, types and errors of a real one.
        statement = self._bound(f"SELECT * FROM {written} LIMIT 0")
        if not statement.uses:
            raise self._names.unknown(written)
        fields = self._run(statement).schema
        use = statement.uses[0]
        columns = self._names.columns_read(use.entity_type, use.version, use.shown)
        table = None if use.form is None else self._names.change_tables[use.form.table]
        return described(fields, columns, table).to_reader()

    def _explained(self, statement: Statement) -> pa.RecordBatchReader:
        plan = self._run(statement, "EXPLAIN ").read_all()
        read = [line_of(each) for each in self.scans]
        lines = [*read, *str(plan.column(1)[0].as_py()).splitlines()]
        return pa.table({"plan": pa.array(lines, pa.string())}).to_reader()
