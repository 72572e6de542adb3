"""Files that have all rows of a table: ``tailrace ingest snapshot``.

The rows are compared with the newest ones in the log, and the differences become one version. So a run that is
killed, or repeated, loses and repeats nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import csv

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.pipeline.tables.settings import FORMATS
from tailrace_server.pipeline.tables.writing import read_all, state_of, write_rows
from tailrace_server.units import counted

if TYPE_CHECKING:
    from tailrace_server.pipeline.run.progress import ProgressReporter
    from tailrace_server.pipeline.tables.settings import SnapshotSettings

_ENDINGS: Final = {
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
}


def ingest_snapshot(settings: SnapshotSettings, reporter: ProgressReporter) -> None:
    """Write the differences between files and the log.

    Raises:
        InvalidRequest: The files or their rows cannot be used; nothing was written.
        UnknownWriter: The catalog belongs to another writer.
        LogFull: There is no space.
    """
    before = state_of(settings)
    found = _dataset(settings)
    rows = read_all(
        lambda: found.scanner(batch_readahead=2, fragment_readahead=1).to_reader(),
        lambda error: InvalidRequest(f"--input {settings.input}: {error}"),
    )
    reporter.wait(f"reading {settings.input} …")
    count, state = write_rows(settings, "snapshot", found.schema, rows, snapshot=True)
    reporter.finish()
    last = 0 if before is None else before.last_version
    if state.last_version == last:
        reporter.note(f"{counted(count, 'row')} read; nothing differs from version {last}")
    else:
        reporter.note(
            f"{counted(count, 'row')} read; the differences are version {state.last_version}"
        )


def _dataset(settings: SnapshotSettings) -> ds.Dataset:
    path = Path(settings.input)
    if not path.exists():
        raise InvalidRequest(f"--input {path}: there is no such file or folder")
    name = settings.format or _ENDINGS.get(_first_file(path).suffix.lstrip(".").lower(), "")
    if name not in FORMATS:
        given = f"--format {name}{nearest(name, FORMATS)}" if name else f"--input {path}"
        raise InvalidRequest(f"{given}: choose one of {', '.join(FORMATS)} with --format")
    if settings.text and name != "csv":
        raise InvalidRequest(f"--text is for CSV files, and {path} is {name}")
    kind: str | ds.FileFormat = name
    if name == "csv":
        types = dict.fromkeys(settings.text, pa.string())
        kind = ds.CsvFileFormat(convert_options=csv.ConvertOptions(column_types=types))
    try:
        found = ds.dataset(path, format=kind)
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"--input {path}: {error}") from error
    for column in settings.text:
        if column not in found.schema.names:
            raise InvalidRequest(
                f"--text: no column {column!r}{nearest(column, found.schema.names)}"
            )
    return found


def _first_file(path: Path) -> Path:
    """Return a file, or the first one of a folder."""
    if path.is_file():
        return path
    files = sorted(
        each for each in path.rglob("*") if each.is_file() and not each.name.startswith((".", "_"))
    )
    if not files:
        raise InvalidRequest(f"--input {path}: the folder has no files")
    return files[0]
