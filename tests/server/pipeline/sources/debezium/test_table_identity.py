"""What entity type a table is; which rows the catalog takes of it, on a log, is in test_table_bindings.py."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tailrace_server.pipeline.input.change import QUARANTINED
from tailrace_server.pipeline.input.table_bindings import Bindings
from tailrace_server.pipeline.sources.debezium.message import SourceBlock
from tailrace_server.pipeline.sources.debezium.refusals import Unusable
from tailrace_server.pipeline.sources.debezium.table_identity import TableIdentities
from tests.server.pipeline.shapes import decode, envelope, postgres

POSTGRESQL = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders"}
MYSQL = {"connector": "mysql", "db": "shop", "table": "orders"}
MONGODB = {"connector": "mongodb", "db": "shop", "collection": "orders"}
VITESS = {"connector": "vitess", "db": "", "keyspace": "shop", "table": "orders", "shard": "-80"}
NO_DATABASE = {"schema": "public", "table": "orders"}


def identify(block: dict[str, Any], form: str = "table", **table_map: str) -> tuple[str, str]:
    identities = TableIdentities(form, table_map, None, Bindings())
    found = identities.of(msgspec.convert(block, SourceBlock))
    return found.entity_type, found.table


@pytest.mark.parametrize(
    ("block", "name", "types"),
    [
        (POSTGRESQL, "shop.public.orders", ["orders", "public.orders", "shop.public.orders"]),
        (MYSQL, "shop.orders", ["orders", "shop.orders", "shop.orders"]),
        (MONGODB, "shop.orders", ["orders", "shop.orders", "shop.orders"]),
        (VITESS, "shop.orders", ["orders", "shop.orders", "shop.orders"]),
        (NO_DATABASE, ".public.orders", ["orders", "public.orders", "public.orders"]),
        ({"table": "orders"}, "..orders", ["orders", "orders", "orders"]),
    ],
)
def test_a_level_that_a_connector_lacks_is_left_out(
    block: dict[str, Any], name: str, types: list[str]
) -> None:
    forms = ("table", "schema.table", "database.schema.table")
    assert [identify(block, form) for form in forms] == [(each, name) for each in types]


def test_of_several_names_in_the_map_that_fit_the_longest_counts() -> None:
    named = {"orders": "one", "public.orders": "two", "live.public.orders": "three"}
    assert identify(POSTGRESQL, **named) == ("two", "shop.public.orders")
    assert identify(MYSQL, **named) == ("one", "shop.orders")


def test_what_the_map_gives_to_a_table_is_no_other_tables_even_if_that_is_called_so() -> None:
    with pytest.raises(
        Unusable, match=r"--table-map gives entity type 'orders' to archive\.o; name this"
    ):
        identify(POSTGRESQL, **{"archive.o": "orders"})


def test_options_of_a_cure_can_be_copied_into_a_shell() -> None:
    bindings = Bindings(None, {"o": "shop.o"})
    [row] = decode(
        envelope("c", postgres(1, schema="it's", table="o"), after={"id": 1}), bindings=bindings
    )
    assert row.kind == QUARANTINED
    assert row.reason is not None
    assert "--table-map 'shop.it'\"'\"'s.o=NAME' or --entity-type-from schema.table" in row.reason


def test_a_row_without_a_connectors_name_is_of_another_than_one_with_it() -> None:
    row = envelope("c", {"db": "shop", "table": "o"}, after={"id": 1})
    [found] = decode(row, bindings=Bindings("mysql:shop"))
    assert found.reason is not None
    assert found.reason.endswith("if it has replaced the other: --connector ''")
    [found] = decode(row, bindings=Bindings("mysql:shop"), connector="")
    assert found.table == "shop.o"


def test_no_run_of_snapshot_rows_counts_one_that_is_set_aside() -> None:
    """Snapshots are cut by number: a gap would leave a row without a version."""
    bindings = Bindings(None, {"product": "shop.public.product"})
    rows = [
        envelope("r", postgres(None, schema=schema), after={"id": 1})
        for schema in ("public", "archive", "public")
    ]
    assert [row.total_order for row in decode(*rows, bindings=bindings)] == [0, -1, 1]
