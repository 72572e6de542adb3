"""Primitives of the loops: numbers at addresses, copies and comparisons of bytes, bits of validity bitmaps."""

# mypy: disable-error-code="untyped-decorator,no-any-return"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

_F = TypeVar("_F", bound="Callable[..., Any]")


def inlined(function: _F) -> _F:
    """Decorate a function whose body is inserted into the compiled code of each caller."""
    return numba.njit(inline="always")(function)


def called(function: _F) -> _F:
    """Decorate a function that compiled code calls."""
    return numba.njit(function)


def _number_at(kind: Any) -> Any:
    """Return a function for compiled code that reads a number of a type at an address, aligned or not."""

    @intrinsic
    def at_address(context: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = ir.IntType(kind.bitwidth).as_pointer()
            loaded = builder.load(builder.inttoptr(arguments[0], pointer))
            loaded.align = 1
            return loaded

        return kind(types.int64), generate

    return at_address


uint8_at, uint32_at, uint64_at = map(_number_at, (types.uint8, types.uint32, types.uint64))
int32_at, int64_at = map(_number_at, (types.int32, types.int64))


@intrinsic
def store(context: Any, at: Any, number: Any) -> Any:
    """Store a number at an address, aligned or not, little-endian and in the width of its type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, number = arguments
        builder.store(number, builder.inttoptr(at, number.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, number), generate


@intrinsic
def trailing_zeros(context: Any, word: Any) -> Any:
    """Return the number of zero bits below the lowest set bit of a word; the word must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


WIDE: Final = 32
"""Number of bytes that `marks_of` and `differences_of` read at once."""


def _vector(builder: Any, at: Any) -> Any:
    """Return the bytes at an address as one vector."""
    pointer = ir.VectorType(ir.IntType(8), WIDE).as_pointer()
    loaded = builder.load(builder.inttoptr(at, pointer))
    loaded.align = 1
    return loaded


def _every(number: int) -> Any:
    """Return a vector that has one number in every byte."""
    return ir.Constant(ir.VectorType(ir.IntType(8), WIDE), [number] * WIDE)


def marks_of(first: int, last: int) -> Any:
    """Return a function for compiled code that marks bytes from ``first`` to ``last``, both inclusive.

    The function reads `WIDE` bytes at an address; bit n of its result is 1 if byte n is in the range.
    """

    @intrinsic
    def marks_at(context: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            above = builder.sub(_vector(builder, arguments[0]), _every(first))
            marks = builder.icmp_unsigned("<=", above, _every(last - first))
            return builder.zext(builder.bitcast(marks, ir.IntType(WIDE)), ir.IntType(64))

        return types.uint64(types.int64), generate

    return marks_at


@intrinsic
def differences_of(context: Any, one: Any, other: Any) -> Any:
    """Return a number whose bit n is 1 if the bytes n at two addresses differ, for `WIDE` bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, other = (_vector(builder, each) for each in arguments)
        marks = builder.icmp_unsigned("!=", one, other)
        return builder.zext(builder.bitcast(marks, ir.IntType(WIDE)), ir.IntType(64))

    return types.uint64(types.int64, types.int64), generate


def _move(bits: int) -> Any:
    """Return a function for compiled code that copies ``bits`` bits between two addresses by one register."""

    @intrinsic
    def move(context: Any, to: Any, origin: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = ir.VectorType(ir.IntType(8), bits // 8).as_pointer()
            to, origin = (builder.inttoptr(each, pointer) for each in arguments)
            loaded = builder.load(origin)
            loaded.align = 1
            builder.store(loaded, to).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return move


_move4, _move8, _move16, _move64 = _move(32), _move(64), _move(128), _move(512)


@inlined
def copy(to: Any, origin: Any, length: Any) -> None:
    """Copy bytes between two addresses, by moves of whole registers."""
    # The last move ends with the last byte and may overlap the move before it. So no byte after the text is
    # read or written: that memory may belong to another column, or may not be allocated.
    if length >= 16:
        last = length - 16
        at = 0
        while at + 64 <= length:
            _move64(to + at, origin + at)
            at += 64
        while at < last:
            _move16(to + at, origin + at)
            at += 16
        _move16(to + last, origin + last)
    elif length >= 8:
        _move8(to, origin)
        _move8(to + length - 8, origin + length - 8)
    elif length >= 4:
        _move4(to, origin)
        _move4(to + length - 4, origin + length - 4)
    else:
        for at in range(length):
            store(to + at, uint8_at(origin + at))


@called
def are_equal(one: Any, other: Any, length: Any) -> Any:
    """Return True if ``length`` bytes at two addresses are equal."""
    place = 0
    while place + 8 <= length and uint64_at(one + place) == uint64_at(other + place):
        place += 8
    while place < length and uint8_at(one + place) == uint8_at(other + place):
        place += 1
    return place == length


@inlined
def is_present(validity: Any, row: Any) -> Any:
    """Return True if a row of an Arrow column is not null; with ``validity`` 0 the column has no nulls."""
    return validity == 0 or (uint8_at(validity + (row >> 3)) >> (row & 7)) & 1 != 0


@inlined
def borders_of(offsets: Any, values: Any, row: Any) -> Any:
    """Return the address of a row's first byte, and the address after its last byte."""
    at = offsets + 4 * row
    return values + np.int64(int32_at(at)), values + np.int64(int32_at(at + 4))


@called
def place_of(start: Any, length: Any, first: Any, stop: Any, offsets: Any, texts: Any) -> Any:
    """Return the place of a text among a column's texts from ``first`` up to ``stop``, exclusive; else -1."""
    for each in range(first, stop):
        at, end = borders_of(offsets, texts, each)
        if end - at == length and are_equal(start, at, length):
            return each
    return -1
