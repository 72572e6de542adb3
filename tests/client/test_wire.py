"""Captures are read as they were meant, and what the engine encodes by hand is what the proto says."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from tailrace import wire
from tailrace.capture import Capture
from tailrace.criteria import (
    After,
    Area,
    ContainerType,
    Content,
    Criteria,
    FromTime,
    Operation,
    Since,
)
from tailrace.cursor import Cursor
from tailrace.errors import TransportError, Unsupported
from tailrace.position import Position, TimestampMicros
from tailrace.v1 import capture_pb2
from tailrace.v1.capture_fields_pb2 import CaptureFields, SubscribeResponseParts
from tailrace.v1.change_capture_pb2 import SubscribeRequest, SubscribeResponse
from tailrace_server.api import requests
from tailrace_server.codecs import PROTOBUF, CaptureColumns
from tailrace_server.wal.record.text_columns import NameLists, Texts

UUID_ = UUID("6f1c2a5e-0b0e-4d4f-9c39-5d3f6a1b2c3d")
NAMES = pa.list_(pa.dictionary(pa.int32(), pa.string()))
AT = TimestampMicros(1_700_000_000_000_000)

CAPTURES = (
    Capture(UUID_, 1, 0, 0, AT, Area.INFRASTRUCTURE, Operation.TRANSACTION, None, None, None),
    Capture(
        *(
            UUID_,
            2**62,
            2**31 - 2,
            0,
            AT,
            Area.DATA,
            Operation.UPSERT,
            "product",
            "ключ",
            ("a", "b"),
        ),
        change=b"{}",
        before=b'{"a": 1}',
        after=b'{"a": 2}' * 100,
    ),
    Capture(UUID_, 3, 1, 0, AT, Area.DATA, Operation.REMOVE, "product", "", None, before=b"{}"),
    Capture(UUID_, 3, 2, 0, AT, Area.DATA, Operation.EXPIRE, "order", "1", ()),
    Capture(UUID_, 3, 3, 0, AT, Area.DATA, Operation.REMOVE, "order", None, None),
    Capture(
        *(UUID_, 3, 4, 7, AT, Area.DATA, Operation.UPSERT, "order", "1", None),
        container_type=ContainerType.PRICE,
        container_name="price",
        after=b"{}",
    ),
    Capture(UUID_, 4, 1, 0, AT, Area.SCHEMA, Operation.UPSERT, "order", None, None),
)


def columns(captures: tuple[Capture, ...]) -> CaptureColumns:
    """Return the engine's form of captures."""
    types = sorted({each.entity_type for each in captures if each.entity_type})
    code = {name: place for place, name in enumerate(types)}
    return CaptureColumns(
        catalog_uuid=UUID_,
        versions=np.array([each.version for each in captures], np.int64),
        indexes=np.array([each.index for each in captures], np.int32),
        timestamps=np.array([each.commit_timestamp for each in captures], np.int64),
        areas=np.array([each.area for each in captures], np.uint8),
        operations=np.array([each.operation for each in captures], np.uint8),
        type_codes=np.array([code.get(each.entity_type or "", -1) for each in captures], np.int32),
        entity_types=tuple(types),
        keys=Texts.of(pa.array([each.primary_key for each in captures], pa.string())),
        names=NameLists.of(pa.array([each.changed for each in captures], NAMES)),
        texts={
            name: Texts.of(pa.array([getattr(each, name) for each in captures], pa.binary()))
            for name in ("change", "before", "after")
        },
        ordinals=np.array([each.ordinal for each in captures], np.int32),
        container_types=np.array([each.container_type or 0 for each in captures], np.uint8),
        container_names=tuple(each.container_name or "" for each in captures),
    )


def test_what_the_engine_encodes_is_read_back_equal() -> None:
    frames = PROTOBUF.encode(columns(CAPTURES))
    data = b"".join(frames.to_pylist())
    message = SubscribeResponseParts.FromString(data)
    assert wire.captures(message.captures, UUID_) == CAPTURES
    for frame, capture in zip(frames.to_pylist(), CAPTURES, strict=True):
        (alone,) = wire.captures(SubscribeResponseParts.FromString(frame).captures, UUID_)
        assert alone == capture


def test_captures_are_the_same_in_whatever_company() -> None:
    """What some have and others do not is never taken for another's."""
    frames = PROTOBUF.encode(columns(CAPTURES)).to_pylist()
    for chosen in range(1, 1 << len(CAPTURES)):
        places = [place for place in range(len(CAPTURES)) if chosen >> place & 1]
        data = b"".join(frames[place] for place in places)
        read = wire.captures(SubscribeResponseParts.FromString(data).captures, UUID_)
        assert read == tuple(CAPTURES[place] for place in places)


def test_a_server_may_leave_out_numbers_that_are_zero() -> None:
    frames = PROTOBUF.encode(columns(CAPTURES)).to_pylist()
    message = SubscribeResponse.FromString(b"".join(frames))
    rewritten = [each.SerializeToString() for each in message.captures]
    assert sum(map(len, rewritten)) < sum(map(len, frames))
    assert wire.captures(rewritten, UUID_) == CAPTURES


