"""Counts of what an ingest has done, and how they are shown on stderr."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tailrace_server.histogram import LatencyHistogram
from tailrace_server.units import counted, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import Console
    from rich.status import Status

    from tailrace_server.pipeline.catalog.due_times import UnreadTimes
    from tailrace_server.pipeline.input.change import Change

_INTERVAL_S: Final = 5.0
"""Time between two lines where stderr is no terminal."""
_RATE_OVER_S: Final = 10.0
"""Time that a rate is measured over."""
_REASONS: Final = 30
_REASON_CHARS: Final = 80
OTHER_REASONS: Final = "other"
"""Stands for all reasons above the first thirty."""
_LAG_MAX_S: Final = 86_400.0
"""Rows older than this are a history that is read in, not a source that is not kept up with."""


@dataclass(slots=True)
class SeenShape:
    """How often input of another shape came, and where first."""

    file: str
    line: int
    count: int = 0


@dataclass(slots=True)
class EntityCounts:
    """The outcome of one entity type's rows; removals, which have no values, are not counted."""

    taken: int = 0
    set_aside: int = 0
    set_aside_since: int = 0
    """Rows set aside since the last batch with a row that was taken."""
    reason: str = ""
    """Why the first of those was set aside."""

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
    """Rows that the log has and the last snapshot of their table lacks."""

    count: int = 0
    keys: list[str] = field(default_factory=list)
    """Keys of the first rows."""
    removed: int = 0
    is_absent: bool = False
    """The snapshot ended without the last row of the table."""
    fault: str = ""
    """Why the snapshot says nothing about rows that it lacks."""


@dataclass(slots=True)
class TableEffects:
    """Statements that have changed rows of one table at the source, and that the log does not have."""

    count: int = 0
    reason: str = ""
    """Of the newest."""


