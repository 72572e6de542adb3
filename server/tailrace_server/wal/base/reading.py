"""The state of a table at a version: the newest image of each key, from a base and the log after it.

State is the result of applying every record up to the version, late ones too, in the order of the log:

===========================  ==================================================================
UPSERT of a key              the row of that key, with the record's ``after``
REMOVE, EXPIRE of a key      no row
REMOVE without a key         no rows at all (a truncate)
``change`` is ``{"diff"}``   the row counts by the sum of these numbers: tables without a key
===========================  ==================================================================

So the state at V followed by the captures after V gives the same as all captures. A row whose key changes is a
removal and an insert, as in the log. Images are texts as they were sent; the schema of their version applies.

Rows are sorted by (key hash, key) and come in parts of bounded size, so a reader can resume after the place of
its last row. Heads are read first, and images only for the last record of each key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tailrace.criteria import Area
from tailrace.errors import BodiesExpired, InvalidRequest, LogCorrupted, PositionCompacted
from tailrace.position import FIRST, Position
from tailrace_server.wal.base.bases import KnownBases, newest_bases, paths_in, table_in
from tailrace_server.wal.base.overlay import BaseRows, merged
from tailrace_server.wal.base.state_rows import NO_ROWS, StatePlace, StateRows, joined_rows
from tailrace_server.wal.base.winners import (
    FoldBounds,
    LogTable,
    Wanted,
    fold,
)
from tailrace_server.wal.files.sequence_documents import BASES
from tailrace_server.wal.record.columns import multiplicity_of
from tailrace_server.wal.record.keys import key_hash, type_seed
from tailrace_server.wal.segment.reader import SegmentMissing
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace_server.wal.files.sequence_documents import BaseDocument, BaseTableDocument
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView

_BOUNDS: Final = FoldBounds()
_NO_BASE: Final = (
    "the log was trimmed and has no base, so nothing says what the rows were; the newest images of keys that "
    "changed since are in the log"
)


@dataclass(frozen=True, slots=True)
class TableState:
    """The rows of one entity type at one version, read on demand. Calls block; threads may share a state.

    Calls raise ``SegmentMissing`` if a compaction or a trim has removed a file since the view was made. Then
    request the same version from a newer view, and continue after the last row. If a newer base has replaced
    the base in use, the state continues with the newer base by itself. If the base is damaged and ``on_damage``
    was given, the state continues with an older base or the log.
    """

    entity_type: str
    version: int
    _table: LogTable
    _base: BaseTableDocument | None
    """The table's rows in the base; None: no rows."""
    _after: int
    """The version of the base; 0 for none."""
    _bounds: FoldBounds = _BOUNDS
    _on_damage: Callable[[LogCorrupted], None] | None = None
    """Called with the error of a damaged base that is then avoided; None: the error is raised."""

    def parts(self, behind: StatePlace | None = None) -> Iterator[StateRows]:
        """Yield the rows in parts, sorted by (key hash, key); each part has rows.

        A part has at most 8,192 rows and 4 MiB of keys and images; a larger row is a part alone. The memory in
        use is up to two million records, 45 bytes and the key of each, and 64 MiB of images. For a larger table
        the log's heads are read once for each million keys.

        Args:
            behind: Begin after this place; None: with the first row.

        Raises:
            LogCorrupted: A part of the log or of a base is damaged.
            SegmentMissing: A file is gone.
        """
        state = self
        while True:
            try:
                for rows in state.windows(Wanted(0 if behind is None else behind.key_hash)):
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

    def rows_of(self, primary_keys: Sequence[str]) -> StateRows:
        """Return the existing rows of some keys, sorted by (key hash, key).

        All these images are in memory at once, so request a bounded number of keys. Errors as ``parts``.
        """
        keys = sorted(set(primary_keys))
        if not keys:
            return NO_ROWS
        seed = type_seed(self._table.seed_name)
        hashes = np.unique(np.array([key_hash(seed, key) for key in keys], np.uint64))
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
        # Other keys may have the hash of a requested key.
        named, found = {*keys}, rows.primary_keys.to_pylist()
        asked = [row for row, key in enumerate(found) if key in named]
        return rows if len(asked) == len(rows) else rows.taken(np.array(asked, np.int64))

    @property
    def base_version(self) -> int:
        """Version of the base that the state begins with; 0 if it begins with the log."""
        return self._after

    @property
    def base_bytes(self) -> int:
        """Bytes of the table's files in the base."""
        return sum(file.bytes for file in self._base.files) if self._base is not None else 0

    def place_of(self, primary_key: str) -> StatePlace:
        """Return the place that the row of a key has, or would have."""
        return StatePlace(key_hash(type_seed(self._table.seed_name), primary_key), primary_key)

    @property
    def hashed_as(self) -> str:
        """The name under which keys are hashed: the entity type's first name."""
        return self._table.seed_name

    @property
    def names(self) -> EntityNames:
        """The name of the entity type, version by version."""
        return self._table.names

    @property
    def counted(self) -> bool:
        """True if rows have no key, and are counted."""
        return self._table.counted

    @property
    def log_table(self) -> LogTable:
        """The entity type in the log, as it is read for this state."""
        return self._table

    def has_changes(self) -> bool:
        """Return False if the log has no records of the entity type after the base, True if it may have."""
        return any(True for _ in self._table.batches(self._after, self.version))

    def _over_another_base(self, error: SegmentMissing | LogCorrupted) -> TableState | None:
        """Return the state without a missing or damaged file of its base; None if that is not possible.

        Raises:
            LogCorrupted: The file is gone although a base names it, and nothing else has the state.
        """
        # A newer base has replaced the base that was chosen when the state was requested. The view may be older
        # too: if a segment is missing next, the caller has to take a newer view.
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
        base = known.below(view, self.version)
        return None if base is None and view.oldest > FIRST else self._over(base)

    def _around(self, damaged: LogCorrupted) -> TableState | None:
        """Return the state from an older base, or from the log alone if it has its whole past; else None."""
        if self._on_damage is None:
            return None
        # Only older bases: each step leads further down, and at last to the log or to the error.
        view = self._table.view
        base = newest_bases(self._table.reader.store, view.uuid).below(view, self._after - 1)
        if base is None and view.oldest > FIRST:
            return None
        self._on_damage(damaged)
        return self._over(base)

    def _over(self, base: BaseDocument | None) -> TableState:
        table = self._table
        other = state_over(
            table.view, table.reader, table.names, self.entity_type, self.version, base
        )
        return replace(other, _bounds=self._bounds, _on_damage=self._on_damage)

    def windows(self, wanted: Wanted) -> Iterator[StateRows]:
        """Yield the rows of some key hashes in windows of bounded images, some empty; errors as ``parts``."""
        base, whole = self._base, self._base is None
        below = BaseRows(self._table.reader, base, wanted)
        while True:
            found = fold(self._table, self._after, self.version, wanted, self._bounds, whole=whole)
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
) -> TableState:
    """Return the state of an entity type as of a published version.

    Args:
        view: The log, with all of its schemas.
        reader: Reads its batches; must stay open while the state is read.
        entity_type: Its name in the schema of the version, else in the newest one.
        version: From 0 on; with version 0 there are no rows.
        on_damage: Called in the reading thread with the error of a damaged base, if an older base or the log
            can replace the base. None: the error is raised.

    Raises:
        InvalidRequest: No entity type has the name, or the version is not published.
        PositionCompacted: Neither the log nor a base reaches back to the version's rows.
        BodiesExpired: The bodies of the rows are gone, and no base has them.
        LogCorrupted: The list of bases is damaged.
    """
    if not 0 <= version <= view.published:
        raise InvalidRequest(
            f"version {version} of catalog {view.name!r} cannot be read: the newest published is "
            f"{view.published}"
        )
    names = _names(view, entity_type, version)
    try:
        known = newest_bases(reader.store, view.uuid)
    except LogCorrupted as damaged:
        if on_damage is None or view.oldest > FIRST:
            raise
        on_damage(damaged)
        known = KnownBases()
    base = known.below(view, version)
    if base is None and view.oldest > FIRST:
        first = known.first_readable(view.oldest)
        oldest, newest = view.oldest, Position(view.published, 0)
        advice = _NO_BASE
        if first is not None:
            oldest, advice = Position(first, 0), "state can be read from there on"
        raise PositionCompacted(Position(version, 0), oldest, newest, advice)
    _refuse_expired(view, names, version, base, known)
    state = state_over(view, reader, names, entity_type, version, base)
    return replace(state, _on_damage=on_damage)


