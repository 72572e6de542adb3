"""Python that numba compiles to machine code which runs without the GIL.

Import it only from modules that are loaded on demand: importing numba takes about a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

_F = TypeVar("_F", bound="Callable[..., Any]")


def compiled(*signature: Any) -> Callable[[Any], Any]:
    """Return a decorator that compiles a function, or takes its code from numba's cache.

    Args:
        signature: A signature of numba, compiled for at once. None: on each first call with new types.
    """

    def compile_(function: Any) -> Any:
        try:
            return numba.njit(*signature, nogil=True, cache=True)(function)
        except RuntimeError:  # there is nowhere to write a cache
            return numba.njit(*signature, nogil=True)(function)

    return compile_


def inlined(function: _F) -> _F:
    """Have compiled code contain a function's body wherever it calls the function."""
    return numba.njit(inline="always")(function)  # type: ignore[no-any-return]


def called(function: _F) -> _F:
    """Compile a function for compiled callers, whose caches hold its code."""
    return numba.njit(function)  # type: ignore[no-any-return]


def number_at(kind: Any) -> Any:
    """Return a function for compiled code: the number of type ``kind`` at an address, aligned or not."""

    @intrinsic  # type: ignore[untyped-decorator]
    def at_address(context: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = ir.IntType(kind.bitwidth).as_pointer()
            loaded = builder.load(builder.inttoptr(arguments[0], pointer))
            loaded.align = 1
            return loaded

        return kind(types.int64), generate

    return at_address


_uint8_at = number_at(types.uint8)


@inlined
def is_present(validity: Any, row: Any) -> Any:
    """Return whether a row of an Arrow column has a value; ``validity`` 0: the column has no bitmap."""
    return validity == 0 or (_uint8_at(validity + (row >> 3)) >> (row & 7)) & 1 != 0


@intrinsic  # type: ignore[untyped-decorator]
def _copy_many(context: Any, to: Any, origin: Any, length: Any) -> Any:
    """Copy bytes from address to address by the C library."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin = (builder.inttoptr(each, ir.IntType(8).as_pointer()) for each in arguments[:2])
        cgutils.raw_memcpy(builder, to, origin, arguments[2], itemsize=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _move(bits: int) -> Any:
    """Return a copy of so many bits from address to address, in one register."""

    @intrinsic  # type: ignore[untyped-decorator]
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


_move4, _move8, _move16 = _move(32), _move(64), _move(128)


@intrinsic  # type: ignore[untyped-decorator]
def store(context: Any, at: Any, number: Any) -> Any:
    """Store a number in its own width, little-endian, at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, number = arguments
        builder.store(number, builder.inttoptr(at, number.type.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, number), generate


@inlined
def copy(to: Any, origin: Any, length: Any) -> None:
    """Copy bytes from address to address: up to 512 by moves, as a call takes longer than those."""
    # The last move ends with the last byte and may overlap the one before, so that no byte beyond the
    # text is read or written: behind it another column's memory may begin, or none.
    if length > 512:
        _copy_many(to, origin, length)
    elif length >= 16:
        last = length - 16
        at = 0
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
            store(to + at, _uint8_at(origin + at))
