"""The batch cache: heads, bodies, scans and encoded frames, once each, under one memory budget.

Everything that is read from the log or made of it passes through here, so that ten subscribers at near
positions cost about one reading. The first caller has a value loaded in a reader thread, and the others
wait for it (*single flight*).

Frames have a bound of their own, and so have heads, bodies and scans together. Both are far below the
budget: reused memory is faster than fresh pages, and the page cache holds what was read once. The fewer
readers there are, the fewer frames are kept. With only one, frames that it has had are dropped, as
no other subscription shares them. When room is short all the same, frames are evicted first.

The budget is kept by measurement. The cache holds half of it at most. Whenever the whole process is near
the budget, the cache evicts a quarter of what it holds and lowers its limit to the rest. Then it hands freed
pages back to the system. Once there is room again, the limit rises step by step.

A scan of a table that pauses between two parts is retained too, as a scan that begins in the middle costs a
pass over the log behind the base. Readers that begin together take turns with one scan. There are a few scans
at most, and idle ones are dropped: their readers begin a new scan, and lose only time.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections import OrderedDict, deque
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast
from weakref import WeakSet

import pyarrow as pa

from tailrace_server.resources.memory import CACHE_SHARE
from tailrace_server.resources.statistics import CacheStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator
    from concurrent.futures import Executor, Future

    from tailrace_server.wal.base.state_rows import StateRows

_SCANS_MAX: Final = 4
"""Scans that are kept; each may hold the places of a million rows."""
_IDLE_S: Final = 10.0


class _Follower(Protocol):
    def let_go_of_block(self, now: float) -> None: ...


class OpenScans:
    """The scans of one engine. Any thread may take and keep them."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._scans: OrderedDict[Hashable, tuple[Iterator[StateRows], float]] = OrderedDict()
        """By what they scan and their place, the least recently moved first."""
        self.followers: WeakSet[_Follower] = WeakSet()
        """Subscriptions that are being sent a table, and may hold a block of it."""

    def __len__(self) -> int:
        """Return the number of scans that are kept."""
        return len(self._scans)

    def take(self, place: Hashable) -> Iterator[StateRows] | None:
        """Return the scan that pauses at a place; the caller owns it from now on."""
        with self._lock:
            found = self._scans.pop(place, None)
        return None if found is None else found[0]

    def keep(self, place: Hashable, scan: Iterator[StateRows]) -> None:
        """Keep a scan that has been moved to a place."""
        with self._lock:
            self._scans[place] = scan, time.monotonic()
            while len(self._scans) > _SCANS_MAX:
                self._scans.popitem(last=False)

    def relieve(self, now: float) -> None:
        """Drop the scans that were idle for a while, and release the blocks of idle followers.

        ``now`` is the event loop's time, seconds.
        """
        self._drop_idle()
        for each in tuple(self.followers):
            each.let_go_of_block(now)

    def _drop_idle(self) -> None:
        before = time.monotonic() - _IDLE_S
        with self._lock:
            while self._scans and next(iter(self._scans.values()))[1] < before:
                self._scans.popitem(last=False)


_MEASURE_EVERY_S: Final = 0.1
_RESERVE: Final = 1 / 16
"""Part of the budget that is kept free, for what may come until the next measurement."""
_FRAME_BYTES_EACH: Final = 2 << 20
"""Bytes of frames that are kept for each open reader."""
_FRAME_BLOCKS_EACH: Final = 2
"""Blocks of frames that are kept for each open reader, even if they have more bytes than that."""
_LIMIT_STEP: Final = 1 / 64
"""Part of the budget by which the limit rises where there is room again; it never falls below one step."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Sized(Protocol):
    """A value whose size the cache can charge."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""


class CacheKind(IntEnum):
    """The kind of a value. Lower kinds are evicted first."""

    FRAMES = 0
    SCAN = 1
    BODY = 2
    HEAD = 3


_READ_KINDS: Final = (CacheKind.BODY, CacheKind.HEAD, CacheKind.SCAN)
"""The kinds under the bound of reads, in the order of their eviction: a scan replaces many heads.

Scans have half of that bound at most, or those of many criteria would push out heads that are needed next.
"""

S = TypeVar("S", bound=Sized)


