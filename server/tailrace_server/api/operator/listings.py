"""``/subscriptions`` and ``/publishers``: what is open, for operators.

A subscription is one object with its catalog (``system`` for the log of catalogs), the fields of
`SubscriptionStatistics`, and those of its `Peer`; the 1,000 that are furthest behind, in records, come first. A
publisher is one for each distinct criteria, with the fields of `PublisherStatistics`, the 1,000 with most
subscriptions. `/health` and `/metrics` have the numbers of all.
"""

from __future__ import annotations

import heapq
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from tailrace_server.resources.event_loop import Turn
from tailrace_server.rows.criteria_form import criteria_form, in_words

if TYPE_CHECKING:
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.publisher import Publisher
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.resources.statistics import SubscriptionStatistics

_SHOWN: Final = 1_000


async def subscriptions(
    engine: Engine, caller: Principal, *, shown: int = _SHOWN
) -> list[dict[str, object]]:
    """Return the subscriptions that are furthest behind, in that order; gives way to others meanwhile."""
    # One at a time, and of each only its figures are kept: there may be 100,000, each with 100,000 keys.
    turn = Turn()
    behind: list[tuple[int, int, str, SubscriptionStatistics]] = []
    for place, (catalog, subscription) in enumerate(engine.subscriptions(caller)):
        figures = subscription.statistics()
        entry = (figures.lag_records, -place, catalog, figures)
        if len(behind) < shown:
            heapq.heappush(behind, entry)
        else:
            heapq.heappushpop(behind, entry)
        if turn.is_over():
            await turn.give_way()
    found = []
    for _, _, catalog, figures in sorted(behind, reverse=True):
        found.append({"catalog": catalog, **_plain(figures)})
        if turn.is_over():
            await turn.give_way()
    return found


def publishers(
    engine: Engine, caller: Principal, *, shown: int = _SHOWN, by_cost: bool = False
) -> list[dict[str, object]]:
    """Return the publishers with most subscriptions, in that order, or those that keep most bytes."""

    def size(each: tuple[str, Publisher[Subscription]]) -> int:
        publisher = each[1]
        if by_cost:
            return publisher.ring.bytes + publisher.kept.nbytes
        return len(publisher.subscriptions)

    largest = heapq.nlargest(shown, engine.publishers(caller), key=size)
    return [
        {
            "catalog": catalog,
            "criteria": criteria_form(publisher.predicate.criteria),
            "criteria_text": in_words(publisher.predicate.criteria),
            **asdict(publisher.statistics()),
        }
        for catalog, publisher in largest
    ]


def _plain(figures: SubscriptionStatistics) -> dict[str, object]:
    """Return a record's fields as JSON has them; the position as the command line writes it."""
    fields = {name: getattr(figures, name) for name in figures.__slots__}
    peer = fields.pop("peer")
    return fields | {
        "transport": peer.transport,
        "peer": peer.address,
        "principal": peer.principal,
        "client": peer.client,
        "criteria": criteria_form(figures.criteria),
        "criteria_text": in_words(figures.criteria),
        "age_s": round(figures.age_s, 3),
        "position": str(figures.position),
    }
