"""What may befall a change stream: its messages repeated, moved about and cut anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tailrace.cdcv2 import Progress, Update

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from tailrace.cdcv2 import Finished, Statement

T = TypeVar("T")


def mangle(statements: Iterable[Statement[T]], chance: random.Random) -> list[Statement[T]]:
    """Return the same statements, each at least once, in other messages and in any order."""
    updates: list[Update[T]] = []
    messages: list[Statement[T]] = []
    for statement in statements:
        if isinstance(statement, Progress):
            messages += [statement] * chance.randint(1, 3)
        else:
            for update in statement:
                updates += [update] * chance.randint(1, 3)
    chance.shuffle(updates)
    at = 0
    while at < len(updates):
        size = chance.randint(1, 7)
        messages.append(updates[at : at + size])
        at += size
    chance.shuffle(messages)
    return messages


def history_of(finished: Iterable[Finished[T]]) -> dict[tuple[object, T], int]:
    """Return the diffs by (data, time) of what a reader gave, none of which may come twice."""
    history: dict[tuple[object, T], int] = {}
    for piece in finished:
        for data, time, diff in piece.updates:
            assert (data, time) not in history, f"{data!r} came twice at {time}"
            history[data, time] = diff
    return history
