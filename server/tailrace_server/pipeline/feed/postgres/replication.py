"""A replication connection to PostgreSQL: its slot, its stream, and the confirmations of the stream.

Messages of the stream, in COPY's both-ways mode; numbers are big endian::

    server   w XLogData          start LSN u64, end LSN u64, time i64, a message of pgoutput
             k keepalive         end LSN u64, time i64, reply u8 (1 = answer at once)
    client   r standby status    written, flushed, applied LSN u64 each, time i64, reply u8 (1 = answer at once)

The server keeps its log from the *flushed* LSN on, so only what the catalog has is confirmed there. While it
shuts down it waits until everything that it has sent is confirmed.

Source: PostgreSQL documentation, "Streaming Replication Protocol".
"""

from __future__ import annotations

import select
import time
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg
from psycopg import conninfo, pq

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.feed.postgres.values import SESSION
from tailrace_server.pipeline.feed.source import SourceLost, SourceRefused, SourceUnreachable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_POLL_S: Final = 0.5
_PATIENCE_MS: Final = 300_000
"""Time that the server waits for a confirmation, in milliseconds; a large transaction may take that long."""
_DATA, _ALIVE = b"wk"
_HEAD, _KEEPALIVE, _STATUS = Struct(">QQq"), Struct(">QqB"), Struct(">QQQqB")
_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970."""
_DEFAULTS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
_PERMISSION: Final = "42501"
_NO_SLOT: Final = "42704"
_NOT_READY: Final = "55000"
_IN_USE: Final = "55006"
_STREAMS_FROM: Final = 140_000
"""The first version of the server that streams transactions before they are committed, and sends messages."""


class Keepalive(NamedTuple):
    """A keepalive: the server has sent everything up to an LSN."""

    end_lsn: int
    wants_reply: bool


class CreatedSlot(NamedTuple):
    """A new slot: the stream has every transaction that the exported snapshot does not see."""

    lsn: int
    snapshot: str
    """Name of the snapshot; valid while the connection is idle."""


def lsn_of(text: str) -> int:
    """Return an LSN from its text, such as 0/16B3748."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Return the text of an LSN."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parameters_of(dsn: str, application: str) -> dict[str, str]:
    """Return the parameters of a connection.

    Args:
        dsn: Connection string or URI, as libpq reads it.
        application: Name of the connection in ``pg_stat_activity``.

    Raises:
        InvalidRequest: The DSN cannot be parsed.
    """
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise InvalidRequest(
            f"--dsn cannot be read: {str(error).strip()}; write postgresql://user@host/database, "
            "or host=… dbname=… user=…"
        ) from error
    texts = {name: str(value) for name, value in given.items() if value is not None}
    options = f"{texts.pop('options', '')} {SESSION}".strip()
    return {**_DEFAULTS, **texts, "application_name": application, "options": options}


def connected(parameters: dict[str, str]) -> psycopg.Connection:
    """Return a connection for statements, in autocommit.

    Raises:
        SourceUnreachable: The server cannot be reached, or refuses the user or the database.
    """
    try:
        return psycopg.connect(conninfo.make_conninfo(**parameters), autocommit=True)
    except psycopg.OperationalError as error:
        raise _unreachable(str(error)) from error