@pytest.mark.parametrize("whole", CAPTURES[:2], ids=["lead", "row"])
def test_a_capture_that_is_cut_short_takes_nothing_of_the_next(whole: Capture) -> None:
    frame, behind = PROTOBUF.encode(columns((whole, CAPTURES[2]))).to_pylist()
    ((encoded,), (other,)) = (
        SubscribeResponseParts.FromString(each).captures for each in (frame, behind)
    )
    for cut in range(len(encoded)):
        part = encoded[:cut]
        try:
            expected = capture_pb2.Capture.FromString(part)
        except DecodeError:
            with pytest.raises(TransportError, match="not a message"):
                wire.captures([part, other], UUID_)
        else:
            first, second = wire.captures([part, other], UUID_)
            assert (first.version, second) == (expected.version, CAPTURES[2])


def test_the_fields_of_captures_are_those_of_a_capture() -> None:
    single, lists = capture_pb2.Capture.DESCRIPTOR, CaptureFields.DESCRIPTOR
    assert all(field.is_repeated for field in lists.fields)
    found = {field.number: (field.name, field.type) for field in lists.fields}
    assert found.pop(CaptureFields.BORDER_FIELD_NUMBER) == ("border", FieldDescriptor.TYPE_UINT32)
    expected = {field.number: (field.name, field.type) for field in single.fields}
    expected[9] = ("changed", FieldDescriptor.TYPE_BYTES)
    assert found == expected


def test_the_header_of_a_capture_that_is_too_large_says_what_was_left_out() -> None:
    frame = PROTOBUF.encode(columns(CAPTURES))[0].as_py()
    parts = SubscribeResponseParts.FromString(PROTOBUF.with_omitted(frame, 70_000))
    (capture,) = wire.captures(parts.captures, UUID_)
    assert capture.omitted_bytes == 70_000
    assert capture.version == 1


def test_a_capture_that_is_too_large_says_so_beside_others_that_are_not() -> None:
    large, small = PROTOBUF.encode(columns(CAPTURES)).to_pylist()[:2]
    data = PROTOBUF.with_omitted(large, 70_000) + small
    (read, beside) = wire.captures(SubscribeResponseParts.FromString(data).captures, UUID_)
    assert (read.omitted_bytes, beside) == (70_000, CAPTURES[1])


@pytest.mark.parametrize("content", [Content(number) for number in range(8)])
def test_bodies_are_read_where_they_were_asked_for(content: Content) -> None:
    assert wire.content_of(wire.body_numbers(content)) == content
    frames = PROTOBUF.encode(columns(CAPTURES)).to_pylist()
    read = wire.captures(
        SubscribeResponseParts.FromString(b"".join(frames)).captures, UUID_, content
    )
    assert read == tuple(
        each._replace(
            change=each.change if Content.CHANGE in content else None,
            before=each.before if Content.BEFORE in content else None,
            after=each.after if Content.AFTER in content else None,
        )
        for each in CAPTURES
    )


def test_captures_that_were_read_are_like_any_other() -> None:
    frames = PROTOBUF.encode(columns(CAPTURES))
    for frame, capture in zip(frames.to_pylist(), CAPTURES, strict=True):
        (read,) = wire.captures(SubscribeResponseParts.FromString(frame).captures, UUID_)
        assert hash(read) == hash(capture)
        assert repr(read) == repr(capture)
        assert read.cursor == capture.cursor


@pytest.mark.parametrize("field", ["area", "operation"])
def test_a_value_of_a_newer_server_is_unsupported(field: str) -> None:
    capture = capture_pb2.Capture(version=1, area=capture_pb2.AREA_DATA)
    setattr(capture, field, 90)
    with pytest.raises(Unsupported, match="this client does not know"):
        wire.captures([capture.SerializeToString()], UUID_)


@pytest.mark.parametrize(
    "criteria",
    [
        (),
        (Criteria(),),
        (
            Criteria(Area.DATA, ("b", "a"), ("1", ""), (Operation.EXPIRE, Operation.UPSERT)),
            Criteria(container_type=(ContainerType.PRICE,), container_name=("price",)),
            Criteria(entity_type=("a",), where={"column": "price", "gt": 1}),
        ),
    ],
)
def test_criteria_cross_the_wire(criteria: tuple[Criteria, ...]) -> None:
    assert requests.criteria(wire.criteria_messages(criteria)) == criteria


@pytest.mark.parametrize("content", [Content(n) for n in range(8)], ids=str)
def test_contents_cross_the_wire(content: Content) -> None:
    assert requests.content(wire.body_numbers(content)) == content


@pytest.mark.parametrize(
    "start",
    [
        None,
        Since(Position(0)),
        Since(Position(41)),
        Since(Position(41, 7)),
        After(Cursor(UUID_, 41, 7, 1)),
        After(Cursor(UUID_, 41, 7, 1), AT),
        FromTime(AT),
        FromTime(TimestampMicros(0)),
    ],
    ids=str,
)
def test_starts_cross_the_wire(start: Since | After | FromTime | None) -> None:
    request = SubscribeRequest()
    wire.set_start(request, start)
    assert requests.start(request) == start
