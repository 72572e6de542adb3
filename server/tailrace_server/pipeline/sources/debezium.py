"""Debezium's JSON, one message a line, as changes, transaction marks and lines for quarantine.

A line is one of::

    {"before": …, "after": …, "source": {…}, "op": "u", …, "transaction": {…}}   an envelope
    {"status": "END", "id": "571", "event_count": 2, …}                          transaction metadata
    {"schema": …, "payload": one of the above}                                   with its schema
    {"key": …, "value": one of the above}                                        with its key
    null, {"key": …, "value": null}, a blank line                                counted, else ignored

``key`` and ``value`` may be JSON or a string that holds JSON. ``op`` is one of c, u, d, r (a
snapshot's row) and t (truncate). Images are cut out raw; nothing is parsed but what names the row
and its transaction.

The transaction is that of ``transaction.id``, else PostgreSQL's ``txId``, else MySQL's ``gtid`` or
(``file``, ``pos``), else the line alone. The primary key is that of the message key, else of the
columns given for the table, else of a column ``id``.

Nothing here raises for what a line holds: a line that cannot be used becomes a QUARANTINED row with the reason.

Source: Debezium documentation, PostgreSQL and MySQL connectors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import orjson

from tailrace_server.pipeline.changes import (
    BEGIN,
    CHANGE,
    DELETE,
    END,
    INSERT,
    LINE,
    QUARANTINED,
    READ,
    SNAPSHOT,
    SPLIT,
    TRUNCATE,
    UNORDERED,
    UPDATE,
    Change,
    place,
    transaction_key,
)
from tailrace_server.pipeline.images import key_text, members
from tailrace_server.pipeline.sources.debezium_schema import Announcements

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tailrace_server.wal.schema_mapping import SchemaMapping

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""Images of one row above this go to quarantine: no reader could take them in one message."""

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_NO_POSITION: Final = (0, 0, 0)
_DIGITS_AT_END = re.compile(r"(\d{1,18})$", re.ASCII)
_NULL: Final = b"null"
_OPERATIONS: Final = {"c": INSERT, "u": UPDATE, "d": DELETE, "r": READ, "t": TRUNCATE}
_SALVAGE: Final = (
    re.compile(rb'"transaction"\s*:\s*\{[^{}]*?"id"\s*:\s*"((?:[^"\\]|\\.)+)"'),
    re.compile(rb'"txId"\s*:\s*"?(\w+)'),
    re.compile(rb'"gtid"\s*:\s*"([^"\\]+)"'),
)


