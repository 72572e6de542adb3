"""The fold of a range of the log: the last record (winner) of each key, found by reading heads only.

One pass reads the heads of the range, oldest first, and retains the place of each key's last record so far. New
rows are joined with the retained rows and sorted. For each key the last row wins::

    retained  ▆▆▆▆▆▆▆▆▆▆▆▆▆▆           one row for each key, by (key hash, key)
    new       ▂▂▂▂▂▂                   rows in log order
    reduced   ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆         done once there are a million new rows

Memory is bounded by narrowing. If there are too many rows, or too many bytes of keys, the pass drops the upper
half of its key hashes and continues with the lower half. The next pass begins where this one stopped. A row
takes 45 bytes and its key.

Keys are compared by their hashes and, if the hashes are equal, by the keys themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace.position import Position
from tailrace_server.wal.base.counts import counts_of, summed_counts
from tailrace_server.wal.base.key_files import FEW_KEYS, KEY_FILES, KEY_PLACES
from tailrace_server.wal.record.keys import key_hashes, type_seed
from tailrace_server.wal.segment.parallel import are_between

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tailrace_server.wal.segment.reader import BatchHead, BatchReader
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView

HASHES_END: Final = 1 << 64
"""The end of the range of key hashes, exclusive."""

_ONE_BY_ONE_MAX: Final = 8
"""Up to this many wanted hashes are compared one by one with all hashes, which is faster than a sort."""
_ROW_BITS: Final = 32
"""A record's place is one integer: the batch's place shifted by this many bits, plus the row in the batch."""


@dataclass(frozen=True, slots=True)
class FoldBounds:
    """The most rows and bytes that a fold, and the reading of its images, have in memory at once."""

    rows: int = 1 << 20
    key_bytes: int = 64 << 20
    image_rows: int = 1 << 18
    image_bytes: int = 64 << 20
    part_rows: int = 8_192
    part_bytes: int = 4 << 20
    """The most bytes of keys and images in a part; a larger row is a part alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Winners:
    """The last record of each key, as columns of equal length, sorted by (key hash, key)."""

    keys: pa.StringArray
    hashes: npt.NDArray[np.uint64]
    places: npt.NDArray[np.int64]
    """Place of each record in the log: batch and row (``batch_and_row``)."""
    versions: npt.NDArray[np.int64]
    indexes: npt.NDArray[np.int32]
    lives: npt.NDArray[np.bool_]
    """True if the record leaves a row for the key; False if it is a removal."""
    diffs: npt.NDArray[np.int64]
    """In a table without a key, the sum of the diffs of all the key's records; else 0."""

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def key_bytes(self) -> int:
        """Total size of the keys in bytes."""
        return int(pc.sum(pc.binary_length(self.keys)).as_py() or 0)

    def taken(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Winners:
        """Return a copy of some of the rows, given by their numbers or by a mask."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        return Winners(
            self.keys.take(pa.array(rows)), *(column[rows] for column in self._numbers())
        )

    def slice(self, start: int, stop: int) -> Winners:
        """Return the rows from ``start`` up to ``stop``, exclusive; they share memory with these."""
        return Winners(
            self.keys.slice(start, stop - start),
            *(column[start:stop] for column in self._numbers()),
        )

    def _numbers(self) -> Iterator[npt.NDArray[Any]]:
        for each in fields(self)[1:]:
            yield getattr(self, each.name)

    @classmethod
    def joined(cls, parts: list[Winners]) -> Winners:
        """Concatenate several parts, in the given order."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part._numbers() for part in parts), strict=True)
        keys = pa.concat_arrays([part.keys for part in parts])
        return cls(keys, *map(np.concatenate, columns))


_NUMBERS: Final[tuple[Any, ...]] = (np.uint64, np.int64, np.int64, np.int32, np.bool_, np.int64)
NO_WINNERS: Final = Winners(pa.array([], pa.utf8()), *(np.zeros(0, kind) for kind in _NUMBERS))


@dataclass(frozen=True, slots=True)
class Fold:
    """The last record of each key, for a range of key hashes and a range of versions."""

    winners: Winners
    """The last records. Removals are left out if there are no older rows that they could hide."""
    stop: int
    """Key hash up to which the fold is complete, exclusive; the next fold begins there."""
    truncated: bool
    """True if a truncate in the range has removed all older rows."""


@dataclass(frozen=True, slots=True)
class LogTable:
    """The records of one entity type in one log."""

    view: LogView
    reader: BatchReader
    names: EntityNames
    seed_name: str
    """Name under which all keys are hashed here. In the log, records after a rename have other hashes."""
    counted: bool
    """True if the table has no key, so that its rows have counts."""
    span: tuple[Position, Position] | None = None
    """The positions, both exclusive, between which records count; None: all records do."""

    def batches(self, after: int, version: int) -> Iterator[tuple[int, BatchRef]]:
        """Yield the batches that may have records after one version, up to another; with their places."""
        view = self.view
        for place in range(view.find(Position(after + 1, 0)), len(view)):
            ref = view.batch(place)
            if ref.first.version > version:
                return
            if self._may_be_in(ref):
                yield place, ref

    def batches_of(
        self, after: int, version: int, wanted: Wanted
    ) -> Iterator[tuple[int, BatchRef]]:
        """Yield the same as ``batches``, without the batches that certainly have no wanted keys.

        A key file, if it exists, decides for a million records at once. Otherwise each batch is checked.
        """
        if wanted.chosen is None or len(wanted.chosen) > FEW_KEYS:
            yield from self.batches(after, version)
            return
        view = self.view
        places = range(view.find(Position(after + 1, 0)), len(view))
        is_hashed_so = self._is_hashed_so(after + 1, view.published)
        for place, is_named in KEY_FILES.places(
            view, self.reader, places, wanted.chosen, self._is_hashed_so
        ):
            # Most batches have none of a few keys. The cache says so before a `BatchRef` is made, which takes
            # most of the time of a read.
            if (
                is_hashed_so
                and not is_named
                and KEY_PLACES.lacks(view.uuid, view.head_mark(place), wanted.chosen)
            ):
                continue
            ref = view.batch(place)
            if ref.first.version > version:
                return
            if self._may_be_in(ref) and (is_named or self.may_hold(ref, wanted)):
                yield place, ref

    def _is_hashed_so(self, first: int, last: int) -> bool:
        """Return True if all records of the versions ``first`` to ``last`` are hashed under ``seed_name``."""
        while first <= last:
            if self.names.name_in(self.view.schema_of(first)) not in (self.seed_name, None):
                return False
            first = self.view.schema_span(first)[1] + 1
        return True

    def _may_be_in(self, ref: BatchRef) -> bool:
        counts, schema = ref.segment.counts, self.view.schema_of(ref.first.version)
        # Names in ``counts`` are those of the batch's version: comparable only if one schema is valid for it.
        if counts is None or schema is not self.view.schema_of(ref.last.version):
            return True
        return self.names.name_in(schema) in counts

    def refuse_expired(self, ref: BatchRef, rows: npt.NDArray[Any]) -> None:
        """Check that the bodies of some rows of a batch have not expired.

        Raises:
            BodiesExpired: The bodies of one of the rows have expired.
        """
        bodies = self.view.bodies
        if bodies.may_be_in(ref):
            bodies.refuse(self.reader.head(ref), np.sort(rows))

    def may_hold(self, ref: BatchRef, wanted: Wanted) -> bool:
        """Return False if a batch certainly has no records of wanted keys."""
        if wanted.chosen is None:
            return True
        schema = self.view.schema_of(ref.first.version)
        if schema is not self.view.schema_of(ref.last.version):
            return True
        if self.names.name_in(schema) != self.seed_name:
            return True  # in this batch keys are hashed under another name, so hashes cannot be compared
        return KEY_PLACES.may_hold(self.view.uuid, self.reader, ref, wanted.chosen)

    def records(
        self, place: int, ref: BatchRef, after: int, version: int, wanted: Wanted
    ) -> tuple[Winners, bool]:
        """Return the records of a batch in log order; and True if a truncate removes all records before them.

        Args:
            place: The batch's place.
            ref: The batch.
            after: The version before the first one to include.
            version: The last version to include.
            wanted: Key hashes of the records to include.
        """
        head = self.reader.head(ref)
        versions = head.versions
        rows = head.areas == Area.DATA
        if ref.first.version <= after or ref.last.version > version:
            rows &= (versions > after) & (versions <= version)
        if self.span is not None and not self.span[0] < ref.first <= ref.last < self.span[1]:
            rows &= are_between(versions, head.indexes, *self.span)
        rows &= self.names.rows_in(self.view, head.type_codes, head.entity_types, versions)
        # 1. A truncate has no key. All records before the last truncate have no effect.
        truncates = np.flatnonzero(rows & (head.key_hashes == 0))
        truncated = bool(len(truncates))
        if truncated:
            rows[: truncates[-1] + 1] = False
        # 2. Choose by hash. Hashes of renamed versions are computed anew, under ``seed_name``.
        chosen = np.flatnonzero(rows)
        hashes = self._hashes(head, chosen)
        kept = wanted.of(hashes)
        if not kept.all():
            chosen, hashes = chosen[kept], hashes[kept]
        if not len(chosen):
            return NO_WINNERS, truncated
        # 3. Collect what the fold needs: if the record leaves a row, and what it adds to the row's count.
        return (
            Winners(
                head.primary_keys.take(pa.array(chosen)),
                hashes,
                (place << _ROW_BITS) + chosen,
                versions[chosen],
                head.indexes[chosen],
                head.operations[chosen] == Operation.UPSERT,
                self._diffs(ref, chosen),
            ),
            truncated,
        )

    def _hashes(self, head: BatchHead, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        # The log has hashes under the name that was valid in each version. After a rename, keys are hashed
        # anew.
        hashes = head.key_hashes[rows]
        if head.entity_types and self.seed_name in head.entity_types:
            renamed = head.type_codes[rows] != head.entity_types.index(self.seed_name)
        else:
            renamed = np.ones(len(rows), np.bool_)
        if renamed.any():
            keys = head.primary_keys.take(pa.array(rows[renamed]))
            seeds = np.full(len(keys), type_seed(self.seed_name), np.uint64)
            hashes = hashes.copy()
            hashes[renamed] = key_hashes(seeds, keys)
        return hashes

    def _diffs(self, ref: BatchRef, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if not self.counted:
            return np.zeros(len(rows), np.int64)
        self.refuse_expired(ref, rows)
        changes = self.reader.body(ref, ("change",))["change"].take(pa.array(rows)).to_pylist()
        return counts_of(changes, lambda at: (ref, self.reader.head(ref), int(rows[at])))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted key hashes: from ``start`` up to ``stop``, exclusive; only those in ``chosen``, if given."""

    start: int = 0
    stop: int = HASHES_END
    chosen: npt.NDArray[np.uint64] | None = None

    def of(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the wanted hashes."""
        found = hashes >= np.uint64(self.start)
        if self.stop < HASHES_END:
            found &= hashes < np.uint64(self.stop)
        if self.chosen is None:
            return found
        if len(self.chosen) > _ONE_BY_ONE_MAX:
            return found & np.isin(hashes, self.chosen)
        named = np.zeros(len(hashes), np.bool_)
        for each in self.chosen:
            named |= hashes == each
        return found & named

    def places_in(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the places of the wanted hashes in an array of sorted hashes."""
        first = int(np.searchsorted(hashes, np.uint64(self.start)))
        stop = len(hashes)
        if self.stop < HASHES_END:
            stop = int(np.searchsorted(hashes, np.uint64(self.stop)))
        if self.chosen is None:
            return np.arange(first, stop)
        starts = np.maximum(np.searchsorted(hashes, self.chosen, "left"), first).tolist()
        stops = np.minimum(np.searchsorted(hashes, self.chosen, "right"), stop).tolist()
        ranges = zip(starts, stops, strict=True)
        return np.array([place for each in ranges for place in range(*each)], np.int64)


def batch_and_row(
    places: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the batch's place, and the row in the batch, of each place of a record."""
    return places >> _ROW_BITS, places & ((1 << _ROW_BITS) - 1)


def fold(
    table: LogTable, after: int, version: int, wanted: Wanted, bounds: FoldBounds, *, whole: bool
) -> Fold:
    """Return the last record of each key in a range of versions, for as many key hashes as fit in memory.

    Args:
        table: The table to fold.
        after: The version before the range.
        version: The last version of the range.
        wanted: The wanted key hashes. The result may end before their end: see ``Fold.stop``.
        bounds: The most rows and bytes in memory.
        whole: True if there are no rows from before the range, so that removals can be dropped.
    """
    # The pass may narrow its key hashes meanwhile, so ``pass_.wanted`` is read again for each batch.
    pass_ = _Pass(wanted, bounds, whole=whole, counted=table.counted)
    for place, ref in table.batches_of(after, version, wanted):
        records, truncated = table.records(place, ref, after, version, pass_.wanted)
        # The truncate came before ``records`` in this batch, but after all records of earlier batches.
        if truncated:
            pass_.forget()
        pass_.add(records)
    return pass_.end()


@dataclass
class _Pass:
    """The rows that one pass over the log retains."""

    wanted: Wanted
    bounds: FoldBounds
    whole: bool
    """True if there are no older rows that removals have to hide."""
    counted: bool
    truncated: bool = False
    _parts: list[Winners] = field(default_factory=lambda: [NO_WINNERS])
    """The retained rows, reduced, followed by parts of new rows."""
    _new_rows: int = 0
    _new_bytes: int = 0

    def forget(self) -> None:
        """Drop all rows, because a truncate has removed them."""
        self._parts, self._new_rows, self._new_bytes = [NO_WINNERS], 0, 0
        self.truncated = self.whole = True

    def add(self, records: Winners) -> None:
        """Append records, in log order; reduce all rows if there are too many new ones."""
        if not len(records):
            return
        self._parts.append(records)
        self._new_rows += len(records)
        self._new_bytes += records.key_bytes
        if self._new_rows >= self.bounds.rows or self._new_bytes >= self.bounds.key_bytes:
            self._reduce()

    def end(self) -> Fold:
        """Reduce the rows, and return them as a fold."""
        self._reduce()
        return Fold(self._parts[0], self.wanted.stop, self.truncated)

    def _reduce(self) -> None:
        kept = reduced(Winners.joined(self._parts))
        # A removal in a counted table has a diff, which a later record may need.
        if self.whole and not self.counted:
            kept = kept if kept.lives.all() else kept.taken(kept.lives)
        # New rows are limited by the same bounds, so memory is at most twice the bounds.
        kept = self._narrowed(kept)
        self._parts, self._new_rows, self._new_bytes = [kept], 0, 0

    def _narrowed(self, kept: Winners) -> Winners:
        while len(kept) > self.bounds.rows or kept.key_bytes > self.bounds.key_bytes:
            # The next pass begins at a hash, so rows of one hash must not be divided. If half of the rows have
            # the first hash, retain all of that hash.
            stop = int(kept.hashes[len(kept) // 2])
            if stop == kept.hashes[0]:
                above = kept.hashes[kept.hashes > kept.hashes[0]]
                if not len(above):
                    return kept
                stop = int(above[0])
            self.wanted = Wanted(self.wanted.start, stop, self.wanted.chosen)
            count = int(np.searchsorted(kept.hashes, np.uint64(stop), "left"))
            kept = kept.taken(np.arange(count))  # a copy: a slice would hold the memory of all rows
        return kept


def reduced(rows: Winners) -> Winners:
    """Return the last row of each key, sorted by (key hash, key); the diffs of each key are added up.

    Args:
        rows: The rows, in log order.
    """
    if len(rows) < 2:
        return rows
    order, neighbours = ordered(rows.hashes, rows.keys)
    ends = np.append(~neighbours, True)
    if ends.all():
        return rows.taken(order)
    kept = rows.taken(order[ends])
    starts = np.flatnonzero(np.insert(~neighbours, 0, True))
    return replace(kept, diffs=summed_counts(kept.keys, rows.diffs[order], starts))


def ordered(
    hashes: npt.NDArray[np.uint64], keys: pa.StringArray
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the permutation that sorts rows by (key hash, key); rows of one key stay in their order.

    The second result has n - 1 values: True if a sorted row is followed by a row of the same key.
    """
    # A stable sort takes longer. Rows of one hash need it: sort only these again if they are few.
    order = np.argsort(hashes)
    sorted_hashes = hashes[order]
    followed = sorted_hashes[1:] == sorted_hashes[:-1]
    places = np.flatnonzero(followed)
    if len(places) > len(order) // 8:
        order = np.argsort(hashes, kind="stable")
    elif len(places):
        alike = np.union1d(places, places + 1)
        order[alike] = order[alike][np.lexsort((order[alike], sorted_hashes[alike]))]
    if len(places):
        # Two keys with one hash are very rare. Only the rows of such a hash are sorted by their keys.
        differ = places[~are_equal(keys, order[places], keys, order[places + 1])]
        for hash in np.unique(sorted_hashes[differ]):
            start, stop = (
                np.searchsorted(sorted_hashes, hash, "left"),
                np.searchsorted(sorted_hashes, hash, "right"),
            )
            texts = keys.take(pa.array(order[start:stop])).to_pylist()
            order[start:stop] = order[start:stop][sorted(range(len(texts)), key=texts.__getitem__)]
        if len(differ):
            followed[places] = are_equal(keys, order[places], keys, order[places + 1])
    return order, followed


def are_equal(
    left: pa.StringArray,
    left_rows: npt.NDArray[np.int64],
    right: pa.StringArray,
    right_rows: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return a mask of the pairs of keys that are equal.

    Pair i is the key at ``left_rows[i]`` in ``left`` and the key at ``right_rows[i]`` in ``right``.
    """
    equal = pc.equal(left.take(pa.array(left_rows)), right.take(pa.array(right_rows)))
    found: npt.NDArray[np.bool_] = equal.to_numpy(zero_copy_only=False)
    return found


__all__ = [
    "HASHES_END",
    "Fold",
    "FoldBounds",
    "LogTable",
    "Wanted",
    "Winners",
    "are_equal",
    "batch_and_row",
    "fold",
    "ordered",
]
