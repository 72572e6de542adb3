"""The folder of one exported stream: its identity, and files whose intervals cover its time.

::

    _export.json               identity and columns of the stream; created first, exclusively, never changed
    _schema.avsc               the Avro schema of the messages, for readers
    00…000-00…042.avro         an object container file: updates and progress of the times 0 to 41
    00…042-00…057.avro         …

The name of a file has its interval: lower bound inclusive, upper bound exclusive. A file becomes visible as a
whole, by a link to a temporary file that is already durable, and is never replaced. So an exporter always
continues at the *frontier*: the end of the intervals that reach from 0 without a hole.

Two exporters may write at the same time and cut the times differently. Their files then overlap, but they have
the same updates for every time, and a CDCv2 reader uses each update once. An existing file of the same interval
is not replaced.

Spark and similar readers skip names that begin with ``_`` or ``.``.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace_server.export.errors import FolderTaken
from tailrace_server.failpoints import reach
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.new_file import NewFile
from tailrace_server.wal.files.schema_documents import ColumnDocument
from tailrace_server.wal.files.system_errors import os_errors

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
    """The identity of a stream: the first file in its folder."""

    format_version: int = FORMAT_VERSION
    catalog_uuid: str
    entity_type: str
    """The entity type's name when the stream began."""
    entity_id: int
    """The id of the entity type's first column, which a rename does not change; 0 if there are no columns."""
    since: int
    """The version of the snapshot that begins the stream; 0 if the stream begins with the log."""
    columns: list[ColumnDocument]
    """The columns of the rows, in the order of the Avro record."""

    def same_start(self, other: StreamIdentity) -> bool:
        """Return True if two streams have the same updates for every time, apart from their columns."""
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
    """A folder for one stream. Its methods block."""

    def __init__(self, path: Path) -> None:
        """Bind to a path; nothing is created yet."""
        self.path = path

    def identity(self) -> StreamIdentity | None:
        """Return the identity of the folder's stream; None if the folder is empty or missing.

        Raises:
            FolderTaken: The folder holds something else.
        """
        content = LocalFiles(self.path).read(IDENTITY)
        if content is None:
            strange = [name for name in self._names() if not name.startswith((".", "_"))]
            if strange:
                raise FolderTaken(
                    self.path, f"holds {strange[0]}, which is not a file of an export"
                )
            return None
        try:
            found = msgspec.json.decode(content.data, type=StreamIdentity)
        except msgspec.MsgspecError as error:
            raise FolderTaken(self.path, f"has a damaged {IDENTITY}: {error}") from error
        if found.format_version != FORMAT_VERSION:
            raise FolderTaken(
                self.path,
                f"was written in format {found.format_version}, but this tailrace writes format "
                f"{FORMAT_VERSION}",
            )
        return found

    def begin(self, wanted: StreamIdentity, avro_schema: bytes) -> StreamIdentity:
        """Claim the folder for a stream, unless the stream has it already; return the identity in the folder.

        Raises:
            FolderTaken: The folder holds another stream, or something else.
            LogFull: There is no space.
        """
        with os_errors(f"cannot write {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
        found = self.identity()
        if found is None:
            data = msgspec.json.format(msgspec.json.encode(wanted), indent=2) + b"\n"
            # If another exporter was faster, this creates nothing: read that exporter's identity and compare
            # it.
            self._create(IDENTITY, lambda file: file.write(data))
            found = self.identity()
        assert found is not None
        self.refuse_other(found, wanted)
        if found.columns == wanted.columns:
            self._create(SCHEMA, lambda file: file.write(avro_schema))
        return found

    def refuse_other(self, found: StreamIdentity, wanted: StreamIdentity) -> None:
        """Raise FolderTaken if two identities belong to different streams.

        Args:
            found: The identity in the folder.
            wanted: The identity of the stream to be written.
        """
        if not found.same_start(wanted):
            raise FolderTaken(self.path, f"holds {found}, but this export is {wanted}")

    def frontier(self) -> int:
        """Return the first time that no file covers."""
        frontier = 0
        for lower, upper in sorted(self.intervals()):
            # A hole in the covered times: files beyond it do not count.
            if lower > frontier:
                break
            frontier = max(frontier, upper)
        return frontier

    def newest(self, frontier: int) -> Path | None:
        """Return a file whose interval ends at the frontier; None if there is none."""
        lower = next((lower for lower, upper in self.intervals() if upper == frontier), None)
        return None if lower is None else self.path / _file_name(lower, frontier)

    def intervals(self) -> list[tuple[int, int]]:
        """Return the intervals of the files."""
        found = (_FILE.fullmatch(name) for name in self._names())
        return [(int(match[1]), int(match[2])) for match in found if match is not None]

    def publish(self, lower: int, upper: int, write: Callable[[BinaryIO], Any]) -> bool:
        """Create the file of an interval, durably; return False if the file exists already.

        Raises:
            LogFull: There is no space; no file has become visible.
        """
        return self._create(_file_name(lower, upper), write)

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
                # Make the content durable before its name exists: a reader must never see half of a file.
                os.fsync(new.descriptor)
                reach("export.before_link")
                try:
                    # A link, unlike a rename, never replaces a file of another exporter.
                    new.link()
                except FileExistsError:
                    return False
            finally:
                new.close()
        reach("export.after_link")
        return True


def _file_name(lower: int, upper: int) -> str:
    return f"{lower:020d}-{upper:020d}.avro"
