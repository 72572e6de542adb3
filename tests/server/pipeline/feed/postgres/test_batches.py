"""Transactions that a compiled loop reads are those that Python assembles, in the log as in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.machine_code.loader import loops_made
from tailrace_server.pipeline.feed.postgres import batches
from tailrace_server.pipeline.feed.postgres.assembly import Assembler
from tailrace_server.pipeline.feed.postgres.batches import TransactionBatches
from tailrace_server.pipeline.feed.postgres.large import large_transaction
from tailrace_server.pipeline.feed.postgres.pgoutput import (
    Begin,
    Committed,
    Relation,
    RelationColumn,
    RowChange,
    StreamStart,
    Truncation,
    Unsent,
)
from tailrace_server.pipeline.feed.postgres.streamed import StreamedTransactions
from tailrace_server.pipeline.feed.postgres.tables import SourceTables
from tailrace_server.pipeline.feed.postgres.values import column_type
from tailrace_server.pipeline.feed.source import TransactionBatch
from tests.server.pipeline.feed.postgres.test_pgoutput import encoded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace_server.pipeline.feed.postgres.pgoutput import RowValues

KINDS = {
    23: st.integers(-9, 9).map(lambda number: b"%d" % number),
    1700: st.sampled_from([b"1.50", b"-0.5", b"NaN", b"-Infinity"]),
    16: st.sampled_from([b"t", b"f"]),
    17: st.binary(max_size=7).map(lambda value: b"\\x" + value.hex().encode()),
    25: st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20).map(str.encode),
}
"""Type → values in PostgreSQL's text form."""
TABLES = {
    5: (("id", 23), ("price", 1700), ('é"', 25)),
    9: (("region", 25), ("data", 17), ("done", 16), ("number", 23)),
    12: (("data", 17), ("n", 23)),
    70: (("done", 16), ("note", 25)),
}
"""Oid → names and types of the columns; the key is the first column, of table 9 the first three."""
KEYS = {oid: 3 if oid == 9 else 1 for oid in TABLES}


def relation(oid: int) -> Relation:
    columns = enumerate(TABLES[oid])
    listed = (RelationColumn(at < KEYS[oid], name, kind, -1) for at, (name, kind) in columns)
    return Relation(oid, "public", f"t{oid}", "d", tuple(listed))


def key_of(given: Relation) -> tuple[str, ...]:
    return tuple(name for name, _ in TABLES[given.oid])[: KEYS[given.oid]][::-1]


@st.composite
def changes(draw: st.DrawFn) -> list[RowChange | Truncation | Relation]:
    """Return the changes of a transaction; among them are some that the loop leaves to Python."""
    rows: dict[tuple[int, RowValues], RowValues | None] = {}
    found: list[RowChange | Truncation | Relation] = []
    for _ in range(draw(st.integers(0, 6))):
        oid = draw(st.sampled_from([*TABLES]))
        kinds = [kind for _, kind in TABLES[oid]]
        key = tuple(draw(KINDS[kind]) for kind in kinds[: KEYS[oid]])
        rest = tuple(draw(st.none() | KINDS[kind]) for kind in kinds[KEYS[oid] :])
        was = rows.get((oid, key), (*key, *rest) if draw(st.booleans()) else None)
        now = (*key, *rest) if was is None or draw(st.booleans()) else None
        rows[oid, key] = now
        # The old row is known within the transaction only.
        is_whole = draw(st.booleans())
        only_key: RowValues = (*key, *(None for _ in rest))
        if was is None:
            found.append(RowChange("I", oid, new=now))
        elif now is None:
            found.append(RowChange("D", oid, was if is_whole else only_key, not is_whole))
        else:
            new: RowValues = (
                now if draw(st.integers(0, 9)) else (*key, *(Unsent.VALUE for _ in rest))
            )
            found.append(RowChange("U", oid, was if is_whole else None, False, new))
        if not draw(st.integers(0, 30)):
            unusual: list[Truncation | Relation] = [Truncation((oid,)), relation(oid)]
            found.append(draw(st.sampled_from(unusual)))
    return found


