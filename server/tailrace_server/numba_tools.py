"""Python that numba compiles to machine code which runs without the GIL.

Import it only from modules that are loaded once there is work for them: numba takes about a second.
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
    """Return a decorator that compiles, or takes the code from the cache.

    Args:
        signature: Of numba; compiled for it at once. Without one, on first use, for what is given then.
    """

    def compile_(function: Any) -> Any:
        try:
            return numba.njit(*signature, nogil=True, cache=True)(function)
        except RuntimeError:  # there is nowhere to write a cache
            return numba.njit(*signature, nogil=True)(function)

    return compile_


def inlined(function: _F) -> _F:
    """Make a part of compiled code of a function, wherever it is called there."""
    return numba.njit(inline="always")(function)  # type: ignore[no-any-return]


def called(function: _F) -> _F:
    """Make a function that compiled code may call; it lies in the caches of its callers."""
    return numba.njit(function)  # type: ignore[no-any-return]


def load(kind: Any) -> Any:
    """Return what loads a number of numba's type ``kind`` from an address in compiled code, aligned or not."""

    @intrinsic  # type: ignore[untyped-decorator]
    def load_(context: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = ir.IntType(kind.bitwidth).as_pointer()
            loaded = builder.load(builder.inttoptr(arguments[0], pointer))
            loaded.align = 1
            return loaded

        return kind(types.int64), generate

    return load_


_uint8_at = load(types.uint8)


@inlined
def is_present(validity: Any, row: Any) -> Any:
    """Return whether a row of an Arrow column has a value, by the address of its bitmap; 0: all have one."""
    return validity == 0 or (_uint8_at(validity + (row >> 3)) >> (row & 7)) & 1 != 0
