"""Generated subscription documents, valid by construction, and the captures that they are run on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tailrace.criteria import Area, ContainerType, Operation
from tailrace.schema import Column, Schema
from tailrace_server.api.graphql.schema import build
from tailrace_server.api.graphql.types import BODIES, HEAD
from tailrace_server.codecs import CaptureColumns
from tailrace_server.wal.record.text_columns import NameLists, Texts

if TYPE_CHECKING:
    from collections.abc import Callable

CATALOG: Final = UUID(int=0x1234)
SCHEMA: Final = Schema(
    3,
    {
        "product": (
            Column("id", sql_type="BIGINT"),
            Column("name", sql_type="VARCHAR"),
            Column("price", sql_type="DECIMAL(10,2)"),
            Column("weight", sql_type="DOUBLE"),
            Column("count", sql_type="INTEGER"),
            Column("on sale", sql_type="BOOLEAN"),
            Column("made", sql_type="DATE", encoding="debezium.Date"),
            Column("touched", sql_type="TIMESTAMP", encoding="debezium.MicroTimestamp"),
            Column("cost", sql_type="DECIMAL(10,2)", encoding="decimal.bytes(2)"),
            Column("more", sql_type="JSON"),
            Column("guessed"),
        ),
        "order line": (Column("id"),),
    },
)
BUILT: Final = build(SCHEMA)
_TEXTS: Final = tuple(f"{body}Text" for body in BODIES)
_VARIABLES: Final = ("v0", "v1", "v2")
_FRAGMENTS: Final = 3


@dataclass
class _Writer:
    """Writes one document from what Hypothesis draws."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    row: str
    variables: set[str] = field(default_factory=set)
    fragments: dict[str, str] = field(default_factory=dict)

    def fields_of(self, type_name: str) -> tuple[str, ...]:
        if type_name == "Change":
            return (*HEAD, "__typename")
        if type_name == "CatalogChange":
            return (*HEAD, *BODIES, *_TEXTS, "__typename")
        if type_name == self.row:
            return (*BUILT.rows[f"{self.row}Change"].fields, "__typename")
        return (*HEAD, "before", "after", "__typename")

    def selection(self, type_name: str, depth: int, fragment: int = 0) -> str:
        """Return a selection set; it may spread fragments from number ``fragment`` on."""
        count = self.draw(st.integers(1, 5 if depth else 3))
        return f"{{ {' '.join(self.one(type_name, depth, fragment) for _ in range(count))} }}"

    def one(self, type_name: str, depth: int, fragment: int) -> str:
        kinds = ["field", "field", "field"]
        if depth:
            kinds += ["inline", "spread"] if fragment < _FRAGMENTS else ["inline"]
        kind = self.draw(st.sampled_from(kinds))
        if kind == "field":
            return self.field(type_name, depth, fragment)
        condition = self.draw(st.sampled_from(self.conditions(type_name)))
        if kind == "inline":
            on = "" if condition is None else f"on {condition} "
            inner = self.selection(condition or type_name, depth - 1, fragment)
            return f"... {on}{self.directives()} {inner}"
        condition = condition or type_name
        number = self.draw(st.integers(fragment, _FRAGMENTS - 1))
        name = f"F{number}{condition}"
        if name not in self.fragments:
            self.fragments[name] = ""
            inner = self.selection(condition, depth - 1, number + 1)
            self.fragments[name] = f"fragment {name} on {condition} {inner}"
        return f"...{name} {self.directives()}"

    def conditions(self, type_name: str) -> list[str | None]:
        """Return the types that a fragment here can be on; a row is no `Change`."""
        if type_name == self.row:
            return [None, type_name]
        if type_name == "Change":
            return [None, "Change"]
        return [None, type_name, "Change"]

    def field(self, type_name: str, depth: int, fragment: int) -> str:
        name = self.draw(st.sampled_from(self.fields_of(type_name)))
        # An alias names its field, so that two uses of one never contradict each other.
        alias = self.draw(st.sampled_from(("", "", f"a_{name}: ", f"b_{name}: ")))
        inner = ""
        if name in ("before", "after") and type_name not in ("CatalogChange", self.row):
            inner = self.selection(self.row, max(depth - 1, 0), fragment)
        return f"{alias}{name} {self.directives()} {inner}"

    def directives(self) -> str:
        if self.draw(st.integers(0, 3)):
            return ""
        name = self.draw(st.sampled_from(("include", "skip")))
        value = self.draw(st.sampled_from(("true", "false", *(f"${each}" for each in _VARIABLES))))
        if value.startswith("$"):
            self.variables.add(value[1:])
        return f"@{name}(if: {value})"


