"""A crowd: many publishers that match a few records of one batch each, as one key has them.

Each of their subscriptions would read the batch and encode its own. So their records are encoded together, in
one go, before any of them is woken.
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
"""Fewer read and encode for themselves."""
_BODIES_BYTES_MAX: Final = 8 << 20
"""Of a batch with more bytes of bodies each reads alone: frames of a crowd are in memory twice at first."""

_CROWD: Final = 3
"""A batch is encoded as a whole if so many publishers match something of it,"""
_CROWD_SHARE: Final = 4
"""and their matches come to one part in so many of its records."""


class Crowd(NamedTuple):
    """Publishers that are served together, all in one wire form and content."""

    publishers: list[Publisher[Subscription]]
    codec: Codec
    content: Content
    selection: BatchSelection
    """The matches of all of them; its identity has no meaning."""


def crowds_of(
    found: Iterable[tuple[Publisher[Subscription], BatchSelection | Exception]], ref: BatchRef
) -> list[Crowd]:
    """Return the crowds among the publishers that match something of a batch."""
    if sum(ref.body_lengths) > _BODIES_BYTES_MAX:
        return []
    # 1. Whose transport is busy, or has stalled, gets nothing made ahead: it asks when it is back. The
    #    subscriptions of one publisher may have several forms.
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
    """Decide whether encoding a whole batch once costs less than each publisher's part of it."""
    if len(found) < _CROWD:
        return False
    matches = sum(len(each) for _, each in found if not isinstance(each, Exception))
    return matches * _CROWD_SHARE >= rows
