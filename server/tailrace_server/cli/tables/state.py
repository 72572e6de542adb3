"""``tailrace state``: the rows of a table as of one version."""

from __future__ import annotations

import shlex
import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InvalidRequest
from tailrace_server.cli.tables.cells import Cells, TextTable, line_of
from tailrace_server.cli.tables.files import TYPED, form_of, table_file
from tailrace_server.cli.terminal.capture_lines import LineWriter
from tailrace_server.cli.terminal.options import (
    AS_JSON,
    DECODED,
    DEFAULT_SERVER,
    FORM,
    PARAMETERS,
    VERSION_OR_TIME,
    CatalogOptions,
    ServerOptions,
    wait_for_option,
    wait_option,
)
from tailrace_server.cli.terminal.output import Palette, date_text, note, printable
from tailrace_server.cli.terminal.signals import run
from tailrace_server.option_fields import FLAG, OptionForm, argument, option, text, texts, whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tailrace.reads.state import State, StateRow
    from tailrace.schema import Schema

__all__ = ["state"]

_ROWS: Final = "Which rows"
_ROWS_AT_ONCE: Final = 4_096
"""Number of rows that are written to a file at once."""
_FIRST_ROWS: Final = 200
"""Number of rows that determine the widths of the columns."""


@dataclass(frozen=True, kw_only=True)
class TableOptions(CatalogOptions):
    """The table, the version, and the rows that are read."""

    entity_type: str = argument("TYPE", "Entity type whose table is shown.")
    at: int | datetime | None = option(
        "--at",
        "Version, or time, of the state: 2026-05-04T10:30, with or without seconds and zone "
        "(else local), microseconds since the epoch, or an age such as 15m. [default: the newest "
        "version]",
        VERSION_OR_TIME,
        None,
        panel=_ROWS,
    )
    key: tuple[str, ...] = option(
        "--key", "Only the row of this primary key.", texts("KEY"), factory=tuple, panel=_ROWS
    )
    where: str | None = option(
        "--where",
        "Only rows that meet this SQL condition, such as price > 100.",
        text("SQL"),
        None,
        panel=_ROWS,
    )
    param: Mapping[str, str] = option(
        "--param", "Value of :NAME in --where.", PARAMETERS, factory=dict, panel=_ROWS
    )
    limit: int | None = option("--limit", "Print at most N rows.", whole(1, "N"), None, panel=_ROWS)
    wait_for: int | None = wait_for_option(_ROWS)
    wait_s: float = wait_option(_ROWS)


@dataclass(frozen=True, kw_only=True)
class RowFormOptions:
    """The columns that are printed, and the form of the rows."""

    column: tuple[str, ...] = option(
        "--column",
        "Print only this column; repeat for more.",
        texts("NAME"),
        factory=tuple,
        panel=FORM,
    )
    keys_only: bool = option(
        "--keys-only", "Print keys and positions without the rows.", FLAG, False, panel=FORM
    )
    values: bool | None = option(
        "--values",
        "decoded: values in the form of their column's type, so that decimals and times are "
        "readable; raw: as the source wrote them. [default: decoded; with --json and .ndjson "
        "raw; .parquet and .arrow have typed columns]",
        DECODED,
        None,
        panel=FORM,
    )
    as_json: bool = option(*AS_JSON, panel=FORM)
    output: Path | None = option(
        "--output",
        "Write the rows to a file; its name sets the format: .parquet, .arrow, .ndjson or .csv.",
        OptionForm(kind=Path, metavar="FILE"),
        None,
        panel=FORM,
    )


def state(table: TableOptions, form: RowFormOptions, server: ServerOptions) -> int:
    """Show a table: the rows of an entity type as of one version.

    The last line has the version, and the cursor after which its changes follow.
    """
    if form.as_json and form.output is not None:
        raise InvalidRequest(
            "give either --json or --output, not both: each sets the form of the rows"
        )
    if form.output is not None:
        form_of(form.output)
    suffix = "" if form.output is None else form.output.suffix.lower()
    typed_file = form.values is None and suffix in TYPED
    decoded = not (form.as_json or suffix == ".ndjson") if form.values is None else form.values
    arguments: dict[str, Any] = {
        "keys": table.key,
        "at": table.at,
        "columns": form.column,
        "keys_only": form.keys_only,
        "where": table.where,
        "parameters": table.param,
        "limit": table.limit,
        "wait_for": table.wait_for,
        "wait_s": table.wait_s,
        "decoded": decoded and not typed_file,
        "typed": typed_file,
    }
    names = (table.catalog, table.entity_type)
    return run(_state(server, *names, arguments, as_json=form.as_json, output=form.output))


