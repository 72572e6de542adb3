"""Debezium's placeholder in each form; what becomes of it is in test_images, test_scalars and test_row_form."""

from __future__ import annotations

import orjson
import pytest

from tailrace_server.wal.record.unavailable import (
    is_unavailable,
    is_unavailable_value,
    may_hold_unavailable,
)
from tailrace_server.wal.schema.column_types import type_of
from tests.server.pipeline.test_images import FORMS


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_the_placeholder_and_has_no_type(form: bytes) -> None:
    assert is_unavailable(form)
    assert is_unavailable_value(orjson.loads(form))
    assert may_hold_unavailable(b'{"a":1,"b":%b}' % form)
    assert type_of(form) is None


@pytest.mark.parametrize(
    "value",
    [b'"__debezium"', b'["__debezium_unavailable_value","x"]', b"[95,95]", b"{}", b"[]", b'""'],
)
def test_what_only_looks_like_it_is_a_value(value: bytes) -> None:
    assert not is_unavailable(value)
    assert not is_unavailable_value(orjson.loads(value))
    assert type_of(value) is not None
