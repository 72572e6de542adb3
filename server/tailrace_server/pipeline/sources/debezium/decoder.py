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

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

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
    UPDATE,
    Change,
    place,
    transaction_key,
)
from tailrace_server.pipeline.images import key_text, members
from tailrace_server.pipeline.sources.debezium.announcements import Announcements
from tailrace_server.pipeline.sources.debezium.message import (
    NO_POSITION,
    Incompatible,
    Unusable,
    id_of,
    image_of,
    position_of,
    salvaged_id,
    source_name,
    timestamp_of,
    total_order,
    unwrap,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tailrace_server.pipeline.sources.debezium.message import Message, Source
    from tailrace_server.wal.schema.mapping import SchemaMapping

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""Images of one row above this go to quarantine: no reader could take them in one message."""

_OPERATIONS: Final = {"c": INSERT, "u": UPDATE, "d": DELETE, "r": READ, "t": TRUNCATE}


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
                place=place(NO_POSITION, split.modified_us, split.file, split.block, 0),
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
                raise Unusable(f"not UTF-8 at byte {error.start}") from None
            if not line.strip():
                return None
            message, key, block = unwrap(line)
            if message is None:
                return None
            if message.status is not None and message.op is None:
                return _mark(message, split, number)
            return self._change(message, key, block, split, number)
        except (msgspec.DecodeError, orjson.JSONDecodeError, Unusable, RecursionError) as error:
            transaction_id = id_of(message) if message else salvaged_id(line)
            return Change(
                kind=QUARANTINED,
                place=place(NO_POSITION, split.modified_us, split.file, split.block, number),
                transaction=None if transaction_id is None else transaction_key(transaction_id),
                transaction_id=transaction_id,
                number=1 if isinstance(error, Incompatible) else None,
                reason=str(error) or type(error).__name__,
                raw=line,
                file=split.file,
                block=split.block,
                line=number,
            )

    def _change(
        self, message: Message, key: bytes | None, block: bytes, split: Split, number: int
    ) -> Change:
        operation = _OPERATIONS.get(message.op or "")
        if operation is None:
            raise Unusable(
                "not a Debezium message: no op"
                if message.op is None
                else f"unknown op {message.op!r}"
            )
        source = message.source
        if source is None or not source.table:
            raise Unusable("no source.table")
        entity_type = self._entity_type(source)
        before, after = image_of(message.before), image_of(message.after)
        if len(before or b"") + len(after or b"") > self._options.max_record_bytes:
            raise Unusable(f"images above {self._options.max_record_bytes} bytes")
        primary_key, old_key, names = self._row_keys(operation, entity_type, key, before, after)
        self._check_types(entity_type, after)
        where = place(position_of(source), split.modified_us, split.file, split.block, number)
        transaction_id = id_of(message)
        order = total_order(message)
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
            timestamp=timestamp_of(message, source),
            source=source_name(source),
            columns=columns,
        )

    def _check_types(self, entity_type: str, after: bytes | None) -> None:
        mapping = self._options.mapping
        if mapping is not None and after is not None and entity_type in mapping.entity_types:
            fault = mapping.fault_of(entity_type, members(after))
            if fault is not None:
                raise Incompatible(fault)

    def _entity_type(self, source: Source) -> str:
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
            raise Unusable("no image of the row after the change")
        row = members(image) if image else {}
        old = members(before) if before and operation == UPDATE else {}
        names, values = self._key_columns(entity_type, key, row)
        primary_key = key_text(values)
        if primary_key is None:
            raise Unusable(f"a key column is null: {', '.join(names)}")
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
            raise Unusable(
                f"no key: the message has none, no --key names one for {entity_type!r}, "
                "and there is no column id"
            )
        absent = [name for name in names if name not in row]
        if absent:
            raise Unusable(f"no key: the image has no column {', '.join(absent)}")
        return names, [row[name] for name in names]


def _mark(message: Message, split: Split, number: int) -> Change:
    transaction_id = id_of(message)
    if message.status not in ("BEGIN", "END") or transaction_id is None:
        raise Unusable(
            "transaction metadata without an id, or with a status that is neither BEGIN nor END"
        )
    return Change(
        kind=BEGIN if message.status == "BEGIN" else END,
        place=place(NO_POSITION, split.modified_us, split.file, split.block, number),
        transaction=transaction_key(transaction_id),
        transaction_id=transaction_id,
        number=message.event_count if message.status == "END" else None,
    )
