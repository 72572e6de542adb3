"""Who is subscribed is seen on every transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.grants.principal import ANONYMOUS
from tests.conformance.reading import collect
from tests.conformance.shop import OLDEST, SHOP

if TYPE_CHECKING:
    from tests.conformance.conftest import Serve
    from tests.support.inprocess import ModelWriter


async def test_a_subscription_names_its_peer_and_its_hand_overs_are_timed(
    serve: Serve, writer: ModelWriter
) -> None:
    writer.write(*SHOP)
    driver = await serve()
    subscription = await driver.subscribe((), start=OLDEST)
    history = len(writer.log.expected(()))
    await collect(subscription, history)
    writer.write(*SHOP)
    await collect(subscription, len(writer.log.expected(())) - history)
    [(_, held)] = driver.engine.subscriptions(ANONYMOUS)
    peer, figures = held.options.peer, driver.engine.statistics(ANONYMOUS)
    # What was there before the subscription began is history, and has no latency.
    assert set(figures.latencies) == {peer.transport}
    counted = sum(figures.latencies[peer.transport].counts)
    assert 1 <= counted <= len(SHOP)
    if peer.transport == "process":
        assert (peer.address, peer.client) == ("", "")
    else:
        assert peer.address.startswith("127.0.0.1:")
        assert peer.client
