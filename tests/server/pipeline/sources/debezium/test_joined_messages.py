"""Lines of several messages: each is a change of its own, and any cut into lines gives the same log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace_server.pipeline.input.change import CHANGE, QUARANTINED, FileSplit
from tailrace_server.pipeline.sources.debezium.decoder import key_and_value, messages_in
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.driver import Driver
from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
from tailrace_server.wal.catalog import open_writer
from tests.process.ingest.reading import records
from tests.server.pipeline.shapes import decode, decoder, end, envelope, line, postgres

if TYPE_CHECKING:
    from pathlib import Path

    from tests.process.ingest.reading import Record

ONE, TWO = (line(envelope("c", postgres(n, n), after={"id": n, "t": "a}, ]{"})) for n in (1, 2))


@pytest.mark.parametrize(
    "text",
    [
        ONE + TWO,
        ONE + b" \t" + TWO,
        b"[%b,%b]" % (ONE, TWO),
        b"[ %b , null, %b ]\r" % (ONE, TWO),
        b"[%b][%b]" % (ONE, TWO),
        b"\xef\xbb\xbf" + ONE + TWO,
        b"[" + ONE + b"," + TWO,
        ONE + b",\n" + TWO,
    ],
)
def test_messages_of_a_line_are_changes_of_their_own(text: bytes) -> None:
    changes = decode(text)
    assert [(c.kind, c.primary_key, c.line) for c in changes] == [
        (CHANGE, "1", None),
        (CHANGE, "2", None),
    ]
    assert changes[0].place < changes[1].place


def test_an_array_may_lie_over_lines_with_a_message_in_each() -> None:
    fed = decoder()
    lines = [b"[", b"  " + ONE + b",", TWO, b"]"]
    assert [c.primary_key for c in fed.feed(FileSplit("f"), lines)] == ["1", "2"]
    [split] = fed.finish()
    assert (split.line, split.total_order, split.number) == (4, 2, 0)


def test_a_message_that_cannot_be_used_takes_no_other_with_it() -> None:
    bad = line(envelope("c", postgres(3, 3), after={"sku": 3}))
    torn, foreign = b'{"a": nope}', b'{"t": "\xff"}'
    text = b" ".join((ONE, bad, torn, foreign, b"garbage", TWO, b'{"op": "c", "bef'))
    fed = decoder()
    changes = list(fed.feed(FileSplit("f"), [text]))
    assert [(c.kind, c.raw) for c in changes] == [
        (CHANGE, None),
        (QUARANTINED, bad),
        (QUARANTINED, torn),
        (QUARANTINED, foreign),
        (QUARANTINED, b"garbage"),
        (CHANGE, None),
        (QUARANTINED, b'{"op": "c", "bef'),
    ]
    assert {c.line for c in changes if c.kind == QUARANTINED} == {1}
    assert changes[1].transaction == "3"
    [split] = fed.finish()
    assert (split.line, split.total_order, split.number) == (1, 7, 0)


def test_lines_to_skip_are_lines_whatever_they_hold() -> None:
    fed = decoder({("f", 0): 1})
    found = fed.feed(FileSplit("f"), [ONE + TWO, b"[%b]" % TWO])
    assert [change.primary_key for change in found] == ["2"]


def test_a_log_and_binary_data_are_not_cut() -> None:
    for text in (b"[INFO] a {1} b {2}", b'{"a": 1}\0{"b": 2}', b"", b'"a": {"b": 1}', b"x {} {}"):
        assert messages_in(text) is None


@given(st.text(alphabet='[]{}",: \\nul1\n\t', max_size=40))
def test_nothing_that_stands_in_a_line_is_lost(text: str) -> None:
    given_line = text.encode()
    found = messages_in(given_line)
    if found is not None:
        kept = b"".join(found)
        divided = str.maketrans("", "", "[], \t\n")
        assert kept.decode().translate(divided) == text.translate(divided)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ({"sku": 7}, "7"),
        ({"schema": {}, "payload": {"sku": 7}}, "7"),
        ("7", "7"),
        (7, "7"),
        ({"op": "c"}, "c"),
        ({"ts_ms": 5}, "5"),
    ],
)
def test_a_key_before_a_tab_is_the_key_of_the_message(key: object, found: str) -> None:
    message = line(envelope("c", postgres(1, 1), after={"sku": 7}))
    [change] = decode(line(key) + b"\t" + message)
    assert (change.kind, change.primary_key) == (CHANGE, found)


def test_a_key_without_a_message_is_a_tombstone_and_what_is_no_key_in_json_is_none() -> None:
    assert decode(b'{"id":1}\tnull') == []
    for text in (b"Struct{id=1}\t{}", b"a\tb\t{}", b'{"a": 1} {}', b"1\t[]"):
        assert key_and_value(text) is None
    bad = line(envelope("c", postgres(1, 1), after={"id": None}))
    [change] = decode(b"null\t" + bad)
    assert (change.kind, change.raw) == (QUARANTINED, b"null\t" + bad)


def log_of(root: Path, lines: list[bytes]) -> list[Record]:
    options = IngestSettings(
        input=root, log=root, catalog="shop", source=Debezium(), rules=Rules(idle_s=3600.0)
    )
    with open_writer(root, "shop", writer="test") as writer:
        driver = Driver(writer, options)
        fed = decoder()
        driver.batch(0, [*fed.feed(FileSplit("f", 0, 1), lines), *fed.finish()])
        driver.flush(ended=True)
    return records(root / "shop")


@st.composite
def messages(draw: st.DrawFn) -> list[bytes]:
    """Draw rows of transactions in any order, some that cannot be used, snapshot rows and metadata."""
    found: list[bytes] = []
    for lsn in range(1, draw(st.integers(2, 9))):
        image = {"id": draw(st.integers(1, 3)), "text": draw(st.text('a"\\]}[{, ', max_size=6))}
        op = draw(st.sampled_from("cuur"))
        tx = draw(st.none() | st.integers(1, 3))
        odd = draw(st.sampled_from([None] * 6 + [end("1", 2), {"ts_ms": 1}, {"a": [1, {}]}, []]))
        message = envelope(op, postgres(lsn, tx), after=image) if odd is None else odd
        found.append(json.dumps(message, indent=draw(st.sampled_from([None, 0]))).encode())
    return [text.replace(b"\n", b" ") for text in found]


@settings(max_examples=25)
@given(messages(), st.data())
def test_any_cut_of_messages_into_lines_gives_the_same_log(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], data: st.DataObject
) -> None:
    lines: list[bytes] = []
    left = list(texts)
    while left:
        size = data.draw(st.integers(1, len(left)))
        part, left = left[:size], left[size:]
        between = data.draw(st.sampled_from([b"", b" ", b" , "]))
        joined = between.join(part)
        lines.append(b"[%b]" % b",".join(part) if data.draw(st.booleans()) else joined)
    one_a_line = log_of(tmp_path_factory.mktemp("plain"), texts)
    assert log_of(tmp_path_factory.mktemp("cut"), lines) == one_a_line
