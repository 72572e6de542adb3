"""Conversion of images to rows of Python values, without the values that a source did not send.

PostgreSQL does not send a large value that an update did not change. Debezium writes a placeholder in its
place. The form of the placeholder depends on the type of the column: a plain text, base64, hex, an array, a
map, or a list of the numbers of its bytes.
"""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import ValueNotHeld
from tailrace.typed.column_values import (
    BeyondDecimal,
    NotHeld,
    convert_of,
    label_of,
    parsed,
    refuse_beyond,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace.schema import Column

_DEFAULT: Final = "__debezium_unavailable_value"
_HEX: Final = "hex:"


class NotSent:
    """Detector of values that a source did not send, by their placeholders."""

    __slots__ = ("_lists", "_maps", "_marks", "_texts")

    def __init__(self, placeholders: Iterable[str]) -> None:
        """Prepare all forms of Debezium's default placeholder and of others.

        Args:
            placeholders: Values of Debezium's option ``unavailable.value.placeholder``.
        """
        self._texts: set[str] = set()
        self._lists: list[list[object]] = []
        self._maps: list[dict[str, str]] = []
        marks: list[str] = []
        for each in {_DEFAULT: None, **dict.fromkeys(placeholders)}:
            octets = (
                bytes.fromhex(each.removeprefix(_HEX)) if each.startswith(_HEX) else each.encode()
            )
            text = octets.decode(errors="replace")  # as Java does
            base64, url = b64encode(octets).decode(), urlsafe_b64encode(octets).decode()
            as_map = {text: text}
            written = [
                json.dumps(as_map, ensure_ascii=only, separators=(",", ":"))
                for only in (False, True)
            ]
            signed = [octet - 256 if octet > 127 else octet for octet in octets]
            self._texts |= {text, base64, url, octets.hex(), *written}
            self._lists += [[text], list[object](octets), list[object](signed)]
            self._maps.append(as_map)
            # Marks for a quick test: an image that contains no mark has no placeholder. A text that JSON may
            # escape can be written in several ways, so its mark is empty, which is in every image.
            plain = text.isascii() and text.isprintable() and not {*text} & {*'"\\/'}
            marks += [text if plain else "", base64, url, octets.hex()]
            marks += [",".join(map(str, numbers)) for numbers in (octets, signed)]
        self._marks = tuple(dict.fromkeys(mark.encode() for mark in marks))

    def may_be_in(self, image: bytes) -> bool:
        """Return True if an image may contain a placeholder."""
        return any(mark in image for mark in self._marks)

    def is_one(self, value: object) -> bool:
        """Return True if a parsed value is a placeholder."""
        if isinstance(value, str):
            return value in self._texts
        if isinstance(value, list):
            return value in self._lists
        return isinstance(value, dict) and value in self._maps


_SHOWN_MAX: Final = 200


class RowReader:
    """Converter of images to Python values, by the columns of an entity type as of one version."""

    __slots__ = ("_converts", "_not_sent", "columns", "entity_type", "placeholders")

    def __init__(
        self, entity_type: str, columns: Iterable[Column], placeholders: Iterable[str] = ()
    ) -> None:
        """Prepare the conversion of each column's values, and the detection of placeholders."""
        self.entity_type = entity_type
        self.columns = (*columns,)
        self.placeholders = (*placeholders,)
        self._converts: dict[str, tuple[Callable[[Any], object], str]] = {}
        for column in self.columns:
            if (convert := convert_of(column)) is not None:
                self._converts[column.name] = convert, label_of(column)
        self._not_sent = NotSent(self.placeholders)

    def read(self, image: bytes) -> dict[str, Any]:
        """Return the values of an image by column, in the order of the image.

        A null is None. A column whose value the source did not send is missing.

        Raises:
            ValueNotHeld: Python's type for a column cannot hold its value.
        """
        # 1. Drop placeholders before the conversion, which would refuse them as misfits.
        row, has_beyond = _members(self.entity_type, image)
        if self._not_sent.may_be_in(image):
            row = {name: value for name, value in row.items() if not self._not_sent.is_one(value)}
        for name, (convert, label) in self._converts.items():
            value = row.get(name)
            if value is None:
                continue
            try:
                row[name] = convert(value)
            except NotHeld as misfit:
                text = _shown(value)
                raise ValueNotHeld(self.entity_type, name, label, text, str(misfit)) from None
        # 2. A conversion has replaced or refused the numbers of its column. Others must not reach the user.
        if has_beyond:
            _refuse_beyond(self.entity_type, row)
        return row


def untyped_row(entity_type: str, image: bytes) -> dict[str, Any]:
    """Return the values of an image by column, in JSON's types; numbers other than ints are Decimals.

    Raises:
        ValueNotHeld: The exponent of a number is too large for Decimal, or the values nest too deeply.
    """
    row, has_beyond = _members(entity_type, image)
    if has_beyond:
        _refuse_beyond(entity_type, row)
    return row


def _members(entity_type: str, image: bytes) -> tuple[dict[str, Any], bool]:
    """Parse an image; return its values, and True if they contain a `BeyondDecimal`."""
    try:
        return parsed(str(image, "utf-8"))
    except (ValueError, RecursionError) as error:
        text = image[:_SHOWN_MAX].decode(errors="replace")
        raise ValueNotHeld(entity_type, "", "a JSON object", text, str(error)) from None


def _refuse_beyond(entity_type: str, row: dict[str, Any]) -> None:
    for name, value in row.items():
        try:
            refuse_beyond(value)
        except NotHeld as misfit:
            raise ValueNotHeld(entity_type, name, "JSON", _shown(value), str(misfit)) from None


def _shown(value: object) -> str:
    if isinstance(value, Decimal | BeyondDecimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
