"""The batch cache: heads, bodies, scans and encoded frames, each loaded once, under one memory budget.

All values that are read from the log, or made from it, are cached here. So ten subscribers at nearby positions
cost about one read. For the first caller, a reader thread loads the value; further callers wait for that load
(*single flight*).

Frames have a bound of their own; heads, bodies and scans have another one together. Both bounds are far below
the budget, because reused memory is faster than new pages, and the system's page cache has what was read once.
The fewer readers there are, the fewer frames are cached. With a single reader, its frames are dropped after
use, as no other subscription shares them. If memory is still short, frames are evicted first.

The budget is enforced by measuring the process. The cache holds at most half of the budget. If the whole
process comes near the budget, the cache evicts a quarter of its bytes, and the rest becomes its new limit. Then
it returns freed pages to the system. Once there is room again, the limit rises step by step.

Paused scans of tables are retained too, because starting a scan in the middle of a table costs a pass over the
log after the base. Readers that begin together share one scan in turns. The number of scans is small, and idle
ones are dropped; a reader whose scan was dropped begins a new one, and only loses time.
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
"""The most paused scans that are retained; each may hold the places of a million rows."""
_IDLE_S: Final = 10.0
"""Seconds after which a paused scan is dropped."""


class _Follower(Protocol):
    def let_go_of_block(self, now: float) -> None: ...


class OpenScans:
    """The paused scans of one engine. Thread-safe."""

    def __init__(self) -> None:
        """Create an empty collection."""
        self._lock = threading.Lock()
        self._scans: OrderedDict[Hashable, tuple[Iterator[StateRows], float]] = OrderedDict()
        """Paused scans, each with the monotonic time of its last use; the least recently used first. The key
        identifies the table and the place at which the scan pauses."""
        self.followers: WeakSet[_Follower] = WeakSet()
        """Subscriptions that currently receive a table, and may hold a block of it."""

    def __len__(self) -> int:
        """Return the number of paused scans."""
        return len(self._scans)

    def take(self, place: Hashable) -> Iterator[StateRows] | None:
        """Remove and return the scan that pauses at a place; None if there is none."""
        with self._lock:
            found = self._scans.pop(place, None)
        return None if found is None else found[0]

    def keep(self, place: Hashable, scan: Iterator[StateRows]) -> None:
        """Retain a scan that now pauses at a place; if there are too many, drop the least recently used one."""
        with self._lock:
            self._scans[place] = scan, time.monotonic()
            while len(self._scans) > _SCANS_MAX:
                self._scans.popitem(last=False)

    def relieve(self, now: float) -> None:
        """Drop idle scans, and release the blocks of idle followers.

        Args:
            now: The event loop's time in seconds.
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
"""Fraction of the budget that is kept free, for memory that is allocated until the next measurement."""
_FRAME_BYTES_EACH: Final = 2 << 20
"""Bytes of frames that are cached for each open reader."""
_FRAME_BLOCKS_EACH: Final = 2
"""Blocks of frames that are cached for each open reader, even if they exceed _FRAME_BYTES_EACH."""
_LIMIT_STEP: Final = 1 / 64
"""Fraction of the budget by which the limit rises if there is room again. This is also the lowest limit."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Sized(Protocol):
    """A value whose size is known to the cache."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the value holds."""


class CacheKind(IntEnum):
    """The kind of a value. Lower kinds are evicted first."""

    FRAMES = 0
    SCAN = 1
    BODY = 2
    HEAD = 3


