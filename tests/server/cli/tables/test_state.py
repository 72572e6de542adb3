"""``tailrace state`` against a server: what is shown, what is written, what is refused before one is asked."""

from __future__ import annotations

import csv
import json
import os
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tailrace.errors import DeadlineExceeded, InvalidRequest, ValueNotHeld
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.cli.tables.cells import OTHERS, Cells, TextTable
from tailrace_server.cli.tables.state import _state, state
from tailrace_server.cli.terminal.options import ServerOptions
from tailrace_server.cli.terminal.output import Palette
from tailrace_server.engine.engine import Engine
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.conformance.shop import upsert
from tests.server.cli.command_line import call, made
from tests.server.sql.test_change_tables import define

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.inprocess import ModelWriter

ARGUMENTS: dict[str, Any] = {
    "keys": (),
    "at": None,
    "columns": (),
    "keys_only": False,
    "where": None,
    "parameters": {},
    "limit": None,
    "wait_for": None,
    "wait_s": 10.0,
    "decoded": False,
    "typed": False,
}


@pytest.fixture
async def server(log_root: Path, writer: ModelWriter) -> AsyncIterator[ServerOptions]:
    writer.write(
        [
            upsert("1", name="chair", price=1.5),
            upsert("2", name='a "table", round\x1b[31m', price=None),
            upsert("o1", "order", total=10**20),
        ]
    )
    async with Engine(log_root) as engine:
        grpc = GrpcServer(engine)
        port = await grpc.start("127.0.0.1:0")
        try:
            yield made(ServerOptions, server=f"127.0.0.1:{port}")
        finally:
            await grpc.stop(1.0)


async def show(
    server: ServerOptions,
    entity_type: str = "product",
    *,
    output: Path | None = None,
    as_json: bool = False,
    **arguments: Any,
) -> None:
    asked = {**ARGUMENTS, **arguments}
    await _state(server, "shop", entity_type, asked, as_json=as_json, output=output)


async def test_a_person_sees_columns_and_how_to_go_on(
    server: ServerOptions, capfd: pytest.CaptureFixture[str]
) -> None:
    await show(server)
    out, told = capfd.readouterr()
    head, *rows = out.splitlines()
    assert head.split() == ["id", "name", "price", "text", "big"]
    cells = {row.split()[0]: row for row in rows}
    assert cells["1"].split() == ["1", "chair", "1.5", "–", "–"]
    assert 'a "table", round\\u001b[31m' in cells["2"]  # a terminal obeys no row
    assert "2 rows of product as of version 1" in told
    assert "tailrace watch shop --entity-type product --after 1." in told
    await show(server, "order", limit=1, columns=("total",))
    out, told = capfd.readouterr()
    assert [line.split() for line in out.splitlines()] == [["key", "total"], ["o1", str(10**20)]]
    await show(server, limit=1)
    assert "1 row of product as of version 1" in (told := capfd.readouterr()[1])
    assert "more rows follow" in told
    await show(server, where="price > :least", parameters={"least": "1"})
    told = capfd.readouterr()[1].rstrip()
    assert told.endswith(f" --server {server.server} --where 'price > :least' --param least=1")


