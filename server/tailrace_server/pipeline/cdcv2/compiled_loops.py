"""The loops over millions of updates: cutting Avro apart, hashing, finding duplicates, copying.

Numba compiles them on first use, or loads them from its cache. Loading takes about a second, so they serve
batches of tens of thousands of updates (`updates.COMPILED_ROWS`). Each loop has a plain twin in `cutting` or
`updates`; tests compare the two.

`cutting` describes the *program* of `cut`. Numbers are int64 unless a docstring says otherwise.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return"

from __future__ import annotations

import numpy as np

from tailrace_server.numba_tools import compiled

END, LONG, INT, SKIP, BYTES, TEXT, BOOLEAN, ENUM, UNION, JUMP, FLOAT, DOUBLE = range(12)
"""Operations of a program."""

_WORD = np.uint64(0x9E3779B97F4A7C15)
_LENGTH = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


@compiled()
def _varint(data, at, end):  # type: ignore[no-untyped-def]
    """Return a zigzag number and where it ends; -1 where it is cut short, overlong or beyond 64 bits."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while True:
        if at >= end or shift > np.uint64(63):
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            if byte == np.uint64(0) and shift > np.uint64(0):
                return np.int64(0), np.int64(-1)
            break
        shift += np.uint64(7)
    half = np.int64(value >> np.uint64(1))
    return (~half if value & np.uint64(1) else half), np.int64(at)


@compiled()
def _is_utf8(data, at, end):  # type: ignore[no-untyped-def]
    while at < end:
        first = data[at]
        if first < 0x80:
            at += 1
            continue
        if 0xC2 <= first <= 0xDF:
            more, low, high = 1, 0x80, 0xBF
        elif 0xE0 <= first <= 0xEF:
            more, low, high = 2, 0xA0 if first == 0xE0 else 0x80, 0x9F if first == 0xED else 0xBF
        elif 0xF0 <= first <= 0xF4:
            more, low, high = 3, 0x90 if first == 0xF0 else 0x80, 0x8F if first == 0xF4 else 0xBF
        else:
            return False
        if at + more >= end or not low <= data[at + 1] <= high:
            return False
        for place in range(at + 2, at + more + 1):
            if not 0x80 <= data[place] <= 0xBF:
                return False
        at += more + 1
    return True


@compiled()
def _is_one_of_its_kind(data, at, size):  # type: ignore[no-untyped-def]
    """Whether a float has no other encoding that is equal: it is neither minus zero nor NaN."""
    top = data[at + size - 1] & 0x7F
    next_ = data[at + size - 2]
    rest = np.uint8(0)
    for place in range(at, at + size - 2):
        rest |= data[place]
    if top == 0 and next_ == 0 and rest == 0:
        return data[at + size - 1] == 0
    exponent = np.uint8(0x80 if size == 4 else 0xF0)
    if top == 0x7F and next_ & exponent == exponent:
        return next_ == exponent and rest == 0
    return True


@compiled()
def _skip(data, at, end, program):  # type: ignore[no-untyped-def]
    """Return where a datum ends; -1 if it does not have the program's schema."""
    pc = 0
    while True:
        op = program[pc]
        if op == END:
            return at
        if op in (LONG, INT):
            value, at = _varint(data, at, end)
            if at < 0 or (op == INT and not -(2**31) <= value < 2**31):
                return np.int64(-1)
            pc += 1
        elif op == SKIP:
            at += program[pc + 1]
            if at > end:
                return np.int64(-1)
            pc += 2
        elif op in (BYTES, TEXT):
            value, at = _varint(data, at, end)
            if at < 0 or value < 0 or value > end - at:
                return np.int64(-1)
            if op == TEXT and not _is_utf8(data, at, at + value):
                return np.int64(-1)
            at += value
            pc += 1
        elif op == BOOLEAN:
            if at >= end or data[at] > 1:
                return np.int64(-1)
            at += 1
            pc += 1
        elif op == ENUM:
            value, at = _varint(data, at, end)
            if at < 0 or not 0 <= value < program[pc + 1]:
                return np.int64(-1)
            pc += 2
        elif op == UNION:
            value, at = _varint(data, at, end)
            if at < 0 or not 0 <= value < program[pc + 1]:
                return np.int64(-1)
            pc = program[pc + 2 + value]
        elif op == JUMP:
            pc = program[pc + 1]
        else:
            size = 4 if op == FLOAT else 8
            if at + size > end or not _is_one_of_its_kind(data, at, size):
                return np.int64(-1)
            at += size
            pc += 1


@compiled()
def _block(data, at, end):  # type: ignore[no-untyped-def]
    """Return the items of an Avro array's next block, and where the first begins; -1 where it is damaged."""
    items, at = _varint(data, at, end)
    if at >= 0 and items < 0:
        items = -items
        _, at = _varint(data, at, end)
    if at >= 0 and items < 0:
        at = np.int64(-1)
    return items, at


