"""Swap two folders in one step, as an operator does who restores a log that is never to be missing."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def swap(one: Path, other: Path) -> None:
    """Exchange the names of two folders of one file system."""
    renamed = ctypes.CDLL(None, use_errno=True).renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    )
    if renamed != 0:
        raise OSError(ctypes.get_errno(), f"cannot exchange {one} and {other}")
