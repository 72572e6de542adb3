"""How documents are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tailrace.errors import LogUnreadable
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.schema_documents import SchemaDocument
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify
from tests.server.wal import logs

if TYPE_CHECKING:
    from pathlib import Path


def test_no_decoder_is_made_where_logs_are_opened_in_threads(
    log_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that make one of the same struct can end the process: msgspec shares it half made."""
    logs.write(log_root, "shop", 5)
    catalog = CommitLog.open(log_root / "shop").path

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"a decoder is made of {arguments}, {options}")

    monkeypatch.setattr(msgspec.json, "Decoder", refuse)
    monkeypatch.setattr(msgspec.json, "decode", refuse)
    assert CommitLog.open(catalog).view.published == 5
    assert not verify(catalog).faults
    with pytest.raises(LogUnreadable):
        documents.parse("new.json", b'{"format_version":99}', SchemaDocument)


def test_schemas_of_a_log_share_the_columns_that_are_equal(log_root: Path) -> None:
    """A new column in one of a hundred entity types costs that type's columns, not all."""
    with LogWriter.open(log_root, "shop") as writer:
        for image in (b'{"id":1}', b'{"id":1,"name":"x"}'):
            writer.append([Mutation("one", "1", after=image), Mutation("other", "1", after=b"{}")])
            writer.commit()
    first, second = CommitLog.open(log_root / "shop").view.schemas()
    assert second.entity_types["other"] is first.entity_types["other"]
    assert second.entity_types["one"][0] is first.entity_types["one"][0]
    assert [column.name for column in second.entity_types["one"]] == ["id", "name"]
