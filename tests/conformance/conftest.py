"""Fixtures of the conformance suite: every test runs once for each way into the engine."""

from __future__ import annotations

import inspect
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

import pytest

from tailrace_server.resources.settings import EngineSettings
from tests.conformance.drivers import DRIVERS, serving
from tests.conformance.entrances import OPEN, Entrance, guarded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conformance.ways import Driver
    from tests.support.inprocess import ModelWriter

HEARTBEAT_S = 0.05
OVER_TLS = " over TLS"
SECURE = [name + OVER_TLS for name in DRIVERS if name not in ("in-process", "stub")]
"""Ways in by TLS and a token, one for each transport."""
ON_ALL = ("test_contract_26_a_stop", "test_contract_43", "test_a_subscription_names_its_peer")
"""Tests that take every transport through TLS."""
EVERYTHING = os.environ.get("OVER_TLS") == "all"


class Serve(Protocol):
    """Starts serving the test's log root."""

    async def __call__(self, **settings: float) -> Driver: ...


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a transport has no words for, as its driver says, and most repetitions over TLS.

    TLS and tokens stand below a transport and before the engine: each test takes one transport through them.
    What depends on how a connection ends or is told apart takes all of them, and with ``OVER_TLS=all`` every
    test does.
    """
    left_out = {
        item for item in items if isinstance(item, pytest.Function) and not _is_to_run(item)
    }
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def _is_to_run(item: pytest.Function) -> bool:
    way_in = getattr(item, "callspec", None) and item.callspec.params.get("way_in")
    if way_in is None:
        return True
    source = inspect.getsource(item.function)
    able = [name for name in (*DRIVERS, *SECURE) if not _cannot(name, source)]
    if way_in in SECURE and "max_connection_age_s=" in source:
        return False  # half a second, in which a busy machine may not have shaken hands
    if way_in not in SECURE or item.originalname.startswith(ON_ALL) or EVERYTHING:
        return way_in in able
    secure = [name for name in able if name in SECURE]
    return way_in == secure[crc32(item.nodeid.replace(way_in, "").encode()) % len(secure)]


def _cannot(way_in: str, source: str) -> bool:
    """Return whether a test names what a driver cannot express, as ``demand=3``."""
    cannot = DRIVERS[way_in.removesuffix(OVER_TLS)].cannot
    return any(f"{name}=" in source for name in cannot)


@pytest.fixture(scope="session")
def guarded_entrance(tmp_path_factory: pytest.TempPathFactory) -> Entrance:
    """Return the entrance by TLS and a token."""
    return guarded(tmp_path_factory.mktemp("doors"))


@pytest.fixture(params=[*DRIVERS, *SECURE])
def way_in(request: pytest.FixtureRequest) -> str:
    """Return the name of a driver, and whether it goes by TLS and a token."""
    name: str = request.param
    return name


@pytest.fixture
async def serve(
    log_root: Path, way_in: str, writer: ModelWriter, request: pytest.FixtureRequest
) -> AsyncIterator[Serve]:
    """Return a function that serves the log root with given engine settings, until the test ends."""
    name, secure = way_in.removesuffix(OVER_TLS), way_in in SECURE
    entrance = request.getfixturevalue("guarded_entrance") if secure else OPEN
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Driver:
            engine_settings = EngineSettings(heartbeat_interval_s=HEARTBEAT_S, **settings)
            return await stack.enter_async_context(
                serving(log_root, name, engine_settings, entrance)
            )

        yield start
