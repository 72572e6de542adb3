r"""The key of a row, taken from an explicit statement of the key; it is never guessed.

The first source of a key that exists decides::

    --keyless TABLE    the whole row, for a table without a key; equal rows are counted
    --key TABLE=COL    columns of the image; the operator's choice has precedence
    the message key    an object names columns; a text or a number is the key itself
    --schema           the key columns that the mapping declares
    --key *=COL        for lines without a message key

A column named ``id`` proves nothing: if the real key is (tenant, id), rows of two tenants would become one row.

A message key has one of these layouts::

    {"id":7}                              columns, the canonical one
    {"schema":{…},"payload":{"id":7}}     the same, with its Connect schema
    "{\"id\":7}"                            either of them, as a string
    7, "7", "sku-1"                       one value without its column, as after ExtractField
    null                                  the table has no primary key

Any other layout is rejected: a key that is not understood may be equal for two rows.

The log stores the names of a table's key columns (`table_bindings`). The text of a key depends on the order of
its columns, so a key with the same columns in another order is reordered. A change with other key columns is
rejected, because it would not match its row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from tailrace_server.pipeline.input.change import DELETE, TRUNCATE, UPDATE
from tailrace_server.pipeline.sources.debezium.refusals import Unusable
from tailrace_server.wal.record.images import completed, members
from tailrace_server.wal.record.keys import key_text, row_text
from tailrace_server.wal.record.row_rules import repeated_member
from tailrace_server.wal.record.unavailable import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import msgspec

    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

EVERY_TABLE: Final = "*"
"""The table name in ``--key`` for every line without a message key."""
_NULL: Final = b"null"
_AVRO_TYPES: Final = frozenset(
    ("boolean", "int", "long", "float", "double", "bytes", "string", "array", "map")
)
_STRUCT: Final = re.compile(r"Struct\{.*\}", re.DOTALL)
"""A key as Connect's StringConverter writes it."""
_WHOLE: Final = re.compile(rb"-?[0-9]+")


class RowKey(NamedTuple):
    """The key of a row."""

    primary_key: str | None
    """The key as canonical text; None for a truncate."""
    old_key: str | None = None
    """The previous key, if the change moved the row to another key; else None."""
    names: tuple[str, ...] = ()
    """Names of the key columns; empty if unknown."""


class _Told(NamedTuple):
    """The content of a message key."""

    names: tuple[str, ...]
    """Names of the columns; empty if the key is a single value without a column name."""
    values: Sequence[bytes | msgspec.Raw]


