"""Verification of a whole log: checksums, the chain of entries, and the consistency of the records.

It reads everything and continues after a fault, so that one run reports all damage. It checks:

* objects: the checksum of each entry, publication and checkpoint, and that each continues its chain; that each
  schema exists under its id; the settings and definitions of the catalog;
* the newest checkpoint: equal to the state that results from the entries alone;
* segments: the size, and the checksum of every schema and dictionary message, head and body; pending files: the
  size and the checksum;
* bodies: each is a UTF-8 JSON object, and no expired body is left; ``changed``: the version's schema has each
  column;
* records: versions and indexes without gaps and in order, from the oldest on; running numbers without gaps; key
  hashes; the counts of each segment; the counts in each lead record, compared with the transaction's records;
* bases: checksums, order, key hashes, and a comparison with the log (base/checking.py); key files: equal to
files
  that are made anew from the records.

The magic, the end-of-stream mark and the footer of a segment have no checksum, because no reader uses them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace.errors import LogCorrupted, LogError
from tailrace.position import FIRST
from tailrace_server.wal.base.bases import newest_bases
from tailrace_server.wal.base.checking import check_bases
from tailrace_server.wal.base.key_files import check_key_files, numbers_of, whole_numbers
from tailrace_server.wal.files.documents import (
    ENTRIES,
)
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.sealed import crc32c
from tailrace_server.wal.record.columns import BODY_COLUMNS
from tailrace_server.wal.record.json_check import first_non_object
from tailrace_server.wal.record.keys import key_hashes, type_seed
from tailrace_server.wal.segment.reader import BatchHead, BatchReader
from tailrace_server.wal.state.batch_table import batch_ref
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify_objects import (
    Fault,
    Verification,
    check_sequences,
    check_subscriptions,
    compare,
    note_fault,
    verify_objects,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.record.text_columns import Texts
    from tailrace_server.wal.segment.refs import BatchRef, SegmentRef
    from tailrace_server.wal.state.state import LogState


@dataclass(slots=True)
class _Transaction:
    """The transaction that is being read: the claims of its lead record, and the records found so far."""

    version: int
    claimed: dict[str, int]
    mutation_count: int
    where: tuple[str, int]
    found: Counter[str] = field(default_factory=Counter)


def verify(
    path: Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    whole_bases: bool = False,
) -> Verification:
    """Read a whole log and return its faults.

    Args:
        path: The catalog's folder.
        progress: Called after each batch with the number of batches that are done, and of all batches.
        whole_bases: Compare all rows of the bases with the log, even in large tables.

    Raises:
        LogUnreadable: The folder is not a catalog, lacks read permission, or has a newer format.
        CatalogReplaced: The catalog was dropped or replaced meanwhile.
    """
    result = Verification()
    # 1. Read the objects one by one, from the oldest entry, without using checkpoints. The chain of entries
    #    gives the state that the log must have.
    chain = verify_objects(path, result)
    # 2. Open the log like a reader, from its newest checkpoint. If that fails, the records cannot be read.
    try:
        log = CommitLog.open(path)
    except LogCorrupted as error:
        note_fault(result, error)
        _verify_documents(path, chain, result)
        return result
    # 3. Compare both states. If the chain is broken, every difference would only follow from that.
    if not result.faults:
        compare(log.store, log.state, chain, result)
    # 4. Read all files that the log names.
    _Records(path, log, result, progress).verify()
    _verify_pending(log.store, log.state, result)
    _verify_bases(path, log, result, whole=whole_bases)
    _verify_key_files(log, result)
    _verify_documents(path, chain, result)
    return result


def _verify_documents(path: Path, chain: LogState, result: Verification) -> None:
    """Check settings, definitions and named subscriptions, for which the log need not be opened."""
    for fault in check_sequences(LocalFiles(path), chain.uuid):
        note_fault(result, fault)
    for found in check_subscriptions(path, chain.uuid):
        note_fault(result, found)


class _Records:
    """Reads all records in order, and checks that they are consistent."""

    def __init__(
        self,
        path: Path,
        log: CommitLog,
        result: Verification,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._path = path
        self._store = log.store
        self._state = state = log.state
        self._schema_of = log.view.schema_of
        self._bodies = log.view.bodies
        self._result = result
        self._progress = progress
        self._last: tuple[int, int] | None = (0, 0) if state.oldest == FIRST else None
        self._next_row: int | None = 0 if state.oldest == FIRST else None
        self._transaction: _Transaction | None = None

    def verify(self) -> None:
        """Check all committed batches, also unpublished ones."""
        table, result = self._state.batches, self._result
        total, before = len(table), None
        counts: Counter[str] = Counter()
        with BatchReader(self._path) as reader:
            for place in range(total):
                ref = batch_ref(table.segments, table.columns, place)
                # 1. Between two segments: check the counts of the first, and the size of the second.
                if ref.segment != before:
                    self._end_segment(before, counts)
                    before, counts = ref.segment, Counter()
                    self._begin_segment(ref)
                # 2. The reader checks the checksums. After a damaged batch, the last position, the next running
                #    number and the open transaction are unknown. Their checks begin anew with the next batch,
                #    since otherwise they would report faults that only follow from this one.
                head, body = self._read(reader, ref)
                if head is None:
                    self._last = self._next_row = self._transaction = None
                else:
                    counts.update(self._check_batch(ref, head, body["after"]))
                    self._check_bodies(ref, head, body)
                    self._check_names(ref, head)
                result.batches += 1
                if self._progress is not None:
                    self._progress(place + 1, total)
        self._end_segment(before, counts)
        self._end_transaction()

    def _read(
        self, reader: BatchReader, ref: BatchRef
    ) -> tuple[BatchHead | None, dict[str, pa.BinaryArray]]:
        """Return a batch's head and bodies. Note each damaged part; then return None and no bodies."""
        head: BatchHead | None = None
        texts: dict[str, Texts] = {}
        try:
            head = reader.head(ref)
        except LogError as error:
            note_fault(self._result, error, ref.segment.path, ref.offset)
        for name in BODY_COLUMNS:
            try:
                texts |= reader.texts(ref, (name,))
            except LogError as error:
                note_fault(self._result, error, ref.segment.path, ref.offset)
                head = None
        # Without a sound head, the layout of a body is unknown, and an array made of it could read anything.
        return head, {} if head is None else {name: text.array for name, text in texts.items()}

    def _begin_segment(self, ref: BatchRef) -> None:
        segment = ref.segment
        self._result.segments += 1
        self._result.bytes += segment.bytes
        try:
            size = self._store.size(segment.path)
        except LogError:
            return  # reading the segment's first batch fails too, and is noted there
        if size is None:
            return  # the same
        if segment.path.startswith(f"{ENTRIES}/"):
            return  # the file has the entry too; checks of the batches find damage
        if size != segment.bytes:
            fault = f"the file has {size} bytes, but its entry has {segment.bytes}"
            note_fault(self._result, LogCorrupted(segment.path, min(size, segment.bytes), fault))

    def _end_segment(self, segment: SegmentRef | None, counts: Counter[str]) -> None:
        """Compare the counts of a segment with its records, if all of them were read and none was trimmed."""
        if segment is None or segment.counts is None or sum(counts.values()) == 0:
            return
        claimed = {name: count for name, count in segment.counts.items() if count}
        whole = self._state.oldest == FIRST and not any(
            fault.path == segment.path for fault in self._result.faults
        )
        if whole and claimed != dict(counts):
            reason = f"it holds {dict(counts)}, but its entry has {claimed}"
            note_fault(self._result, LogCorrupted(segment.path, 0, reason))

    def _check_batch(self, ref: BatchRef, head: BatchHead, after: pa.BinaryArray) -> Counter[str]:
        path, offset = ref.segment.path, ref.offset
        self._result.rows += ref.rows
        ends = (
            (int(head.versions[0]), int(head.indexes[0])),
            (int(head.versions[-1]), int(head.indexes[-1])),
        )
        if ends != (ref.first, ref.last):
            self._fault(path, offset, f"it holds {ends}, but its entry has {(ref.first, ref.last)}")
        if self._next_row not in (None, ref.first_row):
            self._fault(path, offset, f"row {ref.first_row} follows row {self._next_row}")
        self._next_row = ref.first_row + ref.rows
        self._check_order(head, path, offset)
        self._check_hashes(head, path, offset)
        return self._check_leads(head, after, path, offset)

    def _check_bodies(
        self, ref: BatchRef, head: BatchHead, bodies: dict[str, pa.BinaryArray]
    ) -> None:
        """Note the first body of each kind that is no JSON object, and the first that should have expired."""
        gone = self._bodies.rows_in(head)
        if gone is not None and gone.any():
            left = np.flatnonzero(
                gone & np.any([each.is_valid() for each in bodies.values()], axis=0)
            )
            if len(left):
                reason = f"{_position(head, int(left[0]))} has a body that should have been removed"
                self._fault(ref.segment.path, ref.offset, reason)
        for name, texts in bodies.items():
            found = first_non_object(texts)
            if found is not None:
                reason = f"{name} of {_position(head, found.row)} {found.reason}"
                self._fault(ref.segment.path, ref.offset, reason)

    def _check_names(self, ref: BatchRef, head: BatchHead) -> None:
        """Note the first data record whose ``changed`` has a column that its version's schema does not have.

        Many records have the same columns, so each name is looked up only once for each entity type and schema.
        """
        names = head.names.names
        changed = head.changed
        if not names or not len(changed.values):
            return
        rows = pc.list_parent_indices(changed).to_numpy()
        codes = pc.list_flatten(changed).indices.to_numpy().astype(np.int64)
        of_data = (head.areas[rows] == Area.DATA) & (head.type_codes[rows] >= 0)
        rows, codes = rows[of_data], codes[of_data]
        begun = [version for version, _ in self._state.schemas]
        schemas = np.searchsorted(begun, head.versions[rows], "right")
        kinds = (schemas * len(head.entity_types) + head.type_codes[rows]) * len(names) + codes
        wrong = []
        for kind in pc.unique(pa.array(kinds)).to_pylist():
            row = int(rows[np.argmax(kinds == kind)])
            name, entity_type = names[kind % len(names)], head.entity_types[head.type_codes[row]]
            schema = self._schema_of(int(head.versions[row]))
            columns = schema.entity_types.get(entity_type, ())
            if all(column.name != name for column in columns):
                wrong.append((row, f"{name!r}, which is not in schema {schema.id}"))
        if wrong:
            row, reason = min(wrong)
            reason = f"changed of {_position(head, row)} has {reason}"
            self._fault(ref.segment.path, ref.offset, reason)

    def _check_order(self, head: BatchHead, path: str, offset: int) -> None:
        versions, indexes = head.versions, head.indexes.astype(np.int64)
        # Put the last record of the batch before in front, so that the step between the batches is checked too.
        if self._last is not None:
            versions = np.concatenate([[self._last[0]], versions])
            indexes = np.concatenate([[self._last[1]], indexes])
        step = np.diff(versions)
        right = np.where(step == 0, np.diff(indexes) == 1, (step == 1) & (indexes[1:] == 0))
        if not right.all():
            row = int(np.argmin(right))
            self._fault(
                path,
                offset,
                f"({versions[row]}, {indexes[row]}) is followed by ({versions[row + 1]}, {indexes[row + 1]})",
            )
        self._last = (int(versions[-1]), int(indexes[-1]))

    def _check_hashes(self, head: BatchHead, path: str, offset: int) -> None:
        seeds = np.array([*map(type_seed, head.entity_types), 0], np.uint64)[head.type_codes]
        if not np.array_equal(key_hashes(seeds, head.primary_keys), head.key_hashes):
            self._fault(path, offset, "a key hash does not match its key")

    def _check_leads(
        self, head: BatchHead, after: pa.BinaryArray, path: str, offset: int
    ) -> Counter[str]:
        """Compare transactions with their lead records; return the number of records by entity type."""
        # A transaction may begin in an earlier batch and end in a later one. So its lead record opens it, the
        # records of each batch are added, and the next lead record closes it.
        borders = [0, *np.flatnonzero(np.diff(head.versions)).tolist(), len(head.versions) - 1]
        total: Counter[str] = Counter()
        start = 0
        for border in borders[1:]:
            stop = border + 1
            if head.operations[start] == Operation.TRANSACTION:
                self._begin_transaction(
                    int(head.versions[start]), after[start].as_py(), path, offset
                )
                start += 1
            codes = head.type_codes[start:stop]
            counts = np.bincount(codes[codes >= 0], minlength=len(head.entity_types)).tolist()
            found = {name: n for name, n in zip(head.entity_types, counts, strict=True) if n}
            total.update(found)
            if self._transaction is not None:
                self._transaction.found.update(found)
            start = stop
        return total

    def _begin_transaction(self, version: int, lead: bytes | None, path: str, offset: int) -> None:
        self._end_transaction()
        self._result.transactions += 1
        try:
            document: Any = orjson.loads(lead or b"null")
            counts, total = dict(document["counts"]), int(document["mutation_count"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            self._fault(path, offset, f"the lead of version {version} lacks its counts")
            return
        claimed = {name: count for name, count in counts.items() if count}
        self._transaction = _Transaction(version, claimed, total, (path, offset))

    def _end_transaction(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return
        found = dict(transaction.found)
        if found != transaction.claimed or sum(found.values()) != transaction.mutation_count:
            self._fault(
                *transaction.where,
                f"version {transaction.version} has the records {found}, but its lead counts "
                f"{transaction.claimed}, {transaction.mutation_count} in total",
            )

    def _fault(self, path: str, offset: int, reason: str) -> None:
        self._result.faults.append(Fault(path, offset, reason))


def _position(head: BatchHead, row: int) -> str:
    return f"({head.versions[row]}, {head.indexes[row]})"


def _verify_pending(store: ObjectStore, state: LogState, result: Verification) -> None:
    for pending in state.pending:
        found = store.read(pending.path)
        if found is None:
            note_fault(result, LogCorrupted(pending.path, 0, "the pending file is missing"))
        elif len(found.data) != pending.bytes or crc32c(found.data) != pending.crc32c:
            note_fault(result, LogCorrupted(pending.path, 0, "checksum of the pending file"))


def _verify_bases(path: Path, log: CommitLog, result: Verification, *, whole: bool) -> None:
    with suppress(LogCorrupted):
        bases = newest_bases(log.store, log.uuid).bases
        result.bases = len(bases)
        result.base_rows = sum(table.rows for base in bases for table in base.tables)
    try:
        for fault in check_bases(path, log, whole=whole):
            note_fault(result, fault)
    except LogError as error:  # in the log with which the bases are compared
        note_fault(result, error)


def _verify_key_files(log: CommitLog, result: Verification) -> None:
    whole, held = {*whole_numbers(log.view)}, {*numbers_of(log.store)}
    result.key_files, result.key_files_missing = len(whole & held), len(whole - held)
    try:
        with BatchReader(log.path) as reader:
            for fault in check_key_files(log.view, reader):
                note_fault(result, fault)
    except LogError as error:  # in the records from which key files are made
        note_fault(result, error)
