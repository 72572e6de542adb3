"""Small logs to be damaged, and the damages that a test does to them: files cut short, and flipped bits."""

from __future__ import annotations

import os
import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import LogCorrupted
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.files.catalog_folder import create_folder
from tailrace_server.wal.log_writer import LogWriter
from tests.server.wal.logs import SteppingClock, remove, update, upsert, write_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.errors import TailraceError

CATALOGS = 40
"""Logs that a test damages at once, side by side under one root, each in one place."""
_SMALL_BYTES = 500
"""An object up to this size is small."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done to one file of a catalog."""

    file: str
    """Its path in the catalog's folder."""
    place: int
    """Byte that is wrong, or the first that is missing."""
    bit: int | None
    """Which bit is flipped; None: the file ends here."""

    @contextmanager
    def done_to(self, catalog: Path) -> Iterator[None]:
        """Do it for the time of the block."""
        path = catalog / self.file
        whole = path.read_bytes()
        # Logs of the same records differ in a byte or two: checksums are written as numbers.
        place = min(self.place, len(whole) - 1)
        data = bytearray(whole)
        if self.bit is None:
            del data[place:]
        else:
            data[place] ^= 1 << self.bit
        path.write_bytes(data)
        try:
            yield
        finally:
            path.write_bytes(whole)

    def check_named(self, error: TailraceError, catalog: Path) -> None:
        """Fail if an error does not say that this is damaged, and where."""
        assert isinstance(error, LogCorrupted), (self, error)
        assert error.path == self.file or "chain" in error.reason, (self, error)
        assert 0 <= error.offset <= (catalog / error.path).stat().st_size, (self, error)

    @property
    def may_go_unnoticed(self) -> bool:
        """Whether nobody may read that byte: Arrow's own magic, end mark and footer."""
        return self.file.endswith(".arrow")


def small_log(root: Path, name: str, form: str) -> Path:
    """Write a catalog of two commits of two transactions and return its folder.

    The records are in the files of their entries, which publish themselves (``carried``), or in files of their
    own that one publication releases (``files``). Logs of one form differ in uuid, run and checksums alone.
    """
    create_folder(root, name, SteppingClock())
    with (
        pytest.MonkeyPatch.context() as patch,
        LogWriter(CatalogWriter.open(root, name, writer="w", clock=SteppingClock())) as writer,
    ):
        if form == "files":
            write_files(patch)
        for key in ("1", "2"):
            writer.append([upsert(key), update(f"{key}+", 1, 2)])
            writer.append([remove(key)])
            writer.commit(publish=form == "carried")
        writer.publish()
    return root / name


def damages(
    catalog: Path, *, seed: int, cut_every: int, cut_small_every: int, flip_every: int
) -> list[Damage]:
    """Return cuts and flips of a catalog's files.

    Args:
        catalog: The folder of an undamaged log.
        seed: Of the bits that are flipped, and of where the first is.
        cut_every: Bytes from cut to cut.
        cut_small_every: The same in small objects.
        flip_every: Bytes from flip to flip.
    """
    chosen = random.Random(seed)
    found = []
    for path in sorted(path for path in catalog.rglob("*") if path.is_file()):
        file, size = os.fspath(path.relative_to(catalog)), path.stat().st_size
        step = cut_small_every if size <= _SMALL_BYTES else cut_every
        found += [Damage(file, place, None) for place in range(0, size, step)]
        flips = range(chosen.randrange(flip_every), size, flip_every)
        found += [Damage(file, place, chosen.randrange(8)) for place in flips]
    return found
