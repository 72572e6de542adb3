"""The rules of Reactive Streams 1.0.4, by number, against a real server.

docs/reactive-streams.md lists every rule with its test here, or why it has none.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tailrace
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings
from tests.conformance.drivers import OurClient, serving
from tests.conformance.reading import PATIENCE_S
from tests.support.inprocess import ModelWriter, observer_of
from tests.support.model import ModelLog, ModelMutation
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tailrace.reactive import Subscription

DEMAND_MAX = 2**63 - 1


class Recorder:
    """A subscriber that writes down what it is told."""

    def __init__(self, *, request: int = 0, act: Callable[[Recorder], None] | None = None) -> None:
        self.signals: list[Any] = []
        self.subscription: Subscription | None = None
        self._request = request
        self._act = act
        self._inside = False

    def on_subscribe(self, subscription: Subscription) -> None:
        self._enter("subscribe")
        self.subscription = subscription
        if self._request:
            subscription.request(self._request)
        self._inside = False

    def on_next(self, capture: tailrace.Capture) -> None:
        self._enter((capture.version, capture.index))
        if self._act is not None:
            self._act(self)
        self._inside = False

    def on_error(self, error: tailrace.TailraceError) -> None:
        self._enter(error)
        self._inside = False

    def on_complete(self) -> None:
        self._enter("complete")
        self._inside = False

    @property
    def captures(self) -> list[tuple[int, int]]:
        return [each for each in self.signals if isinstance(each, tuple)]

    @property
    def error(self) -> tailrace.TailraceError | None:
        errors = [each for each in self.signals if isinstance(each, tailrace.TailraceError)]
        return errors[-1] if errors else None

    def ask(self, n: int) -> None:
        assert self.subscription is not None
        self.subscription.request(n)

    def cancel(self) -> None:
        assert self.subscription is not None
        self.subscription.cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    async def captured(self, count: int) -> None:
        await until(lambda: len(self.captures) >= count)

    async def ended(self) -> tailrace.TailraceError:
        await until(lambda: self.error is not None)
        assert self.error is not None
        return self.error

    def _enter(self, signal: object) -> None:
        assert not self._inside, "signals must be serial (rule 1.3)"
        self._inside = True
        self.signals.append(signal)


@pytest.fixture
def writer(log_root: Path) -> Iterator[ModelWriter]:
    writer = ModelWriter(log_root, "shop", ModelLog())
    writer.write([upsert(str(number)) for number in range(30)])
    yield writer
    writer.writer.close()


@asynccontextmanager
async def connected(log_root: Path) -> AsyncIterator[OurClient]:
    settings = EngineSettings(heartbeat_interval_s=0.02)
    async with serving(log_root, "client", settings) as driver:
        assert isinstance(driver, OurClient)
        yield driver


@pytest.fixture
async def driver(log_root: Path, writer: ModelWriter) -> AsyncIterator[OurClient]:
    async with connected(log_root) as driver:
        yield driver


@pytest.fixture
def publisher(driver: OurClient) -> tailrace.Publisher:
    """Return a publisher of the log's 31 captures and what follows."""
    return driver.client.publisher("shop", since=0)


def upsert(key: str) -> ModelMutation:
    return ModelMutation("product", key, tailrace.Operation.UPSERT, None, {"id": key})


