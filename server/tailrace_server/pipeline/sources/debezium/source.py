"""Debezium as a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.options import READING, OptionForm, choice, option
from tailrace_server.pipeline.sources.debezium.transaction_key import transaction_key
from tailrace_server.pipeline.sources.source import Source
from tailrace_server.wal.record.unavailable import unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.pipeline.changes import Change
    from tailrace_server.pipeline.sources.source import DecodeLine
    from tailrace_server.wal.schema.mapping import SchemaMapping


def _keys(flag: str, texts: list[str] | None) -> dict[str, tuple[str, ...]]:
    keys: dict[str, tuple[str, ...]] = {}
    for text in texts or ():
        table, _, columns = text.partition("=")
        names = tuple(name.strip() for name in columns.split(","))
        if not table.strip() or not all(names):
            raise InvalidRequest(f"{flag} {text!r}: it reads TABLE=COLUMN or TABLE=COLUMN,COLUMN")
        if keys.setdefault(table.strip(), names) is not names:
            raise InvalidRequest(f"{flag} {text!r}: the table has another {flag} already")
    return keys


def _placeholders(flag: str, text: str | None) -> tuple[str, ...]:
    texts = () if text is None else (text,)
    try:
        unavailable(texts)
    except InvalidRequest as error:
        raise InvalidRequest(f"{flag}: {error}") from None
    return texts


@dataclass(frozen=True)
class Debezium(Source):
    """Debezium's JSON, one message a line; see `decoder` for what a line may hold.

    What decodes is imported when it is needed: the command line makes its options from this class.
    """

    name: ClassVar[str] = "debezium"
    title: ClassVar[str] = "Debezium's JSON, one message a line,"

    keys: Mapping[str, tuple[str, ...]] = option(
        "--key",
        "Key columns of a table, whatever its messages' keys; TABLE *: of lines without message key.",
        OptionForm(kind=list[str] | None, parse=_keys, metavar="TABLE=COL,…"),
        factory=dict,
        panel=READING,
    )
    """Entity type, its last part, or ``*`` → key columns; see `row_key`."""
    long_entity_types: bool = option(
        "--entity-type-from",
        "table, or schema.table for the long form.",
        choice("table", "schema.table", "FORM"),
        False,
        panel=READING,
    )
    """Whether entity types are named ``schema.table`` instead of ``table``."""

    placeholders: tuple[str, ...] = option(
        "--unavailable-placeholder",
        "The connector's unavailable.value.placeholder, where it is not the default.",
        OptionForm(kind=str | None, parse=_placeholders, metavar="TEXT"),
        factory=tuple,
        panel=READING,
    )

    def line_decoder(self, mapping: SchemaMapping | None, record_bytes_max: int) -> DecodeLine:
        """Return what decodes messages."""
        from tailrace_server.pipeline.sources.debezium.decoder import DebeziumDecoder

        return DebeziumDecoder(
            self.keys,
            long_entity_types=self.long_entity_types,
            mapping=mapping,
            unavailable=self.unavailable,
            record_bytes_max=record_bytes_max,
        ).decode

    def restated(self, change: Change) -> bytes:
        """Return a message that says what a change says."""
        from tailrace_server.pipeline.sources.debezium.message import restated

        return restated(change)

    def transaction_key(self, transaction_id: str) -> str:
        """Return the part of a transaction id that is equal for all its rows."""
        return transaction_key(transaction_id)
