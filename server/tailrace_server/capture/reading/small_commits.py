"""Small batches that have just been published, read before anybody asks.

A commit of a few rows is wanted at once by everybody who is live, and to read it costs less than to
hand it to a reader thread and back, twice. So the tailer's thread reads the batch too, or takes it out
of the entry that it has just read; the loop then routes and encodes it where it stands. Of an entry that is
still on its way it is read, and encoded for few kinds of takers, before it is published, and given to nobody.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server.capture.matching.predicate import NO_IMAGES
from tailrace_server.capture.matching.record_classes import GroupedHead, group_by_class
from tailrace_server.capture.reading.frames import body_columns, encode
from tailrace_server.wal.record.columns import BODY_COLUMNS
from tailrace_server.wal.record.small_arrays import repeated
from tailrace_server.wal.segment.carried import ROWS_MAX
from tailrace_server.wal.state.state import carried_batch

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from uuid import UUID

    from tailrace.criteria import Content
    from tailrace_server.capture.codecs import Codec
    from tailrace_server.capture.matching.predicate import Predicate
    from tailrace_server.capture.reading.frames import FrameBlock
    from tailrace_server.capture.settings import EngineSettings
    from tailrace_server.wal.files.documents import Entry, ReadEntry
    from tailrace_server.wal.record.text_columns import Texts
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.batch_table import BatchRef
    from tailrace_server.wal.state.view import LogView

_BATCHES_MAX: Final = 16
"""Of one view, and kept in all."""
_FRAMES_MAX: Final = 2
"""Batches that keep what was made ahead of them."""
_TAKERS_MAX: Final = 8
"""Frames are made ahead for so many kinds of takers at most."""
_ALTERNATIVES_MAX: Final = 4
"""Of the criteria of one."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Body columns of one batch."""

    columns: dict[str, Texts]

    @property
    def nbytes(self) -> int:
        """Bytes that they hold."""
        return sum(column.nbytes for column in self.columns.values())

    def only(self, names: Iterable[str]) -> dict[str, Texts]:
        """Return some of them."""
        return {name: self.columns[name] for name in names}


class Taker(NamedTuple):
    """What some subscriptions want of every batch."""

    predicate: Predicate
    codec: Codec
    content: Content


@dataclass(frozen=True, slots=True)
class FreshBatch:
    """All of one batch."""

    grouped: GroupedHead
    bodies: Bodies
    frames: dict[tuple[Hashable, str, int], FrameBlock] = field(default_factory=dict)
    """Frames that were made ahead, by the identity of their selection, codec and content; who takes them
    removes them."""


class FreshBatches:
    """The last few. Filled by one thread, the tailer's; any thread may look."""

    def __init__(self, uuid: UUID, reader: BatchReader, settings: EngineSettings) -> None:
        """Begin with none; nothing is read before there is somebody to read it for."""
        self._uuid = uuid
        self._reader = reader
        self._settings = settings
        self._batches: dict[Hashable, FreshBatch] = {}
        self._ahead: tuple[Entry, FreshBatch] | None = None
        """An entry that is not there yet, and what it carries."""
        self._takers: Counter[Taker] = Counter()
        self._simple: dict[Taker, None] = {}
        """Those for whom frames could be made ahead, in the order in which they came."""
        self._served: tuple[Taker, ...] = ()
        """Those whose frames are made ahead."""
        self.end_row = 0
        """First row of what is new; the observer sets it before the tailer begins."""

    def get(self, ref: BatchRef) -> FreshBatch | None:
        """Return a batch if it is one of them."""
        return self._batches.get(ref.key)

    def add(self, taker: Taker) -> None:
        """Note one more subscription that takes what is new."""
        self._takers[taker] += 1
        if self._takers[taker] == 1 and _is_simple(taker.predicate):
            self._simple[taker] = None
            self._serve()

    def remove(self, taker: Taker) -> None:
        """Note one less."""
        self._takers[taker] -= 1
        if not self._takers[taker]:
            del self._takers[taker]
            if taker in self._simple:
                del self._simple[taker]
                self._serve()

    def _serve(self) -> None:
        """Make frames ahead for few kinds of takers, and simple ones: more would hold up what is published."""
        self._served = tuple(self._simple) if len(self._simple) <= _TAKERS_MAX else ()

    # From here on: the tailer's thread.

    def foresee(self, read: ReadEntry) -> None:
        """Make ready what an entry carries that may become the next one; nobody gets it before it has."""
        self._ahead = None
        if not self._takers:
            return
        with suppress(Exception):  # it is read again once it is there, and fails then
            ref = carried_batch(read)
            if ref is None or ref.rows > ROWS_MAX:
                return
            batch = self._load(ref, read.data)
            self._ahead = read.entry, batch
            for taker in self._served:
                self._encode(batch, taker, read.entry.timestamp)

    def prepare(self, view: LogView, read: ReadEntry | None) -> None:
        """Read what is new in a view, if it is little; what cannot be read fails where it is asked for.

        Args:
            view: What is about to be shown.
            read: The entry that was read last, which may carry what is new.
        """
        row, self.end_row = self.end_row, view.end_row
        ahead, self._ahead = self._ahead, None
        if not self._takers:
            return
        try:
            for ref in _small_batches(view, row):
                if read is None or read.path != ref.segment.path:
                    batch = self._load(ref, None)
                elif ahead is not None and ahead[0] is read.entry:
                    batch = ahead[1]
                else:
                    batch = self._load(ref, read.data)
                self._batches[ref.key] = batch
        except Exception:  # it is read again by who needs it, and fails there
            return
        for old in tuple(self._batches.values())[:-_FRAMES_MAX]:
            old.frames.clear()
        while len(self._batches) > _BATCHES_MAX:
            del self._batches[next(iter(self._batches))]

    def _load(self, ref: BatchRef, file: bytes | None) -> FreshBatch:
        bodies = Bodies(self._reader.texts(ref, BODY_COLUMNS, file))
        return FreshBatch(group_by_class(self._reader.head(ref, file)), bodies)

    def _encode(self, batch: FreshBatch, taker: Taker, timestamp: int) -> None:
        """Make the frames of a batch for a taker, if it takes any of it."""
        predicate, codec, content = taker
        selection = predicate.select(batch.grouped, NO_IMAGES)
        key = (selection.identity, codec.name, content.value)
        if not len(selection) or key in batch.frames:
            return
        batch.frames[key] = encode(
            batch.grouped.head,
            batch.bodies.only(body_columns(content)),
            selection,
            codec=codec,
            catalog_uuid=self._uuid,
            timestamps_of=lambda versions: repeated(timestamp, len(versions)),
            schema_of=NO_IMAGES.schema_of,
            message_bytes=self._settings.message_bytes,
        )


def _is_simple(predicate: Predicate) -> bool:
    """Whether selecting costs next to nothing, without the router's tables."""
    few = len(predicate.alternatives) <= _ALTERNATIVES_MAX
    return few and not (predicate.has_keys or predicate.needs_images)


def _small_batches(view: LogView, row: int) -> list[BatchRef]:
    """Return the batches from a row on; none at all if they are many or large."""
    refs: list[BatchRef] = []
    while row < view.end_row:
        ref = view.batch(view.find_row(row))
        if ref.rows > ROWS_MAX or len(refs) == _BATCHES_MAX:
            return []
        refs.append(ref)
        row = ref.first_row + ref.rows
    return refs