@dataclass(slots=True)
class IngestCounters:
    """Counts since the ingest began."""

    lines: int = 0
    """Lines read, whatever they held."""
    messages: int = 0
    """Messages in them: one each, unless a line holds several."""
    rows: int = 0
    """Changes among the messages."""
    ignored: int = 0
    """Messages that gave nothing: blank lines, nulls, tombstones, and those of ``ignored_by_kind``."""
    ignored_by_kind: Counter[str] = field(default_factory=Counter)
    """Messages about no row, by what they are, as heartbeats."""
    shapes: dict[str, SeenShape] = field(default_factory=dict)
    """Input that came in place of messages, by the reason in the quarantine."""
    skipped: int = 0
    """Lines that an earlier run had consumed; only after a take-over."""
    quarantined: int = 0
    set_aside: Counter[str] = field(default_factory=Counter)
    """Of those, by the beginning of the reason, up to its first colon: of few values, as labels must be."""
    first_reasons: dict[str, str] = field(default_factory=dict)
    """Kind as in ``set_aside`` → the first reason of it, whole."""
    by_entity_type: dict[str, EntityCounts] = field(default_factory=dict)
    """Rows by entity type, without lines whose entity type is unknown."""
    effects: dict[str, TableEffects] = field(default_factory=dict)
    """Statements that have changed rows, by the name of their table. They are among ``quarantined``."""
    versions: int = 0
    """Transactions committed."""
    records: int = 0
    """Records committed, leads included."""
    late: int = 0
    """Versions made of rows that came after their transaction had been closed."""
    below_zero: int = 0
    """Records that left the count of a row of a table without a key below zero."""
    incomplete_images: int = 0
    """Records with an image that should be whole, and that nothing could fill."""
    expired: int = 0
    """Rows removed as their time to live was over."""
    first_due_us: int | None = None
    """When the first row is due whose time to live is known, µs; None where none can be."""
    unread_times: Mapping[str, UnreadTimes] = field(default_factory=dict)
    """Entity types with rows whose due time is unknown."""
    lacking: dict[str, LackingSnapshot] = field(default_factory=dict)
    """Entity type → the rows that its last snapshot lacks, if any."""
    pending: int = 0
    """Transactions open now."""
    committed: int = 0
    """Newest version committed."""
    published: int = 0
    """Newest version published."""
    newest_us: int | None = None
    """Latest source timestamp of a committed row."""
    input_files: int = 0
    """Files of the batches that were committed."""
    input_bytes: int = 0
    written_bytes: int = 0
    """Bytes of the segments committed."""
    commits: LatencyHistogram = field(default_factory=LatencyHistogram)
    """How long it took to make a batch durable once its segments were written."""

    @property
    def commonest_reason(self) -> str:
        """The first reason of the commonest kind for which lines were set aside; empty if there is none."""
        kinds = self.set_aside.most_common(1)
        return self.first_reasons[kinds[0][0]] if kinds else ""

    def count_set_aside(self, reasons: Iterable[str]) -> None:
        """Count lines that were set aside."""
        for reason in reasons:
            self.quarantined += 1
            kind = reason.partition(":")[0][:_REASON_CHARS]
            full = len(self.set_aside) >= _REASONS and kind not in self.set_aside
            kind = OTHER_REASONS if full else kind
            self.set_aside[kind] += 1
            self.first_reasons.setdefault(kind, reason)

    def count_effects(self, quarantined: Iterable[Change]) -> None:
        """Count statements that have changed rows of tables."""
        for change in quarantined:
            found = self.effects.setdefault(change.table or "", TableEffects())
            found.count += 1
            found.reason = change.reason or ""

    def count_by_entity_type(
        self, rows: Counter[str], quarantined: Iterable[Change], refused: Sequence[Change]
    ) -> None:
        """Count what became of the rows of a batch.

        Args:
            rows: Rows by entity type, removals aside.
            quarantined: Lines of the batch that could not be used.
            refused: Those of ``rows``, or of an earlier batch's, that were set aside after all.
        """
        taken = Counter(rows)  # below zero where rows of earlier batches are set aside only now
        taken.subtract(change.entity_type or "" for change in refused)
        reasons: dict[str, str] = {}
        aside: Counter[str] = Counter()
        for change in (*quarantined, *refused):
            if change.entity_type is not None:
                aside[change.entity_type] += 1
                reasons.setdefault(change.entity_type, change.reason or "")
        for entity_type in taken.keys() | aside.keys():
            counts = self.by_entity_type.setdefault(entity_type, EntityCounts())
            counts.add(taken[entity_type], aside[entity_type], reasons.get(entity_type, ""))

    def note_lacking(self, entity_type: str, found: LackingSnapshot) -> None:
        """Note what the last snapshot of an entity type lacks."""
        self.lacking.pop(entity_type, None)
        if found.count or found.removed or found.fault:
            self.lacking[entity_type] = found

    def count_shapes(
        self,
        quarantined: Iterable[Change],
        blocks: Mapping[tuple[str, int], int],
        tells_shape: Callable[[str], bool],
    ) -> None:
        """Count what came in place of messages.

        Args:
            quarantined: Lines of a batch that could not be used.
            blocks: (file, block) → lines of the file before the block.
            tells_shape: As `Source.tells_shape`.
        """
        for change in sorted(quarantined, key=lambda change: change.place):
            reason = change.reason or ""
            if tells_shape(reason):
                file, line = change.file or "", change.line or 0
                line += blocks.get((file, change.block or 0), 0)
                self.shapes.setdefault(reason, SeenShape(file, line)).count += 1

    def shut_out(self, *, lately: bool = False) -> dict[str, EntityCounts]:
        """Return the entity types whose rows were all set aside.

        Args:
            lately: Only since the last batch with a row that was taken, instead of since the ingest began.
        """
        return {
            entity_type: counts
            for entity_type, counts in sorted(self.by_entity_type.items())
            if (counts.set_aside_since if lately else counts.set_aside and not counts.taken)
        }

    def overdue_s(self, now_us: int) -> float | None:
        """Return for how long the first row that is due has been so; None where no row expires."""
        return None if self.first_due_us is None else max(0.0, (now_us - self.first_due_us) / 1e6)

    def lag_s(self, now_us: int) -> float | None:
        """Return how far the newest committed row lies behind the clock."""
        return None if self.newest_us is None else max(0.0, (now_us - self.newest_us) / 1e6)


