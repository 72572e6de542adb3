"""The client's JSON form is the server's, byte for byte, whatever the names, keys and images."""

from __future__ import annotations

import json
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture import Capture, Heartbeat
from tailrace.criteria import Area, ContainerType, Content, Operation
from tailrace.cursor import Cursor
from tailrace.position import TimestampMicros
from tailrace_server.cli.terminal import capture_lines
from tailrace_server.codecs import JSON, CaptureColumns
from tailrace_server.wal.record.text_columns import NameLists, Texts

CATALOG = UUID("0f8fad5bd9cb469fa165708677289501")
CHANGED = pa.list_(pa.dictionary(pa.int32(), pa.string()))
CONTENTS = [Content(bits) for bits in range(8)]

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
images = st.sampled_from(
    [
        b"{}",
        b'{"price":0.10,"big":9007199254740993,"e":1e2}',
        '{ "name" : "ключ \\u0041" }'.encode(),
    ]
)


@st.composite
def captures(draw: st.DrawFn) -> Capture:
    column = draw(st.booleans())
    lead = not column and draw(st.booleans())
    return Capture(
        catalog_uuid=CATALOG,
        version=draw(st.integers(1, 2**63 - 1)),
        index=draw(st.integers(0, 2**31 - 1)),
        ordinal=draw(st.integers(1, 2**31 - 1)) if column else 0,
        commit_timestamp=TimestampMicros(draw(st.integers(0, 2**53))),
        area=Area.INFRASTRUCTURE if lead else Area.DATA,
        operation=draw(st.sampled_from(Operation)),
        entity_type=None if lead else draw(names),
        primary_key=None if lead else draw(st.none() | names),
        changed=draw(st.none() | st.lists(names, max_size=3).map(tuple)),
        container_type=ContainerType.ATTRIBUTE if column else None,
        container_name=draw(names) if column else None,
        change=draw(st.none() | images),
        before=draw(st.none() | images),
        after=draw(st.none() | images),
    )


def columns_of(capture: Capture, content: Content) -> CaptureColumns:
    """Return the engine's form of one capture."""
    bodies = {
        name: Texts.of(pa.array([getattr(capture, name)], pa.binary()))
        for kind, name in (
            (Content.CHANGE, "change"),
            (Content.BEFORE, "before"),
            (Content.AFTER, "after"),
        )
        if kind in content
    }
    column = capture.container_type is not None
    return CaptureColumns(
        catalog_uuid=capture.catalog_uuid,
        versions=np.array([capture.version], np.int64),
        indexes=np.array([capture.index], np.int32),
        timestamps=np.array([capture.commit_timestamp], np.int64),
        areas=np.array([capture.area], np.uint8),
        operations=np.array([capture.operation], np.uint8),
        type_codes=np.array([-1 if capture.entity_type is None else 0], np.int32),
        entity_types=() if capture.entity_type is None else (capture.entity_type,),
        keys=Texts.of(pa.array([capture.primary_key], pa.string())),
        names=NameLists.of(pa.array([capture.changed], CHANGED)),
        texts=bodies,
        ordinals=np.array([capture.ordinal], np.int32) if column else None,
        container_types=np.array([capture.container_type], np.uint8) if column else None,
        container_names=(capture.container_name or "",) if column else None,
    )


@given(captures(), st.sampled_from(CONTENTS))
def test_client_and_server_write_the_same_bytes(capture: Capture, content: Content) -> None:
    frame = JSON.encode(columns_of(capture, content))[0].as_py()
    assert capture_lines.render(capture, content) == frame.removesuffix(b",")


@given(captures(), st.integers(1, 2**40))
def test_omitted_bodies_are_written_as_the_server_does(capture: Capture, size: int) -> None:
    header = JSON.encode(columns_of(capture, Content.HEADER))[0].as_py()
    omitted = capture._replace(omitted_bytes=size)
    assert capture_lines.render(omitted) == JSON.with_omitted(header, size).removesuffix(b",")


@given(captures())
def test_the_form_is_json_with_the_documented_names_in_order(capture: Capture) -> None:
    found = json.loads(capture_lines.render(capture))
    container = [] if capture.container_type is None else ["containerType", "containerName"]
    assert list(found) == [
        *("version", "index", "ordinal", "cursor", "commitTimestamp", "area", "operation"),
        *("entityType", "primaryKey", "changed", *container, "change", "before", "after"),
    ]
    assert Cursor.parse(found["cursor"]) == capture.cursor


@pytest.mark.parametrize("image", [b'{\n "a": 1\r\n}', b'{"a":\n1}'])
def test_an_image_of_several_lines_stays_on_one(image: bytes) -> None:
    """A line form that breaks inside an image would give its reader two broken lines."""
    capture = Capture(
        *(CATALOG, 1, 1, 0, TimestampMicros(1), Area.DATA, Operation.UPSERT, "product", "1", None),
        after=image,
    )
    line = capture_lines.render_line(capture, Content.AFTER)
    assert line.count(b"\n") == 1
    assert line.endswith(b"}\n")
    assert json.loads(line)["after"] == json.loads(image)


def test_a_heartbeat_is_one_flat_line_that_names_itself() -> None:
    cursor = Cursor(CATALOG, 3, 2)
    line = capture_lines.render_heartbeat(Heartbeat(4, cursor, 10, 2, 5.0))
    assert json.loads(line) == {
        "heartbeat": True,
        "published": 4,
        "cursor": str(cursor),
        "recordsScanned": 10,
        "recordsMatched": 2,
        "nextWithinSeconds": 5.0,
    }
