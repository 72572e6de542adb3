"""Loops over the updates of CDCv2: they divide Avro messages into updates, find duplicates, and copy data.

`pipeline/cdcv2/cutting.py` describes the *program* by which `cut_messages` reads the data of an update.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace_server.machine_code.loops.codes import (
    BOOLEAN,
    BYTES,
    END,
    ENUM,
    FLOAT,
    INT,
    JUMP,
    LONG,
    SKIP,
    TEXT,
    UNION,
)
from tailrace_server.machine_code.loops.primitives import (
    are_equal,
    called,
    copy,
    int64_at,
    store,
    uint8_at,
    uint64_at,
)


@called
def _varint(at: Any, end: Any) -> Any:
    """Return a zigzag number and the place after it; -1 as the place if it is incomplete or invalid.

    Invalid numbers are those with more than 64 bits, or with more bytes than necessary.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    while True:
        if at >= end or shift > np.uint64(63):
            return np.int64(0), np.int64(-1)
        byte = np.uint64(uint8_at(at))
        at += 1
        # The tenth byte has only one bit of the 64.
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            # A last byte of 0 adds nothing: the number has a shorter encoding.
            if byte == np.uint64(0) and shift > np.uint64(0):
                return np.int64(0), np.int64(-1)
            break
        shift += np.uint64(7)
    half = np.int64(value >> np.uint64(1))
    return (~half if value & np.uint64(1) else half), np.int64(at)


@called
def _is_utf8(at: Any, end: Any) -> Any:
    """Return True if bytes are valid UTF-8."""
    while at < end:
        first = uint8_at(at)
        if first < 0x80:
            at += 1
            continue
        # The bounds of the second byte exclude overlong forms, surrogates, and code points above U+10FFFF.
        if 0xC2 <= first <= 0xDF:
            more, low, high = 1, 0x80, 0xBF
        elif 0xE0 <= first <= 0xEF:
            more, low, high = 2, 0xA0 if first == 0xE0 else 0x80, 0x9F if first == 0xED else 0xBF
        elif 0xF0 <= first <= 0xF4:
            more, low, high = 3, 0x90 if first == 0xF0 else 0x80, 0x8F if first == 0xF4 else 0xBF
        else:
            return False
        if at + more >= end or not low <= uint8_at(at + 1) <= high:
            return False
        for place in range(at + 2, at + more + 1):
            if not 0x80 <= uint8_at(place) <= 0xBF:
                return False
        at += more + 1
    return True


@called
def _has_one_encoding(at: Any, size: Any) -> Any:
    """Return True if a float of 4 or 8 bytes has only one encoding: it is neither -0.0 nor NaN."""
    top = uint8_at(at + size - 1) & 0x7F
    next_ = uint8_at(at + size - 2)
    rest = np.uint8(0)
    for place in range(at, at + size - 2):
        rest |= uint8_at(place)
    if top == 0 and next_ == 0 and rest == 0:
        return uint8_at(at + size - 1) == 0
    exponent = np.uint8(0x80 if size == 4 else 0xF0)
    if top == 0x7F and next_ & exponent == exponent:
        return next_ == exponent and rest == 0
    return True


