"""A real PostgreSQL into a catalog: snapshot, stream, types, altered tables, and what refuses to be read."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
import pytest

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.machine_code.loader import loops_made
from tailrace_server.pipeline.feed import loop
from tailrace_server.pipeline.feed.loop import run_feed
from tailrace_server.pipeline.feed.postgres.options import PostgresOptions
from tailrace_server.pipeline.feed.postgres.source import PostgresSource
from tailrace_server.pipeline.feed.settings import FeedSettings
from tailrace_server.pipeline.feed.source import SourceLost, SourceRefused, SourceUnreachable
from tailrace_server.pipeline.run.metrics import IngestMetrics
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.wal.catalog import open_catalog, open_writer
from tailrace_server.wal.transaction_writer import TransactionWriter
from tests.process.ingest.postgres_server import Postgres, postgres
from tests.process.ingest.reading import Record, records
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace_server.pipeline.run.progress import IngestCounters

pytestmark = pytest.mark.slow

State = dict[tuple[str, str], dict[str, Any]]


class Shop:
    """A database of its own on the shared server, and the catalog that it is read into."""

    def __init__(self, server: Postgres, name: str, root: Path) -> None:
        self.server = server
        self.name = name
        self.root = root
        self.notes: list[str] = []
        self.warnings: list[str] = []
        server.execute(f"CREATE DATABASE {name}")
        self.options = PostgresOptions(dsn=server.dsn(name), slot=name)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        return self.server.execute(*statements, database=self.name)

    def ingest(
        self,
        *,
        catalog: str = "shop",
        follow: bool = False,
        stopping: Stopping | None = None,
        **options: Any,
    ) -> IngestCounters:
        settings = FeedSettings(log=self.root, catalog=catalog, follow=follow)
        source = PostgresSource(
            replace(self.options, **options),
            self.root,
            catalog,
            follow=follow,
            note=self.notes.append,
            warn=self.warnings.append,
        )
        return run_feed(
            [source],
            "postgres",
            settings,
            ProgressReporter(quiet=True),
            stopping=stopping or Stopping(),
            metrics=IngestMetrics(catalog, "postgres", version="1"),
        )

    def records(self) -> list[Record]:
        """Return the changes of rows in the catalog."""
        return [each for each in records(self.root / "shop") if each.area == Area.DATA]

    def state(self) -> State:
        return state_of(self.records())

    def new_records(self, **options: Any) -> list[Record]:
        """Ingest, and return the changes of rows that this added."""
        before = len(self.records()) if (self.root / "shop").exists() else 0
        self.ingest(**options)
        return self.records()[before:]


def state_of(found: list[Record]) -> State:
    """Return the rows after some changes; each image before must be the row before the change."""
    state: State = {}
    for each in found:
        assert each.entity_type is not None
        if each.primary_key is None:
            state = {name: row for name, row in state.items() if name[0] != each.entity_type}
            continue
        name = each.entity_type, each.primary_key
        before = None if each.before is None else orjson.loads(each.before)
        assert before == state.get(name), each
        if each.operation == Operation.REMOVE:
            del state[name]
        else:
            assert each.after is not None
            state[name] = orjson.loads(each.after)
    return state


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


@pytest.fixture
def shop(server: Postgres, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    name = request.node.name.split("[")[0].removeprefix("test_")[:40]
    made = Shop(server, f"{name}_{abs(hash(request.node.name)) % 1_000_000}", tmp_path)
    yield made
    # A slot that is left keeps the log of all databases.
    server.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid > 0"
    )
    wait_until(
        lambda: not server.execute("SELECT 1 FROM pg_replication_slots WHERE active_pid > 0")
    )
    server.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def columns(shop: Shop, entity_type: str) -> list[tuple[str, str | None]]:
    log = open_catalog(shop.root, "shop")
    schema = log.view.schema_of(log.state.last_version)
    return [(each.name, each.sql_type) for each in schema.columns(entity_type)]


PRODUCT = "CREATE TABLE product (id int PRIMARY KEY, name text, price numeric(10,2))"


def test_a_transaction_is_one_version_and_has_each_row_once(shop: Shop) -> None:
    """Snapshot, then a transaction of many kinds of changes, a new key, and a truncate."""
    shop.execute(
        PRODUCT,
        'CREATE SCHEMA "Sales"',
        'CREATE TABLE "Sales"."Order" (region text, "No" int, total float8, PRIMARY KEY ("No", region))',
        "INSERT INTO product SELECT i, 'n' || i, i * 1.5 FROM generate_series(1, 12000) i",
    )
    first = shop.new_records()
    assert len(first) == 12_000
    assert {each.version for each in first} == {1, 2}
    assert shop.state()["product", "7"] == {"id": 7, "name": "n7", "price": 10.5}

    shop.execute(
        "BEGIN; UPDATE product SET name = 'a' WHERE id = 1; UPDATE product SET name = 'b' WHERE id = 1; "
        "DELETE FROM product WHERE id = 2; INSERT INTO product VALUES (20000, 'new', 1); "
        "INSERT INTO product VALUES (20001, 'gone', 1); DELETE FROM product WHERE id = 20001; "
        "SAVEPOINT s; DELETE FROM product; ROLLBACK TO s; "
        "INSERT INTO \"Sales\".\"Order\" VALUES ('eu', 1, 'NaN'), ('us', 1, 1e300); COMMIT",
        "UPDATE product SET id = 30000 WHERE id = 3",
    )
    found = shop.new_records()
    assert [(each.version, each.operation, each.primary_key) for each in found] == [
        (3, Operation.UPSERT, "1"),
        (3, Operation.REMOVE, "2"),
        (3, Operation.UPSERT, "20000"),
        (3, Operation.UPSERT, '[1,"eu"]'),
        (3, Operation.UPSERT, '[1,"us"]'),
        (4, Operation.REMOVE, "3"),
        (4, Operation.UPSERT, "30000"),
    ]
    assert found[0].changed == ["name"]
    assert shop.state()["Sales.Order", '[1,"eu"]'] == {"region": "eu", "No": 1, "total": "NaN"}

    shop.execute("BEGIN; TRUNCATE product; INSERT INTO product VALUES (1, 'again', NULL); COMMIT")
    shop.ingest()
    left = {name: row for name, row in shop.state().items() if name[0] == "product"}
    assert left == {("product", "1"): {"id": 1, "name": "again", "price": None}}
    assert shop.new_records() == []


def test_writers_go_on_during_the_snapshot_and_no_row_is_missing_or_twice(shop: Shop) -> None:
    shop.execute(PRODUCT, "INSERT INTO product SELECT i, '', 1 FROM generate_series(1, 20000) i")
    stopping, wrote = threading.Event(), list[int]()

    def write() -> None:
        with psycopg.connect(shop.server.dsn(shop.name), autocommit=True) as connection:
            while not stopping.is_set():
                number = 100_000 + len(wrote)
                connection.execute("INSERT INTO product VALUES (%s, 'live', 1)", (number,))
                connection.execute("UPDATE product SET name = 'x' WHERE id = %s", (len(wrote) + 1,))
                wrote.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        shop.ingest()
    finally:
        stopping.set()
        thread.join()
    assert wrote
    shop.ingest()
    rows = {str(key): name for key, name in shop.execute("SELECT id, name FROM product")}
    assert {key: row["name"] for (_, key), row in shop.state().items()} == rows
    inserts = [each for each in shop.records() if each.before is None]
    assert len(inserts) == len(rows)


TYPES = {
    "bool": ("'t'", True, "BOOLEAN"),
    "int2": ("-5", -5, "SMALLINT"),
    "int8": ("9223372036854775807", 9223372036854775807, "BIGINT"),
    "float4": ("'-Infinity'", "-Infinity", "REAL"),
    "float8": ("0.1", 0.1, "DOUBLE"),
    "numeric": ("'NaN'", "NaN", "DECIMAL"),
    "numeric(6,2)": ("1.50", 1.5, "DECIMAL(6,2)"),
    "numeric(3,-2)": ("1250", 1300, "DECIMAL"),
    "bytea": (r"'\x00ff'", "AP8=", "VARBINARY"),
    "uuid": (
        "'12345678-1234-1234-1234-1234567890ab'",
        "12345678-1234-1234-1234-1234567890ab",
        "UUID",
    ),
    "jsonb": ("""'{"a": [1, null]}'""", '{"a": [1, null]}', "JSON"),
    "json": ("""'{"b":1,  "b":2}'""", '{"b":1,  "b":2}', "JSON"),
    "date": ("'infinity'", "infinity", "DATE"),
    "time": ("'13:37:00.25'", "13:37:00.25", "TIME"),
    "timestamp": ("'2024-02-29 13:37:00.123456'", "2024-02-29 13:37:00.123456", "TIMESTAMP"),
    "timestamptz": (
        "'2024-02-29 13:37:00+02'",
        "2024-02-29 11:37:00+00",
        "TIMESTAMP WITH TIME ZONE",
    ),
    "interval": ("'1 day 02:00'", "P1DT2H", "VARCHAR"),
    "varchar(5)": ("'é\"\\'", 'é"\\', "VARCHAR(5)"),
    "char(3)": ("'a'", "a  ", "VARCHAR(3)"),
    "int[]": ("'{1,NULL,3}'", "{1,NULL,3}", "VARCHAR"),
    "int4range": ("'[1,5)'", "[1,5)", "VARCHAR"),
    "mood": ("'ok'", "ok", "VARCHAR"),
    "pair": ("ROW(1, 'x y')", '(1,"x y")', "VARCHAR"),
    "cents": ("7", 7, "INTEGER"),
    "code": ("'ab'", "ab", "VARCHAR(4)"),
    "text": (
        "E'tab\\tline\\n\\b\\f\\r\\x0b\\x01\\\\N \\\\.'",
        "tab\tline\n\b\f\r\x0b\x01\\N \\.",
        "VARCHAR",
    ),
}
"""Type → literal, value of the image, type in the catalog."""


def test_values_have_the_same_text_by_the_snapshot_and_by_the_stream(shop: Shop) -> None:
    defined = ", ".join(f"c{place} {kind}" for place, kind in enumerate(TYPES))
    values = ", ".join(literal for literal, _, _ in TYPES.values())
    shop.execute(
        "CREATE TYPE mood AS ENUM ('ok', 'sad')",
        "CREATE TYPE pair AS (x int, y text)",
        "CREATE DOMAIN cents AS int CHECK (value >= 0)",
        "CREATE DOMAIN code AS varchar(4)",
        f"CREATE TABLE kinds (id int PRIMARY KEY, {defined}, "
        "twice int GENERATED ALWAYS AS (id * 2) STORED)",
        f"INSERT INTO kinds VALUES (1, {values})",
    )
    shop.ingest()
    shop.execute(f"INSERT INTO kinds VALUES (2, {values})")
    shop.ingest()
    one, other = (each.after for each in shop.records())
    # The loop reads the rows of a larger table.
    shop.execute(
        "; ".join(f"INSERT INTO kinds VALUES ({number}, {values})" for number in range(3, 100)),
        f"SELECT pg_drop_replication_slot('{shop.name}')",
    )
    loops_made()
    more = shop.new_records(resnapshot=True)
    assert one is not None
    assert [each.after for each in more] == [
        one.replace(b'"id":1', b'"id":%d' % number) for number in range(3, 100)
    ]
    assert one is not None
    assert other == one.replace(b'"id":1', b'"id":2')
    assert orjson.loads(one) == {
        "id": 1,
        **{f"c{place}": value for place, (_, value, _) in enumerate(TYPES.values())},
    }
    assert b'"c6":1.50' in one
    expected = [
        ("id", "INTEGER"),
        *((f"c{place}", kind) for place, (_, _, kind) in enumerate(TYPES.values())),
    ]
    assert columns(shop, "kinds") == expected


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_large_values_that_an_update_does_not_send_are_in_its_image(
    shop: Shop, identity: str
) -> None:
    """Values stay whole over an update of another column, a new key, and an update of a row of this run."""
    shop.execute(
        "CREATE TABLE doc (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE doc ALTER body SET STORAGE EXTERNAL",
        f"ALTER TABLE doc REPLICA IDENTITY {identity}",
        "INSERT INTO doc SELECT i, 0, repeat(i::text, 9000) FROM generate_series(1, 4) i",
    )
    shop.ingest()
    shop.execute(
        "UPDATE doc SET n = 1",
        "UPDATE doc SET id = id + 10",
        "BEGIN; UPDATE doc SET n = 2 WHERE id = 11; UPDATE doc SET n = 3 WHERE id = 11; COMMIT",
        "INSERT INTO doc VALUES (20, 0, repeat('z', 9000))",
        "BEGIN; UPDATE doc SET id = 21, n = 1 WHERE id = 20; UPDATE doc SET id = 22 WHERE id = 21; COMMIT",
        "DELETE FROM doc WHERE id = 12",
    )
    assert shop.ingest().incomplete_images == 0
    rows = shop.execute("SELECT id, n, body FROM doc")
    expected = {
        ("doc", str(key)): {"id": key, "n": number, "body": body} for key, number, body in rows
    }
    assert shop.state() == expected


def test_altered_tables_have_the_columns_of_each_version(shop: Shop) -> None:
    """Also within a transaction: its version has the columns of its last rows."""
    shop.execute(PRODUCT, "INSERT INTO product VALUES (1, 'a', 1), (2, 'b', 2)")
    shop.ingest()
    shop.execute(
        "ALTER TABLE product ADD note varchar(9)",
        "UPDATE product SET note = 'x' WHERE id = 1",
        "ALTER TABLE product DROP name",
        "BEGIN; UPDATE product SET note = 'y' WHERE id = 1; INSERT INTO product VALUES (3, 3, 'z'); "
        "ALTER TABLE product DROP note; ALTER TABLE product ADD stock int DEFAULT 4; "
        "UPDATE product SET stock = 5 WHERE id = 2; COMMIT",
    )
    found = shop.new_records()
    images = [(each.before, each.after) for each in found]
    assert [tuple(each and orjson.loads(each) for each in pair) for pair in images] == [
        (
            {"id": 1, "name": "a", "price": 1},
            {"id": 1, "name": "a", "price": 1, "note": "x"},
        ),
        ({"id": 1, "price": 1}, {"id": 1, "price": 1}),
        (None, {"id": 3, "price": 3}),
        ({"id": 2, "price": 2}, {"id": 2, "price": 2, "stock": 5}),
    ]
    expected = [("id", "INTEGER"), ("price", "DECIMAL(10,2)"), ("stock", "INTEGER")]
    assert columns(shop, "product") == expected


def test_the_objects_that_a_snapshot_makes_durable_do_not_grow_with_the_tables(shop: Shop) -> None:
    """Two commits and one schema. Altered tables have their columns, also if one commit has them all."""
    names = [f"t{number}" for number in range(200)]
    for name in names:
        shop.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, a text); INSERT INTO {name} VALUES (1, 'x')"
        )
    assert sum(shop.ingest().commits.counts) == 2
    assert len([*(shop.root / "shop" / "schemas").iterdir()]) == 1
    shop.execute("; ".join(f"UPDATE {name} SET a = 'y'" for name in names))
    assert shop.ingest().versions == 1
    shop.execute(*(f"ALTER TABLE {name} ADD b int; DELETE FROM {name}" for name in names[:9]))
    shop.execute("UPDATE t9 SET a = 'z'")
    shop.ingest()
    assert [len(columns(shop, name)) for name in ("t8", "t9")] == [3, 2]
    assert len(shop.state()) == 191


def test_rows_of_partitions_belong_to_their_table(shop: Shop) -> None:
    shop.execute(
        "CREATE TABLE event (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE event_1 PARTITION OF event FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')",
        "CREATE TABLE event_2 PARTITION OF event FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')",
        "INSERT INTO event VALUES (1, '2024-01-05'), (2, '2024-02-05')",
    )
    shop.ingest()
    shop.execute(
        "INSERT INTO event VALUES (3, '2024-01-07')",
        "UPDATE event SET day = '2024-02-07' WHERE id = 1",
    )
    shop.ingest()
    assert sorted(shop.state()) == [
        ("event", '[1,"2024-02-07"]'),
        ("event", '[2,"2024-02-05"]'),
        ("event", '[3,"2024-01-07"]'),
    ]


@pytest.mark.parametrize("large_bytes", [1 << 30, 1 << 10])
def test_a_large_transaction_is_streamed_and_aborted_parts_of_it_are_not_in_its_version(
    shop: Shop, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, and in parts, as if it were larger than memory."""
    from tailrace_server.pipeline.feed.postgres import source

    monkeypatch.setattr(source, "_LARGE_BYTES", large_bytes)
    shop.execute(PRODUCT, "INSERT INTO product VALUES (0, '', 0)")
    shop.ingest()
    rows = "INSERT INTO product SELECT i, repeat('x', 100), 1 FROM generate_series"
    shop.execute(
        f"BEGIN; {rows} (1, 5000) i; SAVEPOINT s; {rows} (5001, 9000) i; ROLLBACK TO s; "
        f"{rows} (9001, 9100) i; COMMIT",
        f"BEGIN; {rows} (10001, 15000) i; ROLLBACK",
    )
    shop.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'", "SELECT pg_reload_conf()")
    try:
        found = shop.new_records()
    finally:
        shop.execute("ALTER SYSTEM RESET logical_decoding_work_mem", "SELECT pg_reload_conf()")
    assert len({each.version for each in found}) == 1
    assert len(found) == 5_100
    wait_until(
        lambda: bool(
            shop.execute(
                "SELECT 1 FROM pg_stat_replication_slots "
                f"WHERE slot_name = '{shop.name}' AND stream_txns > 0"
            )
        )
    )
    assert len(shop.state()) == 5_101
    shop.execute("UPDATE product SET name = 'later' WHERE id = 9050")
    assert [each.changed for each in shop.new_records()] == [["name"]]
    assert shop.state()["product", "9050"]["name"] == "later"


