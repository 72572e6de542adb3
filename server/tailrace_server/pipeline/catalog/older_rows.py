"""The check for older changes: a change older than the last one of its row, in the log or in the same commit.

::

    newest positions ─▶ is a position of the plan below them? ──no──▶ nothing is looked up
                                     │yes
    the last version of each such row ─▶ its lead record: log, position, time ─▶ compared, in version order

A version's lead record (record 0) has the highest position of its transaction. That position is valid for each
of its rows: while a transaction changes a row, no other transaction can change that row, so the positions of a
later transaction are higher.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.position import FIRST, Position
from tailrace_server.pipeline.catalog.newest_positions import Placed
from tailrace_server.pipeline.input.change import TRUNCATE, UNPLACED, position_bytes, position_in
from tailrace_server.wal.committed_reads import Lead, last_records, leads_in, read_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tailrace_server.pipeline.catalog.newest_positions import NewestPositions
    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.transactions.settings import IngestSettings
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.state.view import LogView

_RowName = tuple[str, str]
UNKNOWN: Final = Placed()
"""The place of a row's last change, if the log has no position and time for it."""


class WithoutOlder(NamedTuple):
    """The changes of a transaction, separated from the older changes in it."""

    changes: list[Change]
    """The changes that are not older."""
    refused: list[tuple[Change, str]]
    """The older changes, each with the reason."""


class OlderRows:
    """The search for older changes in one commit, while its records are built. Discarded with the commit."""

    def __init__(
        self,
        log_has: Callable[[Iterable[Change]], Mapping[_RowName, Placed]] | None = None,
        newest: NewestPositions | None = None,
    ) -> None:
        """Begin a commit.

        Args:
            log_has: Returns (entity type, key) → place of the row's last change in the log, for those rows of
                some changes that may have an older change. None: no change of the commit is older than one of
                another transaction, so only the changes within each transaction are compared.
            newest: The newest positions of the log; needed if ``log_has`` is given.
        """
        self._newest = newest
        self._look_up = log_has
        self._log_has: Mapping[_RowName, Placed] = {}
        self._last: dict[_RowName, Placed] = {}
        self._sent: set[tuple[_RowName, bytes]] = set()
        self._truncated: dict[str, Placed] = {}

    def look_up(self, changes: Iterable[Change]) -> None:
        """Read from the log what the next transactions need, given all of their changes."""
        if self._look_up is not None:
            self._log_has = self._look_up(changes)

    def without_older(self, changes: list[Change]) -> WithoutOlder:
        """Separate the older changes of the next transaction, whose changes are given in source order.

        A change that repeats a change of this commit, at the same position, is dropped silently.
        """
        if self._look_up is None:
            # Usual case: positions never decrease within the transaction, so none of its changes is older.
            if not _falls(changes):
                return WithoutOlder(changes, [])
            self._last, self._sent, self._truncated = {}, set(), {}
        kept: list[Change] = []
        refused: list[tuple[Change, str]] = []
        for change in changes:
            entity_type = change.entity_type or ""
            placed = Placed.of(change)
            names = _rows_of(change)
            last = [self._last_of(name) for name in names]
            if change.operation == TRUNCATE:
                last = self._last_of_table(entity_type, placed)
            older = next((at for at in last if at is not None and _is_older(placed, at)), None)
            if older is None:
                kept.append(change)
                self._take(change, names, placed)
            # A change at a position that this commit has for the row is a repeat, so it is dropped.
            elif not all((name, placed.position) in self._sent for name in names) or not names:
                refused.append((change, _reason(change, placed, older)))
        return WithoutOlder(kept, refused)

    def _last_of(self, name: _RowName) -> Placed | None:
        # The commit's own change comes after a truncate of the commit, and that after the log.
        if name in self._last:
            return self._last[name]
        if name[0] in self._truncated:
            return self._truncated[name[0]]
        return self._log_has.get(name)

    def _last_of_table(self, entity_type: str, placed: Placed) -> list[Placed | None]:
        """Return the places of the changes that a truncate must not be older than."""
        found: list[Placed | None] = [
            at for name, at in self._last.items() if name[0] == entity_type
        ]
        # Do not read the whole table's state from the log: a truncate below the newest position of its table
        # counts as older.
        if self._newest is not None and placed.log is not None:
            at = (entity_type, placed.log, placed.position, placed.time)
            if self._newest.is_below(*at):
                found.append(UNKNOWN)
        return found

    def _take(self, change: Change, names: Sequence[_RowName], placed: Placed) -> None:
        if change.operation == TRUNCATE:
            entity_type = change.entity_type or ""
            self._truncated[entity_type] = placed
            for name in [name for name in self._last if name[0] == entity_type]:
                self._last[name] = placed
        for name in names:
            self._last[name] = placed
            self._sent.add((name, placed.position))


