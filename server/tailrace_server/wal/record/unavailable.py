"""Debezium's placeholder, which an image has in place of a large value that an update did not touch.

PostgreSQL does not send such a value again, so a placeholder is neither a value nor a change. Its form depends
on the type of its column::

    text, json, uuid, …      "__debezium_unavailable_value"
    bytes                    the same text in base64, in either alphabet, or in hex
    array of texts           ["__debezium_unavailable_value"]
    array of numbers         [95,95,100,…]: the bytes of the text, signed or not
    map                      {"__debezium_unavailable_value":"__debezium_unavailable_value"}

The text is an option of the connector. A catalog's schema stores the texts that its sources have used, so every
reader of the log knows them. Images are stored as the source sent them. A value that happens to equal the
placeholder cannot be distinguished from it.

Source: Debezium documentation, PostgreSQL connector, toasted values; `unavailable.value.placeholder`.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import orjson

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""The connector's default text."""
_HEX: Final = "hex:"
_UNICODE: Final = re.compile(r"\\u[0-9a-f]{4}")


class Unavailable:
    """Recognises values that a source did not send."""

    __slots__ = ("_forms", "_marks")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Recognise the default placeholder and others.

        Args:
            texts: Further placeholders, in the form of the connector option ``unavailable.value.placeholder``.

        Raises:
            InvalidRequest: A text is empty, or is ``hex:`` followed by something other than hexadecimal digits.
        """
        forms: set[bytes] = set()
        marks: list[bytes] = []
        for text in dict.fromkeys((PLACEHOLDER, *texts)):
            mine = [*_forms(_octets(text))]
            forms.update(mine)
            # A mark that contains a shorter mark is redundant: every image with it has the shorter one too.
            for mark in map(_mark, mine):
                if not any(held in mark for held in marks):
                    marks.append(mark)
        self._forms = frozenset(forms)
        self._marks = tuple(marks)

    @property
    def forms(self) -> frozenset[bytes]:
        """All JSON texts of the placeholders, without spaces."""
        return self._forms

    def is_one(self, value: bytes) -> bool:
        """Return True if the JSON text of a value is a placeholder."""
        return value in self._forms

    def is_one_parsed(self, value: object) -> bool:
        """Return True if a parsed value is a placeholder."""
        return isinstance(value, str | list | dict) and orjson.dumps(value) in self._forms

    def may_be_in(self, image: bytes) -> bool:
        """Return True if a placeholder's text occurs anywhere in an image, perhaps inside another value."""
        for mark in self._marks:  # noqa: SIM110 - a generator costs more than the search, for each image
            if mark in image:
                return True
        return False

    @property
    def marks(self) -> tuple[bytes, ...]:
        """Search texts: every image with a placeholder contains at least one of them."""
        return self._marks


@lru_cache(maxsize=256)
def unavailable(texts: tuple[str, ...]) -> Unavailable:
    """Return the recogniser of the default placeholder and of further texts; errors as `Unavailable`."""
    return Unavailable(texts)


def _octets(text: str) -> bytes:
    if text.startswith(_HEX):
        try:
            octets = bytes.fromhex(text.removeprefix(_HEX))
        except ValueError:
            raise InvalidRequest(
                f"placeholder {text!r}: write pairs of hexadecimal digits after hex:"
            ) from None
    else:
        octets = text.encode()
    if not octets:
        raise InvalidRequest("a placeholder must not be empty")
    return octets


def _forms(octets: bytes) -> Iterator[bytes]:
    """Yield all JSON texts of a placeholder, given its bytes."""
    text = octets.decode(errors="replace")  # as Java does
    base64 = b64encode(octets).decode()
    # Columns of text; columns of bytes in both alphabets of base64, and in hex.
    for value in (text, base64, base64.translate(_URL), octets.hex()):
        yield from _spellings(value)
    # Arrays of texts, maps, and maps as a JSON text.
    yield from _spellings([text])
    yield from _spellings({text: text})
    yield from _spellings(orjson.dumps({text: text}).decode())
    # Arrays of numbers: the bytes, unsigned and signed.
    yield orjson.dumps([*octets])
    yield orjson.dumps([octet - 256 if octet > 127 else octet for octet in octets])


_URL: Final = str.maketrans("+/", "-_")


def _spellings(value: object) -> Iterator[bytes]:
    """Yield the texts that JSON libraries write for a value: with or without escapes, in either case."""
    yield orjson.dumps(value)
    for ascii_only in (False, True):
        written = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"))
        yield written.encode()
        yield _UNICODE.sub(lambda found: "\\u" + found[0][2:].upper(), written).encode()


def _mark(form: bytes) -> bytes:
    """Return the part of a form that every image with this form contains."""
    return form.strip(b'"[]{}')


DEFAULT: Final = unavailable(())
"""Recogniser of the default placeholder only."""