class ReplicationConnection:
    """One replication connection. A context manager; not thread-safe."""

    def __init__(self, parameters: dict[str, str]) -> None:
        """Connect.

        Raises:
            SourceUnreachable: The server cannot be reached.
            SourceRefused: The user has no right to replicate.
        """
        options = f"{parameters['options']} -c wal_sender_timeout={_PATIENCE_MS}"
        text = conninfo.make_conninfo(
            **{**parameters, "options": options, "replication": "database"}
        )
        self._connection = pq.PGconn.connect(text.encode())
        if self._connection.status != pq.ConnStatus.OK:
            message = self._message()
            self._connection.finish()
            if "replication" in message and ("permission" in message or "role" in message):
                raise _without_right(message)
            raise _unreachable(message)

    def __enter__(self) -> ReplicationConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.finish()

    @property
    def socket(self) -> int:
        """The socket, to wait on."""
        return self._connection.socket

    def create_slot(
        self, slot: str, *, temporary: bool = False
    ) -> Generator[None, None, CreatedSlot]:
        """Create a slot; its snapshot is valid until the next command of this connection.

        The server waits until the transactions that run now end. Meanwhile this yields None: after a while, or
        at once if the slot is ``temporary``, which ends with the connection.

        Raises:
            SourceRefused: The user may not, all slots are in use, or ``wal_level`` is not logical.
            SourceUnreachable: The connection failed.
        """
        connection = self._connection
        kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
        connection.send_query(
            f"CREATE_REPLICATION_SLOT {slot} {kind} pgoutput EXPORT_SNAPSHOT".encode()
        )
        connection.flush()
        while connection.is_busy():
            if not self._is_readable(0 if temporary else _POLL_S):
                yield None
                continue
            self._consume()
        result = connection.get_result()
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise self._failed(result)
        while connection.get_result() is not None:
            pass
        point, snapshot = result.get_value(0, 1), result.get_value(0, 2)
        assert point is not None
        assert snapshot is not None
        return CreatedSlot(lsn_of(point.decode()), snapshot.decode())

    def end_of(self, timeline: int, current: int) -> int | None:
        """Return the LSN at which a timeline ended, given the server's current one; None if it has not ended.

        Raises:
            SourceUnreachable: The connection failed.
        """
        if timeline == current:
            return None
        content = self._run(f"TIMELINE_HISTORY {current}").get_value(0, 1) or b""
        for line in content.decode().splitlines():
            number, _, rest = line.partition("\t")
            if number.strip() == str(timeline):
                return lsn_of(rest.split()[0])
        return 0  # the server does not come from that timeline

    def start(self, slot: str, publication: str, lsn: int) -> None:
        """Start the stream with the first transaction whose end is behind an LSN.

        Raises:
            SourceLost: The slot or its part of the server's log is gone.
            SourceRefused: Another process reads the slot.
            SourceUnreachable: The connection failed.
        """
        streams = self._connection.server_version >= _STREAMS_FROM
        later = "proto_version '2', streaming 'on', messages 'true'"
        version = later if streams else "proto_version '1'"
        name = publication.replace('"', '""').replace("'", "''")
        self._run(
            f"START_REPLICATION SLOT {slot} LOGICAL {lsn_text(lsn)} "
            f"({version}, publication_names '\"{name}\"')"
        )

    def messages(self) -> Iterator[bytes | Keepalive | None]:
        """Yield the messages of pgoutput and the keepalives as they arrive; None if there is none for now.

        Raises:
            SourceUnreachable: The connection failed, or the server ended the stream.
            SourceLost, SourceRefused: The server cannot continue the stream.
        """
        connection = self._connection
        while True:
            size, read = self._read()
            if size > 0:
                if read[0] == _DATA:
                    yield bytes(read[1 + _HEAD.size :])
                elif read[0] == _ALIVE:
                    end, _, reply = _KEEPALIVE.unpack_from(read, 1)
                    yield Keepalive(end, bool(reply))
                continue
            if size < 0:
                raise self._failed(connection.get_result())
            if not self._is_readable(0):
                yield None
                self._is_readable(_POLL_S)
            self._consume()

    def confirm(self, lsn: int, *, wants_reply: bool = False) -> None:
        """Confirm everything up to an LSN; with ``wants_reply`` the server answers by a keepalive.

        Raises:
            SourceUnreachable: The connection failed.
        """
        now = time.time_ns() // 1_000 - _EPOCH_US
        try:
            self._connection.put_copy_data(
                b"r" + _STATUS.pack(lsn, lsn, lsn, now, int(wants_reply))
            )
            self._connection.flush()
        except psycopg.OperationalError as error:
            raise _unreachable(str(error)) from error

    def _read(self) -> tuple[int, memoryview]:
        try:
            return self._connection.get_copy_data(1)
        except psycopg.OperationalError as error:
            raise self._failed(None, str(error)) from error

    def _consume(self) -> None:
        try:
            self._connection.consume_input()
        except psycopg.OperationalError as error:
            raise _unreachable(str(error)) from error

    def _is_readable(self, timeout_s: float) -> bool:
        return bool(select.select([self._connection.socket], [], [], timeout_s)[0])

    def _run(self, command: str) -> pq.abc.PGresult:
        result = self._connection.exec_(command.encode())
        if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COPY_BOTH):
            return result
        raise self._failed(result)

    def _message(self) -> str:
        return self._connection.get_error_message()

    def _failed(
        self, result: pq.abc.PGresult | None, message: str = ""
    ) -> SourceUnreachable | SourceRefused | SourceLost:
        """Return the error for a failed command or stream."""
        state = None if result is None else result.error_field(pq.DiagnosticField.SQLSTATE)
        message = message or self._message()
        match None if state is None else state.decode():
            case code if code == _PERMISSION:
                return _without_right(message)
            case code if code == _NO_SLOT and "publication" not in message:
                return SourceLost(message.strip())
            case code if code == _NO_SLOT:
                return SourceLost(
                    f"{message.strip().splitlines()[0]} at the time of some changes, so these cannot "
                    "be read: run with --resnapshot, which reads the tables again and writes only "
                    "what differs"
                )
            case code if code == _NOT_READY and "wal_level" in message:
                return without_logical_log(message.strip())
            case code if code == _NOT_READY:
                return SourceLost(message.strip())
            case code if code in (_IN_USE, "53400"):
                return SourceRefused(message.strip())
        return _unreachable(message)


def without_logical_log(found: str) -> SourceRefused:
    """Return the error for a server that does not write what logical replication needs."""
    return SourceRefused(
        f"the server does not log changes for replication ({found}): set wal_level = logical in "
        "postgresql.conf, and restart the server"
    )


def _without_right(message: str) -> SourceRefused:
    return SourceRefused(
        f"the user may not replicate: ALTER ROLE … REPLICATION as a superuser ({message.strip()})"
    )


def _unreachable(message: str) -> SourceUnreachable:
    return SourceUnreachable(f"PostgreSQL cannot be reached: {' '.join(message.split())}")
