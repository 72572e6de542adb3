r"""Small objects of the log: JSON with a checksum, created exclusively, whole.

Retention alone replaces some later, by a part of themselves: an entry by its lines once nothing names the
records that it carries, an old checkpoint by its header.

An object is lines of text::

    <one JSON object, no line feed in it>\n        a checkpoint has two such lines, a header and a body
    crc32c <8 lower-case hex digits>\n          CRC-32C of the lines before this line

An entry may carry records before its one line, ended by a line feed: bytes from 0 that the line describes,
under checksums of their own (inline_segment.py). They go when nothing names them any more; the lines stay.

Valid if and only if the last line has this form and its number is right. An object becomes visible whole,
by a link from a temporary file that is already durable, so one that is visible and not valid is
``LogCorrupted``, never a write in progress. Its CRC is its identity in the chain: the next entry carries
it.

Exclusive creation::

    open a file without a name (O_TMPFILE) in the folder of final, write, fsync
    link(it, final); fsync the folder

    where the file system has no files without a name (NFS and others), and for entries that publish themselves:
    write tmp/<name>.<unique>, fsync; link(it, final); fsync the folder of final; unlink it

``link`` fails if the name exists, on every file system and over NFS, which is the whole of the mutual
exclusion between writers. Someone who is not told whether the link was made (a time-out) reads the object
back and compares. A file without a name goes with the process that made it: a crash leaves nothing behind. One
with a temporary name can be read meanwhile by who waits for it (arriving.py).
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import google_crc32c
import numpy as np

from tailrace.errors import LogCorrupted, LogError, LogFull, LogUnreadable
from tailrace_server.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEMPORARY_FOLDER: Final = "tmp"

WRITE_BUFFERS_MAX: Final = 512
"""Buffers in one write; the system's bound is 1,024."""

UNNAMED_FILES: Final = hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd")
"""Whether the system can give a name to a file without one; file systems that cannot are asked each time."""

_NO_UNNAMED_FILES: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
"""How file systems, and kernels before 3.11, say that they have none."""

_NO_FOLDER_SYNC: Final = frozenset({errno.EINVAL, errno.EROFS, errno.ENOTSUP})

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Of Linux."""
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE: Final = 2

_CHECK_LENGTH: Final = len(b"crc32c 01234567\n")
_OBJECT: Final = re.compile(r"[0-9]{20}", re.ASCII)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_RANDOM: Final = os.urandom(4).hex()
"""Tells this process from one of the same number on another machine."""
_numbers = itertools.count()
_B = TypeVar("_B", bytes, memoryview)


def crc32c(data: Any, crc: int = 0) -> int:
    """Return the CRC-32C of bytes, a view, an Arrow buffer or a contiguous array, continued from ``crc``."""
    if isinstance(data, memoryview):
        data = np.frombuffer(data, np.uint8)  # the library takes no views
    return int(google_crc32c.extend(crc, data))


def object_name(number: int) -> str:
    """Return the file name of a numbered object: 20 digits, so that names sort as numbers."""
    return f"{number:020d}.json"


def object_number(name: str) -> int | None:
    """Return the number of a file that is named so; None for any other, which is not ours."""
    stem = name.removesuffix(".json")
    return int(stem) if name == f"{stem}.json" and _OBJECT.fullmatch(stem) else None


def object_numbers(folder: Path) -> list[int]:
    """Return the numbers of a folder's objects, rising; files that are not ours do not count."""
    return sorted(filter(None, map(object_number, os.listdir(folder))))


def seal(*lines: bytes) -> tuple[bytes, int]:
    """Return an object's bytes and its CRC, from its lines of JSON."""
    text = b"".join(line + b"\n" for line in lines)
    crc = crc32c(text)
    return text + b"crc32c %08x\n" % crc, crc


def unseal(path: str, data: _B) -> tuple[_B, int]:
    """Return an object's lines of JSON, line feeds included, and its CRC; of a view a view.

    Args:
        path: What to call it in an error, relative to the catalog.
        data: The whole file.

    Raises:
        LogCorrupted: The bytes are not a valid object.
    """
    start = max(0, len(data) - _CHECK_LENGTH)
    check = bytes(data[start:])
    if not (len(check) == _CHECK_LENGTH and check.startswith(b"crc32c ") and check.endswith(b"\n")):
        raise LogCorrupted(path, start, "the checksum line is missing or damaged")
    digits = check[7:-1]
    if digits.strip(b"0123456789abcdef"):
        raise LogCorrupted(path, start + 7, "the checksum line is damaged")
    text = data[:start]
    crc = crc32c(text)
    if int(digits, 16) != crc:
        raise LogCorrupted(path, 0, f"its checksum is {crc:08x}, but {digits.decode()} was written")
    return text, crc


