"""A source of lines ``transaction key=value``: all that it takes to add one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace_server.option_fields import option, text
from tailrace_server.pipeline.input.change import CHANGE, INSERT, Change, FileSplit, quarantined
from tailrace_server.pipeline.input.source import Source

if TYPE_CHECKING:
    from tailrace_server.pipeline.input.source import DecodeLine
    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.wal.schema.mapping import SchemaMapping


@dataclass(frozen=True)
class Pairs(Source):
    name: ClassVar[str] = "pairs"
    title: ClassVar[str] = "pairs, one a line,"
    entity_type: str = option(
        "--entity-type", "What a pair is in the catalog.", text("NAME"), "pair"
    )

    def line_decoder(
        self, mapping: SchemaMapping | None, record_bytes_max: int, bindings: Bindings
    ) -> DecodeLine:
        return self._decode

    def restated(self, change: Change) -> bytes:
        pair = json.loads(change.after or b"{}")
        return f"{change.transaction_id} {pair['id']}={pair['value']}".encode()

    def _decode(self, split: FileSplit, number: int, line: bytes) -> Change | None:
        transaction, _, pair = line.decode().partition(" ")
        key, equals, value = pair.partition("=")
        if not equals:
            return quarantined(split, number, line, "not a pair") if line else None
        image = json.dumps({"id": key, "value": value}).encode()
        at = split.place(number)
        return Change(
            CHANGE, at, transaction, transaction, number, self.entity_type, INSERT, key, after=image
        )
