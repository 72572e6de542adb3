"""Python that numba compiles to machine code which runs without the GIL.

Import it only from modules that are loaded once there is work for them: numba takes about a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba

if TYPE_CHECKING:
    from collections.abc import Callable


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
