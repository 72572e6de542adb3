"""Sorted runs of changes: tasks write them, and the commit merges them.

Spark cannot be asked for a distribution, so the rows of a version, and the two halves of an update, may be in
different tasks. Each task sorts its changes by (version, entity type, key hash, key, kind). It writes them as
runs of bounded size, in files beside the segments, or in its report if they are few. The commit reads all runs
at once, a window after the other::

    task 1   ▆▆▆▆▆▆ ▆▆▆▆▆▆ ▆▆▆          batches of a run
    task 2   ▆▆▆▆▆▆ ▆▆▆▆▆▆ ▆▆▆▆▆▆
    windows  ├── 1 ──┼── 2 ──┼── 3 ─┤    all changes of a key of a version are in one window

No entry names a run, so after a crash it is an orphan like any segment (`wal.upkeep.retention`).

The changes of a *direct* write are upserts of one version, and need no row of the log. Their order is free, so
a task writes them as records of a segment that continues the version, and only few as a run.
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area, Operation
from tailrace_server.pipeline.dataframe.change_tally import ChangeTally
from tailrace_server.pipeline.dataframe.typed_rows import CHANGES, changes_of
from tailrace_server.wal.base.winners import are_equal
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.system_errors import os_errors
from tailrace_server.wal.segment.writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from tailrace_server.pipeline.dataframe.typed_rows import TypedForm
    from tailrace_server.wal.segment.writer import SegmentReceipt

_RUN_BYTES: Final = 128 << 20
"""Size of a run. A task needs about twice as much memory to sort it."""
_CARRIED_BYTES: Final = 64 << 10
"""Largest run that a task sends with its report instead of a file."""
_ROWS_AT_ONCE: Final = 32_768
_BYTES_AT_ONCE: Final = 16 << 20
"""Rows and bytes of the DataFrame that become changes together; each conversion has a fixed cost."""
_BATCH_ROWS: Final = 2_048
_BATCH_BYTES: Final = 1 << 20
"""Rows and approximate bytes of a batch of a run; a merge holds at least one batch of each run."""
_WINDOW_BYTES: Final = 16 << 20
"""Approximate size of the batches that a merge holds of all runs together."""
_MERGED_MAX: Final = 256
"""The most runs, and open files, of a merge."""
_PLACE: Final = ("version", "type", "key_hash")


@dataclass(frozen=True)
class SortedRun:
    """Sorted changes of a task."""

    names: list[str]
    """The sorted names of the entity types; ``type`` is a place in them."""
    path: str = ""
    """The file, relative to the catalog's folder; empty if the run is in ``data``."""
    data: bytes = b""
    """The content of the file."""


@dataclass
class TypedPart:
    """The rows that a task wrote."""

    runs: list[SortedRun]
    segments: list[SegmentReceipt]
    """The segment of a direct write, or none; its indexes count from 1."""
    tally: ChangeTally