def last_known(view: LogView, reader: BatchReader, entity_type: str) -> TableState:
    """Return the rows of an entity type at the newest version of a view, as far as base and log have them.

    This works as ``table_state``. But if the log was trimmed and has no base, the result has only the rows that
    changed since the trim; a key that is missing from it may still have a row.

    Args:
        view: The log, with all of its schemas.
        reader: Reads its batches; must stay open while the rows are read.
        entity_type: Its name in the newest schema of the view; its rows have a key.

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
    """Refuse a state that needs expired images, before any part of it is read.

    Raises:
        BodiesExpired: It needs them; the error says from which version on state can be read.
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
) -> TableState:
    """Return a state from one base and the log after it, or from the log alone.

    Raises:
        BodiesExpired: The images of the rows had expired already when the base was made.
    """
    after = 0 if base is None else base.version
    table = LogTable(view, reader, names, names.first_name(view), counted=False)
    name = names.name_in(view.schema_of(after))
    rows = table_in(base, name)
    if base is not None and name is not None and rows is None:
        first = Position(view.bodies.first_kept(name, after), 0)
        raise BodiesExpired(Position(version, 0), name, first, "read a newer state")
    # A table without rows does not show whether its rows would be counted.
    if rows is not None and rows.rows:
        table = replace(table, counted=rows.counted)
    else:
        table = _with_counts(table, after, version)
    return TableState(entity_type, version, table, rows, after)


def _names(view: LogView, entity_type: str, version: int) -> EntityNames:
    for number in (version, view.published):
        schema = view.schema_of(number)
        if entity_type in schema.entity_types:
            return EntityNames(schema, entity_type)
    known = ", ".join(sorted(view.schema_of(view.published).entity_types)) or "none yet"
    raise InvalidRequest(
        f"catalog {view.name!r} has no entity type {entity_type!r}; known: {known}"
    )


def _with_counts(table: LogTable, after: int, version: int) -> LogTable:
    """Return the table with ``counted`` set by its first record with an image."""
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
            if head.changed[int(rows[0])].is_valid:
                return table
            table.refuse_expired(ref, rows[:1])
            change = table.reader.body(ref, ("change",))["change"].take(first)[0].as_py()
            counted = change is not None and multiplicity_of(change) is not None
            return replace(table, counted=counted)
    return table