def test_a_lost_slot_is_an_error_and_a_new_snapshot_writes_only_what_differs(shop: Shop) -> None:
    shop.execute(PRODUCT, "INSERT INTO product SELECT i, 'n', 1 FROM generate_series(1, 5) i")
    shop.ingest()
    shop.execute(f"SELECT pg_drop_replication_slot('{shop.name}')")
    shop.execute(
        "UPDATE product SET name = 'changed' WHERE id = 1",
        "DELETE FROM product WHERE id = 2",
        "INSERT INTO product VALUES (6, 'new', 1)",
    )
    with pytest.raises(SourceLost, match="--resnapshot"):
        shop.ingest()
    found = shop.new_records(resnapshot=True)
    assert sorted((each.primary_key, each.operation) for each in found) == [
        ("1", Operation.UPSERT),
        ("2", Operation.REMOVE),
        ("6", Operation.UPSERT),
    ]
    assert len(shop.state()) == 5
    shop.execute("INSERT INTO product VALUES (7, 'live', 1)")
    assert [each.primary_key for each in shop.new_records()] == ["7"]


def test_after_a_failover_the_catalog_continues_or_becomes_equal_by_a_new_snapshot(
    tmp_path: Path,
) -> None:
    """Slots are not copied. The timeline shows that the standby lacked changes that the catalog has."""
    with postgres() as primary:
        shop = Shop(primary, "shop", tmp_path)
        shop.execute(PRODUCT, "INSERT INTO product VALUES (1, 'a', 1), (2, 'b', 2)")
        shop.ingest()
        with postgres(copied=primary) as standby:
            behind = "SELECT 1 FROM pg_stat_replication WHERE replay_lsn < pg_current_wal_lsn()"
            wait_until(lambda: standby.is_ready() and not primary.execute(behind))
            standby.kill()
            shop.execute("INSERT INTO product VALUES (3, 'lost', 3)")
            assert len(shop.new_records()) == 1
            primary.kill()
            standby.start()
            standby.execute("SELECT pg_promote()")
            promoted: dict[str, Any] = {"dsn": standby.dsn("shop")}
            with pytest.raises(SourceLost, match=r"was promoted at .*--resnapshot"):
                shop.ingest(**promoted)
            standby.execute("UPDATE product SET name = 'c' WHERE id = 2", database="shop")
            found = shop.new_records(resnapshot=True, **promoted)
            assert sorted((each.primary_key, each.operation) for each in found) == [
                ("2", Operation.UPSERT),
                ("3", Operation.REMOVE),
            ]
            standby.execute("DELETE FROM product WHERE id = 1", database="shop")
            assert len(shop.new_records(**promoted)) == 1
            assert [*shop.state()] == [("product", "2")]


