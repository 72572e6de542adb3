"""Fixtures of the conformance suite: every test runs once for each way into the engine."""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tailrace_server.capture.settings import EngineSettings
from tests.conformance.drivers import DRIVERS, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conformance.ways import Driver
    from tests.support.inprocess import ModelWriter

HEARTBEAT_S = 0.05


class Serve(Protocol):
    """Starts serving the test's log root."""

    async def __call__(self, **settings: float) -> Driver: ...


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a transport has no words for, as its driver says."""
    left_out = [item for item in items if isinstance(item, pytest.Function) and _cannot(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _cannot(item: pytest.Function) -> bool:
    """Return whether a test of this suite names what its driver cannot express, as ``demand=3``."""
    way_in = getattr(item, "callspec", None) and item.callspec.params.get("way_in")
    if way_in not in DRIVERS:
        return False
    source = inspect.getsource(item.function)
    return any(f"{name}=" in source for name in DRIVERS[way_in].cannot)


@pytest.fixture(params=DRIVERS)
def way_in(request: pytest.FixtureRequest) -> str:
    """Return the name of a driver."""
    name: str = request.param
    return name


@pytest.fixture
async def serve(log_root: Path, way_in: str, writer: ModelWriter) -> AsyncIterator[Serve]:
    """Return a function that serves the log root with given engine settings, until the test ends."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Driver:
            engine_settings = EngineSettings(heartbeat_interval_s=HEARTBEAT_S, **settings)
            return await stack.enter_async_context(serving(log_root, way_in, engine_settings))

        yield start
