"""The batch cache: heads, bodies, scans and encoded frames, once each, under one memory budget.

Everything that is read from the log or made of it passes through here, so that ten subscribers at
near positions cost about one reading. A value is loaded in a reader thread by whoever comes first;
the others wait for it (*single flight*). Frames have a bound of their own, so has what was read; both
are far below the budget, since memory that is used again is faster than fresh pages and what was
read once is in the page cache. Where few subscriptions are open, fewer frames are kept, and of only one
none that it has had: they are for others, and memory that was used a moment ago is still in the processor's
cache. When room is short all the same, frames go first.

The budget is kept by measurement: the cache never charges itself more than half of it, and whenever
the process as a whole is found near it, the cache sheds a quarter of what it holds, may hold no more than
is left, and hands freed pages back. Where there is room again it may hold more, step by step.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from concurrent.futures import Executor, Future

_MEASURE_EVERY_S: Final = 0.1
_ROOM: Final = 1 / 16
"""The part of the budget that is left where the process is relieved: what may come until the next measure."""
_FRAMES_EACH: Final = 2 << 20
_BLOCKS_EACH: Final = 2
"""For each open subscription so many bytes of frames are kept, and where blocks are large so many of them."""
_STEP: Final = 1 / 64
"""By so much of the budget what may be held grows where there is room again; so much may be held always."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Sized(Protocol):
    """What the cache can charge for."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""


class Kind(IntEnum):
    """What a value is; lower ones go first."""

    FRAMES = 0
    SCAN = 1
    BODY = 2
    HEAD = 3


_READS: Final = (Kind.BODY, Kind.HEAD, Kind.SCAN)
"""What was read, in the order in which it goes when it is too much: a scan stands for many heads.

