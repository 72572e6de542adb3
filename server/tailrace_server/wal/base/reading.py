"""The state of a table at a version: the newest image of each key, from a base and the log after it.

The state is the result of applying all records up to the version, including late ones, in log order:

===========================  ==================================================================
UPSERT of a key              the row of that key, with the record's ``after``
REMOVE, EXPIRE of a key      no row
REMOVE without a key         no rows at all (a truncate)
``change`` has ``diff``      the row exists as often as the sum of these says (table without key)
===========================  ==================================================================

So the state at V and the captures after V together give the same result as all captures. If the key of a row
changes, the log has a removal and an insert. Images are texts as they were sent; the schema of their version
applies.

Rows are sorted by (key hash, key) and yielded in parts of bounded size, so a reader can resume after the place
of its last row. Heads of records are read first. Images are read only for the last record of each key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area
from tailrace.errors import (
    BodiesExpired,
    EntityTypeUnknown,
    InvalidRequest,
    LogCorrupted,
    PositionCompacted,
)
from tailrace.position import FIRST, Position
from tailrace_server.wal.base.bases import KnownBases, newest_bases, paths_in, table_in
from tailrace_server.wal.base.overlay import BaseRows, merged, rows_by_batch
from tailrace_server.wal.base.state_rows import NO_ROWS, StatePlace, StateRows, joined_rows
from tailrace_server.wal.base.winners import (
    FoldBounds,
    LogTable,
    Wanted,
    fold,
)
from tailrace_server.wal.files.sequence_documents import BASES
from tailrace_server.wal.record.columns import multiplicity_of
from tailrace_server.wal.record.keys import key_hash, key_hashes, type_seed
from tailrace_server.wal.segment.reader import SegmentMissing
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace_server.wal.files.sequence_documents import BaseDocument, BaseTableDocument
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView

_BOUNDS: Final = FoldBounds()
_ALL: Final = Wanted()
_BEGIN: Final = Position(0, 0)
_NO_BASE: Final = (
    "the log was trimmed and has no base, so the earlier rows are unknown; the log still has the "
    "newest images of keys that changed since"
)


@dataclass(frozen=True, slots=True)
class TableState:
    """The rows of one entity type at one version, read on demand. Calls block; threads may share a state.

    Calls raise ``SegmentMissing`` if a compaction or a trim has removed a segment since the view was made. Then
    make the same state from a newer view, and continue after the last row. If a newer base has replaced the
    base in use, this object continues with the newer base by itself. If the base is damaged and ``on_damage``
    was given, it continues with an older base or with the log alone.
    """

    entity_type: str
    version: int
    _table: LogTable
    _base: BaseTableDocument | None
    """The base's files of the table; None if the base has none, or without a base."""
    _after: int
    """The version of the base; 0 without a base."""
    _bounds: FoldBounds = _BOUNDS
    before: Position | None = None
    """The state is that just before this position of its version; None: that after the version."""
    _on_damage: Callable[[LogCorrupted], None] | None = None
    """Called with the error of a damaged base before another one is used; None: the error is raised."""

    def parts(self, behind: StatePlace | None = None, within: Wanted = _ALL) -> Iterator[StateRows]:
        """Yield the rows in parts, sorted by (key hash, key); no part is empty.

        A part has at most 8,192 rows and 4 MiB of keys and images; a larger row is a part alone. The memory in
        use is bounded: two million records of 45 bytes and a key each, and 64 MiB of images. If more keys have
        changed since the base, the log's heads are read again for each million keys.

        Args:
            behind: Begin after this place; None: begin with the first row.
            within: The key hashes of the rows.

        Raises:
            LogCorrupted: A part of the log or of a base is damaged.
            SegmentMissing: A segment was deleted; use a newer view.
        """
        # After an error in the base, continue with another base from the last row on: rows and their order are
        # the same in every base.
        state = self
        while True:
            try:
                first = within.start if behind is None else max(within.start, behind.key_hash)
                for rows in state.windows(replace(within, start=first)):
                    passed = 0 if behind is None else rows.count_up_to(behind)
                    left = rows.slice(passed, len(rows)) if passed else rows
                    for part in left.parts(self._bounds.part_rows, self._bounds.part_bytes):
                        yield part
                        behind = part.place(-1)
            except (SegmentMissing, LogCorrupted) as error:
                other = state._over_another_base(error)
                if other is None:
                    raise
                state = other
            else:
                return

    def log_parts(self, within: Wanted = _ALL) -> Iterator[tuple[int, StateRows]]:
        """Yield the rows in the order of the log within ranges of key hashes, each part with its range's end.

        This saves a sort of the images. The table must be ``in_log``. Memory is bounded as in ``parts``, but a
        part has all rows of a batch of the log.

        Args:
            within: The key hashes of the rows.

        Raises:
            SegmentMissing: A segment was deleted; use a newer view.
        """
        while True:
            found = fold(self._table, self._after, self.version, within, self._bounds, whole=True)
            for rows in rows_by_batch(self._table, found.winners):
                yield found.stop, rows
            if found.stop >= within.stop:
                return
            within = replace(within, start=found.stop)

    @property
    def in_log(self) -> bool:
        """True if all rows are records of the log: there is no base, and each row exists once."""
        return self._base is None and not self.counted

    def rows_of(self, primary_keys: Sequence[str]) -> StateRows:
        """Return the existing rows of some keys, sorted by (key hash, key).

        All images are in memory at once, so request a bounded number of keys. Raises the errors of ``parts``.
        """
        keys = sorted(set(primary_keys))
        if not keys:
            return NO_ROWS
        seed = type_seed(self._table.seed_name)
        seeds = np.full(len(keys), seed, np.uint64)
        hashes = np.unique(key_hashes(seeds, pa.array(keys, pa.utf8())))
        state = self
        while True:
            try:
                rows = joined_rows([*state.windows(Wanted(chosen=hashes))])
                break
            except (SegmentMissing, LogCorrupted) as error:
                other = state._over_another_base(error)
                if other is None:
                    raise
                state = other
        # Drop the rows of other keys that have the same hash as a requested key.
        named, found = {*keys}, rows.primary_keys.to_pylist()
        asked = [row for row, key in enumerate(found) if key in named]
        return rows if len(asked) == len(rows) else rows.taken(np.array(asked, np.int64))

    @property
    def base_version(self) -> int:
        """Version of the base that the state is read from; 0 if it is read from the log alone."""
        return self._after

    @property
    def base_rows(self) -> int:
        """Number of the table's rows in the base; 0 without a base."""
        return self._base.rows if self._base is not None else 0

    @property
    def base_bytes(self) -> int:
        """Size of the table's files in the base, in bytes."""
        return sum(file.bytes for file in self._base.files) if self._base is not None else 0

    def place_of(self, primary_key: str) -> StatePlace:
        """Return the place of the row with a key, whether the row exists or not."""
        return StatePlace(key_hash(type_seed(self._table.seed_name), primary_key), primary_key)

    @property
    def hashed_as(self) -> str:
        """The name under which keys are hashed: the entity type's first name."""
        return self._table.seed_name

    @property
    def names(self) -> EntityNames:
        """The names of the entity type, by schema."""
        return self._table.names

    @property
    def counted(self) -> bool:
        """True if the table has no key, so that rows have counts."""
        return self._table.counted

    @property
    def log_table(self) -> LogTable:
        """The entity type's records in the log, from which this state is read."""
        return self._table

    def has_changes(self) -> bool:
        """Return False if the log certainly has no records of the entity type after the base."""
        return any(True for _ in self._table.batches(self._after, self.version))

    def _over_another_base(self, error: SegmentMissing | LogCorrupted) -> TableState | None:
        """Return the same state read from another base, if a file of this one's base is missing or damaged.

        Return None if the file belongs to the log, or if no other base can be used.

        Raises:
            LogCorrupted: The file is missing although a base names it, and nothing else has the rows.
        """
        # Usually a newer base has replaced the one that was chosen when the state was requested. The view may
        # be too old as well: then a segment is missing next, and the caller has to make a newer view.
        if not error.path.startswith(f"{BASES}/"):
            return None
        if isinstance(error, LogCorrupted):
            return self._around(error)
        view = self._table.view
        known = newest_bases(self._table.reader.store, view.uuid)
        if error.path in paths_in(known.bases):
            reason = "this file of a base is missing; tailrace log verify says what to do"
            around = self._around(LogCorrupted(error.path, 0, reason))
            if around is None:
                raise LogCorrupted(error.path, 0, reason) from error
            return around
        base = known.below(view, _base_max(self.version, self.before))
        return None if base is None and view.oldest > FIRST else self._over(base)

    def _around(self, damaged: LogCorrupted) -> TableState | None:
        """Return the state read from an older base, or from the log alone if nothing was trimmed; else None."""
        if self._on_damage is None:
            return None
        # Only older bases are tried, so this ends: at the latest with the log alone, or with the error.
        view = self._table.view
        base = newest_bases(self._table.reader.store, view.uuid).below(view, self._after - 1)
        if base is None and view.oldest > FIRST:
            return None
        self._on_damage(damaged)
        return self._over(base)

    def _over(self, base: BaseDocument | None) -> TableState:
        table = self._table
        other = state_over(
            *(table.view, table.reader, table.names, self.entity_type, self.version, base),
            self.before,
        )
        return replace(other, _bounds=self._bounds, _on_damage=self._on_damage)

    def windows(self, wanted: Wanted) -> Iterator[StateRows]:
        """Yield the rows of some key hashes in windows of bounded images, some of them empty.

        Raises the same errors as ``parts``. It does not change to another base by itself.
        """
        # Without a base there are no older rows, so a fold may drop removals.
        base, whole = self._base, self._base is None
        below = BaseRows(self._table.reader, base, wanted)
        while True:
            found = fold(self._table, self._after, self.version, wanted, self._bounds, whole=whole)
            # A truncate after the base has removed all of the base's rows.
            if found.truncated:
                below = BaseRows(self._table.reader, None, wanted)
            yield from merged(self._table, found.winners, below, found.stop, self._bounds)
            if found.stop >= wanted.stop:
                return
            wanted = replace(wanted, start=found.stop)