def older_rows(
    writer: CatalogWriter,
    settings: IngestSettings,
    newest: NewestPositions,
    may_be_older: bool,
) -> OlderRows | None:
    """Return the check for older changes in a commit; None if the settings accept older changes.

    Args:
        writer: The catalog's writer.
        settings: The settings of the ingest.
        newest: The newest positions before the commit.
        may_be_older: True if a change may be older than another transaction's change of the same row.
    """
    if settings.takes_older:
        return None
    if not may_be_older:
        return OlderRows()
    return OlderRows(partial(_log_has, writer, settings, newest), newest)


def _log_has(
    writer: CatalogWriter,
    settings: IngestSettings,
    newest: NewestPositions,
    changes: Iterable[Change],
) -> dict[_RowName, Placed]:
    """Return the place of the last change in the log, for each row with a change below the newest position.

    Raises:
        LogCorrupted: A batch that is read is damaged.
        SegmentMissing: Upkeep replaced the segments in each of several attempts.
    """
    wanted: dict[str, set[str]] = defaultdict(set)
    for change in changes:
        entity_type = change.entity_type or ""
        if change.log is not None and newest.is_below(
            entity_type, change.log, position_bytes(change.place), change.timestamp
        ):
            wanted[entity_type].update(key for _, key in _rows_of(change))
    found: dict[_RowName, Placed] = {}
    nothing: dict[str, Placed] = {}
    for entity_type, keys in wanted.items():
        mapping, ordered = settings.mapping, sorted(keys)
        for _, places in read_keys(writer, mapping, entity_type, ordered, _last_changes, nothing):
            found.update(((entity_type, key), placed) for key, placed in places.items())
    return found


def _last_changes(
    view: LogView, reader: BatchReader, entity_type: str, keys: Sequence[str]
) -> dict[str, Placed]:
    """Return key → place of its last change in the log; keys that the log has never had are left out."""
    found = last_records(view, reader, entity_type, keys)
    versions = dict(
        zip(found.winners.keys.to_pylist(), found.winners.versions.tolist(), strict=True)
    )
    leads = dict(_leads_of(view, reader, {versions[key] for key in keys if key in versions}))
    # If the log was trimmed or the table truncated, an absent key may have existed before.
    forgotten = found.truncated or view.oldest > FIRST
    return {
        key: leads.get(versions[key], UNKNOWN) if key in versions else UNKNOWN
        for key in keys
        if forgotten or key in versions
    }


def _leads_of(
    view: LogView, reader: BatchReader, versions: Iterable[int]
) -> Iterator[tuple[int, Placed]]:
    places: dict[int, list[int]] = defaultdict(list)
    # Group the versions by batch, so that each batch is read once, in the order of the log.
    for version in versions:
        places[view.find(Position(version, 0))].append(version)
    for place, some in sorted(places.items()):
        for version, lead in leads_in(reader, view.batch(place), some):
            yield version, _placed(lead)


def _placed(lead: Lead) -> Placed:
    time = lead.source_timestamp if isinstance(lead.source_timestamp, int) else None
    snapshot = lead.snapshot is True
    if isinstance(lead.source_log, str) and isinstance(lead.source_position, str):
        return Placed(lead.source_log, bytes.fromhex(lead.source_position), time, snapshot)
    return Placed(None, UNPLACED, time, snapshot)


def _rows_of(change: Change) -> list[_RowName]:
    """Return the names of the rows that a change affects; empty for a truncate."""
    keys = dict.fromkeys((change.old_key, change.primary_key))
    return [(change.entity_type or "", key) for key in keys if key is not None]


def _is_older(placed: Placed, last: Placed) -> bool:
    if placed.log is None:
        return False  # A change without a position counts in the order of arrival.
    # Unknown counts as older: taking an old change would overwrite a newer one, quarantine loses nothing.
    return placed.is_before(last) is not False


def _falls(changes: Sequence[Change]) -> bool:
    """Return True if positions decrease anywhere within the changes; rows without a position do not count."""
    highest = UNPLACED
    for change in changes:
        position = position_bytes(change.place)
        if UNPLACED != position < highest:
            return True
        highest = max(highest, position)
    return False


def _reason(change: Change, placed: Placed, last: Placed) -> str:
    what = "table" if change.operation == TRUNCATE else "row"
    at = f"position {_numbers(placed.position)} of {placed.log}"
    if last.log is None:
        return (
            f"it may be older than what the log has of its {what}: {at} is below the newest "
            "position of its table, and the log does not have the position of the last change of "
            f"the {what}{_ADVICE}"
        )
    return (
        f"older than what the log has of its {what}: {at} comes before {_numbers(last.position)} of "
        f"{last.log}{_ADVICE}"
    )


_ADVICE: Final = "; to write it anyway, put it in a new file and run with --on-older take"


def _numbers(position: bytes) -> str:
    first, second, third = position_in(position + bytes(8))
    return f"({first}, {second}, {third})"
