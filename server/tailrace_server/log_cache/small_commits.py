"""Small batches of the newest commits, read before a subscription needs them.

Every live subscription needs a commit of a few rows at once, and reading it costs less than two round trips
to a reader thread. So the tailer's thread reads the batch, or takes it out of the entry that it has just
read. The event loop then routes and encodes it without a file. The batch of an entry that still has its
temporary name is read, and encoded for a few kinds of subscriptions, before it is published. No
subscription gets it before that.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server.log_cache.frames import body_columns, encode
from tailrace_server.rows.batch_images import NO_IMAGES
from tailrace_server.rows.record_classes import GroupedHead, group_by_class
from tailrace_server.wal.files.documents import CommitEntry
from tailrace_server.wal.record.columns import BODY_COLUMNS
from tailrace_server.wal.record.text_columns import repeated
from tailrace_server.wal.segment.carried import ROWS_MAX
from tailrace_server.wal.state.state import carried_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from uuid import UUID

    from tailrace.criteria import Content
    from tailrace.schema import Schema
    from tailrace_server.codecs import Codec
    from tailrace_server.log_cache.frames import FrameBlock
    from tailrace_server.resources.settings import EngineSettings
    from tailrace_server.rows.predicate import Predicate
    from tailrace_server.wal.files.documents import Entry, ReadEntry
    from tailrace_server.wal.record.text_columns import Texts
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.view import LogView

_BATCHES_MAX: Final = 16
"""Batches that are read of one view, and that are kept in all."""
_BATCHES_WITH_FRAMES_MAX: Final = 2
"""Newest batches that keep the frames that were made ahead."""
_REQUESTS_MAX: Final = 8
"""Frames are made ahead only if there are no more kinds of simple requests than this."""
_ALTERNATIVES_MAX: Final = 4
"""Alternatives in the criteria of a simple request."""


_COLUMN_BYTES: Final = 1_000
"""Bytes of the arrays and objects of a column beside its values."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Columns of images of one batch."""

    columns: dict[str, Texts]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they hold."""
        return sum(column.nbytes + _COLUMN_BYTES for column in self.columns.values())

    def only(self, names: Iterable[str]) -> dict[str, Texts]:
        """Return the columns of these names."""
        return {name: self.columns[name] for name in names}


class FrameRequest(NamedTuple):
    """Which frames of every batch some subscriptions take."""

    predicate: Predicate
    codec: Codec
    content: Content


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """One batch, read in full."""

    grouped: GroupedHead
    bodies: Bodies
    frames: dict[tuple[Hashable, str, int], FrameBlock] = field(default_factory=dict)
    """Frames that were made ahead and not taken yet, by identity of their selection, codec and content."""


class SmallCommits:
    """The newest small batches of one catalog. The tailer's thread adds them; any thread may get them."""

    def __init__(self, uuid: UUID, reader: BatchReader, settings: EngineSettings) -> None:
        """Begin without batches; nothing is read while there is no request."""
        self._uuid = uuid
        self._reader = reader
        self._settings = settings
        self._batches: dict[Hashable, LoadedBatch] = {}
        self._arriving: tuple[Entry, LoadedBatch] | None = None
        """An entry that has no name in the log yet, and the batch that it carries."""
        self._requests: Counter[FrameRequest] = Counter()
        """Open subscriptions of each request."""
        self._simple: dict[FrameRequest, None] = {}
        """Requests whose frames could be made ahead, in the order in which they came."""
        self._made_ahead: tuple[FrameRequest, ...] = ()
        """Requests whose frames are made ahead: all simple ones or none."""
        self.end_row = 0
        """First row that is not read yet; the observer sets it before the tailer begins."""
        self.schema_of: Callable[[int], Schema] = NO_IMAGES.schema_of
        """The schema of each version, as the newest view has it; the observer sets it, too."""

    def get(self, ref: BatchRef) -> LoadedBatch | None:
        """Return a batch if it is one of the newest small ones."""
        return self._batches.get(ref.key)

    def add(self, request: FrameRequest) -> None:
        """Count one more subscription with this request."""
        self._requests[request] += 1
        if self._requests[request] == 1 and _is_simple(request.predicate):
            self._simple[request] = None
            self._choose_made_ahead()

    def remove(self, request: FrameRequest) -> None:
        """Count one subscription less."""
        self._requests[request] -= 1
        if not self._requests[request]:
            del self._requests[request]
            if request in self._simple:
                del self._simple[request]
                self._choose_made_ahead()

    def _choose_made_ahead(self) -> None:
        """Choose the requests whose frames are made ahead: of too many, none, as publishing waits for them."""
        self._made_ahead = tuple(self._simple) if len(self._simple) <= _REQUESTS_MAX else ()

    # All methods below run in the tailer's thread.

    def read_arriving(self, read: ReadEntry) -> None:
        """Read the batch of an entry that may become the next one, and encode it for simple requests."""
        # 1. Forget the entry before, whatever comes: only one can become the next, and its file is known
        # by the very `Entry` object that was read of it.
        self._arriving = None
        if not self._requests:
            return
        # 2. Nothing may fail here. The entry may never get its name, and if it does, `read_published` or a
        # subscription reads it again and reports what is wrong with it.
        with suppress(Exception):
            ref = carried_batch(read)
            if ref is None or ref.rows > ROWS_MAX:
                return
            batch = self._load(ref, read.data)
            # 3. Keep the batch before frames are made: a codec that fails does not cost the reading.
            self._arriving = read.entry, batch
            # A schema that begins in the entry is not known before the entry counts.
            if isinstance(read.entry, CommitEntry) and read.entry.schemas:
                return
            for request in self._made_ahead:
                self._encode(batch, request, read.entry.timestamp)

    def read_published(self, view: LogView, read: ReadEntry | None) -> None:
        """Read the batches that are new in a view, if they are few and small.

        A batch that cannot be read is left out; the subscription that needs it meets the error.

        Args:
            view: The view that is about to be shown.
            read: The entry that was read last, which may carry the newest batch.
        """
        # 1. Move on first: on every path out of here these rows count as seen. A batch that is left out
        # is read like any old one. Rows seen twice would hold back the small ones that follow.
        row, self.end_row = self.end_row, view.end_row
        self.schema_of = view.schema_of
        arriving, self._arriving = self._arriving, None
        if not self._requests:
            return
        # 2. Take each batch from where it costs least: its file, the bytes of the entry, or what was
        # read while the entry arrived. The last one counts only for the very same `Entry` object: an
        # entry of equal content and another time would have other frames.
        try:
            for ref in _small_batches(view, row):
                if read is None or read.path != ref.segment.path:
                    batch = self._load(ref, None)
                elif arriving is not None and arriving[0] is read.entry:
                    batch = arriving[1]
                else:
                    batch = self._load(ref, read.data)
                self._batches[ref.key] = batch
        except Exception:  # the next caller reads it again, and meets the error
            return
        # 3. Bound what is kept: frames of the newest two batches, heads and bodies of sixteen.
        for old in tuple(self._batches.values())[:-_BATCHES_WITH_FRAMES_MAX]:
            old.frames.clear()
        while len(self._batches) > _BATCHES_MAX:
            del self._batches[next(iter(self._batches))]

    def _load(self, ref: BatchRef, file: bytes | None) -> LoadedBatch:
        bodies = Bodies(self._reader.texts(ref, BODY_COLUMNS, file))
        return LoadedBatch(group_by_class(self._reader.head(ref, file)), bodies)

    def _encode(self, batch: LoadedBatch, request: FrameRequest, timestamp: int) -> None:
        """Make the frames of a batch for a request, if its predicate matches any of it."""
        predicate, codec, content = request
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
            schema_of=self.schema_of,
            message_bytes=self._settings.message_bytes,
        )


def _is_simple(predicate: Predicate) -> bool:
    """Return whether the predicate selects cheaply, without keys, images or many alternatives; and by names."""
    few = len(predicate.alternatives) <= _ALTERNATIVES_MAX
    by_names = predicate.shown is None or not predicate.shown.follows_schema
    return few and by_names and not (predicate.has_keys or predicate.needs_images)


def _small_batches(view: LogView, row: int) -> list[BatchRef]:
    """Return the batches from a row on; none at all if they are too many or one is too large."""
    refs: list[BatchRef] = []
    while row < view.end_row:
        ref = view.batch(view.find_row(row))
        if ref.rows > ROWS_MAX or len(refs) == _BATCHES_MAX:
            return []
        refs.append(ref)
        row = ref.first_row + ref.rows
    return refs