class ProgressReporter:
    """Shows progress on stderr: one line that changes in place on a terminal, else a line now and then."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Begin; nothing is written yet."""
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
        """Name of a table → its statements for which an error line was written."""
        self._unread_told: set[str] = set()
        """Entity types with an error line that rows never expire."""
        self._complained: dict[str, int] = {}
        """Entity type → its rows that had been set aside when the last error line said so."""
        self._samples: deque[tuple[float, int]] = deque([(self._started, 0)])
        """(time, rows by then) of the last `_RATE_OVER_S`; the first is older, or the beginning."""

    def note(self, message: str) -> None:
        """Write a line."""
        from rich.markup import escape

        self._console.print(f"[bright_black]·[/] {escape(message)}", soft_wrap=True)

    def wait(self, message: str) -> None:
        """Show what is waited for; on a terminal only."""
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status(message)
                self._status.start()
            else:
                self._status.update(message)

    @property
    def is_watched(self) -> bool:
        """True if somebody may read along: it writes to a terminal."""
        return self._console.is_terminal and not self._console.quiet

    def progress(
        self, counters: IngestCounters, beginning: str = "", open_left_s: float | None = None
    ) -> None:
        """Show how far it is, if the counts have changed and the last line is old enough.

        Args:
            counters: What was done so far.
            beginning: What is shown on a terminal until the first lines are read.
            open_left_s: How long until transactions that are open become complete, if no row comes.
        """
        now = time.monotonic()
        if self._console.is_terminal:
            is_begun = counters.lines or not beginning
            self.wait(self._line(counters, now, open_left_s) if is_begun else beginning)
        elif now - self._shown_at >= _INTERVAL_S and counters.lines != self._shown_lines:
            self._shown_at, self._shown_lines = now, counters.lines
            self.note(self._line(counters, now))

    def shut_out(self, counters: IngestCounters, quarantine: str) -> None:
        """Write an error line for each entity type whose rows are all set aside, as their number grows."""
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
        """Write an error line for each entity type with rows whose time to live cannot be read, once."""
        for entity_type, unread in counters.unread_times.items():
            if entity_type not in self._unread_told:
                self._unread_told.add(entity_type)
                self.complain(
                    f"{counted(unread.count, 'row')} of {entity_type} never expire: {unread.first}"
                )

    def changed(self, files: Iterable[str]) -> None:
        """Write an error line for input files that have changed since they were read, once for each."""
        if new := [file for file in files if file not in self._changed_said]:
            self._changed_said.update(new)
            self.complain(
                f"{counted(len(new), 'input file')} changed after being read, first {new[0]}: what is in it "
                "now is not read; write new lines into new files"
            )

    def unreadable(self, names: Sequence[bytes]) -> None:
        """Write an error line for input files that Spark cannot open by their names."""
        if names:
            self.complain(
                f"{counted(len(names), 'input file')} cannot be read, as the name is not UTF-8, first "
                f"{names[0]!r}; rename it"
            )

    def lacking(self, counters: IngestCounters) -> None:
        """Write a line for each snapshot that lacks rows of the log, once."""
        for entity_type, found in list(counters.lacking.items()):
            if self._lacking_said.get(entity_type) is found:
                continue
            self._lacking_said[entity_type] = found
            if found.fault:
                self.complain(
                    f"the last snapshot of {entity_type} says nothing about removed rows, as {found.fault}: "
                    "rows that the source has removed meanwhile may still be there"
                )
            elif found.removed:
                self.note(
                    f"{counted(found.removed, 'row')} of {entity_type} removed: the last snapshot lacks them"
                )
            else:
                self.complain(_lacking_text(entity_type, found))

    def effects(self, counters: IngestCounters) -> None:
        """Write an error line for each table whose rows a statement has changed."""
        for table, effects in dict(counters.effects).items():
            if effects.count != self._effects_shown.get(table):
                self._effects_shown[table] = effects.count
                self.complain(effects.reason)

    def complain(self, message: str) -> None:
        """Write an error line."""
        from rich.markup import escape

        self._console.print(f"[red]error:[/] {escape(message)}", soft_wrap=True)

    def finish(self) -> None:
        """Remove the line that changes in place."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def summary(self, counters: IngestCounters, quarantine: str) -> None:
        """Write what an ingest of lines has done."""
        self._total(counters, "row", "line")
        for kind, count in sorted(counters.ignored_by_kind.items()):
            self.note(f"{counted(count, kind)} passed over")
        if blank := counters.ignored - counters.ignored_by_kind.total():
            self.note(f"{counted(blank, 'line')} blank, null or tombstones")
        if counters.skipped:
            self.note(
                f"{counted(counters.skipped, 'line')} skipped: an earlier run had consumed them"
            )
        if counters.late:
            self.note(
                f"{counted(counters.late, 'version')} of rows that came after their transaction had closed"
            )
        if counters.below_zero:
            self.note(
                f"{counted(counters.below_zero, 'row')} without a key left more often than they came: "
                "the ingest began without a snapshot, or the table was altered"
            )
        if counters.incomplete_images:
            self.note(
                f"{counted(counters.incomplete_images, 'record')} with an image that is not whole: "
                "the log has no image of the row from before, or that lacks the value too"
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
        self._unusable(
            counters, "message" if counters.messages > counters.lines else "line", quarantine
        )
        for shape, seen in sorted(counters.shapes.items(), key=lambda item: -item[1].count):
            self.note(f"{seen.count:,} of them, first {seen.file}:{seen.line}: {shape}")

    def messages(self, counters: IngestCounters, quarantine: str) -> None:
        """Write what an ingest of CDCv2 messages has done."""
        self._total(counters, "update", "message")
        self._unusable(counters, "message", quarantine)

    def _total(self, counters: IngestCounters, row: str, line: str) -> None:
        self.finish()
        elapsed = time.monotonic() - self._started
        self.note(
            f"{counted(counters.versions, 'version')} of {counted(counters.rows, row)} "
            f"from {counted(counters.lines, line)} "
            f"in {elapsed:.1f} s; committed {counters.committed}, published {counters.published}"
        )

    def _unusable(self, counters: IngestCounters, line: str, quarantine: str) -> None:
        if counters.quarantined:
            self.note(f"{counted(counters.quarantined, line)} could not be used: {quarantine}")

    def _rate(self, rows: int, now: float) -> float:
        """Return the rows a second over the last `_RATE_OVER_S`."""
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
            waiting += f", complete in {open_left_s:.0f} s if no row comes"
        return (
            f"{counted(counters.rows, 'row')}, {counted(counters.versions, 'version')}, {rate:,.0f} rows/s"
            f"{behind}{waiting}"
        )


def _lacking_text(entity_type: str, found: LackingSnapshot) -> str:
    keys = ", ".join(found.keys) + (", …" if found.count > len(found.keys) else "")
    rows = counted(found.count, "row")
    if found.is_absent:
        return (
            f"the last snapshot ended without the last row of {entity_type}, which has {rows} from before "
            f"({keys}): the table is empty now, or the snapshot leaves it out, or its files are missing"
        )
    return (
        f"{rows} of {entity_type} are not in its last snapshot ({keys}): the source removed them while no "
        "connector followed it, or the snapshot is filtered; if it is not, run again with "
        "--missing-from-snapshot remove"
    )


def _behind(counters: IngestCounters, now_us: int) -> str:
    """Return how current the log is, in words; nothing where the rows have no time."""
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
