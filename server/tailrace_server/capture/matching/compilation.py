"""From criteria to a predicate, off the event loop where there are many keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tailrace_server.capture.matching.predicate import Predicate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.criteria import Criteria
    from tailrace_server.capture.granting.shown import Visibility

_KEYS_AT_ONCE: Final = 2_000
"""Keys that are compiled on the event loop, in about a millisecond."""


async def compiled(criteria: Sequence[Criteria], shown: Visibility | None = None) -> Predicate:
    """Return the predicate of canonical criteria, and of what is shown.

    The keys are hashed by then: 100,000 of them take a thread 50 ms, and the event loop runs on.
    """
    if sum(len(each.primary_key) for each in criteria) <= _KEYS_AT_ONCE:
        return Predicate(criteria, shown)
    return await asyncio.to_thread(_compile, criteria, shown)


def _compile(criteria: Sequence[Criteria], shown: Visibility | None) -> Predicate:
    predicate = Predicate(criteria, shown)
    for alternative in predicate.alternatives:
        alternative.hash_own_types()
    return predicate
