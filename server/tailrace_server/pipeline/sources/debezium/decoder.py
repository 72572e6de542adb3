"""Debezium's JSON as changes, transaction marks and messages for quarantine.

A message is one of::

    {"before": …, "after": …, "source": {…}, "op": "u", …, "transaction": {…}}   an envelope
    {"status": "END", "id": "571", "event_count": 2, …}                          transaction metadata
    {"schema": …, "payload": one of the above}                                   with its schema
    {"key": …, "value": one of the above}                                        with its key
    null, {"key": …, "value": null}, a blank line                                only counted
    an envelope that was taken apart                                             `unwrapped`

A line is a message, or several (`messages_in`), an array, a key with a TAB behind it (`key_and_value`).

``key`` and ``value`` may be JSON or a string that holds JSON. ``op`` is one of c, u, d, r (a
snapshot's row) and t (truncate). Images are cut out raw; nothing is parsed but what names the row
and its transaction.

The transaction is named by ``transaction.id``, else by what the connector calls one (`message.id_of`); else the
message is a transaction of its own. `row_key` says what names a row.

Nothing here raises for the content of a line. A message that cannot be used becomes a QUARANTINED row with the
reason, which is the shape of what came in its place, if `refusals` knows it.

Source: Debezium documentation, of each connector.

**Joined messages.** A line may hold objects one after the other, with or without white space or commas between
them; arrays of objects; and a key, a TAB and a message, as ``kafka-console-consumer`` prints with
``print.key=true``. An array may also lie over several lines, an object in each; its brackets are lines without
content then.

Brackets and strings are distinguished, nothing is parsed. So a message that is damaged costs only itself, as
long as its brackets are balanced, and memory holds one message beside the line.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import orjson

from tailrace_server.pipeline.input.change import (
    BEGIN,
    CHANGE,
    DELETE,
    END,
    INSERT,
    LINE,
    LINE_MESSAGES,
    NO_POSITION,
    QUARANTINED,
    READ,
    SNAPSHOT,
    TRUNCATE,
    UPDATE,
    Change,
    quarantined,
)
from tailrace_server.pipeline.sources.debezium.column_types import Announcements, DeclaredTypes
from tailrace_server.pipeline.sources.debezium.message import (
    id_of,
    log_of,
    position_of,
    salvaged_id,
    snapshot_marks,
    source_name,
    timestamp_of,
    total_order,
    unwrap,
)
from tailrace_server.pipeline.sources.debezium.names import full_name, transaction_key
from tailrace_server.pipeline.sources.debezium.refusals import (
    Incompatible,
    NoRow,
    NotDebezium,
    SchemaMessage,
    Unusable,
    file_shape,
    shape_of,
)
from tailrace_server.pipeline.sources.debezium.row_images import RowsBefore, document_key, images_of
from tailrace_server.pipeline.sources.debezium.statements import decode_schema_change, effects_of
from tailrace_server.pipeline.sources.debezium.table_identity import OtherConnector
from tailrace_server.wal.record.json_check import json_fault
from tailrace_server.wal.record.unavailable import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tailrace_server.pipeline.input.change import FileSplit
    from tailrace_server.pipeline.input.source import DecodedMessage
    from tailrace_server.pipeline.sources.debezium.message import DebeziumMessage
    from tailrace_server.pipeline.sources.debezium.row_key import RowKeys
    from tailrace_server.pipeline.sources.debezium.table_identity import TableIdentities
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

_BOM: Final = b"\xef\xbb\xbf"
_BETWEEN: Final = b" \t\r\n,"
_HEAD: Final = re.compile(rb"\{|\[\s*(?:[\[{]|null|\]|$)")
"""How a line of several messages begins. A line of a log may begin with a bracket, too."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def messages_in(line: bytes) -> Iterator[bytes] | None:
    """Return the messages of a line and the text between them; None for a line that is not of that kind."""
    text = line.removeprefix(_BOM).strip(_BETWEEN)
    if text == b"]":  # the end of an array that began on a line before
        return iter(())
    if not _HEAD.match(text) or b"\0" in text:
        return None
    return _cut(text)


