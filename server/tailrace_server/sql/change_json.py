"""The JSON of a change, as Apache Phoenix writes it, cut out of the images' texts without touching a digit.

=============  ============================================================================================
member
=============  ============================================================================================
event_type     ``upsert``, ``delete``, ``ttl_delete``; ``truncate``, which stands for all rows at once
pre_image      the row before; ``{}`` where there was none
change_image   of an upsert: the columns that changed, of a new row all
post_image     of an upsert: the row before with the change laid over it
=============  ============================================================================================

Columns of the key are columns of the change table, and in no image. Other columns have the names of the newest
schema. Values are those of docs/schemas.md, decoded.

Source: apache/phoenix, CDCChangeBuilder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.criteria import Operation
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.unavailable import unavailable
from tailrace_server.wal.schema.decoding import decoding_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tailrace.schema import Column

_NULL: Final = msgspec.Raw(b"null")
_EMPTY: Final = b"{}"
_SETTING: Final = "ingest with --images full, which keeps it"


class ImageMissing(ValueError):
    """The log does not hold what an image needs; says what, and what to do."""


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One record of an entity type, as the log has it."""

    operation: int
    keyed: bool
    """Whether it has a key; a removal without one is of all rows."""
    changed: Sequence[str] | None
    """Columns that changed; None where there was no row before, as far as the source says."""
    change: bytes | None
    before: bytes | None
    after: bytes | None


class ChangeJson:
    """Writes the JSON of changes that were written with one schema."""

    def __init__(
        self,
        written: Sequence[Column],
        shown: Mapping[int, str],
        placeholders: tuple[str, ...],
        images: Iterable[str],
    ) -> None:
        """Prepare to write.

        Args:
            written: The entity type's columns, as the records' versions have them.
            shown: Id of a column → the name that images show it under; without columns of the key.
            placeholders: The placeholders for values that were not sent, as the schema has them.
            images: Which ones to write: CHANGE, PRE, POST.
        """
        known = [each for each in written if each.id in shown]
        self._names = {each.name: shown[each.id] for each in known}
        self._decoders = {
            each.name: decoding.shown
            for each in known
            if (decoding := decoding_of(each)) is not None
        }
        self._unavailable = unavailable(placeholders)
        self._hidden: Collection[str] = ()
        self._has_change, self._has_pre, self._has_post = (
            each in images for each in ("CHANGE", "PRE", "POST")
        )

    def of(self, record: ChangeRecord, hidden: Collection[str] = ()) -> bytes:
        """Return the JSON of a record, without columns that are hidden in it, by the names shown.

        Raises:
            ImageMissing: The log does not hold what an image needs.
        """
        self._hidden = hidden
        if not record.keyed:
            return b'{"event_type":"truncate"}'
        if record.operation != Operation.UPSERT:
            kind = b"ttl_delete" if record.operation == Operation.EXPIRE else b"delete"
            if not self._has_pre:
                return b'{"event_type":"%b"}' % kind
            return b'{"event_type":"%b","pre_image":%b}' % (kind, self._pre(record))
        parts = [b'{"event_type":"upsert"']
        if self._has_pre:
            parts.append(b'"pre_image":' + self._pre(record))
        if self._has_change:
            parts.append(b'"change_image":' + self._change(record))
        if self._has_post:
            parts.append(b'"post_image":' + self._post(record))
        return b",".join(parts) + b"}"

    def _pre(self, record: ChangeRecord) -> bytes:
        if record.before is None:
            if record.operation == Operation.UPSERT and record.changed is None:
                return _EMPTY
            raise ImageMissing(
                f"its source did not send the row before, so there is no PRE image; {_SETTING}"
            )
        members = self._members(record.before)
        for name, value in members.items():
            if self._unavailable.is_one(bytes(value)):
                raise self._not_sent(name, "PRE")
        return self._written(members)

    def _change(self, record: ChangeRecord) -> bytes:
        after = self._after(record, "CHANGE")
        if record.changed is None:
            return self._whole(after, {}, "CHANGE")
        # What the source did not send is no change.
        found = {
            name: after.get(name, _NULL)
            for name in record.changed
            if name in self._names
            and self._names[name] not in self._hidden
            and not self._unavailable.is_one(bytes(after.get(name, b"")))
        }
        return self._written(found)

    def _post(self, record: ChangeRecord) -> bytes:
        after = self._after(record, "POST")
        before = {} if record.before is None else self._members(record.before)
        # A column that the row has no more is null in it: so says the change, and post is pre with the change.
        gone = [each for each in record.changed or () if each in self._names and each in before]
        after = {**after, **{each: _NULL for each in gone if each not in after}}
        return self._whole(after, before, "POST")

    def _after(self, record: ChangeRecord, image: str) -> Mapping[str, msgspec.Raw]:
        if record.after is not None:
            return self._members(record.after)
        if record.change is not None and (image == "CHANGE" or record.before is not None):
            before = {} if record.before is None else self._members(record.before)
            return {**before, **self._members(record.change)}
        raise ImageMissing(
            f"its source did not send the row after, so there is no {image} image; {_SETTING}"
        )

    def _whole(
        self, members: Mapping[str, msgspec.Raw], before: Mapping[str, msgspec.Raw], image: str
    ) -> bytes:
        """Return an image with the values that were not sent taken from the row before."""
        found = {}
        for name, value in members.items():
            if self._unavailable.is_one(bytes(value)):
                value = before.get(name, value)
                if self._unavailable.is_one(bytes(value)):
                    raise self._not_sent(name, image)
            found[name] = value
        return self._written(found)

    def _members(self, image: bytes) -> Mapping[str, msgspec.Raw]:
        """Return the members that are shown."""
        return {
            name: value
            for name, value in decode_members(image).items()
            if name in self._names and self._names[name] not in self._hidden
        }

    def _written(self, members: Mapping[str, msgspec.Raw]) -> bytes:
        shown = {
            self._names[name]: msgspec.Raw(self._decoders[name](bytes(value)))
            if name in self._decoders
            else value
            for name, value in members.items()
        }
        return msgspec.json.encode(shown)

    def _not_sent(self, name: str, image: str) -> ImageMissing:
        return ImageMissing(
            f"its source did not send {self._names[name]!r}, so there is no {image} image; {_SETTING}"
        )
