"""Debezium's connectors on real databases, end to end: the tables of the log equal those of the database."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest

from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.sql.query import Query
from tailrace_server.sql.scans import LogSource
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.segment.reader import BatchReader
from tests.process.ingest.connectors import Connector, MariaDB, PostgreSQL, served
from tests.process.ingest.reading import data, leads

if TYPE_CHECKING:
    from tests.process.ingest.conftest import Source
    from tests.process.ingest.connectors import Database

pytestmark = pytest.mark.slow

POSTGRESQL = """
CREATE TABLE mark (id int PRIMARY KEY);
CREATE TABLE typed (id bigint PRIMARY KEY, s smallint, n numeric(12,3), free numeric, r real,
    d double precision, b boolean, t text, c char(4), j jsonb, u uuid, day date, clock time, at timestamp,
    zoned timestamptz, raw bytea, many int[], span interval);
INSERT INTO typed VALUES
    (1, -32768, 123456789.125, 0.25, 1.5, 1e300, true, 'Grüße \\ "x" {}', 'ab', '{"a": [1, null]}',
     '4be0643f-1d98-573b-97cd-ca98a65347dd', '1969-12-31', '23:59:59.999999', '2024-02-29 12:00:00.123456',
     '2024-02-29 12:00:00.123456+03', '\\x00ff', '{1,2}', '1 day'),
    (9223372036854775807, null, null, null, null, null, null, null, null, null, null, null, null, null,
     null, null, null, null);
CREATE TABLE toasted (id int PRIMARY KEY, big text, other text, n int);
ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL;
INSERT INTO toasted SELECT i, repeat(i::text, 9000), repeat('o', 9000), 0 FROM generate_series(1, 4) i;
CREATE TABLE full_rows (id int PRIMARY KEY, a text, b text);
ALTER TABLE full_rows REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int NOT NULL, a text NOT NULL, b text, UNIQUE (id, a));
CREATE UNIQUE INDEX by_a ON by_index (a);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_a;
CREATE TABLE pair (x int, y text, v int, PRIMARY KEY (x, y));
CREATE TABLE keyless (a int, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO full_rows VALUES (1, 'a', 'b'), (2, null, 'b');
INSERT INTO by_index VALUES (1, 'a1', 'b1'), (2, 'a2', 'b2'), (3, 'a3', null);
INSERT INTO pair VALUES (1, 'a', 1), (1, 'b', 2), (2, 'a', 3);
INSERT INTO keyless VALUES (1, 'x'), (1, 'x'), (2, null);
"""
TABLES = {
    "typed": "id, s, n, free, r, d, b, t, u, day, clock, at",
    "toasted": "id, big, other, n",
    "full_rows": "id, a, b",
    "by_index": "id, a, b",
    "pair": "x, y, v",
}
FIRST = """
UPDATE toasted SET n = 1 WHERE id = 1;
BEGIN;
UPDATE toasted SET other = repeat('p', 9000) WHERE id = 2;
UPDATE toasted SET n = 2 WHERE id = 2;
UPDATE toasted SET id = 12 WHERE id = 2;
COMMIT;
BEGIN;
INSERT INTO pair VALUES (3, 'c', 1);
SAVEPOINT a;
INSERT INTO pair VALUES (4, 'd', 1);
DELETE FROM pair WHERE x = 2;
ROLLBACK TO a;
SAVEPOINT b;
UPDATE pair SET y = 'z' WHERE x = 1 AND y = 'b';
RELEASE b;
COMMIT;
BEGIN;
INSERT INTO pair VALUES (9, 'gone', 1);
ROLLBACK;
BEGIN;
UPDATE full_rows SET a = null WHERE id = 1;
UPDATE full_rows SET id = 3 WHERE id = 1;
INSERT INTO full_rows VALUES (1, null, null);
COMMIT;
DELETE FROM by_index WHERE id = 1;
UPDATE by_index SET b = null WHERE id = 2;
UPDATE typed SET n = n + 0.001, zoned = zoned + interval '1 us' WHERE id = 1;
INSERT INTO keyless VALUES (1, 'x'), (3, 'y');
DELETE FROM keyless WHERE ctid IN (SELECT ctid FROM keyless WHERE a = 1 LIMIT 1);
UPDATE keyless SET b = 'now' WHERE a = 2;
"""
WHILE_DOWN = """
BEGIN;
UPDATE pair SET v = v + 10;
DELETE FROM toasted WHERE id = 3;
COMMIT;
TRUNCATE full_rows;
INSERT INTO full_rows VALUES (7, 'new', 'new');
ALTER TABLE pair ADD COLUMN w text;
UPDATE pair SET w = 'w' WHERE x = 1;
TRUNCATE keyless;
INSERT INTO keyless VALUES (5, 'five'), (5, 'five');
"""


MARIADB = """
CREATE DATABASE shop;
USE shop;
CREATE USER reader IDENTIFIED BY 'reader';
GRANT ALL ON *.* TO reader;
CREATE TABLE mark (id int PRIMARY KEY);
CREATE TABLE typed (id bigint PRIMARY KEY, s smallint, n decimal(12,3), d double, t text CHARACTER SET utf8mb4,
    day date, at datetime(6));
INSERT INTO typed VALUES (1, -32768, 123456789.125, 1e300, 'cup', '1969-12-31', '2024-02-29 12:00:00.123456'),
    (9223372036854775807, null, null, null, null, null, null);
CREATE TABLE pair (x int, y varchar(9), v int, PRIMARY KEY (x, y));
INSERT INTO pair VALUES (1, 'a', 1), (1, 'b', 2), (2, 'a', 3);
CREATE TABLE keyless (a int, b varchar(9));
INSERT INTO keyless VALUES (1, 'x'), (1, 'x'), (2, null);
CREATE TABLE dropped (id int PRIMARY KEY);
CREATE TABLE renamed LIKE dropped;
CREATE TABLE mapped LIKE dropped;
CREATE TABLE parts (id int PRIMARY KEY)
    PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE);