class RowKeys:
    """The rules that give rows their keys."""

    def __init__(
        self,
        given: Mapping[str, tuple[str, ...]],
        mapping: SchemaMapping | None = None,
        counts: Callable[[str], bool] = lambda _: False,
        unavailable: Unavailable = DEFAULT,
        noted: Mapping[str, str] | None = None,
    ) -> None:
        """Store the key columns.

        Args:
            given: Entity type, its last part, or `EVERY_TABLE` → key columns of the option ``--key``.
            mapping: The mapping, which may declare key columns.
            counts: Returns True for entity types whose key is the whole row.
            unavailable: Recognizes placeholders for values that the source did not send.
            noted: Entity type → names of the key columns in the log, as in `Change.key_names`.
        """
        self.counts = counts
        self._unavailable = unavailable
        self._given = given
        self._mapping = mapping
        self._noted: dict[str, tuple[str, ...]] = {
            entity_type: tuple(orjson.loads(names)) for entity_type, names in (noted or {}).items()
        }
        self._renames: dict[str, dict[str, str]] = {
            entity_type: {
                column.renamed_from: name
                for name, column in declared.columns.items()
                # If the old name is declared, too, it is now the name of another column.
                if column.renamed_from and column.renamed_from not in declared.columns
            }
            for entity_type, declared in (mapping.entity_types if mapping else {}).items()
        }
        self._texts: dict[tuple[str, tuple[str, ...]], str] = {}

    def names_text(self, entity_type: str, names: tuple[str, ...]) -> str | None:
        """Return names of key columns in the form of `Change.key_names`, renamed by the mapping."""
        if not names:
            return None
        text = self._texts.get((entity_type, names))
        if text is None:
            text = orjson.dumps(self._newest(entity_type, names)).decode()
            self._texts[entity_type, names] = text
        return text

    def of(
        self,
        operation: int,
        entity_type: str,
        table: str,
        message_key: bytes | None,
        before: bytes | None,
        after: bytes | None,
    ) -> RowKey:
        """Return the key of a row.

        Args:
            operation: The operation of the change.
            entity_type: The row's entity type.
            table: The last level of the table's name.
            message_key: JSON text of the message key, which may be ``null``; None if the line has no key.
            before: The image before the change.
            after: The image after the change.

        Raises:
            Unusable: The row has no key, or the key is not understood or contradicts the images.
        """
        if operation == TRUNCATE:
            return RowKey(None)
        image = before if operation == DELETE else after
        if image is None and operation != DELETE:
            raise Unusable("no image of the row after the change")
        if self.counts(entity_type):
            return self._whole_row(operation, before, after)
        row = _members(image) if image else {}
        old = _members(before) if before and operation == UPDATE else {}
        # 1. The key's columns, in the order of the log.
        names, values = self._as_noted(
            entity_type, *self._columns(entity_type, table, message_key, row, old)
        )
        primary_key = key_text(values)
        if primary_key is None:
            raise Unusable(f"a key column is null: {', '.join(names)}")
        # 2. A change of the key is recognized only if the old image has all key columns.
        if not names or not all(name in old for name in names):
            return RowKey(primary_key, None, names)
        if all(name in row and old[name] == row[name] for name in names):
            return RowKey(primary_key, None, names)  # the usual case
        old_key = key_text([old[name] for name in names])
        moved_to = key_text([row[name] for name in names if name in row]) or primary_key
        if old_key is None or moved_to == old_key:
            return RowKey(primary_key, None, names)
        # The message key may be the old or the new key. The new key is taken from the image after.
        if primary_key not in (old_key, moved_to):
            raise Unusable(
                f"the message key {primary_key} is neither the key before the change, {old_key}, "
                f"nor the key after it, {moved_to}; to use the key in the images: --key "
                f"{entity_type}={','.join(names)}"
            )
        return RowKey(moved_to, old_key, names)

    def names_in_image(
        self, entity_type: str, table: str, image: Mapping[str, msgspec.Raw]
    ) -> tuple[str, ...]:
        """Return the key columns of a row without a message key; all rows with these columns have the same.

        Raises:
            Unusable: The row has no key.
        """
        found = self._columns(entity_type, table, None, image, {})
        return self._as_noted(entity_type, *found)[0]

    def _whole_row(self, operation: int, before: bytes | None, after: bytes | None) -> RowKey:
        if operation in (UPDATE, DELETE) and before is None:
            raise Unusable(
                "no image of the row before the change, and a table without a key needs it whole; "
                "PostgreSQL sends it with REPLICA IDENTITY FULL"
            )
        # The key is the whole row, so every update that changes a value is a change of the key.
        gone = None if before is None or operation not in (UPDATE, DELETE) else self._text(before)
        if operation == DELETE:
            return RowKey(gone)
        assert after is not None
        came = self._text(completed(after, before, self._unavailable))
        return RowKey(came, None if gone == came else gone)

    def _text(self, image: bytes) -> str:
        row = _members(image)
        if self._unavailable.may_be_in(image):
            for name, value in row.items():
                if self._unavailable.is_one(bytes(value)):
                    raise Unusable(
                        f"the source did not send column {name}, and a table without a key needs the whole "
                        "row; PostgreSQL sends it with REPLICA IDENTITY FULL"
                    )
        return row_text([*row.values()])

    def _columns(
        self,
        entity_type: str,
        table: str,
        message_key: bytes | None,
        row: Mapping[str, msgspec.Raw],
        old: Mapping[str, msgspec.Raw],
    ) -> tuple[tuple[str, ...], Sequence[bytes | msgspec.Raw]]:
        """Return the names of the key columns, and the texts of their values."""
        # 1. The option --key for this table. A delete without an image gets the values from the message key.
        #    The table's name is compared as a whole, so that a table named `a.b` is not the table `b`.
        names = self._given.get(entity_type, ())
        if not names and entity_type.endswith(f".{table}"):
            names = self._given.get(table, ())
        if names and all(name in row for name in names):
            return names, [row[name] for name in names]
        told = None if message_key is None else _told(entity_type, message_key)
        if names:
            return names, _picked(names, told, row)
        # 2. The message key.
        if told is not None:
            _check(entity_type, told, row, old)
            return told.names, told.values
        # 3. The mapping, then --key for all tables. The latter does not apply to a null key, which means that
        #    the table has no key.
        if self._mapping is not None:
            declared = self._mapping.entity_types.get(entity_type)
            names = () if declared is None else declared.key
        if not names and message_key is None:
            names = self._given.get(EVERY_TABLE, ())
        if not names:
            raise Unusable(_without_key(entity_type, message_key))
        return names, _picked(names, None, row)

    def _as_noted(
        self, entity_type: str, names: tuple[str, ...], values: Sequence[bytes | msgspec.Raw]
    ) -> tuple[tuple[str, ...], Sequence[bytes | msgspec.Raw]]:
        """Return the key's columns in the order that is stored in the log.

        Raises:
            Unusable: The log has other key columns.
        """
        noted = self._noted.get(entity_type, names)
        if not names or names == noted:
            return names, values
        # Compare the columns by their newest names: a rename leaves keys unchanged. A row may have the old
        # name, because a file from before the rename may arrive late.
        columns = {
            newest: (name, value)
            for newest, name, value in zip(
                self._newest(entity_type, names), names, values, strict=True
            )
        }
        order = self._newest(entity_type, noted)
        if columns.keys() != {*order}:
            now, then = ",".join(names), ",".join(noted)
            raise Unusable(
                f"the key of {entity_type!r} is {now}, and the log has its rows by {then}: the "
                f"change would not match its row; --key {entity_type}={then} retains the former "
                "key if the images have it; for a renamed column, set renamed_from in --schema; "
                "else ingest the table from a new snapshot as another entity type: --table-map "
                "TABLE=NAME"
            )
        found = [columns[name] for name in order]
        return tuple(name for name, _ in found), [value for _, value in found]

    def _newest(self, entity_type: str, names: tuple[str, ...]) -> list[str]:
        renames = self._renames.get(entity_type, {})
        return [renames.get(name, name) for name in names]


