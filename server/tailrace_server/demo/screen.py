"""The demo's output: scrolling lines, and on a terminal a panel below them with the present figures."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tailrace_server.cli.terminal.capture_text import TextForm
from tailrace_server.cli.terminal.output import Palette

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.demo.check import Verdict
    from tailrace_server.demo.source import DemoSource
    from tailrace_server.demo.watchers import Watcher

_LABEL: Final = 11
_EVERY_S: Final = 0.8
"""Minimum time between two printed captures of a subscriber, in seconds; others are only counted."""
_STATUS_EVERY_S: Final = 5.0
"""Time between two lines of figures if there is no panel, in seconds."""
_BAR: Final = 32
_PLAIN_WIDTH: Final = 140
"""Maximum width of lines that go to a file or a pipe."""


@dataclass(slots=True)
class PanelState:
    """The figures of the panel."""

    source: DemoSource | None = None
    parts: int = 1
    committed: int = 0
    published: int = 0
    watchers: list[Watcher] = field(default_factory=list)
    waiting: str = ""
    """Text about what the demo waits for; empty if it does not wait long."""


class Screen:
    """The demo's output on stdout; a context manager, so that the panel is removed even after an error."""

    def __init__(self) -> None:
        """Detect the terminal; nothing is printed yet."""
        self.console = Console(highlight=False, soft_wrap=True)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, soft_wrap=True, width=_PLAIN_WIDTH)
        self.state = PanelState()
        self._started = time.monotonic()
        self._live: Live | None = None
        self._forms: dict[str, TextForm] = {}
        self._shown_at: dict[str, float] = {}
        self._skipped: dict[str, int] = {}
        self._status_at = 0.0

    def __enter__(self) -> Self:
        """Show the panel if stdout is a terminal."""
        if self.console.is_terminal:
            self._live = Live(
                console=self.console,
                get_renderable=self._panel,
                refresh_per_second=8,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the panel."""
        if self._live is not None:
            self._live.stop()

    def step(self, who: str, what: str, style: str = "") -> None:
        """Print that something happened, with the seconds since the start of the demo."""
        seconds = time.monotonic() - self._started
        line = Text.assemble((f"{seconds:5.1f}s ", "bright_black"), (f"{who:<{_LABEL}}", "bold"))
        line.append(" ")
        line.append(what, style)
        self.console.print(line)

    def addresses(self, what: str, places: Sequence[tuple[str, str]]) -> None:
        """Remove the panel, and print pages of the server with their addresses."""
        if self._live is not None:
            self._live.stop()
        self.step("server", what)
        for name, url in places:
            self.console.print(Text.assemble(f"{name:>{_LABEL + 20}}  ", (url, "bold cyan")))

    def event(self, watcher: Watcher, what: str) -> None:
        """Print that something happened to a subscriber."""
        line = self._label(watcher)
        line.append(f"── {what} ", f"bold {watcher.colour}")
        self.console.print(line)

    def wants(self, watcher: Watcher, *, lead: bool) -> bool:
        """Return True if a capture of this subscriber is to be printed; else count it as skipped.

        Captures of lead records (operation TRANSACTION) are always skipped, because changes are more
        interesting.
        """
        now = time.monotonic()
        if lead or now - self._shown_at.get(watcher.name, 0.0) < _EVERY_S:
            self._skipped[watcher.name] = self._skipped.get(watcher.name, 0) + 1
            return False
        self._shown_at[watcher.name] = now
        return True

    def form(self, watcher: Watcher) -> TextForm:
        """Return the subscriber's renderer of captures; one per subscriber keeps its columns aligned."""
        if watcher.name not in self._forms:
            width = self.console.width - _LABEL - 12
            palette = Palette(enabled=self.console.is_terminal and not self.console.no_color)
            self._forms[watcher.name] = TextForm(palette, width=max(50, width))
        return self._forms[watcher.name]

    def capture(self, watcher: Watcher, rendered: str) -> None:
        """Print a capture, and the number of captures skipped before it."""
        line = self._label(watcher)
        line.append_text(Text.from_ansi(rendered))
        if skipped := self._skipped.pop(watcher.name, 0):
            line.append(f"  +{skipped:,}", "bright_black")
        self.console.print(line)

    def tick(self) -> None:
        """Print the figures in a line at intervals, if there is no panel."""
        now = time.monotonic()
        if self._live is None and self.state.watchers and now - self._status_at > _STATUS_EVERY_S:
            self._status_at = now
            received = ", ".join(f"{w.name} {len(w.received):,}" for w in self.state.watchers)
            self.step(
                "log",
                f"committed {self.state.committed:,}, published {self.state.published:,}; {received}",
            )

    def verdicts(self, results: Sequence[tuple[Watcher, Verdict]]) -> None:
        """Print a table of all subscribers, each compared with the filtered log."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bright_black")
        table.add_column("subscriber")
        table.add_column("asked for")
        for name in ("in the log", "received", "missing", "twice", "left live", "came back"):
            table.add_column(name, justify="right")
        table.add_column("")
        for watcher, verdict in results:
            mark = Text("exact", "bold green") if verdict.exact else Text("WRONG", "bold red")
            table.add_row(
                Text(watcher.name, watcher.colour),
                watcher.wish,
                *(f"{verdict.expected:,}", f"{verdict.received:,}"),
                *(f"{verdict.missing:,}", f"{verdict.repeated:,}"),
                *(f"{watcher.resyncs:,}×", f"{watcher.returns:,}×"),
                mark,
            )
        self.console.print()
        self.console.print(table, soft_wrap=False)
        self.console.print()

    def _label(self, watcher: Watcher) -> Text:
        return Text.assemble((f"{watcher.name:>{_LABEL}}", watcher.colour), (" │ ", "bright_black"))

    def _panel(self) -> Group:
        state = self.state
        rows = Table.grid(padding=(0, 2))
        if state.source is not None:
            share = state.source.parts_written / state.parts
            full = round(share * _BAR)
            bar = Text.assemble(("━" * full, "green"), ("━" * (_BAR - full), "bright_black"))
            bar.append(f"  {share:4.0%} of the source written")
            rows.add_row(Text("source", "bold"), bar)
        figures = Text.assemble(
            ("committed ", "bright_black"),
            f"{state.committed:<8,}",
            ("published ", "bright_black"),
            f"{state.published:<8,}",
            (state.waiting, "yellow"),
        )
        rows.add_row(Text("log", "bold"), figures)
        for watcher in state.watchers:
            rows.add_row(Text(watcher.name, f"bold {watcher.colour}"), _now(watcher))
        rule = Text("─" * min(self.console.width - 1, 100), "bright_black")
        return Group(rule, rows)


def _now(watcher: Watcher) -> Text:
    """Return the present figures of a subscriber, as a line of the panel."""
    line = Text(f"{len(watcher.received):>8,} received  ")
    if watcher.mode == "live":
        line.append("live    ", "green")
    elif watcher.mode:
        line.append(f"{watcher.mode:<8}", "bold yellow")
    if watcher.lag_records:
        line.append(f"{watcher.lag_records:>7,} records behind  ", "bright_black")
    if watcher.moves:
        line.append(f"{watcher.moves}× overtaken and back live", "bright_black")
    return line
