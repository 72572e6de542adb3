"""The part of a log that readers see: an immutable snapshot of the published versions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tailrace.cursor import Cursor
from tailrace.errors import CatalogReplaced, CursorAhead, HistoryReplaced
from tailrace.position import END, FIRST, Position
from tailrace_server.wal.record.text_columns import repeated
from tailrace_server.wal.state.batch_table import (
    CRC_HEAD,
    FIRST_INDEX,
    FIRST_ROW,
    FIRST_VERSION,
    ROWS,
    SEGMENT,
    batch_ref,
    find_position,
    find_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from uuid import UUID

    import numpy.typing as npt

    from tailrace.schema import Schema
    from tailrace_server.wal.segment.refs import BatchRef, HeadMark, SegmentRef
    from tailrace_server.wal.state.batch_table import SegmentTable
    from tailrace_server.wal.state.expired_bodies import ExpiredBodies
    from tailrace_server.wal.state.schema_history import Schemas
    from tailrace_server.wal.state.whole_removals import WholeRemovals


@dataclass(frozen=True, slots=True, eq=False)
class LogView:
    """A snapshot of a catalog's published versions. Making one is O(1); look-ups are in memory and O(log n)."""

    uuid: UUID
    opening: Hashable
    """Identifies the opening of the log from which this view was made. Cache keys contain it, since a log that
    was restored from a copy has the same uuid, paths, offsets, revisions and ids."""
    name: str
    published: int
    """Highest published version; 0 for none."""
    oldest: Position
    """First position that is retained; (1, 0) until something is trimmed."""
    end_row: int
    """Running number after the last published record."""
    committed: int
    """Newest version that was committed when the view was made. This is for information only: the view cannot
    read versions above ``published``."""
    newest_timestamp: int
    """Commit timestamp of ``published``, µs; 0 for none."""
    revision: int
    """Number that changes with every compaction and every trim."""
    entry: int
    """Number of the newest log entry that was read."""
    unknown_changes: tuple[str, ...]
    """Entity types whose newest committed updates had no ``before``."""
    whole_removals: WholeRemovals
    """The versions in which the images of removed rows are known to be complete, by entity type."""
    bodies: ExpiredBodies
    """The records whose bodies have expired."""
    _batches: npt.NDArray[np.int64]
    _batch_count: int
    _segments: SegmentTable
    _commits: npt.NDArray[np.int64]
    _commit_count: int
    _schemas: Schemas
    part: Hashable = None
    """Identifies the part of the schemas that is visible; equal for equal parts. None: all schemas are
    visible."""

    def __len__(self) -> int:
        """Return the number of record batches."""
        return self._batch_count

    def __bool__(self) -> bool:
        """Return True, even for a view without batches, whose length is 0."""
        return True

    def batch(self, place: int) -> BatchRef:
        """Return the batch at a place, in log order."""
        if not 0 <= place < self._batch_count:
            raise IndexError(f"batch {place} of {self._batch_count}")
        return batch_ref(self._segments, self._batches, place)

    def head_mark(self, place: int) -> HeadMark:
        """Return the mark of the batch at a place; a compaction or a copy that keeps the batch keeps it."""
        item = self._batches.item
        return item(FIRST_ROW, place), item(ROWS, place), item(CRC_HEAD, place)

    def rows(self, place: int) -> int:
        """Return the number of records of the batch at a place."""
        return int(self._batches[ROWS, place])

    def find(self, position: Position) -> int:
        """Return the place of the first batch that ends at or after a position; ``len(self)`` if none does."""
        return find_position(self._batches, self._batch_count, position)

    def find_row(self, row: int) -> int:
        """Return the place of the batch that has the record with a running number.

        The result is 0 if the number is below the first batch, and ``len(self)`` if it is after the last one.
        """
        return find_row(self._batches, self._batch_count, row)

    @property
    def first_row(self) -> int:
        """Running number of the first record in the first retained batch."""
        return int(self._batches[FIRST_ROW, 0]) if self._batch_count else self.end_row

    def timestamp_of(self, version: int) -> int:
        """Return the commit timestamp of a retained, published version, µs."""
        # Live delivery asks for the newest commit once for each small batch. Without a numpy array that takes a
        # tenth of the time.
        newest = self._commit_count - 1
        if newest >= 0 and version >= self._commits.item(0, newest):
            return self._commits.item(1, newest)
        return int(self.timestamps_of(np.array([version], np.int64))[0])

    def known_timestamp_of(self, version: int) -> int | None:
        """Return the commit timestamp of any version, µs; None if the commit was trimmed.

        Return 0 for version 0 and for versions above ``published``.
        """
        if not 0 < version <= self.published:
            return 0
        if not self._commit_count or version < self._commits.item(0, 0):
            return None
        return self.timestamp_of(version)

    def cursor(self, version: int, index: int, ordinal: int = END) -> Cursor:
        """Return the cursor that resumes after a capture: by default, after all captures of a record."""
        return Cursor(self.uuid, version, index, ordinal, self.known_timestamp_of(version))

    def timestamps_of(self, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the commit timestamp, µs, of each version.

        Args:
            versions: Published versions in ascending order, with repetitions, shape (n,). A trimmed version,
                with which the first retained batch may begin, gets the oldest known timestamp.
        """
        count = self._commit_count
        if not count or not len(versions):
            return np.zeros_like(versions)
        first, timestamp = map(self._commits.item, (0, 1), (count - 1, count - 1))
        # All versions are of the newest commit: the usual case of live delivery.
        if versions.item(0) >= first:
            return repeated(timestamp, len(versions))
        firsts, timestamps = self._commits[0, :count], self._commits[1, :count]
        first = max(int(firsts.searchsorted(versions[0], "right")) - 1, 0)
        last = max(int(firsts.searchsorted(versions[-1], "right")) - 1, 0)
        if first == last:  # all versions are of one commit, which is usual in large batches
            return repeated(timestamps.item(first), len(versions))
        places = firsts[first : last + 1].searchsorted(versions, "right") - 1
        found: npt.NDArray[np.int64] = timestamps[first + np.maximum(places, 0)]
        return found

    def known_timestamps_of(self, versions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the commit timestamps, µs, of published versions in any order; 0 for a trimmed commit."""
        if not len(versions) or not self._commit_count:
            return np.zeros_like(versions)
        if (versions[1:] >= versions[:-1]).all():  # already in order, as changes of the log are
            found = self.timestamps_of(versions)
        else:
            order = np.argsort(versions, kind="stable")
            found = np.empty_like(versions)
            found[order] = self.timestamps_of(versions[order])
        forgotten = versions < self._commits.item(0, 0)
        return np.where(forgotten, 0, found) if forgotten.any() else found

    def version_at(self, timestamp: int) -> int:
        """Return the first retained version whose commit timestamp is at or after a time, µs.

        Return ``published + 1`` if there is none.
        """
        firsts, timestamps = self._commits[:, : self._commit_count]
        # A commit may have several versions with one timestamp. It is listed with its first version.
        place = int(np.searchsorted(timestamps, timestamp, "left"))
        if place == self._commit_count:
            return self.published + 1
        return max(int(firsts[place]), self.oldest.version)

    def is_trimmed_at(self, timestamp: int) -> bool:
        """Return True if a trim has removed versions that were committed at or after a time, µs."""
        return self.oldest > FIRST and timestamp <= self.timestamp_of(self.oldest.version - 1)

    def schemas(self) -> Iterator[Schema]:
        """Yield the schemas of published versions, oldest first."""
        return self._schemas.up_to(self.published)

    def had_entity_type(self, name: str) -> bool:
        """Return True if the schema of any published version has an entity type of a name."""
        return self._schemas.had_entity_type(name, self.published)

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with; an empty schema if the log had none yet."""
        return self._schemas.at(version)

    def schema_span(self, version: int) -> tuple[int, int]:
        """Return the first and the last published version with the same schema as a version."""
        first, following = self._schemas.span(version)
        return first, self.published if following is None else min(following - 1, self.published)

    def schemas_of(
        self, versions: npt.NDArray[np.int64]
    ) -> tuple[list[Schema], npt.NDArray[np.int64]]:
        """Return the distinct schemas of some versions, and for each version its schema's place in that list.

        Args:
            versions: Published versions in any order, shape (n,).
        """
        # Usually one schema is valid for all of them.
        if len(versions) and self.schema_span(int(versions.min()))[1] >= int(versions.max()):
            return [self.schema_of(int(versions[0]))], np.zeros(len(versions), np.int64)
        ordered = np.unique(versions)
        found: list[Schema] = []
        firsts: list[int] = []
        at = 0
        while at < len(ordered):  # one round for each schema, however many versions have it
            version = int(ordered[at])
            found.append(self.schema_of(version))
            firsts.append(version)
            following = self._schemas.span(version)[1]
            at = len(ordered) if following is None else int(np.searchsorted(ordered, following))
        return found, np.searchsorted(np.array(firsts, np.int64), versions, "right") - 1

    def with_schemas(
        self,
        part: Hashable,
        part_of: Callable[[Schemas], Schemas],
        unknown_changes: tuple[str, ...],
    ) -> LogView:
        """Return a copy of the view in which only a part of the schemas is visible.

        Args:
            part: Identifies the part; equal for equal parts.
            part_of: Makes that part from the schemas of the log.
            unknown_changes: The visible entity types whose newest updates had no ``before``.
        """
        schemas = part_of(self._schemas)
        return replace(self, _schemas=schemas, part=part, unknown_changes=unknown_changes)

    def bytes_from(self, position: Position) -> int:
        """Return the total size, in bytes, of the segments with published records at or after a position."""
        place = self.find(position)
        if place == self._batch_count:
            return 0
        first, last = (int(self._batches[SEGMENT, each]) for each in (place, self._batch_count - 1))
        return int(self._segments.sizes[first : last + 1].sum())

    def first_within(self, size: int) -> int:
        """Return the first version of the newest segments that have at most ``size`` bytes together.

        At least the newest segment is included, even if it is larger.
        """
        if not self._batch_count:
            return self.published + 1
        # Add up the sizes from the newest segment backwards, and count the segments that fit.
        segments = self._batches[SEGMENT, : self._batch_count]
        sizes = self._segments.sizes[: int(segments[-1]) + 1]
        kept = int(np.searchsorted(np.cumsum(sizes[::-1]), size, "right"))
        place = int(np.searchsorted(segments, len(sizes) - max(1, kept), "left"))
        version, index = (int(self._batches[each, place]) for each in (FIRST_VERSION, FIRST_INDEX))
        # A segment may begin in the middle of a version, whose beginning is in the segment before it.
        return min(version if index == 0 else version + 1, self.published + 1)

    def segment_paths(self) -> list[str]:
        """Return the paths of the segments with published records, in log order."""
        if not self._batch_count:
            return []
        return self._segments.paths(0, int(self._batches[SEGMENT, self._batch_count - 1]) + 1)

    def batches_in(self, path: str) -> list[BatchRef]:
        """Return the batches of a segment, in log order; empty if the log does not name the path."""
        paths = self.segment_paths()
        if path not in paths:
            return []
        place = paths.index(path)
        segments = self._batches[SEGMENT, : self._batch_count]
        first, stop = np.searchsorted(segments, [place, place + 1]).tolist()
        return [self.batch(batch) for batch in range(first, stop)]

    def segments(self) -> list[SegmentRef]:
        """Return the segments with published records, in log order."""
        if not self._batch_count:
            return []
        last = int(self._batches[SEGMENT, self._batch_count - 1])
        return [self._segments[place] for place in range(last + 1)]


def refuse_other_history(view: LogView, cursor: Cursor, *, upper: bool = False) -> None:
    """Check that a cursor belongs to the history of this log; continuing from another history loses changes.

    Args:
        view: The published versions, read after the cursor was received.
        cursor: The reader's cursor.
        upper: True if the cursor ends a range. A cursor without a timestamp, made by hand, may then be above
            all published versions.

    Raises:
        CatalogReplaced: The cursor belongs to another log.
        CursorAhead: The cursor's version is not published in this log.
        HistoryReplaced: The cursor's version is another commit in this log.
    """
    if cursor.catalog_uuid != view.uuid:
        raise CatalogReplaced(view.name, cursor.catalog_uuid, view.uuid)
    passed, found = cursor.commit_timestamp, view.known_timestamp_of(cursor.version)
    # A timestamp of 0 is that of a waiting start, whose reader has received nothing of unpublished versions.
    if passed == 0 or (passed is None and upper):
        return
    if cursor.version > view.published:
        raise CursorAhead(view.name, str(cursor), Position(view.published, END))
    # Commit timestamps rise strictly. So if a log was restored from a copy and written again, the same version
    # has another timestamp. A cursor made by hand may have none, and those of trimmed versions are unknown.
    if passed and found and passed != found:
        raise HistoryReplaced(view.name, str(cursor), found)
