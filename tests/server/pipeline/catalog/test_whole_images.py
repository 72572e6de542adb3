"""Whole images: a source that leaves things out leads to the log of one that sends all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Area
from tailrace.errors import InvalidRequest, LogFull
from tailrace_server.api.graphql.catalog_schema import columns_by_name
from tailrace_server.pipeline.catalog.fillings import Fillings
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.wal.last_images import LastImages
from tailrace_server.wal.schema.mapping import SchemaMapping
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.retention import trim
from tests.process.ingest.reading import data, leads
from tests.server.pipeline.feeds import Feed
from tests.server.pipeline.shapes import (
    INT,
    TEXT,
    end,
    envelope,
    line,
    postgres,
    with_listing,
)
from tests.server.pipeline.test_altered_columns import meanings
from tests.support import failpoints
from tests.support.column_kinds import KINDS, Kind, Meaning, kind_of, meaning_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


HOLE = "__debezium_unavailable_value"
Row = dict[str, Any]


class Change(NamedTuple):
    """A change of a row, with all that there is to know."""

    op: str
    before: Row | None
    after: Row | None


def lossy(change: Change) -> Change:
    """Return a change as PostgreSQL sends it with the default replica identity."""
    op, before, after = change
    if op == "d" or (op == "u" and before and after and before["id"] != after["id"]):
        assert before is not None
        before = {"id": before["id"], "price": None, "text": None}
    elif op == "u":
        before = None
    if op == "u" and after and change.before and after["text"] == change.before["text"]:
        after = after | {"text": HOLE}
    return Change(op, before, after)


@st.composite
def histories(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[list[Change]]:
    """Draw transactions on a few rows of one table, each as a database would let them happen."""
    rows: dict[int, Row] = {}
    transactions = []
    for _ in range(draw(st.integers(1, 8))):
        changes: list[Change] = []
        for _ in range(draw(st.integers(1, 4))):
            key = draw(st.integers(1, 3))
            row = rows.get(key)
            values = {
                "price": draw(st.integers(1, 2)),
                "text": draw(st.sampled_from(("é", "long"))),
            }
            kind = draw(st.sampled_from(("write", "write", "move", "remove", "truncate")))
            if kind == "truncate" and draw(st.booleans()):
                rows.clear()
                changes.append(Change("t", None, None))
            elif row is None:
                rows[key] = {"id": key, **values}
                changes.append(Change("c", None, rows[key]))
            elif kind == "remove":
                changes.append(Change("d", rows.pop(key), None))
            elif kind == "move" and (free := {1, 2, 3} - set(rows)):
                moved = min(free)
                rows[moved] = rows.pop(key) | {"id": moved, "price": values["price"]}
                changes.append(Change("u", row, rows[moved]))
            else:
                rows[key] = {"id": key, **values}
                changes.append(Change("u", row, rows[key]))
        transactions.append(changes)
    return transactions


def lines(transactions: list[list[Change]]) -> list[bytes]:
    found, lsn = [], 0
    for number, changes in enumerate(transactions, 1):
        for op, before, after in changes:
            lsn += 1
            message = envelope(op, postgres(lsn, number), before=before, after=after)
            found.append(line(message))
        found.append(line(end(str(number), len(changes))))
    return found


@settings(max_examples=10)
@given(histories(), st.data())
def test_contract_34_a_log_of_filled_images_is_that_of_a_source_that_sends_all(
    transactions: list[list[Change]], drawn: st.DataObject
) -> None:
    """Whatever is left out, wherever batches are cut, and whenever the ingest begins anew."""
    with TemporaryDirectory() as folder:
        sent, filled = Path(folder) / "sent", Path(folder) / "filled"
        whole = Feed(sent)
        whole.batch(*lines(transactions))
        whole.close()
        texts = lines([[*map(lossy, changes)] for changes in transactions])
        window = drawn.draw(st.sampled_from((0.0, 3_600.0)))
        feed = Feed(filled, whole_images=True, publish_window_s=window)
        while texts:
            count = drawn.draw(st.integers(1, len(texts)))
            feed.batch(*texts[:count])
            texts = texts[count:]
            if drawn.draw(st.booleans()):
                feed.close()
                feed = Feed(filled, whole_images=True, publish_window_s=window)
        feed.driver.publish(force=True)
        feed.close()
        assert data(filled / "shop") == data(sent / "shop")
        assert not any("incomplete_images" in body for body in leads(filled / "shop"))
        assert CommitLog.open(filled / "shop").view.unknown_changes == ()


@pytest.fixture
def begun(log_root: Path) -> Iterator[Callable[..., Feed]]:
    """Return what begins an ingest of one catalog, or begins it anew."""
    feeds = []

    def begin(*args: Any, **options: Any) -> Feed:
        feeds.append(Feed(log_root, *args, **options))
        return feeds[-1]

    yield begin
    for feed in feeds:
        feed.close()


def update(lsn: int, after: Row, before: Row | None = None, table: str = "product") -> bytes:
    return line(envelope("u", postgres(lsn, None, table), before=before, after=after))


def removal(lsn: int, before: Row | None, table: str = "product") -> bytes:
    return line(envelope("d", postgres(lsn, None, table), before=before))


def insert(lsn: int, after: Row, table: str = "product") -> bytes:
    return line(envelope("c", postgres(lsn, None, table), after=after))


def images(catalog: Path) -> list[tuple[list[str] | None, Row | None, Row | None]]:
    """Return ``changed``, ``before`` and ``after`` of every record of a row."""

    def row(image: bytes | None) -> Row | None:
        return None if image is None else orjson.loads(image)

    return [(r.changed, row(r.before), row(r.after)) for r in data(catalog)]


def test_a_filled_value_is_the_text_that_was_sent_last(begun: Callable[..., Feed]) -> None:
    feed = begun(whole_images=True)
    text = b'{"id":1,"n":1.10,"big":18446744073709551616,"t":"gr\\u00fcn","o":{"b": 1}}'
    source = orjson.dumps(postgres(1))
    feed.batch(b'{"op":"c","before":null,"after":%b,"source":%b}' % (text, source))
    later = text.replace(b"1.10", b"1.100").replace(b'"gr\\u00fcn"', b'"%b"' % HOLE.encode())
    feed.batch(b'{"op":"u","before":null,"after":%b,"source":%b}' % (later, source))
    feed.batch(removal(3, {"id": 1}))
    _, changed, removed = data(feed.catalog)
    assert changed.before == text
    assert changed.after == removed.before == text.replace(b"1.10", b"1.100")
    assert (changed.changed, changed.change) == (["n"], b'{"n":1.100}')


def test_what_no_image_has_stays_as_it_was_sent_and_the_lead_counts_it(
    begun: Callable[..., Feed],
) -> None:
    feed = begun(whole_images=True)
    feed.batch(update(1, {"id": 1, "a": 1, "t": HOLE}), removal(2, {"id": 2, "a": None}))
    feed.batch(update(3, {"id": 1, "a": 2, "t": HOLE}))
    feed.batch(update(4, {"id": 1, "a": 2, "t": "new"}), insert(5, {"id": 3}))
    assert images(feed.catalog) == [
        (["id", "a"], None, {"id": 1, "a": 1, "t": HOLE}),
        (None, {"id": 2, "a": HOLE}, None),
        (["a"], {"id": 1, "a": 1, "t": HOLE}, {"id": 1, "a": 2, "t": HOLE}),
        (["t"], {"id": 1, "a": 2, "t": HOLE}, {"id": 1, "a": 2, "t": "new"}),
        (None, None, {"id": 3}),
    ]
    counts = [body.get("incomplete_images") for body in leads(feed.catalog)]
    assert counts == [1, 1, 1, 1, None]
    assert feed.driver.counters.incomplete_images == 4


def test_the_log_says_in_which_versions_removed_rows_have_whole_images(
    begun: Callable[..., Feed],
) -> None:
    """Else a null in them says nothing, and a change that depends on it cannot be judged."""
    feed = begun(whole_images=True)
    feed.batch(insert(1, {"id": 1, "t": None}), insert(2, {"id": 2}), removal(3, {"id": 1}))
    feed.batch(removal(4, {"id": 7, "t": None}))  # of which the log has no image
    feed.batch(removal(5, {"id": 2}))
    positions = feed.driver.writer.state.source_positions
    assert [each for name, each in positions.items() if name.startswith("removed:")] == ["1-3,5-"]


def test_an_update_that_changes_nothing_is_no_record(begun: Callable[..., Feed]) -> None:
    feed = begun(whole_images=True)
    feed.batch(insert(1, {"id": 1, "t": "long"}), update(2, {"id": 1, "t": HOLE}))
    assert len(data(feed.catalog)) == 1
    assert [body["mutation_count"] for body in leads(feed.catalog)] == [2, 0]


def test_what_was_sent_before_is_filled_and_not_replaced(begun: Callable[..., Feed]) -> None:
    """The log may lack a change, as one that was set aside; the row before an update is the source's to say."""
    feed = begun(whole_images=True)
    feed.batch(insert(1, {"id": 1, "a": 1, "t": "long"}))
    feed.batch(update(2, {"id": 1, "a": 3, "t": HOLE}, {"id": 1, "a": 2, "t": HOLE}))
    assert images(feed.catalog)[1] == (
        ["a"],
        {"id": 1, "a": 2, "t": "long"},
        {"id": 1, "a": 3, "t": "long"},
    )


