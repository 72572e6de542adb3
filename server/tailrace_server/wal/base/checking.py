"""Checks of bases: their checksums, the order of their rows, and a comparison with the log.

The checksums and the order are checked for every row. The comparison folds the log: it computes the state anew
from the base before and the log's records, which takes as long as making a base. So in a large table only a
random 1/16 of the key hashes is compared, unless the caller requests all. A base cannot be compared if the log
before it is trimmed and no older base exists.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.errors import LogCorrupted
from tailrace.position import FIRST
from tailrace_server.wal.base.base_files import read_batch
from tailrace_server.wal.base.bases import KnownBases, base_sequence, newest_bases
from tailrace_server.wal.base.reading import state_over
from tailrace_server.wal.base.state_rows import joined_rows
from tailrace_server.wal.base.winners import HASHES_END, Wanted, are_equal
from tailrace_server.wal.files.sequence_documents import BASES
from tailrace_server.wal.record.keys import key_hashes, type_seed
from tailrace_server.wal.segment.reader import BatchReader, SegmentMissing
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.files.sequence_documents import (
        BaseDocument,
        BaseFileDocument,
        BaseTableDocument,
    )
    from tailrace_server.wal.state.commit_log import CommitLog
    from tailrace_server.wal.state.view import LogView

_SAMPLE: Final = 16
"""Number of equal ranges of key hashes; in a large table only one range is compared."""
_SMALL_ROWS: Final = 1 << 16
"""The most rows of a table that is compared as a whole."""
_COMPARED_ROWS: Final = 4_096
_MEND: Final = (
    "if the log was not trimmed, tailrace log rebase --anew makes the bases from it again"
)


def check_bases(path: Path, log: CommitLog, *, whole: bool) -> Iterator[LogCorrupted]:
    """Yield the faults of a log's bases; continue after each fault.

    Args:
        path: The catalog's folder.
        log: The catalog's log.
        whole: True to compare all rows with the log, in large tables too.
    """
    yield from base_sequence(log.store, log.uuid).check(_MEND, chained=False)
    with BatchReader(path) as reader:
        while True:
            try:
                known = newest_bases(log.store, log.uuid)
            except LogCorrupted:
                return  # the check of the sequence has yielded this fault already
            try:
                yield from _check(reader, log.view, known, whole=whole)
            except SegmentMissing as missing:
                # If newer bases have replaced these meanwhile, check the newer ones instead.
                if newest_bases(log.store, log.uuid).number == known.number:
                    yield LogCorrupted(missing.path, 0, f"the file is missing; {_MEND}")
                    return
            else:
                return


def _check(
    reader: BatchReader, view: LogView, known: KnownBases, *, whole: bool
) -> Iterator[LogCorrupted]:
    before: BaseDocument | None = None
    for base in known.bases:
        faults: list[LogCorrupted] = []
        for table in base.tables:
            faults += _check_table(reader, base, table)
        yield from faults
        # A base can be compared with the log if the records since the base before, or all records, are
        # retained.
        reaches = view.oldest == FIRST or before is not None
        if reaches and not faults and base.version <= view.published:
            for table in base.tables:
                # If bodies between the two bases have expired, there is nothing to compare with.
                first = view.bodies.first_kept(table.entity_type, base.version)
                if first > (0 if before is None else before.version) + 1:
                    continue
                yield from _compare(reader, view, before, base, table, whole=whole)
        before = base


def _check_table(
    reader: BatchReader, base: BaseDocument, table: BaseTableDocument
) -> Iterator[LogCorrupted]:
    """Yield the first fault of each file of a table, or else a wrong number of rows."""
    last: StateRows | None = None
    rows, sound = 0, True
    for file in table.files:
        try:
            for what, offset, length, crc in (
                ("the schema message", *each) for each in file.prefix
            ):
                reader.checked(file.path, offset, length, crc, what)
            for place in range(len(file.offset)):
                found = read_batch(reader, file, place)
                _check_rows(file, place, table, found, last, base.version)
                last, rows = found.slice(len(found) - 1, len(found)), rows + len(found)
            size = reader.store.size(file.path)
            if size is not None and size != file.bytes:
                raise LogCorrupted(
                    file.path, min(size, file.bytes), f"it has {size} bytes instead of {file.bytes}"
                )
        except LogCorrupted as error:
            # The row before the next file is unknown now, and the number of rows is certainly wrong.
            last, sound = None, False
            yield LogCorrupted(error.path, error.offset, f"{error.reason}; {_MEND}")
    if sound and rows != table.rows:
        reason = f"{table.entity_type} has {rows} rows instead of {table.rows}; {_MEND}"
        yield LogCorrupted(table.files[-1].path if table.files else BASES, 0, reason)


def _check_rows(
    file: BaseFileDocument,
    place: int,
    table: BaseTableDocument,
    found: StateRows,
    last: StateRows | None,
    version: int,
) -> None:
    """Check the rows of a batch: their hashes, versions and order.

    Args:
        file: The file that has the batch.
        place: The batch's place in the file.
        table: The table that has the file.
        found: The rows of the batch.
        last: The row before the batch; None if there is none or it is unknown.
        version: The base's version.

    Raises:
        LogCorrupted: One of the checks fails.
    """
    offset = file.offset[place]
    hashes = found.key_hashes
    if (int(hashes[0]), int(hashes[-1])) != (file.first_hash[place], file.last_hash[place]):
        raise LogCorrupted(file.path, offset, "its key hashes differ from the stored ones")
    seeds = np.full(len(found), type_seed(table.hashed_as), np.uint64)
    if not np.array_equal(key_hashes(seeds, found.primary_keys), hashes):
        raise LogCorrupted(file.path, offset, "a key hash does not match its key")
    if not ((found.versions > 0) & (found.versions <= version)).all():
        raise LogCorrupted(file.path, offset, f"a row has a version above {version}")
    # Hashes must ascend. Where two neighbours have the same hash, which is rare, their keys must ascend.
    rows = found if last is None else joined_rows([last, found])
    same = np.flatnonzero(rows.key_hashes[1:] == rows.key_hashes[:-1])
    places = [(rows.place(row), rows.place(row + 1)) for row in same.tolist()]
    if (rows.key_hashes[1:] < rows.key_hashes[:-1]).any() or any(a >= b for a, b in places):
        raise LogCorrupted(file.path, offset, "its rows are not in the order of their keys")


def _compare(
    reader: BatchReader,
    view: LogView,
    before: BaseDocument | None,
    base: BaseDocument,
    table: BaseTableDocument,
    *,
    whole: bool,
) -> Iterator[LogCorrupted]:
    """Yield a fault for the first row of a table that differs from the state computed anew.

    The other state is computed from the base before, or from nothing, and the log after that.
    """
    # 1. Choose the key hashes: all of them, or a random range in a large table.
    names = EntityNames(view.schema_of(base.version), table.entity_type)
    wanted = Wanted()
    if not whole and table.rows > _SMALL_ROWS:
        width = HASHES_END // _SAMPLE
        start = secrets.randbelow(_SAMPLE) * width
        wanted = Wanted(start, start + width)
    found, given = (
        _cut(state_over(view, reader, names, table.entity_type, base.version, each).windows(wanted))
        for each in (base, before)
    )
    # 2. Compare both states part by part: the base read as it is, and the base before with the log.
    for mine in found:
        theirs = next(given, None)
        row = 0 if theirs is None else _first_difference(mine, theirs)
        if row is not None:
            yield _difference(table, mine, min(row, len(mine) - 1), base.version)
            return
    if next(given, None) is not None:
        yield LogCorrupted(
            table.files[-1].path if table.files else BASES,
            0,
            f"rows of {table.entity_type} at version {base.version} are not in the base; {_MEND}",
        )


def _difference(table: BaseTableDocument, rows: StateRows, row: int, version: int) -> LogCorrupted:
    hash, key = rows.place(row)
    reason = (
        f"the row of {table.entity_type} {key!r} differs from the row that the log has at version "
        f"{version}; {_MEND}"
    )
    # The batch that has the row, or would have it, is the first one whose last hash is not below that of the
    # row.
    for file in table.files:
        for place, last in enumerate(file.last_hash):
            if last >= hash:
                return LogCorrupted(file.path, file.offset[place], reason)
    return LogCorrupted(BASES, 0, reason)


def _cut(parts: Iterator[StateRows]) -> Iterator[StateRows]:
    """Yield the same rows in parts of _COMPARED_ROWS rows; the last part may be shorter.

    Two states can then be compared part by part, however each of them was cut.
    """
    held: list[StateRows] = []
    count = 0
    for part in parts:
        held.append(part)
        count += len(part)
        if count < _COMPARED_ROWS:
            continue
        rows, start = joined_rows(held), 0
        while count - start >= _COMPARED_ROWS:
            yield rows.slice(start, start + _COMPARED_ROWS)
            start += _COMPARED_ROWS
        held, count = [rows.slice(start, count)], count - start
    if count:
        yield joined_rows(held)


def _first_difference(mine: StateRows, theirs: StateRows) -> int | None:
    """Return the first row in which two parts differ, or at which the shorter one ends; None if equal."""
    count = min(len(mine), len(theirs))
    every = np.arange(count)
    differ = np.zeros(count, np.bool_)
    for name in ("key_hashes", "versions", "indexes", "counts"):
        differ |= getattr(mine, name)[:count] != getattr(theirs, name)[:count]
    differ |= ~are_equal(mine.primary_keys, every, theirs.primary_keys, every)
    rows = np.flatnonzero(differ)
    if len(rows):
        return int(rows[0])
    if not mine.images.slice(0, count).equals(theirs.images.slice(0, count)):
        texts = zip(mine.images.to_pylist(), theirs.images.to_pylist(), strict=False)
        return next(row for row, (one, other) in enumerate(texts) if one != other)
    return None if len(mine) == len(theirs) else count
