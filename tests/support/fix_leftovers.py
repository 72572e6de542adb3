"""Fail a test that leaves a task, a thread or an open file behind.

The checks are set up first, so they run after every other fixture of the test has been torn down:
what a fixture owns and ends is not a leftover. Something that is just ending gets `GRACE_S` for it.
Libraries that keep threads for the life of the process are named in `LASTING_THREADS`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

GRACE_S = 2.0
"""How long something may take to end that was told to. A passing test waits for none of it."""

LASTING_THREADS = ("grpc", "py4j", "pyspark")
"""Packages whose threads outlive a test by design: one poller, one gateway a process."""


@pytest.fixture(autouse=True)
def no_leftover_threads_or_files(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare threads and open files after the test, its event loop closed, with those before."""
    threads = set(threading.enumerate())
    yield
    left = _leftover_threads(threads)
    if left:
        pytest.fail(f"threads left behind: {', '.join(thread.name for thread in left)}")
    files = _open_files_below(request)
    deadline = time.monotonic() + GRACE_S
    while files and time.monotonic() < deadline:
        time.sleep(0.01)  # a library's own threads may be closing them just now
        files = _open_files_below(request)
    if files:
        pytest.fail(f"files left open: {', '.join(files)}")


@pytest.fixture(autouse=True)
def no_leftover_tasks_of_coroutines(
    request: pytest.FixtureRequest, no_leftover_threads_or_files: None
) -> None:
    """See to the tasks of tests that are coroutines; the others have no event loop to look at."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("no_leftover_tasks")


@pytest.fixture
async def no_leftover_tasks() -> AsyncIterator[None]:
    """Fail if a task of this test still runs when the test and its fixtures are done."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=GRACE_S)
    if left:
        pytest.fail(f"tasks left behind: {', '.join(sorted(map(repr, left)))}")


def _leftover_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    deadline = time.monotonic() + GRACE_S
    left = []
    for thread in threading.enumerate():
        if thread in before or isinstance(thread, threading._DummyThread) or _lasts(thread):
            continue
        if thread.ident is None:
            continue  # Ctrl-C came before its start: the interpreter lists it for ever, and it never runs
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            left.append(thread)
    return left


def _lasts(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return any(module.partition(".")[0] in LASTING_THREADS for module in modules)


def _open_files_below(request: pytest.FixtureRequest) -> list[str]:
    """List what this process still has open below the test's temporary folder."""
    folder = request.node.funcargs.get("tmp_path")
    if folder is None:  # it has none, or it failed before it got one
        return []
    below = f"{folder}{os.sep}"
    files = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith(below):
            files.append(target.removeprefix(below))
    return sorted(files)
