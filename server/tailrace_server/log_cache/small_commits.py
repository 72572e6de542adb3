"""Small batches of the newest commits, read before subscriptions need them.

All live subscriptions need a small new commit at once, and reading it costs less than two round trips to a
reader thread. So the tailer's thread reads the batch, or takes it from the entry that it has just read. The
event loop then routes and encodes the batch without reading a file. If an entry still has its temporary name,
its batch is already read, and encoded for a few kinds of subscriptions. Subscriptions get it only after it is
published.
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
"""The most batches that are read for one view, and the most that are retained."""
_BATCHES_WITH_FRAMES_MAX: Final = 2
"""Number of newest batches that retain frames which were encoded ahead."""
_REQUESTS_MAX: Final = 8
"""The most distinct simple requests for which frames are encoded ahead; with more, none are."""
_ALTERNATIVES_MAX: Final = 4
"""The most alternatives in the criteria of a simple request."""


_COLUMN_BYTES: Final = 1_000
"""Bytes of a column's arrays and objects without its values."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Image columns of one batch, by name."""

    columns: dict[str, Texts]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the columns hold."""
        return sum(column.nbytes + _COLUMN_BYTES for column in self.columns.values())

    def only(self, names: Iterable[str]) -> dict[str, Texts]:
        """Return the columns with some names."""
        return {name: self.columns[name] for name in names}


class FrameRequest(NamedTuple):
    """The frames that a subscription needs of each batch. Equal requests share frames."""

    predicate: Predicate
    codec: Codec
    content: Content


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """One batch with its head, all images, and maybe frames."""

    grouped: GroupedHead
    bodies: Bodies
    frames: dict[tuple[Hashable, str, int], FrameBlock] = field(default_factory=dict)
    """Frames that were encoded ahead and are not used yet, by the selection's identity, codec and content."""


