"""One mutation as a Python program states it, and what its images say about changed columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.wal.record.columns import decode_members

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one row. Images are UTF-8 JSON objects and are kept byte for byte.

    Where both images are given and ``changed`` is not, the writer derives ``changed`` and ``change`` from them.
    """

    entity_type: str
    primary_key: str | None
    """Canonical key text; None stands for every key (a truncate)."""
    operation: Operation = Operation.UPSERT
    before: bytes | None = None
    after: bytes | None = None
    change: bytes | None = None
    changed: tuple[str, ...] | None = None
    area: Area = Area.DATA


def columns_of(image: bytes | None) -> Mapping[str, msgspec.Raw]:
    """Return the columns of an image with the text of each value; empty if there is no image.

    Raises:
        InvalidRequest: It is not a JSON object, or not valid UTF-8.
    """
    if image is None:
        return {}
    if not isinstance(image, bytes):
        raise InvalidRequest(
            f"an image must be bytes, a JSON object in UTF-8, not {type(image).__name__}"
        )
    try:
        image.decode()  # the decoder does not check UTF-8 inside values
        return decode_members(image)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"an image must be a UTF-8 JSON object: {error}") from error


_REMOVALS: Final = (Operation.REMOVE, Operation.EXPIRE)
_CHANGES: Final = (Operation.UPSERT, *_REMOVALS)
_AREAS: Final = (Area.DATA, Area.SCHEMA)
"""Areas that a mutation may have. The writer makes the leads, so INFRASTRUCTURE is not among them."""


def check(mutation: Mutation) -> None:
    """Refuse a mutation that means nothing or cannot be written. Images are checked by `columns_of`.

    Raises:
        InvalidRequest: Its fields contradict each other, or one of its texts has no UTF-8 form.
    """
    what, entity_type = mutation.operation, mutation.entity_type
    if what not in _CHANGES:
        raise InvalidRequest(f"operation must be Operation.UPSERT, REMOVE or EXPIRE, not {what!r}")
    if mutation.area not in _AREAS:
        raise InvalidRequest(f"area must be Area.DATA, the default, not {mutation.area!r}")
    if not entity_type:
        raise InvalidRequest("entity_type must not be empty: no criteria could name it")
    _check_texts(mutation)
    if mutation.primary_key is None and what is not Operation.REMOVE:
        raise InvalidRequest(
            f"{Operation(what).name} of {entity_type!r} without primary_key: only a REMOVE may have none"
        )
    if what in _REMOVALS and mutation.after is not None:
        raise InvalidRequest(
            f"{Operation(what).name} of {entity_type!r} with after: a removed row has no image after"
        )


def _check_texts(mutation: Mutation) -> None:
    if mutation.primary_key is not None:
        _check_text("primary_key", mutation.primary_key)
    _check_text("entity_type", mutation.entity_type)
    for name in mutation.changed or ():
        _check_text("a name in changed", name)


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{what} must be a text, not {value!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{what} {value!r} cannot be written as UTF-8: {error}") from error


def with_changes(
    mutation: Mutation, before: Mapping[str, msgspec.Raw], after: Mapping[str, msgspec.Raw]
) -> tuple[tuple[str, ...] | None, bytes | None]:
    """Return ``changed`` and ``change`` of a mutation, derived from its images unless it gives them.

    Values are compared as text. A column that is missing from ``after`` counts as changed to null.

    Args:
        mutation: The mutation.
        before: Columns of its image before, from `columns_of`.
        after: Columns of its image after.
    """
    if mutation.changed is not None or mutation.before is None or mutation.after is None:
        return mutation.changed, mutation.change
    changed, change = difference_of(before, after)
    return changed, change if mutation.change is None else mutation.change


def difference_of(
    before: Mapping[str, msgspec.Raw], after: Mapping[str, msgspec.Raw]
) -> tuple[tuple[str, ...], bytes]:
    """Return the columns that differ between two images, and their values after, as a JSON object."""
    missing = msgspec.Raw(b"null")
    changes = {
        name: after.get(name, missing)
        for name in (*after, *(name for name in before if name not in after))
        if name not in before or name not in after or bytes(before[name]) != bytes(after[name])
    }
    return tuple(changes), msgspec.json.encode(changes)
