"""Decoder of pgoutput, PostgreSQL's format of logical replication: version 1, and the streams of version 2.

All numbers are big endian; a text ends with NUL. Each message begins with its type::

    B Begin          final LSN u64, time i64, xid u32
    C Commit         flags u8, commit LSN u64, end LSN u64, time i64
    R Relation       [xid] oid u32, schema text, name text, identity u8 ('d' 'n' 'f' 'i'), count u16, columns:
                       flags u8 (1 = part of the replica identity), name text, type oid u32, modifier i32
    I Insert         [xid] oid u32, 'N', row
    U Update         [xid] oid u32, ('K' or 'O', old row)?, 'N', row
    D Delete         [xid] oid u32, 'K' or 'O', old row
    T Truncate       [xid] count u32, options u8, oids u32 …
    M Message        [xid] flags u8 (1 = transactional), LSN u64, prefix text, length u32, bytes
    Y Type, O Origin skipped
    S Stream start   xid u32, first u8      between S and E each message above has an xid, that of its
    E Stream stop                           (sub)transaction; B and C do not occur there
    c Stream commit  xid u32, flags u8, commit LSN u64, end LSN u64, time i64
    A Stream abort   xid u32, xid u32 of the subtransaction

    row              count u16, values: 'n' null | 'u' an unchanged large value, not sent
                                        | 't' or 'b', length u32, bytes

'K': the old row has only the columns of the replica identity; 'O': all columns. Times are microseconds since
2000-01-01 UTC. A message must end where its last field ends.

Source: PostgreSQL documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from enum import Enum
from struct import Struct, error
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tailrace.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable


class Unsent(Enum):
    """The value of a column that an update did not change and that is too large to be sent again."""

    VALUE = "u"


RowValues = tuple["bytes | Unsent | None", ...]
"""The values of a row in PostgreSQL's text form; None: null."""


class Begin(NamedTuple):
    """The first message of a transaction."""

    lsn: int
    timestamp: int
    """Time of the commit, in microseconds since 1970."""
    xid: int


class Committed(NamedTuple):
    """The last message of a transaction."""

    end_lsn: int
    """Position behind the transaction."""
    timestamp: int
    """Time of the commit, in microseconds since 1970."""
    xid: int | None = None
    """Id of the streamed transaction that is committed; None: the transaction since `Begin`."""


class RelationColumn(NamedTuple):
    """A column of a table, in the order of the rows' values."""

    is_identity: bool
    """True if the column is part of the replica identity."""
    name: str
    type_oid: int
    modifier: int
    """The type's modifier, such as its length; -1 if it has none."""


class Relation(NamedTuple):
    """The description of a table; it precedes the table's first row, and follows each change of the table."""

    oid: int
    schema: str
    name: str
    identity: str
    """Replica identity: d default, n nothing, f full, i index."""
    columns: tuple[RelationColumn, ...]


class RowChange(NamedTuple):
    """An insert, update or delete of one row."""

    kind: Literal["I", "U", "D"]
    relation: int
    old: RowValues | None = None
    is_key: bool = False
    """True if ``old`` has values only for the replica identity."""
    new: RowValues | None = None


class Truncation(NamedTuple):
    """A truncate of some tables."""

    relations: tuple[int, ...]


class LogicalMessage(NamedTuple):
    """A message that a session wrote to the server's log by ``pg_logical_emit_message``."""

    is_transactional: bool
    """True if it belongs to the transaction that has it; False if it has none."""
    lsn: int
    prefix: str
    content: bytes


class StreamStart(NamedTuple):
    """The following messages, up to `StreamStop`, belong to a transaction that may still be aborted."""

    xid: int


class StreamStop(NamedTuple):
    """The end of a piece of a streamed transaction."""


class StreamAbort(NamedTuple):
    """A streamed transaction, or one of its subtransactions, is aborted."""

    xid: int
    subtransaction: int
    """Equal to ``xid`` if all of it is aborted."""


Message = (
    Begin
    | Committed
    | Relation
    | RowChange
    | Truncation
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamAbort
)

EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970."""
_BEGIN, _COMMIT, _STREAM_COMMIT = Struct(">QqI"), Struct(">BQQq"), Struct(">IBQQq")
_U16, _U32, _COLUMN, _PAIR = Struct(">H"), Struct(">I"), Struct(">Ii"), Struct(">II")
_MESSAGE: Final = Struct(">BQ")


def decoded(data: bytes) -> Message | None:
    """Return a message that has no xid of a stream; None if it is of a kind that is skipped.

    Raises:
        InternalError: The message is not in the format.
    """
    try:
        kind = data[:1]
        if kind in _SKIPPED:
            return None
        found, end = _KINDS[kind](data)
        if end != len(data):
            raise ValueError(f"it has {len(data)} bytes, and its fields end at {end}")
    except (IndexError, ValueError, KeyError, error) as fault:
        raise InternalError(
            f"a message of PostgreSQL is not in the format of pgoutput: {data[:40]!r} ({fault})"
        ) from fault
    return found


def begin_message(lsn: int, timestamp: int, xid: int) -> bytes:
    """Return the first message of a transaction; see `Begin`."""
    return b"B" + _BEGIN.pack(lsn, timestamp - EPOCH_US, xid)


def commit_message(end_lsn: int, timestamp: int) -> bytes:
    """Return the last message of a transaction; see `Committed`."""
    return b"C" + _COMMIT.pack(0, end_lsn, end_lsn, timestamp - EPOCH_US)


def _begin(data: bytes) -> tuple[Message, int]:
    lsn, at, xid = _BEGIN.unpack_from(data, 1)
    return Begin(lsn, at + EPOCH_US, xid), 1 + _BEGIN.size


def commit_of(data: bytes) -> Committed:
    """Return the message that ends a transaction which was not streamed."""
    _, _, end, at = _COMMIT.unpack_from(data, 1)
    return Committed(end, at + EPOCH_US)


def _commit(data: bytes) -> tuple[Message, int]:
    return commit_of(data), 1 + _COMMIT.size


def _stream_start(data: bytes) -> tuple[Message, int]:
    return StreamStart(_U32.unpack_from(data, 1)[0]), 6


def _stream_stop(data: bytes) -> tuple[Message, int]:
    return StreamStop(), 1


def _stream_commit(data: bytes) -> tuple[Message, int]:
    xid, _, _, end, at = _STREAM_COMMIT.unpack_from(data, 1)
    return Committed(end, at + EPOCH_US, xid), 1 + _STREAM_COMMIT.size


def _stream_abort(data: bytes) -> tuple[Message, int]:
    return StreamAbort(*_PAIR.unpack_from(data, 1)), 9


def message_of(data: bytes, *, is_streamed: bool) -> LogicalMessage:
    """Return a logical message; with ``is_streamed`` it has an xid in front.

    Raises:
        InternalError: The message is not in the format.
    """
    found = decoded(data[:1] + data[5:] if is_streamed else data)
    assert isinstance(found, LogicalMessage)
    return found


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _relation(data: bytes) -> tuple[Message, int]:
    oid = _U32.unpack_from(data, 1)[0]
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity, count = chr(data[at]), _U16.unpack_from(data, at + 1)[0]
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        columns.append(RelationColumn(bool(flags & 1), column, *_COLUMN.unpack_from(data, at)))
        at += _COLUMN.size
    # PostgreSQL writes pg_catalog as an empty text.
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns)), at


def _row(data: bytes, at: int) -> tuple[RowValues, int]:
    count = _U16.unpack_from(data, at)[0]
    at += 2
    values: list[bytes | Unsent | None] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _TEXT:
            begin = at + 4
            at = begin + _U32.unpack_from(data, at)[0]
            if at > len(data):
                raise ValueError("a value ends behind the message")
            values.append(data[begin:at])
        else:
            values.append(_ABSENT[kind])
    return tuple(values), at


def _change(data: bytes) -> tuple[Message, int]:
    kind, oid = data[:1], _U32.unpack_from(data, 1)[0]
    at = 5
    old = new = None
    mark = data[at : at + 1]
    is_key = mark == b"K"
    if mark in (b"K", b"O") and kind != b"I":
        old, at = _row(data, at + 1)
        mark = data[at : at + 1]
    if kind != b"D":
        if mark != b"N":
            raise ValueError(f"a row begins with {mark!r}")
        new, at = _row(data, at + 1)
    elif old is None:
        raise ValueError("a removal has no row")
    if kind == b"I":
        return RowChange("I", oid, None, False, new), at
    return RowChange("U" if kind == b"U" else "D", oid, old, is_key, new), at


def _truncation(data: bytes) -> tuple[Message, int]:
    relations = Struct(f">{_U32.unpack_from(data, 1)[0]}I")
    return Truncation(relations.unpack_from(data, 6)), 6 + relations.size


def _message(data: bytes) -> tuple[Message, int]:
    flags, lsn = _MESSAGE.unpack_from(data, 1)
    prefix, at = _text(data, 1 + _MESSAGE.size)
    begin = at + 4
    end = begin + _U32.unpack_from(data, at)[0]
    return LogicalMessage(bool(flags & 1), lsn, prefix, data[begin:end]), end


_TEXT: Final = ord("t")
_ABSENT: Final[dict[int, Unsent | None]] = {ord("n"): None, ord("u"): Unsent.VALUE}
_SKIPPED: Final = frozenset((b"Y", b"O"))
_KINDS: Final[dict[bytes, Callable[[bytes], tuple[Message, int]]]] = {
    b"B": _begin,
    b"C": _commit,
    b"S": _stream_start,
    b"E": _stream_stop,
    b"c": _stream_commit,
    b"A": _stream_abort,
    b"R": _relation,
    b"I": _change,
    b"U": _change,
    b"D": _change,
    b"T": _truncation,
    b"M": _message,
}
