"""Schema changes of a feed, through the driver on a real log, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tailrace.criteria import Area, ContainerType
from tailrace.errors import InvalidRequest
from tailrace.schema import Column, Origin
from tailrace_server.api.graphql.scalars import column_form
from tailrace_server.export.cdcv2 import Cdcv2Export, ExportSettings
from tailrace_server.export.errors import ImageUnfit
from tailrace_server.pipeline.catalog.quarantine import LineRefused
from tailrace_server.pipeline.input.change import FileSplit
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.process.ingest.reading import data, leads, records
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import (
    INT,
    LONG,
    TEXT,
    Fields,
    decoder,
    end,
    envelope,
    line,
    listed,
    postgres,
    with_listing,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.process.ingest.reading import Record

MICROS = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
MILLIS = {"type": "int64", "name": "io.debezium.time.Timestamp"}
MONEY = {
    "type": "bytes",
    "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": "2", "connect.decimal.precision": "10"},
}

MONEY_4 = {**MONEY, "parameters": {"scale": "4", "connect.decimal.precision": "12"}}


def end_line(transaction_id: str, count: int) -> bytes:
    """Return the end of a transaction."""
    return line(end(transaction_id, count))


def row(
    lsn: int,
    table: str = "product",
    fields: Fields | None = None,
    tx: int | None = None,
    **after: Any,
) -> bytes:
    """Return a row of its own transaction, with the columns that the source lists if any."""
    if fields is not None:
        return listed(lsn, fields, table, tx=tx, **after)
    return line(envelope("c", postgres(lsn, None, table), after={"id": lsn, **after}))


def keyed(lsn: int, **after: Any) -> bytes:
    """Return a row that comes with its key."""
    message = envelope("c", postgres(lsn), after={"id": lsn, **after})
    return line({"key": {"id": lsn}, "value": message})


def whats(feed: Feed) -> list[tuple[int, list[str]]]:
    return [(version, [c["what"] for c in found]) for version, _, _, found in feed.changes()]


def column(feed: Feed, name: str, entity_type: str = "product") -> Column:
    (found,) = (c for c in feed.schema().entity_types[entity_type] if c.name == name)
    return found


def test_the_text_of_a_placeholder_is_kept_with_the_schema(log_root: Path, tmp_path: Path) -> None:
    """So whoever reads the log knows it: an export, GraphQL, a later run without the option."""
    Feed(log_root).batch(row(1, note="a"))
    feed = Feed(log_root, source=Debezium(placeholders=("n/a",)))
    first = envelope("u", postgres(2, 5), before={"id": 1, "n": 1}, after={"id": 1, "note": "b"})
    feed.batch(
        line(first),
        line(envelope("u", postgres(3, 5), before={"id": 1}, after={"id": 1, "note": "n/a"})),
        line(end("5", 2)),
    )
    [record] = (r for r in records(feed.catalog) if r.version == 2 and r.area == Area.DATA)
    assert record.after == b'{"id":1,"note":"b"}'
    assert [feed.schema(version).placeholders for version in (1, 2)] == [(), ("n/a",)]
    Feed(log_root).batch(row(4, other=1), row(6, note="n/a"))
    schema = feed.schema()
    assert schema.placeholders == ("n/a",)
    assert column_form(column(feed, "note"), schema.placeholders).text(b'"n/a"') == b"null"
    assert column_form(column(feed, "note")).text(b'"n/a"') == b'"n/a"'
    wanted = ExportSettings(
        log=log_root, catalog="shop", entity_type="product", output=tmp_path / "x"
    )
    with Cdcv2Export.begin(wanted) as export, pytest.raises(ImageUnfit, match="did not send"):
        export.advance()
    assert [what for version, what in whats(feed) if version == 2] == [["column_added"]]


def test_columns_and_types_are_told_by_values_and_each_change_is_a_record(log_root: Path) -> None:
    feed = Feed(log_root)
    feed.batch(row(1, n=1), row(2, n=2, text="a"), row(3, n=2.5), row(4, n=7), row(5, "order"))
    feed.batch(row(6, n="x"), row(7, "order", n=None), row(8, "order", n=True))
    assert feed.changes() == [
        (
            1,
            1,
            "product",
            [
                {"what": "entity_type_added"},
                {"what": "column_added", "column": "id"},
                {"what": "column_added", "column": "n"},
            ],
        ),
        (2, 1, "product", [{"what": "column_added", "column": "text"}]),
        (
            3,
            1,
            "product",
            [
                {
                    "what": "column_changed",
                    "column": "n",
                    "from": {"sql_type": "BIGINT"},
                    "to": {"sql_type": "DECIMAL"},
                }
            ],
        ),
        (
            5,
            1,
            "order",
            [{"what": "entity_type_added"}, {"what": "column_added", "column": "id"}],
        ),
        (
            6,
            1,
            "product",
            [
                {
                    "what": "column_changed",
                    "column": "n",
                    "from": {"sql_type": "DECIMAL"},
                    "to": {"sql_type": "JSON"},
                }
            ],
        ),
        (7, 1, "order", [{"what": "column_added", "column": "n"}]),
        (
            8,
            1,
            "order",
            [
                {
                    "what": "column_changed",
                    "column": "n",
                    "from": {"sql_type": None},
                    "to": {"sql_type": "BOOLEAN"},
                }
            ],
        ),
    ]
    assert [lead.get("schema_changes") for lead in leads(feed.catalog)] == [
        *(1, 1, 1, None, 1),
        *(1, 1, 1),
    ]
    assert [lead["source_count"] for lead in leads(feed.catalog)] == [1] * 8
    types = [feed.schema(version).entity_types["product"] for version in (1, 2, 3, 6)]
    assert [[c.sql_type for c in each] for each in types] == [
        ["BIGINT", "BIGINT"],
        ["BIGINT", "BIGINT", "VARCHAR"],
        ["BIGINT", "DECIMAL", "VARCHAR"],
        ["BIGINT", "JSON", "VARCHAR"],
    ]
    assert verify(feed.catalog).sound


def test_bodies_say_what_was_and_what_is(log_root: Path) -> None:
    feed = Feed(log_root)
    feed.batch(row(1), row(2, n=1))
    first, second = [r for r in records(feed.catalog) if r.area == Area.SCHEMA]
    assert (first.before, first.changed, second.changed) == (None, None, ["n"])
    assert first.after == second.before
    assert orjson.loads(second.after or b"") == {
        "entity_type": "product",
        "columns": [
            {
                "id": id,
                "name": name,
                "role": "ATTRIBUTE",
                "sql_type": "BIGINT",
                "encoding": "json",
                "nullable": True,
                "key": 0,
                "origin": "inferred",
            }
            for id, name in ((1, "id"), (2, "n"))
        ],
    }


def test_the_sources_listing_gives_types_encodings_and_the_key(log_root: Path) -> None:
    feed = Feed(log_root)
    fields = {"price": MONEY, "made": MICROS, "name": TEXT}
    feed.batch(row(1, fields=fields, price="AfQ=", made=1_700_000_000_000_000, name=None))
    origin = Origin.DEBEZIUM
    assert feed.schema().entity_types["product"] == (
        Column("id", sql_type="INTEGER", nullable=False, key=1, origin=origin, id=1),
        Column(
            "price",
            sql_type="DECIMAL(10,2)",
            encoding="decimal.bytes(2)",
            nullable=False,
            origin=origin,
            id=2,
        ),
        Column(
            "made",
            sql_type="TIMESTAMP",
            encoding="debezium.MicroTimestamp",
            nullable=False,
            origin=origin,
            id=3,
        ),
        Column("name", sql_type="VARCHAR", origin=origin, id=4),
    )
    assert feed.schema().key_columns("product") == ("id",)


def test_a_column_that_the_source_lists_no_more_is_dropped_and_keeps_its_place(
    log_root: Path,
) -> None:
    feed = Feed(log_root)
    feed.batch(row(1, fields={"a": INT, "b": INT}, a=1, b=1), row(2, fields={"b": LONG}, b=1))
    feed.batch(row(3, fields={"b": INT}, b=1), row(4, fields={"b": LONG, "a": INT}, a=1, b=2))
    assert whats(feed) == [
        (1, ["entity_type_added", *["column_added"] * 3]),
        (2, ["column_dropped", "column_changed"]),
        (4, ["column_added"]),
    ]
    assert [c.name for c in feed.schema(2).columns("product")] == ["id", "b"]
    assert feed.schema(2).ordinals("product")["b"] == feed.schema(1).ordinals("product")["b"] == 3
    assert column(feed, "b").sql_type == "BIGINT", "a narrower listing is held by the wider type"


@pytest.mark.parametrize("apart", [False, True])
def test_a_type_that_the_source_alters_begins_with_the_transaction_that_carries_it(
    log_root: Path, apart: bool
) -> None:
    """Also when both come in one batch, and in the run after it; nothing is set aside, removals least."""
    feed = Feed(log_root)
    lines = [
        row(1, fields={"a": INT}, a=1),
        row(2, fields={"a": TEXT}, a="one"),
        with_listing({"a": TEXT}, envelope("d", postgres(3), before={"id": 1, "a": "1"})),
        row(4, fields={"a": MICROS}, a=1_000_000),
    ]
    for each in [[one] for one in lines] if apart else [lines]:
        feed.batch(*each)
    feed = Feed(log_root)
    feed.batch(row(5, fields={"a": MILLIS}, a=1_000), row(6, fields={"a": MILLIS}, a=2_000))
    assert [r.primary_key for r in data(feed.catalog)] == ["1", "2", "1", "4", "5", "6"]
    assert whats(feed)[1:] == [(version, ["column_changed"]) for version in (2, 4, 5)]
    (changed,) = feed.changes()[-1][3]
    assert (changed["from"], changed["to"]) == (
        {"encoding": "debezium.MicroTimestamp"},
        {"encoding": "debezium.Timestamp"},
    )
    types = [feed.schema(version).entity_types["product"][1] for version in range(1, 7)]
    assert [(each.sql_type, each.encoding) for each in types] == [
        ("INTEGER", "json"),
        *[("VARCHAR", "json")] * 2,
        ("TIMESTAMP", "debezium.MicroTimestamp"),
        *[("TIMESTAMP", "debezium.Timestamp")] * 2,
    ]
    assert {each.id for each in types} == {2}
    assert feed.quarantine() == []
    assert verify(feed.catalog).sound


def test_late_rows_are_read_by_the_types_of_their_time(log_root: Path) -> None:
    feed = Feed(log_root)
    feed.batch(row(1, fields={"a": MILLIS, "b": INT}, tx=7, a=1, b=1), end_line("7", 1))
    feed.batch(row(3, fields={"a": MICROS, "c": INT}, a=1, c=1))
    feed.batch(row(2, fields={"a": MILLIS, "b": INT}, tx=7, a=2, b=1))
    feed.batch(row(4, fields={"a": MICROS, "c": INT}, a=3, c=1))
    assert [lead.get("late") for lead in leads(feed.catalog)] == [None, None, True, None]
    encodings = [
        feed.schema(version).entity_types["product"][1].encoding for version in (1, 2, 3, 4)
    ]
    millis, micros = "debezium.Timestamp", "debezium.MicroTimestamp"
    assert encodings == [millis, micros, millis, micros]
    assert [c.name for c in feed.schema(4).columns("product")] == ["id", "a", "c"]


@pytest.mark.parametrize("files", [1, 2])
def test_a_transaction_that_spans_a_change_has_the_types_of_its_last_rows(
    log_root: Path, files: int
) -> None:
    """Images of both sides are compared by what they mean; what has no exact form there is not known."""
    feed = Feed(log_root)
    old = {"price": MONEY, "made": MICROS, "n": INT}
    new = {"price": MONEY_4, "made": MILLIS, "n": TEXT}
    money, money_4 = "AfQ=", "AMNQ"  # 5.00 and 5.0000

    def update(lsn: int, key: int, fields: Fields, before: Any, after: Any) -> bytes:
        source = postgres(lsn, 7)
        told = envelope("u", source, before={"id": key, **before}, after={"id": key, **after})
        return with_listing(fields, told)

    first = {"price": money, "made": 1_500_001, "n": 1}
    second = {"price": money, "made": 2_000_000, "n": 1}
    third = {"price": money_4, "made": 2_000, "n": "1"}
    lines = [
        update(1, 1, old, first, second),  # the first image of 1 is not whole milliseconds
        update(2, 2, old, second, {**second, "n": 2}),
        update(3, 1, new, third, {**third, "n": "3"}),
        update(4, 3, new, third, {**third, "n": "4"}),
    ]
    where = [FileSplit("a", 0, 1)] * 4 if files == 1 else [FileSplit(n, 0, 1) for n in "aabb"]
    reader = decoder()
    changes = [
        change
        for split in dict.fromkeys(where)
        for change in reader.feed(
            split, [text for text, its in zip(lines, where, strict=True) if its == split]
        )
    ]
    feed.driver.batch(0, [*changes, *reader.finish()])
    feed.driver.flush(ended=True)
    (price, made, n) = feed.schema(1).entity_types["product"][1:]
    assert (price.encoding, made.encoding, n.sql_type) == (
        "decimal.bytes(4)",
        "debezium.Timestamp",
        "VARCHAR",
    )
    found = {r.primary_key: r for r in data(feed.catalog)}
    assert orjson.loads(found["1"].before or b"") == {
        **{"id": 1, "price": money_4, "n": "1"},
        "made": "__debezium_unavailable_value",
    }
    assert orjson.loads(found["1"].after or b"") == {"id": 1, **third, "n": "3"}
    assert found["1"].changed == ["made", "n"]
    assert orjson.loads(found["2"].before or b"") == {"id": 2, **third}
    assert orjson.loads(found["2"].after or b"") == {"id": 2, **third, "n": "2"}
    assert found["3"].changed == ["n"]
    assert feed.quarantine() == []


@pytest.mark.parametrize("stop", [False, True])
def test_only_a_row_that_its_version_cannot_hold_is_set_aside(log_root: Path, stop: bool) -> None:
    feed = Feed(log_root, stop=stop)
    lines = [
        row(1, fields={"a": TEXT}, tx=7, a="one"),
        with_listing({"a": TEXT}, envelope("d", postgres(2, 7), before={"id": 9, "a": "nine"})),
        row(3, fields={"a": INT}, tx=7, a=3),
        end_line("7", 3),
    ]
    if stop:
        with pytest.raises(LineRefused, match=r"000000 line 1: column a: .*--on-incompatible stop"):
            feed.batch(*lines)
        assert not leads(feed.catalog)
        assert not list(feed.catalog.rglob("*.arrow"))
        return
    feed.batch(*lines)
    assert [r.primary_key for r in data(feed.catalog)] == ["9", "3"]
    assert orjson.loads(data(feed.catalog)[0].before or b"")["a"] == "__debezium_unavailable_value"
    (aside,) = feed.quarantine()
    assert aside["line"] == 1
    assert orjson.loads(aside["raw"])["value"]["after"] == {"id": 1, "a": "one"}
    assert feed.driver.counters.by_entity_type["product"].set_aside == 1
    assert feed.driver.counters.shut_out() == {}


def test_a_mapping_names_types_roles_and_keys(log_root: Path) -> None:
    feed = Feed(log_root)
    feed.batch(row(1, price=1, n=1))
    feed = Feed(
        log_root,
        """
        [entity_types.product]
        key = ["id"]
        columns.price = { type = "DECIMAL(10,2)", role = "PRICE", nullable = false }
        columns.later = { role = "REFERENCE", optional = true }
        """,
    )
    feed.batch(row(2, "order"))
    feed.batch(row(3, price=2.25, n=1), row(4, price=2, n=1.5, later="x"))
    assert whats(feed)[2:] == [
        (3, ["column_changed", "column_changed"]),
        (4, ["column_changed", "column_added"]),
    ]
    price = column(feed, "price")
    assert (price.sql_type, price.role, price.origin, price.nullable) == (
        "DECIMAL(10,2)",
        ContainerType.PRICE,
        Origin.DECLARED,
        False,
    )
    assert column(feed, "later").role is ContainerType.REFERENCE
    assert feed.schema().key_columns("product") == ("id",)


@pytest.mark.parametrize("stop", [False, True])
def test_a_value_that_a_declared_type_cannot_hold_is_set_aside_or_stops(
    log_root: Path, stop: bool
) -> None:
    mapping = '[entity_types.product.columns.n]\ntype = "SMALLINT"\nnullable = false'
    feed = Feed(log_root, mapping, stop=stop)
    feed.batch(row(1, n=1))
    bad = [row(2, n=40_000), row(3, n="1"), row(4, n=None), row(5, n=1.5)]
    if stop:
        with pytest.raises(LineRefused, match=r"40000 is out of range.*--on-incompatible stop"):
            feed.batch(*bad)
        return
    feed.batch(*bad, row(6, n=-1))
    assert [r.primary_key for r in data(feed.catalog)] == ["1", "6"]
    assert [each["reason"].split(",")[0] for each in feed.quarantine()] == [
        "column n: 40000 is out of range",
        'column n: "1" is not a whole number',
        "column n is null",
        "column n: 1.5 is not a whole number",
    ]


def test_a_declared_key_is_that_of_rows_that_come_without_one(log_root: Path) -> None:
    feed = Feed(log_root, "[entity_types.product]\nkey = ['code', 'n']")
    feed.batch(row(1, code="a", n=1))
    assert [r.primary_key for r in data(feed.catalog)] == ['["a",1]']
    assert feed.schema().key_columns("product") == ("code", "n")


def test_a_renamed_column_keeps_its_place_and_its_identity(log_root: Path) -> None:
    Feed(log_root).batch(row(1, cost=1, n=1))
    feed = Feed(log_root, '[entity_types.product.columns.price]\nrenamed_from = "cost"')
    feed.batch(row(2, cost=2, n=1), row(3, price=3, n=1), row(4, price=4, n=1))
    assert feed.changes()[1:] == [
        (3, 1, "product", [{"what": "column_renamed", "column": "price", "from": "cost"}])
    ]
    assert [c.name for c in feed.schema(2).entity_types["product"]] == ["id", "cost", "n"]
    assert [c.name for c in feed.schema(3).entity_types["product"]] == ["id", "price", "n"]
    ids = [[c.id for c in feed.schema(v).entity_types["product"]] for v in (2, 3)]
    assert ids[0] == ids[1]


def test_contract_31_a_renamed_entity_type_is_filed_under_its_old_name_once(log_root: Path) -> None:
    Feed(log_root).batch(row(1, "item", n=1))
    feed = Feed(log_root, '[entity_types.product]\nrenamed_from = "item"')
    feed.batch(row(2, n=1), row(3, n=2))
    assert feed.changes()[1:] == [
        (2, 1, "item", [{"what": "entity_type_renamed", "from": "item", "to": "product"}])
    ]
    found: list[Record] = [r for r in records(feed.catalog) if r.entity_type is not None]
    assert [(r.version, r.entity_type) for r in found] == [
        *((1, "item"), (1, "item")),
        *((2, "item"), (2, "product"), (3, "product")),
    ]
    assert list(feed.schema(1).entity_types) == ["item"]
    assert list(feed.schema(2).entity_types) == ["product"]
    assert feed.schema(1).entity_types["item"] == feed.schema(2).entity_types["product"]
    feed.batch(row(4, "item", n=1))
    assert list(feed.schema().entity_types) == ["product", "item"], "the old name begins anew"
    assert feed.changes()[-1][2:] == (
        "item",
        [
            {"what": "entity_type_added"},
            *({"what": "column_added", "column": name} for name in ("id", "n")),
        ],
    )


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        (
            "columns.prise = { role = 'PRICE' }",
            r"shop\.toml: entity_types\.product\.columns\.prise: .* has id, n; .*optional = true",
        ),
        ("key = ['id', 'm']", r"entity_types\.product\.key: product has no column m, it has id, n"),
    ],
)
def test_a_mapping_that_the_data_contradicts_is_refused_and_nothing_is_committed(
    log_root: Path, mapping: str, reason: str
) -> None:
    Feed(log_root).batch(row(1, n=1))
    feed = Feed(log_root, f"[entity_types.product]\n{mapping}")
    before = CommitLog.open(feed.catalog).state.last_entry
    with pytest.raises(InvalidRequest, match=reason):
        feed.batch(keyed(2, n=1))
    assert CommitLog.open(feed.catalog).state.last_entry == before


@pytest.mark.parametrize("fields", [None, {"n": INT}])
@pytest.mark.parametrize("declared", ["JSON", "VARCHAR"])
def test_a_declaration_of_any_other_type_holds_from_its_version_on(
    log_root: Path, fields: Fields | None, declared: str
) -> None:
    """The way out that the documents name, also against what the source goes on to announce."""
    Feed(log_root).batch(row(1, fields=fields, n=1))
    feed = Feed(log_root, f"[entity_types.product.columns.n]\ntype = '{declared}'")
    feed.batch(row(2, fields=fields, n="two"), row(3, fields=fields, n=3))
    kept = ["1", "2", "3"] if declared == "JSON" else ["1", "2"]
    assert [r.primary_key for r in data(feed.catalog)] == kept
    assert [feed.schema(v).entity_types["product"][1].sql_type for v in (1, 2)] == [
        "BIGINT" if fields is None else "INTEGER",
        declared,
    ]


def test_a_declared_encoding_that_is_not_the_sources_sets_values_aside_and_no_removal(
    log_root: Path,
) -> None:
    """Microseconds read as milliseconds would be wrong, and nothing would show it."""
    mapping = (
        "[entity_types.product.columns.made]\ntype = 'TIMESTAMP'\nencoding = 'debezium.Timestamp'"
    )
    feed = Feed(log_root, mapping)
    feed.batch(row(1, fields={"made": MILLIS}, made=1))
    gone = envelope("d", postgres(3), before={"id": 1, "made": 1_000})
    feed.batch(row(2, fields={"made": MICROS}, made=1_000), with_listing({"made": MICROS}, gone))
    assert feed.driver.counters.shut_out() == {}
    feed.batch(row(4, fields={"made": MICROS}, made=1_000))
    first, removed = data(feed.catalog)
    assert (first.primary_key, removed.primary_key, removed.after) == ("1", "1", None)
    assert orjson.loads(removed.before or b"")["made"] == "__debezium_unavailable_value"
    assert {each["reason"] for each in feed.quarantine()} == {
        "column made: the source writes it in debezium.MicroTimestamp, but shop.toml declares TIMESTAMP in "
        "debezium.Timestamp; declare the source's encoding, or JSON"
    }
    (counts,) = feed.driver.counters.shut_out(lately=True).values()
    assert (counts.taken, counts.set_aside, counts.set_aside_since) == (1, 2, 2)