def test_an_interrupted_snapshot_is_not_visible_and_the_next_one_completes_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_BATCH_BYTES", 1 << 18)
    shop.execute(
        PRODUCT,
        "CREATE TABLE shelf (id int PRIMARY KEY)",
        "INSERT INTO product SELECT i, 'n', 1 FROM generate_series(1, 30000) i",
        "INSERT INTO shelf VALUES (1)",
        "REVOKE ALL ON shelf FROM PUBLIC",
        "CREATE ROLE reader LOGIN REPLICATION",
        "GRANT SELECT ON product TO reader",
        f"CREATE PUBLICATION {shop.name} FOR TABLE product, shelf",
    )
    reader = shop.server.dsn(shop.name, user="reader")
    with pytest.raises(SourceRefused, match="shelf"):
        shop.ingest(dsn=reader)
    state = open_catalog(shop.root, "shop").state
    assert (state.published, state.last_version > 0) == (0, True)
    shop.execute("DELETE FROM product WHERE id <= 10", "GRANT SELECT ON shelf TO reader")
    shop.ingest(dsn=reader)
    assert len(shop.state()) == 29_991
    inserts = [each for each in shop.records() if each.before is None]
    assert len(inserts) == 30_001
    shop.execute("DROP OWNED BY reader", "DROP ROLE reader")


