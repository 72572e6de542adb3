"""The folder of one exported stream: what it is of, and files that together tile its time.

::

    _export.json               what the stream is of, and its columns; created first, exclusively, never changed
    _schema.avsc               the Avro schema of the messages, for whoever reads them
    00…000-00…042.avro         an object container file: updates and progress of the times 0 to 41
    00…042-00…057.avro         …

A file's name says its interval, lower inclusive, upper exclusive. It appears whole, by a link from a file that
is already durable, and is never replaced. So whoever starts here, for the first time or again, goes on at the
*frontier*: as far as intervals reach from 0 without a hole. Two exporters at once may cut time differently;
their files overlap, say the same of every time, and a CDCv2 reader takes each update once. Of one interval both
say the same, so who comes second leaves the first one's file.

Names that begin with ``_`` or ``.`` are passed over by Spark and its kind.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace_server.export.errors import FolderTaken
from tailrace_server.failpoints import reach
from tailrace_server.wal.files.documents import ColumnDocument
from tailrace_server.wal.files.objects import NewFile, os_errors, read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from tailrace.schema import Column

FORMAT_VERSION: Final = 1
IDENTITY: Final = "_export.json"
SCHEMA: Final = "_schema.avsc"
_FILE: Final = re.compile(r"(\d{20})-(\d{20})\.avro")


class StreamIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream is of; the first object of its folder."""

    format_version: int = FORMAT_VERSION
    catalog_uuid: str
    entity_type: str
    """Its name when the stream began."""
    entity_id: int
    """Id of its first column, which stays when it is renamed; 0 where it has no columns."""
    since: int
    """Version of the snapshot that the stream begins with; 0: it begins with the log."""
    columns: list[ColumnDocument]
    """Of the rows, in the order of the Avro record."""

    def same_start(self, other: StreamIdentity) -> bool:
        """Return whether two streams say the same of every time, columns apart."""
        return (self.catalog_uuid, self.entity_id or self.entity_type, self.since) == (
            other.catalog_uuid,
            other.entity_id or other.entity_type,
            other.since,
        )

    def stream_columns(self) -> list[Column]:
        """Return the columns."""
        return [column.column(column.id) for column in self.columns]

    def __str__(self) -> str:
        start = f"the snapshot at version {self.since}" if self.since else "the log's beginning"
        return f"{self.entity_type!r} of catalog {self.catalog_uuid} from {start}"


class StreamFolder:
    """A folder that takes one stream. Blocks."""

    def __init__(self, path: Path) -> None:
        """Bind to a path; nothing is made yet."""
        self.path = path

    def identity(self) -> StreamIdentity | None:
        """Return what the folder holds; None where it is empty or not there.

        Raises:
            FolderTaken: It holds something else.
        """
        data = read_bytes(self.path / IDENTITY)
        if data is None:
            strange = [name for name in self._names() if not name.startswith((".", "_"))]
            if strange:
                raise FolderTaken(self.path, f"holds {strange[0]}, which no export wrote")
            return None
        try:
            found = msgspec.json.decode(data, type=StreamIdentity)
        except msgspec.MsgspecError as error:
            raise FolderTaken(self.path, f"has a damaged {IDENTITY}: {error}") from error
        if found.format_version != FORMAT_VERSION:
            raise FolderTaken(
                self.path,
                f"was written in format {found.format_version}, this is {FORMAT_VERSION}",
            )
        return found

    def begin(self, wanted: StreamIdentity, avro_schema: bytes) -> StreamIdentity:
        """Make the folder the stream's, or find that it is; return the identity that stands in it.

        Raises:
            FolderTaken: It holds another stream, or something else.
            LogFull: No room.
        """
        with os_errors(f"cannot write {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
        found = self.identity()
        if found is None:
            data = msgspec.json.format(msgspec.json.encode(wanted), indent=2) + b"\n"
            self._create(IDENTITY, lambda file: file.write(data))
            found = self.identity()
        assert found is not None
        self.refuse_other(found, wanted)
        if found.columns == wanted.columns:
            self._create(SCHEMA, lambda file: file.write(avro_schema))
        return found

    def refuse_other(self, found: StreamIdentity, wanted: StreamIdentity) -> None:
        """Raise FolderTaken if the stream that was found is not the one that is wanted."""
        if not found.same_start(wanted):
            raise FolderTaken(self.path, f"holds {found}, and this would be {wanted}")

    def frontier(self) -> int:
        """Return the first time that no file covers."""
        frontier = 0
        for lower, upper in sorted(self.intervals()):
            if lower > frontier:
                break
            frontier = max(frontier, upper)
        return frontier

    def intervals(self) -> list[tuple[int, int]]:
        """Return the intervals of the files."""
        found = (_FILE.fullmatch(name) for name in self._names())
        return [(int(match[1]), int(match[2])) for match in found if match is not None]

    def publish(self, lower: int, upper: int, write: Callable[[BinaryIO], Any]) -> bool:
        """Create the file of an interval, durably; return False where another exporter has.

        Raises:
            LogFull: No room; nothing has become visible.
        """
        return self._create(f"{lower:020d}-{upper:020d}.avro", write)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))
        except FileNotFoundError:
            return []

    def _create(self, name: str, write: Callable[[BinaryIO], Any]) -> bool:
        with os_errors(f"cannot write {self.path / name}"):
            temporary = self.path / f".{os.getpid()}-{os.urandom(4).hex()}"
            new = NewFile(str(self.path / name), str(temporary))
            try:
                with os.fdopen(os.dup(new.descriptor), "wb") as file:
                    write(file)
                os.fsync(new.descriptor)
                reach("export.before_link")
                try:
                    new.link()
                except FileExistsError:
                    return False
            finally:
                new.close()
        reach("export.after_link")
        return True
