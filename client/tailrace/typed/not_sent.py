"""Values that a source did not send: their placeholders in images.

PostgreSQL does not send a large value again that an update did not touch. Debezium writes a text in its place,
by the type of the column: as it is, in base64 or hex, in an array or a map, or as the numbers of its bytes.
"""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_DEFAULT: Final = "__debezium_unavailable_value"
_HEX: Final = "hex:"


class NotSent:
    """Finds values that a source did not send, by their placeholders."""

    __slots__ = ("_lists", "_maps", "_marks", "_texts")

    def __init__(self, placeholders: Iterable[str]) -> None:
        """Know Debezium's default and others, each as ``unavailable.value.placeholder`` has it."""
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
            # An image without any of these has none. A text that JSON may escape could be written otherwise.
            plain = text.isascii() and text.isprintable() and not {*text} & {*'"\\/'}
            marks += [text if plain else "", base64, url, octets.hex()]
            marks += [",".join(map(str, numbers)) for numbers in (octets, signed)]
        self._marks = tuple(dict.fromkeys(mark.encode() for mark in marks))

    def may_be_in(self, image: bytes) -> bool:
        """Return True if an image may contain such a value."""
        return any(mark in image for mark in self._marks)

    def is_one(self, value: object) -> bool:
        """Return whether a parsed value is none that was sent."""
        if isinstance(value, str):
            return value in self._texts
        if isinstance(value, list):
            return value in self._lists
        return isinstance(value, dict) and value in self._maps