def test_a_slot_that_another_reader_has_moved_is_noticed(shop: Shop) -> None:
    shop.execute(PRODUCT)
    shop.ingest()
    shop.execute("INSERT INTO product VALUES (1, 'missed', 1)")
    shop.execute(f"SELECT pg_replication_slot_advance('{shop.name}', pg_current_wal_flush_lsn())")
    with pytest.raises(SourceLost, match="another reader"):
        shop.ingest()


def test_a_server_that_was_restored_from_an_older_copy_is_noticed(shop: Shop) -> None:
    shop.execute(PRODUCT)
    shop.ingest()
    with open_writer(shop.root, "shop", writer="postgres") as writer:
        known = orjson.loads(str(writer.state.source_positions[f"postgresql:{shop.name}"]))
        ahead = orjson.dumps({**known, "lsn": "FF/0"}).decode()
        TransactionWriter(writer).commit(source_positions={f"postgresql:{shop.name}": ahead})
    with pytest.raises(SourceLost, match="restored from an older copy"):
        shop.ingest()


def test_a_slot_of_another_catalog_is_not_taken(shop: Shop) -> None:
    shop.execute(PRODUCT)
    shop.ingest()
    with pytest.raises(SourceRefused, match="this catalog has not read it"):
        shop.ingest(catalog="other")


