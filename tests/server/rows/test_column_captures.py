"""Column-level captures: roles of columns, and bodies with the one column, byte for byte."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.criteria import Area, ContainerType, Operation
from tailrace.schema import Column, Schema
from tailrace_server.rows.column_captures import cut_bodies, roles_of
from tailrace_server.rows.run import BatchSelection
from tailrace_server.wal.record.text_columns import Texts
from tests.server.rows.heads import head_of

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
values = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers())


@given(row=st.dictionaries(names, values, max_size=4), name=names)
def test_a_body_keeps_the_one_column_of_its_capture(row: dict[str, object], name: str) -> None:
    image = json.dumps(row).encode()
    bodies = {"after": Texts.of(pa.array([image, image, None], pa.binary()))}
    cut, whole, nothing = cut_bodies(bodies, (name, "", name))["after"].array.to_pylist()
    assert (whole, nothing) == (image, None)
    assert (None if cut is None else json.loads(cut)) == (
        {name: row[name]} if name in row else None
    )


def test_a_value_is_copied_as_it_is_written() -> None:
    image = b'{"a" : 1.50e+3 ,"b":[ 1, {"c":12345678901234567890.10}]}'
    bodies = {"before": Texts.of(pa.array([image, image], pa.binary()))}
    assert cut_bodies(bodies, ("a", "b"))["before"].array.to_pylist() == [
        b'{"a":1.50e+3}',
        b'{"b":[ 1, {"c":12345678901234567890.10}]}',
    ]


def test_roles_are_those_of_the_schema_of_the_records_version() -> None:
    head = head_of([(Area.DATA, Operation.UPSERT, 0)] * 2, ("order",))
    schemas = {
        1: Schema(1, {"order": (Column("id", id=1), Column("price", role=ContainerType.PRICE))}),
        2: Schema(2, {"order": (Column("id", id=1), Column("price"))}),
    }
    selection = BatchSelection(
        "test",
        np.array([0, 0, 1], np.int32),
        np.array([0, 2, 2], np.int32),
        ("", "price", "price"),
    )
    assert roles_of(head, selection, schemas.__getitem__).tolist() == [
        0,
        ContainerType.PRICE,
        ContainerType.ATTRIBUTE,
    ]
