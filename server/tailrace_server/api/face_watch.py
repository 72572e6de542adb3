"""The watch of the faces: it connects to the port of each face every few seconds, as a client does.

The rule for a face that does not answer::

    no answer once       an error line; /health says 503 "degraded" and why
    twice in a row, or   a new listener replaces the old one on the same port;
    it has ended         open streams continue on the old one
    still no answer      the same again, without limit

The watch never ends the process, because connected clients would lose their streams. A supervisor may restart
the process by ``/health``. If the process has no file descriptors left, the listener is not at fault and stays.
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
"""Timeout of a probe in seconds; long enough for a busy server."""
_UNANSWERED_MAX: Final = 2
"""Failed probes in a row after which a listener is replaced."""
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address to connect to, for the addresses that mean all addresses."""
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

_log = structlog.get_logger("tailrace.server")


class WatchedFace(Protocol):
    """A face, as its watch uses it."""

    name: str
    ended: asyncio.Event
    """Set by the face when its listener has ended; ``listen_again`` clears it."""

    async def knock(self) -> None:
        """Connect and make a request as a client does; return once an answer has begun.

        Raises:
            OSError: Nothing listens there, or there is no answer.
        """

    async def listen_again(self) -> None:
        """Put a new listener on the port. Open connections continue until they end.

        Raises:
            Exception: The port cannot be listened on now; the call may be repeated.
        """


@dataclass(slots=True)
class FaceStatistics:
    """The watch's findings on one face; only the watch writes them."""

    name: str
    reason: str | None = None
    """Why the face does not accept connections; None while it does."""
    unanswered: int = 0
    """Number of failed probes since the process began."""
    renewed: int = 0
    """Number of listeners that have replaced another."""


class FaceWatch:
    """The watch of all faces; it works while ``run`` runs."""

    def __init__(self, interval_s: float) -> None:
        """Make a watch that probes each face every ``interval_s`` seconds."""
        self._interval_s = interval_s
        self._faces: list[tuple[WatchedFace, FaceStatistics]] = []

    def add(self, face: WatchedFace) -> None:
        """Add a face to watch; call it before ``run``."""
        self._faces.append((face, FaceStatistics(face.name)))

    def statistics(self) -> tuple[FaceStatistics, ...]:
        """Return the current figures of all faces."""
        return tuple(statistics for _, statistics in self._faces)

    def not_accepting(self) -> Mapping[str, str]:
        """Return the reason of each face that does not accept connections, by its name."""
        return {each.name: each.reason for each in self.statistics() if each.reason is not None}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for face, statistics in self._faces:
                tasks.create_task(self._watch(face, statistics), name=f"watch {face.name}")

    async def _watch(self, face: WatchedFace, statistics: FaceStatistics) -> None:
        unanswered = 0
        while True:
            # 1. Probe after the interval, or as soon as the face reports that its listener has ended.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await face.ended.wait()
            error = await self._error(face)
            if error is None:
                self._accepts(statistics)
                unanswered = 0
                continue
            # 2. Log the first failure at once; only count the others.
            unanswered += 1
            self._refuses(statistics, _reason(error))
            # Without descriptors the probe itself cannot connect; a new listener would not help.
            out_of_descriptors = isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS
            if not face.ended.is_set() and (unanswered < _UNANSWERED_MAX or out_of_descriptors):
                continue
            # 3. Probe a new listener at once. If there is none, the next try is an interval later.
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
            _log.error("listener not reopened", face=face.name, reason=str(error))
            # The event ``ended`` may still be set, so without this pause the loop would spin.
            await asyncio.sleep(self._interval_s)
            return False
        statistics.renewed += 1
        return True

    def _accepts(self, statistics: FaceStatistics) -> None:
        if statistics.reason is not None:
            statistics.reason = None
            _log.info(
                "face accepts connections again", face=statistics.name, renewed=statistics.renewed
            )

    def _refuses(self, statistics: FaceStatistics, reason: str) -> None:
        statistics.unanswered += 1
        if statistics.reason is None:
            _log.error("face does not accept connections", face=statistics.name, reason=reason)
        statistics.reason = reason


def reachable(address: Address) -> Address:
    """Return the address by which this machine reaches a listener that may listen on all addresses."""
    return Address(_ANYWHERE.get(address.host, address.host), address.port)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_PROBE_S:g} s"
    return str(error) or type(error).__name__
