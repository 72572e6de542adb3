"""The seam below the log: what it needs of a place that keeps objects.

An object is a run of bytes under a path relative to the catalog's folder. It appears whole and durable, once,
by exclusive creation: that alone keeps two writers apart. ``LocalFiles`` is the one implementation. Another
store is another module in this folder that has the methods of ``ObjectStore``; what only local files can do
is optional, see ``Arrivals`` and ``ObjectStore.watch``.

Every method may be called from any thread. All raise ``LogFull`` where there is no room, ``LogUnreadable``
where permission is missing and ``LogError`` for any other fault of the device, if they say nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable


class ObjectContent(NamedTuple):
    """An object as it was read."""

    data: bytes
    mark: int | None
    """Time, µs, with which its writer marked it once its name was durable; other times mean nothing. None where
    there is certainly no mark."""


class ObjectStore(Protocol):
    """The objects of one catalog."""

    @property
    def arrivals(self) -> Arrivals | None:
        """The store's view of objects before their names are durable; None if it has none."""

    def create(
        self, path: str, data: bytes, *, failpoint: str = "", mark: int | None = None
    ) -> bool:
        """Create an object, whole and durable, unless one of that path exists; return whether it was created.

        Args:
            path: Where it goes; its folder exists.
            data: Its bytes.
            failpoint: Prefix of the failpoints ``.before_link``, ``.linked`` and ``.after_link``.
            mark: Time, µs, that signals to readers that the object's name is durable; see ``Arrivals``.

        Raises:
            LogFull: No room; nothing has become visible.
            LogError: Another fault of the device; read back to learn whether the object is visible.
        """

    def begin(self, path: str) -> NewObject:
        """Begin an object that is written in parts; its folder is made if it is missing."""

    def replace(self, path: str, data: bytes) -> None:
        """Put an object in the place of another. Only for what no reader needs any more."""

    def read(self, path: str, limit: int | None = None) -> ObjectContent | None:
        """Return an object, its first ``limit`` bytes only if given; None where there is none."""

    def open(self, path: str) -> OpenObject | None:
        """Return an object whose ranges can be read; None where there is none.

        It stays readable while it is held, also if it is deleted meanwhile.
        """

    def size(self, path: str) -> int | None:
        """Return the bytes of an object; None where there is none."""

    def exists(self, path: str) -> bool:
        """Return whether an object or folder exists; one that cannot be looked at counts as missing."""

    def stamp(self, path: str) -> Hashable:
        """Return a value that changes when another object takes the path; None where there is none."""

    def names(self, folder: str, *, after: str = "") -> list[str]:
        """Return the names in a folder that come after one, sorted; none where there is no folder."""

    def delete(self, path: str) -> bool:
        """Delete an object; return whether there was one."""

    def move(self, path: str, to: str) -> bool:
        """Give an object another path that is free; False where the object is gone. Not durable by itself."""

    def make_folder(self, path: str) -> None:
        """Make a folder durably, if it is missing. A store without folders has nothing to do."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder that is empty; one that is not, or is not there, stays as it is."""

    def make_durable(self, folder: str) -> None:
        """Make the names in a folder durable, as far as the store lets a reader do that."""

    def watch(self, watcher: ChangeWatcher, owner: Hashable) -> ChangeWatch:
        """Have a watcher report, by ``owner``, all changes that a view of the log depends on.

        Raises:
            InotifyUnavailable: The store does not report changes, or not now; the log is polled.
        """


class OpenObject(Protocol):
    """An object whose ranges can be read, by any thread."""

    def read_into(self, data: memoryview, offset: int) -> int:
        """Fill memory with the bytes from an offset on; return how many there were.

        Raises:
            OSError: The device failed.
        """

    def size(self) -> int:
        """Return the object's bytes."""


class NewObject(Protocol):
    """An object that is being written: it gets its path when it is whole, and only if the path is free.

    End it with ``close``; what has no path by then is gone. Its methods raise ``OSError``.
    """

    def write(self, chunks: list[Any]) -> None:
        """Append buffers, however many."""

    def begin_sync(self, start: int, length: int) -> None:
        """Have the device begin to write some bytes, so that a later sync finds little to do."""

    def sync(self) -> None:
        """Make the content durable."""

    def link(self, *, sync: bool = True, failpoint: str = "") -> None:
        """Give the object its path, durably unless ``sync`` is False. Sync its content before.

        Raises:
            FileExistsError: Another has the path.
        """

    def close(self) -> None:
        """End the writing; idempotent."""


class ChangeWatcher(Protocol):
    """Waits for changes of many logs. One thread waits at a time; any thread may call the other methods."""

    def add(self, folder: str, owner: Hashable) -> ChangeWatch:
        """Watch the folder of a log; errors as ``ObjectStore.watch``."""

    def wait(self, seconds: float) -> list[Hashable]:
        """Wait until a log changes, for so long, or until woken; return the owners of what has changed."""

    def wake(self) -> None:
        """End the wait that is under way, or the next one."""

    def close(self) -> None:
        """Release what the watcher holds, once no thread waits any more."""


class ChangeWatch(Protocol):
    """The reported changes of one log. One thread at a time takes them."""

    @property
    def changed(self) -> bool:
        """True if a change was reported that ``take_new_entries`` has not returned yet."""

    def take_new_entries(self) -> int | None:
        """Return how many entries have appeared since the last call; None if anything may have changed."""

    def take_arriving(self) -> list[str]:
        """Return the temporary names of the newest objects on their way, each once."""

    def close(self) -> None:
        """Stop watching the log."""


class Arrivals(Protocol):
    """Objects of a store whose names are not durable yet.

    A local file is visible a moment before its name is durable, so its writer marks it then. And it can be
    read by a temporary name before it has its own.
    """

    def mark_of(self, path: str) -> int | None:
        """Return the mark of an object as it is now; see ``ObjectContent.mark``."""

    def open(self, name: str, bytes_max: int) -> ArrivingObject | None:
        """Return the object of a temporary name; None where there is none, or it exceeds ``bytes_max``."""

    def delete_leftovers(self) -> None:
        """Delete the temporary names that writers left which were killed."""


class ArrivingObject(Protocol):
    """An object under its temporary name, as it was read. While it is held, no other is taken for it."""

    @property
    def content(self) -> ObjectContent:
        """The object as it was read by its temporary name."""

    def content_at(self, path: str, mark: int) -> ObjectContent | None:
        """Return the object with its mark of now if it has got a path; None if not, or another has.

        One that was written to since it was read is another; ``mark`` is what its writer would mark it with.
        """
