"""The observer of one catalog: follows its log, and routes published batches to the publishers that it owns.

A batch is routed only after its publication, so a ring never has unpublished records. Routing often yields to
the event loop, so neither a large commit nor many publishers delay other work. The end of the routed records is
one number for all rings of the catalog: every publisher's ring covers [its floor, routed).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import structlog

from tailrace.errors import LogCorrupted, LogError, PositionCompacted, again, kept
from tailrace_server.catalogs.catalog_info import CatalogInfo
from tailrace_server.catalogs.view_watch import ViewWatch
from tailrace_server.live.crowd import crowds_of, is_crowded
from tailrace_server.live.options import SubscribeAcknowledgement
from tailrace_server.live.publisher import Publisher
from tailrace_server.live.ring import RoutingPace
from tailrace_server.live.router import Router
from tailrace_server.live.state_phase import begun
from tailrace_server.live.subscription import Subscription
from tailrace_server.log_cache.followed_log import FollowedLog
from tailrace_server.log_cache.small_commits import FrameRequest
from tailrace_server.log_cache.start import resolve
from tailrace_server.resources.admission import Ending
from tailrace_server.resources.event_loop import Turn
from tailrace_server.resources.statistics import ObserverStatistics, committed_at
from tailrace_server.rows.batch_images import NO_IMAGES
from tailrace_server.rows.predicate import compiled
from tailrace_server.rows.row_condition import bound_at, criteria_bytes
from tailrace_server.rows.run import runs_of
from tailrace_server.rows.unknown_names import unknown_changes, unknown_names
from tailrace_server.wal.segment.reader import SegmentMissing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from tailrace.criteria import Beginning, Criteria
    from tailrace.errors import TailraceError
    from tailrace_server.catalogs.catalog_info import WriterInfo
    from tailrace_server.grants.shown import Visibility
    from tailrace_server.live.decoded_batch import DecodedBatch
    from tailrace_server.live.options import DeliveryOptions
    from tailrace_server.live.ring import RingBudget
    from tailrace_server.live.state_phase import StatePhase
    from tailrace_server.log_cache.batch_cache import BatchCache
    from tailrace_server.log_cache.catalog_reader import CatalogReader
    from tailrace_server.log_cache.start import ResolvedStart
    from tailrace_server.resources.event_loop import LoopTurns
    from tailrace_server.resources.memory import LargeMessages, MemoryCharge, MemoryShare
    from tailrace_server.resources.settings import EngineSettings
    from tailrace_server.resources.statistics import Counters
    from tailrace_server.rows.batch_images import Images
    from tailrace_server.rows.predicate import Predicate
    from tailrace_server.rows.record_classes import GroupedHead
    from tailrace_server.rows.run import BatchSelection
    from tailrace_server.wal.state.view import LogView

_log = structlog.get_logger("tailrace.engine")

_RUN_ON_SHARE: Final = 8
"""Without a subscription that waits for records, routing continues over cached heads for 1/8 of a ring."""
_SMALL_ROWS: Final = 1_024
"""Small commits are routed without waiting for a reader, up to so many records. A subscription needs a turn of
the event loop for each batch that it waits for, and a busy loop has fewer turns than there are commits."""
_DECODED_AT_ONCE: Final = 256
"""The most records whose images the event loop itself decodes for conditions, in about a millisecond."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of an engine that all of its catalogs share."""

    settings: EngineSettings
    counters: Counters
    cache: BatchCache
    rings: RingBudget
    large: LargeMessages
    criteria: MemoryShare
    """The share of memory for the criteria of open subscriptions and reads."""
    turns: LoopTurns
    """Turns on the event loop for streams that begin or catch up."""


