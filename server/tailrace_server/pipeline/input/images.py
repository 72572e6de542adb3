"""Row images as the source's bytes: cut apart, compared and put together without touching a digit.

An image is the text of a JSON object. Everything here works on the text of its members. Two values are
equal if their texts are equal: one source always writes a value in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.unavailable import DEFAULT, PLACEHOLDER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tailrace_server.wal.record.unavailable import Unavailable

_NULL: Final = msgspec.Raw(b"null")
_UNAVAILABLE: Final = msgspec.Raw(orjson.dumps(PLACEHOLDER))


def members(image: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Return the members of an image: name → text of the value, in the image's order.

    The texts are views of the image, and compare by their bytes.

    Raises:
        msgspec.DecodeError: Not a JSON object; the message names the byte.
    """
    return decode_members(image)


def difference(
    before: Mapping[str, msgspec.Raw],
    after: Mapping[str, msgspec.Raw],
    unavailable: Unavailable = DEFAULT,
    *,
    anew: bool = False,
) -> list[str]:
    """Return the names of the columns that differ: in the order of ``after``, then those only in ``before``.

    A value of ``after`` that was not sent, by ``unavailable``, is the one before, unless the row was made
    ``anew``: then it may be any.
    """
    changed = [
        name
        for name, value in after.items()
        if (anew if unavailable.is_one(bytes(value)) else before.get(name) != value)
    ]
    changed.extend(name for name in before if name not in after)
    return changed


def completed(image: bytes, earlier: bytes | None, unavailable: Unavailable = DEFAULT) -> bytes:
    """Return an image with the values that the source did not send, taken from an earlier image of the row.

    The image itself where nothing is missing, or the earlier one lacks it as well.
    """
    if earlier is None or not unavailable.may_be_in(image):
        return image
    found, known = members(image), members(earlier)
    filled = {
        name: known.get(name, value) if unavailable.is_one(bytes(value)) else value
        for name, value in found.items()
    }
    return image if filled == found else projection(filled, [*filled])


def extended(image: bytes, earlier: bytes, names: Sequence[str]) -> bytes:
    """Return an image with columns that it lacks, as far as an earlier image of the row has them."""
    if not names:
        return image
    known = members(earlier)
    added = {name: known[name] for name in names if name in known}
    if not added:
        return image
    found = {**members(image), **added}
    return projection(found, [*found])


def renamed(image: bytes, names: Mapping[str, str], without: Collection[str] = ()) -> bytes:
    """Return an image whose columns have other names.

    Args:
        image: The image.
        names: Name of a column in it → its other name; columns that are not in it keep theirs.
        without: Columns of the image that are left out.
    """
    found = {
        names.get(name, name): value
        for name, value in members(image).items()
        if name not in without
    }
    return projection(found, [*found])


def hidden(image: bytes, names: Collection[str]) -> bytes:
    """Return an image whose values of some columns count as not sent; nulls stay."""
    found = members(image)
    return not_sent(image, [name for name in names if found.get(name, _NULL) != _NULL])


def not_sent(image: bytes, names: Collection[str]) -> bytes:
    """Return an image whose values of some columns, nulls among them, count as not sent."""
    if not names:
        return image
    found = {**members(image), **dict.fromkeys(names, _UNAVAILABLE)}
    return projection(found, [*found])


def projection(image: Mapping[str, msgspec.Raw], names: Sequence[str]) -> bytes:
    """Return an image of some columns of another, in the order of ``names``; absent ones are null."""
    return b"{%b}" % b",".join(
        orjson.dumps(name) + b":" + bytes(image.get(name, _NULL)) for name in names
    )