@dataclass(frozen=True, slots=True)
class DebeziumOptions:
    """How lines are read."""

    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Entity type, or its last part → key columns, for tables whose messages come without a key."""
    long_entity_types: bool = False
    """Name entity types ``schema.table`` instead of ``table``."""
    max_record_bytes: int = MAX_RECORD_BYTES
    mapping: SchemaMapping | None = None
    """Declared types; values that they cannot hold go to quarantine."""


class Split(NamedTuple):
    """Where lines come from: a file, or the part of it that begins at byte ``block``."""

    file: str
    block: int = 0
    modified_us: int = 0


class _Source(msgspec.Struct):
    """The parts of the source block that name the row and its place."""

    connector: str | None = None
    name: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    ts_us: _Int64 | None = None
    ts_ms: _Int64 | None = None
    txId: int | str | None = None
    lsn: _Natural | None = None
    sequence: str | None = None
    gtid: str | None = None
    file: str | None = None
    pos: _Natural | None = None
    row: _Natural | None = None


class _Transaction(msgspec.Struct):
    """The transaction block of an envelope. Some converters write its numbers as strings."""

    id: str | None = None
    total_order: int | str | None = None


class _Message(msgspec.Struct):
    """All shapes of a line at once; absent members stay empty."""

    schema: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()
    key: msgspec.Raw = msgspec.Raw()
    value: msgspec.Raw = msgspec.Raw()
    op: str | None = None
    before: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()
    source: _Source | None = None
    transaction: _Transaction | None = None
    ts_ms: _Int64 | None = None
    status: str | None = None
    id: msgspec.Raw = msgspec.Raw()
    event_count: _Natural | None = None


class _Unusable(ValueError):
    """What is said of a line that goes to quarantine."""


class _Incompatible(_Unusable):
    """A value that its declared type cannot hold."""


_decode_message = msgspec.json.Decoder(_Message).decode


class DebeziumDecoder:
    """Decodes the lines of splits, one split after the other.

    Keeps per split the number of its lines so far, so feed the lines of a split in order. Runs in
    tasks and in the driver; holds no row.
    """

    def __init__(
        self, options: DebeziumOptions, skip: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Take the options.

        Args:
            options: How lines are read.
            skip: (file, block) → number of lines at its head that were consumed by an earlier run; they are
                counted in the SPLIT row as ignored and not decoded.
        """
        self._options = options
        self._skip = skip or {}
        self._lines: dict[Split, int] = {}
        self._ignored: dict[Split, int] = {}
        self._snapshot_rows: dict[Split, int] = {}
        self._announcements = Announcements()

    def feed(self, split: Split, lines: Iterable[bytes]) -> Iterator[Change]:
        """Yield what lines hold, in order; a blank, a null and a tombstone give nothing."""
        number = self._lines.get(split, 0)
        skip = self._skip.get((split.file, split.block), 0)
        ignored = 0
        for line in lines:
            number += 1
            if number <= skip:
                ignored += 1
                continue
            change = self._line(split, number, line)
            if change is None:
                ignored += 1
            else:
                yield change
        self._lines[split] = number
        self._ignored[split] = self._ignored.get(split, 0) + ignored

    def finish(self) -> Iterator[Change]:
        """Yield one SPLIT row for each split that was fed."""
        for split, lines in self._lines.items():
            yield Change(
                kind=SPLIT,
                place=place(_NO_POSITION, split.modified_us, split.file, split.block, 0),
                number=self._ignored[split],
                file=split.file,
                block=split.block,
                line=lines,
            )

    def _line(self, split: Split, number: int, line: bytes) -> Change | None:
        message = None
        try:
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise _Unusable(f"not UTF-8 at byte {error.start}") from None
            if not line.strip():
                return None
            message, key, block = _unwrap(line)
            if message is None:
                return None
            if message.status is not None and message.op is None:
                return _mark(message, split, number)
            return self._change(message, key, block, split, number)
        except (msgspec.DecodeError, orjson.JSONDecodeError, _Unusable, RecursionError) as error:
            transaction_id = _id_of(message) if message else _salvage(line)
            return Change(
                kind=QUARANTINED,
                place=place(_NO_POSITION, split.modified_us, split.file, split.block, number),
                transaction=None if transaction_id is None else transaction_key(transaction_id),
                transaction_id=transaction_id,
                number=1 if isinstance(error, _Incompatible) else None,
                reason=str(error) or type(error).__name__,
                raw=line,
                file=split.file,
                block=split.block,
                line=number,
            )

    def _change(
        self, message: _Message, key: bytes | None, block: bytes, split: Split, number: int
    ) -> Change:
        operation = _OPERATIONS.get(message.op or "")
        if operation is None:
            raise _Unusable(
                "not a Debezium message: no op"
                if message.op is None
                else f"unknown op {message.op!r}"
            )
        source = message.source
        if source is None or not source.table:
            raise _Unusable("no source.table")
        entity_type = self._entity_type(source)
        before, after = _image(message.before), _image(message.after)
        if len(before or b"") + len(after or b"") > self._options.max_record_bytes:
            raise _Unusable(f"images above {self._options.max_record_bytes} bytes")
        primary_key, old_key, names = self._row_keys(operation, entity_type, key, before, after)
        self._check_types(entity_type, after)
        where = place(_position(source), split.modified_us, split.file, split.block, number)
        transaction_id = _id_of(message)
        order = _total_order(message)
        if operation == READ:
            order = self._snapshot_rows.get(split, 0)
            self._snapshot_rows[split] = order + 1
            transaction, transaction_id = f"{SNAPSHOT}{split.file}\0{split.block}", None
        elif transaction_id is not None:
            transaction = transaction_key(transaction_id)
        else:
            transaction = f"{LINE}{split.file}\0{split.block}\0{number}"
        # A snapshot is cut into versions later, so that each of its rows has to say.
        once = None if operation == READ else transaction
        columns = self._announcements.of(entity_type, block, names, once) if block else None
        return Change(
            kind=CHANGE,
            place=where,
            transaction=transaction,
            transaction_id=transaction_id,
            total_order=order,
            entity_type=entity_type,
            operation=operation,
            primary_key=primary_key,
            old_key=old_key,
            before=before,
            after=after,
            timestamp=_timestamp(message, source),
            source=_source_name(source),
            columns=columns,
        )

    def _check_types(self, entity_type: str, after: bytes | None) -> None:
        mapping = self._options.mapping
        if mapping is not None and after is not None and entity_type in mapping.entity_types:
            fault = mapping.fault_of(entity_type, members(after))
            if fault is not None:
                raise _Incompatible(fault)

    def _entity_type(self, source: _Source) -> str:
        assert source.table is not None
        if not self._options.long_entity_types:
            return source.table
        space = source.schema or source.db
        return f"{space}.{source.table}" if space else source.table

    def _row_keys(
        self,
        operation: int,
        entity_type: str,
        key: bytes | None,
        before: bytes | None,
        after: bytes | None,
    ) -> tuple[str | None, str | None, tuple[str, ...]]:
        """Return the row's key, its key before where the change moved the row, and the key's columns."""
        if operation == TRUNCATE:
            return None, None, ()
        image = before if operation == DELETE else after
        if image is None and operation != DELETE:
            raise _Unusable("no image of the row after the change")
        row = members(image) if image else {}
        old = members(before) if before and operation == UPDATE else {}
        names, values = self._key_columns(entity_type, key, row)
        primary_key = key_text(values)
        if primary_key is None:
            raise _Unusable(f"a key column is null: {', '.join(names)}")
        if not names or not all(name in old for name in names):
            return primary_key, None, names
        old_key = key_text([old[name] for name in names])
        if operation != UPDATE or old_key in (None, primary_key):
            return primary_key, None, names
        # The message key may be that of the row before: what the row is after stands in its image.
        moved_to = key_text([row[name] for name in names if name in row]) or primary_key
        if moved_to == old_key:
            return primary_key, None, names
        return moved_to, old_key, names

    def _key_columns(
        self, entity_type: str, key: bytes | None, row: Mapping[str, msgspec.Raw]
    ) -> tuple[tuple[str, ...], list[bytes | msgspec.Raw]]:
        """Return names (empty where the key is no object) and texts of the key's columns."""
        if key is not None:
            if key[:1] != b"{":
                return (), [key]
            columns = members(key)
            if "payload" in columns and columns.keys() <= {"schema", "payload"}:
                return self._key_columns(entity_type, bytes(columns["payload"]), row)
            if columns:
                return tuple(columns), list(columns.values())
        given = self._options.keys
        names = given.get(entity_type) or given.get(entity_type.rpartition(".")[2], ())
        if not names and self._options.mapping is not None:
            declared = self._options.mapping.entity_types.get(entity_type)
            names = () if declared is None else declared.key
        if not names and "id" in row:
            names = ("id",)
        if not names:
            raise _Unusable(
                f"no key: the message has none, no --key names one for {entity_type!r}, "
                "and there is no column id"
            )
        absent = [name for name in names if name not in row]
        if absent:
            raise _Unusable(f"no key: the image has no column {', '.join(absent)}")
        return names, [row[name] for name in names]


