"""Codecs: what comes out decodes to what went in, and field numbers are those of the contract."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Area, ContainerType, Operation
from tailrace.v1 import capture_pb2
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tailrace_server.capture.codecs import (
    CDCV2,
    JSON,
    PROTOBUF,
    CaptureColumns,
    compiled_encoder_loader,
    compiled_frames,
)
from tailrace_server.capture.codecs import cdcv2 as updates
from tailrace_server.capture.codecs.protobuf import encode_one_by_one
from tailrace_server.wal.record.text_columns import NameLists, Texts

if TYPE_CHECKING:
    from tailrace_server.capture.codecs import Codec

CATALOG = UUID(int=0x1234)
CHANGED = pa.list_(pa.dictionary(pa.int32(), pa.utf8()))
BODIES = ("change", "before", "after")

texts = st.text(st.characters(codec="utf-8"), max_size=300)
bodies = st.none() | st.dictionaries(st.sampled_from("abc"), texts, max_size=3).map(
    lambda value: json.dumps(value).encode()
)
captures = st.fixed_dictionaries(
    {
        "version": st.integers(1, 2**63 - 1),
        "index": st.integers(0, 2**31 - 1),
        "timestamp": st.integers(0, 2**62),
        "area": st.sampled_from(list(Area)),
        "operation": st.sampled_from(list(Operation)),
        "type": st.sampled_from([-1, 0, 1]),
        "key": st.none() | texts,
        "changed": st.none() | st.lists(st.sampled_from(["id", "name", "a" * 200]), max_size=3),
        "container": st.sampled_from(
            [(0, 0, ""), (1, ContainerType.ATTRIBUTE, "näme"), (7, 5, "p")]
        ),
        **dict.fromkeys(BODIES, bodies),
    }
)
TYPES = ("product", "ordér" * 40)


def columns(rows: list[dict[str, Any]], *, by_column: bool, wanted: set[str]) -> CaptureColumns:
    def each(name: str) -> list[Any]:
        return [row[name] for row in rows]

    containers = [row["container"] for row in rows]
    return CaptureColumns(
        catalog_uuid=CATALOG,
        versions=np.array(each("version"), np.int64),
        indexes=np.array(each("index"), np.int32),
        timestamps=np.array(each("timestamp"), np.int64),
        areas=np.array(each("area"), np.uint8),
        operations=np.array(each("operation"), np.uint8),
        type_codes=np.array(each("type"), np.int32),
        entity_types=TYPES,
        keys=Texts.of(pa.array(each("key"), pa.string())),
        names=NameLists.of(pa.array(each("changed"), CHANGED)),
        texts={name: Texts.of(pa.array(each(name), pa.binary())) for name in wanted},
        ordinals=np.array([each[0] for each in containers], np.int32) if by_column else None,
        container_types=np.array([each[1] for each in containers], np.uint8) if by_column else None,
        container_names=tuple(each[2] for each in containers) if by_column else None,
    )


@given(
    rows=st.lists(captures, max_size=12),
    by_column=st.booleans(),
    wanted=st.sets(st.sampled_from(BODIES)),
)
def test_protobuf_frames_decode_to_what_went_in(
    rows: list[dict[str, Any]], by_column: bool, wanted: set[str]
) -> None:
    given_columns = columns(rows, by_column=by_column, wanted=wanted)
    frames = PROTOBUF.encode(given_columns).to_pylist()
    assert PROTOBUF.encode_by_column(given_columns).to_pylist() == frames
    message = SubscribeResponse.FromString(b"".join(frames))
    assert len(message.captures) == len(rows) == len(frames)
    for capture, row in zip(message.captures, rows, strict=True):
        expected = capture_pb2.Capture(
            version=row["version"],
            index=row["index"],
            commit_timestamp=row["timestamp"],
            area=row["area"],
            operation=row["operation"],
            entity_type=TYPES[row["type"]] if row["type"] != -1 else None,
            primary_key=row["key"],
            **{name: row[name] for name in wanted},
        )
        if row["changed"] is not None:
            expected.changed.names.extend(row["changed"])
            expected.changed.SetInParent()
        if by_column:
            ordinal, kind, name = row["container"]
            expected.ordinal, expected.container_type = ordinal, kind
            expected.container_name = name if kind else ""
        assert capture == expected


@given(
    rows=st.lists(captures, min_size=1, max_size=12),
    wanted=st.sets(st.sampled_from(BODIES)),
    data=st.data(),
)
def test_captures_spelled_joined_and_written_by_machine_code_are_the_same_bytes(
    rows: list[dict[str, Any]], wanted: set[str], data: st.DataObject
) -> None:
    whole = columns(rows, by_column=False, wanted=wanted)
    assert encode_one_by_one(whole) == PROTOBUF.encode_by_column(whole).to_pylist()
    assert compiled_frames.encode(whole).equals(PROTOBUF.encode_by_column(whole))
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12).map(sorted))
    places = np.array(chosen, np.int32)
    some = replace(
        whole,
        rows=places,
        versions=whole.versions[places],
        indexes=whole.indexes[places],
        timestamps=whole.timestamps[places],
    )
    assert encode_one_by_one(some) == PROTOBUF.encode_by_column(some.gathered()).to_pylist()
    assert compiled_frames.encode(some).equals(PROTOBUF.encode_by_column(some.gathered()))


@given(rows=st.lists(captures, min_size=2, max_size=12), data=st.data())
def test_machine_code_reads_slices_of_arrays(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(1, len(rows) - 1))
    whole = columns(rows, by_column=False, wanted=set(BODIES))
    part = columns(rows[start:], by_column=False, wanted=set(BODIES))
    sliced = replace(
        part,
        keys=Texts.of(whole.keys.array[start:]),
        names=NameLists.of(whole.names.array[start:]),
        texts={name: Texts.of(body.array[start:]) for name, body in whole.texts.items()},
    )
    assert compiled_frames.encode(sliced).equals(compiled_frames.encode(part))


def test_the_first_large_batch_loads_the_machine_code_and_the_frames_stay_the_same() -> None:
    row = {
        **{"version": 3, "index": 1, "timestamp": 5, "area": Area.DATA, "type": 0, "key": "7"},
        **{"operation": Operation.UPSERT, "changed": ["id"], "container": (0, 0, "")},
    }
    many = columns([row] * 1_000, by_column=False, wanted=set())
    before = PROTOBUF.encode(many)
    compiled_encoder_loader.begin_loading().join()
    assert compiled_encoder_loader.encoder_for(1_000) is compiled_frames
    assert PROTOBUF.encode(many).equals(before)


@given(rows=st.lists(captures, max_size=8), by_column=st.booleans())
def test_json_frames_are_the_documented_form_with_images_byte_for_byte(
    rows: list[dict[str, Any]], by_column: bool
) -> None:
    frames = JSON.encode(columns(rows, by_column=by_column, wanted=set(BODIES))).to_pylist()
    assert len(frames) == len(rows)
    for frame, row in zip(frames, rows, strict=True):
        assert frame.endswith(b"},")
        form = json.loads(frame[:-1])
        ordinal, kind, _ = row["container"] if by_column else (0, 0, "")
        containers = ["containerType", "containerName"] if kind else []
        assert list(form) == [
            *("version", "index", "ordinal", "cursor", "commitTimestamp", "area", "operation"),
            *("entityType", "primaryKey", "changed", *containers, *BODIES),
        ]
        assert form["cursor"] == f"1.{CATALOG.hex}.{row['version']}.{row['index']}.{ordinal}"
        assert form["primaryKey"] == row["key"]
        assert form["changed"] == row["changed"]
        assert form["operation"] == Operation(row["operation"]).name
        for name in BODIES:
            image = row[name]
            assert b'"%s":%s' % (name.encode(), b"null" if image is None else image) in frame


@pytest.mark.parametrize("codec", [PROTOBUF, JSON])
def test_a_header_frame_takes_the_size_of_what_was_left_out(codec: Codec) -> None:
    row = {
        **{"version": 3, "index": 1, "timestamp": 5, "area": Area.DATA, "type": 0, "key": "7"},
        **{"operation": Operation.UPSERT, "changed": None, "container": (0, 0, "")},
    }
    (frame,) = codec.encode(columns([row], by_column=False, wanted=set())).to_pylist()
    omitted = codec.with_omitted(frame, 3_000_000)
    if codec is PROTOBUF:
        (capture,) = SubscribeResponse.FromString(omitted).captures
        assert (capture.version, capture.omitted_bytes) == (3, 3_000_000)
    else:
        assert json.loads(omitted[:-1])["omittedBytes"] == 3_000_000


def test_field_numbers_and_types_are_those_of_the_contract() -> None:
    fields = capture_pb2.Capture.DESCRIPTOR.fields_by_name
    assert {name: fields[name].number for name in ("version", "index", "ordinal")} == {
        "version": 1,
        "index": 2,
        "ordinal": 3,
    }
    assert SubscribeResponse.DESCRIPTOR.fields_by_name["captures"].number == 1


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
    assert updates.encode_one_by_one(given).equals(CDCV2.encode_by_column(given))


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


def capture(**more: Any) -> dict[str, Any]:
    return {
        **{"version": 1, "index": 1, "timestamp": 1, "area": Area.DATA, "type": 0, "key": "1"},
        **{"operation": Operation.UPSERT, "changed": None, "container": (0, 0, "")},
        **dict.fromkeys(BODIES),
        **more,
    }


def test_a_record_that_is_too_large_says_its_size() -> None:
    [header] = CDCV2.encode(columns([capture()], by_column=False, wanted=set())).to_pylist()
    [update] = SubscribeResponse.FromString(CDCV2.with_omitted(header, 4711)).updates
    assert (update.diff, update.data, update.primary_key) == (0, b"4711", "1")
