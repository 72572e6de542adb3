"""Debezium's placeholder in each form; what becomes of it is in test_images, test_scalars and test_row_form."""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest
from tailrace_server.wal.record.unavailable import DEFAULT, PLACEHOLDER, Unavailable
from tailrace_server.wal.schema.column_types import type_of
from tests.server.wal.record.test_images import FORMS


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_the_placeholder_and_has_no_type(form: bytes) -> None:
    assert DEFAULT.is_one(form)
    assert DEFAULT.is_one_parsed(orjson.loads(form))
    assert DEFAULT.may_be_in(b'{"a":1,"b":%b}' % form)
    assert type_of(form) is None


@pytest.mark.parametrize(
    "value",
    [b'"__debezium"', b'["__debezium_unavailable_value","x"]', b"[95,95]", b"{}", b"[]", b'""'],
)
def test_what_only_looks_like_it_is_a_value(value: bytes) -> None:
    assert not DEFAULT.is_one(value)
    assert not DEFAULT.is_one_parsed(orjson.loads(value))
    assert type_of(value) is not None


TEXTS = st.text(min_size=1, max_size=8).filter(lambda text: not text.startswith("hex:"))


def forms(octets: bytes) -> list[bytes]:
    """Return what a connector writes for a column of each kind, by the text's octets."""
    text = octets.decode(errors="replace")
    base64 = b64encode(octets).decode()
    signed = [octet - 256 if octet > 127 else octet for octet in octets]
    values = [text, base64, octets.hex(), [text], {text: text}, json.dumps({text: text})]
    written = [json.dumps(value, ensure_ascii=True, separators=(",", ":")) for value in values]
    plain = [
        json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for value in (*values[:5], orjson.dumps({text: text}).decode(), [*octets], signed)
    ]
    return [each.encode() for each in (*written[:5], *plain)]


@given(TEXTS.map(str.encode) | st.binary(min_size=1, max_size=8))
def test_every_form_follows_the_text_of_the_connector(octets: bytes) -> None:
    """Given as text, or in hex, as the connector's own option has it."""
    texts = ["hex:" + octets.hex()]
    with suppress(UnicodeDecodeError):
        texts += [octets.decode()] * (not octets.startswith(b"hex:"))
    for text in texts:
        told = Unavailable([text])
        for form in forms(octets):
            assert told.is_one(form), form
            assert told.may_be_in(b'{"a":1,"b":%b}' % form)
            assert type_of(form, told) is None
        assert told.is_one(orjson.dumps(PLACEHOLDER))
        assert not told.is_one(b'"v"') or octets == b"v"


@pytest.mark.parametrize("text", ["", "hex:", "hex:4", "hex:zz"])
def test_a_text_that_is_no_placeholder_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="placeholder"):
        Unavailable([text])
