"""Fields of captures: tags are those of the contract, lengths are varints."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from tailrace.v1 import capture_pb2
from tailrace.v1.change_capture_pb2 import SubscribeResponse
from tailrace_server.codecs import fields

_WIRE_TYPES = {
    FieldDescriptor.TYPE_UINT64: 0,
    FieldDescriptor.TYPE_UINT32: 0,
    FieldDescriptor.TYPE_ENUM: 0,
    FieldDescriptor.TYPE_FIXED64: 1,
    FieldDescriptor.TYPE_SFIXED64: 1,
    FieldDescriptor.TYPE_STRING: 2,
    FieldDescriptor.TYPE_BYTES: 2,
    FieldDescriptor.TYPE_MESSAGE: 2,
    FieldDescriptor.TYPE_FIXED32: 5,
    FieldDescriptor.TYPE_SFIXED32: 5,
}


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        *(("version", fields.VERSION), ("index", fields.INDEX), ("ordinal", fields.ORDINAL)),
        *(("commit_timestamp", fields.TIMESTAMP), ("area", fields.AREA)),
        *(("operation", fields.OPERATION), ("entity_type", fields.ENTITY_TYPE)),
        *(("primary_key", fields.PRIMARY_KEY), ("changed", fields.CHANGED)),
        *(("container_type", fields.CONTAINER_TYPE), ("container_name", fields.CONTAINER_NAME)),
        *(("omitted_bytes", fields.OMITTED_BYTES), *fields.BODIES.items()),
    ],
)
def test_tags_are_number_and_wire_type_of_the_contract(name: str, tag: int) -> None:
    field = capture_pb2.Capture.DESCRIPTOR.fields_by_name[name]
    assert tag == field.number << 3 | _WIRE_TYPES[field.type]


def test_frames_are_the_captures_of_a_response() -> None:
    field = SubscribeResponse.DESCRIPTOR.fields_by_name["captures"]
    assert field.number << 3 | _WIRE_TYPES[field.type] == fields.CAPTURE


@given(number=st.integers(0, 2**64 - 1))
def test_varints_are_protobufs(number: int) -> None:
    encoded = fields.varint(number)
    capture = capture_pb2.Capture.FromString(bytes([fields.OMITTED_BYTES]) + encoded)
    assert capture.omitted_bytes == number
    assert len(encoded) == max(1, -(-number.bit_length() // 7))
