"""Looking keys up again reads no head of a batch that cannot have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tailrace.criteria import Operation
from tailrace_server.wal.base import key_files
from tailrace_server.wal.base.key_files import KeyPlaces
from tailrace_server.wal.base.reading import table_state
from tailrace_server.wal.catalog import open_catalog
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.keys import key_hash, type_seed
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.segment.reader import BatchReader
from tests.server.wal.base.tables import as_table, naive
from tests.server.wal.logs import upsert

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def write(root: Path) -> None:
    with LogWriter.open(root, "shop") as writer:
        for number in range(6):
            writer.append([upsert(str(number)), upsert("all", number)])
            writer.commit()


def test_a_key_is_looked_up_where_it_may_be(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root)
    log = open_catalog(log_root, "shop")
    wanted = naive(log.path, 6, "order")
    read = []
    head = BatchReader.head

    def counted(reader: BatchReader, ref: Any, *others: Any) -> Any:
        read.append(ref.first.version)
        return head(reader, ref, *others)

    with BatchReader(log.path) as reader:
        table = table_state(log.view, reader, "order", 6)
        table.rows_of(["1"])
        monkeypatch.setattr(BatchReader, "head", counted)
        for keys, versions in ((["3"], [4]), (["no such"], []), (["0", "5"], [1, 6])):
            read.clear()
            found = as_table([table.rows_of(keys)])
            assert found == {key: wanted[key] for key in keys if key in wanted}
            assert read == versions


def test_a_batch_with_a_truncate_is_always_read(log_root: Path) -> None:
    write(log_root)
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("order", None, Operation.REMOVE), upsert("9")])
    log = open_catalog(log_root, "shop")
    with BatchReader(log.path) as reader:
        table = table_state(log.view, reader, "order", 7)
        for _ in range(2):
            assert as_table([table.rows_of(["1", "9"])]).keys() == {"9"}


def test_what_was_used_longest_ago_goes_first(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_root)
    monkeypatch.setattr(key_files, "_KEYS_MAX", 6)
    log = open_catalog(log_root, "shop")
    places = KeyPlaces()
    chosen = np.array([key_hash(type_seed("order"), "3")], np.uint64)
    with BatchReader(log.path) as reader:
        for _ in range(2):
            refs = map(log.view.batch, range(len(log.view)))
            held = [places.may_hold("shop", reader, ref, chosen) for ref in refs]
            assert held == [False, False, False, True, False, False]
    assert len(places._hashes) == 3
