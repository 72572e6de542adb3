"""The decoder of Debezium's JSON: lines become changes, transaction marks and quarantined messages.

A message is one of::

    {"before": …, "after": …, "source": {…}, "op": "u", …, "transaction": {…}}   an envelope
    {"status": "END", "id": "571", "event_count": 2, …}                          transaction metadata
    {"schema": …, "payload": one of the above}                                   with its schema
    {"key": …, "value": one of the above}                                        with its key
    null, {"key": …, "value": null}, a blank line                                only counted
    a CloudEvent, or a row of ExtractNewRecordState                              see `unwrapped`

A line has one message; several messages or an array of them (`messages_in`); or a key, a TAB and a message
(`key_and_value`).

``key`` and ``value`` may be JSON, or a string with JSON in it. ``op`` is one of c, u, d, r (a row of a
snapshot) and t (truncate). Only the members that identify the row and its transaction are parsed; images are
copied as raw bytes.

The id of a row's transaction is ``transaction.id``, or else the connector's own id (`message.id_of`). Without
either, the message is a transaction of its own. `row_key` describes the keys of rows.

The decoder never raises because of a line's content. A message that cannot be used becomes a QUARANTINED
change. Its reason is the real format of the message, if `refusals` recognizes it, or else the fault in the
message.

Source: Debezium documentation, of each connector.

**Joined messages.** A line may have several objects, with or without white space or commas between them; arrays
of objects; or a key, a TAB and a message, as ``kafka-console-consumer`` prints with ``print.key=true``. An
array may also extend over several lines, with one object in each; then its brackets are lines without content.

To separate messages, only brackets and strings are recognized; nothing is parsed. So a damaged message affects
no other message as long as its brackets are balanced, and memory holds one message in addition to the line.
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
from tailrace_server.pipeline.sources.debezium.envelope_columns import EnvelopeColumns
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

    import pyarrow as pa

    from tailrace_server.pipeline.input.change import FileSplit
    from tailrace_server.pipeline.input.source import DecodedColumns, DecodedMessage
    from tailrace_server.pipeline.sources.debezium.message import DebeziumMessage
    from tailrace_server.pipeline.sources.debezium.row_key import RowKeys
    from tailrace_server.pipeline.sources.debezium.table_identity import (
        TableIdentities,
        TableIdentity,
    )
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

_BOM: Final = b"\xef\xbb\xbf"
_BETWEEN: Final = b" \t\r\n,"
_HEAD: Final = re.compile(rb"\{|\[\s*(?:[\[{]|null|\]|$)")
"""The beginning of a line of several messages. A bracket alone is not enough: log files may have it, too."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def messages_in(line: bytes) -> Iterator[bytes] | None:
    """Yield the messages of a line, and any other text between them; None if the line does not begin so."""
    text = line.removeprefix(_BOM).strip(_BETWEEN)
    if text == b"]":  # the end of an array that began on an earlier line
        return iter(())
    if not _HEAD.match(text) or b"\0" in text:
        return None
    return _cut(text)


def _cut(text: bytes) -> Iterator[bytes]:
    # `depth` counts the open brackets of the present message, 0 between messages. The bracket of an array
    # around messages does not count; `in_array` records it. `end` is the end of the last message or bracket.
    in_array = False
    start = end = depth = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in (b"{", b"["):
            # Inside of a message only the depth matters.
            if depth:
                depth += 1
                continue
            yield from _rest(text[end : token.start()])
            # The outermost array is a wrapper around messages; an array in it is itself a (wrong) message.
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
    """Yield the text between two messages, unless it has only separators."""
    for part in [text] if b'"' in text else text.split(b","):
        if part.strip(_BETWEEN):
            yield part.strip(_BETWEEN)


def key_and_value(line: bytes) -> tuple[bytes, bytes] | None:
    """Return key and message of a line with a TAB between them; None for any other line.

    A JSON string never contains a raw TAB, so the first TAB is the separator.
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
    """Number of the message in the line, from 0."""

    def place(self, position: tuple[int, int, int] = NO_POSITION) -> bytes:
        """Return the place of the message's row, as `FileSplit.place` encodes it."""
        return self.split.place(self.line, position, self.message)


@dataclass(slots=True)
class _SnapshotRun:
    """The current run of a split: snapshot rows of one snapshot without another change between them."""

    number: int = 0
    rows: int = 0
    position: tuple[str | None, tuple[int, int, int]] = None, NO_POSITION
    """Log and position of the run's rows. Rows of another position belong to another snapshot."""

    def end(self) -> None:
        """End the run, because another change or a row of another snapshot follows; the next run begins."""
        if self.rows:
            self.number, self.rows = self.number + 1, 0


