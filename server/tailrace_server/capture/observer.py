"""The observer of one catalog: tails its log, routes what is published, keeps its publishers.

It routes a batch only once it is published and gives way while it does, so nothing unpublished is ever in
a ring and neither a large commit nor a crowd of publishers delays anybody else. ``routed`` is the one number
that all rings of the catalog share: every publisher's ring covers [its floor, routed).
"""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import structlog

from tailrace.criteria import After, FromTime, Since, canonical
from tailrace.cursor import Cursor
from tailrace.errors import (
    CatalogReplaced,
    LogCorrupted,
    LogError,
    PositionCompacted,
    TailraceError,
)
from tailrace.position import END, FIRST, Position
from tailrace_server.capture.delivery.intake import Beginning, SafePoint
from tailrace_server.capture.delivery.options import Acknowledgement
from tailrace_server.capture.delivery.publisher import Publisher
from tailrace_server.capture.delivery.routing_pace import Pace
from tailrace_server.capture.delivery.subscription import Subscription
from tailrace_server.capture.fairness import Turn
from tailrace_server.capture.matching.predicate import NO_IMAGES, Predicate
from tailrace_server.capture.matching.router import Router
from tailrace_server.capture.matching.run import Mark, Run
from tailrace_server.capture.reading.catalog_reader import first_position, position_after
from tailrace_server.capture.statistics import ObserverStatistics
from tailrace_server.errors import as_tailrace_error
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tailrace.criteria import Criteria, Start
    from tailrace_server.capture.delivery.memory_budget import LargeMessages
    from tailrace_server.capture.delivery.options import Delivery
    from tailrace_server.capture.delivery.ring import RingBudget
    from tailrace_server.capture.matching.predicate import Images
    from tailrace_server.capture.matching.record_classes import GroupedHead
    from tailrace_server.capture.matching.run import BatchSelection
    from tailrace_server.capture.reading.catalog_reader import CatalogReader
    from tailrace_server.capture.settings import EngineSettings
    from tailrace_server.capture.statistics import Counters
    from tailrace_server.wal.state.view import LogView

_log = structlog.get_logger("tailrace.engine")

_GO_SHARE: Final = 8
"""Routing goes on over heads that are at hand for one part in so many of a ring, hungry or not."""
_CROWD: Final = 3
"""Publishers that must match something of a batch before its frames are made as a whole,"""
_SHARE: Final = 4
"""and the share of it that their matches must come to: one in so many."""