def _without_key(entity_type: str, message_key: bytes | None) -> str:
    cure = (
        f"set its key columns with --key {entity_type}=COL,…, or use the whole row with --keyless "
        f"{entity_type}=whole-row"
    )
    if message_key is None:
        return f"no key: the line has no message key, and no option sets one; {cure}"
    return f"no key: the message key is null, as for a table without a primary key; {cure}"


def _picked(
    names: tuple[str, ...], told: _Told | None, row: Mapping[str, msgspec.Raw]
) -> list[bytes | msgspec.Raw]:
    """Return the texts of some columns: from the message key if it has all of them, else from the image."""
    if told is not None:
        columns = dict(zip(told.names, told.values, strict=False))
        if all(name in columns for name in names):
            return [columns[name] for name in names]
        if not told.names and len(names) == 1:
            return [*told.values]
    absent = [name for name in names if name not in row]
    if absent:
        raise Unusable(f"no key: the image has no column {', '.join(absent)}")
    return [row[name] for name in names]


def _told(entity_type: str, key: bytes) -> _Told | None:
    """Return the content of a message key; None if the key is null.

    Raises:
        Unusable: The layout of the key is not understood.
    """
    if key == _NULL:
        return None
    first = key[:1]
    if first == b"{":
        columns = members(key)
        payload = _payload(columns)
        if payload is not None:
            return _told(entity_type, payload)
        if not columns:
            raise _not_understood(entity_type, "an object without columns", key)
        for value in columns.values():
            if _is_avro(bytes(value)):
                raise _not_understood(entity_type, "in Avro's JSON, where types wrap values", key)
        return _Told(tuple(columns), list(columns.values()))
    if first == b"[":
        raise _not_understood(entity_type, "an array", key)
    if first in (b"t", b"f"):
        raise _not_understood(entity_type, "a boolean", key)
    if first == b'"':
        text = orjson.loads(key)
        if _STRUCT.fullmatch(text):
            raise _not_understood(entity_type, "a Struct as StringConverter writes it", key)
        if text[:1] == "\0":
            raise _not_understood(entity_type, "binary, as with a schema registry", key)
    return _Told((), [key])


def _payload(columns: Mapping[str, msgspec.Raw]) -> bytes | None:
    """Return the key in the payload next to a Connect schema; None if ``payload`` is an ordinary column."""
    payload = columns.get("payload")
    if payload is None or not columns.keys() <= {"schema", "payload"}:
        return None
    schema = columns.get("schema")
    if schema is None:
        return bytes(payload) if bytes(payload)[:1] == b"{" else None
    return bytes(payload) if bytes(schema)[:1] == b"{" or bytes(schema) == _NULL else None


def _is_avro(value: bytes) -> bool:
    if value[:1] != b"{":
        return False
    inner = members(value)
    return len(inner) == 1 and not inner.keys().isdisjoint(_AVRO_TYPES)


def _not_understood(entity_type: str, layout: str, key: bytes) -> Unusable:
    shown = key[:80].decode(errors="replace")
    return Unusable(
        f"the message key {shown} is {layout}, which cannot be interpreted; write keys with "
        f"JsonConverter, or set the key columns: --key {entity_type}=COL,…"
    )


def _check(
    entity_type: str,
    told: _Told,
    row: Mapping[str, msgspec.Raw],
    old: Mapping[str, msgspec.Raw],
) -> None:
    """Reject a message key that contradicts the images, because it belongs to another row.

    Only integers are compared. Other values may differ because the connector masks or encodes the columns of
    images; then the message key is right.
    """
    for name, value in zip(told.names, told.values, strict=False):
        held = row.get(name)
        if held is None or held == value or old.get(name) == value:
            continue
        if _WHOLE.fullmatch(bytes(held)) and _WHOLE.fullmatch(bytes(value)):
            key, image = bytes(value).decode(), bytes(held).decode()
            raise Unusable(
                f"the message key has {name} = {key}, but the image has {name} = {image}; to use "
                f"the image's key: --key {entity_type}={','.join(told.names)}"
            )


def _members(image: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of an image.

    Raises:
        Unusable: The image has a member twice.
    """
    found = members(image)
    if (name := repeated_member(image, found)) is not None:
        raise Unusable(f"an image has member {name!r} twice")
    return found
