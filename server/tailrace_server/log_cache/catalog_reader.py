"""Reads of one catalog's log for the engine, by reader threads and through the batch cache.

A scan reads a *window*: neighbouring batches between fixed borders. So subscriptions at nearby positions
request the same window, and share one read of it.
"""

# Long: all reads of a catalog share the cache and its keys.

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

import numpy as np

from tailrace.criteria import CaptureKind
from tailrace.errors import LogCorrupted, LogError
from tailrace.position import END, MAX_VERSION, Position
from tailrace_server.log_cache.batch_cache import CacheKind
from tailrace_server.log_cache.damage import Damage
from tailrace_server.log_cache.frames import CrowdFrames, FrameBlock, body_columns, encode
from tailrace_server.log_cache.key_gaps import KeyedBatches, key_file_of, keyed_batches
from tailrace_server.log_cache.small_commits import Bodies, SmallCommits
from tailrace_server.resources.statistics import committed_at
from tailrace_server.rows.batch_images import BatchImages
from tailrace_server.rows.judging import not_judged
from tailrace_server.rows.record_classes import GroupedHead, group_by_class
from tailrace_server.rows.run import Run, runs_of, whole_batch
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.record.columns import multiplicity_of
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import pyarrow as pa

    from tailrace.criteria import Content
    from tailrace_server.codecs import Codec
    from tailrace_server.log_cache.batch_cache import BatchCache, OpenScans, Sized
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.resources.settings import EngineSettings
    from tailrace_server.rows.predicate import Predicate
    from tailrace_server.wal.base.reading import TableState
    from tailrace_server.wal.segment.reader import BatchHead, BatchReader
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.view import LogView

_S = TypeVar("_S", bound="Sized")

_READ_AHEAD_BATCHES_MAX: Final = 8
"""The most heads that one load reads for a caller that needs one head after the other."""
_READ_AHEAD_BYTES_MAX: Final = 2 << 20
"""The most bytes of these heads together."""
_READ_AHEAD_CACHE_PART: Final = 8
"""These heads may take 1/8 of the bound of reads at most. Otherwise they would evict each other."""
_CROWD: Final = object()
"""Stands for the selection in the cache key of a batch's crowd frames."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The matches of a predicate in one window of the log."""

    runs: tuple[Run, ...]
    first_row: int
    """First row of the window, which may be before the row that the caller requested."""
    end_row: int
    """First row after the window."""
    end: Position
    """Position of the last record of the window."""
    nbytes: int
    """Bytes of memory that the runs hold."""