class RunWriter(AbstractContextManager["RunWriter"]):
    """Collects the rows of a task and writes them as runs, or as a segment."""

    def __init__(self, typed: TypedForm, catalog: Path, name: str, *, numbered: bool) -> None:
        """Begin without rows.

        Args:
            typed: The form of the rows.
            catalog: The catalog's folder.
            name: Path of the files relative to that folder, without number and ending.
            numbered: True if the write may be repeated, so that the rows need a fingerprint.
        """
        self._typed, self._catalog, self._name = typed, catalog, name
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._parts: list[tuple[pa.RecordBatch, list[str]]] = []
        self._bytes = 0
        self._rows = self._records = 0
        self._runs: list[SortedRun] = []
        self._segment: SegmentWriter | None = None
        self._tally = ChangeTally(numbered=numbered)

    def __exit__(self, *_: object) -> None:
        if self._segment is not None:
            self._segment.abandon()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the DataFrame. An error in them may be raised by a later call, up to ``finish``.

        Raises:
            InvalidRequest: A row cannot be written (`changes_of`).
            LogFull: There is no space.
        """
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= _ROWS_AT_ONCE or self._waiting_bytes >= _BYTES_AT_ONCE:
            self._convert()

    def _convert(self) -> None:
        """Turn the waiting rows into changes."""
        if not self._waiting_rows:
            return
        batch = pa.concat_batches(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        changes, names = changes_of(self._typed, batch, self._rows)
        self._rows += batch.num_rows
        self._tally.add(changes, names)
        part = pa.RecordBatch.from_arrays(
            [changes.column(name).chunk(0) for name in CHANGES.names], schema=CHANGES
        )
        self._parts.append((part, names))
        self._bytes += part.nbytes
        if self._typed.direct and (self._segment is not None or self._bytes > _CARRIED_BYTES):
            self._append()
        elif self._bytes >= _RUN_BYTES:
            self._write()

    def finish(self) -> TypedPart:
        """Write the remaining rows; a few stay in memory.

        Raises:
            InvalidRequest: As `add`.
            LogFull: There is no space.
        """
        self._convert()
        self._tally.finish()
        if self._parts:
            self._write()
        segments = [] if self._segment is None else [self._segment.close()]
        return TypedPart(self._runs, segments, self._tally)

    def _append(self) -> None:
        """Write the converted rows to the segment."""
        if self._segment is None:
            self._segment = SegmentWriter(self._catalog / f"{self._name}.arrow")
        for part, names in self._parts:
            # The lead of the version, and its changes of the schema, will be in a segment before.
            self._segment.write(_records_of(part, names, 1 + self._records))
            self._records += part.num_rows
        self._parts, self._bytes = [], 0

    def _write(self) -> None:
        names = sorted({name for _, each in self._parts for name in each})
        batch = sorted_changes(
            pa.concat_batches([_renumbered(part, own, names) for part, own in self._parts])
        )
        is_small = self._bytes <= _CARRIED_BYTES and not self._runs
        self._parts, self._bytes = [], 0
        if is_small:
            out = io.BytesIO()
            _write_stream(out, [batch])
            self._runs.append(SortedRun(names, data=out.getvalue()))
            return
        path = f"{self._name}-run{len(self._runs)}.arrow"
        _write_file(self._catalog, path, [batch])
        self._runs.append(SortedRun(names, path))


def _records_of(changes: pa.RecordBatch, names: Sequence[str], index: int) -> pa.RecordBatch:
    """Return the records of changes that are upserts.

    Args:
        changes: The changes.
        names: The names of the entity types.
        index: Index of the first record.
    """
    count = changes.num_rows
    codes = changes.column("type")
    return pa.RecordBatch.from_pydict(
        {
            "version": np.zeros(count, np.int64),
            "index": np.arange(index, index + count, dtype=np.int32),
            "area": np.full(count, Area.DATA, np.uint8),
            "operation": np.full(count, Operation.UPSERT, np.uint8),
            "entity_type": pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())),
            "key_hash": changes.column("key_hash"),
            "primary_key": changes.column("primary_key"),
            "after": changes.column("image"),
        }
    )


def _write_file(catalog: Path, path: str, batches: Iterable[pa.RecordBatch]) -> None:
    # Nothing reads a run after a crash, so it need not be durable.
    with os_errors(f"cannot write {path}"):
        file = LocalFiles(catalog).begin(path)
        try:
            with open(file.descriptor, "wb", closefd=False) as out:
                _write_stream(out, batches)
            file.link(sync=False)
        finally:
            file.close()


def _write_stream(out: Any, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(out, CHANGES) as stream:
        for batch in batches:
            rows = min(_BATCH_ROWS, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
            stream.write_table(pa.Table.from_batches([batch]), max_chunksize=max(1, rows))


def _renumbered(batch: pa.RecordBatch, own: Sequence[str], names: Sequence[str]) -> pa.RecordBatch:
    """Return changes whose types are places in ``names`` instead of ``own``; both are sorted."""
    if own == names:
        return batch
    places = np.array([names.index(name) for name in own], np.int32)
    at = CHANGES.get_field_index("type")
    types = pa.array(places[batch.column(at).to_numpy()])
    return batch.set_column(at, CHANGES.field(at), types)


def sorted_changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return changes sorted by (version, entity type, key hash, key, kind)."""
    columns = [batch.column(name).to_numpy() for name in ("kind", "key_hash", "type", "version")]
    # A column with one value, which is usual for three of the four, takes no part in the sort.
    varied = [each for each in columns if len(each) and (each != each[0]).any()]
    if not varied:
        order = np.arange(batch.num_rows)
    elif len(varied) == 1:
        order = np.argsort(varied[0], kind="stable")
    else:
        order = np.lexsort(varied)
    ordered = batch.take(pa.array(order))
    # Different keys with one hash are very rare: sort them by their texts.
    same, equal = _neighbours(ordered)
    if (same == equal).all():
        return ordered
    again = np.arange(len(order))
    borders = [0, *(np.flatnonzero(~same) + 1).tolist(), len(order)]
    kinds, keys = ordered.column("kind").to_numpy(), ordered.column("primary_key")
    for place in np.unique(np.searchsorted(borders, np.flatnonzero(same & ~equal), "right")):
        start, stop = borders[place - 1], borders[place]
        again[start:stop] = sorted(
            range(start, stop), key=lambda row: (keys[row].as_py(), kinds[row])
        )
    return ordered.take(pa.array(again))


