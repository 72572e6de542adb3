"""Contract 33 over a real server: damaged logs beside a good one, all of them read over gRPC."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

import tailrace
from tailrace_server.wal.log_writer import LogWriter
from tests.process.commands import ServerProcess
from tests.server.wal.logs import upsert
from tests.support.damage import CATALOGS, damages, small_log
from tests.support.inprocess import has_passed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.damage import Damage

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0
"""How long a test waits for what must happen; a passing one waits for none of it."""


async def read(
    client: tailrace.Client, catalog: str
) -> tuple[list[tailrace.Capture], tailrace.TailraceError | None]:
    """Return what a subscriber from the oldest record is given until it waits or ends, and its error."""
    captures: list[tailrace.Capture] = []
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            client.subscribe(catalog, since=0, content=tailrace.Content.BODY) as subscription,
        ):
            async for message in subscription.messages():
                if isinstance(message, tuple):
                    captures += [each._replace(catalog_uuid=UUID(int=0)) for each in message]
                elif has_passed(message.cursor, getattr(message, "published", 0)):
                    break
    except tailrace.TailraceError as error:
        return captures, error
    return captures, None


async def check(
    client: tailrace.Client, folder: Path, damage: Damage, truth: list[tailrace.Capture]
) -> bool:
    """Hold what a damaged log gives against the truth; return whether it ended with an error."""
    captures, error = await read(client, folder.name)
    assert captures == truth[: len(captures)], damage
    if error is None:
        assert captures == truth, damage
        assert damage.may_go_unnoticed, damage
        return False
    assert error.code == tailrace.LogCorrupted.code, (damage, error)
    damage.check_named(error, folder)
    return True


@pytest.mark.parametrize("form", ["carried", "files"])
async def test_contract_33_a_server_of_damaged_logs_gives_no_wrong_capture_and_goes_on(
    log_root: Path, form: str
) -> None:
    """One process serves them all, each with one file cut short or one bit flipped, and a good one."""
    folders = [small_log(log_root, f"log-{number:02}", form) for number in range(CATALOGS)]
    whole = small_log(log_root, "whole", form)
    chosen = random.Random(20_262).sample(
        damages(whole, seed=20_262, cut_every=7, cut_small_every=1, flip_every=2), CATALOGS
    )
    server = ServerProcess(log_root, ("--heartbeat-interval-s", "20ms"))
    with ExitStack() as stack, LogWriter.open(log_root, "good") as good:
        for folder, damage in zip(folders, chosen, strict=True):
            stack.enter_context(damage.done_to(folder))
        async with (
            server.up() as command,
            tailrace.connect(server.grpc, retry=tailrace.Retry(attempts_max=0)) as client,
            client.subscribe("good") as neighbour,
        ):
            truth, error = await read(client, "whole")
            assert (len(truth), error) == (11, None)
            ended = await asyncio.gather(
                *(
                    check(client, folder, damage, truth)
                    for folder, damage in zip(folders, chosen, strict=True)
                )
            )
            assert sum(ended) >= 0.7 * CATALOGS
            good.append([upsert("1")])
            good.commit(publish=True)
            async with asyncio.timeout(PATIENCE_S):
                assert (await anext(neighbour)).version == 1
            assert await read(client, "whole") == (truth, None)
            assert command.process.returncode is None
