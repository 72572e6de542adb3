"""Contract 33 while the engine serves: whatever byte is wrong or missing, nobody is given a wrong record.

A subscriber of a damaged log gets the captures up to where it needs what is damaged, and then the error that
names it. The engine that serves it serves the others as if nothing were.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.capture import Heartbeat
from tailrace.criteria import Content, Since
from tailrace.errors import TailraceError
from tailrace.position import Position
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.frames import Frames
from tailrace_server.resources.settings import EngineSettings
from tailrace_server.wal.log_writer import LogWriter
from tests.server.wal.logs import upsert
from tests.support.damage import CATALOGS, damages, small_log
from tests.support.inprocess import PATIENCE_S, has_passed, objects, receive

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.damage import Damage

pytestmark = pytest.mark.slow

SETTINGS = EngineSettings(heartbeat_interval_s=0.01)
NAMES = [f"log-{number:02}" for number in range(CATALOGS)]
OLDEST = Since(Position(0))


async def read(engine: Engine, catalog: str) -> tuple[list[dict[str, Any]], TailraceError | None]:
    """Return what a subscription from the oldest record gives until it waits or ends, and its error."""
    captures: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            subscription = await engine.subscribe(
                ANONYMOUS, catalog, start=OLDEST, content=Content.BODY, codec=JSON
            )
            while True:
                message = await subscription.receive()
                if isinstance(message, Frames):
                    captures += objects(message)
                elif isinstance(message, Heartbeat) and has_passed(
                    message.cursor, message.published
                ):
                    return captures, None
    except TailraceError as error:
        return captures, error
    finally:
        for capture in captures:
            capture["cursor"] = capture["cursor"].split(".")[2:]  # without the log's uuid


async def check(engine: Engine, folder: Path, damage: Damage, truth: list[dict[str, Any]]) -> bool:
    """Hold what a subscriber of a damaged log gets against the truth; return whether it ended with an error."""
    captures, error = await read(engine, folder.name)
    assert captures == truth[: len(captures)], damage
    if error is not None:
        damage.check_named(error, folder)
        return True
    assert captures == truth, damage
    assert damage.may_go_unnoticed, damage
    return False


async def check_all(
    root: Path, good: LogWriter, chosen: Sequence[Damage], truth: list[dict[str, Any]]
) -> int:
    """Serve as many logs as there are damages, each with one, and a good one; return how many ended."""
    with ExitStack() as stack:
        for name, damage in zip(NAMES, chosen, strict=False):
            stack.enter_context(damage.done_to(root / name))
        async with Engine(root, SETTINGS) as engine:
            neighbour = await engine.subscribe(ANONYMOUS, "good", codec=JSON)
            ended = await asyncio.gather(
                *(
                    check(engine, root / name, damage, truth)
                    for name, damage in zip(NAMES, chosen, strict=False)
                )
            )
            good.append([upsert("1")])
            good.commit(publish=True)
            assert [each["index"] for each in await receive(neighbour, 2)] == [0, 1]
            captures, error = await read(engine, "good")
            assert error is None
            assert captures[-1]["version"] == good.state.last_version
            return sum(ended)


@pytest.mark.parametrize("form", ["carried", "files"])
async def test_contract_33_no_damage_gives_a_wrong_capture_or_stops_the_server(
    log_root: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small objects are cut at every length and all else at many, and one bit is flipped in every few bytes."""
    for name in NAMES:
        small_log(log_root, name, form)
    with LogWriter.open(log_root, "good") as good:
        good.append([upsert("0")])
        good.commit(publish=True)
        async with Engine(log_root, SETTINGS) as engine:
            truth, error = await read(engine, NAMES[0])
        assert (len(truth), error) == (11, None)
        chosen = damages(
            log_root / NAMES[0],
            seed=20_261,
            cut_every=37,
            cut_small_every=1 if form == "files" else 7,  # they are the same in both
            flip_every=9,
        )
        ended = 0
        for first in range(0, len(chosen), CATALOGS):
            ended += await check_all(log_root, good, chosen[first : first + CATALOGS], truth)
        assert ended >= 0.8 * len(chosen)
        async with Engine(log_root, SETTINGS) as engine:
            for name in NAMES:
                assert await read(engine, name) == (truth, None)