INSERT INTO dropped VALUES (7);
INSERT INTO renamed VALUES (7);
INSERT INTO mapped VALUES (7);
INSERT INTO parts VALUES (7), (17);
"""
MARIADB_TABLES = {"typed": "id, s, n, t, day, at", "pair": "x, y, v"}
MARIADB_FIRST = """
USE shop;
BEGIN;
INSERT INTO pair VALUES (3, 'c', 1);
SAVEPOINT a;
DELETE FROM pair WHERE x = 2;
ROLLBACK TO a;
UPDATE pair SET y = 'z' WHERE x = 1 AND y = 'b';
COMMIT;
UPDATE typed SET n = n + 0.001 WHERE id = 1;
INSERT INTO keyless VALUES (1, 'x'), (3, 'y');
DELETE FROM keyless WHERE a = 1 LIMIT 2;
INSERT INTO mark VALUES (1);
"""
MARIADB_WHILE_DOWN = """
USE shop;
UPDATE pair SET v = v + 10;
TRUNCATE TABLE typed;
INSERT INTO typed (id, s) VALUES (5, 5);
TRUNCATE TABLE keyless;
INSERT INTO keyless VALUES (5, 'five'), (5, 'five');
DROP TABLE dropped;
RENAME TABLE renamed TO another, mapped TO live;
INSERT INTO live VALUES (8);
ALTER TABLE parts DROP PARTITION p0;
INSERT INTO mark VALUES (2);
"""


def of_log(source: Source, text: str) -> list[tuple[object, ...]]:
    log = open_catalog(source.settings.log, "shop")
    with (
        BatchReader(log.path) as reader,
        Query(LogSource(log.view, reader, lambda _: log.view), text) as query,
    ):
        return [tuple(row.values()) for batch in query.batches() for row in batch.to_pylist()]


def check_tables(source: Source, database: Database, tables: dict[str, str]) -> None:
    """Compare every table of the log with that of the database, as text."""
    where = "shop." if database.kind == "mysql" else ""
    text = "char" if where else "varchar"
    for table, columns in tables.items():
        select = "SELECT {} FROM {}{}"
        names = columns.split(", ")
        ours = ", ".join(f"COALESCE(CAST({name} AS varchar), '-')" for name in names)
        theirs = ", ".join(f"COALESCE(CAST({name} AS {text}), '-')" for name in names)
        found = of_log(source, select.format(ours, "", table))
        wanted = database.run(select.format(theirs, where, table))
        assert sorted(map(list, found), key=str) == sorted(wanted, key=str), table


def counted_rows(source: Source, table: str) -> list[tuple[object, int]]:
    """Return the rows of a table without a key, each with its count."""
    counts: Counter[str | None] = Counter()
    for record in data(source.catalog):
        if record.entity_type != table:
            continue
        if record.primary_key is None:
            counts.clear()
        else:
            assert record.change is not None
            counts[record.primary_key] += orjson.loads(record.change)["diff"]
    return sorted((key, count) for key, count in counts.items() if count)


def set_aside(source: Source) -> list[str]:
    """Return the reasons of the quarantine, without those of repeated rows of tables without a key."""
    files = (source.catalog / "quarantine").glob("*.jsonl")
    lines = [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]
    repeated = "the row may be counted already"
    return [line["reason"] for line in lines if not line["reason"].startswith(repeated)]


def test_a_log_holds_what_postgresql_holds_over_restarts_of_connector_and_ingest(
    source: Source,
) -> None:
    keyless = Debezium(keyless=frozenset({"keyless"}))
    filled = replace(source.settings, source=keyless, whole_images=True)
    # The same files in a log of their own. It lacks the large values that were not sent.
    as_sent = replace(
        source.settings,
        source=replace(keyless, whole_before=("full_rows", "keyless")),
        log=source.settings.log.with_name("as-sent"),
    )
    small = {table: columns for table, columns in TABLES.items() if table != "toasted"}
    with served(PostgreSQL) as database:
        database.run(POSTGRESQL)
        connector = Connector(database, source.input.parent, source.input)
        with connector.running():
            # A connector that is killed before it has noted this begins with another snapshot.
            connector.wait_for_offset('"snapshot_completed":true')
            database.run(FIRST + "INSERT INTO mark VALUES (1)")
            connector.wait_for('"after":{"id":1},')
            # The next run sends again what this one has not noted as sent.
            connector.kill()
        for settings, tables in ((filled, TABLES), (as_sent, small)):
            source.settings = settings
            source.ingest()
            assert set_aside(source) == []
            check_tables(source, database, tables)
            assert counted_rows(source, "keyless") == [
                ('[1,"x"]', 2),
                ('[2,"now"]', 1),
                ('[3,"y"]', 1),
            ]
        database.run(WHILE_DOWN + "INSERT INTO mark VALUES (2)")
        with connector.running():
            connector.wait_for('"after":{"id":2},')
        for settings, tables in ((filled, TABLES), (as_sent, small)):
            source.settings = settings
            source.ingest()
            assert set_aside(source) == []
            check_tables(source, database, tables | {"pair": "x, y, v, w"})
            assert counted_rows(source, "keyless") == [('[5,"five"]', 2)]
            # Each transaction is one version with all its rows; a savepoint that was rolled back has none.
            assert not any(
                "expected_count" in body or "without_end" in body for body in leads(source.catalog)
            )


def test_a_log_holds_what_mariadb_holds_over_restarts_of_connector_and_ingest(
    source: Source,
) -> None:
    source.settings = replace(source.settings, source=Debezium(keyless=frozenset({"keyless"})))
    with served(MariaDB) as database:
        database.run(MARIADB)
        connector = Connector(database, source.input.parent, source.input)
        with connector.running():
            connector.wait_for('"snapshot":"last"')
            database.run(MARIADB_FIRST)
            connector.wait_for('"after":{"id":1},')
        assert source.ingest().counters.quarantined == 0
        check_tables(source, database, MARIADB_TABLES)
        assert counted_rows(source, "keyless") == [('[1,"x"]', 1), ("[2]", 1), ('[3,"y"]', 1)]
        database.run(MARIADB_WHILE_DOWN)
        with connector.running():
            connector.wait_for('"after":{"id":2},')
        # The map gives a renamed table the entity type that it had.
        mapped = Debezium(keyless=frozenset({"keyless"}), table_map={"live": "mapped"})
        source.settings = replace(source.settings, source=mapped)
        source.ingest()
        check_tables(source, database, MARIADB_TABLES)
        assert counted_rows(source, "keyless") == [('[5,"five"]', 2)]
        assert sorted(of_log(source, "SELECT id FROM mapped")) == [(7,), (8,)]
        assert [reason.partition(",")[0] for reason in set_aside(source)] == [
            "DROP TABLE: shop.dropped was dropped",
            "RENAME TABLE: shop.renamed is now shop.another",
            "ALTER TABLE: rows of shop.parts were removed or added with a partition or tablespace",
        ]


@pytest.mark.parametrize(
    "kind",
    [
        PostgreSQL,
        pytest.param(
            MariaDB,
            marks=pytest.mark.nightly(
                "tests/process/ingest/test_connectors.py: PostgreSQL's place is lost, MariaDB's log compared"
            ),
        ),
    ],
)
def test_a_connector_that_lost_its_place_names_the_rows_that_went_meanwhile(
    source: Source, kind: type[Database]
) -> None:
    """No message says that they were removed, as PostgreSQL's slot is gone too."""
    use = "USE shop;" if kind is MariaDB else ""
    source.settings = replace(source.settings, source=Debezium(keys={"keyless": ("a",)}))
    with served(kind) as database:
        database.run(MARIADB if kind is MariaDB else POSTGRESQL)
        connector = Connector(database, source.input.parent, source.input)
        with connector.running():
            connector.wait_for('"snapshot":"last"')
            database.run(f"{use} INSERT INTO mark VALUES (1), (2)")
            connector.wait_for('"after":{"id":2},')
        source.ingest()
        database.run(f"{use} DELETE FROM pair WHERE x = 2; UPDATE pair SET v = 7 WHERE y = 'b'")
        for name in ("offsets", "history"):
            (source.input.parent / name).unlink(missing_ok=True)
        if kind is PostgreSQL:
            database.run("SELECT pg_drop_replication_slot('debezium')")
        with connector.running():
            connector.wait_for('"v":7')
            # The snapshot has begun, so it lacks this row, which comes when the snapshot has ended.
            database.run(f"{use} INSERT INTO mark VALUES (3)")
            connector.wait_for('"after":{"id":3},')
        found = source.ingest().counters.lacking["pair"]
        assert (found.count, found.keys) == (1, ['[2,"a"]'])
        again = source.ingest(removes_missing=True)
        assert again.counters.lacking["pair"].removed == 1
        check_tables(source, database, {"pair": "x, y, v"})
