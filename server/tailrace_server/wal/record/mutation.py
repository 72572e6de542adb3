"""A mutation as a Python program states it, and the changed columns derived from its images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.wal.record.columns import count_fault, decode_members
from tailrace_server.wal.record.json_check import json_fault
from tailrace_server.wal.record.row_rules import repeated_member

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one row. Images are UTF-8 JSON objects and are stored byte for byte.

    If both images are given and ``changed`` is not, the writer derives ``changed`` and ``change`` from them.
    """

    entity_type: str
    primary_key: str | None
    """Canonical key text; None means every key (a truncate)."""
    operation: Operation = Operation.UPSERT
    before: bytes | None = None
    after: bytes | None = None
    change: bytes | None = None
    changed: tuple[str, ...] | None = None
    area: Area = Area.DATA


def columns_of(image: bytes | None) -> Mapping[str, msgspec.Raw]:
    """Return the columns of an image with the JSON text of each value; empty if there is no image.

    Raises:
        InvalidRequest: The image is not a JSON object, is not valid UTF-8, or has a member twice.
    """
    if image is None:
        return {}
    if not isinstance(image, bytes):
        raise InvalidRequest(
            f"an image must be bytes, a JSON object in UTF-8, not {type(image).__name__}"
        )
    if len(image) > _IMAGE_BYTES_MAX:
        raise InvalidRequest(
            f"an image may have at most {_IMAGE_BYTES_MAX} bytes, not {len(image)}"
        )
    try:
        image.decode()  # the decoder does not check UTF-8 inside values
        members = decode_members(image)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        fault = json_fault(image, error)
        raise InvalidRequest(f"an image must be a UTF-8 JSON object: {fault}") from error
    if (name := repeated_member(image, members)) is not None:
        raise InvalidRequest(f"an image must have each member once, but has {name!r} twice")
    return members


_IMAGE_BYTES_MAX: Final = (1 << 31) - 1
"""Maximum size of a column of a record batch, in bytes, and so of an image."""
_CHANGES: Final = (Operation.UPSERT, Operation.REMOVE, Operation.EXPIRE)
_AREAS: Final = (Area.DATA, Area.SCHEMA)
"""Areas that a mutation may have; INFRASTRUCTURE is for leads, which the writer creates."""


def check(mutation: Mutation) -> None:
    """Refuse a mutation with a field of a wrong type or value. `row_rules` and `columns_of` have further rules.

    Raises:
        InvalidRequest: A field has an invalid value, or a text cannot be encoded as UTF-8.
    """
    if mutation.operation not in _CHANGES:
        raise InvalidRequest(
            f"operation must be Operation.UPSERT, REMOVE or EXPIRE, not {mutation.operation!r}"
        )
    if mutation.area not in _AREAS:
        raise InvalidRequest(f"area must be Area.DATA, the default, not {mutation.area!r}")
    if not mutation.entity_type:
        raise InvalidRequest("entity_type is empty, so no criteria could name it")
    _check_texts(mutation)


def _check_texts(mutation: Mutation) -> None:
    if mutation.primary_key is not None:
        _check_text("primary_key", mutation.primary_key)
    _check_text("entity_type", mutation.entity_type)
    changed = mutation.changed
    if changed is None:
        return
    if not isinstance(changed, tuple | list):  # a text is a sequence too, of its letters
        raise InvalidRequest(f"changed must be a tuple of names, such as ('id',), not {changed!r}")
    for name in changed:
        _check_text("a name in changed", name)
    if len({*changed}) < len(changed):
        raise InvalidRequest(f"changed must name each column once, not {changed!r}")


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{what} must be a text, not {value!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{what} {value!r} cannot be written as UTF-8: {error}") from error


def count_fault_of(mutation: Mutation) -> tuple[str, str] | None:
    """Return column and reason if a mutation has an invalid count: `row_rules.first_count_fault` for a row."""
    names_columns = mutation.changed is not None or None not in (mutation.before, mutation.after)
    if names_columns or not isinstance(mutation.change, bytes):
        return None
    reason = count_fault(mutation.change)
    return None if reason is None else ("change", reason)


def with_changes(
    mutation: Mutation, before: Mapping[str, msgspec.Raw], after: Mapping[str, msgspec.Raw]
) -> tuple[tuple[str, ...] | None, bytes | None]:
    """Return ``changed`` and ``change`` of a mutation; derive them from its images if it does not give them.

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
    """Return the columns that differ between two images, and their new values as a JSON object."""
    missing = msgspec.Raw(b"null")
    changes = {
        name: after.get(name, missing)
        for name in (*after, *(name for name in before if name not in after))
        if name not in before or name not in after or bytes(before[name]) != bytes(after[name])
    }
    return tuple(changes), msgspec.json.encode(changes)
