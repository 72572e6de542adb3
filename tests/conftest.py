"""What holds for every test: fixtures of tests/support, and contract numbers taken from names.

`pytest -m contract` runs the proofs of docs/guarantees.md alone: a test whose name reads
``test_contract_13_…`` is marked ``contract(13)``; one that proves several lines names them all,
``test_contract_05_14_…``.

A test that is marked ``nightly`` is slow, too. The reason names the tests that `make test` or
`make test-slow` runs and that cover the same.

What a test or a process of it puts among the system's temporary files, also one that is killed, goes
with the run.

Generated tests have no time limit: how long an example takes says more about the machine than about us.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tailrace_server.machine_code.loader import loops_made
from tailrace_server.process import quiet_core
from tests.support.contract import contract_numbers
from tests.support.loop import WatchedLoop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

settings.register_profile("tailrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tailrace")

# Its handlers for a fork kill one child in seven where streams are busy: PySpark forks to start Java.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Servers of this process come and go, which gRPC's older listener does not survive (docs/adr/0033); processes
# of tests have it, as every command does.
quiet_core()

pytest_plugins = ["tests.support.fix_leftovers", "tests.support.fix_log"]


def pytest_sessionstart() -> None:
    """Have the compiled loops, so that no test begins to compile them in the background."""
    loops_made()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the proofs of contract lines by their names, and nightly tests as slow."""
    for number in contract_numbers(item.name):
        item.add_marker(pytest.mark.contract(number))
    if item.get_closest_marker("nightly") is not None:
        item.add_marker(pytest.mark.slow)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on a loop that finds what is called from other threads."""
    return {"watched": WatchedLoop}


@pytest.fixture(scope="session", autouse=True)
def temporary_files() -> Iterator[None]:
    """Give the run a folder for temporary files, and remove it with all that was left there."""
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """Let tests not wait until their files are on the disk: nobody pulls the plug. What they start does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
