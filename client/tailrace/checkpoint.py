"""The store in which a subscriber saves the cursor of the last capture that it has processed.

Save the cursor after the effects of the captures are durable, or in the same transaction. After a restart, all
captures after the saved cursor come again.
"""

from __future__ import annotations

import asyncio
import os
from inspect import isawaitable
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from tailrace.cursor import Cursor
from tailrace.errors import CursorInvalid, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable

_T = TypeVar("_T")


@runtime_checkable
class CheckpointStore(Protocol):
    """Store of one subscriber's cursor. Implement it in the database that the subscriber writes to."""

    async def load(self) -> Cursor | None:
        """Return the saved cursor; None if none was saved yet."""

    async def save(self, cursor: Cursor) -> None:
        """Replace the saved cursor. The new one is durable when this returns."""


async def load_from(store: CheckpointStore) -> Cursor | None:
    """Return the cursor that a store has saved; None if there is none.

    Raises:
        InvalidRequest: The store's ``load`` is not async.
    """
    return await _awaitable("load", store.load())


async def save_to(store: CheckpointStore, cursor: Cursor) -> None:
    """Save a cursor in a store.

    Raises:
        InvalidRequest: The store's ``save`` is not async; it was called once to find out.
    """
    await _awaitable("save", store.save(cursor))


def _awaitable(method: str, called: Awaitable[_T]) -> Awaitable[_T]:
    if not isawaitable(called):
        raise InvalidRequest(f"checkpoint: `{method}` of the store must be an async method")
    return called


class FileCheckpoint:
    """A checkpoint store in a file, which holds the text of the cursor and a newline.

    The file is replaced as a whole (temporary file, fsync, rename, fsync of the folder), so a crash leaves
    either the old or the new cursor. Only one subscriber may use a file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Store the path of the file; its folder must exist."""
        self._path = Path(path)
        self._saves = count(1)
        self._written = 0
        """Number of the save whose cursor the file has; 0: none by this object."""
        self._writing = Lock()

    async def load(self) -> Cursor | None:
        """Return the saved cursor; None if the file does not exist.

        Raises:
            CursorInvalid: The file holds something else than a cursor.
            OSError: The file cannot be read, or its folder does not exist.
        """
        return await asyncio.to_thread(self._load)

    async def save(self, cursor: Cursor) -> None:
        """Replace the file.

        The write runs in a thread. Cancelling the call does not stop that thread: the cursor is still saved,
        unless a later save has finished first.

        Raises:
            OSError: The file cannot be written; the old cursor remains.
        """
        await asyncio.to_thread(self._save, next(self._saves), f"{cursor}\n")

    def _load(self) -> Cursor | None:
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            # Without this check, a missing folder would be noticed at the first save, perhaps hours from now.
            self._path.parent.stat()
            return None
        try:
            return Cursor.parse(text.removesuffix("\n"))
        except CursorInvalid as error:
            raise CursorInvalid(f"{self._path} does not hold a cursor: {error}") from None

    def _save(self, number: int, text: str) -> None:
        # Saves run in threads and may overtake each other, since a cancelled one runs on. The number makes sure
        # that an older cursor never replaces a newer one.
        with self._writing:
            if number > self._written:
                self._replace(text)
                self._written = number

    def _replace(self, text: str) -> None:
        temporary = self._path.with_name(self._path.name + ".new")
        with temporary.open("w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            # Fsync before the rename: otherwise the new name could point to an empty file after a crash.
            os.fsync(file.fileno())
        temporary.replace(self._path)
        # Fsync the folder, which makes the rename itself durable.
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