def with_records(records: bytes, text: bytes) -> bytes:
    """Return an entry that carries records, from its lines."""
    return b"%b\n%b" % (records, text) if records else text


def without_records(data: bytes) -> bytes:
    """Return the lines of an entry. JSON has no line feed in it, so the last one before it ends the records."""
    return data[data.rfind(b"\n", 0, max(0, len(data) - _CHECK_LENGTH - 1)) + 1 :]


def carries_records(catalog: Path | str, path: str) -> bool:
    """Return whether an object is there and carries records: JSON begins with a brace, a message does not."""
    return read_bytes(os.path.join(catalog, path), 1) not in (None, b"{")


class FileContent(NamedTuple):
    """A file as it was read."""

    data: bytes
    modified_ns: int
    """Its time of modification just before."""
    inode: tuple[int, int]
    """Device and inode: no other file has them as long as one is open."""


def read_bytes(path: str | Path, limit: int | None = None) -> bytes | None:
    """Return the bytes of a file, its first ``limit`` only if given, or None where there is none.

    Errors as ``read_file``.
    """
    found = read_file(path, limit)
    return None if found is None else found.data


def read_file(path: str | Path, limit: int | None = None) -> FileContent | None:
    """Return what is in a file, its first ``limit`` bytes only if given, or None where there is none.

    Raises:
        LogUnreadable: It may not be read.
        LogError: The device failed.
    """
    descriptor = open_file(path)
    if descriptor is None:
        return None
    try:
        return content_of(descriptor, path, limit)
    finally:
        os.close(descriptor)


class OpenFile:
    """A descriptor that closes with its last reader, whoever evicted it meanwhile."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


def open_file(path: str | Path) -> int | None:
    """Open a file to be read; None where there is none. Errors as ``read_file``."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise translated(error, f"cannot read {path}") from error


def content_of(descriptor: int, path: str | Path, limit: int | None = None) -> FileContent:
    """Return what is in an open file; ``path`` is what to call it. Errors as ``read_file``."""
    try:
        status = os.fstat(descriptor)
        wanted = status.st_size if limit is None else min(status.st_size, limit)
        data = os.read(descriptor, wanted)
        while len(data) < wanted and (more := os.read(descriptor, wanted - len(data))):
            data += more
    except OSError as error:
        raise translated(error, f"cannot read {path}") from error
    return FileContent(data, status.st_mtime_ns, (status.st_dev, status.st_ino))


def create(
    catalog: Path, final: str, data: bytes, *, failpoint: str, mark: int | None = None
) -> bool:
    """Create an object durably, unless one of that name exists; return whether it was created.

    Args:
        catalog: The catalog's folder.
        final: Path of the object relative to it.
        data: Its bytes.
        failpoint: Prefix of the failpoints ``.before_link``, ``.linked`` and ``.after_link``.
        mark: Time of modification, µs, to give it once its name is durable; see ``is_mark``. Such an object is
            awaited, so it has a temporary name before, by which it can be read ahead.

    Raises:
        LogFull: No room; nothing has become visible.
        LogError: Another fault of the device; read back to learn whether the object is visible.
    """
    with os_errors(f"cannot write {final}"):
        temporary = _temporary_path(catalog, final)
        file = NewFile(os.path.join(catalog, final), temporary, unnamed=mark is None)
        try:
            write_all(file.descriptor, [data])
            os.fsync(file.descriptor)
            reach(f"{failpoint}.before_link")
            try:
                file.link(failpoint=f"{failpoint}.linked")
            except FileExistsError:
                return False
            if mark is not None:
                _mark(os.path.join(catalog, final), mark)
        finally:
            file.close()
    reach(f"{failpoint}.after_link")
    return True


def is_mark(modified_ns: int, mark: int) -> bool:
    """Return whether a time of modification is ``mark``, µs: who gave the file its name found it durable.

    A file that was only written has the time of that, to the nanosecond.
    """
    return modified_ns == 1_000 * mark


def is_marked(path: str, mark: int) -> bool:
    """Return whether a file's time of modification is a mark now; see ``is_mark``."""
    try:
        return is_mark(os.stat(path).st_mtime_ns, mark)
    except OSError:
        return False


def _mark(path: str, mark: int) -> None:
    """Mark a file; where that cannot be done its readers do without."""
    with suppress(OSError):
        os.utime(path, ns=(1_000 * mark, 1_000 * mark))


def replace(catalog: Path, final: str, data: bytes) -> None:
    """Put an object in the place of another. Only for what no reader needs any more.

    Raises:
        LogFull: No room; the old object stands.
    """
    with os_errors(f"cannot write {final}"):
        temporary = _temporary_path(catalog, final)
        os.replace(_write_temporary(temporary, data), catalog / final)


def _temporary_path(catalog: Path, final: str) -> str:
    name = os.path.basename(final)
    unique = f"{os.getpid()}-{_RANDOM}-{next(_numbers)}"
    return os.path.join(catalog, TEMPORARY_FOLDER, f"{name}.{unique}")


