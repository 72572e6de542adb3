"""Row images as bytes: parsed, compared and joined without changing the text of any value.

An image is the text of a JSON object. All functions here work on the texts of its members. Two values are equal
if their texts are equal, because a source always writes a value in the same way.
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
    """Return the members of an image, name → text of the value, in the image's order.

    The texts are views of the image's bytes, and are compared by their bytes.

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

    A value of ``after`` that was not sent (by ``unavailable``) counts as unchanged. If the row was removed and
    inserted again (``anew``), it counts as changed, because it may be any value.
    """
    # Compare first: most values are equal, and comparing is cheaper than looking for a placeholder.
    if anew:
        changed = [
            name
            for name, value in after.items()
            if before.get(name) != value or unavailable.is_one(bytes(value))
        ]
    else:
        changed = [
            name
            for name, value in after.items()
            if before.get(name) != value and not unavailable.is_one(bytes(value))
        ]
    changed.extend(name for name in before if name not in after)
    return changed


def completed(image: bytes, earlier: bytes | None, unavailable: Unavailable = DEFAULT) -> bytes:
    """Return an image whose placeholders are replaced by the values of an earlier image of the row.

    Returns the image itself if no value is missing, or if the earlier image lacks the same values.
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
    """Return an image with columns added from an earlier image of the row, as far as that has them.

    Args:
        image: The image; it has none of ``names``.
        earlier: The earlier image.
        names: The columns to add.
    """
    if not names:
        return image
    known = members(earlier)
    added = {name: known[name] for name in names if name in known}
    if not added:
        return image
    found = {**members(image), **added}
    return projection(found, [*found])


def renamed(image: bytes, names: Mapping[str, str], without: Collection[str] = ()) -> bytes:
    """Return an image with some columns renamed.

    Args:
        image: The image.
        names: Old name → new name; all other columns keep their names.
        without: Columns of the image to leave out.
    """
    found = {
        names.get(name, name): value
        for name, value in members(image).items()
        if name not in without
    }
    return projection(found, [*found])


def hidden(image: bytes, names: Collection[str]) -> bytes:
    """Return an image in which the values of some columns are replaced by the placeholder; nulls stay."""
    found = members(image)
    return not_sent(image, [name for name in names if found.get(name, _NULL) != _NULL])


def not_sent(image: bytes, names: Collection[str]) -> bytes:
    """Return an image in which the values of some columns, also nulls, are replaced by the placeholder."""
    if not names:
        return image
    found = {**members(image), **dict.fromkeys(names, _UNAVAILABLE)}
    return projection(found, [*found])


def projection(image: Mapping[str, msgspec.Raw], names: Sequence[str]) -> bytes:
    """Return an image with some columns of another image, in the order of ``names``; absent ones are null."""
    return b"{%b}" % b",".join(
        orjson.dumps(name) + b":" + bytes(image.get(name, _NULL)) for name in names
    )