def test_a_key_that_changes_needs_a_new_snapshot(shop: Shop) -> None:
    shop.execute(PRODUCT, "INSERT INTO product VALUES (1, 'a', 1)")
    shop.ingest()
    shop.execute(
        "ALTER TABLE product DROP CONSTRAINT product_pkey",
        "ALTER TABLE product ADD PRIMARY KEY (name)",
        "UPDATE product SET price = 2",
    )
    with pytest.raises(SourceRefused, match=r"key of product is now \(name\).*--resnapshot"):
        shop.ingest()
    shop.ingest(resnapshot=True)
    assert list(shop.state()) == [("product", "a")]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("CREATE TABLE t (id int)", "no primary key"),
        ("CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL", "no primary key"),
        (
            "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING",
            "REPLICA IDENTITY NOTHING",
        ),
    ],
)
def test_a_table_whose_rows_have_no_key_is_refused_before_it_is_published(
    shop: Shop, table: str, reason: str
) -> None:
    """A publication would make PostgreSQL refuse updates of the table."""
    shop.execute(table)
    for tables in ((), ("t",)):
        with pytest.raises(SourceRefused, match=reason):
            shop.ingest(table=tables)
    assert shop.execute("SELECT 1 FROM pg_publication") == []
    assert not (shop.root / "shop").exists()


