"""The loops that turn the messages of PostgreSQL's pgoutput, and rows of COPY, into keys and images of rows.

`pipeline/feed/postgres/pgoutput.py` describes the messages. A transaction is left to Python as a whole if it
describes or truncates a table, updates a key, or lacks a value that was not sent again.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tailrace_server.machine_code.loops.codes import TableText
from tailrace_server.machine_code.loops.primitives import (
    are_equal,
    called,
    copy,
    inlined,
    int64_at,
    store,
    uint8_at,
)

_SAME, _NUMBER, _TRUTH, _OCTETS = (
    int(each) for each in (TableText.SAME, TableText.NUMBER, TableText.TRUTH, TableText.OCTETS)
)
_QUOTE, _ESCAPE, _COMMA, _BRACE, _BRACE_END, _BRACKET, _BRACKET_END = b'"\\,{}[]'
_ZERO, _NINE, _MINUS, _SMALL_A, _SMALL_U = b"09-au"
_BEGIN, _COMMIT, _INSERT, _UPDATE, _DELETE, _RELATION, _ORIGIN, _TYPE, _MESSAGE = b"BCIUDROYM"
_NULL, _TEXT, _NEW, _OLD = b"ntNO"
_TAB, _LINE_END, _NO_VALUE = b"\t\nN"
_FAILED: Final = -1
_SPACE: Final = 32


@inlined
def _u16(at: Any) -> Any:
    return (np.int64(uint8_at(at)) << 8) | np.int64(uint8_at(at + 1))


@inlined
def _u32(at: Any) -> Any:
    return (_u16(at) << 16) | _u16(at + 2)


@inlined
def _u64(at: Any) -> Any:
    return (_u32(at) << 32) | _u32(at + 4)


@inlined
def _hex_digit(byte: Any) -> Any:
    return np.int64(byte) - _ZERO if byte <= _NINE else np.int64(byte) - _SMALL_A + 10


@inlined
def _sextet(number: Any) -> Any:
    """Return the character of base64 for six bits."""
    if number < 26:
        return number + 65
    if number < 52:
        return number + 71
    if number < 62:
        return number - 4
    return np.int64(43) if number == 62 else np.int64(47)


@called
def _put_octets(to: Any, at: Any, end: Any) -> Any:
    """Write hexadecimal digits as a JSON string in base64; return the place after it."""
    store(to, np.uint8(_QUOTE))
    to += 1
    while at < end:
        group, digits = np.int64(0), np.int64(0)
        while digits < 6:
            group <<= 4
            if at < end:
                group |= _hex_digit(uint8_at(at))
                at += 1
                digits += 1
            else:
                # Two or four digits remain. Fill the group up; the output has "=" for what is missing.
                missing = 6 - digits
                group <<= 4 * (missing - 1)
                break
        for place in range(4):
            sextet = (group >> (18 - 6 * place)) & 63
            filled = place * 6 >= digits * 4
            store(to, np.uint8(61 if filled else _sextet(sextet)))
            to += 1
    store(to, np.uint8(_QUOTE))
    return to + 1


@called
def _put_text(to: Any, at: Any, end: Any) -> Any:
    """Write a text as a JSON string in its shortest form; return the place after it."""
    store(to, np.uint8(_QUOTE))
    to += 1
    begun = at
    while at < end:
        byte = uint8_at(at)
        if byte >= _SPACE and byte != _QUOTE and byte != _ESCAPE:
            at += 1
            continue
        copy(to, begun, at - begun)
        to += at - begun
        store(to, np.uint8(_ESCAPE))
        if byte >= _SPACE:
            store(to + 1, byte)
            to += 2
        elif byte == 8 or byte == 9 or byte == 10 or byte == 12 or byte == 13:
            letter = np.int64(98)
            if byte == 9:
                letter = np.int64(116)
            elif byte == 10:
                letter = np.int64(110)
            elif byte == 12:
                letter = np.int64(102)
            elif byte == 13:
                letter = np.int64(114)
            store(to + 1, np.uint8(letter))
            to += 2
        else:
            store(to + 1, np.uint8(_SMALL_U))
            store(to + 2, np.uint8(_ZERO))
            store(to + 3, np.uint8(_ZERO))
            store(to + 4, np.uint8(_ZERO + (byte >> 4)))
            low = np.int64(byte & 15)
            store(to + 5, np.uint8(low + _ZERO if low < 10 else low - 10 + _SMALL_A))
            to += 6
        at += 1
        begun = at
    copy(to, begun, end - begun)
    to += end - begun
    store(to, np.uint8(_QUOTE))
    return to + 1


@called
def _put_value(to: Any, kind: Any, at: Any, length: Any) -> Any:
    """Write the JSON text of a value; return the place after it."""
    if kind == _SAME:
        copy(to, at, length)
        return to + length
    if kind == _NUMBER:
        digit = uint8_at(at)
        if digit == _MINUS and length > 1:
            digit = uint8_at(at + 1)
        if _ZERO <= digit <= _NINE:
            copy(to, at, length)
            return to + length
        return _put_text(to, at, at + length)
    if kind == _TRUTH:
        if uint8_at(at) == 116:
            store(to, np.uint32(0x65757274))
            return to + 4
        store(to, np.uint32(0x736C6166))
        store(to + 4, np.uint8(101))
        return to + 5
    if kind == _OCTETS:
        return _put_octets(to, at + 2, at + length)
    return _put_text(to, at, at + length)


@called
def _put_row(at: Any, end: Any, table: Any, columns: Any, heads: Any, to: Any, spans: Any) -> Any:
    """Write the image of a row; return the place after it, `_FAILED` if a value was not sent.

    The place after the row is stored at ``spans``, and behind it four numbers for each value: start and length
    of the value, then of its JSON text.
    """
    count = int64_at(table + 8)
    if at + 2 > end or _u16(at) != count:
        return _FAILED
    at += 2
    column = columns + 24 * int64_at(table + 16)
    store(to, np.uint8(_BRACE))
    to += 1
    span = spans + 8
    for place in range(count):
        if at >= end:
            return _FAILED
        if place:
            store(to, np.uint8(_COMMA))
            to += 1
        head, head_bytes = int64_at(column + 8), int64_at(column + 16)
        copy(to, heads + head, head_bytes)
        to += head_bytes
        sent = uint8_at(at)
        at += 1
        begun, length = to, np.int64(-1)
        if sent == _TEXT:
            if at + 4 > end:
                return _FAILED
            length = _u32(at)
            at += 4
            if length > end - at:
                return _FAILED
            to = _put_value(to, int64_at(column), at, length)
        elif sent == _NULL:
            store(to, np.uint32(0x6C6C756E))
            to += 4
        else:
            return _FAILED
        store(span, at)
        store(span + 8, length)
        store(span + 16, begun)
        store(span + 24, to - begun)
        if length > 0:
            at += length
        span += 32
        column += 24
    store(spans, at)
    store(to, np.uint8(_BRACE_END))
    return to + 1


@called
def _put_key(to: Any, table: Any, columns: Any, keys: Any, spans: Any) -> Any:
    """Write the key of the row whose values are at ``spans``; return the place after it."""
    count, key = int64_at(table + 24), keys + 8 * int64_at(table + 32)
    if count > 1:
        store(to, np.uint8(_BRACKET))
        to += 1
    for place in range(count):
        column = int64_at(key + 8 * place)
        span = spans + 8 + 32 * column
        start, length = int64_at(span), int64_at(span + 8)
        text, text_bytes = int64_at(span + 16), int64_at(span + 24)
        if length < 0:
            return _FAILED
        if count == 1:
            # The plain text. Only of bytes it is not that of PostgreSQL.
            kind = int64_at(columns + 24 * (int64_at(table + 16) + column))
            if kind == _OCTETS:
                copy(to, text + 1, text_bytes - 2)
                return to + text_bytes - 2
            if kind == _TRUTH:
                start, length = text, text_bytes
            copy(to, start, length)
            return to + length
        if place:
            store(to, np.uint8(_COMMA))
            to += 1
        copy(to, text, text_bytes)
        to += text_bytes
    store(to, np.uint8(_BRACKET_END))
    return to + 1


@inlined
def _table_of(oid: Any, tables: Any, count: Any) -> Any:
    """Return the place of a table among those that are sorted by oid; -1 if it is unknown."""
    low, high = np.int64(0), count
    while low < high:
        middle = (low + high) >> 1
        if int64_at(tables + 40 * middle) < oid:
            low = middle + 1
        else:
            high = middle
    return low if low < count and int64_at(tables + 40 * low) == oid else np.int64(-1)


@inlined
def _escaped(letter: Any) -> Any:
    """Return the character that a backslash and a letter are in COPY."""
    for place, each in enumerate((98, 116, 110, 118, 102, 114), 8):
        if letter == each:
            return np.uint8(place)
    return letter


@called
def _put_copied_row(
    at: Any, end: Any, table: Any, columns: Any, heads: Any, to: Any, spans: Any
) -> Any:
    """Write the image of a row of COPY as `_put_row` does; its escapes are resolved in place."""
    count, span = int64_at(table + 8), spans + 8
    column = columns + 24 * int64_at(table + 16)
    store(to, np.uint8(_BRACE))
    to += 1
    for place in range(count):
        if place:
            store(to, np.uint8(_COMMA))
            to += 1
        head, head_bytes = int64_at(column + 8), int64_at(column + 16)
        copy(to, heads + head, head_bytes)
        to += head_bytes
        start, stop = at, at
        is_null = at + 1 < end and uint8_at(at) == _ESCAPE and uint8_at(at + 1) == _NO_VALUE
        while at < end:
            byte = uint8_at(at)
            if byte in (_TAB, _LINE_END):
                break
            if byte == _ESCAPE and at + 1 < end:
                at += 1
                byte = _escaped(uint8_at(at))
            if stop < at:
                store(stop, byte)
            at += 1
            stop += 1
        if at >= end or uint8_at(at) != (_TAB if place + 1 < count else _LINE_END):
            return _FAILED
        at += 1
        begun, length = to, np.int64(-1) if is_null else stop - start
        if is_null:
            store(to, np.uint32(0x6C6C756E))
            to += 4
        else:
            to = _put_value(to, int64_at(column), start, length)
        store(span, start)
        store(span + 8, length)
        store(span + 16, begun)
        store(span + 24, to - begun)
        span += 32
        column += 24
    store(spans, at)
    store(to, np.uint8(_BRACE_END))
    return to + 1


def read_copied(
    data: Any,
    end: Any,
    table: Any,
    columns: Any,
    heads: Any,
    keys: Any,
    key_offsets: Any,
    key_values: Any,
    after_offsets: Any,
    after_values: Any,
    spans: Any,
) -> Any:
    """Read whole rows of COPY in its text form; return their number, negative if one cannot be read.

    Args:
        data: Address of the rows; they are changed.
        end: Address behind the rows.
        table: Address of the table, as in `read_changes`; the arguments after it likewise.
        columns: Address of the columns.
        heads: Address of the heads.
        keys: Address of the places of the key's columns.
        key_offsets: Output: offsets of the keys.
        key_values: Output: the keys.
        after_offsets: Output: offsets of the images.
        after_values: Output: the images.
        spans: Scratch memory.
    """
    row, key, after, at = np.int64(0), key_values, after_values, data
    while at < end:
        after = _put_copied_row(at, end, table, columns, heads, after, spans)
        if after <= 0:
            return np.int64(_FAILED)
        at = int64_at(spans)
        key = _put_key(key, table, columns, keys, spans)
        if key <= 0:
            return np.int64(_FAILED)
        row += 1
        store(key_offsets + 4 * row, np.int32(key - key_values))
        store(after_offsets + 4 * row, np.int32(after - after_values))
    return row


def read_changes(
    data: Any,
    offsets: Any,
    messages: Any,
    tables: Any,
    table_count: Any,
    columns: Any,
    heads: Any,
    keys: Any,
    numbers: Any,
    key_offsets: Any,
    key_values: Any,
    before_offsets: Any,
    before_values: Any,
    after_offsets: Any,
    after_values: Any,
    transactions: Any,
    spans: Any,
) -> Any:
    """Read whole transactions; return the number of messages of those that were read.

    The loop ends before a transaction that has no end, and after one that describes a table. A transaction that
    it does not handle has no rows.

    Args:
        data: Address of the messages, one after another.
        offsets: Address of the start of each message, and of the end of the last, int64.
        messages: Number of messages; the first begins a transaction.
        tables: Address of five int64 for each table, in ascending order of the oids: oid, number of columns,
            place of the first column, number of key columns, place of the first key column.
        table_count: Number of tables.
        columns: Address of three int64 for each column: a `TableText`, start and length of its head.
        heads: Address of the heads: the names of columns as JSON, with the colon.
        keys: Address of the places of the key's columns in their table, int64.
        numbers: Output: two int64 for each row: place of the table, the message's letter.
        key_offsets: Output: as for an Arrow column, int32; the others likewise.
        key_values: Output: the keys.
        before_offsets: Output: offsets; empty where the row before was not sent as a whole.
        before_values: Output: the images before.
        after_offsets: Output: offsets; empty for a removal.
        after_values: Output: the images after.
        transactions: Output: six int64 for each transaction: its first message, the message after its last,
            its first row, the row after its last (-1: left to Python), its xid, its time in µs since 2000. A
            zero follows the last one.
        spans: Scratch memory: one int64, and four for each column of the widest table.
    """
    row, key, before, after = np.int64(0), key_values, before_values, after_values
    done, message, found = np.int64(0), np.int64(0), transactions
    first_row, first_key, first_before, first_after = row, key, before, after
    is_left: Any = False
    is_last = False
    while message < messages:
        start = data + int64_at(offsets + 8 * message)
        end = data + int64_at(offsets + 8 * message + 8)
        letter = uint8_at(start) if end > start else np.uint8(0)
        message += 1
        if letter == _BEGIN and end - start == 21:
            first_row, first_key, first_before, first_after = row, key, before, after
            is_left = False
            store(found, message - 1)
            store(found + 32, _u32(start + 17))
            store(found + 40, _u64(start + 9))
        elif letter == _COMMIT and end - start == 26:
            if is_left:
                row, key, before, after = first_row, first_key, first_before, first_after
            store(found + 8, message)
            store(found + 16, first_row)
            store(found + 24, np.int64(-1) if is_left else row)
            found += 48
            done = message
            if is_last:
                break
        elif letter == _RELATION:
            is_left = is_last = True
        elif is_left or letter in (_ORIGIN, _TYPE, _MESSAGE):
            continue
        elif letter in (_INSERT, _UPDATE, _DELETE):
            place = np.int64(-1)
            if end - start > 8:
                place = _table_of(_u32(start + 1), tables, table_count)
            is_left = place < 0
            if is_left:
                continue
            table = tables + 40 * place
            at = start + 5
            store(key_offsets + 4 * row, np.int32(key - key_values))
            store(before_offsets + 4 * row, np.int32(before - before_values))
            store(after_offsets + 4 * row, np.int32(after - after_values))
            behind = np.int64(0)
            # 1. The row before, if all of it was sent.
            if letter != _INSERT and uint8_at(at) == _OLD:
                before = _put_row(at + 1, end, table, columns, heads, before, spans)
                if before > 0:
                    at = int64_at(spans)
                    behind = _put_key(key, table, columns, keys, spans)
                is_left = before <= 0 or behind <= 0
            elif letter == _DELETE:
                # The old row has only the key. Its image is written behind the images, and not counted.
                end_of_image = _put_row(at + 1, end, table, columns, heads, after, spans)
                if end_of_image > 0:
                    at = int64_at(spans)
                    behind = _put_key(key, table, columns, keys, spans)
                is_left = end_of_image <= 0 or behind <= 0
            # 2. The row after. An update of the key is left to Python.
            if letter != _DELETE and not is_left:
                if at < end and uint8_at(at) == _NEW:
                    after = _put_row(at + 1, end, table, columns, heads, after, spans)
                else:
                    after = np.int64(_FAILED)
                if after > 0:
                    at = int64_at(spans)
                    if behind:
                        other = _put_key(behind, table, columns, keys, spans)
                        size = behind - key
                        is_left = other - behind != size or not are_equal(key, behind, size)
                    else:
                        behind = _put_key(key, table, columns, keys, spans)
                        is_left = behind <= 0
                else:
                    is_left = True
            is_left = is_left or at != end
            if not is_left:
                key = behind
                store(numbers + 16 * row, place)
                store(numbers + 16 * row + 8, np.int64(letter))
                row += 1
                store(key_offsets + 4 * row, np.int32(key - key_values))
                store(before_offsets + 4 * row, np.int32(before - before_values))
                store(after_offsets + 4 * row, np.int32(after - after_values))
        else:
            is_left = True
    store(found, np.int64(-1))
    return done
