"""Metadata of an envelope that was taken apart: by the CloudEvents converter, or by ExtractNewRecordState.

Both write the members of ``source`` and ``transaction`` as attributes beside the row, under names of their own.
`envelope_of` puts them together again.

Source: Debezium documentation, exporting CloudEvents, and new record state extraction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SOURCE_NAMES: Final = (
    *("version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "sequence"),
    *("db", "schema", "table", "collection", "keyspace"),
    *("txId", "lsn", "xmin", "gtid", "file", "pos", "row", "server_id", "thread", "query"),
    *("change_lsn", "commit_lsn", "event_serial_no", "scn", "commit_scn", "start_scn"),
    *("ssn", "rs_id", "redo_thread", "user_name", "row_id", "txSeq", "lcr_position"),
    *("rs", "ord", "lsid", "txnNumber", "wallTime", "shard", "vgtid"),
)
"""Members of the source blocks of all connectors."""
TRANSACTION_NAMES: Final = ("id", "total_order", "data_collection_order")


def envelope_of(
    attributes: Mapping[str, msgspec.Raw],
    source_name: Callable[[str], tuple[str, ...]],
    transaction_name: Callable[[str], tuple[str, ...]],
    **members: Any,
) -> dict[str, Any]:
    """Return the members of an envelope.

    Args:
        attributes: Name → text of each value.
        source_name: Member of the source block → names that its attribute may have.
        transaction_name: Member of the transaction block → the same.
        members: Of the envelope itself.
    """

    def block(names: tuple[str, ...], form: Callable[[str], tuple[str, ...]]) -> dict[str, Any]:
        found = {
            name: msgspec.json.decode(attributes[attribute])
            for name in names
            for attribute in reversed(form(name))
            if attribute in attributes
        }
        return {name: value for name, value in found.items() if value is not None}

    transaction = block(TRANSACTION_NAMES, transaction_name)
    return {
        **members,
        "source": block(SOURCE_NAMES, source_name),
        "transaction": transaction if "id" in transaction else None,
    }
