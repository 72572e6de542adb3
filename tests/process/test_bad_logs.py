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


def newer(catalog: Path) -> None:
    """Write a catalog's document as the next version of the format would."""
    document = catalog / "catalog.json"
    fields = json.loads(document.read_bytes().partition(b"\n")[0])
    assert fields["format_version"] == 1
    document.write_bytes(seal(json.dumps({**fields, "format_version": 2}).encode())[0])


async def test_a_bad_log_is_refused_by_name_and_its_neighbour_is_served(log_root: Path) -> None:
    """Of one server: a flipped byte, a segment that vanished, a start that was trimmed, a newer format."""
    names = ("good", "flipped", "gone", "trimmed", "newer")
    catalogs = {name: write(log_root, name, 5 if name == "trimmed" else 3) for name in names}
    flipped = segments(catalogs["flipped"])[1]
    data = bytearray(flipped.read_bytes())
    data[data.rindex(b"xxxx")] ^= 1
    flipped.write_bytes(data)
    gone = segments(catalogs["gone"])[1]
    gone.unlink()
    status, _, error = await outcome("log", "trim", catalogs["trimmed"], "--before", "4")
    assert status == 0, error
    newer(catalogs["newer"])

    server = ServerProcess(log_root)
    async with server.up():
        error = await refused(server, "flipped", "--since", "0")
        assert "log corrupted" in error
        assert flipped.name in error
        assert "at byte" in error
        assert gone.name in await refused(server, "gone", "--since", "0")
        error = await refused(server, "trimmed", "--since", "2")
        assert "position 2:0 is no longer in the log, which has 4:0 to 5:" in error
        status, _, error = await outcome("watch", "newer", "--server", server.grpc)
        assert status in (1, 2)
        assert "format" in error.splitlines()[-1]
        for name, versions in (("trimmed", [4, 5]), ("good", [1, 2, 3])):
            async with Command(
                *("watch", name, "--server", server.grpc, "--since", "0", "--json")
            ) as watch:
                found = await watch.captures(len(versions))
                assert [each["version"] for each in found] == versions
    status, text, error = await outcome("log", "verify", catalogs["flipped"])
    assert status == 1
    assert flipped.name in text + error
