"""An object of the store as a file that Arrow reads."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_server.wal.files.object_store import OpenObject


class ObjectFile(io.RawIOBase):
    """Reads ranges of an object, from a place that it keeps. Not thread-safe.

    Close it: Arrow may keep a reference for longer than its reader.
    """

    def __init__(self, object: OpenObject) -> None:
        """Begin at byte 0."""
        super().__init__()
        self._object: OpenObject | None = object
        """None once closed."""
        self._place = 0

    def close(self) -> None:
        """Release the object."""
        self._object = None
        super().close()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte that is read."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a place, counted from the beginning, from here or from the end; return it."""
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._open().size()}
        self._place = starts[whence] + offset
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, at most ``size``, all that are left if that is negative."""
        if size < 0:
            size = max(0, self._open().size() - self._place)
        data = bytearray(size)
        length = self._open().read_into(memoryview(data), self._place)
        self._place += length
        return bytes(memoryview(data)[:length])

    def _open(self) -> OpenObject:
        if self._object is None:
            raise ValueError("the object is closed")
        return self._object