def _cut(text: bytes) -> Iterator[bytes]:
    in_array = False
    start = end = depth = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in (b"{", b"["):
            if depth:
                depth += 1
                continue
            yield from _rest(text[end : token.start()])
            if sign == b"[" and not in_array:
                in_array, end = True, token.end()
            else:
                start, depth = token.start(), 1
        elif sign in (b"}", b"]"):
            if depth > 1:
                depth -= 1
            elif depth:
                depth, end = 0, token.end()
                yield text[start:end]
            elif sign == b"]" and in_array:
                yield from _rest(text[end : token.start()])
                in_array, end = False, token.end()
    yield from _rest(text[start:] if depth else text[end:])


def _rest(text: bytes) -> Iterator[bytes]:
    """Yield the text between two messages, unless it only divides them."""
    for part in [text] if b'"' in text else text.split(b","):
        if part.strip(_BETWEEN):
            yield part.strip(_BETWEEN)


def key_and_value(line: bytes) -> tuple[bytes, bytes] | None:
    """Return key and message of a line that has a TAB between them; None for any other line.

    A raw TAB is never within a string of JSON, so the first one divides.
    """
    key, tab, value = line.partition(b"\t")
    if not tab or value.strip()[:1] not in (b"{", b"n"):
        return None
    try:
        orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    return key.strip(), value.strip()


_OPERATIONS: Final = {"c": INSERT, "u": UPDATE, "d": DELETE, "r": READ, "t": TRUNCATE}


class _MessagePlace(NamedTuple):
    """The place of a message in the input."""

    split: FileSplit
    line: int
    message: int = 0
    """Its number in the line, from 0."""

    def place(self, position: tuple[int, int, int] = NO_POSITION) -> bytes:
        """Return the place of its row."""
        return self.split.place(self.line, position, self.message)


@dataclass(slots=True)
class _SnapshotRun:
    """Snapshot rows of a split with no other change between them."""

    number: int = 0
    rows: int = 0
    position: tuple[str | None, tuple[int, int, int]] = None, NO_POSITION
    """Of its rows: those of another one are of another snapshot."""

    def end(self) -> None:
        """Begin the next run, as another change or another snapshot has come."""
        if self.rows:
            self.number, self.rows = self.number + 1, 0


