"""Rows held against the types that the mapping declares.

A declared type says what a plain number or text means, and each value is checked against it. It cannot change
how values are written: where the message names one encoding and the mapping another, a value would be read as
something else. In ``after`` it sends the row to quarantine. In ``before`` it counts as not sent, so that a
removal is never kept from its table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.pipeline.images import hidden, members
from tailrace_server.pipeline.sources.debezium.announcements import columns_of
from tailrace_server.pipeline.sources.debezium.refusals import Incompatible
from tailrace_server.wal.schema.restating import misread

if TYPE_CHECKING:
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.mapping import SchemaMapping

_CACHED_MAX: Final = 256
"""Blocks that are remembered: one for each table, and one more for each time that it was altered."""


class DeclaredTypes:
    """The declared types of a mapping, as the rows of one task meet them."""

    def __init__(self, mapping: SchemaMapping | None, unavailable: Unavailable) -> None:
        """Take a mapping, None for nothing declared, and the placeholders of values that were not sent."""
        self._mapping = mapping
        self._unavailable = unavailable
        self._misread: dict[tuple[str, bytes], dict[str, str]] = {}

    def check(
        self, entity_type: str, block: bytes, before: bytes | None, after: bytes | None
    ) -> bytes | None:
        """Check a row, and return its ``before`` without what would be misread.

        Args:
            entity_type: The row's.
            block: The schema that came with it; empty without.
            before: Its image before.
            after: Its image after; None for a removal.

        Raises:
            Incompatible: A declared type cannot hold a value of ``after``.
        """
        mapping = self._mapping
        if mapping is None or entity_type not in mapping.entity_types:
            return before
        misread_columns = self._misread_columns(entity_type, block) if block else {}
        if after is not None:
            row = members(after)
            fault = mapping.fault_of(entity_type, row, self._unavailable)
            if fault is not None:
                raise Incompatible(fault)
            for name, reason in misread_columns.items():
                value = bytes(row.get(name, b"null"))
                if value != b"null" and not self._unavailable.is_one(value):
                    raise Incompatible(reason)
        if before is None or not misread_columns:
            return before
        return hidden(before, misread_columns)

    def _misread_columns(self, entity_type: str, block: bytes) -> dict[str, str]:
        """Return the columns whose encoding in the message is not the declared one, each with the reason."""
        cached = self._misread.get((entity_type, block))
        if cached is not None:
            return cached
        assert self._mapping is not None
        declared = self._mapping.entity_types[entity_type].columns
        found = {}
        for name, _, encoding, _ in columns_of(block) or ():
            column = declared.get(name)
            if column is None or column.sql_type is None:
                continue
            read = column.encoding or "json"
            if misread(encoding, read):
                found[name] = (
                    f"column {name}: the source writes it in {encoding}, and {self._mapping.source} declares "
                    f"{column.sql_type} in {read}; declare that encoding, or JSON"
                )
        if len(self._misread) >= _CACHED_MAX:
            self._misread.clear()
        self._misread[entity_type, block] = found
        return found