@called
def _skip(at: Any, end: Any, program: Any) -> Any:
    """Return the place after a datum; -1 if it is incomplete or does not match the schema of the program."""
    pc = 0
    while True:
        op = int64_at(program + 8 * pc)
        if op == END:
            return at
        if op in (LONG, INT):
            value, at = _varint(at, end)
            if at < 0 or (op == INT and not -(2**31) <= value < 2**31):
                return np.int64(-1)
            pc += 1
        elif op == SKIP:
            at += int64_at(program + 8 * pc + 8)
            if at > end:
                return np.int64(-1)
            pc += 2
        elif op in (BYTES, TEXT):
            value, at = _varint(at, end)
            if at < 0 or value < 0 or value > end - at:
                return np.int64(-1)
            if op == TEXT and not _is_utf8(at, at + value):
                return np.int64(-1)
            at += value
            pc += 1
        elif op == BOOLEAN:
            if at >= end or uint8_at(at) > 1:
                return np.int64(-1)
            at += 1
            pc += 1
        elif op == ENUM:
            value, at = _varint(at, end)
            if at < 0 or not 0 <= value < int64_at(program + 8 * pc + 8):
                return np.int64(-1)
            pc += 2
        elif op == UNION:
            value, at = _varint(at, end)
            if at < 0 or not 0 <= value < int64_at(program + 8 * pc + 8):
                return np.int64(-1)
            pc = int64_at(program + 8 * (pc + 2 + value))
        elif op == JUMP:
            pc = int64_at(program + 8 * pc + 8)
        else:
            size = 4 if op == FLOAT else 8
            if at + size > end or not _has_one_encoding(at, size):
                return np.int64(-1)
            at += size
            pc += 1


@called
def _block(at: Any, end: Any) -> Any:
    """Return the number of items in an Avro array's next block, and the place of the first; -1 if damaged."""
    # A negative number is followed by the size of the block in bytes, which is not needed here.
    items, at = _varint(at, end)
    if at >= 0 and items < 0:
        items = -items
        _, at = _varint(at, end)
    if at >= 0 and items < 0:
        at = np.int64(-1)
    return items, at


def cut_messages(
    data: Any,
    size: Any,
    messages: Any,
    program: Any,
    room: Any,
    starts: Any,
    lengths: Any,
    times: Any,
    diffs: Any,
    message_of: Any,
    progress: Any,
    done: Any,
) -> Any:
    """Divide messages into updates and progress statements, up to the first invalid message; return 0.

    Args:
        data: Address of the bytes of the messages.
        size: Number of bytes.
        messages: Number of messages.
        program: Address of the program, int64, by which `_skip` reads the ``data`` of an update.
        room: Number of updates for which the outputs have room; no more are read.
        starts: Output: the start of each update's data, counted from ``data``, int64.
        lengths: Output: the length of each update's data, int64.
        times: Output: the time of each update, int64.
        diffs: Output: the diff of each update, int64.
        message_of: Output: the number of each update's message, from 0, int64.
        progress: Output, int64: for each progress statement its message, then lower, upper and counts. Each of
            these three is the number of elements and the elements; an element of counts is two numbers. This
            output needs room for four numbers for each message, and one for each byte.
        done: Output, four int64: the number of updates, the number of int64 in ``progress``, the number of
            complete messages, and the place after the last of them.
    """
    at, end = data, data + size
    updates, numbers = np.int64(0), np.int64(0)
    for message in range(messages):
        # Note what is complete before each message. After a return within a message, its outputs are not
        # counted.
        _put_done(done, updates, numbers, message, at - data)
        branch, at = _varint(at, end)
        if at < 0:
            return 0
        # 1. A batch of updates: an Avro array in blocks, ended by a block of 0 items.
        if branch == 0:
            while True:
                items, at = _block(at, end)
                if at < 0:
                    return 0
                if items == 0:
                    break
                for _ in range(items):
                    stop = _skip(at, end, program)
                    if stop < 0 or updates >= room:
                        return 0
                    time, behind = _varint(stop, end)
                    if behind < 0:
                        return 0
                    diff, behind = _varint(behind, end)
                    if behind < 0:
                        return 0
                    store(starts + 8 * updates, at - data)
                    store(lengths + 8 * updates, stop - at)
                    store(times + 8 * updates, time)
                    store(diffs + 8 * updates, diff)
                    store(message_of + 8 * updates, np.int64(message))
                    at = behind
                    updates += 1
        # 2. A progress statement.
        elif branch == 1:
            store(progress + 8 * numbers, np.int64(message))
            numbers += 1
            for part in range(3):
                # The number of elements is known only after the last block: leave its place free until then.
                elements, counted = progress + 8 * numbers, np.int64(0)
                numbers += 1
                while True:
                    items, at = _block(at, end)
                    if at < 0:
                        return 0
                    if items == 0:
                        break
                    for _ in range(items * 2 if part == 2 else items):
                        value, at = _varint(at, end)
                        if at < 0:
                            return 0
                        store(progress + 8 * numbers, value)
                        numbers += 1
                    counted += items
                store(elements, counted)
        else:
            return 0
    _put_done(done, updates, numbers, messages, at - data)
    return 0


