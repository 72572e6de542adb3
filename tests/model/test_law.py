"""The law: delivered = filter(visible log) from the start, in order, once; whatever happens in between.

A trim takes nothing out of the filter. Whom it has overtaken is told so, by name, and gets no more; nobody is
given what comes behind a record that it was not given.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
)

from tailrace.capture import Heartbeat
from tailrace.criteria import After, Content, Since
from tailrace.cursor import Cursor
from tailrace.errors import PositionCompacted
from tailrace.position import END, Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.frames import Frames
from tailrace_server.resources.settings import EngineSettings, SubscriptionLimits
from tailrace_server.wal.upkeep import retention
from tests.support.inprocess import PATIENCE_S, ModelWriter, coordinates, objects, observer_of
from tests.support.model import ModelLog, criteria_lists, transactions
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tailrace.criteria import Criteria, Start
    from tailrace_server.live.subscription import Subscription
    from tests.support.model import Coordinates, ModelMutation


@dataclass(eq=False)
class Follower:
    """A subscription, what it asked for, and what it has been given."""

    criteria: tuple[Criteria, ...]
    first: int
    limits: SubscriptionLimits
    subscription: Subscription
    demand: int | None
    delivered: list[Coordinates] = field(default_factory=list)
    told: Coordinates = (0, 0, 0)
    """The furthest cursor that its subscription has told: it never goes back."""
    resumed_at: Coordinates | None = None
    """The capture behind which its subscription began; None for one that began with a whole record."""

    def expected(self, log: ModelLog) -> list[Coordinates]:
        return log.expected(self.criteria, self.first)

    def owed(self, log: ModelLog) -> int:
        """Captures that must come now: all that match, as far as demand goes."""
        left = len(self.expected(log)) - len(self.delivered)
        return left if self.demand is None else min(left, self.demand)

    def resume_start(self) -> Start:
        """Where another subscription goes on after the last capture."""
        if not self.delivered:
            return Since(Position(self.first))
        uuid = self.subscription.acknowledgement.catalog_uuid
        return After(Cursor(uuid, *self.delivered[-1]))


class Law(RuleBasedStateMachine):
    """Append, commit, publish, subscribe, request, read, resume, compact, trim, crash; a list judges."""

    followers: Bundle[Follower] = Bundle("followers")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.log = ModelLog(known={})
        self.open_followers: list[Follower] = []
        self.oldest = 1
        """First version that the log keeps; the engine may not have seen it yet."""

    def run(self, awaitable: Any) -> Any:
        async def with_patience() -> Any:
            async with asyncio.timeout(PATIENCE_S):
                return await awaitable

        return self.loop.run_until_complete(with_patience())

    @initialize(
        ring=st.sampled_from([1, 4, 1000]),
        scan=st.sampled_from([1, 4]),
        message=st.sampled_from([1, 300, 65536]),
    )
    def start(self, ring: int, scan: int, message: int) -> None:
        self.settings = EngineSettings(
            ring_captures=ring,
            scan_batches=scan,
            message_bytes=message,
            heartbeat_interval_s=0.005,
        )
        self.writer = ModelWriter(self.root, "shop", self.log)
        self.engine = Engine(self.root, self.settings)
        self.run(self.engine.__aenter__())

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            for follower in tuple(self.open_followers):
                self.read_all(follower)
            self.run(self.engine.__aexit__(None, None, None))
            self.writer.writer.close()
        self.loop.close()
        self.folder.cleanup()

    @rule(batch=st.lists(transactions, min_size=1, max_size=4))
    def commit(self, batch: list[list[ModelMutation]]) -> None:
        self.writer.commit(*batch)

    @rule()
    def publish(self) -> None:
        self.writer.publish()

    @rule(batch=st.lists(transactions, min_size=1, max_size=4))
    def commit_and_publish(self, batch: list[list[ModelMutation]]) -> None:
        self.writer.write(*batch)

    @rule(
        target=followers,
        criteria=criteria_lists,
        since=st.none() | st.just(0) | st.integers(1, 8),
        queue=st.sampled_from([1, 4, 1000]),
        demand=st.none() | st.just(0),
    )
    def subscribe(
        self, criteria: tuple[Criteria, ...], since: int | None, queue: int, demand: int | None
    ) -> Any:
        limits = SubscriptionLimits(queue_captures=queue)
        start = None if since is None else Since(Position(since))
        subscription = self.run(self.subscribe_or_refused(criteria, start, limits, demand))
        if subscription is None:
            return multiple()
        # The engine may not have seen the newest publication or trim yet; it says where it starts.
        first = since or subscription.acknowledgement.start.version
        follower = Follower(criteria, first, limits, subscription, demand)
        self.open_followers.append(follower)
        return follower

    async def subscribe_or_refused(
        self, criteria: tuple[Criteria, ...], start: Any, limits: Any, demand: int | None
    ) -> Subscription | None:
        """Subscribe; None where the start is gone, which is so if and only if it lies below the oldest."""
        wanted = getattr(start, "position", None) or getattr(start, "cursor", None)
        version = 0 if wanted is None else wanted.version
        seen = observer_of(self.engine, "shop").log.view.oldest.version
        try:
            subscription = await self.subscribe_at(criteria, start, limits, demand)
        except PositionCompacted as compacted:
            assert 0 < version < self.oldest
            self.check_compacted(compacted, wanted=version)
            return None
        assert version == 0 or version >= seen
        begins = subscription.acknowledgement.start.version
        if start is not None and version == 0:
            assert seen <= begins <= self.oldest
        return subscription

    async def subscribe_at(
        self, criteria: tuple[Criteria, ...], start: Any, limits: Any, demand: int | None
    ) -> Subscription:
        return await self.engine.subscribe(
            ANONYMOUS,
            "shop",
            criteria,
            start=start,
            content=Content.HEADER,
            codec=JSON,
            demand=demand,
            limits=limits,
        )

    @rule(follower=followers, n=st.integers(1, 5))
    def request(self, follower: Follower, n: int) -> None:
        if follower.demand is not None:
            follower.subscription.request(n)
            follower.demand += n

    @rule(follower=followers)
    def read_one(self, follower: Follower) -> None:
        if follower.owed(self.log):
            self.reading(follower, self.receive(follower))

    def reading(self, follower: Follower, read: Coroutine[Any, Any, None]) -> None:
        """Read for a follower, unless a trim has overtaken it: then it is told so, and that was its end."""
        if follower not in self.open_followers:
            read.close()
            return
        try:
            self.run(read)
        except PositionCompacted as compacted:
            self.open_followers.remove(follower)
            self.check_compacted(compacted)
            cursor = follower.subscription.resume_cursor()
            self.check_cursor(follower, cursor)
            gone = compacted.oldest.version - 1
            last = max(each for each in self.log.expected((), gone) if each[0] == gone)
            # Something of it was still to come, or may have been: of the record that it was resumed within.
            assert (cursor.version, cursor.index) < last[:2] or follower.told == follower.resumed_at

    def check_compacted(self, compacted: PositionCompacted, *, wanted: int | None = None) -> None:
        """It carries both ends, as the engine saw them, and where that start lies which was refused."""
        assert wanted in (None, compacted.wanted.version)
        view = observer_of(self.engine, "shop").log.view
        assert compacted.wanted < compacted.oldest <= view.oldest <= Position(self.oldest)
        newest = compacted.newest.version
        assert compacted.newest == Position(newest, END)
        assert compacted.oldest.version - 1 <= newest <= view.published

    @rule(follower=followers, looks=st.lists(st.booleans(), max_size=8))
    def read_ready(self, follower: Follower, looks: list[bool]) -> None:
        """Take what is ready, without waiting, and look now and then how far it has come."""

        async def read() -> None:
            for look, message in zip(looks, follower.subscription.ready(), strict=False):
                self.take(follower, message)
                if look:
                    self.check_cursor(follower, follower.subscription.resume_cursor())

        self.reading(follower, read())

    @rule(follower=followers)
    def read_all(self, follower: Follower) -> None:
        while follower in self.open_followers and follower.owed(self.log):
            self.reading(follower, self.receive(follower))
        if follower.subscription.error is not None:
            self.reading(follower, self.receive(follower))
        elif len(follower.expected(self.log)) == len(follower.delivered):
            self.reading(follower, self.nothing_more(follower))

    async def receive(self, follower: Follower) -> None:
        """Take one message of captures and hold it against the list."""
        while isinstance(message := await follower.subscription.receive(), Heartbeat):
            self.check_heartbeat(follower, message)
        assert isinstance(message, Frames)
        self.take(follower, message)

    def take(self, follower: Follower, message: Frames) -> None:
        if follower.demand is not None:
            assert message.count <= follower.demand
            follower.demand -= message.count
        follower.delivered += [coordinates(each) for each in objects(message)]
        assert follower.delivered[-1] == message.last
        expected = follower.expected(self.log)
        assert follower.delivered == expected[: len(follower.delivered)]

    async def nothing_more(self, follower: Follower) -> None:
        """A heartbeat that has passed everything published proves that nothing is still to come."""
        if follower.demand == 0 and follower.subscription.statistics().mode == "resync":
            return  # without demand the log is not read, so nothing can be proved
        end = len(self.log.transactions)
        while True:
            message = await follower.subscription.receive()
            assert isinstance(message, Heartbeat)
            self.check_heartbeat(follower, message)
            if message.cursor.version >= min(end, message.published) and message.published == end:
                return

    def check_heartbeat(self, follower: Follower, heartbeat: Heartbeat) -> None:
        self.check_cursor(follower, heartbeat.cursor)
        assert heartbeat.published <= len(self.log.transactions)

    def check_cursor(self, follower: Follower, cursor: Cursor) -> None:
        passed = (cursor.version, cursor.index, cursor.ordinal)
        assert passed >= follower.told, (passed, follower.told)
        follower.told = passed
        expected = follower.expected(self.log)
        assert [each for each in expected if each <= passed] == [
            each for each in follower.delivered if each <= passed
        ]

    @rule(target=followers, follower=consumes(followers))
    def resume(self, follower: Follower) -> Any:
        """Cancel, and go on from the cursor of the last capture."""
        follower.subscription.cancel()
        if follower not in self.open_followers:
            return multiple()
        return follower if self.resumed(follower) else multiple()

    def resumed(self, follower: Follower) -> bool:
        """Give a follower a new subscription from where it is; return whether it is still in the log."""
        subscription = self.run(
            self.subscribe_or_refused(
                follower.criteria, follower.resume_start(), follower.limits, follower.demand
            )
        )
        if subscription is None:
            self.open_followers.remove(follower)
            return False
        follower.subscription = subscription
        follower.told = (0, 0, 0)
        follower.resumed_at = follower.delivered[-1] if follower.delivered else None
        return True

    @rule()
    def compact(self) -> None:
        self.writer.writer.compact()

    @rule(keep=st.integers(0, 2), delete=st.booleans(), seen=st.booleans())
    def trim(self, keep: int, delete: bool, seen: bool) -> None:
        """Let go of all but the newest versions, of the files too or not yet, seen by the engine or not yet."""
        catalog = self.root / "shop"
        before = len(self.log.transactions) + 1 - keep
        for follower in self.open_followers:
            self.check_cursor(follower, follower.subscription.resume_cursor())
        oldest = retention.trim(catalog, before, now=0)
        assert oldest == Position(max(before, self.oldest))
        self.oldest = oldest.version
        if delete:
            retention.delete_unnamed(catalog, 2**62)
        if seen:
            self.run(until(lambda: observer_of(self.engine, "shop").log.view.oldest == oldest))

    @precondition(lambda self: self.open_followers)
    @rule()
    def crash(self) -> None:
        """The server goes away and comes back; everybody resumes by the last cursor."""
        for follower in self.open_followers:
            follower.subscription.cancel()
        self.run(self.engine.__aexit__(None, None, None))
        self.engine = Engine(self.root, self.settings)
        self.run(self.engine.__aenter__())
        for follower in tuple(self.open_followers):
            self.resumed(follower)


TestLaw = pytest.mark.timeout(600)(Law.TestCase)
TestLaw.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