def _unwrap(line: bytes) -> tuple[_Message | None, bytes | None, bytes]:
    """Return the innermost message of a line, its message key, and the schema block that stands beside it.

    None is no message, for a line that says nothing, and no key; no block is empty.
    """
    key = None
    block = b""
    text: bytes = line
    for _ in range(4):  # {"key", "value"} around {"schema", "payload"}, each perhaps as a string
        if text.strip() == _NULL:
            return None, key, block
        message = _decode_message(text)
        if message.op is not None or message.status is not None:
            return message, key, block
        block = bytes(message.schema)
        inner = message.value if _given(message.value) else message.payload
        if not _given(inner):
            raise _Unusable("not a Debezium message: no op, no payload, no value")
        if _given(message.key) and key is None and _given(message.value):
            given = _unquote(bytes(message.key))
            key = None if given == _NULL else given
        text = _unquote(bytes(inner))
    raise _Unusable("not a Debezium message: wrapped too deep")


def _given(raw: msgspec.Raw) -> bool:
    return len(bytes(raw)) > 0


def _unquote(text: bytes) -> bytes:
    """Return the JSON inside a JSON string; text that is no string, or none that holds JSON, as it is."""
    if text[:1] != b'"':
        return text
    inner = orjson.loads(text).encode()
    return inner if inner[:1] in (b"{", b"n") else text