@pytest.mark.parametrize("left", [{"note": None, "qty": None}, {"note": "", "qty": 0}, {}])
def test_a_removal_has_the_last_image_whatever_came_beside_the_key(
    begun: Callable[..., Feed], left: Row
) -> None:
    """A connector writes nulls, or the zeros of columns that take no null."""
    feed = begun(whole_images=True)

    def keyed(lsn: int, op: str, shop: str, **both: Any) -> bytes:
        key = {"shop": shop, "id": 7}
        return line({"key": key, "value": envelope(op, postgres(lsn), **both)})

    row = {"id": 7, "shop": 'a"b', "note": "long", "qty": 3}
    feed.batch(
        keyed(1, "c", 'a"b', after=row),
        keyed(2, "u", 'a"b', after=row | {"qty": 4, "note": HOLE}),
        keyed(3, "d", 'a"b', before={"id": 7, "shop": 'a"b', **left}),
        keyed(4, "d", "other", before={"id": 7, "shop": "other", **left}),
    )
    changed, removed, unknown = images(feed.catalog)[1:]
    assert changed == (["qty"], row, row | {"qty": 4})
    assert removed == (None, row | {"qty": 4}, None)
    assert unknown == (None, {"id": 7, "shop": "other", **dict.fromkeys(left, HOLE)}, None)


