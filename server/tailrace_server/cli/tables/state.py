"""``tailrace state``: the rows of a table as of one version."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from tailrace.errors import InvalidRequest
from tailrace_server.cli.tables.cells import Cells, TextTable, line_of
from tailrace_server.cli.tables.files import TYPED, form_of, table_file
from tailrace_server.cli.terminal import options, times, typer_options
from tailrace_server.cli.terminal.capture_lines import LineWriter
from tailrace_server.cli.terminal.declared import Argument, Option
from tailrace_server.cli.terminal.output import Palette, date_text, note, printable
from tailrace_server.cli.terminal.signals import run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tailrace.reads.state import State, StateRow
    from tailrace.schema import Schema

__all__ = ["state"]

_ROWS: Final = "Which rows"
_FORM: Final = "Form of the output"
_ROWS_AT_ONCE: Final = 4_096
"""Rows that a file takes in one piece."""
_FIRST_ROWS: Final = 200
"""Rows by which the widths of the columns are chosen."""


def _option(name: str, help: str, panel: str, metavar: str | None = None, **more: Any) -> Any:
    return typer_options.typed(Option(name, help, metavar=metavar, panel=panel, **more))


def state(
    catalog: Annotated[str, typer_options.typed(Argument("CATALOG", "Name of the catalog."))],
    entity_type: Annotated[
        str, typer_options.typed(Argument("TYPE", "The table: an entity type."))
    ],
    server: typer_options.Server = options.DEFAULT_SERVER,
    at: Annotated[
        str | None,
        _option(
            "--at",
            "As of this version; or as of a time: 2026-05-04T10:30, with or without seconds and zone (else "
            "local), microseconds since the epoch, or an age as 15m. [default: the newest]",
            _ROWS,
            "V|T",
        ),
    ] = None,
    key: Annotated[
        list[str] | None, _option("--key", "Only the row of this primary key.", _ROWS, "KEY")
    ] = None,
    where: Annotated[
        str | None,
        _option("--where", "Only rows that meet this SQL condition: price > 100.", _ROWS, "SQL"),
    ] = None,
    param: Annotated[
        list[str] | None, _option("--param", "A value of :NAME in --where.", _ROWS, "NAME=VALUE")
    ] = None,
    limit: Annotated[int | None, _option("--limit", "N rows at most.", _ROWS, "N", least=1)] = None,
    wait_for: Annotated[
        int | None,
        _option("--wait-for", "Wait until this version is published.", _ROWS, "V", least=0),
    ] = None,
    wait: Annotated[
        str, _option("--wait", "How long to wait for it: 500ms, 30s, 5m.", _ROWS, "TIME")
    ] = "10s",
    column: Annotated[
        list[str] | None, _option("--column", "Only this column.", _FORM, "NAME")
    ] = None,
    keys_only: Annotated[
        bool, _option("--keys-only", "Keys and positions, without the rows.", _FORM)
    ] = False,
    values: Annotated[
        str | None,
        _option(
            "--values",
            "decoded: by the column's type, so that decimals and times can be read; raw: as the source wrote "
            "them. [default: decoded; with --json and .ndjson raw; .parquet and .arrow have typed columns]",
            _FORM,
            "raw|decoded",
        ),
    ] = None,
    as_json: typer_options.AsJson = False,
    output: Annotated[
        str | None,
        _option(
            "--output",
            "Write a file; its name says what: .parquet, .arrow, .ndjson or .csv.",
            _FORM,
            "FILE",
        ),
    ] = None,
    token_file: typer_options.TokenFile = None,
    tls: typer_options.WithTls = False,
    tls_ca: typer_options.TlsCa = None,
    tls_certificate: typer_options.TlsCertificate = None,
    tls_key: typer_options.TlsKey = None,
) -> int:
    """Show a table: the rows of an entity type as of one version.

    It ends with the version and the cursor that resumes from there.
    """
    if as_json and output is not None:
        raise InvalidRequest(
            "--json and --output both say what becomes of the rows; give one of them"
        )
    path = None if output is None else Path(output)
    if path is not None:
        form_of(path)
    lines = as_json or (path is not None and path.suffix.lower() == ".ndjson")
    decoded = options.decoded_of(values, as_json=lines)
    typed_file = values is None and path is not None and path.suffix.lower() in TYPED
    arguments: dict[str, Any] = {
        "keys": tuple(key or ()),
        "at": None if at is None else version_or_time(at, "--at"),
        "columns": tuple(column or ()),
        "keys_only": keys_only,
        "where": where,
        "parameters": options.parameters_of(param),
        "limit": limit,
        "wait_for": wait_for,
        "wait_s": times.wait_s(wait),
        "decoded": decoded and not typed_file,
        "typed": typed_file,
    }
    asked = options.server_of(
        server, tls=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key, token_file=token_file
    )
    return run(_state(asked, catalog, entity_type, arguments, as_json=as_json, output=path))


async def _state(
    server: options.ServerOptions,
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
        same = _same_rows(server.server, arguments)
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
            f"{table.hidden} columns do not fit this terminal: choose with --column, or take --json or --output"
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
    """Return the options that ask the same server for the same rows, each behind a space."""
    options_given = [] if server == options.DEFAULT_SERVER else ["--server", server]
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
    more = "; more follow, without --limit" if rows.end.next_page is not None else ""
    name = printable(header.entity_type)
    note(
        f"{count:,} {plural} of {printable(asked)} as of version {header.version}{when}{where}{more}"
    )
    onward = f"tailrace watch {catalog} --entity-type {name} --after {header.cursor}"
    note(f"go on from there: {onward}{same}")


def version_or_time(text: str, option: str) -> int | datetime:
    """Read a version, or a time.

    Raises:
        InvalidRequest: It is neither.
    """
    if re.fullmatch(r"[0-9]{1,14}", text, re.ASCII):
        return int(text)
    return times.datetime_of(text, option)
