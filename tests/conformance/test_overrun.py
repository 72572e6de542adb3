"""What becomes of a subscription that the server's ring has overtaken, as it asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import After, OverrunPolicy, SubscriptionOverrun
from tailrace.cursor import Cursor
from tests.conformance.reading import collect, coordinates, error_ending
from tests.conformance.shop import upsert

if TYPE_CHECKING:
    from tests.conformance.conftest import Serve
    from tests.support.inprocess import ModelWriter

RING = 4
LARGE = [upsert(str(key)) for key in range(2 * RING)]
"""A commit that the ring has no room for: whoever is live is overtaken by it."""


async def test_contract_14_who_asked_for_it_is_disconnected_and_told_where_to_go_on(
    serve: Serve, writer: ModelWriter
) -> None:
    driver = await serve(ring_captures=RING)
    ended = await driver.subscribe(overrun_policy=OverrunPolicy.DISCONNECT)
    other = await driver.subscribe()
    assert ended.acknowledgement.overrun_policy is OverrunPolicy.DISCONNECT
    assert other.acknowledgement.overrun_policy is OverrunPolicy.RESYNC
    # 1. What the ring has room for comes to both, and from the ring: they are live.
    writer.write([upsert("small")])
    assert coordinates(await collect(ended, 2)) == [(1, 0, 0), (1, 1, 0)]
    # 2. The rest comes to one of them, and to the other one after the cursor that it is told.
    writer.write(LARGE)
    received, error = await error_ending(ended)
    assert isinstance(error, SubscriptionOverrun)
    assert (received, error.retriable) == ([], False)
    assert len(await collect(other, 2 + 1 + len(LARGE))) == 2 + 1 + len(LARGE)
    assert error.resume_cursor is not None
    start = After(Cursor.parse(error.resume_cursor))
    again = await driver.subscribe(start=start, overrun_policy=OverrunPolicy.DISCONNECT)
    # 3. Who begins behind what the ring has is not overtaken: it was never live.
    found = coordinates(await collect(again, 1 + len(LARGE)))
    assert found == writer.log.expected((), first=2)
    await again.cancel()
    await other.cancel()