def test_what_a_truncate_took_away_fills_nothing(begun: Callable[..., Feed]) -> None:
    feed = begun(whole_images=True)
    feed.batch(insert(1, {"id": 1, "t": "long"}), insert(2, {"id": 1, "t": "x"}, "shelf"))
    feed.batch(line(envelope("t", postgres(3))))
    feed.batch(
        update(4, {"id": 1, "t": HOLE}), update(5, {"id": 1, "t": HOLE, "b": 1}, None, "shelf")
    )
    assert images(feed.catalog)[3:] == [
        (["id"], None, {"id": 1, "t": HOLE}),
        (["b"], {"id": 1, "t": "x"}, {"id": 1, "t": "x", "b": 1}),
    ]


def test_columns_that_were_renamed_dropped_and_added_since(begun: Callable[..., Feed]) -> None:
    begun().batch(insert(1, {"id": 1, "cost": 5, "old": 7, "t": "long"}, "item"))
    feed = begun(
        """
        [entity_types.product]
        renamed_from = "item"
        images = "full"
        [entity_types.product.columns.price]
        renamed_from = "cost"
        [entity_types.product.columns.old]
        dropped = true
        """,
    )
    feed.batch(update(2, {"id": 1, "price": 6, "t": HOLE, "new": None}))
    feed.batch(removal(3, {"id": 1}))
    now = {"id": 1, "price": 6, "t": "long", "new": None}
    assert images(feed.catalog)[1:] == [
        (["price", "new"], {"id": 1, "price": 5, "t": "long"}, now),
        (None, now, None),
    ]
    assert feed.schema().columns("product")[-1].name == "new"
    assert "old" not in [column.name for column in feed.schema().columns("product")]


