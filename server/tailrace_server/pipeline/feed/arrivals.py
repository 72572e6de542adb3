"""The items of one or several sources, as they arrive at the loop (loop.py).

::

    one source       generator ──▶ loop                         in one thread
    several sources  generator ──▶ thread ──▶ at most 8 items ──▶ loop

Each source connects again on its own, and is only called in its own thread. A source that waits holds up no
other one.

The versions of a catalog are published in their order. So a snapshot that is being written hides what other
sources change after its first row. This must not last as long as the source takes to read the snapshot. The
thread therefore writes the snapshot to a temporary file in the log root, and the loop takes the whole file at
once. Memory then has one `SnapshotRows` of it.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from contextlib import closing
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Final, NamedTuple, TypeVar

from tailrace.errors import TailraceError
from tailrace_server.pipeline.feed.reconnection import Reconnection
from tailrace_server.pipeline.feed.source import (
    Interrupted,
    Item,
    Moved,
    PartedTransaction,
    SnapshotEnd,
    SnapshotRows,
    SourceLost,
    SourceRefused,
    SourceUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from tailrace_server.pipeline.feed.source import TransactionSource
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.run.source_figures import SourceFigures
    from tailrace_server.pipeline.run.stop_signals import Stopping

_HELD: Final = 8
"""Maximum number of items of a source that wait for the loop."""
_Error = TypeVar("_Error", bound=TailraceError)
_END_S: Final = 10.0
"""Maximum time for the thread of a source to end."""


class FedSource:
    """One source of a run."""

    def __init__(self, source: TransactionSource, figures: SourceFigures) -> None:
        """Begin; nothing is read yet."""
        self.source = source
        self.name = source.name
        self.figures = figures
        self.position: str | None = None
        """Position of the newest item that the loop took; None at the beginning of a new log."""
        self.unacknowledged: deque[tuple[int, str]] = deque()
        """Pairs of a committed version and the position behind it, oldest first."""
        self.published: str | None = None
        """Newest position that readers of the log can see; None before the first of this run."""
        self._acknowledged: str | None = None
        """Newest position that the source knows to be published."""
        self.rows = 0
        """Number of row changes that are buffered."""
        self.held = 0
        """Number of items that wait for the loop."""

    def committed(self, version: int, *, hidden: bool) -> None:
        """Record that everything up to the position is committed, with the newest version."""
        self.figures.rows += self.rows
        self.rows = 0
        if self.position is None:
            return
        place = self.source.place(self.position)
        self.figures.positions = {} if place is None else {"": place}
        if not hidden and (not self.unacknowledged or self.unacknowledged[-1][1] != self.position):
            self.unacknowledged.append((version, self.position))

    def publish(self, version: int) -> None:
        """Record that readers of the log can see a version."""
        while self.unacknowledged and self.unacknowledged[0][0] <= version:
            self.published = self.unacknowledged.popleft()[1]

    def measure(self) -> None:
        """Look up the lag of the source; call this only in its thread."""
        lag = self.source.lag_bytes()
        self.figures.lags = {} if lag is None else {"": lag}

    def acknowledge(self) -> None:
        """Tell the source what is published; call this only in its thread, or when that has ended."""
        # The loop's thread may set a newer position meanwhile: that one is acknowledged the next time.
        position = self.published
        if position is not None and position != self._acknowledged:
            self.source.acknowledge(position)
            self._acknowledged = position


class _Snapshot(NamedTuple):
    """A complete snapshot."""

    file: IO[bytes]
    then: Item
    """The item that ends it."""


class _Failure(NamedTuple):
    """A source has failed."""

    error: BaseException


class _End(NamedTuple):
    """A source has no more."""


_Passed = Item | _Snapshot | _Failure | _End | None


class SourceItems:
    """The items of all sources of a run."""

    def __init__(
        self,
        feeds: Sequence[FedSource],
        stored: Callable[[FedSource], str | None],
        folder: Path,
        reporter: ProgressReporter,
        stopping: Stopping,
        *,
        follow: bool,
    ) -> None:
        """Read nothing yet.

        Args:
            feeds: The sources.
            stored: Returns the position of a source in the log.
            folder: Folder for temporary files.
            reporter: Prints the failures of connections.
            stopping: Set when the run must end.
            follow: True if the sources are followed.
        """
        self._feeds = feeds
        self._stored = stored
        self._folder = folder
        self._reporter = reporter
        self._stopping = stopping
        self._follow = follow
        self._changed = threading.Condition()
        self._queue: deque[tuple[FedSource, _Passed]] = deque()
        self._is_closed = False

    def items(
        self, hidden: FedSource | None, is_hidden: Callable[[], bool]
    ) -> Generator[tuple[FedSource, Item | None]]:
        """Yield each item with its source, in the order of each source. The caller closes the generator.

        Args:
            hidden: Source with an incomplete snapshot in the log, which a kill interrupted; or None. The others
                are read once this snapshot is complete, because their commits would publish it.
            is_hidden: Returns whether it is still incomplete.

        Raises:
            SourceUnreachable, SourceLost, SourceRefused: As the sources raise them.
        """
        if len(self._feeds) == 1:
            with closing(self._followed(self._feeds[0])) as items:
                for item in items:
                    yield self._feeds[0], item
            return
        threads: list[threading.Thread] = []
        waiting = list(self._feeds)

        def start(feeds: Sequence[FedSource]) -> None:
            for feed in feeds:
                waiting.remove(feed)
                thread = threading.Thread(target=self._pass_on, args=(feed,), daemon=True)
                thread.start()
                threads.append(thread)

        try:
            start(waiting[:] if hidden is None else [hidden])
            running = len(threads)
            while running:
                feed, passed = self._next()
                if isinstance(passed, _Failure):
                    raise passed.error
                if isinstance(passed, _End):
                    running -= 1
                elif isinstance(passed, _Snapshot):
                    yield from ((feed, each) for each in _read(passed.file))
                    yield feed, passed.then
                else:
                    yield feed, passed
                with self._changed:
                    feed.held -= 1
                    self._changed.notify_all()
                if waiting and not is_hidden():
                    running += len(waiting)
                    start(waiting[:])
            if waiting and hidden is not None and not self._stopping.is_set():
                raise SourceRefused(
                    f"{hidden.name} ended before its snapshot was complete: the other sources wait for it"
                )
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            for thread in threads:
                thread.join(_END_S)

    def _next(self) -> tuple[FedSource, _Passed]:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue))
            return self._queue.popleft()

    def _pass_on(self, feed: FedSource) -> None:
        """Pass the items of a source on to the loop, until the source or the run ends. Runs in its thread."""
        ending: _Failure | _End = _End()
        try:
            with (
                TemporaryFile(dir=self._folder) as file,
                closing(self._followed(feed)) as items,
            ):
                for item in _with_whole_snapshots(items, file):
                    if not self._put(feed, item):
                        return
        except (SourceLost, SourceRefused) as error:
            ending = _Failure(_named(feed, error))
        except BaseException as error:
            ending = _Failure(error)
        self._put(feed, ending)

    def _put(self, feed: FedSource, item: _Passed) -> bool:
        """Pass an item on; return False if the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or feed.held < _HELD)
            if not self._is_closed:
                feed.held += 1
                self._queue.append((feed, item))
                self._changed.notify_all()
                # The generator continues only when these are taken.
                if isinstance(
                    item, Moved | PartedTransaction | SnapshotEnd | Interrupted | _Snapshot
                ):
                    self._changed.wait_for(lambda: self._is_closed or not feed.held)
            return not self._is_closed

    def _followed(self, feed: FedSource) -> Generator[Item | None]:
        """Yield the items of a source, through failures of its connection."""
        reconnection = Reconnection(self._reporter, self._stopping, follow=self._follow)
        while True:
            try:
                with closing(feed.source.items(self._stored(feed))) as items:
                    try:
                        for item in items:
                            reconnection.reached()
                            # While a snapshot is read, the source may not be able to answer.
                            if not isinstance(item, SnapshotRows | SnapshotEnd):
                                feed.measure()
                            yield item
                            feed.acknowledge()
                    finally:
                        feed.acknowledge()
                return
            except SourceUnreachable as found:
                error = found if len(self._feeds) == 1 else _named(feed, found)
                # Only whole transactions are buffered, so they can be committed without the source.
                yield Interrupted()
                reconnection.failed(error)
                if self._stopping.is_set():
                    return
                # Another run may have taken the catalog over. Then this one must not take the source back.
                yield Interrupted()


def _named(feed: FedSource, error: _Error) -> _Error:
    return type(error)(f"{feed.name}: {error}")


def _with_whole_snapshots(
    items: Generator[Item | None], file: IO[bytes]
) -> Iterator[Item | _Snapshot | None]:
    """Yield the items; each snapshot once it is complete, in a file."""
    for item in items:
        if _is_hidden(item):
            pickle.dump(item, file)
        elif item is None or not file.tell():
            yield item
        else:
            if isinstance(item, Interrupted):
                yield item  # the source begins another snapshot
            else:
                yield _Snapshot(file, item)
            file.seek(0)
            file.truncate()


def _is_hidden(item: Item | None) -> bool:
    """Return True for an item of a snapshot that is hidden until it is complete."""
    if isinstance(item, SnapshotRows):
        return item.hidden
    return isinstance(item, SnapshotEnd) and item.stays is None


def _read(file: IO[bytes]) -> Iterator[Item]:
    size = file.tell()
    file.seek(0)
    while file.tell() < size:
        yield pickle.load(file)


__all__ = ["FedSource", "SourceItems"]
