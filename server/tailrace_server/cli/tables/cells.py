"""From rows to cells: the values of a table's columns as texts, in the order of its schema.

A text is what the source wrote, exact: a JSON text without its quotes, a number digit for digit, an object or a
list as JSON. Null, and what is not in a row's image, is None. Members of an image beside the schema's columns,
as one that was renamed since, are JSON in a last column, so that nothing is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.reads.state import StateRow
    from tailrace.schema import Schema

OTHERS: Final = "_others"
"""The last column: what an image has beside those of the schema."""
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text: Final = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class Cells:
    """The columns that are shown of a table."""

    columns: tuple[str, ...]

    @classmethod
    def of(cls, schema: Schema, entity_type: str, chosen: Sequence[str]) -> Cells:
        """Return the columns of an entity type, of those chosen if any are; its key columns come first."""
        known = [each for each in schema.entity_types.get(entity_type, ()) if not each.dropped]
        known.sort(key=lambda column: column.key or len(known) + 1)
        names = [each.name for each in known if not chosen or each.name in chosen]
        return cls((*names, *(name for name in chosen if name not in names)))

    def values(self, row: StateRow) -> tuple[list[str | None], str | None]:
        """Return the values of the columns, and what else the image has, as JSON."""
        members = {} if row.image is None else _members(row.image)
        values = [
            None if (raw := members.pop(name, None)) is None else _value(bytes(raw))
            for name in self.columns
        ]
        return values, msgspec.json.encode(members).decode() if members else None


def _value(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    return _text(raw) if raw.startswith(b'"') else raw.decode()


def line_of(row: StateRow) -> bytes:
    """Return a row as a line of JSON, its image byte for byte but for line ends between its tokens."""
    image = b"null" if row.image is None else row.image.replace(b"\n", b" ").replace(b"\r", b" ")
    omitted = b',"omittedBytes":%d' % row.omitted_bytes if row.omitted_bytes else b""
    count = b',"count":%d' % row.count if row.count != 1 else b""
    return b'{"primaryKey":%b,"version":%d,"index":%d,"commitTimestamp":%d,"row":%b%b%b}\n' % (
        *(msgspec.json.encode(row.primary_key), row.position.version, row.position.index),
        *(row.commit_timestamp, image, omitted, count),
    )
