"""Whoever begins or catches up has its turns, one connection after the other, and shuts nobody out."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from tailrace_server.resources.event_loop import TURN_S, LoopTurns
from tests.support.polling import until


class Clock:
    """Time that passes where a step says so, and nowhere else."""

    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


async def steps(
    turns: LoopTurns, whose: str, done: list[str], clock: Clock, seconds: float = 0.0
) -> None:
    await turns.turn(whose)
    clock.now += seconds
    done.append(whose)


def use_up_a_turn(turns: LoopTurns, clock: Clock) -> asyncio.Future[None]:
    """Begin a turn and use it up, before tasks that are made after this come to their first step."""

    async def use_up() -> None:
        await turns.turn("first")
        clock.now += 2 * TURN_S

    return asyncio.ensure_future(use_up())


async def test_a_step_runs_at_once_while_the_turn_is_young() -> None:
    turns = LoopTurns()
    waiting = turns.turn("a")
    try:
        waiting.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


async def test_a_step_waits_when_the_turn_is_over_and_goes_on_in_the_next() -> None:
    clock, done = Clock(), list[str]()
    turns = LoopTurns(clock)
    first = use_up_a_turn(turns, clock)
    task = asyncio.ensure_future(steps(turns, "late", done, clock))
    await asyncio.sleep(0)
    assert turns.waiting
    assert first.done()
    assert not done
    await task
    assert done == ["late"]


async def test_connections_have_their_steps_one_after_the_other() -> None:
    """One that has begun a hundred things does not keep another from beginning one."""
    clock, done = Clock(), list[str]()
    turns = LoopTurns(clock)
    first = use_up_a_turn(turns, clock)
    many = [asyncio.ensure_future(steps(turns, "many", done, clock)) for _ in range(100)]
    one = asyncio.ensure_future(steps(turns, "one", done, clock))
    await asyncio.gather(first, *many, one)
    assert done.index("one") <= 1
    assert len(done) == 101


async def test_a_turn_takes_only_as_many_steps_as_fit() -> None:
    """Somebody who is there is served between them, and not behind all of them."""
    clock, done, seen = Clock(), list[str](), list[int]()
    turns = LoopTurns(clock)
    first = use_up_a_turn(turns, clock)
    busy = [asyncio.ensure_future(steps(turns, "busy", done, clock, TURN_S)) for _ in range(30)]
    while len(done) < 30:
        await asyncio.sleep(0)
        seen.append(len(done))
    await asyncio.gather(first, *busy)
    # The first turn knows nothing of how long a step takes, and takes a few; soon it is one a turn.
    taken = [after - before for before, after in pairwise([0, *seen])]
    assert max(taken) <= 5
    assert taken[-5:] == [1] * 5


async def test_a_step_that_is_cancelled_is_passed_over() -> None:
    clock, done = Clock(), list[str]()
    turns = LoopTurns(clock)
    first = use_up_a_turn(turns, clock)
    gone = asyncio.ensure_future(steps(turns, "gone", done, clock))
    left = asyncio.ensure_future(steps(turns, "left", done, clock))
    await asyncio.sleep(0)
    assert turns.waiting
    assert first.done()
    gone.cancel()
    await asyncio.wait((gone, left))
    assert gone.cancelled()
    assert done == ["left"]
    await until(lambda: not turns.waiting)


async def test_it_rests_when_nobody_is_in_line() -> None:
    """Nothing of it runs in a loop without such work: the first step of the next turn runs at once again."""
    clock, done = Clock(), list[str]()
    turns = LoopTurns(clock)
    await use_up_a_turn(turns, clock)
    await steps(turns, "a", done, clock)
    await until(lambda: not turns.under_way)
    assert done == ["a"]