async def _state(
    server: ServerOptions,
    catalog: str,
    entity_type: str,
    arguments: Mapping[str, Any],
    *,
    as_json: bool,
    output: Path | None,
) -> None:
    async with server.connect() as client, client.state(catalog, entity_type, **arguments) as rows:
        if as_json:
            count = await _show_lines(rows)
        else:
            schema = await client.get_schema(catalog, rows.header.version or None)
            header = rows.header
            chosen = header.columns or arguments["columns"]
            cells = (
                Cells(())
                if arguments["keys_only"]
                else Cells.of(schema, header.entity_type, chosen)
            )
            if output is None:
                count = await _show(rows, cells)
            else:
                count = await _write(rows, cells, output, schema if arguments["typed"] else None)
        same = _same_rows(server.target.name, arguments)
        _tell(rows, catalog, entity_type, count, output, same)


async def _show_lines(rows: State) -> int:
    writer, count = LineWriter(), 0
    async for batch in rows.batches():
        await writer.write([*map(line_of, batch)])
        count += len(batch)
    return count


async def _show(rows: State, cells: Cells) -> int:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    table = TextTable(cells, Palette.of(sys.stdout), width)
    writer, count = LineWriter(), 0
    # Collect the first rows before anything is printed, since they determine the widths of the columns.
    first: list[StateRow] | None = []
    async for batch in rows.batches():
        count += len(batch)
        if first is None:
            await writer.write(table.lines(batch))
            continue
        first += batch
        if len(first) >= _FIRST_ROWS:
            await writer.write(table.lines(first))
            first = None
    if first:
        await writer.write(table.lines(first))
    if table.hidden:
        note(
            f"{table.hidden} columns do not fit this terminal: choose columns with --column, or "
            "use --json or --output"
        )
    return count


async def _write(rows: State, cells: Cells, output: Path, schema: Schema | None) -> int:
    """Write a file, with the types of a schema if there is one; return the number of rows."""
    count, waiting = 0, list["StateRow"]()
    typer_options = None
    if schema is not None:
        from tailrace_server.cli.tables.typed_cells import TypedCells

        typer_options = TypedCells(schema, rows.header.entity_type, cells.columns)
    with ExitStack() as stack:
        file = stack.enter_context(table_file(output, cells, typer_options))
        async for batch in rows.batches():
            waiting += batch
            count += len(batch)
            if len(waiting) >= _ROWS_AT_ONCE:
                file.write(waiting)
                waiting.clear()
        if waiting:
            file.write(waiting)
    return count


def _same_rows(server: str, arguments: Mapping[str, Any]) -> str:
    """Return the options of a command for the same server and rows, each after a space."""
    options_given = [] if server == DEFAULT_SERVER else ["--server", server]
    if arguments["where"] is not None:
        options_given += ["--where", arguments["where"]]
        for name, value in arguments["parameters"].items():
            options_given += ["--param", f"{name}={value}"]
    return "".join(f" {shlex.quote(printable(each))}" for each in options_given)


def _tell(
    rows: State, catalog: str, asked: str, count: int, output: Path | None, same: str
) -> None:
    """Print the number of rows, and the command that continues."""
    header = rows.header
    when = f" ({date_text(header.commit_timestamp)})" if header.commit_timestamp else ""
    where = f" in {output}" if output is not None else ""
    plural = "row" if count == 1 else "rows"
    more = "; more rows follow, without --limit" if rows.end.next_page is not None else ""
    name = printable(header.entity_type)
    note(
        f"{count:,} {plural} of {printable(asked)} as of version {header.version}{when}{where}{more}"
    )
    onward = f"tailrace watch {catalog} --entity-type {name} --after {header.cursor}"
    note(f"to continue: {onward}{same}")
