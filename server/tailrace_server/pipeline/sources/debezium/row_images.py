"""The images of rows as connectors write them: documents, cells, and filler values in ``before``.

Some connectors do not write the row as a plain JSON object:

===========  =======================================================================================
MongoDB      A document is a JSON string with the document's extended JSON in it; the image is that JSON. The
             message key is ``{"id": text}``; without a message key, the key is ``_id``.
YugabyteDB   ``{"id": {"value": 1, "set": true}, …}``, unless its transformation PGCompatible makes it plain.
Cassandra    ``{"id": {"value": 1, "deletion_ts": null, "set": true}, …}``, for a removal in ``after``, too
===========  =======================================================================================

Images of the last two lack the columns that a change did not set, so they are rejected.

Source: Debezium documentation, MongoDB and Cassandra connectors; YugabyteDB documentation, transformers of its
connector.

**Fillers.** A connector writes every column in ``before``, even those that its database did not send.
PostgreSQL sends only the columns of the table's replica identity. In place of the other values, the connector
writes null, the column's default, or the zero of its type::

    the row               {"id":1,"name":"cup","qty":5}        name is nullable, qty is not
    sent before           {"id":1,"name":null,"qty":0}         replica identity DEFAULT
    known                 {"id":1,"name":not sent,"qty":not sent}

Messages do not name the replica identity of the table. So a value outside of the key that may be such a filler
is replaced by the placeholder of a value that was not sent. These before-images are known to be complete:

- those of connectors that require the whole row from their database (`_WHOLE`);
- those of tables that ``--whole-before`` names;
- PostgreSQL's, if a nullable column without a default has a value, by the schema block. The columns of a
replica
  identity are never nullable, so the database has sent more than these.

Without a schema block, the defaults are unknown. Then an image with any null or zero counts as one with the key
alone.

Source: PostgreSQL documentation, ALTER TABLE, REPLICA IDENTITY; Debezium documentation, PostgreSQL connector.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import orjson

from tailrace_server.pipeline.input.change import DELETE, UPDATE
from tailrace_server.pipeline.sources.debezium.column_types import fields_of
from tailrace_server.pipeline.sources.debezium.message import image_of
from tailrace_server.pipeline.sources.debezium.refusals import (
    CELLS,
    MONGODB_PATCH,
    YUGABYTE_CELLS,
    Unusable,
)
from tailrace_server.wal.record.images import members, not_sent
from tailrace_server.wal.record.keys import key_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import msgspec

    from tailrace_server.pipeline.sources.debezium.column_types import ConnectField
    from tailrace_server.pipeline.sources.debezium.message import DebeziumMessage
    from tailrace_server.pipeline.sources.debezium.row_key import RowKey

_CELL: Final = frozenset(("value", "set"))


def images_of(message: DebeziumMessage) -> tuple[bytes | None, bytes | None]:
    """Return the images before and after a change; None for an image that was not sent.

    Raises:
        Unusable: An image is not a JSON object, or does not have the whole row.
    """
    connector = message.source.connector if message.source is not None else None
    if connector not in OWN_IMAGES:
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


OWN_IMAGES: Final = frozenset(("mongodb", "cassandra", "yugabytedb"))
"""Connectors whose images are not plain JSON objects."""


def document_key(message: DebeziumMessage, image: bytes | None) -> bytes | None:
    """Return the message key for a MongoDB document, made from its ``_id``; None for other rows."""
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
    # Check the JSON: other images were checked with their message, but this one was in a string.
    members(document)
    return document


def _has_cells(image: bytes | None) -> bool:
    if image is None:
        return False
    cells = [bytes(value) for value in members(image).values() if bytes(value) != b"null"]
    return bool(cells) and all(cell[:1] == b"{" and members(cell).keys() == _CELL for cell in cells)


_WHOLE: Final = frozenset(("mysql", "mariadb", "mongodb"))
"""Connectors with complete before-images: the first two require ``binlog_row_image=FULL``, the third sends
documents."""
_IDENTITY_TAKES_NO_NULL: Final = "postgresql"
_NULL: Final = b"null"
_FILLER: Final = re.compile(
    rb"null|false|-?0(?:\.0*)?(?:[eE][+-]?[0-9]+)?|\{.*\}|\[.*\]"
    rb'|"(?:0*(?:\.0*)?|A*={0,2}|\{\}|\[\]|P(?:0[A-Z]|T)+|[0-]*'
    rb'|(?:1970-01-01)?T?(?:00:00(?::00)?(?:\.0*)?)?(?:Z|[+-]00:00)?)"',
    re.DOTALL,
)
"""The zero of each type in the encodings of all converters; for arrays and structs any value."""


class RowsBefore:
    """The removal of fillers from before-images."""

    def __init__(self, stated: Collection[str]) -> None:
        """Store the tables of ``--whole-before``: entity types, their last parts, or ``*``."""
        self._stated = stated

    def known(
        self,
        operation: int,
        entity_type: str,
        connector: str | None,
        block: bytes,
        row: RowKey,
        before: bytes | None,
    ) -> bytes | None:
        """Return a before-image with placeholders in place of values that may be fillers.

        Args:
            operation: The operation of the change.
            entity_type: The row's entity type.
            connector: The type of the connector, such as ``postgresql``.
            block: The schema block of the row's message; empty if there is none.
            row: The row's key.
            before: The image as it was sent; None if it was not.

        Raises:
            Unusable: ``--whole-before`` names the table, but there is no image.
        """
        if self.is_stated(entity_type):
            if before is None and operation in (UPDATE, DELETE):
                raise Unusable(
                    f"no image of the row before the change, and --whole-before names {entity_type}: give its "
                    "table REPLICA IDENTITY FULL again, or leave the option out"
                )
            return before
        if before is None or connector in _WHOLE:
            return before
        # Only columns outside of the key may have fillers.
        others = {
            name: bytes(value)
            for name, value in members(before).items()
            if not _is_of_key(name, value, row)
        }
        fields = fields_of(block) if block else None
        if fields is None:
            has_filler = any(_FILLER.fullmatch(value) for value in others.values())
            doubtful = [*others] if has_filler else []
        else:
            by_name = {field.field or "": field for field in fields}
            # A nullable column with a value proves that the database sent more than the replica identity.
            if connector == _IDENTITY_TAKES_NO_NULL and _has_nullable(others, by_name):
                return before
            doubtful = [*_may_be_fillers(others, by_name)]
        return not_sent(before, doubtful)

    def is_stated(self, entity_type: str) -> bool:
        """Return True if ``--whole-before`` names a table."""
        names = ("*", entity_type, entity_type.rpartition(".")[2])
        return bool(self._stated) and any(name in self._stated for name in names)


def _is_of_key(name: str, value: bytes | object, row: RowKey) -> bool:
    if row.names:
        return name in row.names
    text = key_text([bytes(value)])  # type: ignore[arg-type]
    return text is not None and text in (row.primary_key, row.old_key)


def _has_nullable(others: Mapping[str, bytes], fields: Mapping[str, ConnectField]) -> bool:
    return any(
        value != _NULL
        and (field := fields.get(name)) is not None
        and field.optional
        and not bytes(field.default)
        for name, value in others.items()
    )


def _may_be_fillers(
    others: Mapping[str, bytes], fields: Mapping[str, ConnectField]
) -> Iterable[str]:
    for name, value in others.items():
        field = fields.get(name)
        # A converter may also write a column's default in place of its null.
        default = b"" if field is None else bytes(field.default)
        # The filler of a nullable column is null, so a zero in it is a real value.
        takes_null = field is not None and field.optional
        if value in (_NULL, default) or (not takes_null and _FILLER.fullmatch(value)):
            yield name
