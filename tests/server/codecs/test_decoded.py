"""Decoded captures: by the columns of each version, and nothing else of an image is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Area
from tailrace.schema import Column, Schema
from tailrace_server.codecs import JSON, JSON_DECODED, PROTOBUF, PROTOBUF_DECODED
from tests.server.codecs.batches import BODIES, TYPES, capture, captures, columns


def schema(encoding: str, *, placeholders: tuple[str, ...] = ()) -> Schema:
    price = Column("price", sql_type="DECIMAL(10,2)", encoding=encoding)
    day = Column("day", sql_type="DATE", encoding="debezium.Date")
    return Schema(entity_types={TYPES[0]: (price, day)}, placeholders=placeholders)


BEFORE = schema("decimal.bytes(2)", placeholders=("gone",))
AFTER = schema("json")


def schema_of(version: int) -> Schema:
    return BEFORE if version < 10 else AFTER


def decoded(*rows: dict[str, Any], name: str = "after") -> list[bytes]:
    given_columns = columns(list(rows), by_column=False, wanted=set(BODIES))
    frames = JSON_DECODED.encode(replace(given_columns, schema_of=schema_of)).to_pylist()
    mark = b'"%s":' % name.encode()
    return [frame[frame.index(mark) + len(mark) : -2] for frame in frames]


def test_a_value_is_read_by_the_schema_of_its_version() -> None:
    image = b'{"id": 7, "price":"LsY=","day":0}'
    assert decoded(capture(version=9, after=image), capture(version=10, after=image)) == [
        b'{"id":7,"price":"119.74","day":"1970-01-01"}',
        b'{"id":7,"price":"LsY=","day":"1970-01-01"}',
    ]


def test_what_cannot_be_decoded_stays_as_the_source_wrote_it() -> None:
    image = b'{"day":null,"e":1.50}'
    huge = b'{"price":"?","day":99999999}'
    assert decoded(capture(after=image), capture(after=huge)) == [image, huge]


def test_columns_whose_values_were_not_sent_are_left_out() -> None:
    """Of every entity type, also one that has nothing to decode; a text that holds the placeholder stays."""
    image = (
        b'{"price":"Z29uZQ==","day":0,"e":"__debezium_unavailable_value"}'  # the first in base64
    )
    text = b'{"e": "gone are the days"}'
    rows = [capture(after=image), capture(type=1, after=image), capture(type=1, after=text)]
    assert decoded(*rows) == [b'{"day":"1970-01-01"}', b'{"day":0}', text]


def test_only_rows_are_read_and_only_by_their_own_columns() -> None:
    image = b'{"price":"LsY="}'
    rows = [
        capture(after=image, area=Area.SCHEMA),
        capture(after=image, type=-1),
        capture(after=image, type=1),
        capture(change=image, before=image, after=image),
    ]
    assert decoded(*rows) == [image, image, image, b'{"price":"119.74"}']
    for name in BODIES:
        assert decoded(rows[-1], name=name)[0].startswith(b'{"price":"119.74"}')


@given(rows=st.lists(captures, max_size=20), by_column=st.booleans())
def test_where_nothing_is_encoded_the_frames_are_those_of_the_inner_codec(
    rows: list[dict[str, Any]], by_column: bool
) -> None:
    given_columns = columns(rows, by_column=by_column, wanted=set(BODIES))
    assert JSON_DECODED.encode(given_columns) == JSON.encode(given_columns)
    inner = PROTOBUF.messages(given_columns, 1 << 10)
    found = PROTOBUF_DECODED.messages(given_columns, 1 << 10)
    assert (found.data, found.starts) == (inner.data, inner.starts)
    assert found.offsets.tolist() == inner.offsets.tolist()
