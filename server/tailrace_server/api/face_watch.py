"""Watches that each face still accepts: it connects to the face's own port every few seconds, as a client.

The rule for a face that does not answer::

    no answer once       an error line; /health says 503 "degraded" and why
    twice in a row, or   a new listener takes the place of the old one on the same port;
    it has ended         open streams go on where they are
    still no answer      the same again, for as long as it takes

The process is never ended for it: those who are connected would lose their streams for the sake of those who
are not. Whoever starts processes anew may do so by ``/health``. If the process is out of descriptors, the
listener is not to blame and stays.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tailrace_server.units import Address

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROBE_S: Final = 5.0
"""How long a probe may take; a server that is so busy has other worries than a listener."""
_UNANSWERED_MAX: Final = 2
"""Probes in a row without an answer, after which a listener is replaced."""
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address to connect to, for addresses that only listen."""
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

_log = structlog.get_logger("tailrace.server")


class WatchedFace(Protocol):
    """A face as its watch sees it."""

    name: str
    ended: asyncio.Event
    """Set by a face that knows that it has stopped accepting; ``listen_again`` clears it."""

    async def knock(self) -> None:
        """Connect and ask as a client does; return once an answer has begun.

        Raises:
            OSError: Nothing listens there, or there is no answer.
        """

    async def listen_again(self) -> None:
        """Put a new listener on the port. Open connections continue until they end.

        Raises:
            Exception: It cannot listen; may be called again.
        """


@dataclass(slots=True)
class FaceStatistics:
    """The watch's findings on one face; only the watch writes them."""

    name: str
    reason: str | None = None
    """Why it does not accept; None while it does."""
    unanswered: int = 0
    """Probes without an answer, since the process began."""
    renewed: int = 0
    """Listeners that have taken the place of another."""


class FaceWatch:
    """Watches faces while ``run`` runs."""

    def __init__(self, interval_s: float) -> None:
        """Keep the pace."""
        self._interval_s = interval_s
        self._faces: list[tuple[WatchedFace, FaceStatistics]] = []

    def add(self, face: WatchedFace) -> None:
        """Watch this one, too; before ``run``."""
        self._faces.append((face, FaceStatistics(face.name)))

    def statistics(self) -> tuple[FaceStatistics, ...]:
        """Return the figures of this moment."""
        return tuple(statistics for _, statistics in self._faces)

    def not_accepting(self) -> Mapping[str, str]:
        """Return why faces do not accept, by name, for those that do not."""
        return {each.name: each.reason for each in self.statistics() if each.reason is not None}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for face, statistics in self._faces:
                tasks.create_task(self._watch(face, statistics), name=f"watch {face.name}")

    async def _watch(self, face: WatchedFace, statistics: FaceStatistics) -> None:
        unanswered = 0
        while True:
            # 1. The next look is due after the interval, or as soon as the face knows that it has ended.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await face.ended.wait()
            error = await self._error(face)
            if error is None:
                self._accepts(statistics)
                unanswered = 0
                continue
            # 2. The first failure is told at once, the others are counted.
            unanswered += 1
            self._refuses(statistics, _reason(error))
            out_of_descriptors = isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS
            if not face.ended.is_set() and (unanswered < _UNANSWERED_MAX or out_of_descriptors):
                continue
            # 3. A new listener is asked at once. If it cannot be had, the next try is an interval later.
            unanswered = 0
            if await self._renewed(face, statistics) and await self._error(face) is None:
                self._accepts(statistics)

    async def _error(self, face: WatchedFace) -> Exception | None:
        try:
            async with asyncio.timeout(_PROBE_S):
                await face.knock()
        except Exception as error:
            return error
        return None

    async def _renewed(self, face: WatchedFace, statistics: FaceStatistics) -> bool:
        try:
            await face.listen_again()
        except Exception as error:
            _log.error("no new listener", face=face.name, reason=str(error))
            # Whether or not the face has noticed, it accepts nobody; not at once again, though.
            await asyncio.sleep(self._interval_s)
            return False
        statistics.renewed += 1
        return True

    def _accepts(self, statistics: FaceStatistics) -> None:
        if statistics.reason is not None:
            statistics.reason = None
            _log.info("face accepts again", face=statistics.name, renewed=statistics.renewed)

    def _refuses(self, statistics: FaceStatistics, reason: str) -> None:
        statistics.unanswered += 1
        if statistics.reason is None:
            _log.error("face accepts nobody", face=statistics.name, reason=reason)
        statistics.reason = reason


def reachable(address: Address) -> Address:
    """Return where this machine reaches a listener, which may listen on all of its addresses."""
    return Address(_ANYWHERE.get(address.host, address.host), address.port)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_PROBE_S:g} s"
    return str(error) or type(error).__name__