def test_an_index_may_be_the_replica_identity(shop: Shop) -> None:
    shop.execute(
        "CREATE TABLE t (a int NOT NULL, b text NOT NULL, c int)",
        "CREATE UNIQUE INDEX i ON t (b, a) INCLUDE (c)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
        "INSERT INTO t VALUES (1, 'x', 0)",
    )
    shop.ingest()
    shop.execute("UPDATE t SET c = 1", "UPDATE t SET b = 'y'")
    shop.ingest()
    assert shop.state() == {("t", '["y",1]'): {"a": 1, "b": "y", "c": 1}}


def test_bad_requests_say_what_to_change(shop: Shop) -> None:
    shop.execute(
        PRODUCT,
        "CREATE TABLE shelf (id int PRIMARY KEY)",
        "CREATE ROLE plain LOGIN",
        f"CREATE PUBLICATION {shop.name} FOR TABLE product",
    )
    dsn = shop.server.dsn
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (InvalidRequest, "--dsn cannot be read", {"dsn": "what=ever"}),
        (SourceUnreachable, "nowhere", {"dsn": dsn("nowhere")}),
        (SourceUnreachable, "nobody", {"dsn": dsn(user="nobody")}),
        (SourceRefused, "ALTER ROLE plain REPLICATION", {"dsn": dsn(shop.name, user="plain")}),
        (InvalidRequest, "no such table", {"table": ("nothing",)}),
        (SourceRefused, "ADD TABLE public.shelf", {"table": ("product", "shelf")}),
        (InvalidRequest, "--slot 'My Slot'", {"slot": "My Slot"}),
    ]
    for kind, reason, options in cases:
        with pytest.raises(kind, match=reason):
            shop.ingest(**options)
    assert not (shop.root / "shop").exists()
    shop.execute("DROP ROLE plain")


