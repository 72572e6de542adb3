"""The counters of an ingest, and their output on stderr."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tailrace_server.histogram import LatencyHistogram
from tailrace_server.pipeline.run.set_aside import kind_of
from tailrace_server.units import counted, duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console
    from rich.status import Status

    from tailrace_server.pipeline.catalog.due_times import UnreadTimes
    from tailrace_server.pipeline.run.set_aside import SetAside
    from tailrace_server.pipeline.run.source_figures import SourceFigures

_INTERVAL_S: Final = 5.0
"""Time between two progress lines if stderr is not a terminal."""
_RATE_OVER_S: Final = 10.0
"""Length of the interval over which a rate is measured, in seconds."""
_LAG_MAX_S: Final = 86_400.0
"""Maximum lag that is printed as a lag. If rows are older, the ingest is reading history, so their date is
printed instead."""


@dataclass(slots=True)
class SeenShape:
    """The number of lines in another format than the source's messages, and the place of the first."""

    file: str
    line: int
    count: int = 0


@dataclass(slots=True)
class EntityCounts:
    """The numbers of accepted and quarantined rows of one entity type; removals do not count."""

    taken: int = 0
    """Number of accepted rows."""
    set_aside: int = 0
    """Number of quarantined rows."""
    set_aside_since: int = 0
    """Number of rows quarantined since the last batch with an accepted row."""
    reason: str = ""
    """Reason of the first row in `set_aside_since`."""

    def add(self, taken: int, set_aside: int, reason: str) -> None:
        """Add the rows of a batch."""
        self.taken += taken
        self.set_aside += set_aside
        if taken > 0:
            self.set_aside_since = 0
        elif set_aside:
            self.reason = reason if not self.set_aside_since else self.reason
            self.set_aside_since += set_aside


@dataclass(slots=True)
class LackingSnapshot:
    """The result of comparing a table with its last snapshot: the rows that the snapshot lacks."""

    count: int = 0
    """Number of missing rows that were not removed."""
    keys: list[str] = field(default_factory=list)
    """Keys of the first missing rows."""
    removed: int = 0
    """Number of missing rows that were removed."""
    is_absent: bool = False
    """True if the snapshot of all tables ended without the last row of the table."""
    fault: str = ""
    """Reason why the missing rows cannot be determined; empty if they can."""


@dataclass(slots=True)
class TableEffects:
    """The statements, such as DROP TABLE, that changed rows of one table at the source but not in the log."""

    count: int = 0
    reason: str = ""
    """Message about the newest statement."""