class SmallCommits:
    """The newest small batches of one catalog. The tailer's thread adds them; any thread may call ``get``."""

    def __init__(self, uuid: UUID, reader: BatchReader, settings: EngineSettings) -> None:
        """Begin without batches; nothing is read until there is a request."""
        self._uuid = uuid
        self._reader = reader
        self._settings = settings
        self._batches: dict[Hashable, LoadedBatch] = {}
        self._arriving: tuple[Entry, LoadedBatch] | None = None
        """An entry that still has its temporary name, and the batch that it carries."""
        self._requests: Counter[FrameRequest] = Counter()
        """Number of open subscriptions with each request."""
        self._simple: dict[FrameRequest, None] = {}
        """Requests whose frames can be encoded ahead, in the order in which they came."""
        self._made_ahead: tuple[FrameRequest, ...] = ()
        """Requests whose frames are encoded ahead: all simple ones or none."""
        self.end_row = 0
        """First row that is not read yet. The observer sets it before the tailer starts."""
        self.schema_of: Callable[[int], Schema] = NO_IMAGES.schema_of
        """Returns the schema of a version by the newest view. The observer sets it before the tailer starts."""

    def get(self, ref: BatchRef) -> LoadedBatch | None:
        """Return a batch if it is one of the newest small ones; else None."""
        return self._batches.get(ref.key)

    def add(self, request: FrameRequest) -> None:
        """Add a subscription with a request."""
        self._requests[request] += 1
        if self._requests[request] == 1 and _is_simple(request.predicate):
            self._simple[request] = None
            self._choose_made_ahead()

    def remove(self, request: FrameRequest) -> None:
        """Remove a subscription with a request."""
        self._requests[request] -= 1
        if not self._requests[request]:
            del self._requests[request]
            if request in self._simple:
                del self._simple[request]
                self._choose_made_ahead()

    def _choose_made_ahead(self) -> None:
        """Choose the requests whose frames are encoded ahead.

        If there are too many, choose none, since the publication to readers waits for this work.
        """
        self._made_ahead = tuple(self._simple) if len(self._simple) <= _REQUESTS_MAX else ()

    # The methods below run in the tailer's thread.

    def read_arriving(self, read: ReadEntry) -> None:
        """Read the batch of an entry that may become the next one, and encode it for simple requests."""
        # 1. Drop the entry that was read ahead before: only one can become the next entry. It is identified
        #    later by the `Entry` object that was read from the file.
        self._arriving = None
        if not self._requests:
            return
        # 2. Ignore all errors. The entry may never become part of the log. If it does, `read_published` or a
        # subscription reads it again and raises the error.
        with suppress(Exception):
            ref = carried_batch(read)
            if ref is None or ref.rows > ROWS_MAX:
                return
            batch = self._load(ref, read.data)
            # 3. Store the batch before frames are made, so that an error of a codec does not lose it.
            self._arriving = read.entry, batch
            # If the entry has a new schema, that schema is not known here yet, and frames may need it.
            if isinstance(read.entry, CommitEntry) and read.entry.schemas:
                return
            for request in self._made_ahead:
                self._encode(batch, request, read.entry.timestamp)

    def read_published(self, view: LogView, read: ReadEntry | None) -> None:
        """Read the batches that are new in a view, if they are few and small.

        If a batch cannot be read, it is left out, and the subscription that needs it gets the error.

        Args:
            view: The view that will become visible next.
            read: The entry that was read last, which may carry the newest batch.
        """
        # 1. Advance `end_row` first, so that it is right even if this returns early. Batches that are left out
        #    here are read like old ones. If their rows were checked again, later small batches would be left
        #    out as well.
        row, self.end_row = self.end_row, view.end_row
        self.schema_of = view.schema_of
        arriving, self._arriving = self._arriving, None
        if not self._requests:
            return
        # 2. Get each batch in the cheapest way: from its file, from the bytes of the entry, or as it was read
        #    ahead. The last is right only for the same `Entry` object: an entry with equal records and another
        #    timestamp would have other frames.
        try:
            for ref in _small_batches(view, row):
                if read is None or read.path != ref.segment.path:
                    batch = self._load(ref, None)
                elif arriving is not None and arriving[0] is read.entry:
                    batch = arriving[1]
                else:
                    batch = self._load(ref, read.data)
                self._batches[ref.key] = batch
        except Exception:  # the caller that needs the batch reads it again, and gets the error
            return
        # 3. Evict old ones: retain the frames of the newest two batches, and heads and bodies of sixteen.
        for old in tuple(self._batches.values())[:-_BATCHES_WITH_FRAMES_MAX]:
            old.frames.clear()
        while len(self._batches) > _BATCHES_MAX:
            del self._batches[next(iter(self._batches))]

    def _load(self, ref: BatchRef, file: bytes | None) -> LoadedBatch:
        bodies = Bodies(self._reader.texts(ref, BODY_COLUMNS, file))
        return LoadedBatch(group_by_class(self._reader.head(ref, file)), bodies)

    def _encode(self, batch: LoadedBatch, request: FrameRequest, timestamp: int) -> None:
        """Encode the frames of a batch for a request, if its predicate matches any record."""
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
    """Return True if a predicate is cheap to evaluate: few alternatives, no keys, no images.

    The visible part of its records must depend on names only, since their schema may be unknown at that time.
    """
    few = len(predicate.alternatives) <= _ALTERNATIVES_MAX
    by_names = predicate.shown is None or not predicate.shown.follows_schema
    return few and by_names and not (predicate.has_keys or predicate.needs_images)


def _small_batches(view: LogView, row: int) -> list[BatchRef]:
    """Return the batches from a row on; an empty list if they are too many or one is too large."""
    refs: list[BatchRef] = []
    while row < view.end_row:
        ref = view.batch(view.find_row(row))
        if ref.rows > ROWS_MAX or len(refs) == _BATCHES_MAX:
            return []
        refs.append(ref)
        row = ref.first_row + ref.rows
    return refs
