"""SQL types of columns: told from JSON values, widened, and compared.

What is inferred knows five types, each of which says how the JSON text is to be read::

    BOOLEAN   BIGINT ──▶ DECIMAL   VARCHAR
       └─────────┴──────────┴─────────┴────▶ JSON      (any value; the end of all widening)

BIGINT is a whole number of 64 bits, DECIMAL any other number, its digits as written. A null tells nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BOOLEAN: Final = "BOOLEAN"
BIGINT: Final = "BIGINT"
DECIMAL: Final = "DECIMAL"
VARCHAR: Final = "VARCHAR"
JSON: Final = "JSON"

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""What Debezium writes for a large value that an update did not touch: it tells no type."""

_SHAPES_MAX: Final = 4_096
"""Shapes remembered of an entity type; documents with as many forget and begin anew."""
_LONG_NUMBER: Final = re.compile(rb"\d{19}")
_BY_KIND: Final[Mapping[type, str | None]] = {
    bool: BOOLEAN,
    int: BIGINT,
    float: DECIMAL,
    str: VARCHAR,
    list: JSON,
    dict: JSON,
    type(None): None,
}
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def widened(one: str | None, other: str | None) -> str | None:
    """Return the narrowest inferred type that holds the values of both."""
    if one == other or other is None:
        return one
    if one is None:
        return other
    return DECIMAL if {one, other} == {BIGINT, DECIMAL} else JSON


class TypeInference:
    """Tells names and types of an image's columns, and passes over images like those it has seen.

    Two images are alike if they have the same names in the same order and values of the same kinds: so the
    common case is one parse and one look-up.
    """

    def __init__(self) -> None:
        """Begin without knowing any image."""
        self._shapes: dict[str, set[tuple[Any, ...]]] = {}

    def unseen(
        self, entity_type: str, image: bytes, names: tuple[str, ...] = ()
    ) -> Iterable[tuple[str, str | None]]:
        """Return (name, type) of an image's columns, None where the value tells none; nothing for one seen.

        Args:
            entity_type: Shapes are remembered by it.
            image: The text of a JSON object.
            names: Columns that are touched without being in the image.

        Raises:
            msgspec.DecodeError: Not a JSON object.
        """
        try:
            columns = orjson.loads(image)
        except orjson.JSONDecodeError:
            columns = None  # what Raw lets pass, an escape that is no character say
        if type(columns) is not dict or _LONG_NUMBER.search(image) or UNAVAILABLE.encode() in image:
            return (*_typed(image), *((name, None) for name in names))
        shape = (*columns, *map(type, columns.values()), *names)
        shapes = self._shapes.setdefault(entity_type, set())
        if shape in shapes:
            return ()
        if len(shapes) >= _SHAPES_MAX:
            shapes.clear()
        shapes.add(shape)
        found = [(name, _BY_KIND[type(value)]) for name, value in columns.items()]
        found.extend((name, None) for name in names if name not in columns)
        return found

    def forget(self) -> None:
        """Look at every image anew; after what was told has been taken back."""
        self._shapes.clear()


def _typed(image: bytes) -> list[tuple[str, str | None]]:
    return [(name, type_of(bytes(value))) for name, value in _members.decode(image).items()]


def type_of(value: bytes) -> str | None:
    """Return the inferred type of one JSON value; None for null and for what was not sent."""
    first = value[:1]
    if first in (b"{", b"["):
        return JSON
    if first == b'"':
        return None if value == b'"%b"' % UNAVAILABLE.encode() else VARCHAR
    if first in (b"t", b"f"):
        return BOOLEAN
    if first == b"n":
        return None
    digits = value.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 19:
        return DECIMAL
    return BIGINT if -(2**63) <= int(value) < 2**63 else DECIMAL