def table_state(
    view: LogView,
    reader: BatchReader,
    entity_type: str,
    version: int,
    on_damage: Callable[[LogCorrupted], None] | None = None,
    before: Position | None = None,
) -> TableState:
    """Return the state of an entity type as of a published version.

    Args:
        view: The log, with all of its schemas.
        reader: Reads the log's batches; it must stay open while the state is read.
        entity_type: The entity type's name in the schema of the version, or else in the newest schema.
        version: The version; at version 0 there are no rows.
        on_damage: Called in the reading thread with the error of a damaged base, if an older base or the log
            can replace that base. None: the error is raised.
        before: A position in the version: the state is that just before the record there. None: the state after
            the version.

    Raises:
        InvalidRequest: No entity type has the name, or the version is not published.
        PositionCompacted: The records up to the version were trimmed, and no base has their rows.
        BodiesExpired: The bodies of the rows have expired, and no base has them.
        LogCorrupted: The list of bases is damaged.
    """
    if not 0 <= version <= view.published:
        raise InvalidRequest(
            f"version {version} of catalog {view.name!r} cannot be read: the newest published is "
            f"{view.published}"
        )
    # 1. Choose the newest base at or below the version. If the list of bases is damaged, a log that was never
    #    trimmed is enough, but only if the caller accepts that by ``on_damage``.
    names = _names(view, entity_type, version)
    try:
        known = newest_bases(reader.store, view.uuid)
    except LogCorrupted as damaged:
        if on_damage is None or view.oldest > FIRST:
            raise
        on_damage(damaged)
        known = KnownBases()
    base = known.below(view, _base_max(version, before))
    # 2. Without a base, the state needs all records from the first on.
    if base is None and view.oldest > FIRST:
        first = known.first_readable(view.oldest)
        oldest, newest = view.oldest, Position(view.published, 0)
        advice = _NO_BASE
        if first is not None:
            oldest, advice = Position(first, 0), "state can be read from that version on"
        raise PositionCompacted(Position(version, 0), oldest, newest, advice)
    _refuse_expired(view, names, version, base, known)
    state = state_over(view, reader, names, entity_type, version, base, before)
    return replace(state, _on_damage=on_damage)