def test_a_slot_is_lost_once_the_server_has_dropped_its_log(shop: Shop) -> None:
    shop.execute(PRODUCT)
    shop.ingest()
    shop.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        for _ in range(3):
            shop.execute("SELECT pg_switch_wal()", "INSERT INTO product VALUES (1, 'a', 1)")
            shop.execute("DELETE FROM product", "CHECKPOINT")
        with pytest.raises(SourceLost, match="has dropped log"):
            shop.ingest()
    finally:
        shop.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_a_warning_comes_before_the_server_drops_the_slot(shop: Shop) -> None:
    shop.execute(PRODUCT)
    shop.ingest()
    assert shop.warnings == []
    shop.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '48MB'", "SELECT pg_reload_conf()")
    try:
        for _ in range(4):
            shop.execute("INSERT INTO product VALUES (1, 'a', 1)", "SELECT pg_switch_wal()")
            shop.execute("DELETE FROM product")
        shop.ingest()
    finally:
        shop.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    [warning] = shop.warnings
    assert "raise max_slot_wal_keep_size" in warning


def test_a_publication_that_was_dropped_needs_a_new_snapshot(shop: Shop) -> None:
    shop.execute(PRODUCT)
    shop.ingest()
    shop.execute(f"DROP PUBLICATION {shop.name}", "INSERT INTO product VALUES (1, 'a', 1)")
    with pytest.raises(SourceLost, match=r"publication .* --resnapshot"):
        shop.ingest()
    shop.ingest(resnapshot=True)
    assert [*shop.state()] == [("product", "1")]


def test_a_server_that_does_not_log_for_replication_is_refused(tmp_path: Path) -> None:
    with postgres() as server:
        shop = Shop(server, "shop", tmp_path)
        server.stop()
        server.start(wal_level="replica")
        with pytest.raises(SourceRefused, match=r"wal_level is replica.* set wal_level = logical"):
            shop.ingest()


