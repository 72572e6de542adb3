"""A log that is damaged, trimmed or too new costs whoever needs the bad part a named error, and nobody else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tailrace_server.wal.files.sealed import seal
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tests.process.commands import Command, ServerProcess, outcome
from tests.server.wal.logs import write_files
from tests.support.inprocess import know

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def write(root: Path, catalog: str, versions: int = 3) -> Path:
    """Publish versions, a segment file each, and return the catalog's folder."""
    know(root, catalog, {"product": ("id", "text")})
    with pytest.MonkeyPatch.context() as patch, LogWriter.open(root, catalog) as writer:
        write_files(patch)
        for number in range(versions):
            image = b'{"id":%d,"text":"%s"}' % (number, b"x" * 100)
            writer.append([Mutation("product", str(number), after=image)])
            writer.commit()
            writer.publish()
    return root / catalog


def segments(catalog: Path) -> list[Path]:
    return sorted((catalog / "segments").rglob("*.arrow"), key=lambda path: path.stat().st_mtime_ns)


async def refused(server: ServerProcess, *arguments: str) -> str:
    """Return the one error line of a watch that ends with status 1."""
    status, _, error = await outcome("watch", *arguments, "--server", server.grpc)
    lines = [line for line in error.splitlines() if not line.startswith("·")]
    assert (status, len(lines)) == (1, 1), error
    assert lines[0].startswith("error: ")
    return lines[0]


async def still_served(server: ServerProcess) -> None:
    """Check that the neighbour of the bad catalog gets everything."""
    async with Command(
        *("watch", "good", "--server", server.grpc, "--since", "0", "--json")
    ) as watch:
        versions = [each["version"] for each in await watch.captures(3)]
        assert versions == [1, 2, 3]


async def test_a_flipped_byte_is_named_by_segment_and_offset(log_root: Path) -> None:
    write(log_root, "good")
    catalog = write(log_root, "bad")
    segment = segments(catalog)[1]
    data = bytearray(segment.read_bytes())
    place = data.rindex(b"xxxx")
    data[place] ^= 1
    segment.write_bytes(data)
    server = ServerProcess(log_root)
    async with server.up():
        error = await refused(server, "bad", "--since", "0")
        assert "log corrupted" in error
        assert segment.name in error
        assert "at byte" in error
        await still_served(server)
    status, text, error = await outcome("log", "verify", catalog)
    assert status == 1
    assert segment.name in text + error


async def test_a_segment_that_vanished_is_named(log_root: Path) -> None:
    write(log_root, "good")
    catalog = write(log_root, "bad")
    segment = segments(catalog)[1]
    segment.unlink()
    server = ServerProcess(log_root)
    async with server.up():
        assert segment.name in await refused(server, "bad", "--since", "0")
        await still_served(server)


async def test_a_start_that_was_trimmed_is_refused_with_both_ends(log_root: Path) -> None:
    write(log_root, "good")
    catalog = write(log_root, "bad", versions=5)
    status, _, error = await outcome("log", "trim", catalog, "--before", "4")
    assert status == 0, error
    server = ServerProcess(log_root)
    async with server.up():
        error = await refused(server, "bad", "--since", "2")
        assert "position 2:0 is no longer in the log, which has 4:0 to 5:" in error
        async with Command(
            *("watch", "bad", "--server", server.grpc, "--since", "0", "--json")
        ) as watch:
            assert [each["version"] for each in await watch.captures(2)] == [4, 5]
        await still_served(server)


async def test_a_newer_format_is_refused_by_name(log_root: Path) -> None:
    write(log_root, "good")
    document = write(log_root, "bad") / "catalog.json"
    fields = json.loads(document.read_bytes().partition(b"\n")[0])
    assert fields["format_version"] == 1
    document.write_bytes(seal(json.dumps({**fields, "format_version": 2}).encode())[0])
    server = ServerProcess(log_root)
    async with server.up():
        status, _, error = await outcome("watch", "bad", "--server", server.grpc)
        assert status in (1, 2)
        assert "format" in error.splitlines()[-1]
        await still_served(server)