@dataclass(slots=True)
class IngestCounters:
    """Counts since the ingest began."""

    lines: int = 0
    """Number of lines read, with any content."""
    messages: int = 0
    """Number of messages in these lines; usually one a line."""
    rows: int = 0
    """Number of row changes among the messages."""
    ignored: int = 0
    """Number of messages without a row: blank lines, nulls, tombstones, and those of ``ignored_by_kind``."""
    ignored_by_kind: Counter[str] = field(default_factory=Counter)
    """Kind → number of messages that are not about a row, such as heartbeats."""
    shapes: dict[str, SeenShape] = field(default_factory=dict)
    """Quarantine reason → lines in another format than the source's messages."""
    skipped: int = 0
    """Number of lines that an earlier run had consumed; 0 without a take-over."""
    quarantined: int = 0
    """Number of messages that went to quarantine."""
    set_aside: Counter[str] = field(default_factory=Counter)
    """Kind of reason → number of quarantined messages. The kind is the reason up to its first colon, so that it
    has few values, as metric labels must."""
    first_reasons: dict[str, str] = field(default_factory=dict)
    """Kind of reason, as in ``set_aside`` → full text of the first reason of that kind."""
    by_entity_type: dict[str, EntityCounts] = field(default_factory=dict)
    """Entity type → its rows; lines of an unknown entity type are not included."""
    effects: dict[str, TableEffects] = field(default_factory=dict)
    """Name of a table → statements that changed its rows. They are included in ``quarantined``."""
    versions: int = 0
    """Number of committed transactions."""
    records: int = 0
    """Number of committed records, including lead records."""
    late: int = 0
    """Number of versions of rows that arrived after their transaction was closed."""
    below_zero: int = 0
    """Number of records that left the count of a row, in a table without a key, below zero."""
    incomplete_images: int = 0
    """Number of records whose image should be whole, but could not be filled."""
    expired: int = 0
    """Number of rows removed because their time to live was over."""
    first_due_us: int | None = None
    """Earliest known due time of a row, in microseconds; None if no row can expire."""
    unread_times: Mapping[str, UnreadTimes] = field(default_factory=dict)
    """Entity type → rows whose due time cannot be read."""
    lacking: dict[str, LackingSnapshot] = field(default_factory=dict)
    """Entity type → rows that its last snapshot lacks; only entity types with such rows or a fault."""
    pending: int = 0
    """Number of transactions that are open now."""
    committed: int = 0
    """Newest committed version."""
    published: int = 0
    """Newest published version."""
    newest_us: int | None = None
    """Latest source timestamp of a committed row, in microseconds; None if rows have no timestamps."""
    sources: dict[str, SourceFigures] = field(default_factory=dict)
    """Name → figures of a source that has positions."""
    input_files: int = 0
    """Number of files in the committed batches."""
    input_bytes: int = 0
    """Total size of these files, in bytes."""
    written_bytes: int = 0
    """Total size of the committed segments, in bytes."""
    commits: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Durations of commits, from the written segments to the durable entry."""

    @property
    def commonest_reason(self) -> str:
        """The first reason of the most frequent kind of quarantine reasons; empty if there is none."""
        kinds = self.set_aside.most_common(1)
        return self.first_reasons[kinds[0][0]] if kinds else ""

    def count_set_aside(self, found: SetAside) -> None:
        """Count quarantined messages, among them statements that changed rows of tables."""
        for reason, lines in found.kinds.items():
            self.quarantined += lines.number
            kind = kind_of(reason, self.set_aside)
            self.set_aside[kind] += lines.number
            self.first_reasons.setdefault(kind, lines.reason)
        for (table, _), effect in found.effects.items():
            if (both := effect.together) is not None:
                counts = self.effects.setdefault(table, TableEffects())
                counts.count += both.number
                counts.reason = both.last_reason

    def count_by_entity_type(
        self, rows: Counter[str], quarantined: SetAside, refused: SetAside
    ) -> None:
        """Count the accepted and quarantined rows of a batch.

        Args:
            rows: Entity type → number of decoded rows, without removals.
            quarantined: The lines of the batch that could not be used.
            refused: Decoded rows, of this or an earlier batch, that went to quarantine at the commit.
        """
        aside = Counter({name: x.number for name, x in quarantined.entity_types.items()})
        late = Counter({name: x.number for name, x in refused.entity_types.items()})
        taken = Counter(rows)  # negative if rows of earlier batches go to quarantine only now
        taken.subtract(late)
        aside += late
        for entity_type in taken.keys() | aside.keys():
            first = quarantined.entity_types.get(entity_type, refused.entity_types.get(entity_type))
            counts = self.by_entity_type.setdefault(entity_type, EntityCounts())
            counts.add(taken[entity_type], aside[entity_type], first.reason if first else "")

    def note_lacking(self, entity_type: str, found: LackingSnapshot) -> None:
        """Store the rows that the last snapshot of an entity type lacks."""
        self.lacking.pop(entity_type, None)
        if found.count or found.removed or found.fault:
            self.lacking[entity_type] = found

    def count_shapes(self, found: SetAside, blocks: Mapping[tuple[str, int], int]) -> None:
        """Count lines in another format than the source's messages.

        Args:
            found: The lines of a batch that could not be used.
            blocks: (file, block) → number of lines of the file before the block.
        """
        for reason, lines in found.shapes.items():
            line = lines.line + blocks.get((lines.file, lines.block), 0)
            self.shapes.setdefault(reason, SeenShape(lines.file, line)).count += lines.number

    def shut_out(self, *, lately: bool = False) -> dict[str, EntityCounts]:
        """Return the entity types whose rows all went to quarantine.

        Args:
            lately: True considers only the rows since the last batch with an accepted row; False considers all
                rows since the ingest began.
        """
        return {
            entity_type: counts
            for entity_type, counts in sorted(self.by_entity_type.items())
            if (counts.set_aside_since if lately else counts.set_aside and not counts.taken)
        }

    def overdue_s(self, now_us: int) -> float | None:
        """Return the seconds since the earliest due time of a row; 0 if none is due, None if no row expires."""
        return None if self.first_due_us is None else max(0.0, (now_us - self.first_due_us) / 1e6)

    def lag_s(self, now_us: int) -> float | None:
        """Return the seconds since the source timestamp of the newest committed row; None if unknown."""
        return None if self.newest_us is None else max(0.0, (now_us - self.newest_us) / 1e6)


class ProgressReporter:
    """The output of an ingest on stderr: on a terminal one line updated in place, else a line at intervals."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Begin; nothing is printed yet. ``quiet`` prints nothing at all."""
        from rich.console import Console

        self._console: Console = Console(stderr=True, quiet=quiet, highlight=False)
        self._status: Status | None = None
        self._started = time.monotonic()
        self._shown_at = self._started
        self._shown_lines = 0
        self._complain_at = self._started
        self._lacking_said: dict[str, LackingSnapshot] = {}
        self._changed_said: set[str] = set()
        self._effects_shown: dict[str, int] = {}
        """Name of a table → number of its statements at the last error line about it."""
        self._unread_told: set[str] = set()
        """Entity types for which an error line about unreadable due times was printed."""
        self._complained: dict[str, int] = {}
        """Entity type → number of its quarantined rows at the last error line about it."""
        self._samples: deque[tuple[float, int]] = deque([(self._started, 0)])
        """Pairs of time and total rows in the last `_RATE_OVER_S`; the first is older, or the beginning."""

    def note(self, message: str) -> None:
        """Print a line."""
        from rich.markup import escape

        self._console.print(f"[bright_black]·[/] {escape(message)}", soft_wrap=True)

    def wait(self, message: str) -> None:
        """Print what the ingest waits for in the status line; does nothing if stderr is not a terminal."""
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status(message)
                self._status.start()
            self._status.update(message)

    @property
    def is_watched(self) -> bool:
        """True if a person may be watching: the output goes to a terminal."""
        return self._console.is_terminal and not self._console.quiet

    def progress(
        self, counters: IngestCounters, beginning: str = "", open_left_s: float | None = None
    ) -> None:
        """Print the progress: on a terminal at each call, else only if the counts changed and it is time.

        Args:
            counters: The counters of the ingest.
            beginning: Text for a terminal until the first line is read.
            open_left_s: Seconds until open transactions become complete if no row arrives; None if unknown.
        """
        now = time.monotonic()
        if self._console.is_terminal:
            is_begun = counters.lines or not beginning
            self.wait(self._line(counters, now, open_left_s) if is_begun else beginning)
        elif now - self._shown_at >= _INTERVAL_S and counters.lines != self._shown_lines:
            self._shown_at, self._shown_lines = now, counters.lines
            self.note(self._line(counters, now))

    def following(self, counters: IngestCounters, quarantine: str) -> None:
        """Print what an operator must know while an ingest follows its source; each line once."""
        self.shut_out(counters, quarantine)
        self.unread_times(counters)
        self.lacking(counters)
        self.effects(counters)

    def shut_out(self, counters: IngestCounters, quarantine: str) -> None:
        """Print an error line, at intervals, for each entity type whose latest rows all went to quarantine."""
        now = time.monotonic()
        if now < self._complain_at:
            return
        for entity_type, counts in counters.shut_out(lately=True).items():
            if counts.set_aside != self._complained.get(entity_type):
                self._complained[entity_type] = counts.set_aside
                self._complain_at = now + _INTERVAL_S
                self.complain(
                    f"the last {counted(counts.set_aside_since, 'row')} of {entity_type} were all set aside: "
                    f"{counts.reason}; {quarantine} has them"
                )

    def unread_times(self, counters: IngestCounters) -> None:
        """Print an error line, once for each entity type, about rows whose time to live cannot be read."""
        for entity_type, unread in counters.unread_times.items():
            if entity_type not in self._unread_told:
                self._unread_told.add(entity_type)
                self.complain(
                    f"{counted(unread.count, 'row')} of {entity_type} never expire: {unread.first}"
                )

    def changed(self, files: Iterable[str]) -> None:
        """Print an error line about input files that changed after they were read, once for each file."""
        if new := [file for file in files if file not in self._changed_said]:
            self._changed_said.update(new)
            self.complain(
                f"{counted(len(new), 'input file')} changed after being read, first {new[0]}: the "
                "new contents are not read; write new lines into new files"
            )

    def unreadable(self, names: Sequence[bytes]) -> None:
        """Print an error line about input files whose names Spark cannot open."""
        if names:
            self.complain(
                f"{counted(len(names), 'input file')} cannot be read because the name is not "
                f"UTF-8, first {names[0]!r}; rename it"
            )

    def lacking(self, counters: IngestCounters) -> None:
        """Print a line, once for each snapshot, about the rows of the log that the snapshot lacks."""
        for entity_type, found in list(counters.lacking.items()):
            if self._lacking_said.get(entity_type) is found:
                continue
            self._lacking_said[entity_type] = found
            if found.fault:
                self.complain(
                    f"the last snapshot of {entity_type} does not show removed rows, because {found.fault}: "
                    "rows that the source has removed may still be in the log"
                )
            elif found.removed:
                self.note(
                    f"{counted(found.removed, 'row')} of {entity_type} removed: they are missing "
                    "from the last snapshot"
                )
            else:
                self.complain(_lacking_text(entity_type, found))

    def effects(self, counters: IngestCounters) -> None:
        """Print an error line for each table with new statements that changed its rows only at the source."""
        for table, effects in dict(counters.effects).items():
            if effects.count != self._effects_shown.get(table):
                self._effects_shown[table] = effects.count
                self.complain(effects.reason)

    def complain(self, message: str) -> None:
        """Print an error line."""
        from rich.markup import escape

        self._console.print(f"[red]error:[/] {escape(message)}", soft_wrap=True)

    def finish(self) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def summary(self, counters: IngestCounters, quarantine: str) -> None:
        """Print the summary of an ingest of lines."""
        self.total(counters, "row", "line")
        for kind, count in sorted(counters.ignored_by_kind.items()):
            self.note(f"{counted(count, kind)} ignored")
        if blank := counters.ignored - counters.ignored_by_kind.total():
            self.note(f"{counted(blank, 'line')} blank, null or tombstones")
        if counters.skipped:
            self.note(
                f"{counted(counters.skipped, 'line')} skipped: already consumed by an earlier run"
            )
        if counters.late:
            self.note(
                f"{counted(counters.late, 'version')} of rows arrived after the end of their transaction"
            )
        if counters.below_zero:
            self.note(
                f"{counted(counters.below_zero, 'row')} without a key had more removals than "
                "inserts: the ingest began without a snapshot, or the table was altered"
            )
        if counters.incomplete_images:
            self.note(
                f"{counted(counters.incomplete_images, 'record')} with an incomplete image: the "
                "log has no earlier image of the row, or that image lacks the value too"
            )
        if counters.expired:
            self.note(f"{counted(counters.expired, 'row')} expired")
        self.unread_times(counters)
        self.lacking(counters)
        self.effects(counters)
        if counters.pending:
            self.note(f"{counted(counters.pending, 'open transaction')} left for the next run")
        for entity_type, counts in sorted(counters.by_entity_type.items()):
            if counts.set_aside:
                self.note(
                    f"{entity_type}: {counted(counts.taken, 'row')} taken, {counts.set_aside:,} set aside"
                )
        is_split = counters.messages > counters.lines
        self._unusable(counters, "message" if is_split else "line", quarantine)
        for shape, seen in sorted(counters.shapes.items(), key=lambda item: -item[1].count):
            self.note(f"{seen.count:,} of them, first {seen.file}:{seen.line}: {shape}")

    def messages(self, counters: IngestCounters, quarantine: str) -> None:
        """Print the summary of an ingest of CDCv2 messages."""
        self.total(counters, "update", "message")
        self._unusable(counters, "message", quarantine)

    def total(self, counters: IngestCounters, row: str, line: str) -> None:
        """Print the counts; ``row`` and ``line`` are the words for what was read."""
        self.finish()
        self.note(
            f"{counted(counters.versions, 'version')} of {counted(counters.rows, row)} from "
            f"{counted(counters.lines, line)} in {time.monotonic() - self._started:.1f} s; "
            f"committed {counters.committed}, published {counters.published}"
        )

    def _unusable(self, counters: IngestCounters, line: str, quarantine: str) -> None:
        if counters.quarantined:
            self.note(f"{counted(counters.quarantined, line)} could not be used: {quarantine}")

    def _rate(self, rows: int, now: float) -> float:
        """Return the rate of rows over the last `_RATE_OVER_S` seconds, in rows per second."""
        samples = self._samples
        samples.append((now, rows))
        while len(samples) > 2 and samples[1][0] <= now - _RATE_OVER_S:
            samples.popleft()
        then, before = samples[0]
        return (rows - before) / max(now - then, 1.0)

    def _line(self, counters: IngestCounters, now: float, open_left_s: float | None = None) -> str:
        rate = self._rate(counters.rows, now)
        behind = _behind(counters, time.time_ns() // 1_000)
        waiting = f", {counters.pending:,} open" if counters.pending else ""
        if waiting and open_left_s is not None and open_left_s > 0:
            waiting += f", complete in {open_left_s:.0f} s unless a row arrives"
        return (
            f"{counted(counters.rows, 'row')}, {counted(counters.versions, 'version')}, {rate:,.0f} rows/s"
            f"{behind}{waiting}"
        )


def _lacking_text(entity_type: str, found: LackingSnapshot) -> str:
    keys = ", ".join(found.keys) + (", …" if found.count > len(found.keys) else "")
    rows = counted(found.count, "row")
    if found.is_absent:
        return (
            f"the last snapshot ended without the last row of {entity_type}, which has {rows} of "
            f"earlier versions ({keys}): the table is now empty, or the snapshot does not include "
            "it, or its files are missing"
        )
    return (
        f"{rows} of {entity_type} are missing from its last snapshot ({keys}): the source removed "
        "them while no connector was running, or the snapshot is filtered; if it is not "
        "filtered, run again with --missing-from-snapshot remove"
    )


def _behind(counters: IngestCounters, now_us: int) -> str:
    """Return a text about the lag behind the source; empty if the rows have no timestamps."""
    lag_s = counters.lag_s(now_us)
    if lag_s is None or counters.newest_us is None:
        return ""
    if lag_s <= _LAG_MAX_S:
        return f", {duration(lag_s)} behind the source"
    try:
        newest = datetime.fromtimestamp(counters.newest_us // 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return f", at rows of {newest:%Y-%m-%d}"