class DebeziumDecoder:
    """Decodes the lines of one task, in order.

    The state between lines is the current snapshot run of each split, and the listings of the present
    transaction.
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
        """Store the options; see `Debezium` and `Source.line_decoder`."""
        self.keys = keys
        self.rows_before = RowsBefore(whole_before)
        self.identities = identities
        self._declared = DeclaredTypes(mapping, unavailable)
        self.record_bytes_max = record_bytes_max
        self._runs: dict[FileSplit, _SnapshotRun] = {}
        self._file_shapes: dict[FileSplit, str] = {}
        self._announcements = Announcements()

    def __call__(
        self, split: FileSplit, number: int, line: bytes
    ) -> DecodedMessage | Iterable[DecodedMessage]:
        """Return the decoded message or messages of a line; see `DecodeLine`."""
        found = self._decoded(_MessagePlace(split, number), line)
        # A line that is not a message may have several. Check this only now, because most lines have one.
        if isinstance(found, Change) and found.kind == QUARANTINED:
            # 1. A key, a TAB and a message. Two messages divided by a TAB are handled below.
            pair = key_and_value(line)
            if pair is not None and not _is_message(pair[0]):
                return self._decoded(
                    _MessagePlace(split, number), b'{"key":%b,"value":%b}' % pair, line
                )
            # 2. Several messages. If the first is the whole line, it is one damaged message: keep its reason.
            several = messages_in(line)
            first = None if several is None else next(several, b"")
            if several is not None and first != line.strip():
                texts = itertools.chain((first,) if first else (), several)
                return self._several(split, number, texts)
        return found

    def columns(
        self, split: FileSplit, number: int, lines: pa.BinaryArray
    ) -> DecodedColumns | None:
        """Decode the usual lines by columns; see `ColumnDecoder`."""
        return EnvelopeColumns(self).decode(split, number, lines)

    def row_came(self, split: FileSplit) -> None:
        """End the run of snapshot rows, if there is one."""
        if split in self._runs:
            self._runs[split].end()

    def is_plain(self, table: TableIdentity) -> bool:
        """Return True if images of a table are taken as they are."""
        return not self.keys.counts(table.entity_type) and not self._declared.concern(
            table.entity_type
        )

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
        """Decode one message; ``given`` is its text in the input if that differs from ``text``."""
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
            # The transaction ids of another connector mean nothing here.
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
        """Yield a QUARANTINED change for each table whose rows a statement changed."""
        try:
            found = decode_schema_change(message)
        except msgspec.DecodeError as error:
            reason = f"schema change: the message cannot be interpreted ({error})"
            yield quarantined(at.split, at.line, text, reason, message=at.message)
            return
        for effect in effects_of(found):
            if effect.renamed is None or not self.identities.keeps(effect.table, effect.renamed):
                yield quarantined(
                    at.split, at.line, text, effect.reason, message=at.message
                )._replace(
                    table=full_name(effect.table),
                    source=None if found.source is None else source_name(found.source),
                )

    def _reason(self, error: Exception, at: _MessagePlace, text: bytes) -> str:
        """Return the reason why a message cannot be used: its real format if recognized, else its fault."""
        if isinstance(error, Unusable) and not isinstance(error, NotDebezium):
            return str(error)
        # Only the first line of a file has its magic bytes; its format applies to all lines of the file.
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
        # 1. Identify table and key. Every check here raises for a row that must go to quarantine.
        identity = self.identities.of(source)
        entity_type = identity.entity_type
        before, after = images_of(message)
        if key is None:
            key = document_key(message, after or before)
        if len(before or b"") + len(after or b"") > self.record_bytes_max:
            raise Unusable(f"images above {self.record_bytes_max} bytes")
        row = self.keys.of(operation, entity_type, identity.short, key, before, after)
        if operation == READ and source.snapshot == "incremental" and self.keys.counts(entity_type):
            raise Unusable(
                "a row of an incremental snapshot does not say whether it is counted already; "
                "ingest the table into a new catalog, from an initial snapshot"
            )
        # 2. Check values against declared types; replace values of the before-image that are wrong or fillers.
        fitting = self._declared.check(entity_type, block, before, after)
        # The whole image before is the key of a counted row, so it must stay as it was sent.
        if not self.keys.counts(entity_type):
            before = self.rows_before.known(
                operation, entity_type, source.connector, block, row, fitting
            )
        # 3. Find position and transaction. Snapshot rows have no transaction: they are numbered in runs, which
        #    end at any other change, as the order of the two must be preserved.
        split = at.split
        position = position_of(source)
        # A row of an incremental snapshot has the stream's present position, which is not the row's.
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
        if operation != READ:
            self.row_came(split)
        # Each snapshot row needs its listing: snapshots are cut into versions later, at any row.
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
            key_names=self.keys.names_text(entity_type, row.names),
        )

    def _entity_type_of(self, message: DebeziumMessage | None) -> str | None:
        """Return the entity type of a row that cannot be used, or its table's name; None if unknown."""
        source = None if message is None else message.source
        if source is None or not (source.table or source.collection):
            return None
        try:
            return self.identities.of(source).entity_type
        except Unusable:
            levels = (
                source.db or source.keyspace,
                source.schema,
                source.table or source.collection,
            )
            return ".".join(level for level in levels if level)


def _is_message(text: bytes) -> bool:
    """Return True if a JSON value before a TAB is a message, not the key of the message after the TAB."""
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
