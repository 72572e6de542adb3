"""The canonical text of a key, from the JSON texts of the values that make it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec


def key_text(texts: Sequence[bytes | msgspec.Raw]) -> str | None:
    """Return the canonical text of a key from the JSON texts of its columns; None if one is null.

    A single column is its plain text: a string without quotes, anything else as written. Several
    are a compact JSON array, strings in the shortest escape, anything else as written.

    Different keys of one number of columns have different texts, but for a single column with a string in one
    and another type in the other: ``1`` and ``"1"``. A column has one type, so these are never two rows; a
    column that is altered to text keeps the keys of its rows.
    """
    values = [bytes(text) for text in texts]
    if not values or b"null" in values:
        return None
    if len(values) == 1:
        value = values[0]
        return str(orjson.loads(value)) if value[:1] == b'"' else value.decode()
    return _array(values)


def row_text(texts: Sequence[bytes | msgspec.Raw]) -> str:
    """Return the canonical text of a row that is its own key: a compact JSON array of its values.

    Nulls at its end are left out. So a row keeps its text when its table gets a column that is null in it.
    """
    values = [bytes(text) for text in texts]
    while values and values[-1] == b"null":
        values.pop()
    return _array(values)


def _array(values: Sequence[bytes]) -> str:
    parts = (orjson.dumps(orjson.loads(v)) if v[:1] == b'"' else v for v in values)
    return (b"[%b]" % b",".join(parts)).decode()