def make_folder_of(path: Path) -> None:
    """Make the folder of a new file, one level below what a catalog has always.

    Raises:
        LogError: That is not there: the catalog was dropped while this writer fed it, and is not made anew.
    """
    try:
        path.parent.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise LogError(
            f"cannot write {path}: the catalog is gone, as where it is dropped while something feeds it; "
            "start anew"
        ) from None


class NewFile:
    """A file that is being written: it gets its name when it is whole, and only if nobody has the name.

    End it with ``close``; what has not been linked by then is gone.
    """

    __slots__ = ("_path", "_temporary", "descriptor")

    def __init__(self, path: str, temporary: str, *, unnamed: bool = True) -> None:
        """Open a file that is to become ``path``.

        Args:
            path: Its name, once it has one.
            temporary: Its name until then, where the file system cannot do without.
            unnamed: Do without where it can.

        Raises:
            OSError: The folder is missing, may not be written, or there is no room.
        """
        self._path = path
        self._temporary: str | None = None
        if not unnamed and self._open_named(temporary, optional=UNNAMED_FILES):
            return
        if UNNAMED_FILES:
            try:
                flags = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
                self.descriptor = os.open(os.path.dirname(path), flags, 0o666)
            except OSError as error:
                if error.errno not in _NO_UNNAMED_FILES:
                    raise
            else:
                return
        self._open_named(temporary, optional=False)

    def _open_named(self, temporary: str, *, optional: bool) -> bool:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self.descriptor = os.open(temporary, flags, 0o666)
        except OSError as error:
            if optional and error.errno not in _FULL:
                return False  # a folder that is missing or may not be written does not stop who needs no name
            raise
        self._temporary = temporary
        return True

    def link(self, *, sync: bool = True, failpoint: str = "") -> None:
        """Give the file its name, durably unless ``sync`` is False. Sync its content before.

        Others see the name before it is durable; ``failpoint`` is reached between the two.

        Raises:
            FileExistsError: Another has the name.
            OSError: The device failed; the name may or may not be there.
        """
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Given a descriptor of the folder, Python calls linkat and has it follow the link in /proc.
            source = self._temporary or f"/proc/self/fd/{self.descriptor}"
            os.link(source, os.path.basename(self._path), dst_dir_fd=folder)
            reach(failpoint)
            if sync:
                os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Let go of the file, and of its temporary name."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        if self._temporary is not None:
            _unlink(self._temporary)
            self._temporary = None


def _write_temporary(path: str, data: bytes) -> str:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_all(descriptor, [data])
        os.fsync(descriptor)
    except OSError:
        _unlink(path)
        raise
    finally:
        os.close(descriptor)
    return path


def write_all(descriptor: int, chunks: list[Any]) -> None:
    """Write all buffers, at most WRITE_BUFFERS_MAX of them, however many calls it takes."""
    wanted = sum(map(len, chunks))
    written = os.writev(descriptor, chunks)
    if written == wanted:
        return
    views = [memoryview(chunk).cast("B") for chunk in chunks]
    while True:
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if not views:
            return
        views[0] = views[0][written:]
        written = os.writev(descriptor, views)


def begin_sync(descriptor: int, start: int, length: int) -> None:
    """Have the system begin to write bytes of a file to the device, so that a later sync finds little to do.

    Makes nothing durable, and where the system has no such call it does nothing.
    """
    if _sync_file_range is not None:
        _sync_file_range(descriptor, start, length, _SYNC_FILE_RANGE_WRITE)


def _unlink(path: str) -> None:
    """Remove a temporary file; what cannot be removed now is an orphan for later."""
    try:
        os.unlink(path)
    except OSError:
        return


def sync_names(path: Path) -> None:
    """Make the names in a folder durable for a reader, who may have less of a file system than a writer.

    Where a folder cannot be synced (a read-only image, some file systems in user space) there is nothing to
    wait for.
    """
    try:
        sync_folder(path)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def os_errors(doing: str) -> Iterator[None]:
    """Turn errors of the operating system into ours."""
    try:
        yield
    except OSError as error:
        raise translated(error, doing) from error


def is_scarce(error: BaseException) -> bool:
    """Whether an error comes of a process without file descriptors or memory: it passes, and is no fault."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _SCARCE


def translated(error: OSError, doing: str) -> LogError:
    """Return our error for one of the operating system."""
    reason = f"{doing}: {error.strerror or error}"
    if error.errno in _FULL:
        return LogFull(
            f"{reason}; what was committed stays, and writing goes on once there is room"
        )
    if error.errno in _DENIED:
        user = f"user {os.geteuid()}"
        return LogUnreadable(
            f"{reason}; give {user} permission to the log's folder and its contents"
        )
    return LogError(reason)