@compiled()
def cut(data, at, messages, program, starts, lengths, times, diffs, which, progress, done):  # type: ignore[no-untyped-def]
    """Cut messages apart, as far as they are whole.

    Args:
        data: The bytes, uint8.
        at: Where the first message begins.
        messages: How many there are.
        program: Of `_skip`, for ``data`` of an update.
        starts: Out: where the data of each update begins.
        lengths: Out: bytes of it.
        times: Out: its time.
        diffs: Out: its diff.
        which: Out: the number of its message, from 0.
        progress: Out: for each progress statement its message, then lower, upper and counts, each as
            (number of elements, elements), a count being two numbers.
        done: Out, of 4: updates, numbers of progress, whole messages, where the last whole one ended.
    """
    end = np.int64(len(data))
    updates = np.int64(0)
    told = np.int64(0)
    for message in range(messages):
        done[0], done[1], done[2], done[3] = updates, told, message, at
        branch, at = _varint(data, at, end)
        if at < 0:
            return
        if branch == 0:
            while True:
                items, at = _block(data, at, end)
                if at < 0:
                    return
                if items == 0:
                    break
                for _ in range(items):
                    stop = _skip(data, at, end, program)
                    if stop < 0 or updates >= len(starts):
                        return
                    starts[updates], lengths[updates] = at, stop - at
                    times[updates], at = _varint(data, stop, end)
                    if at < 0:
                        return
                    diffs[updates], at = _varint(data, at, end)
                    if at < 0:
                        return
                    which[updates] = message
                    updates += 1
        elif branch == 1:
            progress[told] = message
            told += 1
            for part in range(3):
                size = told
                progress[size] = 0
                told += 1
                while True:
                    items, at = _block(data, at, end)
                    if at < 0:
                        return
                    if items == 0:
                        break
                    for _ in range(items * 2 if part == 2 else items):
                        value, at = _varint(data, at, end)
                        if at < 0:
                            return
                        progress[told] = value
                        told += 1
                    progress[size] += items
        else:
            return
    done[0], done[1], done[2], done[3] = updates, told, messages, at


@compiled()
def hashes(data, offsets, times, out):  # type: ignore[no-untyped-def]
    """Put the hash of each (data, time) into ``out``, uint64: `wal.record.key_hash`, seeded with the time."""
    for row in range(len(times)):
        value = np.uint64(times[row]) * _WORD
        at, end = offsets[row], offsets[row + 1]
        length = np.uint64(end - at)
        while at < end:
            word = np.uint64(0)
            for place in range(min(8, end - at)):
                word |= np.uint64(data[at + place]) << np.uint64(8 * place)
            value = (value ^ word) * _WORD
            value ^= value >> _HALF
            at += 8
        value = (value ^ length) * _LENGTH
        value ^= value >> _HALF
        out[row] = value if value else np.uint64(1)


@compiled()
def distinct(hashed, times, diffs, data, offsets, table, keep, conflict, both):  # type: ignore[no-untyped-def]
    """Mark the first update of each (data, time) in ``keep``, bool; return the number of conflicts.

    Args:
        hashed: Hash of each update, uint64.
        times: Time of each.
        diffs: Diff of each.
        data: The data of all, uint8.
        offsets: Where that of each begins and ends.
        table: Filled with -1; its size is a power of two above the number of updates.
        keep: Out.
        conflict: Out: the first pair of updates that differ in their diff.
        both: Whether the second of such a pair is kept too.
    """
    mask = np.uint64(len(table) - 1)
    conflicts = 0
    for row in range(len(times)):
        slot = hashed[row] & mask
        keep[row] = True
        while True:
            other = table[slot]
            if other < 0:
                table[slot] = row
                break
            if hashed[other] == hashed[row] and times[other] == times[row]:
                at, base = offsets[row], offsets[other]
                size = offsets[row + 1] - at
                if offsets[other + 1] - base == size:
                    same = True
                    for place in range(size):
                        if data[at + place] != data[base + place]:
                            same = False
                            break
                    if same:
                        if diffs[row] == diffs[other]:
                            keep[row] = False
                        else:
                            if conflicts == 0:
                                conflict[0], conflict[1] = other, row
                            conflicts += 1
                            keep[row] = both
                        break
            slot = (slot + np.uint64(1)) & mask
    return conflicts


@compiled()
def gather(data, starts, lengths, out, offsets):  # type: ignore[no-untyped-def]
    """Copy pieces of bytes one behind the other into ``out``, and where each begins into ``offsets``."""
    at = np.int64(0)
    for row in range(len(starts)):
        offsets[row] = at
        start = starts[row]
        for place in range(lengths[row]):
            out[at + place] = data[start + place]
        at += lengths[row]
    offsets[len(starts)] = at
