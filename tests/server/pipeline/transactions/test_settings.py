"""Settings of an ingest: what the command line gives reaches them, and through them the lines.

docs/settings.md, which tests/rules/test_settings.py compares, has every option with its default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import TailraceError
from tailrace_server.option_fields import options_of, values_of
from tailrace_server.pipeline.input.change import CHANGE, QUARANTINED, Change, FileSplit
from tailrace_server.pipeline.sources.debezium.source import Debezium
from tailrace_server.pipeline.transactions.settings import IngestSettings, Rules
from tests.server.pipeline.shapes import BY_ID, UNBOUND, envelope, line, postgres

if TYPE_CHECKING:
    from pathlib import Path


def settings_of(folder: Path, **given: object) -> IngestSettings:
    defaults = {name: each.default for name, each in options_of(IngestSettings).items()}
    values = values_of(IngestSettings, {**defaults, "input": folder, "catalog": "shop", **given})
    return IngestSettings(log=folder, source=Debezium(keys=BY_ID), **values)


def test_the_defaults_of_the_command_are_those_of_the_settings(tmp_path: Path) -> None:
    assert settings_of(tmp_path) == IngestSettings(
        input=tmp_path, log=tmp_path, catalog="shop", source=Debezium(keys=BY_ID)
    )
    rules = {name: each.default for name, each in options_of(Rules).items()}
    assert Rules(**values_of(Rules, rules)) == Rules()


def test_mapping_and_limit_reach_the_lines(tmp_path: Path) -> None:
    declared = tmp_path / "shop.toml"
    declared.write_text('[entity_types.product.columns.price]\ntype = "SMALLINT"\n')
    settings = settings_of(tmp_path, mapping=declared, max_record_bytes="100B")
    decode = settings.line_decoder(UNBOUND)

    def kind_of(number: int, **row: object) -> int:
        message = line(envelope("c", postgres(number), after={"id": number, **row}))
        change = decode(FileSplit("f"), number, message)
        assert isinstance(change, Change)
        return change.kind

    assert kind_of(1, price=1) == CHANGE
    assert kind_of(2, price=40_000) == QUARANTINED
    assert kind_of(3, blob="x" * 100) == QUARANTINED


def test_a_mapping_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TailraceError, match=r"absent\.toml"):
        settings_of(tmp_path, mapping=tmp_path / "absent.toml")
