"""Statements of a schema change topic: the tables whose rows each has changed."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace_server.pipeline.input.change import QUARANTINED, is_effect
from tailrace_server.pipeline.input.table_bindings import Bindings, fits
from tests.server.pipeline.shapes import decode

MYSQL = {"connector": "mysql", "name": "shop", "snapshot": "false", "server_id": 1}
ORACLE = {"connector": "oracle", "name": "shop", "snapshot": "false"}


def statement(
    ddl: str | None,
    *changes: tuple[str, str],
    database: str = "shop",
    schema: str | None = None,
    **source: Any,
) -> dict[str, Any]:
    """Return a message of a schema change topic, as Debezium 3.6.3 writes it."""
    return {
        "source": MYSQL | {"db": database, "file": "binlog.000001", "pos": 5311} | source,
        "ts_ms": 1795845162745,
        "databaseName": database,
        "schemaName": schema,
        "ddl": ddl,
        "tableChanges": [{"type": kind, "id": table, "table": None} for kind, table in changes],
    }


def effects(message: dict[str, Any], **options: Any) -> list[tuple[str | None, str]]:
    """Return the tables that a message names, each with the beginning of the reason."""
    found = decode(message, **options)
    assert all(is_effect(change) for change in found)
    return [(change.table, (change.reason or "").partition(":")[0]) for change in found]


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        # As the connector for MySQL sent them.
        (statement("# Dummy", database=""), {}),
        (statement("CREATE TABLE b LIKE a", ("CREATE", '"shop"."b"')), {}),
        (statement("CREATE INDEX i ON parts (v)"), {}),
        (statement("ALTER TABLE a3 RENAME COLUMN w TO x", ("ALTER", '"shop"."a3"')), {}),
        (statement("ALTER TABLE parts REMOVE PARTITIONING", ("ALTER", '"shop"."parts"')), {}),
        (
            statement("RENAME TABLE a TO a2", ("ALTER", '"shop"."a2"')),
            {"shop.a": "RENAME TABLE"},
        ),
        (statement("RENAME TABLE shop.d TO x", database="other"), {"shop.d": "RENAME TABLE"}),
        (
            # The session's database was shop, which the message does not say.
            statement("RENAME TABLE a TO other.a", ("ALTER", '"other"."a"'), database="other"),
            {".a": "RENAME TABLE"},
        ),
        (
            statement("ALTER TABLE b RENAME other.e", ("ALTER", '"other"."e"'), database="other"),
            {".b": "RENAME TABLE"},
        ),
        (
            statement("ALTER TABLE a2 RENAME TO a3, ADD COLUMN w int", ("ALTER", '"shop"."a3"')),
            {"shop.a2": "RENAME TABLE"},
        ),
        (
            statement("ALTER TABLE shop.keyless RENAME AS kk", database="other"),
            {"shop.keyless": "RENAME TABLE"},
        ),
        (
            statement("DROP TABLE IF EXISTS `shop`.`c`", ("DROP", '"shop"."c"')),
            {"shop.c": "DROP TABLE"},
        ),
        (
            statement("DROP TABLE `shop`.`od``d.t`", ("DROP", '"shop"."od`d.t"')),
            {'shop."od`d.t"': "DROP TABLE"},
        ),
        (statement("DROP DATABASE shop"), {"shop": "DROP DATABASE"}),
        (statement("ALTER TABLE parts TRUNCATE PARTITION p0"), {"shop.parts": "ALTER TABLE"}),
        (
            statement("ALTER TABLE parts EXCHANGE PARTITION p2 WITH TABLE plain"),
            {"shop.parts": "ALTER TABLE", "shop.plain": "ALTER TABLE"},
        ),
        (statement("ALTER TABLE parts DROP PARTITION p1, p2"), {"shop.parts": "ALTER TABLE"}),
        # A snapshot's own statements.
        (
            statement("DROP TABLE IF EXISTS `shop`.`a`", ("DROP", '"shop"."a"'), snapshot="true"),
            {},
        ),
        (statement("DROP DATABASE IF EXISTS `shop`", snapshot=True), {}),
        # As the manuals write them.
        (statement("drop table if exists a, `b` restrict"), {"shop.a": "", "shop.b": ""}),
        (statement("rename tables a to b, x.c wait 5 to d"), {"shop.a": "", "x.c": ""}),
        (statement("DROP TEMPORARY TABLE a"), {}),
        (statement("DROP VIEW a"), {}),
        (statement("RENAME USER a TO b"), {}),
        (statement("CREATE OR REPLACE TABLE a (id int)"), {"shop.a": "DROP TABLE"}),
        (statement("CREATE OR REPLACE VIEW a AS SELECT 1"), {}),
        (statement("/*!40000 DROP TABLE a */"), {"shop.a": ""}),
        (statement("-- why\nALTER ONLINE TABLE IF EXISTS a RENAME = b"), {"shop.a": ""}),
        (
            statement("ALTER TABLE a ADD (r int, s enum(')', ',RENAME TO b')), DROP COLUMN t"),
            {},
        ),
        (
            statement("ALTER TABLE a ADD (r int, s varchar(3) DEFAULT 'it''s'), RENAME b"),
            {"shop.a": "RENAME TABLE"},
        ),
        (statement("ALTER TABLE a DISCARD TABLESPACE"), {"shop.a": ""}),
        (statement("ALTER TABLE a CONVERT TO CHARACTER SET utf8mb4"), {}),
        (statement("ALTER TABLE a CONVERT PARTITION p TO TABLE b"), {"shop.a": "", "shop.b": ""}),
        (statement("ALTER TABLE a CONVERT TABLE b TO PARTITION p"), {"shop.a": "", "shop.b": ""}),
        (
            statement("DROP TABLE orders PURGE", schema="APP", database="PDB", **ORACLE),
            {"PDB.APP.orders": "DROP TABLE"},
        ),
        (
            statement('RENAME "Orders" TO old', schema="APP", database="PDB", **ORACLE),
            {"PDB.APP.Orders": "RENAME TABLE"},
        ),
        (statement(None, ("DROP", '"db"."dbo"."a"'), database="db"), {"db.dbo.a": "DROP TABLE"}),
        (statement(None, ("ALTER", '"db"."dbo"."a"'), database="db"), {}),
    ],
)
def test_each_table_is_named_whose_rows_a_statement_has_changed(
    message: dict[str, Any], wanted: dict[str, str]
) -> None:
    found = effects(message)
    assert [table for table, _ in found] == [*wanted]
    assert all(kind == wanted[table or ""] for table, kind in found if wanted[table or ""])


@pytest.mark.parametrize(
    ("message", "table"),
    [
        (statement("DROP TABLE `a"), "shop"),
        (statement("RENAME TABLE a AS b", ("ALTER", '"shop"."b"')), "shop"),
        (statement("ALTER TABLE t EXCHANGE PARTITION FOR (5) WITH TABLE u"), "shop"),
        (statement("DROP TABLE", database=""), ""),
    ],
)
def test_a_statement_that_is_not_understood_names_its_database(
    message: dict[str, Any], table: str
) -> None:
    [found] = decode(message)
    assert found.table == table
    assert "cannot be interpreted" in (found.reason or "")


def test_a_message_that_is_not_understood_is_set_aside() -> None:
    [found] = decode(statement("DROP TABLE a") | {"tableChanges": 7})
    assert (found.kind, found.table) == (QUARANTINED, None)
    assert (found.reason or "").startswith("schema change: the message cannot be interpreted")


def test_a_renamed_table_is_not_named_where_the_map_continues_its_entity_type() -> None:
    bindings = Bindings("mysql:shop", {"orders": "shop.orders"})
    message = statement("RENAME TABLE orders TO sales", ("ALTER", '"shop"."sales"'))
    elsewhere = statement("RENAME TABLE orders TO other.sales", database="other")
    for each in (message, elsewhere):
        assert effects(each, bindings=bindings, table_map={"sales": "orders"}) == []
        assert len(effects(each, bindings=bindings, table_map={"sales": "another"})) == 1
        assert len(effects(each, bindings=bindings)) == 1
    assert len(effects(message, bindings=Bindings(), table_map={"sales": "orders"})) == 1


@pytest.mark.parametrize(
    ("name", "fitting"),
    [
        ("shop.a", {"shop.a", "Shop.A"}),
        ("shop", {"shop.a", "Shop.A", "shop.app.a", "shop.b"}),
        (".a", {"shop.a", "Shop.A", "shop.app.a", "other.a"}),
        ("", {"shop.a", "Shop.A", "shop.app.a", "shop.b", "other.a", "shops.b"}),
    ],
)
def test_a_name_fits_the_tables_that_it_may_mean(name: str, fitting: set[str]) -> None:
    tables = {"shop.a", "Shop.A", "shop.app.a", "shop.b", "other.a", "shops.b"}
    assert {table for table in tables if fits(name, table)} == fitting