def last_known(view: LogView, reader: BatchReader, entity_type: str) -> TableState:
    """Return the rows of an entity type at the newest version of a view, even if they are incomplete.

    If the log was trimmed and has no base, ``table_state`` raises an error. This function then returns the rows
    of the keys with retained records; a key that is missing from the result may still have a row.

    Args:
        view: The log, with all of its schemas.
        reader: Reads the log's batches; it must stay open while the rows are read.
        entity_type: The entity type's name in the newest schema of the view; the table must have a key.

    Raises:
        LogCorrupted: The list of bases is damaged.
    """
    version = view.published
    names = EntityNames(view.schema_of(version), entity_type)
    base = newest_bases(reader.store, view.uuid).below(view, version)
    after = 0 if base is None else base.version
    table = LogTable(view, reader, names, names.first_name(view), counted=False)
    rows = table_in(base, names.name_in(view.schema_of(after)))
    return TableState(entity_type, version, table, rows, after)


def _refuse_expired(
    view: LogView,
    names: EntityNames,
    version: int,
    base: BaseDocument | None,
    known: KnownBases,
) -> None:
    """Check, before anything is read, that a state does not need bodies that have expired.

    Raises:
        BodiesExpired: The state needs them. The error says from which version on state can be read.
    """
    after = 0 if base is None else base.version
    name = names.name_in(view.schema_of(version))
    first = 0 if name is None else view.bodies.first_kept(name, version)
    if name is None or after + 1 >= first or after == version:
        return
    readable = next((each.version for each in known.bases if each.version >= first - 1), None)
    advice = (
        "the newest state can be read"
        if readable is None
        else f"state can be read from {readable} on"
    )
    raise BodiesExpired(Position(version, 0), name, Position(first, 0), advice)