def test_a_second_run_ends_the_first_and_another_catalog_waits_in_vain(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tailrace.errors import WriterFenced
    from tailrace_server.pipeline.feed.postgres import source

    monkeypatch.setattr(source, "_BUSY_S", 0.2)
    shop.execute(PRODUCT, "INSERT INTO product VALUES (1, 'a', 1)")
    ended: list[Exception] = []

    def run() -> None:
        try:
            shop.ingest(follow=True)
        except Exception as error:
            ended.append(error)

    first = threading.Thread(target=run)
    first.start()
    wait_until(
        lambda: bool(shop.execute("SELECT 1 FROM pg_replication_slots WHERE active_pid > 0"))
    )
    with pytest.raises(SourceRefused, match="in use by process"):
        shop.ingest(catalog="other")
    shop.execute("INSERT INTO product VALUES (2, 'b', 1)")
    shop.ingest()
    first.join()
    assert [type(each) for each in ended] == [WriterFenced]
    assert len(shop.state()) == 2


def test_two_slots_feed_one_catalog(shop: Shop) -> None:
    shop.execute(PRODUCT, "CREATE TABLE shelf (id int PRIMARY KEY)")
    shop.execute("INSERT INTO product VALUES (1, 'a', 1)", "INSERT INTO shelf VALUES (1), (2)")

    def ingest(*tables: str) -> None:
        sources = [
            PostgresSource(
                replace(shop.options, table=(name,), slot=f"{shop.name}{name}"),
                *(shop.root, "shop"),
                follow=False,
                note=shop.notes.append,
                warn=shop.warnings.append,
            )
            for name in tables
        ]
        run_feed(
            sources,
            "sources",
            FeedSettings(log=shop.root, catalog="shop"),
            ProgressReporter(quiet=True),
            stopping=Stopping(),
            metrics=IngestMetrics("shop", "sources", version="1"),
        )

    ingest("product", "shelf")
    shop.execute("UPDATE product SET name = 'b'", "DELETE FROM shelf WHERE id = 1")
    ingest("product", "shelf")
    assert {name: len(row) for name, row in shop.state().items()} == {
        ("product", "1"): 3,
        ("shelf", "2"): 1,
    }
    assert len(shop.records()) == 5
    with pytest.raises(SourceRefused, match="two sources are called"):
        ingest("product", "product")


def test_an_idle_table_does_not_keep_the_log_of_others(shop: Shop) -> None:
    shop.execute(PRODUCT, "CREATE TABLE other (id int PRIMARY KEY)")
    shop.ingest(table=("product",))
    shop.execute("INSERT INTO other SELECT i FROM generate_series(1, 10000) i")
    shop.ingest(table=("product",))
    [(behind,)] = shop.execute(
        "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots "
        f"WHERE slot_name = '{shop.name}'"
    )
    assert behind < 100_000
    assert shop.records() == []


def test_logical_messages_are_in_the_lead_of_their_version(shop: Shop) -> None:
    """Of their transaction's version if they are transactional, also of a streamed one; else of their own."""
    shop.execute(PRODUCT)
    shop.ingest()
    said = "SELECT pg_logical_emit_message"
    shop.execute(
        f"BEGIN; INSERT INTO product VALUES (1, 'a', 1); {said}(true, 'audit.in', 'é'); COMMIT",
        f"{said}(true, 'other', 'not asked for')",
        rf"{said}(false, 'audit.out', '\xff'::bytea)",
        f"BEGIN; {said}(true, 'audit.gone', ''); ROLLBACK",
        "BEGIN; INSERT INTO product SELECT i, repeat('x', 100), 1 FROM generate_series(2, 2000) i; "
        f"{said}(true, 'audit.big', '1'); COMMIT",
    )
    shop.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'", "SELECT pg_reload_conf()")
    try:
        shop.ingest(messages=("audit.",))
        shop.ingest(messages=("audit.",))
    finally:
        shop.execute("ALTER SYSTEM RESET logical_decoding_work_mem", "SELECT pg_reload_conf()")
    leads = [
        orjson.loads(each.after or b"")
        for each in records(shop.root / "shop")
        if each.area == Area.INFRASTRUCTURE
    ]
    assert [(each.get("messages"), bool(each["counts"])) for each in leads] == [
        ([{"prefix": "audit.in", "content": "é"}], True),
        ([{"prefix": "audit.out", "base64": "/w=="}], False),
        ([{"prefix": "audit.big", "content": "1"}], True),
    ]