def test_columns_that_the_source_alters_drops_and_lists(begun: Callable[..., Feed]) -> None:
    """An image from before is stated in the columns of its record's version, or marked where it cannot be."""
    cents = {"type": "int64", "name": "io.debezium.time.Timestamp", "optional": True}
    micros = cents | {"name": "io.debezium.time.MicroTimestamp"}
    feed = begun(whole_images=True)

    def at(lsn: int, op: str, fields: Row, **after: Any) -> bytes:
        return with_listing(fields, envelope(op, postgres(lsn), after={"id": 1, **after}))

    columns = {"at": cents, "n": TEXT, "gone": TEXT, "t": TEXT}
    feed.batch(at(1, "c", columns, at=1_500, n="5", gone="g", t="long"))
    later = {"at": micros, "n": INT, "t": TEXT}
    feed.batch(at(2, "u", later, at=1_500_001, n=6, t=HOLE), at(3, "u", later, at=2, n=6))
    feed.batch(at(4, "u", later | {"n": {"type": "boolean"}}, at=3, n=True, t="x"))
    second = {"id": 1, "at": 1_500_001, "n": 6, "t": "long"}
    third = second | {"at": 2}
    assert images(feed.catalog)[1:] == [
        (["at", "n"], {"id": 1, "at": 1_500_000, "n": 5, "t": "long"}, second),
        (["at"], second, third),  # the source lists `t`, and left it out
        (["at", "n", "t"], third | {"n": HOLE}, {"id": 1, "at": 3, "n": True, "t": "x"}),
    ]


def test_the_mapping_says_of_which_entity_types_images_are_filled(
    begun: Callable[..., Feed],
) -> None:
    mapping = '[entity_types.shelf]\nimages = "as-sent"\n[entity_types.product]\nkey = ["id"]\n'
    feed = begun(mapping, whole_images=True)
    for table in ("shelf", "product"):
        feed.batch(insert(1, {"id": 1, "a": 1}, table), update(2, {"id": 1, "a": 2}, None, table))
    assert [before for _, before, _ in images(feed.catalog)] == [
        None,
        None,
        None,
        {"id": 1, "a": 1},
    ]
    assert CommitLog.open(feed.catalog).view.unknown_changes == ("shelf",)


def test_whole_images_are_refused_where_they_cannot_be(begun: Callable[..., Feed]) -> None:
    with pytest.raises(
        InvalidRequest, match=r"m: entity_types.t.images: must be as-sent or full, not 1"
    ):
        SchemaMapping.parse("[entity_types.t]\nimages = 1", "m")
    full = '[entity_types.t]\nimages = "full"'
    with pytest.raises(
        InvalidRequest, match=r"shop.toml: entity_types.t.images: .* no key .*--keyless"
    ):
        begun(full, source=Debezium(keyless=frozenset({"t"})))


def test_images_that_would_be_too_large_for_a_record_stay_as_they_were_sent(
    begun: Callable[..., Feed],
) -> None:
    feed = begun(whole_images=True, max_record_bytes=100)
    feed.batch(insert(1, {"id": 1, "a": 1, "t": "x" * 60}), update(2, {"id": 1, "a": 2, "t": HOLE}))
    assert images(feed.catalog)[1] == (["id", "a"], None, {"id": 1, "a": 2, "t": HOLE})
    assert leads(feed.catalog)[1]["incomplete_images"] == 1


def test_contract_34_a_batch_that_failed_fills_the_same_when_it_is_run_again(
    begun: Callable[..., Feed],
) -> None:
    """Whether it became part of the log or not."""
    feed = begun(whole_images=True)
    feed.batch(insert(1, {"id": 1, "a": 1, "t": "long"}))
    for a, point in enumerate(("segment.before_rename", "entry.before_link", "entry.linked"), 2):
        lines = update(2 * a, {"id": 1, "a": a, "t": HOLE}), removal(2 * a + 1, {"id": a})
        failpoints.arm(f"{point}=enospc@1")
        try:
            with pytest.raises(LogFull):
                feed.batch(*lines)
        finally:
            failpoints.arm("")
        feed = begun(whole_images=True)
        feed.batch(*lines)
    afters = [(before, after) for changed, before, after in images(feed.catalog) if changed]
    rows = [{"id": 1, "a": a, "t": "long"} for a in range(1, 5)]
    assert afters == [*pairwise(rows)]


def test_images_come_from_the_base_of_a_trimmed_log_and_through_compactions(
    begun: Callable[..., Feed],
) -> None:
    rows = [{"id": n, "a": 0, "t": "long"} for n in range(1, 9)]
    feed = begun(whole_images=True)
    for n, row in enumerate(rows, 1):
        feed.batch(insert(n, row))
    feed.driver.writer.trim(before=5)
    feed = begun(whole_images=True)
    for n, row in enumerate(rows, 10):
        feed.batch(update(n, row | {"a": 1, "t": HOLE}))
        feed.driver.writer.compact()
    filled = [(before, after) for changed, before, after in images_of_updates(feed)]
    assert filled == [(row, row | {"a": 1}) for row in rows]