@called
def _put_done(done: Any, updates: Any, numbers: Any, messages: Any, place: Any) -> None:
    """Write the four numbers of ``done``, as `cut_messages` describes them."""
    store(done, np.int64(updates))
    store(done + 8, np.int64(numbers))
    store(done + 16, np.int64(messages))
    store(done + 24, np.int64(place))


def mark_distinct(
    rows: Any,
    hashes: Any,
    times: Any,
    diffs: Any,
    data: Any,
    offsets: Any,
    table: Any,
    table_size: Any,
    both: Any,
    keep: Any,
    conflict: Any,
) -> Any:
    """Mark the updates that are not duplicates of earlier ones; return the number of conflicts.

    Two updates with the same data and time are duplicates if their diffs are equal, and conflict if not.

    Args:
        rows: Number of updates.
        hashes: Address of the hash of each update, uint64.
        times: Address of the time of each update, int64.
        diffs: Address of the diff of each update, int64.
        data: Address of the data of all updates.
        offsets: Address of the start of each update's data, and the end of the last, int64.
        table: Scratch memory: a hash table of int64, which the caller fills with -1.
        table_size: Size of the table: a power of two above the number of updates.
        both: 1 to keep the second of two updates that conflict, else 0.
        keep: Output: a byte for each update, 1 if it is to be kept, else 0.
        conflict: Output: the rows of the first two updates that conflict, two int64.
    """
    mask = np.uint64(table_size - 1)
    conflicts = 0
    for row in range(rows):
        value, time = uint64_at(hashes + 8 * row), int64_at(times + 8 * row)
        at = int64_at(offsets + 8 * row)
        size = int64_at(offsets + 8 * row + 8) - at
        # Open addressing: search the slots from the hash on, up to an equal update or an empty slot.
        slot = np.int64(value & mask)
        kept = np.uint8(1)
        while True:
            other = int64_at(table + 8 * slot)
            if other < 0:
                store(table + 8 * slot, np.int64(row))
                break
            base = int64_at(offsets + 8 * other)
            if (
                uint64_at(hashes + 8 * other) == value
                and int64_at(times + 8 * other) == time
                and int64_at(offsets + 8 * other + 8) - base == size
                and are_equal(data + at, data + base, size)
            ):
                if int64_at(diffs + 8 * row) == int64_at(diffs + 8 * other):
                    kept = np.uint8(0)
                else:
                    if conflicts == 0:
                        store(conflict, np.int64(other))
                        store(conflict + 8, np.int64(row))
                    conflicts += 1
                    kept = np.uint8(both)
                break
            # The table is never full, so the search ends at an empty slot.
            slot = (slot + 1) & np.int64(mask)
        store(keep + row, kept)
    return conflicts


def gather(data: Any, pieces: Any, starts: Any, lengths: Any, out: Any, offsets: Any) -> Any:
    """Copy pieces of bytes end to end; return the total length.

    Args:
        data: Address of the bytes.
        pieces: Number of pieces.
        starts: Address of the start of each piece, counted from ``data``, int64.
        lengths: Address of the length of each piece, int64.
        out: Output: the pieces.
        offsets: Output: the start of each piece in ``out``, and the end of the last, int64.
    """
    to = np.int64(0)
    for piece in range(pieces):
        store(offsets + 8 * piece, to)
        length = int64_at(lengths + 8 * piece)
        copy(out + to, data + int64_at(starts + 8 * piece), length)
        to += length
    store(offsets + 8 * pieces, to)
    return to
