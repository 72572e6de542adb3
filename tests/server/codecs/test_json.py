"""The JSON form: the documented members, images byte for byte or as text."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Operation
from tailrace_server.codecs import JSON, JSON_TEXT
from tailrace_server.codecs.json import digits, quoted
from tests.server.codecs.batches import BODIES, CATALOG, capture, captures, columns, texts


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
        place = f"1.{CATALOG.hex}.{row['version']}.{row['index']}.{ordinal}"
        assert form["cursor"] == f"{place}.{form['commitTimestamp']}"
        assert form["primaryKey"] == row["key"]
        assert form["changed"] == row["changed"]
        assert form["operation"] == Operation(row["operation"]).name
        for name in BODIES:
            image = row[name]
            assert b'"%s":%s' % (name.encode(), b"null" if image is None else image) in frame


@given(values=st.lists(st.none() | texts, min_size=1, max_size=8))
def test_quoted_texts_are_json_strings_of_the_same_text(values: list[str | None]) -> None:
    encoded = [None if value is None else value.encode() for value in values]
    for value, found in zip(
        values, quoted(pa.array(encoded, pa.binary())).to_pylist(), strict=True
    ):
        assert (found if value is None else json.loads(found)) == value


@given(rows=st.lists(captures, max_size=8))
def test_json_text_holds_the_bytes_of_each_image_in_a_string(rows: list[dict[str, Any]]) -> None:
    given_columns = columns(rows, by_column=False, wanted=set(BODIES))
    for frame, row in zip(JSON_TEXT.encode(given_columns).to_pylist(), rows, strict=True):
        form = json.loads(frame[:-1])
        for name in BODIES:
            image = row[name]
            assert form[name] == (None if image is None else image.decode())


def test_digits_are_decimal_text_of_any_integer() -> None:
    numbers = pa.array([0, -1, 2**63 - 1]).to_numpy()
    assert digits(numbers).to_pylist() == [b"0", b"-1", b"9223372036854775807"]


def test_a_header_takes_the_size_of_what_was_left_out() -> None:
    (frame,) = JSON.encode(columns([capture()], by_column=False, wanted=set())).to_pylist()
    assert json.loads(JSON.with_omitted(frame, 3_000_000)[:-1])["omittedBytes"] == 3_000_000
