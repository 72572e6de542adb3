"""``tailrace export delta`` as a process: killed at each place, and gated while a subscriber reads."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tailrace import connect
from tailrace_server.api.grpc import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.wal.catalog import open_catalog
from tests.process.commands import INTERRUPT, KILL, Command, outcome
from tests.server.export.delta.lakes import (
    TRUNCATE,
    export,
    gone,
    item,
    lake_rows,
    open_shop,
    put,
    state_rows,
)
from tests.server.wal.logs import finish, python
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tailrace_server.wal.files.documents import GateDocument
    from tailrace_server.wal.record.mutation import Mutation

CODE = """
import sys
from tailrace_server.cli.application import run
sys.exit(run(sys.argv[1:]))
"""


def command(root: Path, lake: Path, *more: object) -> list[str]:
    what = ["--log", root, "--catalog", "shop", "--to", lake]
    return ["export", "delta", *map(str, (*what, *more))]


def shown(root: Path, lake: Path) -> int:
    """Return the version that the table says it shows."""
    app = f"tailrace/{open_catalog(root, 'shop').uuid}/1"
    version = DeltaTable(str(lake / "item")).transaction_version(app)
    assert version is not None
    return version


@pytest.mark.slow
def test_an_export_killed_anywhere_neither_doubles_nor_loses(
    log_root: Path, tmp_path: Path
) -> None:
    """Behind the first commit, before and behind a merge; the next run finds what each has left."""
    lake = tmp_path / "lake"
    kills: list[tuple[str, list[Mutation]]] = [
        ("delta.after_commit", [item(1, 3), gone(2)]),
        ("delta.before_commit", [item(4, 5)]),
        ("delta.after_commit", [TRUNCATE, item(6, 6)]),
    ]
    with open_shop(log_root) as writer:
        put(writer, item(1, 1), item(2, 2))
        for place, changes in kills:
            killed = python(CODE, *command(log_root, lake), failing=f"{place}=kill")
            assert finish(killed)[0] == -9
            if place == "delta.after_commit":
                assert shown(log_root, lake) == writer.state.last_version
            version = shown(log_root, lake)
            assert lake_rows(lake / "item") == state_rows(log_root, version=version)
            put(writer, *changes)
    export(log_root, lake)
    assert lake_rows(lake / "item") == state_rows(log_root)


@pytest.mark.slow
async def test_contract_07_a_subscriber_finds_what_it_is_told_over_kills_of_the_gate(
    log_root: Path, tmp_path: Path
) -> None:
    """Nothing is published while the gate is away, and everything once it is back."""
    lake = tmp_path / "lake"
    gated = command(log_root, lake, "--follow", "--gate")
    with open_shop(log_root) as writer:
        put(writer, item(0, 0))
        async with (
            Engine(log_root) as engine,
            _serving(engine) as target,
            connect(target) as client,
            client.subscribe("shop", since=0) as captures,
        ):
            reading = aiter(captures)

            async def read_to(version: int) -> None:
                """Take captures to the end of a version; each is in the table when it comes."""
                while (position := (await anext(reading)).position).version < version:
                    assert position.version == 1 or shown(log_root, lake) >= position.version
                assert shown(log_root, lake) >= version

            # 1. While versions come, and the gate is killed behind some of them.
            async with Command(*gated) as exporting:
                await until(lambda: _gate(log_root) is not None)
                for number in range(12):
                    put(writer, item(number % 5, number))
                await read_to(13)
                exporting.send(KILL)
                await exporting.end()
            # 2. Without it nothing is told to anybody.
            put(writer, item(7, 7))
            put(writer, gone(1))
            assert published(log_root) == 13
            # 3. Killed between the tables and the publication, it publishes the next time.
            killed = python(CODE, *gated, failing="publication.before_link=kill")
            assert finish(killed)[0] == -KILL
            assert (shown(log_root, lake), published(log_root)) == (15, 13)
            async with Command(*gated) as exporting:
                await read_to(15)
                assert lake_rows(lake / "item") == state_rows(log_root)
                exporting.send(INTERRUPT)
                assert await exporting.end() == 128 + INTERRUPT
        # 4. Taken away, it is waited for no longer.
        put(writer, item(8, 8))
        status, _, notes = await outcome(
            "catalog", "gate", "shop", "--log", str(log_root), "--remove"
        )
        assert (status, published(log_root)) == (0, 16)
        assert f"removed the gate delta at {lake}; 1 version published" in notes
        put(writer, item(9, 9))
        assert published(log_root) == 17


@asynccontextmanager
async def _serving(engine: Engine) -> AsyncIterator[str]:
    server = GrpcServer(engine)
    port = await server.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(1.0)


def _gate(root: Path) -> GateDocument | None:
    return open_catalog(root, "shop").state.gate


def published(root: Path) -> int:
    return open_catalog(root, "shop").view.published
