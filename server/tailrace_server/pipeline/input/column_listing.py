"""A source's listing of the columns of an entity type, as the text in `Change.columns` and in sightings."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - read when texts are decoded
from typing import NamedTuple

import msgspec

from tailrace.schema import Origin
from tailrace_server.wal.schema.builder import Announced


class ColumnListing(NamedTuple):
    """The content of a listing; its text is a JSON array of these fields."""

    columns: Sequence[tuple[str, str | None, str, bool]]
    """Name, SQL type, encoding and nullability of each column."""
    key: tuple[str, ...]
    """Names of the key columns, as far as the source names them."""
    origin: str = Origin.DEBEZIUM.value
    """The origin of the listing. Texts of early releases lack it; their origin is the default."""


def listing(
    columns: Sequence[tuple[str, str | None, str, bool]], key: tuple[str, ...], origin: Origin
) -> str:
    """Return the text of a listing."""
    return msgspec.json.encode(ColumnListing(columns, key, origin.value)).decode()


def announced(text: str) -> Announced:
    """Return the listing in a text, in the form for a schema builder."""
    found = _decode(text)
    return Announced(tuple(found.columns), found.key, Origin(found.origin))


_decode = msgspec.json.Decoder(ColumnListing).decode
