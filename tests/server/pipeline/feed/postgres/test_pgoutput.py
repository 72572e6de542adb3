"""The decoder of pgoutput reads what an encoder by the same specification writes, and refuses anything else."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InternalError
from tailrace_server.pipeline.feed.postgres.pgoutput import (
    Begin,
    Committed,
    LogicalMessage,
    Message,
    Relation,
    RelationColumn,
    RowChange,
    RowValues,
    StreamAbort,
    StreamStart,
    Truncation,
    Unsent,
    begin_message,
    commit_message,
    decoded,
)

EPOCH = 946_684_800_000_000
U32 = st.integers(0, 2**32 - 1)
LSN = st.integers(0, 2**64 - 1)
TIME = st.integers(-(2**62), 2**62)
NAME = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=9)
VALUE = st.one_of(st.none(), st.just(Unsent.VALUE), st.binary(max_size=20))
ROW: st.SearchStrategy[RowValues] = st.lists(VALUE, max_size=5).map(tuple)
COLUMN = st.builds(RelationColumn, st.booleans(), NAME, U32, st.integers(-1, 2**31 - 1))
IN_TRANSACTION = st.one_of(
    st.builds(
        Relation, U32, NAME, NAME, st.sampled_from("dnfi"), st.lists(COLUMN, max_size=4).map(tuple)
    ),
    st.builds(lambda oid, new: RowChange("I", oid, new=new), U32, ROW),
    st.builds(lambda oid, new: RowChange("U", oid, new=new), U32, ROW),
    st.builds(
        lambda oid, old, key, new: RowChange("U", oid, old, key, new), U32, ROW, st.booleans(), ROW
    ),
    st.builds(lambda oid, old, key: RowChange("D", oid, old, key), U32, ROW, st.booleans()),
    st.builds(Truncation, st.lists(U32, max_size=4).map(tuple)),
    st.builds(LogicalMessage, st.booleans(), LSN, NAME, st.binary(max_size=9)),
)
OUTSIDE = st.one_of(
    st.builds(Begin, LSN, TIME, U32),
    st.builds(Committed, LSN, TIME, st.none() | U32),
    st.builds(StreamAbort, U32, U32),
    st.builds(StreamStart, U32),
)


def row(values: RowValues) -> bytes:
    parts = [pack(">H", len(values))]
    for value in values:
        if isinstance(value, bytes):
            parts.append(b"t" + pack(">I", len(value)) + value)
        else:
            parts.append(b"n" if value is None else b"u")
    return b"".join(parts)


def encoded(message: object, xid: int | None = None) -> bytes:
    """Return a message as PostgreSQL writes it; with an xid, as within a stream."""
    id = b"" if xid is None else pack(">I", xid)
    match message:
        case Begin(lsn, at, transaction):
            return begin_message(lsn, at, transaction)
        case Committed(end, at, None):
            return commit_message(end, at)
        case Committed(end, at, transaction):
            return b"c" + pack(">IBQQq", transaction, 0, 1, end, at - EPOCH)
        case StreamStart(transaction):
            return b"S" + pack(">IB", transaction, 1)
        case StreamAbort(transaction, subtransaction):
            return b"A" + pack(">II", transaction, subtransaction)
        case Truncation(oids):
            return b"T" + id + pack(f">IB{len(oids)}I", len(oids), 0, *oids)
        case LogicalMessage(is_transactional, lsn, prefix, content):
            head = pack(">BQ", is_transactional, lsn) + prefix.encode() + b"\0"
            return b"M" + id + head + pack(">I", len(content)) + content
        case Relation(oid, schema, name, identity, columns):
            head = pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0"
            listed = b"".join(
                pack(">B", each.is_identity)
                + each.name.encode()
                + b"\0"
                + pack(">Ii", each.type_oid, each.modifier)
                for each in columns
            )
            return b"R" + id + head + identity.encode() + pack(">H", len(columns)) + listed
        case RowChange(kind, oid, old, is_key, new):
            before = b"" if old is None else (b"K" if is_key else b"O") + row(old)
            after = b"" if new is None else b"N" + row(new)
            return kind.encode() + id + pack(">I", oid) + before + after
    raise AssertionError(message)


@given(st.one_of(IN_TRANSACTION, OUTSIDE))
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    assert decoded(encoded(message)) == message


@given(st.one_of(IN_TRANSACTION, OUTSIDE), st.data())
def test_a_message_that_is_cut_or_too_long_is_refused(
    message: Message, data: st.DataObject
) -> None:
    whole = encoded(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for broken in (whole[:cut], whole + b"\0"):
        with pytest.raises(InternalError, match="pgoutput"):
            decoded(broken)


@pytest.mark.parametrize("message", [b"Y\0\0\0\1x\0y\0", b"O" + bytes(9)])
def test_types_and_origins_are_skipped(message: bytes) -> None:
    assert decoded(message) is None
