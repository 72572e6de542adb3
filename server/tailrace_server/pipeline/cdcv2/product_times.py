"""The driver of streams with product times: tuples of integers, which are only partially ordered.

::

    files ─▶ messages ─▶ pure reader ─▶ finished, not yet released ─▶ fold ─▶ segments ─▶ entry ─▶ publication
                             └───────── state: one row ─────┘

Such streams are rare. The pure reader of the client reads them, so Spark is not used: each batch runs in the
driver. Each commit writes the whole state of the reader again.

Versions are totally ordered, so the times are sorted by a *linear extension* of their order: by the sum of
their coordinates, then by the coordinates from the first to the last. In that order only finitely many times
come before a given time, so no time waits forever. If the first coordinate came first, a time could wait
forever. A finished time is *released* once all times that come before it are finished too. So the log does not
depend on how the stream was repeated, reordered and cut.

Every unfinished time is at or after an element of the frontier. So it comes at or after that element in every
linear extension. Hence all finished times before the first element of the frontier can be released.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.cdcv2 import Conflict, CountExceeded, DiffsDisagree, Reader, Update, Waiting, product
from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.catalog.pending import read_pending, write_pending
from tailrace_server.pipeline.cdcv2.batch import BatchResult, LocalRunner
from tailrace_server.pipeline.cdcv2.driver import Cdcv2Driver
from tailrace_server.pipeline.cdcv2.files import FilePart, read_part
from tailrace_server.pipeline.cdcv2.folding import (
    EFFECTS,
    KeyConflict,
    finished_rows,
    write_segment,
)
from tailrace_server.pipeline.cdcv2.pieces import Kind
from tailrace_server.pipeline.cdcv2.state import INDEX_KIND, PRODUCT_KIND, StateFile
from tailrace_server.pipeline.cdcv2.updates import joined, updates_table
from tailrace_server.pipeline.spark.pieces import decoded, encoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.cdcv2 import Finished, Statement
    from tailrace.cdcv2.reader import OnConflict
    from tailrace_server.pipeline.cdcv2.batch import Batch, SourceFile
    from tailrace_server.pipeline.cdcv2.cutting import RefusedMessage
    from tailrace_server.pipeline.cdcv2.state import Control
    from tailrace_server.wal.segment.writer import SegmentReceipt

Product = tuple[int, ...]
"""A time: a tuple of its coordinates."""

_STATE: Final = pa.schema([pa.field("state", pa.binary(), nullable=False)])


class _State(msgspec.Struct, frozen=True):
    """The state between batches."""

    reader: str
    """The result of `Reader.save`, with data in base64."""
    held: list[tuple[str, Product, int]]
    """Finished updates that are not released yet: data in base64, time, diff."""


class _FoldedProducts(NamedTuple):
    """The result of folding the released updates."""

    effects: pa.RecordBatch
    index_files: list[StateFile]
    """All files of the index after the batch."""


class ProductDriver(Cdcv2Driver):
    """Commits the batches of one stream of product times to one catalog."""

    def is_small(self, files: Sequence[SourceFile]) -> bool:
        """Return True: every batch runs in this process, whatever its size."""
        return True

    def why_waiting(self, limit: int = 20) -> list[Waiting[Any]]:
        """Return the reasons why the frontier does not advance, or why finished times are not released."""
        reader, held = self._restored(self.control)
        reasons = reader.why_waiting(limit)
        if held and not reasons:
            return [Waiting(min(reader.frontier, key=in_order), None, 0)]
        return reasons

    @property
    def _arity(self) -> int:
        arity = self.folding.schema.form.arity
        assert arity is not None
        return arity

    def _check_stream(self, found: Control | None) -> Control:
        if self.settings.start is not None:
            raise InvalidRequest(
                f"--start-time {self.settings.start}: times of this stream have {self._arity} "
                "coordinates, and such a stream can only be read from its beginning; leave "
                "--start-time out"
            )
        return super()._check_stream(found)

    def _run(self, batch: Batch) -> BatchResult:
        control = batch.control
        # 1. Continue reading from the saved state. Finished updates that were not released are candidates
        # again.
        reader, finished = self._restored(control)
        refused: list[RefusedMessage] = []
        messages: dict[int, int] = {}
        for ordinal, file in zip(batch.ordinals, batch.files, strict=True):
            messages[ordinal] = 0
            split = FilePart(file.path, ordinal, 0, file.bytes, file.bytes, file.messages)
            for some in read_part(split, self.folding.schema):
                messages[ordinal] += some.messages
                refused.extend(some.refused)
                for at, statement in some.products:
                    for piece in self._receive(reader, statement, batch.origin(at)):
                        finished.extend(piece.updates)
        # 2. Release, in the order of the linear extension. The fold needs integers as times, so each released
        #    time is replaced by its index in the sorted list, which keeps the order.
        leaving, held = released(finished, reader.frontier)
        times = sorted({update.time for update in leaving}, key=in_order)
        folded = self._fold_products(leaving, times, batch)
        segments: list[SegmentReceipt] = []
        versions = 0
        effects = folded.effects
        if effects.num_rows:
            path = self.writer.segment_path(batch.number, "cdcv2")
            segments, versions = write_segment(path, effects, self.folding.entity_type, times)
        self._count_products(control, reader, messages.values(), len(refused), len(leaving))
        control.frontier = None if reader.closed else 0
        control.antichain = list(reader.frontier)
        control.names = {}  # the reader's state has the names, not ordinals
        control.files = [self._state_file(batch, reader, held), *folded.index_files]
        sightings = batch.sightings(versions)
        return BatchResult(control, segments, sightings, refused, messages, versions)

    def _receive(
        self, reader: Reader[Product], statement: Statement[Product], origin: str | None
    ) -> list[Finished[Product]]:
        try:
            return reader.receive(statement, origin)
        # The reader knows data only as bytes: put the readable row into the error.
        except DiffsDisagree as error:
            raise DiffsDisagree(self._shown(error), error.time, *_sides(error)) from None
        except CountExceeded as error:
            raise CountExceeded(error.time, *_sides(error), self._shown(error)) from None

    def _shown(self, error: Conflict) -> str:
        return self.folding.schema.image(cast("bytes", error.data))[0].decode()

    def _fold_products(
        self, leaving: Sequence[Update[Product]], times: Sequence[Product], batch: Batch
    ) -> _FoldedProducts:
        """Return the effects of updates, and the files of the index.

        Times in the effects are indexes into ``times``.
        """
        if not leaving:
            return _FoldedProducts(EFFECTS.empty_table(), batch.control.of_kind(INDEX_KIND))
        places = {time: number for number, time in enumerate(times)}
        rows = updates_table(
            pa.array([cast("bytes", update.data) for update in leaving], pa.large_binary()),
            np.array([places[update.time] for update in leaving], np.int64),
            np.array([update.diff for update in leaving], np.int64),
            np.zeros(len(leaving), np.int64),
        )
        runner = LocalRunner()
        fold = batch.fold_step([(0, len(leaving))], runner)
        try:
            finished = encoded(finished_rows(rows, self.folding))
            pieces = runner.run([(0, Kind.FINISHED_UPDATES, finished)], fold)
        except KeyConflict as error:
            place = cast("int", error.time)
            raise KeyConflict(times[place], error.key, error.reason) from None
        effects = [decoded(piece) for _, kind, piece in pieces if kind == Kind.EFFECTS_OF_RANGE]
        written = runner.results(runner.only(pieces, Kind.STATE_FILE)).get(Kind.STATE_FILE, [])
        return _FoldedProducts(
            joined(effects, EFFECTS), [*fold.kept_files, *(each.state for each in written)]
        )

    # State.

    def _restored(self, control: Control) -> tuple[Reader[Product], list[Update[Product]]]:
        """Return the reader as of the last commit, and the finished updates that are not released yet."""
        lattice = product(self._arity)
        policy: OnConflict = "first" if self.settings.first_stands else "error"
        files = control.of_kind(PRODUCT_KIND)
        if not files:
            return Reader(lattice, on_conflict=policy), []
        text = read_pending(self.writer.path, files[0].file).column("state")[0].as_py()
        state = msgspec.json.decode(text, type=_State)
        reader = Reader.restore(state.reader.encode(), lattice, decode=base64.b64decode)
        # The setting may have changed since the state was written.
        reader.on_conflict = policy
        held = [Update(base64.b64decode(data), time, diff) for data, time, diff in state.held]
        return reader, held

    def _state_file(
        self, batch: Batch, reader: Reader[Product], held: Iterable[Update[Product]]
    ) -> StateFile:
        state = _State(
            reader.save(_base64).decode(),
            [(_base64(update.data), update.time, update.diff) for update in held],
        )
        rows = pa.RecordBatch.from_pydict({"state": [msgspec.json.encode(state)]}, _STATE)
        path = self.writer.segment_path(batch.number, f"pending-cdcv2-{PRODUCT_KIND}")
        return StateFile(PRODUCT_KIND, write_pending(path, rows))

    def _count_products(
        self,
        control: Control,
        reader: Reader[Product],
        messages: Iterable[int],
        refused: int,
        leaving: int,
    ) -> None:
        figures, statistics = reader.statistics(), control.statistics
        # The reader counts since the stream began, so most of its figures replace the stored ones.
        statistics.messages += sum(messages)
        statistics.updates = figures.updates
        statistics.duplicates = figures.duplicates
        statistics.dropped_finished = figures.dropped_finished
        statistics.conflicts = figures.conflicts
        statistics.refused += refused
        statistics.finished_updates += leaving


def in_order(time: Product) -> tuple[int, Product]:
    """Return the key that sorts times by the linear extension."""
    return sum(time), time


def released(
    finished: Iterable[Update[Product]], frontier: Sequence[Product]
) -> tuple[list[Update[Product]], list[Update[Product]]]:
    """Split finished updates into those that can be released and those that have to wait.

    Args:
        finished: The updates of finished times.
        frontier: The finished frontier; empty if all time is finished.
    """
    if not frontier:
        return list(finished), []
    # No unfinished time comes before this one in the linear extension (see the head of the module).
    first = min(map(in_order, frontier))
    leaving: list[Update[Product]] = []
    held: list[Update[Product]] = []
    for update in finished:
        (leaving if in_order(update.time) < first else held).append(update)
    return leaving, held


def _sides(error: Conflict) -> tuple[tuple[int, Any], tuple[int, Any]]:
    return (error.first, error.first_message), (error.second, error.second_message)


def _base64(data: object) -> str:
    return base64.b64encode(cast("bytes", data)).decode()
