"""Batches of captures for the tests of the codecs."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tailrace.criteria import Area, ContainerType, Operation
from tailrace_server.codecs import CaptureColumns
from tailrace_server.wal.record.text_columns import NameLists, Texts

CATALOG = UUID(int=0x1234)
CHANGED = pa.list_(pa.dictionary(pa.int32(), pa.utf8()))
BODIES = ("change", "before", "after")

texts = st.text(st.characters(codec="utf-8"), max_size=300)
bodies = st.none() | st.dictionaries(st.sampled_from("abc"), texts, max_size=3).map(
    lambda value: json.dumps(value).encode()
)
captures = st.fixed_dictionaries(
    {
        "version": st.integers(1, 2**63 - 1),
        "index": st.integers(0, 2**31 - 1),
        "timestamp": st.integers(0, 2**62),
        "area": st.sampled_from(list(Area)),
        "operation": st.sampled_from(list(Operation)),
        "type": st.sampled_from([-1, 0, 1]),
        "key": st.none() | texts,
        "changed": st.none() | st.lists(st.sampled_from(["id", "name", "a" * 200]), max_size=3),
        "container": st.sampled_from(
            [(0, 0, ""), (1, ContainerType.ATTRIBUTE, "näme"), (7, 5, "p")]
        ),
        **dict.fromkeys(BODIES, bodies),
    }
)
TYPES = ("product", "ordér" * 40)


def columns(rows: list[dict[str, Any]], *, by_column: bool, wanted: set[str]) -> CaptureColumns:
    def each(name: str) -> list[Any]:
        return [row[name] for row in rows]

    containers = [row["container"] for row in rows]
    return CaptureColumns(
        catalog_uuid=CATALOG,
        versions=np.array(each("version"), np.int64),
        indexes=np.array(each("index"), np.int32),
        timestamps=np.array(each("timestamp"), np.int64),
        areas=np.array(each("area"), np.uint8),
        operations=np.array(each("operation"), np.uint8),
        type_codes=np.array(each("type"), np.int32),
        entity_types=TYPES,
        keys=Texts.of(pa.array(each("key"), pa.string())),
        names=NameLists.of(pa.array(each("changed"), CHANGED)),
        texts={name: Texts.of(pa.array(each(name), pa.binary())) for name in wanted},
        ordinals=np.array([each[0] for each in containers], np.int32) if by_column else None,
        container_types=np.array([each[1] for each in containers], np.uint8) if by_column else None,
        container_names=tuple(each[2] for each in containers) if by_column else None,
    )


def capture(**more: Any) -> dict[str, Any]:
    return {
        **{"version": 1, "index": 1, "timestamp": 1, "area": Area.DATA, "type": 0, "key": "1"},
        **{"operation": Operation.UPSERT, "changed": None, "container": (0, 0, "")},
        **dict.fromkeys(BODIES),
        **more,
    }