async def test_a_view_is_shown_with_its_columns_and_its_name(
    server: ServerOptions, log_root: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    define(log_root, "CREATE VIEW priced AS SELECT price, id FROM product WHERE price > 1")
    await show(server, "priced")
    out, told = capfd.readouterr()
    assert [line.split() for line in out.splitlines()] == [["id", "price"], ["1", "1.5"]]
    assert "1 row of priced as of version 1" in told
    assert "--entity-type product --after 1." in told
    await show(server, "priced", output=tmp_path / "priced.parquet", typed=True)
    table = parquet.read_table(tmp_path / "priced.parquet")
    assert [name for name in table.column_names if name[0] != "_"] == ["id", "price"]


async def test_only_rows_that_meet_a_condition_are_shown(
    server: ServerOptions, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On the screen and in a file."""
    await show(server, where="price > 1 AND name LIKE 'ch%'")
    out, told = capfd.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["id", "1"]
    assert "1 row of product as of version 1" in told
    await show(server, where="price IS NULL", output=tmp_path / "product.parquet", typed=True)
    assert parquet.read_table(tmp_path / "product.parquet")["id"].to_pylist() == ['"2"']
    with pytest.raises(InvalidRequest, match="did you mean price"):
        await show(server, where="prise > 1")


async def test_lines_of_json_have_the_row_byte_for_byte(
    server: ServerOptions,
    writer: ModelWriter,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    writer.writer.append([Mutation("note", "1", after=b'{\n "id": 1.50}')])
    writer.writer.commit(publish=True)
    await show(server, "note", as_json=True, wait_for=2)
    out, _ = capfd.readouterr()
    found = json.loads(out)
    assert found.keys() == {"primaryKey", "version", "index", "commitTimestamp", "row"}
    assert (found["primaryKey"], found["version"]) == ("1", 2)
    assert '"row":{  "id": 1.50}}' in out
    path = tmp_path / "note.ndjson"
    await show(server, "note", output=path)
    assert path.read_text() == out


async def test_every_kind_of_file_has_the_same_rows(server: ServerOptions, tmp_path: Path) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    for suffix in ("parquet", "arrow", "csv"):
        path = tmp_path / f"product.{suffix}"
        await show(server, output=path)
        if suffix == "csv":
            with path.open(newline="") as lines:
                found[suffix] = [*csv.DictReader(lines)]
        elif suffix == "arrow":
            with pa.ipc.open_file(path) as file:
                found[suffix] = file.read_all().to_pylist()
        else:
            found[suffix] = parquet.read_table(path).to_pylist()
    assert {*os.listdir(tmp_path)} >= {"product.parquet", "product.arrow", "product.csv"}
    assert found["parquet"] == found["arrow"]
    [chair] = [row for row in found["parquet"] if row["_primary_key"] == "1"]
    assert (chair["_version"], chair["name"], chair["price"]) == (1, "chair", "1.5")
    in_text = {row["_primary_key"]: (row["name"], row["price"]) for row in found["csv"]}
    assert in_text == {
        row["_primary_key"]: (row["name"], row["price"] or "") for row in found["parquet"]
    }


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
async def test_files_that_have_types_have_those_of_the_columns(
    log_root: Path, tmp_path: Path, suffix: str
) -> None:
    """A renamed column is followed, by rows that have its former name; the rest stands as JSON."""
    mapping = tmp_path / "shop.toml"
    mapping.write_text(
        '[entity_types.product.columns]\nprice.type = "DECIMAL(8,2)"\nprice.encoding = "decimal.bytes(2)"\n'
        'made.type = "TIMESTAMP"\nmade.encoding = "debezium.MicroTimestamp"\n'
    )
    renamed = tmp_path / "renamed.toml"
    renamed.write_text(
        mapping.read_text().replace("price", "cost") + 'cost.renamed_from = "price"\n'
    )
    rows = [
        Mutation(
            "product", "1", after=b'{"price":"BNI=","made":1700000000000001,"id":9007199254740993}'
        ),
        Mutation("product", "2", after=b'{"cost":null,"made":null,"id":2}'),
        Mutation("product", "3", after=b'{"cost":"AQ==","made":9223372036825200000,"id":2}'),
    ]
    for row, path in zip(rows[:2], (mapping, renamed), strict=True):
        with LogWriter.open(log_root, "shop", mapping=SchemaMapping.load(path)) as log:
            log.append([row])
            log.commit(publish=True)
    async with Engine(log_root) as engine:
        grpc = GrpcServer(engine)
        port = await grpc.start("127.0.0.1:0")
        server = made(ServerOptions, server=f"127.0.0.1:{port}")
        try:
            path = tmp_path / f"product.{suffix}"
            await show(server, output=path, typed=True)
            table = (
                parquet.read_table(path)
                if suffix == "parquet"
                else pa.ipc.open_file(path).read_all()
            )
            with LogWriter.open(log_root, "shop") as log:
                log.append([rows[2]])
                log.commit(publish=True)
            with pytest.raises(ValueNotHeld, match="version 3; --values raw"):
                await show(server, output=path, typed=True, wait_for=3)
        finally:
            await grpc.stop(1.0)
    found = {row["_primary_key"]: row for row in table.to_pylist()}
    first = found["1"]
    assert (first["cost"], first["made"]) == (
        Decimal("12.34"),
        datetime(2023, 11, 14, 22, 13, 20, 1),
    )
    assert (first["id"], first["_version"], first[OTHERS]) == (9007199254740993, 1, None)
    assert (found["2"]["cost"], found["2"]["id"]) == (None, 2)
    assert table.schema.field("cost").type == pa.decimal128(8, 2)


async def test_what_fails_leaves_no_file_and_an_earlier_one_as_it_was(
    server: ServerOptions, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "product.csv").write_text("earlier")
    with pytest.raises(DeadlineExceeded):
        await show(server, output=folder / "product.csv", wait_for=9, wait_s=0.01)
    with pytest.raises(FileNotFoundError):
        await show(server, output=folder / "none" / "product.csv")
    assert os.listdir(folder) == ["product.csv"]
    assert (folder / "product.csv").read_text() == "earlier"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"output": Path("t.txt")},
            "--output 't.txt': the name must end with one of .parquet, .arrow",
        ),
        ({"output": Path("t.csv"), "as_json": True}, "either --json or --output, not both"),
        ({"at": "yesterday"}, "--at 'yesterday': not a time"),
        ({"wait_s": "soon"}, "--wait 'soon'"),
    ],
)
def test_what_has_no_meaning_is_refused_before_a_server_is_asked(
    asked: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told):
        call(state, catalog="shop", entity_type="product", server="127.0.0.1:1", **asked)


def test_what_an_image_has_beside_the_schema_is_not_left_out() -> None:
    from tailrace.position import Position, TimestampMicros
    from tailrace.reads.state import StateRow

    cells = Cells(("id", "name"))
    row = StateRow("1", Position(1, 1), TimestampMicros(0), b'{"id":1,"old":[1.50]}', count=3)
    assert cells.values(row) == (["1", None], '{"old":[1.50]}')
    table = TextTable(cells, Palette(enabled=False), None)
    assert [line.decode().rstrip("\n") for line in table.lines([row])] == [
        "id  name",
        ' 1     –  × 3  + {"old":[1.50]}',
    ]
    narrow = TextTable(cells, Palette(enabled=False), 4)
    assert narrow.lines([row])[0] == b"id\n"
    assert narrow.hidden == 1
    assert OTHERS not in cells.columns
