"""What a process sets of itself, tried in real processes where it can be set only once."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server import process
from tailrace_server.process import EXPERIMENTS
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_COUNT_ARENAS = """
import ctypes, os, threading
from tailrace_server.process import share_one_arena

share_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(8)

def allocate():
    together.wait()
    libc.malloc(100_000)  # without Python's lock
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fdopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, file)
libc.fflush(file)
"""


def _arenas(**environment: str) -> int:
    """Return how many arenas a process has after eight threads have allocated at the same time."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_ARENAS],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        timeout=30,
        check=True,
    )
    return done.stdout.count(b"<heap ")


def test_threads_share_one_arena() -> None:
    assert _arenas() == 1


def test_what_the_environment_sets_stands() -> None:
    assert _arenas(MALLOC_ARENA_MAX="3") == 3


_MAP_A_BLOCK = """
import ctypes
from tailrace_server.process import LARGE_BLOCK_BYTES, expect_large_blocks

def is_mapped_apart(size):
    at = libc.malloc(size)
    found = int.from_bytes(ctypes.string_at(at - 8, 8), "little") & 2  # IS_MMAPPED of a chunk's head
    libc.free(at)
    return bool(found)

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
expect_large_blocks()
print(is_mapped_apart(LARGE_BLOCK_BYTES // 2), is_mapped_apart(2 * LARGE_BLOCK_BYTES))
"""


def test_blocks_of_a_batch_come_from_the_heap_and_larger_ones_do_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MAP_A_BLOCK],
        stdout=subprocess.PIPE,
        timeout=30,
        check=True,
    )
    assert done.stdout.split() == [b"False", b"True"]


_USE_GRPC = "import grpc; grpc.insecure_channel('127.0.0.1:1').close()"
_CHOOSE = "from tailrace_server.process import poll_in_calling_thread; poll_in_calling_thread(); "
_SEEN_BY_GRPC = f"""
import os, sys

class Seen:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("{EXPERIMENTS}"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Seen())
sys.argv = ["tailrace", "--help"]
from tailrace_server.cli import main
main()
"""


def ran(code: str, experiments: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run code with the variable set, or without it."""
    environment = {name: value for name, value in os.environ.items() if name != EXPERIMENTS}
    if experiments is not None:
        environment[EXPERIMENTS] = experiments
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )


def test_grpc_knows_what_it_is_told() -> None:
    assert "Unknown experiment" in ran(_USE_GRPC, "-never_heard_of").stderr
    assert ran(_CHOOSE + _USE_GRPC).stderr == ""


def test_every_command_says_it_before_grpc_is_imported() -> None:
    assert ran(_SEEN_BY_GRPC).stdout.split() == ["-event_engine_listener"]


def test_what_the_environment_says_stands() -> None:
    assert ran(_SEEN_BY_GRPC, "event_engine_fork").stdout.split() == ["event_engine_fork"]


_RAISE_LIMIT = """
import resource
from tailrace_server.process import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 96))
raise_descriptor_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
raise_descriptor_limit()
"""


def test_a_process_takes_as_many_as_it_may() -> None:
    command = [sys.executable, "-c", _RAISE_LIMIT]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout == "(96, 96)\n"
    )


def deepest_image(log: LogWriter) -> bytes:
    """Write the row whose value nests as deep as this process takes one, and return its image."""
    for depth in range(1_000, 0, -1):
        image = b'{"v":%b1%b}' % (b"[" * depth, b"]" * depth)
        with suppress(InvalidRequest):
            log.append([Mutation("product", "1", after=image)])
            return image
    raise AssertionError("no depth is taken")


@pytest.mark.slow
def test_a_command_reads_each_value_that_a_writer_takes_however_deep_it_nests(
    log_root: Path,
) -> None:
    """Reading has more functions within each other than writing."""
    with LogWriter.open(log_root, "shop") as log:
        image = deepest_image(log)
    for command in (
        ("sql", "--log", log_root, "shop", "SELECT v FROM product", "--json"),
        ("sql", "--log", log_root, "shop", "SELECT after.v FROM CHANGES('product')", "--json"),
    ):
        run = "from tailrace_server.cli import main; main()"
        found = subprocess.run(
            [sys.executable, "-c", run, *map(str, command)], capture_output=True, check=False
        )
        assert found.returncode == 0, found.stderr
        assert image[5:-1] in found.stdout


_POLICY_OF_A_NEW_THREAD = """
import os, sys, threading
from tailrace_server.process import schedule

os.sched_setscheduler(0, int(sys.argv[2]), os.sched_param(0))
schedule(sys.argv[1])
thread = threading.Thread(target=lambda: print(os.sched_getscheduler(0)))
thread.start()
thread.join()
"""


def _policy(scheduling: str, started_with: int = os.SCHED_OTHER) -> int:
    """Return the policy of a thread that a process starts after it has set its own."""
    done = subprocess.run(
        [sys.executable, "-c", _POLICY_OF_A_NEW_THREAD, scheduling, str(started_with)],
        stdout=subprocess.PIPE,
        timeout=30,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.parametrize(
    ("scheduling", "policy"), [("batch", os.SCHED_BATCH), ("normal", os.SCHED_OTHER)]
)
def test_threads_inherit_the_policy(scheduling: str, policy: int) -> None:
    assert _policy(scheduling) == policy


def test_what_the_process_was_started_with_stands() -> None:
    assert _policy("batch", started_with=os.SCHED_IDLE) == os.SCHED_IDLE


class Cycle:
    """Refers to itself: reference counts alone never free it."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def settled() -> Iterator[None]:
    before = gc.get_threshold()
    process.freeze_collector()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("settled")
def test_half_a_million_objects_more_are_never_walked_as_a_whole() -> None:
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            generations.append(info["generation"])

    gc.callbacks.append(note)
    try:
        kept = [[number] for number in range(500_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 500_000
    assert 2 not in generations
    assert 1 in generations


@pytest.mark.usefixtures("settled")
def test_dropped_cycles_are_found_after_a_bounded_number_of_new_objects() -> None:
    dropped = weakref.ref(Cycle())
    kept: list[list[int]] = []
    while dropped() is not None:
        kept.append([])
        assert len(kept) <= 2 * process.COLLECTOR_THRESHOLDS[0]