class BatchCache:
    """A bounded cache with single-flight loading, for the event loop; any thread may call ``peek``."""

    def __init__(
        self,
        memory_bytes: int,
        frames_bytes: int,
        reads_bytes: int,
        executor: Executor,
        *,
        loads_max: int = 4,
        readers: Callable[[], int] | None = None,
        measure: Callable[[], int] | None = None,
    ) -> None:
        """Make an empty cache.

        Args:
            memory_bytes: Budget of the process.
            frames_bytes: Bound of all frames.
            reads_bytes: Bound of heads, bodies and scans together.
            executor: The reader threads.
            loads_max: Bound of the loads that run or whose values wait for the event loop. A batch is
                megabytes, and while the loop is busy many would pile up.
            readers: Returns the number of open subscriptions and reads of history; None: frames are kept up
                to their bound.
            measure: Returns the anonymous memory of the process in bytes.
        """
        self._bytes_max = self._bytes_most = memory_bytes // CACHE_SHARE
        """Limit of what the cache holds."""
        self._relieved_from = memory_bytes * (1 - _RESERVE)
        """Bytes of the process from which on the cache evicts a part."""
        self._limit_step = int(memory_bytes * _LIMIT_STEP)
        self._relieved_to = 0
        """Bytes of the process after the last relief; the next one waits until it has grown by a step."""
        self._frames_bytes_max = frames_bytes
        self._reads_bytes_max = reads_bytes
        self._bytes_by_kind = dict.fromkeys(CacheKind, 0)
        self._executor = executor
        self._readers = readers
        self._measure = measure or anonymous_bytes
        self._measured_at = float("-inf")
        self._process_bytes = 0
        self._kinds: dict[CacheKind, OrderedDict[Hashable, Sized]] = {
            kind: OrderedDict() for kind in CacheKind
        }
        """Values by key, the least recently used first."""
        self._waiters: dict[tuple[CacheKind, Hashable], list[asyncio.Future[Any]]] = {}
        """Futures of the callers that wait for a value, by the value: one that is queued or being loaded."""
        self._to_load: deque[tuple[CacheKind, Hashable, Callable[[], Sized]]] = deque()
        self._loads_max = loads_max
        self._loads_running = 0
        self.bytes = 0
        """Bytes of all values."""
        self._hits = self._misses = self._evicted = 0
        self.scans = OpenScans()
        """Scans of tables between two parts. They hold no values, and are bounded by their number."""

    def peek(self, kind: CacheKind, key: Hashable) -> Sized | None:
        """Return a value if it is held, without marking it as used. Any thread may call it."""
        return self._kinds[kind].get(key)

    def get_nowait(self, kind: CacheKind, key: Hashable) -> Sized | None:
        """Return a value if it is held and mark it as used."""
        values = self._kinds[kind]
        value = values.get(key)
        if value is not None:
            values.move_to_end(key)
            self._hits += 1
        return value

    async def get(self, kind: CacheKind, key: Hashable, load: Callable[[], S]) -> S:
        """Return a value, loading it in a reader thread if it is neither held nor being loaded.

        Cancelling one waiter does not stop the load for the others. All of them get the exception that ``load``
        raises, and nothing is cached. Raises RuntimeError if no reader thread can be started.
        """
        value = self.get_nowait(kind, key)
        if value is not None:
            return cast("S", value)
        waiter: asyncio.Future[S] = asyncio.get_running_loop().create_future()
        self._load_once(kind, key, load, waiter)
        return await waiter

    def prefetch(self, kind: CacheKind, key: Hashable, load: Callable[[], Sized]) -> None:
        """Begin to load a value that will be needed soon; a failure shows when it is loaded again."""
        if key not in self._kinds[kind]:
            self._load_once(kind, key, load, None)

    def put(self, kind: CacheKind, key: Hashable, value: Sized) -> None:
        """Keep a value that was loaded, here or as a by-product."""
        values = self._kinds[kind]
        if key not in values:
            values[key] = value
            self.bytes += value.nbytes
            self._bytes_by_kind[kind] += value.nbytes
            self._evict_excess()

    def drop_unless_shared(self, kind: CacheKind, key: Hashable) -> None:
        """Drop a value that a subscription has had, unless others are open that may need it."""
        if self._readers is not None and self._readers() <= 1:
            value = self._kinds[kind].pop(key, None)
            if value is not None:
                self._uncharge(kind, value)

    def forget(self, opening: Hashable) -> None:
        """Drop everything that was made of one opening of a log: the first member of each key names it.

        A load that is still under way adds its value later. That value is not requested again, and is evicted
        as the least recently used one.
        """
        for kind, values in self._kinds.items():
            for key in [key for key in values if isinstance(key, tuple) and key[0] is opening]:
                self._uncharge(kind, values.pop(key))

    def statistics(self) -> CacheStatistics:
        """Return the current figures."""
        return CacheStatistics(
            bytes=self.bytes,
            values=sum(len(values) for values in self._kinds.values()),
            hits=self._hits,
            misses=self._misses,
            evicted=self._evicted,
            process_bytes=self._process_bytes,
        )

    def _load_once(
        self,
        kind: CacheKind,
        key: Hashable,
        load: Callable[[], Sized],
        waiter: asyncio.Future[Any] | None,
    ) -> None:
        waiters = self._waiters.get((kind, key))
        is_new = waiters is None
        if waiters is None:
            waiters = self._waiters[kind, key] = []
        if waiter is not None:
            waiters.append(waiter)
        if is_new:
            self._misses += 1
            self._to_load.append((kind, key, load))
            self._begin_loads()

    def _begin_loads(self) -> None:
        """Hand queued loads to the reader threads, up to ``loads_max`` at a time."""
        loop = asyncio.get_running_loop()
        while self._to_load and self._loads_running < self._loads_max:
            kind, key, load = self._to_load.popleft()
            try:
                job = self._executor.submit(load)
            except RuntimeError as error:  # the system has no thread left
                self._resolve_waiters(kind, key, None, error)
                continue
            self._loads_running += 1
            loaded = partial(self._loaded, kind, key)
            job.add_done_callback(partial(loop.call_soon_threadsafe, loaded))

    def _loaded(self, kind: CacheKind, key: Hashable, job: Future[Sized]) -> None:
        self._loads_running -= 1
        self._begin_loads()
        error = job.exception() if not job.cancelled() else asyncio.CancelledError()
        value = job.result() if error is None else None
        self._resolve_waiters(kind, key, value, error)
        if value is not None:
            self.put(kind, key, value)

    def _resolve_waiters(
        self, kind: CacheKind, key: Hashable, value: Sized | None, error: BaseException | None
    ) -> None:
        for waiter in self._waiters.pop((kind, key)):
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(value)
            else:
                waiter.set_exception(error)

    def _evict_excess(self) -> None:
        # 1. The bounds of kinds, each with its own order of eviction. They come before the limit of all,
        # which would take frames for what heads have too much.
        while self._frames_are_too_many():
            self._evict_one([CacheKind.FRAMES])
        while self._bytes_by_kind[CacheKind.SCAN] > self._reads_bytes_max // 2:
            self._evict_one([CacheKind.SCAN])
        while sum(self._bytes_by_kind[kind] for kind in _READ_KINDS) > self._reads_bytes_max:
            self._evict_one(_READ_KINDS)
        # 2. The limit of the whole cache.
        self._evict_down_to(self._bytes_max)
        # 3. The budget of the process, which holds more than this cache. Measuring reads a file, so it is
        # done ten times a second. Right after a relief the figure is still high, as the allocators keep
        # some pages: without the step, every new value would cost another quarter of the cache.
        now = asyncio.get_running_loop().time()
        if now - self._measured_at >= _MEASURE_EVERY_S:
            self._measured_at = now
            found = self.measured()
            if found > self._relieved_from and found - self._relieved_to >= self._limit_step:
                self.relieve()

    def _frames_are_too_many(self) -> bool:
        """Return whether frames must be evicted; the newest block stays, however large: it is being sent."""
        frames_bytes = self._bytes_by_kind[CacheKind.FRAMES]
        blocks = len(self._kinds[CacheKind.FRAMES])
        if blocks <= 1:
            return False
        if frames_bytes > self._frames_bytes_max:
            return True
        if self._readers is None:
            return False
        readers = max(1, self._readers())
        return frames_bytes > readers * _FRAME_BYTES_EACH and blocks > readers * _FRAME_BLOCKS_EACH

    def measured(self) -> int:
        """Measure the anonymous memory of the process and return it.

        If that fails, as without a free file descriptor, the last figure is used.
        """
        with suppress(OSError):
            self._process_bytes = self._measure()
        return self._process_bytes

    def relieve(self) -> int:
        """Measure the process, evict a quarter if it is near the budget, and return its bytes then."""
        # The limit falls with what is evicted. If it stayed, the cache would fill up again within a moment
        # and the process would swing between both.
        if self.measured() > self._relieved_from:
            self._bytes_max = max(self.bytes * 3 // 4, self._limit_step)
            self._evict_down_to(self._bytes_max)
            return_freed_pages()
            self._relieved_to = self.measured()
        else:
            self._bytes_max = min(self._bytes_max + self._limit_step, self._bytes_most)
        return self._process_bytes

    def _evict_down_to(self, bytes_max: int) -> None:
        while self.bytes > bytes_max and self._evict_one(CacheKind):
            pass

    def _evict_one(self, kinds: Iterable[CacheKind]) -> bool:
        """Evict the least recently used value of the first of these kinds that has any."""
        for kind in kinds:
            values = self._kinds[kind]
            if values:
                _, value = values.popitem(last=False)
                self._uncharge(kind, value)
                self._evicted += 1
                return True
        return False

    def _uncharge(self, kind: CacheKind, value: Sized) -> None:
        self.bytes -= value.nbytes
        self._bytes_by_kind[kind] -= value.nbytes


def anonymous_bytes() -> int:
    """Return the anonymous resident memory of this process in bytes (resident minus file-backed)."""
    with open("/proc/self/statm", "rb") as statm:
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * _PAGE


def return_freed_pages() -> None:
    """Return pages that the allocators keep for later to the system."""
    pa.default_memory_pool().release_unused()
    _libc_trim()


def _libc_trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