def state_over(
    view: LogView,
    reader: BatchReader,
    names: EntityNames,
    entity_type: str,
    version: int,
    base: BaseDocument | None,
    before: Position | None = None,
) -> TableState:
    """Return the state that is read from a given base and the log after it, or from the log alone.

    Raises:
        BodiesExpired: The base has no table of the entity type: its bodies had expired when the base was made.
    """
    after = 0 if base is None else base.version
    span = None if before is None else (_BEGIN, before)
    table = LogTable(view, reader, names, names.first_name(view), counted=False, span=span)
    name = names.name_in(view.schema_of(after))
    rows = table_in(base, name)
    if base is not None and name is not None and rows is None:
        first = Position(view.bodies.first_kept(name, after), 0)
        raise BodiesExpired(Position(version, 0), name, first, "read a newer state")
    # An empty table does not say if its rows have counts: then the records of the log decide.
    if rows is not None and rows.rows:
        table = replace(table, counted=rows.counted)
    else:
        table = _with_counts(table, after, version)
    return TableState(entity_type, version, table, rows, after, before=before)


def _base_max(version: int, before: Position | None) -> int:
    """Return the newest version that a base of a state may have."""
    return version if before is None else version - 1


def _names(view: LogView, entity_type: str, version: int) -> EntityNames:
    for number in (version, view.published):
        schema = view.schema_of(number)
        if entity_type in schema.entity_types:
            return EntityNames(schema, entity_type)
    raise EntityTypeUnknown(view.name, entity_type, (*schema.entity_types,))


def _with_counts(table: LogTable, after: int, version: int) -> LogTable:
    """Return the table with ``counted`` set by its first data record in a range of versions.

    A table with key columns is not counted, nor is one whose first record lists changed columns. Otherwise the
    table is counted if the record's ``change`` has a diff.
    """
    name = table.names.name_in(table.view.schema_of(version))
    columns = table.view.schema_of(version).entity_types.get(name or "", ())
    if any(column.key for column in columns):
        return table
    for _, ref in table.batches(after, version):
        head = table.reader.head(ref)
        ours = table.names.rows_in(table.view, head.type_codes, head.entity_types, head.versions)
        ours &= (head.areas == Area.DATA) & (head.key_hashes != 0)
        rows = np.flatnonzero(ours)
        if len(rows):
            first = pa.array(rows[:1])
            # Only updates of tables with a key list changed columns.
            if head.changed[int(rows[0])].is_valid:
                return table
            table.refuse_expired(ref, rows[:1])
            change = table.reader.body(ref, ("change",))["change"].take(first)[0].as_py()
            counted = change is not None and multiplicity_of(change) is not None
            return replace(table, counted=counted)
    return table
