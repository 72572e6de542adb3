"""The law: delivered = filter(visible log) from the start, in order, once; whatever happens in between."""

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
    precondition,
    rule,
)

from tailrace.capture import Heartbeat
from tailrace.criteria import After, Content, Since
from tailrace.cursor import Cursor
from tailrace.position import Position
from tailrace_server.capture.codecs import JSON
from tailrace_server.capture.engine import Engine
from tailrace_server.capture.settings import EngineSettings, SubscriptionLimits
from tests.support.inprocess import PATIENCE_S, ModelWriter, coordinates, objects
from tests.support.model import ModelLog, criteria_lists, transactions

if TYPE_CHECKING:
    from tailrace.criteria import Criteria
    from tailrace_server.capture.frames import Frames
    from tailrace_server.capture.subscription import Subscription
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

    def expected(self, log: ModelLog) -> list[Coordinates]:
        return log.expected(self.criteria, self.first)

    def owed(self, log: ModelLog) -> int:
        """Captures that must come now: all that match, as far as demand goes."""
        left = len(self.expected(log)) - len(self.delivered)
        return left if self.demand is None else min(left, self.demand)


class Law(RuleBasedStateMachine):
    """Append, commit, publish, subscribe, request, read, resume, compact, crash; and a list that judges."""

    followers: Bundle[Follower] = Bundle("followers")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.log = ModelLog(known={})
        self.open_followers: list[Follower] = []

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
            for follower in self.open_followers:
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
        since=st.none() | st.integers(0, 8),
        queue=st.sampled_from([1, 4, 1000]),
        demand=st.none() | st.just(0),
    )
    def subscribe(
        self, criteria: tuple[Criteria, ...], since: int | None, queue: int, demand: int | None
    ) -> Follower:
        limits = SubscriptionLimits(queue_captures=queue)
        start = None if since is None else Since(Position(since))
        subscription = self.run(self.subscribe_at(criteria, start, limits, demand))
        # The engine may not have seen the newest publication yet; it says where it starts.
        first = subscription.acknowledgement.start.version if since is None else max(since, 1)
        follower = Follower(criteria, first, limits, subscription, demand)
        self.open_followers.append(follower)
        return follower

    async def subscribe_at(
        self, criteria: tuple[Criteria, ...], start: Any, limits: Any, demand: int | None
    ) -> Subscription:
        return await self.engine.subscribe(
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
            self.run(self.receive(follower))

    @rule(follower=followers, looks=st.lists(st.booleans(), max_size=8))
    def read_ready(self, follower: Follower, looks: list[bool]) -> None:
        """Take what is ready, without waiting, and look now and then how far it has come."""

        async def read() -> None:
            for look, message in zip(looks, follower.subscription.ready(), strict=False):
                self.take(follower, message)
                if look:
                    self.check_cursor(follower, follower.subscription.resume_cursor())

        self.run(read())

    @rule(follower=followers)
    def read_all(self, follower: Follower) -> None:
        while follower.owed(self.log):
            self.run(self.receive(follower))
        if len(follower.expected(self.log)) == len(follower.delivered):
            self.run(self.nothing_more(follower))

    async def receive(self, follower: Follower) -> None:
        """Take one message of captures and hold it against the list."""
        while isinstance(message := await follower.subscription.receive(), Heartbeat):
            self.check_heartbeat(follower, message)
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
        expected = follower.expected(self.log)
        assert [each for each in expected if each <= passed] == [
            each for each in follower.delivered if each <= passed
        ]

    @rule(target=followers, follower=consumes(followers))
    def resume(self, follower: Follower) -> Follower:
        """Cancel, and go on from the cursor of the last capture."""
        follower.subscription.cancel()
        self.open_followers.remove(follower)
        uuid = follower.subscription.acknowledgement.catalog_uuid
        if follower.delivered:
            start: Any = After(Cursor(uuid, *follower.delivered[-1]))
        else:
            start = Since(Position(follower.first))
        subscription = self.run(
            self.subscribe_at(follower.criteria, start, follower.limits, follower.demand)
        )
        resumed = Follower(
            follower.criteria,
            follower.first,
            follower.limits,
            subscription,
            follower.demand,
            list(follower.delivered),
        )
        self.open_followers.append(resumed)
        return resumed

    @rule()
    def compact(self) -> None:
        self.writer.writer.compact()

    @precondition(lambda self: self.open_followers)
    @rule()
    def crash(self) -> None:
        """The server goes away and comes back; everybody resumes by the last cursor."""
        for follower in self.open_followers:
            follower.subscription.cancel()
        self.run(self.engine.__aexit__(None, None, None))
        self.engine = Engine(self.root, self.settings)
        self.run(self.engine.__aenter__())
        for follower in self.open_followers:
            uuid = follower.subscription.acknowledgement.catalog_uuid
            start: Any = Since(Position(follower.first))
            if follower.delivered:
                start = After(Cursor(uuid, *follower.delivered[-1]))
            follower.subscription = self.run(
                self.subscribe_at(follower.criteria, start, follower.limits, follower.demand)
            )


TestLaw = pytest.mark.timeout(600)(Law.TestCase)
TestLaw.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
