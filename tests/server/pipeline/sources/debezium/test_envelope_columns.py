"""Lines that are decoded by columns give the rows, tallies and counts of lines that are decoded one by one."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.pipeline.input.change import CHANGE, ROWS, Change, FileSplit, from_table
from tailrace_server.pipeline.input.table_bindings import Bindings
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.driver_state import tallies_from
from tailrace_server.pipeline.transactions.lines import SplitDecoder
from tailrace_server.pipeline.transactions.tally import Tally, tally
from tailrace_server.pipeline.transactions.tally_columns import tally_columns
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.pipeline.shapes import postgres
from tests.support.compiled_loops import loops_used

usual = st.sampled_from([False] * 14 + [True])
ODD: dict[str, list[Any]] = {
    "lsn": [0, -1, "12", None, 10**18, 1.5],
    "ts_ms": [None, "1", -5, 2**53, 10**16],
    "ts_us": [7, None, -7, "7"],
    "txId": [None, "7:1", "a", "", -3, True],
    "sequence": [None, "", '["5","6"]', '[null,"6"]', '["9"', 5, "[]"],
    "snapshot": ["false", "incremental", "last", False, True, None, 3],
    "connector": [None, "mysql", "yugabytedb", "mongodb", ""],
    "name": [None, 'sh"op', "é", 3],
    "schema": [None, "", "a.b"],
    "db": [None, "other"],
    "table": [None, "", "other", "counted", "typed", "renamed"],
    "file": [None, "binlog.000001"],
    "gtid": [None, "u:1"],
    "other": [{"lsn": 1}, None],
}
KEYS: list[Any] = [1, 2, "a", "1", None, 'q"', "", 1.50, {"a": "b"}, ["x"]]


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """Draw a line; most are usual."""
    if draw(usual):
        mark = {"status": draw(st.sampled_from(["BEGIN", "END"])), "id": "7:1", "event_count": 2}
        texts = [b"", b"null", b"{", b"[]", b'{"ts_ms":1}', json.dumps(mark).encode()]
        return draw(st.sampled_from(texts))
    source = postgres(
        draw(st.integers(1, 30)), draw(st.integers(6, 9)), draw(st.sampled_from("tu"))
    )
    if draw(usual):
        name = draw(st.sampled_from(sorted(ODD)))
        source[name] = draw(st.sampled_from(ODD[name]))
    row = {"id": draw(st.integers(1, 3)), "part": "x", "n": draw(st.integers(0, 2))}
    if draw(usual):
        row["id"] = draw(st.sampled_from(KEYS))
    old = dict(row, n=draw(st.integers(0, 2)))
    if draw(usual):
        old["id"] = draw(st.sampled_from(KEYS))
    if draw(usual):
        del (old if draw(st.booleans()) else row)[draw(st.sampled_from(["id", "n"]))]
    op = draw(st.sampled_from("cud" if not draw(usual) else "rtmx"))
    given_id = f"{source['txId']}:{draw(st.integers(1, 3))}"
    transaction: Any = {"id": given_id, "total_order": draw(st.integers(1, 5))}
    if draw(usual):
        blocks: list[Any] = [None, {}, {"id": None}, {"id": 'a"'}, {"id": ""}, {"id": "é"}]
        blocks += [{"id": "7", "total_order": order} for order in ("3", -1, None)]
        transaction = draw(st.sampled_from(blocks))
    message = {
        "before": old if op in "ud" or draw(usual) else None,
        "after": None if op == "d" else row,
        "source": source,
        "op": op,
        "ts_ms": 5,
        "transaction": transaction,
    }
    if draw(usual):
        odd = [
            ("ts_ms", "x"),
            ("ts_ns", 3),
            ("before", None),
            ("after", 3),
            ("schema", {}),
            ("x", 1),
        ]
        message.update([draw(st.sampled_from(odd))])
    if draw(usual):
        del message[draw(st.sampled_from(sorted(message)))]
    if draw(usual):
        return json.dumps({"schema": None, "payload": message}).encode()
    separators = draw(st.sampled_from([(",", ":"), (", ", " : ")]))
    text = json.dumps(message, separators=separators, ensure_ascii=draw(st.booleans())).encode()
    if draw(usual):
        text = text.replace(b'"n"', draw(st.sampled_from([b'"\\u006e"', b'"id"', b'"n\xff"'])))
    return text


SOURCES = [
    Debezium(keys={"*": ("id",)}, whole_before=("*",), keyless=frozenset(["counted"])),
    Debezium(keys={"t": ("part", "id"), "*": ("id",)}),
    Debezium(entity_type_from="schema.table", table_map={"other": "t2"}, whole_before=("t",)),
]
MAPPING = SchemaMapping.parse('[entity_types.typed]\nkey = ["id"]', "m.toml")
BINDINGS = Bindings("postgresql:shop", {"renamed": "x.y.renamed"}, {"t": '["id","part"]'})


@pytest.mark.slow
@given(
    st.lists(lines(), min_size=1, max_size=12),
    st.sampled_from(SOURCES),
    st.sampled_from([Bindings(), BINDINGS]),
    st.integers(1, 12),
    st.integers(0, 2),
)
def test_columns_give_the_rows_of_single_lines(
    texts: list[bytes], source: Debezium, bindings: Bindings, at_once: int, skipped: int
) -> None:
    """Also the tallies, the quarantined lines, the runs of snapshots and the counts of the split."""
    split = FileSplit("topic/f.json", 8, 1_700_000_000_000_000)
    skip = {(split.file, split.block): skipped}
    decoders = [SplitDecoder(source.line_decoder(MAPPING, 100, bindings), skip) for _ in range(2)]
    expected = [change._replace(key_names=None) for change in decoders[0].feed(split, texts)]
    found: list[Change] = []
    tallies: dict[str, Tally] = {}
    with loops_used(True):
        for start in range(0, len(texts), at_once):
            some = pa.array(texts[start : start + at_once], pa.binary())
            rows, changes = decoders[1].feed_columns(split, some)
            parts = [tally(changes, 0.0)]
            found += [change._replace(key_names=None) for change in changes]
            if rows is not None:
                assert rows.schema == ROWS
                rows.validate(full=True)
                found += from_table(rows)
                parts.append(tallies_from(tally_columns(rows, parts[0]), 0.0))
            for part in parts:
                for key, each in part.items():
                    tallies[key] = tallies[key].plus(each) if key in tallies else each
    assert sorted(found, key=_order) == sorted(expected, key=_order)
    assert [*decoders[1].finish()] == [*decoders[0].finish()]
    assert {key: _plain(each) for key, each in tallies.items()} == {
        key: _plain(each) for key, each in tally(expected, 0.0).items()
    }


def _order(change: Change) -> tuple[bytes, int]:
    return change.place[24:], change.kind


def _plain(each: Tally) -> Any:
    """Return a tally as a value without the order of its parts, which has no meaning."""
    return (
        each.key,
        Counter(each.first_rows),
        Counter(each.spans),
        str(each.place),
        each.rows,
        (
            each.transaction_id,
            each.first_arrival,
            each.last_arrival,
            each.mark,
            each.expected,
            each.timestamp,
            each.source,
            each.quarantined,
        ),
    )


def test_usual_lines_are_decoded_by_columns() -> None:
    """Without this, the law above could hold because every line is left to the other decoder."""
    message = {
        "before": None,
        "after": {"id": 1},
        "source": postgres(5, 7),
        "op": "c",
        "transaction": {"id": "7:5", "total_order": 1},
    }
    decoder = SplitDecoder(SOURCES[0].line_decoder(None, 100, Bindings()))
    with loops_used(True):
        text = json.dumps(message).encode()
        rows, changes = decoder.feed_columns(FileSplit("f"), pa.array([text, text], pa.binary()))
    assert rows is not None
    assert (len(rows), changes) == (2, [])
    assert {change.kind for change in from_table(rows)} == {CHANGE}