def reader() -> TransactionBatches:
    tables = SourceTables(column_type, key_of)
    return TransactionBatches(tables, Assembler(tables, str), str)


def effects(items: Iterator[Any]) -> tuple[list[Any], list[str]]:
    """Return the mutations of each transaction, and the entity types in the order of their announcements."""
    found: list[Any] = []
    announced: list[str] = []
    for item in items:
        announced += item.columns
        if not isinstance(item, TransactionBatch):
            found.append(
                (
                    item.transaction_id,
                    item.source_timestamp,
                    [
                        (
                            each.entity_type,
                            each.primary_key,
                            each.operation,
                            each.before,
                            each.after,
                        )
                        for each in item.mutations
                    ],
                )
            )
            continue
        seen: list[Any] = []
        for row in item.rows.to_pylist():
            before, after = (each and each.encode() for each in (row["before"], row["after"]))
            mutation = (row["entity_type"], row["primary_key"], row["operation"], before, after)
            if not seen or seen[-1][0] != row["transaction_id"]:
                seen.append((row["transaction_id"], row["source_timestamp"], []))
            seen[-1][2].append(mutation)
        assert len(seen) == item.versions
        found += seen
    return found, sorted(announced)


@settings(max_examples=300)
@given(st.lists(changes(), min_size=1, max_size=6))
def test_the_loop_reads_what_python_assembles(given_changes: list[list[Any]]) -> None:
    loops_made()
    messages = [encoded(Begin(1, 1, 1)), *map(encoded, map(relation, TABLES))]
    messages.append(encoded(Committed(1, 1)))
    for number, each in enumerate(given_changes, 2):
        messages += map(encoded, (Begin(number, number, number), *each, Committed(number, number)))
    expected = effects(iter(reader().items(messages)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batches, "_ROWS_MIN", 0)
        found = effects(reader().items(messages))
    assert found[0] == expected[0]
    # Python announces a table also with a change that has no effect.
    assert {*found[1]} <= {*expected[1]}


def test_the_parts_of_a_large_transaction_have_its_net_effect(tmp_path: Path) -> None:
    """Rows of several parts and tables: repeated keys, rows that come and go, removals."""
    loops_made()
    streamed = StreamedTransactions(tmp_path)
    streamed.add(encoded(StreamStart(7)))
    for each in map(relation, TABLES):
        streamed.add(encoded(each, 7))
    rows = [RowChange("I", 70, new=(b"t", b"x" * 999))]
    rows += [RowChange("I", 5, new=(b"%d" % key, None, b"x" * 999)) for key in range(20_000)]
    rows += [RowChange("D", 5, (b"%d" % key, None, None), True) for key in range(0, 20_000, 2)]
    rows += [RowChange("U", 5, new=(b"%d" % key, b"1", b"y")) for key in range(1, 20_000, 2)]
    rows += [RowChange("U", 12, (b"\\x", b"1"), False, (b"\\x", b"2"))]
    rows += [RowChange("D", 70, (b"t", None), True)]
    for row in rows:
        streamed.add(encoded(row, 7))
    streamed.add(b"E")
    held = streamed.add(encoded(Committed(50, 5, 7)))
    assert held is not None
    with (tmp_path / "rows").open("w+b") as file:
        content = large_transaction(held, reader(), file)
        assert content is not None
        assert content.counts == {"t5": 10_000, "t12": 1}
        assert (content.transaction_id, content.source_timestamp) == ("7", 5)
        parts = [*content.parts]
    held.close()
    found = [row for part in parts for row in part.to_pylist()]
    assert len(parts) > 1
    assert [row["primary_key"] for row in found] == [*map(str, range(1, 20_000, 2)), ""]
    assert {orjson.loads(row["after"]).get("price", 0) for row in found} == {0, 1}
    assert [row["before"] for row in found if row["before"]] == ['{"data":"","n":1}']