def _image(raw: msgspec.Raw) -> bytes | None:
    image = bytes(raw)
    if not image or image == _NULL:
        return None
    if image[:1] != b"{":
        raise _Unusable("an image is not a JSON object")
    return image


def _mark(message: _Message, split: Split, number: int) -> Change:
    transaction_id = _id_of(message)
    if message.status not in ("BEGIN", "END") or transaction_id is None:
        raise _Unusable(
            "transaction metadata without an id, or with a status that is neither BEGIN nor END"
        )
    return Change(
        kind=BEGIN if message.status == "BEGIN" else END,
        place=place(_NO_POSITION, split.modified_us, split.file, split.block, number),
        transaction=transaction_key(transaction_id),
        transaction_id=transaction_id,
        number=message.event_count if message.status == "END" else None,
    )


def _id_of(message: _Message) -> str | None:
    """Return what the source calls the transaction of a message; None where it does not say."""
    if message.op is None and message.status is not None:
        text = bytes(message.id)
        return str(orjson.loads(text)) if text and text != _NULL else None
    if message.transaction is not None and message.transaction.id:
        return message.transaction.id
    source = message.source
    if source is None:
        return None
    if source.txId is not None:
        return str(source.txId)
    if source.gtid:
        return source.gtid
    if source.file is not None and source.pos is not None:
        return f"file={source.file},pos={source.pos}"  # as Debezium itself writes it
    return None


def _salvage(line: bytes) -> str | None:
    """Look for the transaction id in a line that is no JSON, so that it counts towards END."""
    for pattern in _SALVAGE:
        found = pattern.search(line)
        if found:
            return found[1].decode(errors="replace")
    return None


def _total_order(message: _Message) -> int:
    order = message.transaction.total_order if message.transaction else None
    if order is None:
        return UNORDERED
    try:
        number = int(order)
    except ValueError:
        raise _Unusable(f"transaction.total_order is not a number: {order!r}") from None
    if not 0 <= number < 2**63:
        raise _Unusable(f"transaction.total_order is out of range: {number}")
    return number


def _position(source: _Source) -> tuple[int, int, int]:
    """Return the source position of a row, in commit order.

    PostgreSQL sends transactions in the order of their commits, which the LSN of a row does not
    show: a transaction that began earlier may commit later. ``sequence`` holds the last commit
    before the row's own, so (last commit, LSN) does. Where it is missing the LSN stands for it: it
    lies above every earlier commit.
    """
    if source.lsn is not None:
        return _last_commit(source.sequence) or source.lsn, source.lsn, 0
    if source.file is not None and source.pos is not None:
        digits = _DIGITS_AT_END.search(source.file)
        return int(digits[1]) if digits else 0, source.pos, source.row or 0
    return _NO_POSITION


def _last_commit(sequence: str | None) -> int:
    if not sequence:
        return 0
    try:
        values = orjson.loads(sequence)
        commit = int(values[0]) if isinstance(values, list) and values and values[0] else 0
    except (ValueError, TypeError):
        return 0
    return commit if 0 <= commit < 2**63 else 0


def _timestamp(message: _Message, source: _Source) -> int | None:
    """Return when the source made the change, µs."""
    if source.ts_us is not None:
        return source.ts_us
    millis = source.ts_ms if source.ts_ms is not None else message.ts_ms
    if millis is None:
        return None
    return millis * 1000 if abs(millis) < 2**53 else None


def _source_name(source: _Source) -> str | None:
    parts = [part for part in (source.connector, source.name) if part]
    return ":".join(parts) or None
