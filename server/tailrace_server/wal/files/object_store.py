"""The interface between the log and the store of its objects.

An object is a sequence of bytes under a path relative to the catalog's folder. Exclusive creation makes it
visible once, complete and durable. This alone keeps two writers apart. ``LocalFiles`` is the only
implementation. Another store would be a module of this folder with the methods of ``ObjectStore``. Features of
local files only are optional: see ``Arrivals`` and ``ObjectStore.watch``.

Any thread may call any method. Unless documented otherwise, all methods raise ``LogFull`` if the file system is
full, ``LogUnreadable`` if permission is missing, and ``LogError`` for any other fault of the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable


class ObjectContent(NamedTuple):
    """The content of an object, and its mark at the time of the read."""

    data: bytes
    mark: int | None
    """Time, in microseconds, with which the writer marked the object once its name was durable. A time that
    differs from the object's own timestamp means nothing. None if there is certainly no mark."""


class ObjectStore(Protocol):
    """The objects of one catalog."""

    @property
    def arrivals(self) -> Arrivals | None:
        """Access to objects whose names are not durable yet; None if the store has no such access."""

    def create(
        self, path: str, data: bytes, *, failpoint: str = "", mark: int | None = None
    ) -> bool:
        """Create an object, complete and durable, unless one of that path exists; return True if created.

        Args:
            path: Path of the object, in an existing folder.
            data: Content of the object.
            failpoint: Prefix of the failpoints ``.before_link``, ``.linked`` and ``.after_link``.
            mark: Time, in microseconds, that signals to readers that the object's name is durable; see
                ``Arrivals``.

        Raises:
            LogFull: The file system is full; nothing has become visible.
            LogError: Another fault of the device; read the object back to learn if it is visible.
        """

    def begin(self, path: str) -> NewObject:
        """Begin an object that is written in parts; create its folder if it is missing."""

    def replace(self, path: str, data: bytes) -> None:
        """Replace an object. Only for objects that no reader needs any more."""

    def read(self, path: str, limit: int | None = None) -> ObjectContent | None:
        """Return the content of an object, or its first ``limit`` bytes; None if it does not exist."""

    def open(self, path: str) -> OpenObject | None:
        """Return an object for reads of byte ranges; None if it does not exist.

        The returned object stays readable, even if it is deleted from the store.
        """

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes; None if it does not exist."""

    def exists(self, path: str) -> bool:
        """Return True if an object or folder exists; False also if permission to look at it is missing."""

    def stamp(self, path: str) -> Hashable:
        """Return a value that changes when another object takes the path; None if no object exists."""

    def names(self, folder: str, *, after: str = "") -> list[str]:
        """Return the names in a folder that sort after ``after``, sorted; empty if there is no folder."""

    def delete(self, path: str) -> bool:
        """Delete an object; return True if it existed."""

    def move(self, path: str, to: str) -> bool:
        """Move an object to a free path; return False if it does not exist. Not durable by itself."""

    def make_folder(self, path: str) -> None:
        """Create a folder durably, if it is missing. A store without folders does nothing."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder if it is empty; ignore a folder that has content or does not exist."""

    def make_durable(self, folder: str) -> None:
        """Make the names in a folder durable, as far as the store permits this to a reader."""

    def watch(self, watcher: ChangeWatcher, owner: Hashable) -> ChangeWatch:
        """Let a watcher report all changes that a view of the log depends on, under ``owner``.

        Raises:
            InotifyUnavailable: The store does not report changes, or cannot at present; poll the log.
        """


class OpenObject(Protocol):
    """An object that is open for reads of byte ranges, by any thread."""

    def read_into(self, data: memoryview, offset: int) -> int:
        """Fill ``data`` with the bytes from an offset on; return the number of bytes read.

        Raises:
            OSError: The device failed.
        """

    def size(self) -> int:
        """Return the size of the object in bytes."""


class NewObject(Protocol):
    """An object that is being written. It gets its path when it is complete, and only if the path is free.

    End the writing with ``close``, which discards an object that was not linked. The methods raise ``OSError``.
    """

    def write(self, chunks: list[Any]) -> None:
        """Append any number of buffers."""

    def begin_sync(self, start: int, length: int) -> None:
        """Ask the device to start writing a range of bytes, so that a later sync is fast."""

    def sync(self) -> None:
        """Make the content durable."""

    def link(self, *, sync: bool = True, failpoint: str = "") -> None:
        """Give the object its path, durably unless ``sync`` is False. Call ``sync`` first.

        Raises:
            FileExistsError: Another object has the path.
        """

    def close(self) -> None:
        """End the writing. Idempotent."""


class ChangeWatcher(Protocol):
    """Waits for changes of many logs. One thread at a time may wait; any thread may call the other methods."""

    def add(self, folder: str, owner: Hashable) -> ChangeWatch:
        """Watch the folder of a log; errors as ``ObjectStore.watch``."""

    def wait(self, seconds: float) -> list[Hashable]:
        """Wait for a change of a log, for ``wake``, or for a time-out; return the owners of changed logs."""

    def wake(self) -> None:
        """End the current wait, or the next one if no thread waits."""

    def close(self) -> None:
        """Release all resources; no thread may wait at this time."""


class ChangeWatch(Protocol):
    """The reported changes of one log. One thread at a time may take them."""

    @property
    def changed(self) -> bool:
        """True if a change was reported since the last ``take_new_entries``."""

    def take_new_entries(self) -> int | None:
        """Return the number of new entries since the last call; None if something else may have changed too."""

    def take_arriving(self) -> list[str]:
        """Return the temporary names of the newest objects that are being written, each once."""

    def close(self) -> None:
        """Stop watching the log."""


class Arrivals(Protocol):
    """Objects of a store whose names are not durable yet.

    A local file is visible a moment before its name is durable, so its writer marks the file once the name is
    durable. Before that the file can be read by its temporary name.
    """

    def mark_of(self, path: str) -> int | None:
        """Return the present mark of an object; see ``ObjectContent.mark``."""

    def open(self, name: str, bytes_max: int) -> ArrivingObject | None:
        """Return the object of a temporary name; None if it does not exist or is larger than ``bytes_max``."""

    def delete_leftovers(self) -> None:
        """Delete the temporary names that killed writers left."""


class ArrivingObject(Protocol):
    """An object read by its temporary name. While this is held, no other object can be mistaken for it."""

    @property
    def content(self) -> ObjectContent:
        """The content of the object when it was read by its temporary name."""

    def content_at(self, path: str, mark: int) -> ObjectContent | None:
        """Return the object with its present mark, if it is at ``path`` now; else None.

        An object that was written to since it was read counts as another one. ``mark`` is the mark that its
        writer would set.
        """
