"""Debezium's JSON, one message a line, as changes, transaction marks and lines for quarantine.

A line is one of::

    {"before": …, "after": …, "source": {…}, "op": "u", …, "transaction": {…}}   an envelope
    {"status": "END", "id": "571", "event_count": 2, …}                          transaction metadata
    {"schema": …, "payload": one of the above}                                   with its schema
    {"key": …, "value": one of the above}                                        with its key
    null, {"key": …, "value": null}, a blank line                                only counted

``key`` and ``value`` may be JSON or a string that holds JSON. ``op`` is one of c, u, d, r (a
snapshot's row) and t (truncate). Images are cut out raw; nothing is parsed but what names the row
and its transaction.

The transaction is named by ``transaction.id``, else PostgreSQL's ``txId``, else MySQL's ``gtid`` or (``file``,
``pos``); else the line stands alone. `row_key` says what names a row.

Nothing here raises for the content of a line. A line that cannot be used becomes a QUARANTINED row with the
reason.

Source: Debezium documentation, PostgreSQL and MySQL connectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from tailrace_server.pipeline.changes import (
    BEGIN,
    CHANGE,
    DELETE,
    END,
    INSERT,
    LINE,
    READ,
    SNAPSHOT,
    TRUNCATE,
    UPDATE,
    Change,
    quarantined,
)
from tailrace_server.pipeline.images import members
from tailrace_server.pipeline.sources.debezium.announcements import Announcements
from tailrace_server.pipeline.sources.debezium.message import (
    Incompatible,
    NoRow,
    Unusable,
    id_of,
    image_of,
    position_of,
    salvaged_id,
    timestamp_of,
    total_order,
    unwrap,
)
from tailrace_server.pipeline.sources.debezium.row_key import RowKeys
from tailrace_server.pipeline.sources.debezium.table_identity import OtherConnector
from tailrace_server.pipeline.sources.debezium.transaction_key import transaction_key
from tailrace_server.wal.record.unavailable import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.pipeline.changes import FileSplit
    from tailrace_server.pipeline.sources.debezium.message import DebeziumMessage
    from tailrace_server.pipeline.sources.debezium.table_identity import (
        TableIdentities,
    )
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

_OPERATIONS: Final = {"c": INSERT, "u": UPDATE, "d": DELETE, "r": READ, "t": TRUNCATE}


@dataclass(slots=True)
class _SnapshotRun:
    """Snapshot rows of a split with no other change between them."""

    number: int = 0
    rows: int = 0

    def end(self) -> None:
        """Begin the next run, as another change has come."""
        if self.rows:
            self.number, self.rows = self.number + 1, 0


class DebeziumDecoder:
    """Decodes the lines of one task, in order.

    Keeps which run of snapshot rows each split is in, and which columns a transaction has announced.
    """

    def __init__(
        self,
        keys: Mapping[str, tuple[str, ...]],
        *,
        identities: TableIdentities,
        mapping: SchemaMapping | None = None,
        unavailable: Unavailable = DEFAULT,
        record_bytes_max: int,
    ) -> None:
        """Take the options; see `Debezium` and `Source.line_decoder`."""
        self._keys = RowKeys(keys, mapping)
        self._identities = identities
        self._mapping = mapping
        self._unavailable = unavailable
        self._record_bytes_max = record_bytes_max
        self._runs: dict[FileSplit, _SnapshotRun] = {}
        self._announcements = Announcements()

    def decode(self, split: FileSplit, number: int, line: bytes) -> Change | str | None:
        """Return what a line holds, as `DecodeLine` says."""
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
        except NoRow as found:
            return found.kind
        except (msgspec.DecodeError, orjson.JSONDecodeError, Unusable, RecursionError) as error:
            # What another connector calls a transaction is none of this one's.
            other = isinstance(error, OtherConnector)
            transaction_id = None if other else id_of(message) if message else salvaged_id(line)
            return quarantined(
                split,
                number,
                line,
                str(error) or type(error).__name__,
                transaction=None if transaction_id is None else transaction_key(transaction_id),
                transaction_id=transaction_id,
                incompatible=isinstance(error, Incompatible),
            )

    def _change(
        self,
        message: DebeziumMessage,
        key: bytes | None,
        block: bytes,
        split: FileSplit,
        number: int,
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
        before, after = image_of(message.before), image_of(message.after)
        if len(before or b"") + len(after or b"") > self._record_bytes_max:
            raise Unusable(f"images above {self._record_bytes_max} bytes")
        row = self._keys.of(operation, entity_type, key, before, after)
        self._check_types(entity_type, after)
        where = split.place(number, position_of(source))
        transaction_id = id_of(message)
        order = total_order(message)
        if operation == READ:
            run = self._runs.setdefault(split, _SnapshotRun())
            order, transaction_id = run.rows, None
            run.rows += 1
            transaction = f"{SNAPSHOT}{split.file}\0{split.block}\0{run.number}"
        elif transaction_id is not None:
            transaction = transaction_key(transaction_id)
        else:
            transaction = f"{LINE}{split.file}\0{split.block}\0{number}"
        if operation != READ and split in self._runs:
            self._runs[split].end()
        # A snapshot is cut into versions later, so that each of its rows has to say.
        once = None if operation == READ else transaction
        columns = self._announcements.of(entity_type, block, row.names, once) if block else None
        return Change(
            kind=CHANGE,
            place=where,
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
        )

    def _check_types(self, entity_type: str, after: bytes | None) -> None:
        mapping = self._mapping
        if mapping is not None and after is not None and entity_type in mapping.entity_types:
            fault = mapping.fault_of(entity_type, members(after), self._unavailable)
            if fault is not None:
                raise Incompatible(fault)


def _mark(message: DebeziumMessage, split: FileSplit, number: int) -> Change:
    transaction_id = id_of(message)
    if message.status not in ("BEGIN", "END") or transaction_id is None:
        raise Unusable(
            "transaction metadata without an id, or with a status that is neither BEGIN nor END"
        )
    return Change(
        kind=BEGIN if message.status == "BEGIN" else END,
        place=split.place(number),
        transaction=transaction_key(transaction_id),
        transaction_id=transaction_id,
        number=message.event_count if message.status == "END" else None,
    )
