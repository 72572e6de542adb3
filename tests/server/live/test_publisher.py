"""A publisher: its ring is kept until every subscription has taken what is in it."""

from __future__ import annotations

from tailrace_server.live.publisher import Publisher
from tailrace_server.live.ring import RingBudget, RoutingPace
from tailrace_server.resources.memory import MemoryBook, MemoryShare
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.rows.predicate import Predicate
from tests.support.runs import entity_run


def publisher(pace: RoutingPace, *subscriptions: str) -> Publisher[str]:
    made: Publisher[str] = Publisher(
        0,
        Predicate(()),
        0,
        EngineSettings(),
        RingBudget(1 << 20),
        pace,
        MemoryShare("criteria", MemoryBook(0), 8).empty(),
    )
    for each in subscriptions:
        made.attach(each)
    return made


def test_a_run_is_kept_until_the_last_subscription_has_taken_it() -> None:
    subject = publisher(RoutingPace(), "fast", "slow")
    subject.append(entity_run(0, [0, 1]))
    subject.caught_up("fast")
    assert subject.statistics().ring_captures == 2
    subject.caught_up("slow")
    assert subject.statistics().ring_captures == 0
    assert subject.ring.floor == 2


def test_one_that_leaves_keeps_nothing() -> None:
    pace = RoutingPace()
    subject = publisher(pace, "stays", "leaves")
    subject.append(entity_run(0, [0, 1]))
    subject.caught_up("stays")
    subject.hungry("leaves")
    subject.detach("leaves")
    assert len(subject.ring) == 0
    assert subject.subscriptions == {"stays"}
    pace.fed(["stays"])
    assert not pace


def test_new_captures_feed_all_of_its_subscriptions() -> None:
    pace = RoutingPace()
    subject = publisher(pace, "one", "other")
    subject.caught_up("one")
    subject.hungry("other")
    assert pace
    subject.append(entity_run(0, [0]))
    assert not pace


def test_a_stretch_that_was_not_routed_is_not_covered() -> None:
    subject = publisher(RoutingPace(), "one")
    subject.append(entity_run(0, [0, 1]))
    subject.skip_to(9)
    assert (len(subject.ring), subject.ring.floor) == (0, 9)
    assert subject.statistics().ring_evicted == 0