_READ_KINDS: Final = (CacheKind.BODY, CacheKind.HEAD, CacheKind.SCAN)
"""The kinds that share ``reads_bytes``, in the order of their eviction: a scan saves the reading of many heads.

Scans may use at most half of that bound. Otherwise scans for many criteria would evict heads that are needed
next.
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
        """Create an empty cache.

        Args:
            memory_bytes: Memory budget of the process.
            frames_bytes: The most bytes of frames.
            reads_bytes: The most bytes of heads, bodies and scans together.
            executor: The reader threads.
            loads_max: The most loads that run, or whose values wait for the event loop. A batch has megabytes,
                so without this bound many would pile up while the loop is busy.
            readers: Returns the number of open subscriptions and history reads; None: frames are cached up to
                ``frames_bytes``.
            measure: Returns the anonymous memory of the process in bytes.
        """
        self.bytes_max = memory_bytes // CACHE_SHARE
        """The highest limit of the cache, in bytes."""
        self._limit = self.bytes_max
        """The current limit of the cache, in bytes."""
        self._relieved_from = memory_bytes * (1 - _RESERVE)
        """Bytes of the process above which the cache evicts a quarter."""
        self._limit_step = int(memory_bytes * _LIMIT_STEP)
        self._relieved_to = 0
        """Bytes of the process after the last such eviction. The next one waits until they have grown by a
        step."""
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
        """The cached values of each kind by key, the least recently used first."""
        self._waiters: dict[tuple[CacheKind, Hashable], list[asyncio.Future[Any]]] = {}
        """For each value that is queued or being loaded, the futures of the callers that wait for it."""
        self._to_load: deque[tuple[CacheKind, Hashable, Callable[[], Sized]]] = deque()
        self._loads_max = loads_max
        self._loads_running = 0
        self.bytes = 0
        """Total bytes of all cached values."""
        self._hits = self._misses = self._evicted = 0
        self.scans = OpenScans()
        """Paused scans of tables. They are bounded by their number, not by bytes."""

    def peek(self, kind: CacheKind, key: Hashable) -> Sized | None:
        """Return a value if it is cached, without marking it as used. Any thread may call this."""
        return self._kinds[kind].get(key)

    def get_nowait(self, kind: CacheKind, key: Hashable) -> Sized | None:
        """Return a value if it is cached, and mark it as used; None if it is not."""
        values = self._kinds[kind]
        value = values.get(key)
        if value is not None:
            values.move_to_end(key)
            self._hits += 1
        return value

    async def get(self, kind: CacheKind, key: Hashable, load: Callable[[], S]) -> S:
        """Return a value; load it in a reader thread if it is neither cached nor being loaded.

        Cancelling one caller does not stop the load for the others. If ``load`` raises an exception, all
        callers get it, and nothing is cached. Raises RuntimeError if no reader thread can be started.
        """
        value = self.get_nowait(kind, key)
        if value is not None:
            return cast("S", value)
        waiter: asyncio.Future[S] = asyncio.get_running_loop().create_future()
        self._load_once(kind, key, load, waiter)
        return await waiter

    def prefetch(self, kind: CacheKind, key: Hashable, load: Callable[[], Sized]) -> None:
        """Begin to load a value that will be needed soon. Errors are ignored: the next load raises them."""
        if key not in self._kinds[kind]:
            self._load_once(kind, key, load, None)

    def put(self, kind: CacheKind, key: Hashable, value: Sized) -> None:
        """Add a value to the cache, unless the key is cached; evict others if there are too many."""
        values = self._kinds[kind]
        if key not in values:
            values[key] = value
            self.bytes += value.nbytes
            self._bytes_by_kind[kind] += value.nbytes
            self._evict_excess()

    def drop_unless_shared(self, kind: CacheKind, key: Hashable) -> None:
        """Drop a value that a subscription has used, unless other open readers may need it."""
        if self._readers is not None and self._readers() <= 1:
            value = self._kinds[kind].pop(key, None)
            if value is not None:
                self._uncharge(kind, value)

    def forget(self, opening: Hashable) -> None:
        """Drop all values of one opening of a log; the first member of each key identifies the opening.

        A load that is still running adds its value later. No caller requests that value again, so it is evicted
        in time.
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
        # An entry of ``_waiters`` means that the load is queued or running: join it. A prefetch has an entry
        # too, without a waiter.
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
        """Submit queued loads to the reader threads, up to ``loads_max`` at a time."""
        loop = asyncio.get_running_loop()
        while self._to_load and self._loads_running < self._loads_max:
            kind, key, load = self._to_load.popleft()
            try:
                job = self._executor.submit(load)
            except RuntimeError as error:  # no further thread can be started
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
        # 1. The bounds of the kinds. They are enforced before the limit of the whole cache, which evicts frames
        # first, even if heads are what has grown too large.
        while self._frames_are_too_many():
            self._evict_one([CacheKind.FRAMES])
        while self._bytes_by_kind[CacheKind.SCAN] > self._reads_bytes_max // 2:
            self._evict_one([CacheKind.SCAN])
        while sum(self._bytes_by_kind[kind] for kind in _READ_KINDS) > self._reads_bytes_max:
            self._evict_one(_READ_KINDS)
        # 2. The limit of the whole cache.
        self._evict_down_to(self._limit)
        # 3. The budget of the process, which has other memory than this cache. Measuring reads a file, so it is
        # done at most ten times a second. Right after an eviction the process is still large, because the
        # allocators retain some pages. So wait until it has grown by a step: otherwise every new value would
        # cost another quarter of the cache.
        now = asyncio.get_running_loop().time()
        if now - self._measured_at >= _MEASURE_EVERY_S:
            self._measured_at = now
            found = self.measured()
            if found > self._relieved_from and found - self._relieved_to >= self._limit_step:
                self.relieve()

    def _frames_are_too_many(self) -> bool:
        """Return True if frames must be evicted. The newest block always stays, since it is being sent."""
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
        """Measure the anonymous memory of the process, and return it in bytes.

        If that fails, for example without a free file descriptor, return the last figure.
        """
        with suppress(OSError):
            self._process_bytes = self._measure()
        return self._process_bytes

    def relieve(self) -> int:
        """Measure the process, and evict a quarter of the cache if the process is near the budget.

        Otherwise raise the limit of the cache by one step.

        Returns:
            The bytes of the process after that.
        """
        # Lower the limit together with the eviction. Otherwise the cache would be full again within moments,
        # and the process would oscillate.
        if self.measured() > self._relieved_from:
            self._limit = max(self.bytes * 3 // 4, self._limit_step)
            self._evict_down_to(self._limit)
            return_freed_pages()
            self._relieved_to = self.measured()
        else:
            self._limit = min(self._limit + self._limit_step, self.bytes_max)
        return self._process_bytes

    def _evict_down_to(self, bytes_max: int) -> None:
        while self.bytes > bytes_max and self._evict_one(CacheKind):
            pass

    def _evict_one(self, kinds: Iterable[CacheKind]) -> bool:
        """Evict the least recently used value of the first kind that has values; return False if none has."""
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
    """Return freed pages, which the allocators retain for reuse, to the system."""
    pa.default_memory_pool().release_unused()
    _libc_trim()


def _libc_trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