class Observer:
    """One catalog as subscribers see it. Lives on the event loop; ``run`` is its task."""

    def __init__(
        self,
        view: LogView,
        reading: CatalogReader,
        refresh: Callable[[], Awaitable[LogView | None]],
        committed: Callable[[], int],
        settings: EngineSettings,
        counters: Counters,
        rings: RingBudget,
        large: LargeMessages,
    ) -> None:
        """Begin at the end of a view: what is older is read from the log by who wants it."""
        self.view = view
        """What is published; replaced as a whole, in one step."""
        self.reading = reading
        reading.small_commits.end_row = view.end_row
        self.routed = view.end_row
        """First row that the live path has not seen."""
        self.routed_position = Position(view.published, END)
        """Nothing at or before it is still to be routed."""
        self._go_ends = 0
        """Up to this row it is routed without anybody who is hungry."""
        self._floor = 0
        """First row that a publisher opened now will hear of live."""
        self._refresh = refresh
        self._committed = committed
        self._settings = settings
        self._counters = counters
        self._rings = rings
        self._large = large
        self._pace = Pace()
        self._router = Router()
        self._publishers: dict[int, Publisher] = {}
        self._by_criteria: dict[tuple[Criteria, ...], Publisher] = {}
        self._ids = count()
        self._ended: TailraceError | None = None
        self.batches_unreadable = 0

    @property
    def newest(self) -> Position:
        """The end of what is published."""
        return Position(self.view.published, END)

    @property
    def committed(self) -> int:
        """The newest committed version that has been read, published or not."""
        return self._committed()

    @property
    def subscriptions(self) -> list[Subscription]:
        """All subscriptions of the catalog, now."""
        return [each for one in self._publishers.values() for each in one.subscriptions]

    async def run(self, views: AsyncIterator[LogView]) -> None:
        """Follow the log until its tailer ends, and end all subscriptions with its error then."""
        try:
            async with asyncio.TaskGroup() as tasks:
                routing = tasks.create_task(self._route())
                await self._follow(views)
                routing.cancel()
        except ExceptionGroup as group:
            error = group.exceptions[0]
            self.end(as_tailrace_error(error))
            raise error from error.__cause__

    def see(self, view: LogView) -> None:
        """Take a view, unless a newer one has come by the other way: from the tailer, or by ``recover``."""
        held = self.view
        if (view.published, view.revision) >= (held.published, held.revision):
            self.view = view
            self._pace.look()

    async def subscribe(
        self, criteria: Sequence[Criteria], start: Start | None, delivery: Delivery
    ) -> Subscription:
        """Resolve a start and attach a subscription.

        Raises:
            PositionCompacted: The start lies below the oldest retained position.
            CatalogReplaced: The cursor belongs to another log.
        """
        wanted = canonical(criteria)
        beginning = self._at_end() if start is None else await self.resolve(start)
        # From here to the end in one step: nothing is published, routed or closed in between.
        if self._ended is not None:
            raise copy(self._ended)
        publisher = self._by_criteria.get(wanted) or self._open_publisher(wanted)
        acknowledgement = self._acknowledge(beginning, delivery)
        subscription = Subscription(
            acknowledgement,
            self,
            publisher,
            delivery,
            self._counters,
            self._large,
            beginning,
        )
        self.reading.small_commits.add(subscription.frame_request)
        return subscription

    def detach(self, subscription: Subscription, publisher: Publisher) -> None:
        """Remove a subscription; a publisher without any is closed at once."""
        publisher.detach(subscription)
        self.reading.small_commits.remove(subscription.frame_request)
        if not publisher.subscriptions and publisher.id in self._publishers:
            del self._publishers[publisher.id]
            del self._by_criteria[publisher.predicate.criteria]
            self._router.remove(publisher.id)
            publisher.ring.forget_all()
        self._pace.look()

    def end(self, error: TailraceError) -> None:
        """End all subscriptions with an error and take no more."""
        self._ended = error
        for subscription in self.subscriptions:
            subscription.end(error)

    async def recover(self, missing: SegmentMissing, row: int) -> None:
        """See the newest view, in which ``row`` stands elsewhere.

        Raises:
            LogCorrupted: The newest view still names the file that is missing.
            PositionCompacted: The row was trimmed. It names the newest position that is gone: which one stood
                in the row is no longer known here.
        """
        view = await self._refresh()
        if view is not None:
            self.see(view)
        view = self.view
        if row < view.first_row:
            raise PositionCompacted(view.oldest.preceding(), view.oldest, self.newest)
        if any(segment.path == missing.path for segment in view.segments()):
            raise LogCorrupted(missing.path, 0, "the segment is missing from the log's folder")

    def statistics(self) -> ObserverStatistics:
        """Return the figures of this moment."""
        publishers = self._publishers.values()
        return ObserverStatistics(
            catalog=self.view.name,
            uuid=self.view.uuid,
            published=self.view.published,
            committed=self.committed,
            records=self.view.end_row,
            records_routed=self.routed,
            publishers=len(publishers),
            subscriptions=sum(len(each.subscriptions) for each in publishers),
            batches_unreadable=self.batches_unreadable,
            ring_bytes=sum(each.ring.bytes for each in publishers),
        )

    def publishers(self) -> tuple[Publisher, ...]:
        """Return the publishers of this moment."""
        return tuple(self._publishers.values())

    async def _follow(self, views: AsyncIterator[LogView]) -> None:
        oldest = self.view.oldest
        async for view in views:
            self.see(view)
            if self.view.oldest > oldest:
                oldest = self.view.oldest
                await self._end_compacted()

    async def _end_compacted(self) -> None:
        """Tell those without demand that what they need next is gone; else they would learn when they ask."""
        turn = Turn()
        for publisher in self.publishers():
            for subscription in tuple(publisher.subscriptions):
                subscription.end_if_compacted()
                if turn.is_over():
                    await turn.give_way()

    async def _route(self) -> None:
        """Route what is published, batch by batch, as long as somebody takes it."""
        while True:
            if self.routed >= self.view.end_row or not self._may_route():
                await self._pace.change()
                continue
            if not self._publishers:
                self.routed, self.routed_position = self.view.end_row, self.newest
                continue
            if self.routed < self.view.first_row:
                self._leave_out_trimmed()
                continue
            if self._pace:
                self._go_ends = self.routed + self._settings.ring_captures // _GO_SHARE
            try:
                await self._route_batch()
            except SegmentMissing as missing:
                await self._route_elsewhere(missing)
            except LogError:
                self._leave_out()
            except Exception:  # our bug; those whom it concerns meet it when they read
                _log.exception("batch not routed", catalog=self.view.name, row=self.routed)
                self._leave_out()
            await asyncio.sleep(0)

    def _may_route(self) -> bool:
        """Return whether somebody wants more, or the next batch's head was read with the last one's.

        To route a batch takes a fraction of the time once its code is in the processor's caches.
        """
        if self._pace or not self._publishers:
            return True
        return self.routed < self._go_ends and self.reading.has_head(self.view, self.routed)

    async def _route_batch(self) -> None:
        view = self.view
        grouped = await self.reading.grouped_reading_ahead(view, view.find_row(self.routed))
        ref = grouped.head.ref
        images: Images = NO_IMAGES
        if self._router.needs_images:
            images = await self.reading.images(ref, view)
        found = await self._find(grouped, images, ref.first_row + ref.rows)
        crowded = _is_crowded(found, ref.rows)
        # From here to the end in one step: what a ring covers and what it holds agree again.
        for publisher, selection in found:
            if isinstance(selection, Exception):
                for subscription in tuple(publisher.subscriptions):
                    subscription.end(as_tailrace_error(selection))
                continue
            first = first_position(grouped, selection.rows.item(0))
            publisher.append(Run(ref, selection, first, crowded))
        self._pass(ref.first_row + ref.rows, ref.last)
        await self._wake([publisher for publisher, _ in found])

    async def _find(
        self, grouped: GroupedHead, images: Images, end_row: int
    ) -> list[tuple[Publisher, BatchSelection | Exception]]:
        """Return what each publisher matches of a batch; publishers may come and go meanwhile."""
        found: list[tuple[Publisher, BatchSelection | Exception]] = []
        turn = Turn()
        # One that is opened from here on has not been asked: its ring begins behind the batch, and who wants
        # something of the batch reads the log.
        self._floor = end_row
        for id, selection in self._router.route(grouped, images):
            publisher = self._publishers.get(id)
            if publisher is not None and publisher.ring.floor <= self.routed:
                found.append((publisher, selection))
            if turn.is_over():
                await turn.give_way()
        return [each for each in found if each[0].id in self._publishers]

    async def _wake(self, publishers: Sequence[Publisher]) -> None:
        turn = Turn()
        for publisher in publishers:
            for subscription in tuple(publisher.subscriptions):
                subscription.wake()
                if turn.is_over():
                    await turn.give_way()

    def _pass(self, row: int, position: Position) -> None:
        self.routed = row
        at_end = row == self.view.end_row
        self.routed_position = self.newest if at_end else position

    async def _route_elsewhere(self, missing: SegmentMissing) -> None:
        try:
            await self.recover(missing, self.routed)
        except (LogCorrupted, PositionCompacted):
            self._leave_out()

    def _leave_out_trimmed(self) -> None:
        """Pass over what retention took before anybody came for it; who still needs it gets its error."""
        view = self.view
        before = view.batch(0).first.preceding() if len(view) else self.newest
        self._pass(view.first_row, before)
        for publisher in self.publishers():
            publisher.skip_to(self.routed)

    def _leave_out(self) -> None:
        """Leave a batch that cannot be read to the log's readers: who needs it gets its error."""
        self.batches_unreadable += 1
        view = self.view
        row = max(self.routed, view.first_row)
        if row < view.end_row:
            ref = view.batch(view.find_row(row))
            self._pass(ref.first_row + ref.rows, ref.last)
        else:
            self._pass(view.end_row, self.newest)
        for publisher in self.publishers():
            publisher.skip_to(self.routed)

    async def resolve(self, start: Start) -> Beginning:
        """Find where a start stands in what is published now.

        Raises:
            PositionCompacted: It lies below the oldest retained position.
            CatalogReplaced: The cursor belongs to another log.
        """
        view, ordinal = self.view, 0
        timestamp: int | None = None
        match start:
            case Since(position):
                wanted = max(position, FIRST) if position.version else view.oldest
            case FromTime(timestamp):
                wanted = self._at_time(view, timestamp)
            case After(cursor, timestamp):
                self.refuse_foreign(cursor)
                ordinal = 0 if cursor.ordinal == END else cursor.ordinal + 1
                wanted = cursor.position if ordinal else position_after(cursor.position)
                if timestamp is not None and not is_trimmed(view, timestamp):
                    wanted, ordinal = later(wanted, ordinal, view.version_at(timestamp))
        if wanted < view.oldest:
            raise PositionCompacted(wanted, view.oldest, self.newest)
        beginning = await self.begin_at(wanted, ordinal)
        if timestamp is not None and view.version_at(timestamp) > view.published:
            beginning = replace(beginning, published=False, timestamp=timestamp)
        return beginning

    def compacted(self, waiting: Beginning) -> PositionCompacted | None:
        """Return the error of a start that waited and was trimmed meanwhile; None for any other."""
        view = self.view
        gone = waiting.wanted < view.oldest and (
            waiting.timestamp is None or is_trimmed(view, waiting.timestamp)
        )
        return PositionCompacted(waiting.wanted, view.oldest, self.newest) if gone else None

    def renewed(self, waiting: Beginning) -> Beginning:
        """Return a start that waits as it stands now: one by time moves on past what is too early."""
        if waiting.timestamp is None:
            return waiting
        version = self.view.version_at(waiting.timestamp)
        wanted, ordinal = later(waiting.wanted, waiting.ordinal, version)
        passed = waiting.before
        if version > self.view.published and wanted.version == version:
            passed = SafePoint(self.view.end_row, *self.newest)
        return replace(waiting, wanted=wanted, ordinal=ordinal, before=passed)

    async def begin_at(self, wanted: Position, ordinal: int) -> Beginning:
        """Find the first capture at or after a retained position and an ordinal of its record."""
        while True:
            view = self.view
            try:
                return await self._begin_in(view, wanted, ordinal)
            except SegmentMissing as missing:
                try:
                    await self.recover(missing, view.batch(view.find(wanted)).first_row)
                except PositionCompacted as gone:
                    raise PositionCompacted(wanted, gone.oldest, gone.newest) from gone

    async def _begin_in(self, view: LogView, wanted: Position, ordinal: int) -> Beginning:
        row = await self.reading.row_of(view, wanted)
        before = SafePoint(row, *wanted.preceding())
        if ordinal:
            before = SafePoint(row, wanted.version, wanted.index, ordinal - 1)
        published = wanted.version <= view.published
        exact = row < view.end_row and await self.reading.position_of(view, row) == wanted
        return Beginning(Mark(row, ordinal if exact else 0), before, wanted, ordinal, published)

    def _at_time(self, view: LogView, timestamp: int) -> Position:
        """Return the first position at or after a time; trimmed time is refused, not skipped."""
        if is_trimmed(view, timestamp):
            raise PositionCompacted(view.oldest.preceding(), view.oldest, self.newest)
        return Position(view.version_at(timestamp), 0)

    def refuse_foreign(self, cursor: Cursor) -> None:
        """Refuse a cursor of another log.

        Raises:
            CatalogReplaced: It is one.
        """
        if cursor.catalog_uuid != self.view.uuid:
            raise CatalogReplaced(self.view.name, cursor.catalog_uuid, self.view.uuid)

    def _at_end(self) -> Beginning:
        end_row, version = self.view.end_row, self.view.published + 1
        return Beginning(Mark(end_row), SafePoint(end_row, *self.newest), Position(version))

    def _open_publisher(self, criteria: tuple[Criteria, ...]) -> Publisher:
        floor = max(self.routed, self._floor)
        publisher = Publisher(
            next(self._ids),
            Predicate(criteria),
            floor,
            self._settings,
            self._rings,
            self._pace,
        )
        self._publishers[publisher.id] = publisher
        self._by_criteria[criteria] = publisher
        self._router.add(publisher.id, publisher.predicate)
        return publisher

    def _acknowledge(self, beginning: Beginning, delivery: Delivery) -> Acknowledgement:
        return Acknowledgement(
            subscription_id=uuid4().hex,
            catalog=self.view.name,
            catalog_uuid=self.view.uuid,
            start=beginning.wanted,
            resume_cursor=Cursor(self.view.uuid, *beginning.before[1:]),
            published=self.view.published,
            heartbeat_interval_s=delivery.heartbeat_interval_s,
            queue_captures=delivery.queue_captures,
            message_bytes=delivery.message_bytes,
            max_message_bytes=delivery.max_message_bytes,
        )


def later(wanted: Position, ordinal: int, version: int) -> tuple[Position, int]:
    """Return position and ordinal of a start, or the begin of a version if that comes behind it."""
    return (Position(version), 0) if wanted < Position(version) else (wanted, ordinal)


def is_trimmed(view: LogView, timestamp: int) -> bool:
    """Return whether something committed at or after a time, µs, is no longer retained."""
    return view.oldest > FIRST and timestamp <= view.timestamp_of(view.oldest.version - 1)


def _is_crowded(found: Sequence[tuple[Publisher, BatchSelection | Exception]], rows: int) -> bool:
    """Decide whether encoding a whole batch once costs less than each publisher's part of it."""
    if len(found) < _CROWD:
        return False
    matches = sum(len(each) for _, each in found if not isinstance(each, Exception))
    return matches * _SHARE >= rows
