"""A crowd: many publishers that each match a few records of one batch, as publishers for a single key do.

Alone, each subscription would read the batch and encode its own records. Instead the records of the crowd are
encoded together, before any of its subscriptions is woken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace_server.rows.run import BatchSelection, is_narrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.criteria import Content
    from tailrace_server.codecs import Codec
    from tailrace_server.live.publisher import Publisher
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.wal.segment.refs import BatchRef

_PUBLISHERS_MIN: Final = 3
"""The fewest publishers that make a crowd; fewer read and encode separately."""
_BODIES_BYTES_MAX: Final = 8 << 20
"""Most bytes of bodies of a batch with crowds. Frames of a crowd are in memory twice at first."""

_CROWD: Final = 3
"""The fewest matching publishers for which a whole batch is encoded."""
_CROWD_SHARE: Final = 4
"""A whole batch is encoded only if the matches are at least 1/4 of its records."""


class Crowd(NamedTuple):
    """Publishers whose records are encoded together, in one wire form and with one content."""

    publishers: list[Publisher[Subscription]]
    codec: Codec
    content: Content
    selection: BatchSelection
    """The matches of all publishers of the crowd. The identity of the selection has no meaning."""


def crowds_of(
    found: Iterable[tuple[Publisher[Subscription], BatchSelection | Exception]], ref: BatchRef
) -> list[Crowd]:
    """Return the crowds among the publishers that match something of a batch."""
    if sum(ref.body_lengths) > _BODIES_BYTES_MAX:
        return []
    # 1. Skip subscriptions whose transport is busy or has stalled: they encode their records when they need
    #    them. The subscriptions of one publisher may differ in wire form and content.
    members: dict[tuple[Codec, Content], dict[Publisher[Subscription], BatchSelection]] = {}
    for publisher, selection in found:
        if isinstance(selection, Exception) or not is_narrow(selection):
            continue
        for each in publisher.subscriptions:
            if each.last.frames is None:
                form = each.options.codec, each.options.content
                members.setdefault(form, {})[publisher] = selection
    # 2. The records of each crowd, once each and in order.
    crowds = []
    for (codec, content), selections in members.items():
        if len(selections) >= _PUBLISHERS_MIN:
            rows = {row for each in selections.values() for row in each.rows.tolist()}
            together = BatchSelection((), np.array(sorted(rows), np.int32))
            crowds.append(Crowd([*selections], codec, content, together))
    return crowds


def is_crowded(
    found: Sequence[tuple[Publisher[Subscription], BatchSelection | Exception]], rows: int
) -> bool:
    """Return True if encoding the whole batch once costs less than encoding the matches of each publisher."""
    if len(found) < _CROWD:
        return False
    matches = sum(len(each) for _, each in found if not isinstance(each, Exception))
    return matches * _CROWD_SHARE >= rows