Scans have half of the room at most, or those of many criteria would push out heads that are needed next.
"""

S = TypeVar("S", bound=Sized)


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """How the batch cache does."""

    bytes: int
    """Charged now."""
    values: int
    """Held now, of all kinds."""
    hits: int
    misses: int
    """Loads, shared ones counted once."""
    evicted: int
    process_bytes: int
    """Anonymous memory of the process when it was last measured."""


class BatchCache:
    """A bounded cache with single-flight loading. Lives on the event loop; only ``peek`` is for any thread."""

    def __init__(
        self,
        memory_bytes: int,
        frames_bytes: int,
        reads_bytes: int,
        executor: Executor,
        *,
        loads_max: int = 4,
        subscriptions: Callable[[], int] | None = None,
        measure: Callable[[], int] | None = None,
    ) -> None:
        """Make an empty cache.

        Args:
            memory_bytes: The process's budget.
            frames_bytes: Bound of the frames that are kept.
            reads_bytes: Bound of heads, bodies and scans.
            executor: The reader threads.
            loads_max: How many loads these may have at a time, with those whose values wait for the loop: a
                batch is megabytes, and a busy loop lets many come together.
            subscriptions: Returns how many are open; without it, frames are kept up to their bound.
            measure: Returns the process's anonymous bytes.
        """
        self._memory_bytes = memory_bytes
        self._bytes_max = memory_bytes // 2
        self._relieved_from = memory_bytes * (1 - _ROOM)
        self._step = int(memory_bytes * _STEP)
        self._left_bytes = 0
        """What the process held when it had been relieved: it is not again until it has grown by a step."""
        self._frames_bytes_max = frames_bytes
        self._reads_bytes_max = reads_bytes
        self._held = dict.fromkeys(Kind, 0)
        self._executor = executor
        self._subscriptions = subscriptions
        self._measure = measure or anonymous_bytes
        self._measured_at = float("-inf")
        self._process_bytes = 0
        self._kinds: dict[Kind, OrderedDict[Hashable, Sized]] = {
            kind: OrderedDict() for kind in Kind
        }
        self._loading: dict[tuple[Kind, Hashable], list[asyncio.Future[Any]]] = {}
        self._to_load: deque[tuple[Kind, Hashable, Callable[[], Sized]]] = deque()
        self._loads_max = loads_max
        self._begun = 0
        self._bytes = 0
        self._hits = self._misses = self._evicted = 0

    def peek(self, kind: Kind, key: Hashable) -> Sized | None:
        """Return a value if it is held, without touching its age. Any thread may call it."""
        return self._kinds[kind].get(key)

    def get_nowait(self, kind: Kind, key: Hashable) -> Sized | None:
        """Return a value if it is held and mark it as used."""
        values = self._kinds[kind]
        value = values.get(key)
        if value is not None:
            values.move_to_end(key)
            self._hits += 1
        return value

    async def get(self, kind: Kind, key: Hashable, load: Callable[[], S]) -> S:
        """Return a value, loading it in a reader thread if nobody else does already.

        Cancelling one waiter takes nothing from the others. What ``load`` raises reaches all of
        them, and nothing is kept. Raises RuntimeError where no reader thread can be had.
        """
        value = self.get_nowait(kind, key)
        if value is not None:
            return cast("S", value)
        waiter: asyncio.Future[S] = asyncio.get_running_loop().create_future()
        self._join(kind, key, load, waiter)
        return await waiter

    def prefetch(self, kind: Kind, key: Hashable, load: Callable[[], Sized]) -> None:
        """Begin to load a value that will be asked for soon; a failure shows when it is."""
        if key not in self._kinds[kind]:
            self._join(kind, key, load, None)

    def put(self, kind: Kind, key: Hashable, value: Sized) -> None:
        """Keep a value that came as a by-product."""
        values = self._kinds[kind]
        if key not in values:
            values[key] = value
            self._bytes += value.nbytes
            self._held[kind] += value.nbytes
            self._shed()

    def taken(self, kind: Kind, key: Hashable) -> None:
        """Let go of a value that a subscription has had, if no other is open that may ask for it."""
        if self._subscriptions is not None and self._subscriptions() <= 1:
            value = self._kinds[kind].pop(key, None)
            if value is not None:
                self._uncharge(kind, value)

    def statistics(self) -> CacheStatistics:
        """Return the figures of this moment."""
        return CacheStatistics(
            bytes=self._bytes,
            values=sum(len(values) for values in self._kinds.values()),
            hits=self._hits,
            misses=self._misses,
            evicted=self._evicted,
            process_bytes=self._process_bytes,
        )

    def _join(
        self,
        kind: Kind,
        key: Hashable,
        load: Callable[[], Sized],
        waiter: asyncio.Future[Any] | None,
    ) -> None:
        waiters = self._loading.get((kind, key))
        is_new = waiters is None
        if waiters is None:
            waiters = self._loading[kind, key] = []
        if waiter is not None:
            waiters.append(waiter)
        if is_new:
            self._misses += 1
            self._to_load.append((kind, key, load))
            self._begin_loads()

    def _begin_loads(self) -> None:
        """Hand loads to the reader threads, not more than may wait for the loop together when they are done."""
        loop = asyncio.get_running_loop()
        while self._to_load and self._begun < self._loads_max:
            kind, key, load = self._to_load.popleft()
            try:
                job = self._executor.submit(load)
            except RuntimeError as error:  # the system has no thread left
                self._answer(kind, key, None, error)
                continue
            self._begun += 1
            loaded = partial(self._loaded, kind, key)
            job.add_done_callback(partial(loop.call_soon_threadsafe, loaded))

    def _loaded(self, kind: Kind, key: Hashable, job: Future[Sized]) -> None:
        self._begun -= 1
        self._begin_loads()
        error = job.exception() if not job.cancelled() else asyncio.CancelledError()
        value = job.result() if error is None else None
        self._answer(kind, key, value, error)
        if value is not None:
            self.put(kind, key, value)

    def _answer(
        self, kind: Kind, key: Hashable, value: Sized | None, error: BaseException | None
    ) -> None:
        for waiter in self._loading.pop((kind, key)):
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(value)
            else:
                waiter.set_exception(error)

    def _shed(self) -> None:
        while self._frames_are_too_many():
            self._evict_one([Kind.FRAMES])
        while self._held[Kind.SCAN] > self._reads_bytes_max // 2:
            self._evict_one([Kind.SCAN])
        while sum(self._held[kind] for kind in _READS) > self._reads_bytes_max:
            self._evict_one(_READS)
        self._keep(self._bytes_max)
        now = asyncio.get_running_loop().time()
        if now - self._measured_at >= _MEASURE_EVERY_S:
            self._measured_at = now
            found = self.measured()
            if found > self._relieved_from and found - self._left_bytes >= self._step:
                self.relieve()

    def _frames_are_too_many(self) -> bool:
        """Return whether frames are to go; the newest block stays, however large, as it is about to be sent."""
        held, blocks = self._held[Kind.FRAMES], len(self._kinds[Kind.FRAMES])
        if blocks <= 1:
            return False
        if held > self._frames_bytes_max:
            return True
        if self._subscriptions is None:
            return False
        takers = max(1, self._subscriptions())
        return held > takers * _FRAMES_EACH and blocks > takers * _BLOCKS_EACH

    def measured(self) -> int:
        """Measure the process and return what it holds.

        Where it cannot be measured, as without a free file descriptor, the last measure stands.
        """
        with suppress(OSError):
            self._process_bytes = self._measure()
        return self._process_bytes

    def relieve(self) -> int:
        """Measure the process, shed a quarter if it is near the budget, and return what it holds then."""
        if self.measured() > self._relieved_from:
            self._bytes_max = max(self._bytes * 3 // 4, self._step)
            self._keep(self._bytes_max)
            return_freed_pages()
            self._left_bytes = self.measured()
        else:
            self._bytes_max = min(self._bytes_max + self._step, self._memory_bytes // 2)
        return self._process_bytes

    def _keep(self, bytes_max: int) -> None:
        while self._bytes > bytes_max and self._evict_one(Kind):
            pass

    def _evict_one(self, kinds: Iterable[Kind]) -> bool:
        """Let go of the value that was not used for longest, of the first of these kinds that has any."""
        for kind in kinds:
            values = self._kinds[kind]
            if values:
                _, value = values.popitem(last=False)
                self._uncharge(kind, value)
                self._evicted += 1
                return True
        return False

    def _uncharge(self, kind: Kind, value: Sized) -> None:
        self._bytes -= value.nbytes
        self._held[kind] -= value.nbytes


def anonymous_bytes() -> int:
    """Return the anonymous resident memory of this process in bytes (resident minus file-backed)."""
    with open("/proc/self/statm", "rb") as statm:
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * _PAGE


def return_freed_pages() -> None:
    """Hand pages that the allocators keep for later back to the system."""
    pa.default_memory_pool().release_unused()
    _libc_trim()


def _libc_trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
