"""Reading one catalog's log for the engine: every read goes through the batch cache, in reader threads.

A scan reads a *window*: neighbouring batches between fixed borders. So subscriptions that read the log at
near positions ask for the same window, and share one reading of it.
"""

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
"""Heads that one load reads where they are needed one after the other."""
_READ_AHEAD_BYTES_MAX: Final = 2 << 20
"""Bytes of these heads in all."""
_READ_AHEAD_CACHE_PART: Final = 8
"""These heads may take one part in so many of the bound of reads, or they would evict each other."""
_CROWD: Final = object()
"""Identity of the frames of a batch that were made for a crowd."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The matches of a predicate in one window of the log."""

    runs: tuple[Run, ...]
    first_row: int
    """First row of the window; may lie before the row that the scan began with."""
    end_row: int
    """First row behind the window."""
    end: Position
    """Position of the last record of the window."""
    nbytes: int
    """Bytes that the runs hold."""


class CatalogReader:
    """Reads of one catalog. The event loop calls it, and reader threads do the work."""

    def __init__(
        self,
        view: LogView,
        reader: BatchReader,
        cache: BatchCache,
        settings: EngineSettings,
        damage: Damage | None = None,
    ) -> None:
        """Bind the reader of one opening of a log, which has made ``view``, to the process's cache."""
        self._uuid = uuid = view.uuid
        self._opening = view.opening
        """The first member of every key in the cache."""
        self.batches = reader
        """Reads past the cache, in any thread."""
        self._cache = cache
        self._settings = settings
        self.small_commits = SmallCommits(uuid, reader, settings)
        """The newest small batches; the tailer fills it."""
        self.damage = Damage(uuid, reader.store) if damage is None else damage
        """The damaged places that were found."""

    def forget(self) -> None:
        """Drop from the cache what was read through this opening of the log."""
        self._cache.forget(self._opening)

    async def grouped(self, ref: BatchRef) -> GroupedHead:
        """Return a batch's head, grouped by class."""
        recent = self.small_commits.get(ref)
        if recent is not None:
            return recent.grouped
        key = (self._opening, ref.key)
        return await self._cache.get(CacheKind.HEAD, key, partial(self._load_grouped, ref))

    async def grouped_reading_ahead(self, view: LogView, place: int) -> GroupedHead:
        """Return the head of the batch at a place; if it must be read, so are the heads behind it."""
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
        """Return whether the row is retained and the head of its batch is in memory."""
        return (
            row >= view.first_row
            and self._head_in_memory(view.batch(view.find_row(row))) is not None
        )

    async def images(self, ref: BatchRef, view: LogView, names: tuple[str, ...]) -> BatchImages:
        """Return images of a batch, read before it returns; ``names`` are of ``before`` and ``after``."""
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
        """Return whether the entity type of a record of area DATA has no key, so that its rows are counted.

        Args:
            view: Which schema the record was written with.
            head: That of its batch.
            offset: The record; it has a key text.
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
        """Return the row of the first published record at or after a position; the end if there is none."""
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
        """Return the position of a published record by its row."""
        ref = view.batch(view.find_row(row))
        if row == ref.first_row:
            return ref.first
        head = (await self.grouped(ref)).head
        offset = row - ref.first_row
        return Position(int(head.versions[offset]), int(head.indexes[offset]))

    async def scan(self, view: LogView, row: int, predicate: Predicate) -> Scan:
        """Return what a predicate matches in the window with ``row``, a wide one where that is nothing."""
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
            # The damage may lie in a batch of the shared window that this caller does not need.
            return await self._scan(view, range(place, place + 1), predicate)

    async def _keyed(self, view: LogView, place: int, predicate: Predicate) -> KeyedBatches | None:
        number = key_file_of(view, place, predicate)
        if number is None:
            return None
        key = (self._opening, view.revision, predicate.identity, number)
        load = partial(keyed_batches, view, self.batches, number, predicate)
        return await self._cache.get(CacheKind.SCAN, key, load)

    async def _scan(self, view: LogView, window: range, predicate: Predicate) -> Scan:
        # A place names the same batch until a compaction or a trim, and these change the revision.
        key = (self._opening, view.revision, predicate.identity, window.start, window.stop)
        matched: list[GroupedHead] = []
        scan = await self._cache.get(
            CacheKind.SCAN, key, partial(self._load_scan, view, window, predicate, matched)
        )
        self._keep_heads(matched)  # their frames are needed next
        return scan

    def _keep_heads(self, heads: Sequence[GroupedHead]) -> None:
        """Put heads into the cache that were read as a by-product."""
        for grouped in heads:
            self._cache.put(CacheKind.HEAD, (self._opening, grouped.head.ref.key), grouped)

    def _window(self, view: LogView, place: int) -> range:
        """Return the places of the window that holds a batch; large batches make short windows."""
        size = max(
            1, min(self._settings.scan_batches, self._settings.scan_rows // view.rows(place))
        )
        # With powers of two a border of a long window is one of every shorter window too, so that
        # neighbours with batches of different sizes do not overlap.
        size = 1 << (size.bit_length() - 1)
        start = place - place % size
        return range(start, min(start + size, len(view)))

    def ready_frames(
        self, run: Run, view: LogView, codec: Codec, content: Content
    ) -> FrameBlock | None:
        """Return a run's frames if they need no reading."""
        # 1. The very frames, in the cache.
        key = self._frames_key(run.batch, run.selection.identity, codec, content)
        block = cast("FrameBlock | None", self._cache.get_nowait(CacheKind.FRAMES, key))
        # 2. Frames that were made ahead. They move to the cache, whose budget counts them from then on.
        if block is None and (recent := self.small_commits.get(run.batch)) is not None:
            block = recent.frames.pop(key[2:], None)
            if block is not None:
                self._cache.put(CacheKind.FRAMES, key, block)
        # 3. Frames of the whole batch, of which this run picks its own: copying is cheaper than encoding.
        # Captures of columns are not among them, nor those that are marked or judged.
        if block is None and run.selection.is_plain and run.kind is CaptureKind.CHANGE:
            all_frames = self._frames_key(run.batch, None, codec, content)
            of_batch = cast(
                "FrameBlock | None", self._cache.get_nowait(CacheKind.FRAMES, all_frames)
            )
            if of_batch is not None:
                block = of_batch.pick(run.selection, self._settings.message_bytes)
                self._cache.put(CacheKind.FRAMES, key, block)
        # 4. A small batch in memory is encoded right here: the trip to a reader thread would cost more.
        if block is None and self.small_commits.get(run.batch) is not None:
            key, load = self._frames_job(run, view, codec, content)
            block = load()
            self._cache.put(CacheKind.FRAMES, key, block)
            block = self._own(block, key, run)
        return block

    async def frames(self, run: Run, view: LogView, codec: Codec, content: Content) -> FrameBlock:
        """Return a run's frames, encoded once for all subscriptions with the same content.

        It reads one run at a time. With two in one load the client would use up what it was sent and then
        wait for both, and the server would wait while both are sent (docs/adr/0033).
        """
        block = self.ready_frames(run, view, codec, content)
        if block is not None:
            return block
        key, load = self._frames_job(run, view, codec, content)
        return self._own(await self._cache.get(CacheKind.FRAMES, key, load), key, run)

    def _own(self, block: FrameBlock, key: tuple[Hashable, ...], run: Run) -> FrameBlock:
        """Return a run's frames out of what was encoded: the job may have encoded the whole batch."""
        if key[2] == run.selection.identity:
            return block
        return block.pick(run.selection, self._settings.message_bytes)

    async def encode_for_crowd(
        self, run: Run, view: LogView, codec: Codec, content: Content
    ) -> None:
        """Make the frames of a run's records if many publishers match a few each; entity level only.

        They are read and encoded in one go, where each subscription would do so for its own.
        """
        key = self._frames_key(run.batch, _CROWD, codec, content)
        load = partial(self._load_crowd, run, view, codec, content)
        if self.small_commits.get(run.batch) is not None:  # as above
            self._cache.put(CacheKind.FRAMES, key, load())
        else:
            await self._cache.get(CacheKind.FRAMES, key, load)

    def crowd_frames(self, run: Run, codec: Codec, content: Content) -> Frames | None:
        """Return a run's frames out of those that were made for a crowd; None if they are not there."""
        key = self._frames_key(run.batch, _CROWD, codec, content)
        crowd = cast("CrowdFrames | None", self._cache.get_nowait(CacheKind.FRAMES, key))
        return None if crowd is None else crowd.of(run.selection.rows.tolist())

    def drop_frames_unless_shared(self, run: Run, codec: Codec, content: Content) -> None:
        """Drop a run's frames, which a subscription has had, unless others are open that may need them."""
        key = self._frames_key(run.batch, run.selection.identity, codec, content)
        self._cache.drop_unless_shared(CacheKind.FRAMES, key)

    def prefetch_frames(self, run: Run, view: LogView, codec: Codec, content: Content) -> None:
        """Begin to encode a run whose frames are not ready and will be sent soon."""
        key, load = self._frames_job(run, view, codec, content)
        self._cache.prefetch(CacheKind.FRAMES, key, load)

    def _frames_job(
        self, run: Run, view: LogView, codec: Codec, content: Content
    ) -> tuple[tuple[Hashable, Hashable, Hashable, str, int], Callable[[], FrameBlock]]:
        """Return the cache key and the load of a run's frames: of the run alone, or of its whole batch.

        The whole batch is encoded if the publishers together match most of it, as each picks its part.
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
        """Return the state of an entity type as of a version, whose rows are not read yet.

        Raises:
            InvalidRequest: The log does not know the entity type, or the version is not published.
            PositionCompacted: The version lies below what is kept.
            SegmentMissing: A file has gone since the view was taken.
        """
        key = (self._opening, view.revision, entity_type, version)
        load = partial(_load_table, view, self.batches, entity_type, version, self.damage.add)
        return (await self._cache.get(CacheKind.SCAN, key, load)).table

    @property
    def scans(self) -> OpenScans:
        """Scans of tables that pause between two parts."""
        return self._cache.scans

    async def table_part(self, key: tuple[Hashable, ...], load: Callable[[], _S]) -> _S:
        """Return a part of a table's rows, read once for all who ask for it, whatever they make of it."""
        return await self._cache.get(CacheKind.BODY, (self._opening, "rows", *key), load)

    def ready_state_block(self, key: tuple[Hashable, ...]) -> Sized | None:
        """Return a block of a table's rows if it was made and is still there."""
        return self._cache.get_nowait(CacheKind.FRAMES, (self._opening, "state", *key))

    async def state_block(self, key: tuple[Hashable, ...], load: Callable[[], _S]) -> _S:
        """Return a block of a table's rows, made once for all who ask for the same."""
        return await self._cache.get(CacheKind.FRAMES, (self._opening, "state", *key), load)

    def keep_state_block(self, key: tuple[Hashable, ...], block: Sized) -> None:
        """Keep a block under the place in it where its reader will continue."""
        self._cache.put(CacheKind.FRAMES, (self._opening, "state", *key), block)

    # All methods below run in reader threads.

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
        """Return a batch's head, and add the heads behind it to ``found`` up to one that cannot be read."""
        # 1. The batch's own head. Its error is the caller's; nothing has been read ahead yet.
        ref = view.batch(place)
        grouped = self._load_grouped(ref)
        # 2. Those behind it, as by-products: the caller puts them into the cache on the event loop.
        bytes_max = min(_READ_AHEAD_BYTES_MAX, self._settings.reads_bytes // _READ_AHEAD_CACHE_PART)
        behind = _behind(view, place, bytes_max=bytes_max - ref.head_length)
        with suppress(LogError):  # the next caller reads it again, and meets the error
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
        """Scan a window, and add the heads of the batches with matches to ``matched``."""
        # Bodies are read only if the predicate needs images, and then of one batch at a time: a window
        # may hold more than the cache does. They are not kept, as a scan goes by once.
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
        # A head that is read here is not grouped: encoding needs no classes.
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
    """Return the images of one name; all are read together when the first is asked for."""
    return bodies().columns[name].array


@dataclass(frozen=True, slots=True)
class _LoadedTable:
    """A table as the cache keeps it."""

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
    """Return the batches behind a place whose heads are read with its own, up to ``bytes_max`` of heads."""
    found = []
    for next_place in range(place + 1, min(place + _READ_AHEAD_BATCHES_MAX, len(view))):
        ref = view.batch(next_place)
        bytes_max -= ref.head_length
        if bytes_max < 0:
            break
        found.append(ref)
    return found


def position_after(position: Position) -> Position:
    """Return the lowest position that can follow a record."""
    if position.index >= END:
        return Position(min(position.version + 1, MAX_VERSION), 0)
    return Position(position.version, position.index + 1)
