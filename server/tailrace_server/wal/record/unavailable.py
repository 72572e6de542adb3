"""Debezium's placeholder: what stands in an image for a large value that an update did not touch.

PostgreSQL does not send such a value again, so it is neither a value nor a change. How the placeholder is
written depends on the type of its column::

    text, json, uuid, …      "__debezium_unavailable_value"
    bytes                    the same text in base64, in either alphabet, or in hex
    array of texts           ["__debezium_unavailable_value"]
    array of numbers         [95,95,100,…]: the bytes of the text
    map                      {"__debezium_unavailable_value":"__debezium_unavailable_value"}

Source: Debezium documentation, PostgreSQL connector, toasted values; `unavailable.value.placeholder`.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final

import orjson

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""The text, as the connector has it by default."""

_BASE64: Final = b64encode(PLACEHOLDER.encode()).decode()
_HEX: Final = PLACEHOLDER.encode().hex()
_MAP: Final = orjson.dumps({PLACEHOLDER: PLACEHOLDER})
_NUMBERS: Final = orjson.dumps([*PLACEHOLDER.encode()])
_FORMS: Final = frozenset(
    (
        *map(orjson.dumps, (PLACEHOLDER, _BASE64, _HEX, [PLACEHOLDER], _MAP.decode())),
        _MAP,
        _NUMBERS,
    )
)
_MARKS: Final = (PLACEHOLDER.encode(), _BASE64.encode(), _HEX.encode(), _NUMBERS)
"""One of them is part of every form."""


def is_unavailable(value: bytes) -> bool:
    """Return whether the JSON text of a value is the placeholder."""
    return value in _FORMS


def is_unavailable_value(value: object) -> bool:
    """Return the same of a value that is parsed."""
    return isinstance(value, str | list | dict) and orjson.dumps(value) in _FORMS


def may_hold_unavailable(image: bytes) -> bool:
    """Return whether the placeholder stands anywhere in an image, within a value perhaps."""
    text, base64, hexadecimal, numbers = _MARKS
    return text in image or base64 in image or hexadecimal in image or numbers in image