def images_of_updates(feed: Feed) -> list[tuple[list[str] | None, Row | None, Row | None]]:
    """Return the images of what a feed has updated, in a log that may be trimmed."""
    view = CommitLog.open(feed.catalog).view
    found = []
    with BatchReader(feed.catalog) as reader:
        for place in range(len(view)):
            ref = view.batch(place)
            head = reader.head(ref)
            bodies = reader.body(ref, ("before", "after"))
            columns = head.changed.to_pylist(), *(b.to_pylist() for b in bodies.values())
            for area, changed, before, after in zip(head.areas, *columns, strict=True):
                if area == Area.DATA and changed is not None and before is not None:
                    found.append((changed, orjson.loads(before), orjson.loads(after)))
    return found


def test_a_log_that_was_trimmed_without_state_knows_the_rows_that_changed_since(
    begun: Callable[..., Feed],
) -> None:
    feed = begun(whole_images=True)
    feed.batch(insert(1, {"id": 1, "t": "x"}), insert(2, {"id": 2, "t": "long"}))
    feed.batch(insert(3, {"id": 3, "t": "long"}))
    trim(feed.catalog, 3, 0, keeps_state=False)
    feed = begun(whole_images=True)
    feed.batch(update(4, {"id": 1, "t": HOLE}), update(5, {"id": 3, "t": HOLE, "a": 1}))
    assert images_of_updates(feed) == [
        (["a"], {"id": 3, "t": "long"}, {"id": 3, "t": "long", "a": 1})
    ]
    assert feed.driver.counters.incomplete_images == 1


def test_what_is_kept_between_commits_is_bounded(begun: Callable[..., Feed]) -> None:
    feed = begun()
    settings = feed.driver._settings
    last = LastImages(feed.driver.writer, None, kept_bytes=1_500)
    full = replace(settings, whole_images=True)
    feed.driver._fillings = Fillings(feed.driver.writer, full, last)
    for n in range(1, 6):
        feed.batch(insert(n, {"id": n, "t": "x" * 300}))
        assert last._size <= 1_500
    feed.batch(*(update(10 + n, {"id": n, "t": HOLE, "a": 1}) for n in range(1, 6)))
    assert [before for _, before, _ in images(feed.catalog)[5:]] == [
        {"id": n, "t": "x" * 300} for n in range(1, 6)
    ]
    assert last._size <= 1_500


@st.composite
def stated_values(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[tuple[Kind, Meaning]]:
    """Draw what one value of a row becomes, while its column is altered to other kinds of its family."""
    family = draw(st.sampled_from(sorted({kind.family for kind in KINDS})))
    kinds = st.sampled_from([kind for kind in KINDS if kind.family == family])
    return [(kind, draw(meanings(kind))) for kind in draw(st.lists(kinds, min_size=2, max_size=4))]


@pytest.mark.slow
@settings(max_examples=15)
@given(stated_values())
def test_a_filled_value_means_what_it_meant_or_counts_as_not_sent(
    values: list[tuple[Kind, Meaning]],
) -> None:
    """The row before is read by the schema of its record, whatever wrote the image that it comes from."""
    with TemporaryDirectory() as folder:
        feed = Feed(Path(folder), whole_images=True)
        for lsn, (kind, meaning) in enumerate(values, 1):
            row = {"id": 1, "c": kind.written(meaning)}
            message = envelope("c" if lsn == 1 else "u", postgres(lsn), after=row)
            feed.batch(with_listing({"c": kind.field}, message))
        feed.close()
        found = {record.version: record for record in data(feed.catalog)}
        schemas = {version: feed.schema(version) for version in found}
    for version, (_, meaning) in enumerate(values[:-1], 2):
        record = found.get(version)
        if record is None:
            assert values[version - 1][1] == meaning, "no change is no record"
            continue
        column = columns_by_name(schemas[version], "product")["c"]
        kind = kind_of(column.sql_type, column.encoding)
        assert record.before is not None
        value = orjson.loads(record.before)["c"]
        if kind.holds(meaning):
            assert meaning_of(value, kind) == meaning
        else:
            assert value == HOLE
