"""Images of rows as connectors write them: documents, cells, and values of ``before`` that were made up.

Some connectors do not write the row as a JSON object:

===========  =======================================================================================
MongoDB      A document is a text that holds its extended JSON; the image is that text. The key in a message is
             ``{"id": text}``; without one, the key is ``_id``.
YugabyteDB   ``{"id": {"value": 1, "set": true}, …}``, unless its transformation PGCompatible makes it plain.
Cassandra    ``{"id": {"value": 1, "deletion_ts": null, "set": true}, …}``, also of a removal in ``after``
===========  =======================================================================================

The last two lack the columns that a change did not touch, so they are refused.

Source: Debezium documentation, MongoDB and Cassandra connectors; YugabyteDB documentation, transformers of its
connector.

**Fillers.** A connector sends every column of ``before``, also those that its database did not give it.
PostgreSQL gives the columns of the table's replica identity alone. In place of the others stand null, the
column's default, or the zero of its type::

    the row               {"id":1,"name":"cup","qty":5}        name may be null, qty may not
    sent before           {"id":1,"name":null,"qty":0}         replica identity DEFAULT
    known                 {"id":1,"name":not sent,"qty":not sent}

No message says which replica identity its table has. So a value outside of the key that may be such a filler
counts as not sent, and everything behind the decoder reads it as an unavailable value. These befores are whole:

- those of connectors that demand the whole row of their database (`_WHOLE`);
- those of tables that ``--whole-before`` names;
- PostgreSQL's, if a column that takes null and has no default has a value, by the schema block. An identity's
  columns take no null, so it has sent more than these.

Without a schema block the defaults are unknown. An image with any null or zero is that of the key alone there.

Source: PostgreSQL documentation, ALTER TABLE, REPLICA IDENTITY; Debezium documentation, PostgreSQL connector.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import orjson

from tailrace_server.pipeline.input.change import DELETE, UPDATE
from tailrace_server.pipeline.input.images import members, not_sent
from tailrace_server.pipeline.sources.debezium.column_types import fields_of
from tailrace_server.pipeline.sources.debezium.message import image_of
from tailrace_server.pipeline.sources.debezium.refusals import (
    CELLS,
    MONGODB_PATCH,
    YUGABYTE_CELLS,
    Unusable,
)
from tailrace_server.wal.record.keys import key_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import msgspec

    from tailrace_server.pipeline.sources.debezium.column_types import ConnectField
    from tailrace_server.pipeline.sources.debezium.message import DebeziumMessage
    from tailrace_server.pipeline.sources.debezium.row_key import RowKey

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


_WHOLE: Final = frozenset(("mysql", "mariadb", "mongodb"))
"""The first two demand ``binlog_row_image=FULL``; an image of the third is a document."""
_IDENTITY_TAKES_NO_NULL: Final = "postgresql"
_NULL: Final = b"null"
_FILLER: Final = re.compile(
    rb"null|false|-?0(?:\.0*)?(?:[eE][+-]?[0-9]+)?|\{.*\}|\[.*\]"
    rb'|"(?:0*(?:\.0*)?|A*={0,2}|\{\}|\[\]|P(?:0[A-Z]|T)+|[0-]*'
    rb'|(?:1970-01-01)?T?(?:00:00(?::00)?(?:\.0*)?)?(?:Z|[+-]00:00)?)"',
    re.DOTALL,
)
"""The zeros of all types, as any converter writes them; of arrays and structs any value."""


class RowsBefore:
    """Tells what is known of the rows before changes."""

    def __init__(self, stated: Collection[str]) -> None:
        """Take the tables of ``--whole-before``: entity types, their last parts, or ``*``."""
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
        """Return an image before without the values that may be fillers.

        Args:
            operation: Of the change.
            entity_type: Of the row.
            connector: That sends it.
            block: The schema that came with it; empty without.
            row: Names the row.
            before: As it was sent.

        Raises:
            Unusable: There is none, and ``--whole-before`` names the table.
        """
        if self._is_stated(entity_type):
            if before is None and operation in (UPDATE, DELETE):
                raise Unusable(
                    f"no image of the row before the change, and --whole-before names {entity_type}: give its "
                    "table REPLICA IDENTITY FULL again, or leave the option out"
                )
            return before
        if before is None or connector in _WHOLE:
            return before
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
            if connector == _IDENTITY_TAKES_NO_NULL and _has_nullable(others, by_name):
                return before
            doubtful = [*_may_be_fillers(others, by_name)]
        return not_sent(before, doubtful)

    def _is_stated(self, entity_type: str) -> bool:
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
        # A converter may write the default of a column in place of its null, too.
        default = b"" if field is None else bytes(field.default)
        takes_null = field is not None and field.optional
        if value in (_NULL, default) or (not takes_null and _FILLER.fullmatch(value)):
            yield name
