"""A source's list of the columns of an entity type, as the text in rows and commits."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - read when texts are decoded
from typing import NamedTuple

import msgspec

from tailrace.schema import Origin
from tailrace_server.wal.schema.builder import Announced


class ColumnListing(NamedTuple):
    """The members of the text, a JSON array."""

    columns: Sequence[tuple[str, str | None, str, bool]]
    """Name, SQL type, encoding and nullable of each."""
    key: tuple[str, ...]
    """Names of the key's columns, as far as the source says them."""
    origin: str = Origin.DEBEZIUM.value
    """The origin of the listing; texts of early releases lack it, and have this one."""


def listing(
    columns: Sequence[tuple[str, str | None, str, bool]], key: tuple[str, ...], origin: Origin
) -> str:
    """Return the text of a listing."""
    return msgspec.json.encode(ColumnListing(columns, key, origin.value)).decode()


def announced(text: str) -> Announced:
    """Return the listing in a text, as a schema takes it."""
    found = _decode(text)
    return Announced(tuple(found.columns), found.key, Origin(found.origin))


_decode = msgspec.json.Decoder(ColumnListing).decode
