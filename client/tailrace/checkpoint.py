"""The store in which a subscriber keeps the cursor behind its finished captures.

Save the cursor after the effects are durable, or in the same transaction with them: what came after the saved
cursor comes again.
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
    """One subscriber's cursor. Implement it over the database that takes the effects."""

    async def load(self) -> Cursor | None:
        """Return the saved cursor; None where none was saved yet."""

    async def save(self, cursor: Cursor) -> None:
        """Keep a cursor in place of the one before; durable on return."""


async def load_from(store: CheckpointStore) -> Cursor | None:
    """Return what a store has.

    Raises:
        InvalidRequest: Its ``load`` is not async.
    """
    return await _awaitable("load", store.load())


async def save_to(store: CheckpointStore, cursor: Cursor) -> None:
    """Keep a cursor in a store.

    Raises:
        InvalidRequest: Its ``save`` is not async; it has been called.
    """
    await _awaitable("save", store.save(cursor))


def _awaitable(method: str, called: Awaitable[_T]) -> Awaitable[_T]:
    if not isawaitable(called):
        raise InvalidRequest(f"checkpoint: `{method}` of the store is to be an async method")
    return called


class FileCheckpoint:
    """A cursor in a file of its own: its text and a newline.

    The file is replaced as a whole (temporary file, fsync, rename, fsync of the folder), so a crash leaves
    the cursor of before or after, never a mixture. Only one subscriber may use it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Keep the path; its folder must exist."""
        self._path = Path(path)
        self._saves = count(1)
        self._written = 0
        """Number of the save that the file is of."""
        self._writing = Lock()

    async def load(self) -> Cursor | None:
        """Return the saved cursor; None where the file does not exist.

        Raises:
            CursorInvalid: The file holds something else.
            OSError: It cannot be read, or there is no folder where it could be made.
        """
        return await asyncio.to_thread(self._load)

    async def save(self, cursor: Cursor) -> None:
        """Replace the file. A save that is cancelled is finished all the same, unless a later one was quicker.

        Raises:
            OSError: It cannot be written; the cursor of before stays.
        """
        await asyncio.to_thread(self._save, next(self._saves), f"{cursor}\n")

    def _load(self) -> Cursor | None:
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            self._path.parent.stat()  # or the first save would fail, perhaps hours from now
            return None
        try:
            return Cursor.parse(text.removesuffix("\n"))
        except CursorInvalid as error:
            raise CursorInvalid(f"{self._path} holds no cursor: {error}") from None

    def _save(self, number: int, text: str) -> None:
        with self._writing:
            if number > self._written:
                self._replace(text)
                self._written = number

    def _replace(self, text: str) -> None:
        temporary = self._path.with_name(self._path.name + ".new")
        with temporary.open("w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
