"""Debezium's options; what its lines become is in test_decoder.py."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.options import values_of
from tailrace_server.pipeline.sources.debezium.source import Debezium

GIVEN: dict[str, Any] = {"keys": None, "long_entity_types": "table", "placeholders": None}


def debezium(**given: object) -> Debezium:
    return Debezium(**values_of(Debezium, GIVEN | given))


def test_without_options_it_has_its_defaults() -> None:
    assert debezium() == Debezium(keys={}, long_entity_types=False)


def test_keys_are_given_by_table() -> None:
    assert debezium(keys=["line=sku, n", "shop.item=id"]).keys == {
        "line": ("sku", "n"),
        "shop.item": ("id",),
    }
    assert debezium(long_entity_types="schema.table").long_entity_types


@pytest.mark.parametrize("text", ["line", "=id", "line=", "line=a,,b"])
def test_a_key_that_is_none_is_refused_as_written(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--key .*TABLE=COLUMN"):
        debezium(keys=[text])


def test_a_table_has_one_key() -> None:
    with pytest.raises(InvalidRequest, match=r"--key 'line=n': the table has another --key"):
        debezium(keys=["line=sku", "line=n"])


def test_a_placeholder_is_refused_as_written() -> None:
    assert debezium(placeholders="hex:00ff").placeholders == ("hex:00ff",)
    with pytest.raises(InvalidRequest, match=r"--unavailable-placeholder: placeholder 'hex:0'"):
        debezium(placeholders="hex:0")


@pytest.mark.parametrize(
    ("transaction_id", "key"), [("571:24", "571"), ("571", "571"), ("a:24", "a:24"), ("٣:1", "٣:1")]
)
def test_only_ids_of_postgresql_are_cut(transaction_id: str, key: str) -> None:
    assert Debezium().transaction_key(transaction_id) == key
