"""Python that numba compiles to machine code which runs without the GIL.

Import it only from modules that are loaded on demand: importing numba takes about a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numba
from llvmlite import ir
from numba import types
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
