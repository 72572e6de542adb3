"""Log, export, mangle, ingest: two catalogs with equal histories."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tailrace.cdcv2 import Progress
from tailrace_server.cdcv2 import AvroForm, write_container
from tailrace_server.export import cdcv2
from tailrace_server.export.folder import SCHEMA
from tailrace_server.pipeline.cdcv2.files import StreamSchema
from tailrace_server.pipeline.cdcv2.folding import Folding
from tailrace_server.pipeline.cdcv2.ingest import ingest_cdcv2
from tailrace_server.pipeline.cdcv2.settings import Cdcv2Settings
from tailrace_server.pipeline.run.progress import ProgressReporter
from tailrace_server.pipeline.run.stop_signals import Stopping
from tailrace_server.wal.upkeep.verify import verify
from tests.server.export.logs import Shop, collections, export, statements
from tests.server.export.round_trip import history, moved_history

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.cdcv2 import Statement


def ingest(stream: Path, schema: Path, root: Path, *key: str) -> list[object]:
    """Take what a folder holds; return what is still waited for."""
    folding = Folding(StreamSchema.load(schema), "item", key)
    settings = Cdcv2Settings(input=stream, log=root, catalog="shop", folding=folding)
    return list(ingest_cdcv2(settings, ProgressReporter(quiet=True), stopping=Stopping()).waiting)


def write_mangled(messages: list[Statement[int]], schema: Path, folder: Path, seed: int) -> None:
    """Write messages twice, cut anew, in any order, to some files."""
    mangler = random.Random(seed)
    mangled: list[Statement[int]] = []
    for message in messages * 2:
        if isinstance(message, Progress):
            mangled.append(message)
        else:
            cut = mangler.randint(0, len(message))
            mangled += [message[:cut], [*message[cut:], *message[cut:]]]
    mangler.shuffle(mangled)
    folder.mkdir()
    form = AvroForm.of(schema.read_bytes())
    for place in range(3):
        with (folder / f"{place}.avro").open("wb") as file:
            write_container(form, file, mangled[place::3])


@pytest.mark.parametrize("key", [("id",), ()], ids=["keys", "no keys"])
def test_contract_41_what_is_exported_mangled_and_ingested_is_the_same_history(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    monkeypatch.setattr(cdcv2, "UPDATES_MAX", 30)
    shop = Shop(log_root)
    shop.write(60)
    out, mangled, other = tmp_path / "out", tmp_path / "mangled", tmp_path / "other"
    other.mkdir()
    export(log_root, out)
    write_mangled(statements(out), out / SCHEMA, mangled, 5)
    assert ingest(mangled, out / SCHEMA, other, *key) == []
    assert verify(other / "shop").sound
    if key:
        assert moved_history(other) == history(log_root)
    again = tmp_path / "again"
    export(other, again)
    rows, _ = collections(statements(again))
    wanted, _ = collections(statements(out))
    assert list(rows.values()) == list(wanted.values())


def test_a_folder_is_ingested_as_it_stands(log_root: Path, tmp_path: Path) -> None:
    """The identity and the schema beside the files are no messages."""
    Shop(log_root).write(20)
    other = tmp_path / "other"
    other.mkdir()
    export(log_root, tmp_path / "out", since=10)
    assert ingest(tmp_path / "out", tmp_path / "out" / SCHEMA, other, "id") == []
    assert {version for version in moved_history(other)} >= {10}