class DebeziumDecoder:
    """Decodes the lines of one task, in order.

    Keeps which run of snapshot rows each split is in, and which columns a transaction has announced.
    """

    def __init__(
        self,
        keys: RowKeys,
        *,
        identities: TableIdentities,
        mapping: SchemaMapping | None = None,
        unavailable: Unavailable = DEFAULT,
        record_bytes_max: int,
        whole_before: Collection[str] = (),
    ) -> None:
        """Take the options; see `Debezium` and `Source.line_decoder`."""
        self._keys = keys
        self._rows_before = RowsBefore(whole_before)
        self._identities = identities
        self._declared = DeclaredTypes(mapping, unavailable)
        self._record_bytes_max = record_bytes_max
        self._runs: dict[FileSplit, _SnapshotRun] = {}
        self._file_shapes: dict[FileSplit, str] = {}
        self._announcements = Announcements()

    def decode(
        self, split: FileSplit, number: int, line: bytes
    ) -> DecodedMessage | Iterable[DecodedMessage]:
        """Return what a line holds, as `DecodeLine` says."""
        found = self._decoded(_MessagePlace(split, number), line)
        # What cannot be used may be several messages. Asked only then, as most lines are one.
        if isinstance(found, Change) and found.kind == QUARANTINED:
            pair = key_and_value(line)
            if pair is not None and not _is_message(pair[0]):
                return self._decoded(
                    _MessagePlace(split, number), b'{"key":%b,"value":%b}' % pair, line
                )
            several = messages_in(line)
            first = None if several is None else next(several, b"")
            if several is not None and first != line.strip():
                texts = itertools.chain((first,) if first else (), several)
                return self._several(split, number, texts)
        return found

    def _several(
        self, split: FileSplit, number: int, texts: Iterable[bytes]
    ) -> Iterator[DecodedMessage]:
        for index, text in enumerate(texts):
            if index < LINE_MESSAGES:
                found = self._decoded(_MessagePlace(split, number, index), text)
                if isinstance(found, list):
                    yield from found
                else:
                    yield found
            else:
                reason = f"more than {LINE_MESSAGES} messages in a line"
                yield quarantined(split, number, text, reason, message=LINE_MESSAGES - 1)

    def _decoded(
        self, at: _MessagePlace, text: bytes, given: bytes | None = None
    ) -> DecodedMessage | list[DecodedMessage]:
        """Return what one message holds; ``given`` is its text in the input, if that differs."""
        message = None
        try:
            text.decode()
            if not text.strip():
                return None
            message, key, block = unwrap(text)
            if message is None:
                return None
            if message.status is not None and message.op is None:
                return _mark(message, at)
            return self._change(message, key, block, at)
        except SchemaMessage as found:
            return [found.kind, *self._effects(found.text, at, text)]
        except NoRow as found:
            return found.kind
        except (
            *(msgspec.DecodeError, orjson.JSONDecodeError, UnicodeDecodeError),
            *(Unusable, RecursionError),
        ) as error:
            # What another connector calls a transaction is none of this one's.
            other = isinstance(error, OtherConnector)
            transaction_id = None if other else id_of(message) if message else salvaged_id(text)
            return quarantined(
                at.split,
                at.line,
                text if given is None else given,
                self._reason(error, at, text),
                transaction=None if transaction_id is None else transaction_key(transaction_id),
                transaction_id=transaction_id,
                entity_type=self._entity_type_of(message),
                incompatible=isinstance(error, Incompatible),
                message=at.message,
            )

    def _effects(self, message: bytes, at: _MessagePlace, text: bytes) -> Iterator[Change]:
        """Yield a line for quarantine for each table whose rows a statement has changed."""
        try:
            found = decode_schema_change(message)
        except msgspec.DecodeError as error:
            reason = f"schema change: the message is not understood ({error})"
            yield quarantined(at.split, at.line, text, reason, message=at.message)
            return
        for effect in effects_of(found):
            if effect.renamed is None or not self._identities.keeps(effect.table, effect.renamed):
                yield quarantined(
                    at.split, at.line, text, effect.reason, message=at.message
                )._replace(
                    table=full_name(effect.table),
                    source=None if found.source is None else source_name(found.source),
                )

    def _reason(self, error: Exception, at: _MessagePlace, text: bytes) -> str:
        """Return why a message cannot be used: the shape of what came in its place, or what is wrong in it."""
        if isinstance(error, Unusable) and not isinstance(error, NotDebezium):
            return str(error)
        # Only the head of a file has its magic bytes; the lines behind it are what its head says.
        if (at.line, at.split.block) == (1, 0) and (shape := file_shape(text)):
            self._file_shapes[at.split] = shape
        shape = self._file_shapes.get(at.split) or shape_of(text)
        if shape is None and isinstance(error, UnicodeDecodeError):
            shape = f"not UTF-8 at byte {error.start}"
        return shape or json_fault(text, error) or type(error).__name__

    def _change(
        self,
        message: DebeziumMessage,
        key: bytes | None,
        block: bytes,
        at: _MessagePlace,
    ) -> Change:
        operation = _OPERATIONS.get(message.op or "")
        if operation is None:
            raise Unusable(
                "not a Debezium message: no op"
                if message.op is None
                else f"unknown op {message.op!r}"
            )
        source = message.source
        if source is None:
            raise Unusable("no source.table")
        identity = self._identities.of(source)
        entity_type = identity.entity_type
        before, after = images_of(message)
        if key is None:
            key = document_key(message, after or before)
        if len(before or b"") + len(after or b"") > self._record_bytes_max:
            raise Unusable(f"images above {self._record_bytes_max} bytes")
        row = self._keys.of(operation, entity_type, identity.short, key, before, after)
        if (
            operation == READ
            and source.snapshot == "incremental"
            and self._keys.counts(entity_type)
        ):
            raise Unusable(
                "a row of an incremental snapshot does not say whether it is counted already; "
                "ingest the table into a new catalog, from an initial snapshot"
            )
        fitting = self._declared.check(entity_type, block, before, after)
        # A row that is counted is named by all of its image before.
        if not self._keys.counts(entity_type):
            before = self._rows_before.known(
                operation, entity_type, source.connector, block, row, fitting
            )
        split = at.split
        position = position_of(source)
        # Of an incremental snapshot the position is that of the stream meanwhile, not of the row.
        log = None if source.snapshot == "incremental" else log_of(source)
        transaction_id = id_of(message)
        order = total_order(message)
        if operation == READ:
            run = self._runs.setdefault(split, _SnapshotRun())
            if run.position != (log, position):
                run.end()
                run.position = log, position
            order, transaction_id = run.rows, None
            run.rows += 1
            transaction = f"{SNAPSHOT}{split.file}\0{split.block}\0{run.number}"
        elif transaction_id is not None:
            transaction = transaction_key(transaction_id)
        else:
            transaction = f"{LINE}{split.file}\0{split.block}\0{at.line}\0{at.message}"
        if operation != READ and split in self._runs:
            self._runs[split].end()
        # A snapshot is cut into versions later, so that each of its rows has to say.
        of_run = None if operation == READ else (split, transaction)
        columns = self._announcements.of(entity_type, block, row.names, of_run) if block else None
        return Change(
            kind=CHANGE,
            place=at.place(position),
            transaction=transaction,
            transaction_id=transaction_id,
            total_order=order,
            entity_type=entity_type,
            operation=operation,
            primary_key=row.primary_key,
            old_key=row.old_key,
            before=before,
            after=after,
            timestamp=timestamp_of(message, source),
            source=identity.connector,
            table=identity.table,
            columns=columns,
            log=log,
            number=None if operation != READ or log is None else snapshot_marks(source),
            key_names=self._keys.names_text(entity_type, row.names),
        )

    def _entity_type_of(self, message: DebeziumMessage | None) -> str | None:
        """Return the entity type of a row that cannot be used; its table's name where it has none here."""
        source = None if message is None else message.source
        if source is None or not (source.table or source.collection):
            return None
        try:
            return self._identities.of(source).entity_type
        except Unusable:
            levels = (
                source.db or source.keyspace,
                source.schema,
                source.table or source.collection,
            )
            return ".".join(level for level in levels if level)


def _is_message(text: bytes) -> bool:
    """Return True if a JSON value before a TAB is a message by itself, not the key of the one behind it."""
    try:
        message = unwrap(text)[0]
        return message is not None and (message.source is not None or message.op is None)
    except NoRow as found:
        return found.kind != "heartbeat"  # the key may be a column ts_ms
    except (msgspec.DecodeError, orjson.JSONDecodeError, Unusable, RecursionError):
        return False


def _mark(message: DebeziumMessage, at: _MessagePlace) -> Change:
    transaction_id = id_of(message)
    if message.status not in ("BEGIN", "END") or transaction_id is None:
        raise Unusable(
            "transaction metadata without an id, or with a status that is neither BEGIN nor END"
        )
    return Change(
        kind=BEGIN if message.status == "BEGIN" else END,
        place=at.place(),
        transaction=transaction_key(transaction_id),
        transaction_id=transaction_id,
        number=message.event_count if message.status == "END" else None,
    )