def followed(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return, for each sorted change but the last, True if the next one is of the same version and key."""
    return _neighbours(batch)[1]


def _neighbours(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return masks of the changes whose next one has the same version, type and hash, and also the same key."""
    same = np.ones(max(0, batch.num_rows - 1), np.bool_)
    for name in _PLACE:
        values = batch.column(name).to_numpy()
        same &= values[1:] == values[:-1]
    equal = same.copy()
    rows = np.flatnonzero(same)
    if len(rows):
        keys = batch.column("primary_key")
        equal[rows] = are_equal(keys, rows, keys, rows + 1)
    return same, equal


def fewer(
    catalog: Path,
    runs: Sequence[SortedRun],
    names: Sequence[str],
    name: str,
    at_once: int = _MERGED_MAX,
) -> list[SortedRun]:
    """Return as many runs as one merge can read, with the same changes.

    If there are more, longer runs are written, and the files of those in them are deleted.

    Args:
        catalog: The catalog's folder.
        runs: The runs.
        names: The sorted names of all entity types.
        name: Path of the longer runs, without number and ending.
        at_once: The most runs of a merge, at least 2.

    Raises:
        LogFull: There is no space.
    """
    left, number = [*runs], 0
    while len(left) > at_once:
        path, number = f"{name}-merged{number}.arrow", number + 1
        _write_file(catalog, path, merged(catalog, left[:at_once], names))
        delete(catalog, left[:at_once])
        left = [*left[at_once:], SortedRun([*names], path)]
    return left


def delete(catalog: Path, written: Iterable[SortedRun | SegmentReceipt]) -> None:
    """Delete the files of runs and segments, as far as they exist."""
    for each in written:
        if each.path:
            (catalog / each.path).unlink(missing_ok=True)


def merged(
    catalog: Path, runs: Sequence[SortedRun], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield all changes of some runs, sorted, in windows; the changes of a key of a version are in one window.

    Args:
        catalog: The catalog's folder.
        runs: The runs.
        names: The sorted names of all entity types; ``type`` of the result is a place in them.

    Raises:
        LogError: A file is missing or cannot be read.
    """
    with ExitStack() as stack:
        bytes_max = _WINDOW_BYTES // max(1, len(runs))
        sources = [_RunReader(stack, catalog, run, names, bytes_max) for run in runs]
        while True:
            for source in sources:
                source.fill()
            sources = [source for source in sources if source.rows is not None]
            if not sources:
                return
            # A place up to which every run is known: the least of the last places that were read.
            bounds = [source.last for source in sources if source.has_more]
            bound = min(bounds) if bounds else None
            parts = [part for source in sources if (part := source.until(bound)) is not None]
            if len(parts) > 1:
                yield sorted_changes(pa.concat_batches(parts))
            elif parts:
                yield parts[0]
            else:
                # All changes at hand have one place. It may go on in the next batches.
                for source in sources:
                    if source.has_more and source.last == bound:
                        source.append()


class _RunReader:
    """One run during a merge."""

    def __init__(
        self, stack: ExitStack, catalog: Path, run: SortedRun, names: Sequence[str], bytes_max: int
    ) -> None:
        file = stack.enter_context(_opened(catalog, run))
        self._batches = stack.enter_context(pa.ipc.open_stream(file))
        self._own, self._names = run.names, names
        self._bytes_max = bytes_max
        self._next: pa.RecordBatch | None = None
        self._read()
        self.rows: pa.RecordBatch | None = None
        """The changes that were read and not yet merged; None: there are none."""

    @property
    def has_more(self) -> bool:
        """True if changes remain to be read."""
        return self._next is not None

    @property
    def last(self) -> tuple[int, ...]:
        """The place of the last change that was read."""
        assert self.rows is not None
        return tuple(self.rows.column(name)[-1].as_py() for name in _PLACE)

    def _read(self) -> None:
        try:
            batch = self._batches.read_next_batch()
        except StopIteration:
            self._next = None
        else:
            self._next = _renumbered(batch, self._own, self._names)

    def fill(self) -> None:
        """Read changes unless enough of them are at hand."""
        parts = [] if self.rows is None else [self.rows]
        size = 0 if self.rows is None else self.rows.nbytes
        if self._next is None or (parts and 2 * size > self._bytes_max):
            return
        while self._next is not None and (not parts or size < self._bytes_max):
            parts.append(self._next)
            size += self._next.nbytes
            self._read()
        self.rows = pa.concat_batches(parts) if len(parts) > 1 else parts[0]

    def append(self) -> None:
        """Read one more batch."""
        assert self.rows is not None
        self.rows = pa.concat_batches([self.rows, self._next])
        self._read()

    def until(self, bound: tuple[int, ...] | None) -> pa.RecordBatch | None:
        """Remove and return the changes before a place; None: all changes."""
        assert self.rows is not None
        rows = self.rows
        count = rows.num_rows if bound is None else _count_before(rows, bound)
        self.rows = rows.slice(count) if count < rows.num_rows else None
        return rows.slice(0, count) if count else None


def _opened(catalog: Path, run: SortedRun) -> Any:
    if not run.path:
        return pa.BufferReader(run.data)
    with os_errors(f"cannot read {run.path}"):
        return pa.memory_map(str(catalog / run.path))


def _count_before(rows: pa.RecordBatch, bound: tuple[int, ...]) -> int:
    """Return the number of sorted changes before a place."""
    start, stop = 0, rows.num_rows
    # In the range where the first columns equal those of the place, the next column is sorted.
    for name, value in zip(_PLACE, bound, strict=True):
        values = rows.column(name).to_numpy()[start:stop]
        wanted = values.dtype.type(value)
        first = int(np.searchsorted(values, wanted, "left"))
        stop = start + int(np.searchsorted(values, wanted, "right"))
        start += first
    return start
