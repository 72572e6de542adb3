"""Updates of CDCv2: what a record removes and adds, one by one and by column."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Area, Operation
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tailrace_server.codecs import CDCV2
from tailrace_server.codecs.cdcv2 import encode_one_by_one
from tests.server.codecs.batches import BODIES, TYPES, capture, captures, columns


@given(rows=st.lists(captures, max_size=12))
def test_updates_decode_to_what_went_and_what_came(rows: list[dict[str, Any]]) -> None:
    given = columns(rows, by_column=False, wanted=set(BODIES))
    frames = CDCV2.encode(given).to_pylist()
    for frame, row in zip(frames, rows, strict=True):
        found = SubscribeResponse.FromString(frame).updates
        assert [(each.data, each.diff) for each in found] == expected_updates(row)
        for each in found:
            assert (each.time, each.entity_type) == (row["version"], TYPES[row["type"]])
            assert each.HasField("primary_key") == (row["key"] is not None)
            assert each.primary_key == (row["key"] or "")


def expected_updates(row: dict[str, Any]) -> list[tuple[bytes, int]]:
    """Return the updates of a record; one of diff 0 where it lacks an image."""
    before, after, upsert = row["before"], row["after"], row["operation"] == Operation.UPSERT
    if row["area"] != Area.DATA:
        return []
    if (after if upsert else before) is None or (before is None and row["changed"] is not None):
        return [(b"", 0)]
    updates = [(before, -1), (after if upsert else None, 1)]
    if before == after:
        return [] if upsert else updates[:1]
    return [(image, diff) for image, diff in updates if image is not None]


@given(rows=st.lists(captures, min_size=1, max_size=40))
def test_updates_are_the_same_one_by_one_and_by_columns(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["type"] = max(0, row["type"])
    given = columns(rows, by_column=False, wanted={"before", "after"})
    assert encode_one_by_one(given).equals(CDCV2.encode_by_column(given))


def test_updates_of_rows_without_keys_say_how_many() -> None:
    rows = [
        capture(change=b'{"diff":3}', after=b"{}"),
        capture(change=b'{"diff":-70000}', before=b"{}", after=b"{}"),
        capture(change=b'{"diff":-2}', before=b"{}", operation=Operation.REMOVE),
        capture(change=b'{"diff":0}', after=b"{}"),
        capture(change=b'{"diff":1,"x":2}', after=b"{}"),
    ]
    frames = CDCV2.encode(columns(rows, by_column=False, wanted=set(BODIES))).to_pylist()
    found = [
        [each.diff for each in SubscribeResponse.FromString(frame).updates] for frame in frames
    ]
    assert found == [[3], [-70_000], [-2], [], [1]]


def test_a_record_that_is_too_large_says_its_size() -> None:
    [header] = CDCV2.encode(columns([capture()], by_column=False, wanted=set())).to_pylist()
    [update] = SubscribeResponse.FromString(CDCV2.with_omitted(header, 4711)).updates
    assert (update.diff, update.data, update.primary_key) == (0, b"4711", "1")
