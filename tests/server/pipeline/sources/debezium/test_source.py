"""Debezium's options; what its lines become is in test_decoder.py."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.option_fields import values_of
from tailrace_server.pipeline.sources.debezium.source import Debezium

GIVEN: dict[str, Any] = {
    "keys": None,
    "entity_type_from": "table",
    "table_map": None,
    "connector": None,
    "placeholders": None,
    "keyless": None,
    "whole_before": None,
}


def debezium(**given: object) -> Debezium:
    return Debezium(**values_of(Debezium, GIVEN | given))


def test_without_options_it_has_its_defaults() -> None:
    assert debezium() == Debezium(keys={}, entity_type_from="table", table_map={})


def test_keys_are_given_by_table() -> None:
    assert debezium(keys=["line=sku, n", "shop.item=id"]).keys == {
        "line": ("sku", "n"),
        "shop.item": ("id",),
    }


@pytest.mark.parametrize("text", ["line", "=id", "line=", "line=a,,b"])
def test_a_key_that_is_none_is_refused_as_written(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--key .*TABLE=COLUMN"):
        debezium(keys=[text])


def test_a_table_has_one_key() -> None:
    with pytest.raises(
        InvalidRequest, match=r"--key 'line=n': --key is given twice for this table"
    ):
        debezium(keys=["line=sku", "line=n"])


def test_tables_without_a_key_are_named() -> None:
    found = debezium(keyless=["audit=whole-row", "log = whole-row"])
    assert [found.counts(each) for each in ("audit", "public.log", "log2")] == [True, True, False]


@pytest.mark.parametrize("text", ["whole-row", "audit", "=whole-row", "audit=id"])
def test_another_form_of_a_table_without_a_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--keyless .*TABLE=whole-row"):
        debezium(keyless=[text])


def test_tables_with_whole_rows_before_are_named() -> None:
    assert debezium(whole_before=["orders", "*"]).whole_before == ("orders", "*")
    with pytest.raises(InvalidRequest, match=r"--whole-before 'orders=full': write TABLE"):
        debezium(whole_before=["orders=full"])


def test_a_placeholder_is_refused_as_written() -> None:
    assert debezium(placeholders="hex:00ff").placeholders == ("hex:00ff",)
    with pytest.raises(InvalidRequest, match=r"--unavailable-placeholder: placeholder 'hex:0'"):
        debezium(placeholders="hex:0")


def test_a_map_gives_each_table_one_entity_type_and_each_of_these_one_table() -> None:
    texts = ["archive.orders=old", "shop.public.orders=orders", 'a."b.c"=x=y']
    assert debezium(table_map=texts).table_map == {
        "archive.orders": "old",
        "shop.public.orders": "orders",
        'a."b.c"': "x=y",
    }
    with pytest.raises(InvalidRequest, match=r"--table-map 'a\.': 'a\.' is not a name|write TABLE"):
        debezium(table_map=["a."])
    with pytest.raises(InvalidRequest, match=r"gives a\.t the name 'x'"):
        debezium(table_map=["a.t=x", '"a".t=y'])
    with pytest.raises(
        InvalidRequest,
        match=r"--table-map gives 'x' to a\.t and b\.t, so their rows with equal keys would be mixed",
    ):
        debezium(table_map=["a.t=x", "b.t=x"])


@pytest.mark.parametrize(
    ("transaction_id", "key"), [("571:24", "571"), ("571", "571"), ("a:24", "a:24"), ("٣:1", "٣:1")]
)
def test_only_ids_of_postgresql_are_cut(transaction_id: str, key: str) -> None:
    assert Debezium().transaction_key(transaction_id) == key