@dataclass(frozen=True)
class Written:
    """A document and what it is run with."""

    text: str
    variables: dict[str, bool]


@st.composite
def documents(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Written:
    """Return subscriptions of every kind of field."""
    stem = draw(st.sampled_from(("Catalog", "Product", "OrderLine")))
    writer = _Writer(draw, "Product" if stem == "Catalog" else stem)
    alias = draw(st.sampled_from(("", "live: ")))
    selection = writer.selection(f"{stem}Change", 3)
    declared = " ".join(f"${name}: Boolean!" for name in sorted(writer.variables))
    head = f"subscription S({declared})" if declared else "subscription"
    text = " ".join((f"{head} {{ {alias}on{stem}Change {selection} }}", *writer.fragments.values()))
    return Written(text, {name: draw(st.booleans()) for name in sorted(writer.variables)})


_json: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
_numbers: Final = st.sampled_from((0, 17, -1, 2**31, 2**53 + 1, 2**63, 1.5, 1e300, 19_782))
_values: Final = (
    _json
    | _numbers
    | st.sampled_from(("12.50", "BNI=", "__debezium_unavailable_value", "2024-02-29", True, None))
)
_images: Final = st.dictionaries(
    st.sampled_from([column.name for column in SCHEMA.entity_types["product"]]),
    _values,
    max_size=11,
)


@st.composite
def image_texts(draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes | None:
    """Return images as sources write them: escaped or not, with and without spaces; few that are no object."""
    if not draw(st.integers(0, 5)):
        return draw(st.sampled_from((None, b"[]", b'{"id":1,"id":2}', b"{ }")))  # type: ignore[no-any-return]
    return json.dumps(
        draw(_images),
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from(((",", ":"), (", ", " : ")))),
        indent=draw(st.sampled_from((None, 1))),
    ).encode(errors="replace")


rows: Final = st.lists(
    st.fixed_dictionaries(
        {
            "version": st.integers(1, 2**53),
            "index": st.integers(0, 2**31 - 1),
            "timestamp": st.integers(0, 2**52),
            "area": st.sampled_from(list(Area)),
            "operation": st.sampled_from(list(Operation)),
            "type": st.sampled_from((-1, 0, 1)),
            "key": st.none() | st.text(st.characters(codec="utf-8"), max_size=12),
            "changed": st.none() | st.lists(st.sampled_from(("id", 'nä"me')), max_size=2),
            "container": st.sampled_from(
                ((0, 0, ""), (1, ContainerType.ATTRIBUTE, "näme"), (7, 5, "p"))
            ),
            **dict.fromkeys(BODIES, image_texts()),
        }
    ),
    min_size=1,
    max_size=4,
)


def columns(captures: list[dict[str, Any]], bodies: set[str], *, by_column: bool) -> CaptureColumns:
    """Return captures as the engine hands them to a codec."""

    def each(name: str) -> list[Any]:
        return [capture[name] for capture in captures]

    containers = each("container")
    return CaptureColumns(
        catalog_uuid=CATALOG,
        versions=np.array(each("version"), np.int64),
        indexes=np.array(each("index"), np.int32),
        timestamps=np.array(each("timestamp"), np.int64),
        areas=np.array(each("area"), np.uint8),
        operations=np.array(each("operation"), np.uint8),
        type_codes=np.array(each("type"), np.int32),
        entity_types=("product", 'ord"er'),
        keys=Texts.of(pa.array(each("key"), pa.string())),
        names=NameLists.of(
            pa.array(each("changed"), pa.list_(pa.dictionary(pa.int32(), pa.utf8())))
        ),
        texts={name: Texts.of(pa.array(each(name), pa.binary())) for name in bodies},
        ordinals=np.array([each[0] for each in containers], np.int32) if by_column else None,
        container_types=np.array([each[1] for each in containers], np.uint8) if by_column else None,
        container_names=tuple(each[2] for each in containers) if by_column else None,
    )
