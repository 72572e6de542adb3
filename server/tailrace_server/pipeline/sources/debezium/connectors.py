"""Images as the connectors write them, where they are not the row as a JSON object.

===========  =======================================================================================
MongoDB      A document is a text that holds its extended JSON; the image is that text. The key in a message is
             ``{"id": text}``; without one, the key is ``_id``.
YugabyteDB   ``{"id": {"value": 1, "set": true}, …}``, unless its transformation PGCompatible makes it plain.
Cassandra    ``{"id": {"value": 1, "deletion_ts": null, "set": true}, …}``, also of a removal in ``after``
===========  =======================================================================================

The last two lack the columns that a change did not touch, so they are refused.

Source: Debezium documentation, MongoDB and Cassandra connectors; YugabyteDB documentation, transformers of its
connector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from tailrace_server.pipeline.images import members
from tailrace_server.pipeline.sources.debezium.message import image_of
from tailrace_server.pipeline.sources.debezium.refusals import Unusable
from tailrace_server.pipeline.sources.debezium.shapes import CELLS, MONGODB_PATCH, YUGABYTE_CELLS

if TYPE_CHECKING:
    import msgspec

    from tailrace_server.pipeline.sources.debezium.message import DebeziumMessage

_CELL: Final = frozenset(("value", "set"))


def images_of(message: DebeziumMessage) -> tuple[bytes | None, bytes | None]:
    """Return the row before and after a change; None where there is none.

    Raises:
        Unusable: An image is no JSON object, or does not hold the row.
    """
    connector = message.source.connector if message.source is not None else None
    if connector not in _OWN_IMAGES:
        return image_of(message.before), image_of(message.after)
    if connector == "cassandra":
        raise Unusable(CELLS)
    if connector == "mongodb":
        before, after = _document(message.before), _document(message.after)
        if after is None and message.op == "u":
            raise Unusable(MONGODB_PATCH)
        return before, after
    before, after = image_of(message.before), image_of(message.after)
    if _has_cells(before) or _has_cells(after):
        raise Unusable(YUGABYTE_CELLS)
    return before, after


_OWN_IMAGES: Final = frozenset(("mongodb", "cassandra", "yugabytedb"))


def document_key(message: DebeziumMessage, image: bytes | None) -> bytes | None:
    """Return the key of a MongoDB document whose message has none; None for other rows."""
    if message.source is None or message.source.connector != "mongodb" or image is None:
        return None
    identity = members(image).get("_id")
    return None if identity is None else b'{"_id":%b}' % bytes(identity)


def _document(raw: msgspec.Raw) -> bytes | None:
    text = bytes(raw)
    if text[:1] != b'"':
        return image_of(raw)
    document: bytes = orjson.loads(text).encode()
    if document[:1] != b"{":
        raise Unusable("an image is a text that holds no document")
    members(document)  # the text of an image is checked with its message; this one has not been
    return document


def _has_cells(image: bytes | None) -> bool:
    if image is None:
        return False
    cells = [bytes(value) for value in members(image).values() if bytes(value) != b"null"]
    return bool(cells) and all(cell[:1] == b"{" and members(cell).keys() == _CELL for cell in cells)
