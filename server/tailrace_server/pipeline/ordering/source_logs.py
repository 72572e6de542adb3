"""Names of a source's logs, and the comparison of two changes by their places in them.

A position is a place in one log: the binlog of one server, the WAL of a PostgreSQL cluster. Positions of
different logs do not compare. The name says which log it is::

    postgresql:shop                        one log for each connector
    mysql:shop mysql-bin server 223344     base name of the binlog, and the server that wrote the change
    mysql:shop mysql-bin                   a snapshot's row, which names no server

A counter may begin anew under its name, as after RESET MASTER or in a restored server. Then the first number of
the position falls while the time rises. A file that comes late has lower times too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server.pipeline.changes import READ, UNPLACED, position_bytes

if TYPE_CHECKING:
    from collections.abc import Collection

    from tailrace_server.pipeline.changes import Change

_SERVER: Final = " server "
_NUMBER_BYTES: Final = 8


class Placed(NamedTuple):
    """The place of a change in its source, as far as it is known."""

    log: str | None = None
    """Name of the log; None if there is no position."""
    position: bytes = UNPLACED
    time: int | None = None
    """When the source made the change, µs."""
    snapshot: bool = False
    """The row was read, so the time is that of reading: the row may have been changed before or since."""

    @classmethod
    def of(cls, change: Change) -> Placed:
        """Return the place of a change."""
        position = position_bytes(change.place)
        return cls(change.log, position, change.timestamp, change.operation == READ)

    def is_before(self, other: Placed) -> bool | None:
        """Return True if this change is older than the other, False if it is not, None if that is unknown."""
        if self.log is not None and other.log is not None and may_compare(self.log, other.log):
            begins_anew = is_reset(self.position, other.position) and self._is_made_after(other)
            return self.position < other.position and not begins_anew
        if other.snapshot and self._is_made_after(other):
            return False
        if self.time is None or other.time is None or self.snapshot or other.snapshot:
            return None
        return self.time < other.time

    def _is_made_after(self, other: Placed) -> bool:
        """Return True if this change was made after the other was made or read."""
        if self.snapshot or self.time is None or other.time is None:
            return False
        return self.time > other.time


def is_reset(position: bytes, before: bytes) -> bool:
    """Return True if the first number of a position falls, as where a log begins anew under its name."""
    return position[:_NUMBER_BYTES] < before[:_NUMBER_BYTES]


def log_name(connector: str, base: str, server: str | None = None) -> str:
    """Return the name of one of several logs of a connector."""
    return f"{connector} {base}" + (f"{_SERVER}{server}" if server else "")


def base_and_server(log: str) -> tuple[str, str]:
    """Return base name and server of a log whose name `log_name` made; empty where it has none."""
    name, _, server = log.partition(_SERVER)
    return name.partition(" ")[2], server


def logs_in_one_order(logs: Collection[str]) -> dict[str, str]:
    """Return for each log the log that its positions are ordered with.

    That is the log itself. If it names no server, it is that of the only server.
    """
    together = {log: log for log in logs}
    for log in logs:
        servers = [other for other in logs if other != log and may_compare(log, other)]
        if _SERVER not in log and len(servers) == 1:
            together[log] = servers[0]
    return together


def may_compare(one: str, other: str) -> bool:
    """Return True if positions of two logs compare: they are one log, or one of them names no server."""
    if one == other:
        return True
    if (_SERVER in one) == (_SERVER in other):
        return False
    return one.partition(_SERVER)[0] == other.partition(_SERVER)[0]