class Observer:
    """One catalog with its publishers and subscriptions. Used on the event loop; ``run`` is its task."""

    def __init__(
        self,
        view: LogView,
        reading: CatalogReader,
        refresh: Callable[[], Awaitable[LogView]],
        committed: Callable[[], int],
        writers: Callable[[], tuple[WriterInfo, ...]],
        shared: SharedParts,
    ) -> None:
        """Begin at the end of a view, without publishers."""
        self._pace = RoutingPace()
        self.log = FollowedLog(view, reading, refresh, self._pace.notify, shared.turns)
        reading.small_commits.end_row = view.end_row
        reading.small_commits.schema_of = view.schema_of
        self._run_on_until = 0
        """Up to this row, routing continues over cached heads even if no subscription waits for records."""
        self._small_until = 0
        """Up to this row, routing continues even over heads that are not cached."""
        self._floor = 0
        """First row in the ring of a publisher that is opened now; above ``routed`` while a batch is routed."""
        self._committed = committed
        self._writers = writers
        self._shared = shared
        self._router = Router()
        self._publishers: dict[int, Publisher[Subscription]] = {}
        self.views = ViewWatch(self.log, self.publishers)
        self._by_criteria: dict[
            tuple[tuple[Criteria, ...], Visibility | None], Publisher[Subscription]
        ] = {}
        """Publishers by criteria and visibility; subscriptions that agree in both share a publisher."""
        self._ids = count()
        self._ended: TailraceError | None = None
        """The error of ``end``, with which new subscriptions fail; None while it was not called."""
        self._batches_unreadable = 0

    @property
    def committed(self) -> int:
        """The newest committed version, published or not, as far as the log has been read."""
        return self._committed()

    @property
    def subscriptions(self) -> list[Subscription]:
        """The open subscriptions of the catalog."""
        return [each for one in self._publishers.values() for each in one.subscriptions]

    async def run(self, views: AsyncIterator[LogView]) -> None:
        """Route the log until its tailer ends; if that fails, end all subscriptions with the error."""
        try:
            async with asyncio.TaskGroup() as tasks:
                routing = tasks.create_task(self._route())
                await self._follow(views)
                routing.cancel()
        except ExceptionGroup as group:
            error = group.exceptions[0]
            self.end(kept(error))
            try:
                raise error from error.__cause__
            finally:
                del error  # breaks the cycle between this frame and the error's traceback

    async def subscribe(self, start: Beginning | None, options: DeliveryOptions) -> Subscription:
        """Open a subscription: wait for the version in its options, resolve its start, and find its publisher.

        Raises:
            DeadlineExceeded: The version to wait for was not published in time.
            PositionCompacted: The start is below the oldest retained position.
            CatalogReplaced: The cursor belongs to another log.
            ServerFull: There is no room for the criteria, and no open publisher has the same criteria.
        """
        criteria, shown, _ = options.use.narrowed
        if options.wait is not None:
            with self.charge_criteria(criteria):
                await self.log.reach(*options.wait)
        key = criteria, shown
        known = self._by_criteria.get(key)
        kept = (
            self._shared.criteria.empty() if known is not None else self.charge_criteria(criteria)
        )
        try:
            return await self._subscribe(key, known, kept, start, options)
        finally:
            kept.release()  # a new publisher has already taken over the charge

    def charge_criteria(self, criteria: Sequence[Criteria]) -> MemoryCharge:
        """Charge the memory of criteria; the caller has to release the returned charge.

        Raises:
            ServerFull: There is no room for the criteria.
        """
        types = len(self.log.view.schema_of(self.log.view.published).entity_types)
        return self._shared.criteria.charge(criteria_bytes(criteria, types))

    async def _subscribe(
        self,
        key: tuple[tuple[Criteria, ...], Visibility | None],
        known: Publisher[Subscription] | None,
        kept: MemoryCharge,
        start: Beginning | None,
        options: DeliveryOptions,
    ) -> Subscription:
        predicate = known.predicate if known is not None else await compiled(*key)
        state, behind = await begun(self.log, start, predicate, options)
        found = await resolve(self.log, behind)
        # No await from here to the end: nothing may be published, routed or closed in between.
        if self._ended is not None:
            raise again(self._ended)
        acknowledgement = self._acknowledge(found, options, state)
        options.admission.began(acknowledgement.subscription_id, str(acknowledgement.start))
        publisher = self._by_criteria.get(key) or self._open_publisher(predicate, kept)
        subscription = Subscription(
            acknowledgement,
            self.log,
            publisher,
            options,
            self._shared.counters,
            self._shared.large,
            found,
            self._detach,
            state,
        )
        self.log.reading.small_commits.add(_frame_request(subscription, publisher))
        return subscription

    def end(self, error: TailraceError) -> None:
        """End all subscriptions with an error, and refuse new ones with it."""
        self._ended = error
        self.log.waits.end(error)
        for subscription in self.subscriptions:
            subscription.end(error)

    def info(self) -> CatalogInfo:
        """Return the current description of the catalog."""
        view = self.log.view
        return CatalogInfo(
            name=view.name,
            uuid=view.uuid,
            oldest=view.oldest,
            published=view.published,
            committed=self.committed,
            newest_timestamp=view.newest_timestamp,
            writers=self._writers(),
        )

    def statistics(self) -> ObserverStatistics:
        """Return the current figures."""
        log, publishers = self.log, self._publishers.values()
        oldest = log.view.oldest.version
        return ObserverStatistics(
            catalog=log.view.name,
            uuid=log.view.uuid,
            published=log.view.published,
            committed=self.committed,
            records=log.view.end_row,
            records_routed=log.routed,
            publishers=len(publishers),
            subscriptions=sum(len(each.subscriptions) for each in publishers),
            batches_unreadable=self._batches_unreadable,
            damaged_places=len(log.reading.damage),
            ring_bytes=sum(each.ring.bytes for each in publishers),
            newest_timestamp=log.view.newest_timestamp,
            newest_age_s=log.newest_age_s,
            oldest=oldest,
            oldest_timestamp=log.view.known_timestamp_of(oldest) or 0,
            bodies_from=log.view.bodies.by_name(log.view.published),
            bytes_over=0 if log.excess is None else log.excess.bytes_over,
        )

    def publishers(self) -> tuple[Publisher[Subscription], ...]:
        """Return the current publishers."""
        return tuple(self._publishers.values())

    def _detach(self, subscription: Subscription, publisher: Publisher[Subscription]) -> None:
        """Remove a subscription that has ended, and close its publisher if it was the last one."""
        publisher.detach(subscription)
        self.log.reading.small_commits.remove(_frame_request(subscription, publisher))
        if not publisher.subscriptions and publisher.id in self._publishers:
            del self._publishers[publisher.id]
            del self._by_criteria[publisher.predicate.criteria, publisher.predicate.shown]
            self._router.remove(publisher.id)
            publisher.ring.forget_all()
            publisher.kept.release()
        subscription.options.admission.ended(partial(_ending, subscription))
        self._pace.notify()

    async def _follow(self, views: AsyncIterator[LogView]) -> None:
        """Use each new view, and end the subscriptions whose next record has been trimmed."""
        oldest = self.log.view.oldest
        async for view in views:
            self.log.see(view)
            if self.log.view.oldest > oldest:
                oldest = self.log.view.oldest
                await self._end_compacted()

    async def _end_compacted(self) -> None:
        """End subscriptions without demand whose next record was trimmed; their next read would be too late."""
        turn = Turn()
        for publisher in self.publishers():
            for subscription in tuple(publisher.subscriptions):
                subscription.end_if_compacted()
                if turn.is_over():
                    await turn.give_way()

    async def _route(self) -> None:
        """Route published records, batch by batch, at the speed of the fastest subscription."""
        log = self.log
        turn = Turn()
        while True:
            # 1. Wait for records, and for a subscription that has taken all routed ones. Records that no
            #    subscription can take yet would evict records from the rings that slower ones still need.
            if log.routed >= log.view.end_row or not self._may_route():
                await self._pace.change()
                continue
            # 2. Without publishers, skip to the end. The ring of a publisher that opens later begins there.
            if not self._publishers:
                log.pass_to(log.view.end_row, log.newest)
                continue
            # 3. If retention was faster than routing, skip the records that were trimmed.
            if log.routed < log.view.first_row:
                self._pass_trimmed()
                continue
            if self._pace:
                part = self._shared.settings.ring_captures // _RUN_ON_SHARE
                self._run_on_until = log.routed + part
                self._small_until = log.routed + min(part, _SMALL_ROWS)
            # 4. Route one batch. After any error routing continues, since other subscriptions must not suffer.
            #    Those that need the batch get its error when they read it from the log.
            try:
                await self._route_batch()
            except SegmentMissing as missing:
                await self._see_newer(missing)
            except LogError as error:
                place = {"catalog": log.view.name, "row": log.routed}
                _log.error("batch unreadable", **place, error=str(error))
                self._pass_unreadable()
            except Exception:  # our bug; subscriptions that read the batch get the error
                _log.exception("batch not routed", catalog=log.view.name, row=log.routed)
                self._pass_unreadable()
            if turn.is_over():
                await turn.give_way()

    def _may_route(self) -> bool:
        """Return True if a subscription waits for records, or if the next batch is cheap to route right now.

        Routing takes a fraction of the time while its code is still in the processor's caches.
        """
        if self._pace or not self._publishers:
            return True
        log = self.log
        if log.routed < self._small_until:
            return True
        return log.routed < self._run_on_until and log.reading.has_head(log.view, log.routed)

    async def _route_batch(self) -> None:
        """Append the matches of the next batch to the rings, and wake their subscriptions."""
        # 1. Read the batch. Use one view for all steps, although the tailer may bring a newer one meanwhile.
        log, view = self.log, self.log.view
        grouped = await log.reading.grouped_reading_ahead(view, view.find_row(log.routed))
        ref = grouped.head.ref
        self.views.see(view.schema_of(ref.last.version))
        images: Images = NO_IMAGES
        if needed := self._router.images:
            images = await log.reading.images(ref, view, needed)
        # 2. Match. This yields to the event loop, so rings and ``routed`` must not change before it is done.
        decoded = self._router.decoded(grouped, images)
        if decoded is not None and ref.rows > _DECODED_AT_ONCE:
            await asyncio.to_thread(decoded.decode)
        found = await self._find(grouped, images, decoded, ref.first_row + ref.rows)
        crowded = is_crowded(found, ref.rows)
        at = committed_at(view, ref.last.version)
        # 3. Append, without await up to `pass_to`: what a ring covers and what it holds must always agree.
        for publisher, selection in found:
            if isinstance(selection, Exception):
                # Criteria that cannot be evaluated here cannot be evaluated in a read of the log either.
                for subscription in tuple(publisher.subscriptions):
                    subscription.end(kept(selection))
                continue
            for run in runs_of(grouped.head, ref, selection, crowded=crowded, at=at):
                publisher.append(run)
        log.pass_to(ref.first_row + ref.rows, ref.last)
        # 4. Wake subscriptions only now that ring and ``routed`` agree again. Wake those of a crowd after its
        #    frames are encoded: otherwise each of them would read and encode the batch by itself.
        crowds = crowds_of(found, ref)
        crowded_ones = {publisher for crowd in crowds for publisher in crowd.publishers}
        await self._wake([publisher for publisher, _ in found if publisher not in crowded_ones])
        for crowd in crowds:
            (run,) = runs_of(grouped.head, ref, crowd.selection)
            with suppress(Exception):  # a reader of these frames encodes again, and gets the error
                await log.reading.encode_for_crowd(run, view, crowd.codec, crowd.content)
            await self._wake(crowd.publishers)

    async def _find(
        self, grouped: GroupedHead, images: Images, decoded: DecodedBatch | None, end_row: int
    ) -> list[tuple[Publisher[Subscription], BatchSelection | Exception]]:
        """Return the matches of each publisher in a batch; publishers may be opened and closed meanwhile."""
        found: list[tuple[Publisher[Subscription], BatchSelection | Exception]] = []
        turn = Turn()
        # A publisher that is opened from here on is not in the router's pass. So its ring begins after the
        # batch, and its subscriptions read the batch from the log.
        self._floor = end_row
        for id, selection in self._router.route(grouped, images, decoded):
            publisher = self._publishers.get(id)
            # Subscriptions of a ring with a higher floor read the batch from the log: do not deliver it twice.
            if selection and publisher is not None and publisher.ring.floor <= self.log.routed:
                found.append((publisher, selection))
            if turn.is_over():
                await turn.give_way()
        return [each for each in found if each[0].id in self._publishers]

    async def _wake(self, publishers: Sequence[Publisher[Subscription]]) -> None:
        turn = Turn()
        for publisher in publishers:
            for subscription in tuple(publisher.subscriptions):
                subscription.wake()
                if turn.is_over():
                    await turn.give_way()

    async def _see_newer(self, missing: SegmentMissing) -> None:
        """Use a newer view, in which compaction has moved the next batch; skip it if it is lost."""
        try:
            await self.log.recover(missing, self.log.routed)
        except (LogCorrupted, PositionCompacted):
            self._pass_unreadable()

    def _pass_trimmed(self) -> None:
        """Skip records that retention has trimmed before they were routed."""
        view = self.log.view
        before = view.batch(0).first.preceding() if len(view) else self.log.newest
        self.log.pass_to(view.first_row, before)
        self._leave_to_the_log()

    def _pass_unreadable(self) -> None:
        """Skip the next batch, which cannot be read."""
        self._batches_unreadable += 1
        view = self.log.view
        row = max(self.log.routed, view.first_row)
        if row < view.end_row:
            ref = view.batch(view.find_row(row))
            self.log.pass_to(ref.first_row + ref.rows, ref.last)
        else:
            self.log.pass_to(view.end_row, self.log.newest)
        self._leave_to_the_log()

    def _leave_to_the_log(self) -> None:
        """Let every ring begin after the skipped records; subscriptions that need these read the log."""
        for publisher in self.publishers():
            publisher.skip_to(self.log.routed)
            for subscription in publisher.subscriptions:
                subscription.wake()

    def _open_publisher(self, predicate: Predicate, kept: MemoryCharge) -> Publisher[Subscription]:
        """Open a publisher, which takes over the charge for its criteria."""
        publisher: Publisher[Subscription] = Publisher(
            next(self._ids),
            predicate,
            max(self.log.routed, self._floor),
            self._shared.settings,
            self._shared.rings,
            self._pace,
            self._shared.criteria.empty(),
        )
        kept.move_to(publisher.kept)
        self._publishers[publisher.id] = publisher
        self._by_criteria[predicate.criteria, predicate.shown] = publisher
        publisher.judging = self._router.add(publisher.id, predicate)
        return publisher

    def _acknowledge(
        self, start: ResolvedStart, options: DeliveryOptions, state: StatePhase | None
    ) -> SubscribeAcknowledgement:
        view, use = self.log.view, options.use
        return SubscribeAcknowledgement(
            subscription_id=uuid4().hex,
            catalog=view.name,
            catalog_uuid=view.uuid,
            start=start.position,
            resume_cursor=view.cursor(*start.before[1:]) if state is None else state.cursor,
            published=view.published,
            heartbeat_interval_s=options.heartbeat_interval_s,
            queue_captures=options.queue_captures,
            message_bytes=options.message_bytes,
            max_message_bytes=options.max_message_bytes,
            catch_up=options.catch_up,
            overrun_policy=options.overrun,
            unknown_names=unknown_names(view, use.asked),
            unknown_changes=unknown_changes(view, use.narrowed.criteria),
            effective_criteria=use.effective,
            where_version=min(bound_at(use.asked), default=None),
            state_version=None if state is None else state.version,
        )


def _ending(subscription: Subscription) -> Ending:
    figures = subscription.statistics()
    return Ending(
        subscription.error,
        figures.delivered,
        figures.delivered_bytes,
        str(subscription.resume_cursor()),
    )


def _frame_request(subscription: Subscription, publisher: Publisher[Subscription]) -> FrameRequest:
    options = subscription.options
    return FrameRequest(publisher.predicate, options.codec, options.content)
