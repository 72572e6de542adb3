"""The Debezium source, with its options for the command line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tailrace.errors import InvalidRequest
from tailrace_server.option_fields import READING, OptionForm, one_of, option
from tailrace_server.pipeline.input.source import Source
from tailrace_server.pipeline.sources.debezium.names import FORMS, mapped_name, transaction_key
from tailrace_server.wal.record.unavailable import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tailrace_server.pipeline.input.change import Change
    from tailrace_server.pipeline.input.source import DecodeLine
    from tailrace_server.pipeline.input.table_bindings import Bindings
    from tailrace_server.wal.schema.mapping import SchemaMapping


def _keys(flag: str, texts: list[str] | None) -> dict[str, tuple[str, ...]]:
    keys: dict[str, tuple[str, ...]] = {}
    for text in texts or ():
        table, _, columns = text.partition("=")
        names = tuple(name.strip() for name in columns.split(","))
        if not table.strip() or not all(names):
            raise InvalidRequest(f"{flag} {text!r}: write TABLE=COLUMN or TABLE=COLUMN,COLUMN")
        if keys.setdefault(table.strip(), names) is not names:
            raise InvalidRequest(
                f"{flag} {text!r}: {flag} is given twice for this table; give it once"
            )
    return keys


def _keyless(flag: str, texts: list[str] | None) -> frozenset[str]:
    tables = set()
    for text in texts or ():
        table, _, form = text.partition("=")
        if not table.strip() or form.strip() != "whole-row":
            raise InvalidRequest(f"{flag} {text!r}: write TABLE=whole-row")
        tables.add(table.strip())
    return frozenset(tables)


def _tables(flag: str, texts: list[str] | None) -> tuple[str, ...]:
    tables = tuple(text.strip() for text in texts or ())
    if not all(tables) or any("=" in table for table in tables):
        raise InvalidRequest(
            f"{flag} {' '.join(texts or ())!r}: write TABLE, or '*' for all tables"
        )
    return tables


def _placeholders(flag: str, text: str | None) -> tuple[str, ...]:
    texts = () if text is None else (text,)
    try:
        unavailable(texts)
    except InvalidRequest as error:
        raise InvalidRequest(f"{flag}: {error}") from None
    return texts


def _table_map(flag: str, texts: list[str] | None) -> dict[str, str]:
    mapped: dict[str, str] = {}
    for text in texts or ():
        try:
            table, entity_type = mapped_name(text)
        except ValueError as error:
            raise InvalidRequest(f"{flag} {text!r}: {error}") from error
        if mapped.setdefault(table, entity_type) != entity_type:
            raise InvalidRequest(
                f"{flag} {text!r}: the option already gives {table} the name {mapped[table]!r}; give "
                "each table one name"
            )
    return mapped


@dataclass(frozen=True)
class Debezium(Source):
    """The source of Debezium's JSON, one message in each line; see `decoder` for all forms of lines.

    The decoder is imported only on use, because the command line imports this class for its options.
    """

    name: ClassVar[str] = "debezium"
    title: ClassVar[str] = "Debezium's JSON, one message a line,"

    keys: Mapping[str, tuple[str, ...]] = option(
        "--key",
        "Key columns of a table, instead of the key in its messages; TABLE * means lines without "
        "a message key.",
        OptionForm(kind=list[str] | None, parse=_keys, metavar="TABLE=COL,…"),
        factory=dict,
        panel=READING,
    )
    """Entity type, its last part, or ``*`` → names of key columns; see `row_key`."""
    entity_type_from: str = option(
        "--entity-type-from",
        "Form of entity type names: table, schema.table or database.schema.table; a level that "
        "the connector lacks is left out.",
        one_of(FORMS, "FORM"),
        FORMS[0],
        panel=READING,
    )
    table_map: Mapping[str, str] = option(
        "--table-map",
        "Entity type of one table; the first levels of the table's name may be left out.",
        OptionForm(kind=list[str] | None, parse=_table_map, metavar="TABLE=NAME"),
        factory=dict,
        panel=READING,
    )
    """Name of a table, in the form of `names` → entity type."""
    connector: str | None = option(
        "--connector",
        "Connector that the rows come from; needed if it has replaced another one.",
        OptionForm(kind=str | None, metavar="KIND:NAME"),
        None,
        panel=READING,
    )
    """The expected `Change.source`; None accepts the connector of the first row."""

    keyless: frozenset[str] = option(
        "--keyless",
        "Use the whole row as the key of a table without a key, and count equal rows.",
        OptionForm(kind=list[str] | None, parse=_keyless, metavar="TABLE=whole-row"),
        factory=frozenset,
        panel=READING,
    )
    whole_before: tuple[str, ...] = option(
        "--whole-before",
        "Trust that the rows before changes of a table are sent with all values (PostgreSQL: "
        "REPLICA IDENTITY FULL). TABLE * means all tables.",
        OptionForm(kind=list[str] | None, parse=_tables, metavar="TABLE"),
        factory=tuple,
        panel=READING,
    )
    """Entity types, their last parts, or ``*``; see `row_images`."""
    placeholders: tuple[str, ...] = option(
        "--unavailable-placeholder",
        "The connector's unavailable.value.placeholder, if it is not Debezium's default.",
        OptionForm(kind=str | None, parse=_placeholders, metavar="TEXT"),
        factory=tuple,
        panel=READING,
    )

    def __post_init__(self) -> None:
        """Check that the table map gives each entity type to one table.

        Raises:
            InvalidRequest: Two tables have the same entity type.
        """
        for entity_type, count in Counter(self.table_map.values()).items():
            if count > 1:
                names = " and ".join(n for n, to in self.table_map.items() if to == entity_type)
                raise InvalidRequest(
                    f"--table-map gives {entity_type!r} to {names}, so their rows with equal keys "
                    "would be mixed; give each table its own entity type"
                )

    def line_decoder(
        self, mapping: SchemaMapping | None, record_bytes_max: int, bindings: Bindings
    ) -> DecodeLine:
        """Return the decoder of Debezium messages for the lines of one task; see `Source.line_decoder`."""
        from tailrace_server.pipeline.sources.debezium.decoder import DebeziumDecoder
        from tailrace_server.pipeline.sources.debezium.row_key import RowKeys
        from tailrace_server.pipeline.sources.debezium.table_identity import TableIdentities

        return DebeziumDecoder(
            RowKeys(self.keys, mapping, self.counts, self.unavailable, bindings.keys),
            identities=TableIdentities(
                self.entity_type_from, self.table_map, self.connector, bindings
            ),
            mapping=mapping,
            unavailable=self.unavailable,
            record_bytes_max=record_bytes_max,
            whole_before=self.whole_before,
        )

    def remarks(self, bindings: Bindings) -> Iterable[str]:
        """Yield a remark for each entity type of the table map without rows; its name may be mistyped."""
        for table, entity_type in self.table_map.items():
            if entity_type not in bindings.tables:
                yield (
                    f"--table-map {table}={entity_type}: no row of this table has arrived yet; check "
                    "its name"
                )

    def restated(self, change: Change) -> bytes:
        """Return a message that decodes to an equal change; see `message.restated`."""
        from tailrace_server.pipeline.sources.debezium.message import restated

        return restated(change)

    def tells_shape(self, reason: str) -> bool:
        """Return True if a quarantine reason names a format that is not a usable Debezium message."""
        from tailrace_server.pipeline.sources.debezium.refusals import SHAPES

        return reason in SHAPES

    def transaction_key(self, transaction_id: str) -> str:
        """Return the part of a transaction id that is equal in all rows of the transaction."""
        return transaction_key(transaction_id)
