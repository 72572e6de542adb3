"""SQL over logs: what it answers is what plain Python folds, and nothing but that can be had from it."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from datetime import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest, PositionCompacted
from tailrace_server.reads.sql_forms import python_values
from tailrace_server.sql import scans
from tailrace_server.sql.interruption import Interruption
from tailrace_server.sql.query import Query, QueryLimits
from tailrace_server.sql.scans import LogSource
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment import reader as segment_reader
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.upkeep.retention import delete_unnamed, trim
from tests.server.wal.base.tables import histories, naive, rename, write_history
from tests.server.wal.logs import KEY, VERSION, rows_of, upsert

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace_server.wal.state.view import LogView

TYPED = SchemaMapping.parse(
    """
    [entity_types.product]
    key = ["id"]
    [entity_types.product.columns]
    id = { type = "BIGINT" }
    name = { type = "VARCHAR" }
    price = { type = "DECIMAL(10,2)" }
    """
)


@contextmanager
def opened(root: Path, text: str, **more: Any) -> Iterator[Query]:
    log = open_catalog(root, "shop")

    def newer(_: object) -> LogView:
        return open_catalog(root, "shop").view

    with (
        BatchReader(log.path) as reader,
        Query(LogSource(log.view, reader, newer), text, **more) as query,
    ):
        yield query


def ask(root: Path, text: str, **more: Any) -> list[tuple[Any, ...]]:
    """Return the rows of an answer."""
    with opened(root, text, **more) as query:
        return [tuple(row.values()) for batch in query.batches() for row in batch.to_pylist()]


def products(root: Path) -> None:
    """Write a typed table: two rows, an update, a removal, a third row."""
    with LogWriter.open(root, "shop", mapping=TYPED) as writer:
        for mutations in (
            [product(1, "chair", "1.50"), product(2, "table", "12.50")],
            [
                Mutation(
                    "product",
                    "1",
                    before=image(1, "chair", "1.50"),
                    after=image(1, "chair", "2.00"),
                    changed=("price",),
                )
            ],
            [Mutation("product", "2", Operation.REMOVE, before=image(2, "table", "12.50"))],
            [product(10, "lamp", "99999999.99")],
        ):
            writer.append(mutations)
            writer.commit(publish=True)


def product(key: int, name: str, price: str) -> Mutation:
    return Mutation("product", str(key), after=image(key, name, price))


def image(key: int, name: str, price: str) -> bytes:
    return f'{{"id":{key},"name":"{name}","price":{price}}}'.encode()


@settings(max_examples=5)
@given(history=histories())
def test_state_and_changes_are_what_plain_python_folds(
    tmp_path_factory: pytest.TempPathFactory, history: list[list[Mutation]]
) -> None:
    root = tmp_path_factory.mktemp("log")
    write_history(root, history)
    records = rows_of(root / "shop")
    newest = max(row[VERSION] for row in records)
    for version in {1, newest // 2 + 1, newest}:
        wanted = naive(records, version, "order")
        found = ask(
            root,
            f'SELECT _primary_key, _version, _index, value FROM "order" FOR VERSION AS OF {version}',
        )
        assert {row[0]: (row[1], row[2]) for row in found} == {
            key: row.at for key, row in wanted.items()
        }
        assert len(found) == len(wanted)
        items = naive(records, version, "item")
        rows = ask(root, f"SELECT row FROM item FOR VERSION AS OF {version}")
        assert len(rows) == sum(max(row.multiplicity, 0) for row in items.values())
    changes = ask(
        root, "SELECT _commit_version, _index, _primary_key FROM CHANGES('order') ORDER BY 1, 2"
    )
    assert changes == [
        (row[VERSION], row[2], row[KEY])
        for row in records
        if row[5] == "order" and row[3] == Area.DATA
    ]


def test_values_have_their_types(log_root: Path) -> None:
    products(log_root)
    with opened(log_root, "SELECT * FROM product ORDER BY id") as query:
        (batch,) = query.batches()
        assert query.version == 4
        assert [str(each.type) for each in query.schema][:3] == [
            "int64",
            "string",
            "decimal128(10, 2)",
        ]
        rows = batch.to_pylist()
    assert [(row["id"], str(row["price"]), row["_version"]) for row in rows] == [
        (1, "2.00", 2),
        (10, "99999999.99", 4),
    ]
    changes = ask(
        log_root,
        "SELECT _change_type, before.price::VARCHAR, c.after.name FROM CHANGES('product', 2) c",
    )
    assert changes == [
        ("update", "1.50", "chair"),
        ("delete", "12.50", None),
        ("insert", None, "lamp"),
    ]
    # A row is inserted once more under no name: an image as one value has all of its columns.
    ((whole,),) = ask(log_root, "SELECT after FROM CHANGES('product', 4, 4)")
    assert {*whole} == {"id", "name", "price"}


def test_tables_are_joined_with_their_past_and_their_changes(log_root: Path) -> None:
    products(log_root)
    assert ask(
        log_root,
        "SELECT n.id, o.price < n.price FROM product n JOIN product FOR VERSION AS OF 1 o USING (id)",
    ) == [(1, True)]
    assert ask(
        log_root,
        "WITH product AS (SELECT * FROM product WHERE id > 1) SELECT id FROM product "
        "UNION ALL SELECT count(*) FROM CHANGES('product') WHERE _primary_key IN ('1', '2')",
    ) == [(10,), (4,)]
    assert ask(log_root, "SELECT id FROM product WHERE id = $k", parameters={"k": "10"}) == [(10,)]


def test_a_table_is_what_the_log_has_whatever_else_a_statement_names(log_root: Path) -> None:
    """Tables have names of their own for DuckDB, which nothing in a statement may have too."""
    products(log_root)
    for text, rows in (
        ("WITH t0 AS (SELECT 77 AS id) SELECT id FROM product WHERE id = 1", [(1,)]),
        (
            "WITH t0 AS (SELECT 77 AS id) SELECT p.id, t0.id AS n FROM product p, t0",
            [(1, 77), (10, 77)],
        ),
        ("SELECT p.id, t1.n FROM product p, (VALUES (5)) t1(n)", [(1, 5), (10, 5)]),
        ("SELECT p.id, n FROM product p, unnest([p.id + 1]) t(n)", [(1, 2), (10, 11)]),
        (
            "SELECT p.id, n FROM product p, LATERAL (SELECT id AS n FROM product WHERE id > p.id)",
            [(1, 10)],
        ),
    ):
        assert sorted(ask(log_root, text)) == rows


def test_times_choose_versions(log_root: Path) -> None:
    products(log_root)
    view = open_catalog(log_root, "shop").view
    for version in range(1, 5):
        at = f"make_timestamptz({view.timestamp_of(version)})"
        assert ask(log_root, f"SELECT count(*) FROM CHANGES('product', {at}, {at})") == [
            (2 if version == 1 else 1,)
        ]
        assert ask(log_root, f"SELECT max(_version) FROM product FOR TIMESTAMP AS OF {at}") == ask(
            log_root, f"SELECT max(_version) FROM product FOR VERSION AS OF {version}"
        )
    assert ask(log_root, "SELECT count(*) FROM CHANGES('product', '2020-01-01', now())") == [(5,)]


def test_only_what_is_needed_is_read(log_root: Path) -> None:
    products(log_root)

    def plan(text: str) -> str:
        return str(ask(log_root, f"EXPLAIN {text}")[0][0])

    found = plan("SELECT name FROM product p WHERE p.id = 1 AND price > 3")
    assert found.startswith(
        "t0: state of product as of version 4; 1 key; columns id, name, price; reads 2 of 4 batches, at most "
    )
    assert "all keys" in plan("SELECT name FROM product WHERE id = 1 OR price > 3")
    assert "2 keys" in plan(
        "SELECT count(*) FROM CHANGES('product') WHERE _primary_key IN ('1', '2')"
    )
    assert "versions 2 to 3" in plan("SELECT count(*) FROM CHANGES('product', 2, 3)")
    # A column of both sides of an outer join is of neither.
    joined = "SELECT a.name FROM product a LEFT JOIN product b USING (id) WHERE {} = 1"
    assert "all keys" in plan(joined.format("id"))
    assert "1 key" in plan(joined.format("a.id"))
    for key in ("'1'", "01", "1.0", "1e0", "-1"):
        both = f"SELECT count(*) FROM product WHERE id = {key}"
        assert ask(log_root, both) == ask(log_root, both.replace("id =", "id + 0 ="))


def test_show_and_describe_tell_what_there_is(log_root: Path) -> None:
    products(log_root)
    assert ask(log_root, "SHOW TABLES;") == [("product", "entity type", 3, "id")]
    found = ask(log_root, 'describe "product"')
    assert found[0] == ("id", "int64", "BIGINT", True)
    assert [row[0] for row in found] == [
        "id",
        "name",
        "price",
        "_primary_key",
        "_version",
        "_index",
        "_commit_timestamp",
    ]
    assert ask(log_root, "DESCRIBE CHANGES('product')")[-1][:1] == ("after",)


def test_a_renamed_table_has_one_history(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([upsert("1"), upsert("2")])
    rename(log_root, "order", "sale", [upsert("2", 5, "sale")])
    assert ask(log_root, "SELECT value FROM sale ORDER BY id") == [(1,), (5,)]
    assert ask(log_root, "SELECT count(*) FROM CHANGES('sale') WHERE _primary_key = '2'") == [(2,)]
    assert ask(log_root, 'SELECT count(*) FROM "order" FOR VERSION AS OF 1') == [(2,)]
    assert ask(log_root, "SELECT value FROM sale FOR VERSION AS OF 1 WHERE id = '2'") == [(1,)]


@pytest.mark.parametrize("order", ["", " ORDER BY _commit_version DESC, _index DESC"])
def test_contract_38_what_is_compacted_while_it_is_read_is_read_on(
    log_root: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(segment_reader, "_OPEN_FILES_MAX", 1)
    monkeypatch.setattr(scans, "_PART_ROWS", 2)
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(12):
            writer.append([upsert(str(number)), upsert(str(number + 100))])
            writer.commit(publish=True)
        text = f"SELECT _primary_key FROM CHANGES('order'){order}"
        wanted = ask(log_root, text)
        log = open_catalog(log_root, "shop")
        seen: list[Any] = []
        with BatchReader(log.path) as reader:
            source = LogSource(log.view, reader, lambda _: open_catalog(log_root, "shop").view)
            with Query(source, text) as query:
                scan = query.scans[0]
                batches = scan.batches()
                seen += batches.read_next_batch().column("_primary_key").to_pylist()
                assert writer.compact() is not None
                assert delete_unnamed(log_root / "shop", 2**62)
                for batch in batches:
                    seen += batch.column("_primary_key").to_pylist()
    assert [(each,) for each in seen] == wanted


def test_versions_that_were_trimmed_are_refused_and_state_stays(log_root: Path) -> None:
    products(log_root)
    trim(log_root / "shop", 3, 10**15)
    assert ask(log_root, "SELECT count(*) FROM product") == [(2,)]
    assert ask(log_root, "SELECT count(*) FROM CHANGES('product')") == [(2,)]
    for text in (
        "SELECT * FROM CHANGES('product', 2)",
        "SELECT * FROM CHANGES('product', '2020-01-01')",
        "SELECT * FROM product FOR VERSION AS OF 1",
    ):
        with pytest.raises(PositionCompacted):
            ask(log_root, text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELEC 1", "line 1, column"),
        ("", "0 statements"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("SELECT * FROM product2", "no table 'product2'; did you mean product?"),
        ("SELECT name2 FROM product", "no column 'name2'; did you mean name?"),
        ("SELECT id FROM CHANGES('product')", "write after.id or before.id"),
        ("SELECT price + 'x' FROM product", "Conversion Error"),
        ("SELECT id FROM product WHERE name > 500", "DESCRIBE shows the types: cast it, as name"),
        ("SELECT current_setting('secret_directory')", "current_setting(…) is not allowed"),
        ("SELECT 'x'.main.current_setting()", "current_setting(…) is not allowed"),
        ("SELECT * FROM product FOR VERSION AS OF 99", "from 1 to 4"),
        ("SELECT * FROM product FOR VERSION AS OF 'x'", "neither a version nor a time"),
        ("SELECT * FROM product FOR TIMESTAMP AS OF '2999-01-01'", "in the future"),
        ("SELECT * FROM CHANGES(product)", "in quotes"),
        ("SELECT * FROM CHANGES('nothing')", "no table 'nothing'"),
        ("SELECT * FROM product WHERE id = $k", "parameter $k has no value"),
        ("DESCRIBE nothing", "no table 'nothing'"),
        ("DELETE FROM product", "DELETE is not supported"),
        ("CREATE TABLE x AS SELECT 1", "CREATE is not supported"),
        ("CREATE TABLE x (a INT)", "CREATE, ALTER and DROP of a VIEW or CDC"),
        ("SHOW COLUMNS FROM product", "SHOW TABLES, VIEWS or CDC"),
        ("EXPLAIN ANALYZE SELECT 1", "Expected table name but got 'SELECT'"),
        ("SELECT :a", "Required keyword: 'this' missing for Alias"),
        ("PIVOT product ON name USING count(*)", "UNPIVOT must follow a table"),
        ("SELECT * FROM (PIVOT product ON name USING count(*))", "UNPIVOT must follow a table"),
        ("SELECT id FROM product FOR UPDATE", "LOCK is not supported"),
        ("SELECT sum(name) FROM product", "DESCRIBE shows it: cast it, as price"),
        ("SELECT id FROM product WHERE name = 1", "DESCRIBE shows the types: cast it, as name"),
        ("COPY product TO '/tmp/x.csv'", "COPY is not supported"),
        ("CALL nothing()", "CALL is not supported"),
        ("ATTACH 'x.db'", "ATTACH is not supported"),
        ("INSTALL httpfs", "not supported"),
        ("SET memory_limit = '9GB'", "SET is not supported"),
        ("PRAGMA database_list", "not supported"),
        ("SELECT * FROM read_csv('/etc/passwd')", "read_csv(…) is not a table"),
        ("SELECT * FROM read_text('/etc/passwd')", "read_text(…) is not a table"),
        ("SELECT * FROM glob('/etc/*')", "glob(…) is not a table"),
        ("SELECT * FROM '/etc/passwd'", "no table '/etc/passwd'"),
        ("SELECT * FROM query('SELECT 1')", "query(…) is not a table"),
        ("SELECT * FROM duckdb_settings()", "duckdb_settings(…) is not a table"),
        ("SELECT * FROM information_schema.tables", "no table 'information_schema.tables'"),
        ("SELECT * FROM (SELECT * FROM sqlite_master)", "no table 'sqlite_master'"),
        ("SELECT (SELECT count(*) FROM pg_class)", "no table 'pg_class'"),
        ("SELECT 1 INTO x", "not supported"),
        ("SELECT '" + "x" * 70_000 + "'", "longer than 65536 bytes"),
        (
            "WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT r.n + 1 FROM r, product WHERE n < id) "
            "FROM r",
            "AS MATERIALIZED",
        ),
    ],
)
def test_what_cannot_be_run_is_told(
    log_root: Path, text: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    products(log_root)
    with pytest.raises(InvalidRequest) as error:
        ask(log_root, text)
    assert told in str(error.value)
    assert not caplog.records


def test_a_statement_has_bounds(log_root: Path) -> None:
    products(log_root)
    endless = "SELECT count(*) FROM range(1000000000000)"
    with pytest.raises(InvalidRequest, match="took longer than"):
        ask(log_root, endless, limits=QueryLimits(seconds=0.2))
    asked = Interruption()
    asked.ask("nobody waits for it")
    with pytest.raises(InvalidRequest, match="nobody waits"):
        ask(log_root, endless, interruption=asked)
    with pytest.raises(InvalidRequest, match="needs more memory"):
        ask(
            log_root,
            "SELECT i, md5(i::VARCHAR) FROM range(3000000) t(i) ORDER BY 2",
            limits=QueryLimits(memory_bytes=16 << 20),
        )
    with pytest.raises(InvalidRequest, match="more than 10 rows"):
        ask(log_root, "SELECT * FROM range(11)", limits=QueryLimits(rows=10))
    assert len(ask(log_root, "SELECT * FROM range(10)", limits=QueryLimits(rows=10))) == 10


@pytest.mark.parametrize("after_s", [0.002, 0.02, 0.05, 0.4])
def test_ctrl_c_ends_a_statement_as_it_ends_any_program(log_root: Path, after_s: float) -> None:
    """While it is looked at, while DuckDB or Arrow calls Python, and while it is computed."""

    def ask_for_long() -> None:
        pressed = threading.Timer(after_s, lambda: os.kill(os.getpid(), signal.SIGINT))
        pressed.start()
        ask(log_root, "SELECT count(*) FROM range(1000000000000), product")

    products(log_root)
    with pytest.raises(KeyboardInterrupt):
        ask_for_long()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_each_part_of_a_statement_gets_the_parameters_that_it_names(log_root: Path) -> None:
    """Bounds of change tables are computed apart from the rest, and DuckDB takes no value too many."""
    products(log_root)
    text = "SELECT count(*) FROM CHANGES('product', $first, $last) WHERE _change_type = $kind"
    values = {"first": 1, "last": 1, "kind": "insert"}
    assert ask(log_root, text, parameters=values) == ask(
        log_root, "SELECT count(*) FROM CHANGES('product', 1, 1) WHERE _change_type = 'insert'"
    )
    with pytest.raises(
        InvalidRequest, match=r"no parameter \$kinds in the statement; did you mean kind"
    ):
        ask(log_root, text, parameters={**values, "kinds": 1})


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("SELECT $a,$b", (1, 2)),
        ("SELECT $a,$b,$a+1,$b+2", (1, 2, 2, 4)),
        ("SELECT $a+$b,$a::TEXT", (3, "1")),
        ("SELECT '$a,$b',$a,$b -- $a,$b", ("$a,$b", 1, 2)),
        ("SELECT /* '$a, */ e'\\'$a,',$a,$b", ("'$a,", 1, 2)),
        ("SELECT $$x $a,$b$$,$q$ $a,$b $$ $q$,$a,$b", ("x $a,$b", " $a,$b $$ ", 1, 2)),
    ],
)
def test_parameters_need_no_space_behind_them(
    log_root: Path, text: str, answer: tuple[object, ...]
) -> None:
    products(log_root)
    assert ask(log_root, text, parameters={"a": 1, "b": 2}) == [answer]


def test_the_end_of_a_day_is_not_shown_as_its_begin(log_root: Path) -> None:
    products(log_root)
    assert ask(log_root, "SELECT TIME '23:59:59.999999'") == [(time(23, 59, 59, 999999),)]
    with opened(log_root, "SELECT TIME '24:00:00' AS t") as query:
        (batch,) = query.batches()
        with pytest.raises(InvalidRequest, match=r"column 't' .*24:00:00.*write t::TEXT"):
            python_values("t", batch.column(0))


def test_a_value_that_its_type_cannot_hold_is_named(log_root: Path) -> None:
    mapping = SchemaMapping.parse('[entity_types.day.columns]\nat = { type = "DATE" }')
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        writer.append([Mutation("day", "1", after=b'{"at":"12024-02-29","name":"a"}')])
        writer.commit(publish=True)
    with pytest.raises(InvalidRequest, match=r"day at 1:[0-9]+: column 'at'"):
        ask(log_root, "SELECT * FROM day")
    assert ask(log_root, "SELECT name FROM day") == [("a",)]


def test_values_that_the_engine_has_no_type_for_come_as_exact_texts(log_root: Path) -> None:
    """Decimals above 38 digits to DuckDB, parts of a microsecond to Python; of no column that is not named."""
    mapping = SchemaMapping.parse(
        """
        [entity_types.item.columns]
        id = { type = "BIGINT" }
        wide = { type = "DECIMAL(65,30)" }
        clock = { type = "TIME", encoding = "debezium.NanoTime" }
        made = { type = "TIMESTAMP", encoding = "debezium.NanoTimestamp" }
        """
    )
    wide = f"{'9' * 35}.{'0' * 29}1"
    after = f'{{"id":1,"wide":{wide},"clock":1001,"made":1}}'.encode()
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        writer.append([Mutation("item", "1", after=after)])
        writer.append([Mutation("item", "2", after=b'{"id":2,"wide":1e-30}')])
        writer.commit(publish=True)
    asked = "SELECT wide FROM item ORDER BY id"
    assert ask(log_root, asked) == [(wide,), (f"0.{'0' * 29}1",)]
    found = {}
    for text in ("SELECT * FROM item WHERE id = 1", "SELECT after FROM CHANGES('item') LIMIT 1"):
        with opened(log_root, text) as query:
            (batch,) = query.batches()
            found[text] = [*map(python_values, batch.schema.names, batch.columns)]
    row, change = found.values()
    times = {"clock": "00:00:00.000001001", "made": "1970-01-01 00:00:00.000000001"}
    assert [value for (value,) in row][:4] == [1, wide, *times.values()]
    assert change == [[{"id": 1, "wide": wide, **times}]]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT name FROM item",
        'SELECT "NAME" FROM item',
        "SELECT * FROM item",
        "SELECT after.name FROM CHANGES('item')",
        "SELECT * FROM CHANGES('item')",
        "SELECT * FROM loud",
        "SELECT * FROM CHANGES('loud')",
    ],
)
def test_columns_that_differ_by_case_alone_are_refused_by_name(log_root: Path, text: str) -> None:
    """Names of DuckDB have no case: it would give the first of them for each."""
    with LogWriter.open(log_root, "shop") as writer:
        after = b'{"id":1,"Name":"A","name":"b2","NAME":"C"}'
        writer.append([Mutation("item", "1", after=after)])
        writer.commit(publish=True)
    ask(log_root, """CREATE VIEW loud AS SELECT * FROM item WHERE "NAME" = 'C'""", may_define=True)
    ask(log_root, """CREATE VIEW one AS SELECT id FROM item WHERE "NAME" = 'C'""", may_define=True)
    with pytest.raises(InvalidRequest, match=r"item has the columns '(Name|NAME|name)' and"):
        ask(log_root, text)
    for known in (
        "SELECT id FROM item",
        "SELECT id FROM one",
        "SELECT after.id FROM CHANGES('one')",
    ):
        assert ask(log_root, known) == [(1,)]