class CatalogReader:
    """Reads one catalog. The event loop calls it, and reader threads do the work."""

    def __init__(
        self,
        view: LogView,
        reader: BatchReader,
        cache: BatchCache,
        settings: EngineSettings,
        damage: Damage | None = None,
    ) -> None:
        """Bind one opening of a log to the cache of the process.

        Args:
            view: Any view of that opening.
            reader: Reads the log's batches.
            cache: The cache of the process.
            settings: The engine's settings.
            damage: Collects the damaged places that reads find; None: a new collection.
        """
        self._uuid = uuid = view.uuid
        self._opening = view.opening
        """Identity of the opening: the first member of every cache key."""
        self.batches = reader
        """Reads batches without the cache, in any thread."""
        self._cache = cache
        self._settings = settings
        self.small_commits = SmallCommits(uuid, reader, settings)
        """The newest small batches, which the tailer adds."""
        self.damage = Damage(uuid, reader.store) if damage is None else damage
        """The damaged places of the log that reads have found."""

    def forget(self) -> None:
        """Drop all values of this opening of the log from the cache."""
        self._cache.forget(self._opening)

    async def grouped(self, ref: BatchRef) -> GroupedHead:
        """Return a batch's head, grouped by class."""
        recent = self.small_commits.get(ref)
        if recent is not None:
            return recent.grouped
        key = (self._opening, ref.key)
        return await self._cache.get(CacheKind.HEAD, key, partial(self._load_grouped, ref))

    async def grouped_reading_ahead(self, view: LogView, place: int) -> GroupedHead:
        """Return the head of the batch at a place; if it is not in memory, read the next heads with it."""
        ref = view.batch(place)
        if (recent := self.small_commits.get(ref)) is not None:
            return recent.grouped
        key = (self._opening, ref.key)
        found: list[GroupedHead] = []
        grouped = await self._cache.get(
            CacheKind.HEAD, key, partial(self._load_ahead, view, place, found)
        )
        self._keep_heads(found)
        return grouped

    def has_head(self, view: LogView, row: int) -> bool:
        """Return True if a row is retained and the head of its batch is in memory."""
        return (
            row >= view.first_row
            and self._head_in_memory(view.batch(view.find_row(row))) is not None
        )

    async def images(self, ref: BatchRef, view: LogView, names: tuple[str, ...]) -> BatchImages:
        """Read images of a batch; ``names`` has ``before``, ``after`` or both."""
        recent = self.small_commits.get(ref)
        if recent is not None:
            bodies = recent.bodies
        else:
            load = partial(self._load_bodies, ref, names)
            bodies = await self._cache.get(CacheKind.BODY, (self._opening, ref.key, names), load)
        gone = None
        if view.bodies.may_be_in(ref):
            gone = view.bodies.rows_in((await self.grouped(ref)).head)
        return BatchImages(lambda name: bodies.columns[name].array, view, gone)

    async def has_no_key(self, view: LogView, head: BatchHead, offset: int) -> bool:
        """Return True if the entity type of a data record has no key, so that its rows have counts.

        Args:
            view: A view that includes the record's schema.
            head: The head of the record's batch.
            offset: The row of the record in the batch; the record has a text as its key.
        """
        schema = view.schema_of(int(head.versions[offset]))
        columns = schema.entity_types.get(head.entity_types[head.type_codes[offset]], ())
        if any(column.key for column in columns) or head.changed[offset].is_valid:
            return False
        names = ("change",)
        load = partial(self._load_bodies, head.ref, names)
        bodies = await self._cache.get(CacheKind.BODY, (self._opening, head.ref.key, names), load)
        change = bodies.columns["change"].array[offset].as_py()
        return change is not None and multiplicity_of(change) is not None

    async def row_of(self, view: LogView, position: Position) -> int:
        """Return the row of the first published record at or after a position; ``end_row`` if there is none."""
        place = view.find(position)
        if place >= len(view):
            return view.end_row
        ref = view.batch(place)
        if position <= ref.first:
            return ref.first_row
        head = (await self.grouped(ref)).head
        start = int(np.searchsorted(head.versions, position.version))
        stop = int(np.searchsorted(head.versions, position.version, "right"))
        start += int(np.searchsorted(head.indexes[start:stop], position.index))
        return ref.first_row + start

    async def position_of(self, view: LogView, row: int) -> Position:
        """Return the position of the published record with a row number."""
        ref = view.batch(view.find_row(row))
        if row == ref.first_row:
            return ref.first
        head = (await self.grouped(ref)).head
        offset = row - ref.first_row
        return Position(int(head.versions[offset]), int(head.indexes[offset]))

    async def scan(self, view: LogView, row: int, predicate: Predicate) -> Scan:
        """Return the matches of a predicate in a window that includes ``row``.

        If key files show that there are no matches around the row, the window is that whole gap, and nothing is
        read.
        """
        place = view.find_row(row)
        window = self._window(view, place)
        if (keyed := await self._keyed(view, place, predicate)) is not None:
            if gap := keyed.gap(place):
                first, last = view.batch(gap[0]), view.batch(gap[-1])
                return Scan((), first.first_row, last.first_row + last.rows, last.last, 0)
            window = keyed.part_of(window, place)
        try:
            return await self._scan(view, window, predicate)
        except (SegmentMissing, LogCorrupted):
            if len(window) == 1:
                raise
            # The fault may be in a batch of the window that this caller does not need: read its own batch
            # alone.
            return await self._scan(view, range(place, place + 1), predicate)

    async def _keyed(self, view: LogView, place: int, predicate: Predicate) -> KeyedBatches | None:
        number = key_file_of(view, place, predicate)
        if number is None:
            return None
        key = (self._opening, view.revision, predicate.identity, number)
        load = partial(keyed_batches, view, self.batches, number, predicate)
        return await self._cache.get(CacheKind.SCAN, key, load)

    async def _scan(self, view: LogView, window: range, predicate: Predicate) -> Scan:
        # The key has the revision, because places mean other batches after a compaction or a trim.
        key = (self._opening, view.revision, predicate.identity, window.start, window.stop)
        matched: list[GroupedHead] = []
        scan = await self._cache.get(
            CacheKind.SCAN, key, partial(self._load_scan, view, window, predicate, matched)
        )
        self._keep_heads(matched)  # these batches are encoded next
        return scan

    def _keep_heads(self, heads: Sequence[GroupedHead]) -> None:
        """Add heads that were read as a by-product to the cache."""
        for grouped in heads:
            self._cache.put(CacheKind.HEAD, (self._opening, grouped.head.ref.key), grouped)

    def _window(self, view: LogView, place: int) -> range:
        """Return the places of the window that includes a batch; windows of large batches are short."""
        size = max(
            1, min(self._settings.scan_batches, self._settings.scan_rows // view.rows(place))
        )
        # Sizes are powers of two. So the borders of a long window are also borders of shorter ones, and windows
        # of batches of different sizes do not overlap.
        size = 1 << (size.bit_length() - 1)
        start = place - place % size
        return range(start, min(start + size, len(view)))

    def ready_frames(
        self, run: Run, view: LogView, codec: Codec, content: Content
    ) -> FrameBlock | None:
        """Return a run's frames if they can be made without reading the log; else None."""
        # 1. The frames themselves, if they are cached.
        key = self._frames_key(run.batch, run.selection.identity, codec, content)
        block = cast("FrameBlock | None", self._cache.get_nowait(CacheKind.FRAMES, key))
        # 2. Frames that were encoded ahead. They move to the cache, so that its bounds include them.
        if block is None and (recent := self.small_commits.get(run.batch)) is not None:
            block = recent.frames.pop(key[2:], None)
            if block is not None:
                self._cache.put(CacheKind.FRAMES, key, block)
        # 3. Frames of the whole batch, from which this run's frames are copied: cheaper than encoding them.
        #    This works only for changes as whole records with all of their images.
        if block is None and run.selection.is_plain and run.kind is CaptureKind.CHANGE:
            all_frames = self._frames_key(run.batch, None, codec, content)
            of_batch = cast(
                "FrameBlock | None", self._cache.get_nowait(CacheKind.FRAMES, all_frames)
            )
            if of_batch is not None:
                block = of_batch.pick(run.selection, self._settings.message_bytes)
                self._cache.put(CacheKind.FRAMES, key, block)
        # 4. A small batch in memory is encoded here: a round trip to a reader thread would cost more.
        if block is None and self.small_commits.get(run.batch) is not None:
            key, load = self._frames_job(run, view, codec, content)
            block = load()
            self._cache.put(CacheKind.FRAMES, key, block)
            block = self._own(block, key, run)
        return block

    async def frames(self, run: Run, view: LogView, codec: Codec, content: Content) -> FrameBlock:
        """Return a run's frames, encoded once for all subscriptions with the same content.

        It reads one run at a time. With two runs in one load, the client would process its captures and then
        wait for both runs, and the server would wait while both are sent (docs/adr/0033).
        """
        block = self.ready_frames(run, view, codec, content)
        if block is not None:
            return block
        key, load = self._frames_job(run, view, codec, content)
        return self._own(await self._cache.get(CacheKind.FRAMES, key, load), key, run)

    def _own(self, block: FrameBlock, key: tuple[Hashable, ...], run: Run) -> FrameBlock:
        """Return a run's frames from a loaded block, which may have the frames of the whole batch."""
        if key[2] == run.selection.identity:
            return block
        return block.pick(run.selection, self._settings.message_bytes)

    async def encode_for_crowd(
        self, run: Run, view: LogView, codec: Codec, content: Content
    ) -> None:
        """Encode the records that many publishers match, a few each; only whole records, not columns.

        All frames are made at once (*crowd frames*), which is cheaper than one job for each publisher.
        """
        key = self._frames_key(run.batch, _CROWD, codec, content)
        load = partial(self._load_crowd, run, view, codec, content)
        # A small batch is in memory: encode it here, as in step 4 of ``ready_frames``.
        if self.small_commits.get(run.batch) is not None:
            self._cache.put(CacheKind.FRAMES, key, load())
        else:
            await self._cache.get(CacheKind.FRAMES, key, load)

    def crowd_frames(self, run: Run, codec: Codec, content: Content) -> Frames | None:
        """Return a run's frames from the crowd frames of its batch; None if these do not exist or lack some."""
        key = self._frames_key(run.batch, _CROWD, codec, content)
        crowd = cast("CrowdFrames | None", self._cache.get_nowait(CacheKind.FRAMES, key))
        return None if crowd is None else crowd.of(run.selection.rows.tolist())

    def drop_frames_unless_shared(self, run: Run, codec: Codec, content: Content) -> None:
        """Drop a run's frames, which a subscription has used, unless other open readers may need them."""
        key = self._frames_key(run.batch, run.selection.identity, codec, content)
        self._cache.drop_unless_shared(CacheKind.FRAMES, key)

    def prefetch_frames(self, run: Run, view: LogView, codec: Codec, content: Content) -> None:
        """Begin to encode a run that will be sent soon, if its frames are not cached."""
        key, load = self._frames_job(run, view, codec, content)
        self._cache.prefetch(CacheKind.FRAMES, key, load)

    def _frames_job(
        self, run: Run, view: LogView, codec: Codec, content: Content
    ) -> tuple[tuple[Hashable, Hashable, Hashable, str, int], Callable[[], FrameBlock]]:
        """Return the cache key of a run's frames, and the function that makes them.

        If all publishers together match most of the batch, the whole batch is encoded, and each publisher picks
        its frames from that.
        """
        selection = run.selection
        if run.crowded and selection.is_plain and not view.bodies.may_be_in(run.batch):
            selection = whole_batch(run.batch.rows)
        key = self._frames_key(run.batch, selection.identity, codec, content)
        encoded = Run(run.batch, selection, run.first, kind=run.kind)
        return key, partial(self._load_frames, encoded, view, codec, content)

    def _frames_key(
        self, ref: BatchRef, identity: Hashable, codec: Codec, content: Content
    ) -> tuple[Hashable, Hashable, Hashable, str, int]:
        return (self._opening, ref.key, identity, codec.name, content.value)

    async def table_state(self, view: LogView, entity_type: str, version: int) -> TableState:
        """Return the state of an entity type at a version; its rows are not read yet.

        Raises:
            InvalidRequest: The log does not have the entity type, or the version is not published.
            PositionCompacted: The version was trimmed, and no base has its rows.
            SegmentMissing: A file was deleted since the view was made.
        """
        key = (self._opening, view.revision, entity_type, version)
        load = partial(_load_table, view, self.batches, entity_type, version, self.damage.add)
        return (await self._cache.get(CacheKind.SCAN, key, load)).table

    @property
    def scans(self) -> OpenScans:
        """The paused scans of tables, from the cache."""
        return self._cache.scans

    async def table_part(self, key: tuple[Hashable, ...], load: Callable[[], _S]) -> _S:
        """Return a part of a table's rows, read once for all callers, whatever codec or content they use."""
        return await self._cache.get(CacheKind.BODY, (self._opening, "rows", *key), load)

    def ready_state_block(self, key: tuple[Hashable, ...]) -> Sized | None:
        """Return a block of encoded rows of a table if it is cached; else None."""
        return self._cache.get_nowait(CacheKind.FRAMES, (self._opening, "state", *key))

    async def state_block(self, key: tuple[Hashable, ...], load: Callable[[], _S]) -> _S:
        """Return a block of encoded rows of a table, made once for all callers with the same key."""
        return await self._cache.get(CacheKind.FRAMES, (self._opening, "state", *key), load)

    def keep_state_block(self, key: tuple[Hashable, ...], block: Sized) -> None:
        """Cache a block under a further key: the place in the block at which its reader will continue."""
        self._cache.put(CacheKind.FRAMES, (self._opening, "state", *key), block)

    # The methods below run in reader threads. They read the cache by ``peek``, and leave additions to the event
    # loop.

    def _head(self, ref: BatchRef) -> GroupedHead:
        found = self._head_in_memory(ref)
        return self._load_grouped(ref) if found is None else found

    def _head_in_memory(self, ref: BatchRef) -> GroupedHead | None:
        recent = self.small_commits.get(ref)
        if recent is not None:
            return recent.grouped
        return cast(
            "GroupedHead | None", self._cache.peek(CacheKind.HEAD, (self._opening, ref.key))
        )

    def _load_grouped(self, ref: BatchRef) -> GroupedHead:
        return group_by_class(self.batches.head(ref))

    def _load_ahead(self, view: LogView, place: int, found: list[GroupedHead]) -> GroupedHead:
        """Return a batch's head; also read the next heads, and append them to ``found``."""
        # 1. The head of the batch itself. The caller gets its error.
        ref = view.batch(place)
        grouped = self._load_grouped(ref)
        # 2. The next heads, up to one that cannot be read. The caller adds them to the cache on the event loop.
        bytes_max = min(_READ_AHEAD_BYTES_MAX, self._settings.reads_bytes // _READ_AHEAD_CACHE_PART)
        behind = _behind(view, place, bytes_max=bytes_max - ref.head_length)
        # The caller that needs a damaged head reads it again, and gets the error.
        with suppress(LogError):
            found.extend(map(self._head, behind))
        return grouped

    def _load_bodies(self, ref: BatchRef, names: Sequence[str]) -> Bodies:
        return Bodies(self.batches.texts(ref, names))

    def _bodies(self, ref: BatchRef, names: tuple[str, ...]) -> Bodies:
        recent = self.small_commits.get(ref)
        if recent is not None:
            return recent.bodies
        found = self._cache.peek(CacheKind.BODY, (self._opening, ref.key, names))
        return self._load_bodies(ref, names) if found is None else cast("Bodies", found)

    def _load_scan(
        self,
        view: LogView,
        window: range,
        predicate: Predicate,
        matched: list[GroupedHead],
    ) -> Scan:
        """Scan a window; append the heads of the batches with matches to ``matched``."""
        # Bodies are read only if the predicate needs images, one batch at a time, since a window may be larger
        # than the cache. They are not cached, because a scan needs them only once.
        runs: list[Run] = []
        refs = [view.batch(place) for place in window]
        for ref in refs:
            grouped = self._head(ref)
            gone = view.bodies.rows_in(grouped.head)
            bodies = cache(partial(self._bodies, ref, predicate.images))
            images = BatchImages(partial(_body, bodies), view, gone)
            selection = predicate.select(grouped, images)
            if len(selection):
                at = committed_at(view, ref.last.version)
                runs += runs_of(grouped.head, ref, selection, gone, at=at)
                matched.append(grouped)
        last = refs[-1]
        nbytes = 200 + sum(run.nbytes for run in runs)
        return Scan(tuple(runs), refs[0].first_row, last.first_row + last.rows, last.last, nbytes)

    def _load_crowd(self, run: Run, view: LogView, codec: Codec, content: Content) -> CrowdFrames:
        block = self._load_frames(run, view, codec, content)
        return CrowdFrames(block, run.selection.rows.tolist())

    def _load_frames(self, run: Run, view: LogView, codec: Codec, content: Content) -> FrameBlock:
        names = body_columns(content)
        # A head that has to be read is not grouped by class, because encoding does not need that.
        found = self._head_in_memory(run.batch)
        head = self.batches.head(run.batch) if found is None else found.head
        if run.selection.is_unjudged:
            raise not_judged(head, run.selection.rows.item(0))
        if names:
            view.bodies.refuse(head, run.selection.rows)
        elif view.bodies.may_be_in(run.batch) and len(untold := run.selection.untold()):
            view.bodies.refuse(head, run.selection.rows[untold])
        return encode(
            head,
            self._bodies(run.batch, names).only(names) if names else {},
            run.selection,
            codec=codec,
            catalog_uuid=self._uuid,
            timestamps_of=view.timestamps_of,
            schema_of=view.schema_of,
            message_bytes=self._settings.message_bytes,
            kind=run.kind,
        )


def _body(bodies: Callable[[], Bodies], name: str) -> pa.BinaryArray:
    """Return the images of one name. The first call reads the images of all names."""
    return bodies().columns[name].array


@dataclass(frozen=True, slots=True)
class _LoadedTable:
    """A table's state, with a size for the cache."""

    table: TableState
    nbytes: int = 2_000


def _load_table(
    view: LogView,
    reader: BatchReader,
    entity_type: str,
    version: int,
    on_damage: Callable[[LogCorrupted], None],
) -> _LoadedTable:
    return _LoadedTable(table_state(view, reader, entity_type, version, on_damage))


def _behind(view: LogView, place: int, *, bytes_max: int) -> list[BatchRef]:
    """Return the batches after a place whose heads are read ahead, at most ``bytes_max`` bytes of heads."""
    found = []
    for next_place in range(place + 1, min(place + _READ_AHEAD_BATCHES_MAX, len(view))):
        ref = view.batch(next_place)
        bytes_max -= ref.head_length
        if bytes_max < 0:
            break
        found.append(ref)
    return found


def position_after(position: Position) -> Position:
    """Return the lowest position that can come after a record's position."""
    if position.index >= END:
        return Position(min(position.version + 1, MAX_VERSION), 0)
    return Position(position.version, position.index + 1)