async def quiet(driver: OurClient) -> None:
    """Wait until the server has sent two heartbeats more: what it was to send by then has been sent."""
    sent = driver.engine.statistics(ANONYMOUS).heartbeats_sent
    await until(lambda: driver.engine.statistics(ANONYMOUS).heartbeats_sent >= sent + 2)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_rule_1_01_never_more_than_was_requested(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    recorder = Recorder(request=3)
    publisher.subscribe(recorder)
    await recorder.captured(3)
    await quiet(driver)
    assert len(recorder.captures) == 3
    assert driver.engine.statistics(ANONYMOUS).captures_delivered == 3
    recorder.ask(2)
    await recorder.captured(5)
    await quiet(driver)
    assert recorder.captures == [(1, index) for index in range(5)]


async def test_rule_1_03_3_02_signals_are_serial_though_they_request(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    """The recorder fails on any signal that begins inside another one."""
    recorder = Recorder(request=1, act=lambda it: it.ask(1))
    publisher.subscribe(recorder)
    await recorder.captured(31)
    assert recorder.error is None


async def test_rule_1_04_a_failure_is_signalled(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    recorder = Recorder(request=5)
    publisher.subscribe(recorder)
    await recorder.captured(5)
    await driver.stop()
    assert isinstance(await recorder.ended(), tailrace.SubscriptionBroken)


async def test_rule_1_06_1_07_1_09_an_error_is_the_last_signal(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    recorder = Recorder(request=5)
    publisher.subscribe(recorder)
    await recorder.captured(5)
    recorder.ask(-1)
    await recorder.ended()
    await until(lambda: not driver.engine.statistics(ANONYMOUS).subscriptions)
    signals = list(recorder.signals)
    assert signals[0] == "subscribe"
    recorder.ask(10)
    recorder.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert recorder.signals == signals


async def test_rule_1_09_on_subscribe_comes_before_an_error_of_a_closed_client(
    log_root: Path, writer: ModelWriter
) -> None:
    async with connected(log_root) as driver:
        publisher = driver.client.publisher("shop")
    recorder = Recorder()
    publisher.subscribe(recorder)
    assert recorder.signals[0] == "subscribe"
    assert isinstance(recorder.error, tailrace.SubscriptionClosed)


@pytest.mark.parametrize("nobody", [None, object(), Recorder], ids=["None", "object", "class"])
async def test_rule_1_09_2_13_what_is_no_subscriber_is_a_type_error(
    publisher: tailrace.Publisher, nobody: Any
) -> None:
    if nobody is Recorder:
        nobody = type("Half", (), {"on_next": print})()
    with pytest.raises(TypeError, match="on_subscribe"):
        publisher.subscribe(nobody)


async def test_rule_1_10_1_11_every_subscriber_has_a_stream_of_its_own(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    """Publishers are cold: none sends anything before it is subscribed to."""
    assert driver.engine.statistics(ANONYMOUS).subscriptions_opened == 0
    slow, quick = Recorder(request=2), Recorder(request=100)
    publisher.subscribe(slow)
    publisher.subscribe(quick)
    await quick.captured(31)
    await slow.captured(2)
    assert len(slow.captures) == 2
    assert driver.engine.statistics(ANONYMOUS).subscriptions_opened == 2


async def test_a_given_start_is_frozen_and_a_missing_one_is_taken_anew(
    driver: OurClient, writer: ModelWriter
) -> None:
    given, missing = driver.client.publisher("shop", since=1), driver.client.publisher("shop")
    first = [Recorder(request=100), Recorder(request=100)]
    for publisher, recorder in zip((given, missing), first, strict=True):
        publisher.subscribe(recorder)
    await until(lambda: driver.engine.statistics(ANONYMOUS).subscriptions == 2)
    writer.write([])
    await first[0].captured(32)
    await first[1].captured(1)
    second = [Recorder(request=100), Recorder(request=100)]
    for publisher, recorder in zip((given, missing), second, strict=True):
        publisher.subscribe(recorder)
    await until(lambda: driver.engine.statistics(ANONYMOUS).subscriptions == 4)
    writer.write([])
    await second[0].captured(33)
    await second[1].captured(1)
    assert first[1].captures[0] == (2, 0)
    assert second[1].captures == [(3, 0)]


async def test_rule_2_05_a_second_subscription_can_be_cancelled_at_once(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    class Loyal(Recorder):
        def on_subscribe(self, subscription: Subscription) -> None:
            if self.subscription is not None:
                subscription.cancel()
                return
            super().on_subscribe(subscription)

    loyal = Loyal(request=DEMAND_MAX)
    publisher.subscribe(loyal)
    await loyal.captured(31)
    publisher.subscribe(loyal)
    await quiet(driver)
    assert driver.engine.statistics(ANONYMOUS).subscriptions == 1
    assert loyal.captures == [(1, index) for index in range(31)]


async def test_rule_1_02_2_09_2_10_an_error_comes_before_captures_and_requests(
    driver: OurClient,
) -> None:
    for request in (0, 100):
        recorder = Recorder(request=request)
        driver.client.publisher("ship").subscribe(recorder)
        assert isinstance(await recorder.ended(), tailrace.CatalogUnknown)
        assert recorder.signals == ["subscribe", recorder.error]


async def test_rule_2_12_on_subscribe_comes_once_over_reconnects(
    log_root: Path, writer: ModelWriter
) -> None:
    async with connected(log_root) as driver:
        retry = tailrace.Retry(first_s=0.01, longest_s=0.02)
        async with tailrace.connect(driver.target, retry=retry) as client:
            recorder = Recorder(request=DEMAND_MAX)
            client.publisher("shop", since=0).subscribe(recorder)
            await recorder.captured(31)
            for subscription in observer_of(driver.engine, "shop").subscriptions:
                subscription.stop()
            writer.write([upsert("more")])
            await recorder.captured(33)
            assert recorder.signals.count("subscribe") == 1
            assert len(set(recorder.captures)) == len(recorder.captures) == 33


async def test_rule_2_13_a_subscriber_that_raises_is_cancelled_and_reported(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(_: Recorder) -> None:
        raise ValueError("theirs")

    neighbour = Recorder(request=DEMAND_MAX)
    recorder = Recorder(request=10, act=fail)
    publisher.subscribe(recorder)
    publisher.subscribe(neighbour)
    await neighbour.captured(31)
    await until(lambda: driver.engine.statistics(ANONYMOUS).subscriptions == 1)
    assert recorder.captures == [(1, 0)]
    assert recorder.error is None
    (context,) = reported
    assert str(context["exception"]) == "theirs"


@pytest.mark.slow
async def test_contract_11_rule_3_03_request_1_from_on_next_does_not_recurse(
    log_root: Path, writer: ModelWriter, driver: OurClient
) -> None:
    """200,000 captures wait while each handler asks for one more; the stack stays flat."""
    writer.write(*([upsert(str(number)) for number in range(10_000)] for _ in range(20)))
    depths = set()

    def ask(recorder: Recorder) -> None:
        frame, depth = sys._getframe(), 0
        while frame.f_back is not None:
            frame, depth = frame.f_back, depth + 1
        depths.add(depth)
        recorder.ask(1)

    recorder = Recorder(request=200_000, act=ask)
    driver.client.publisher("shop", since=2).subscribe(recorder)
    await until(lambda: len(recorder.captures) >= 200_020, 3 * PATIENCE_S)
    assert len(depths) <= 2


async def test_rule_3_04_3_16_request_returns_at_once_and_signals_nothing_by_itself(
    publisher: tailrace.Publisher,
) -> None:
    recorder = Recorder()
    publisher.subscribe(recorder)
    await until(lambda: recorder.subscription is not None)
    recorder.ask(5)
    assert recorder.captures == []
    await recorder.captured(5)


@pytest.mark.parametrize("request_", [5, DEMAND_MAX])
async def test_rule_1_08_3_05_3_07_3_12_3_15_cancel_stops_all_at_once_any_number_of_times(
    driver: OurClient, publisher: tailrace.Publisher, request_: int
) -> None:
    recorder = Recorder(request=request_)
    publisher.subscribe(recorder)
    await recorder.captured(min(request_, 31))
    for _ in range(3):
        recorder.cancel()
    await until(lambda: not driver.engine.statistics(ANONYMOUS).subscriptions)
    assert recorder.signals == ["subscribe", *recorder.captures]


async def test_rule_3_06_a_request_after_cancel_does_nothing(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    recorder = Recorder(request=5)
    publisher.subscribe(recorder)
    await recorder.captured(5)
    recorder.cancel()
    for n in (1, 0, -1):
        recorder.ask(n)
    await until(lambda: not driver.engine.statistics(ANONYMOUS).subscriptions)
    assert len(recorder.captures) == 5
    assert recorder.error is None


async def test_rule_3_06_cancel_from_on_next_stops_within_the_message(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    def stop_at_4(recorder: Recorder) -> None:
        if len(recorder.captures) == 4:
            recorder.cancel()

    recorder = Recorder(request=31, act=stop_at_4)
    publisher.subscribe(recorder)
    await until(lambda: driver.engine.statistics(ANONYMOUS).captures_delivered == 31)
    await until(lambda: not driver.engine.statistics(ANONYMOUS).subscriptions)
    assert len(recorder.captures) == 4


async def test_rule_3_08_requests_add_up(publisher: tailrace.Publisher) -> None:
    recorder = Recorder()
    publisher.subscribe(recorder)
    await until(lambda: recorder.subscription is not None)
    for n in (1, 2, 3, 4):
        recorder.ask(n)
    await recorder.captured(10)


@pytest.mark.parametrize("n", [0, -1, -DEMAND_MAX])
async def test_contract_10_rule_3_09_non_positive_request_is_an_error(
    publisher: tailrace.Publisher, n: int
) -> None:
    recorder = Recorder(request=2)
    publisher.subscribe(recorder)
    await recorder.captured(2)
    recorder.ask(n)
    error = await recorder.ended()
    assert isinstance(error, tailrace.InvalidRequest)
    assert "3.9" in str(error)


async def test_contract_20_rule_3_13_cancelling_drops_all_references_to_the_subscriber(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    recorder = Recorder(request=5)
    publisher.subscribe(recorder)
    await recorder.captured(5)
    recorder.cancel()
    recorder.subscription = None
    reference = weakref.ref(recorder)
    del recorder
    await until(lambda: not driver.engine.statistics(ANONYMOUS).subscriptions)
    gc.collect()
    assert reference() is None


async def test_rule_3_14_the_last_cancel_closes_the_servers_publisher(
    driver: OurClient, publisher: tailrace.Publisher
) -> None:
    recorder = Recorder(request=5)
    publisher.subscribe(recorder)
    await recorder.captured(5)
    assert len(observer_of(driver.engine, "shop").publishers()) == 1
    recorder.cancel()
    await until(lambda: not observer_of(driver.engine, "shop").publishers())


async def test_rule_3_17_demand_saturates(
    publisher: tailrace.Publisher, writer: ModelWriter
) -> None:
    recorder = Recorder(request=DEMAND_MAX)
    publisher.subscribe(recorder)
    await recorder.captured(31)
    for n in (DEMAND_MAX, DEMAND_MAX, 2**80):
        recorder.ask(n)
    writer.write([upsert("more")])
    await recorder.captured(33)
    assert recorder.error is None


async def test_closing_the_client_ends_its_subscribers_with_an_error(
    log_root: Path, writer: ModelWriter
) -> None:
    recorders = [Recorder(request=3), Recorder()]
    async with connected(log_root) as driver:
        for recorder in recorders:
            driver.client.publisher("shop", since=0).subscribe(recorder)
        await recorders[0].captured(3)
        late = Recorder()
        driver.client.publisher("shop", since=0).subscribe(late)
    for recorder in (*recorders, late):
        assert isinstance(recorder.error, tailrace.SubscriptionClosed)
        assert recorder.signals[0] == "subscribe"


def test_every_rule_is_on_the_page_with_its_test_or_why_not() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "reactive-streams.md").read_text()
    rules = [
        f"{part}.{n}" for part, last in ((1, 11), (2, 13), (3, 17)) for n in range(1, last + 1)
    ]
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| ")}
    source = Path(__file__).read_text()
    for rule in rules:
        part, n = rule.split(".")
        named = [
            name
            for name in (
                line[10:].partition("(")[0]
                for line in source.splitlines()
                if "async def test" in line
            )
            if f"{part}_{int(n):02}_" in name.partition("rule_")[2]
        ]
        for name in named:
            assert name in rows[rule], f"{rule}: {name} is not on the page"
        assert named or "no test" in rows[rule], f"{rule}: neither a test nor a reason"
