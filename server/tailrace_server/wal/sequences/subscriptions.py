"""The objects of named subscriptions: one sequence for each name, changed by exclusive creation.

::

    subscriptions/billing@1c0f…/00000000000000000041.json      superseded; the last few stay for a while
                                00000000000000000042.json      the newest: the whole subscription

Each owner has a name space of its own, so that owners neither see nor block each other's names. The name in the
log is the given name, an ``@``, and a digest of the owner. Without an owner it is the given name alone.

A writer reads object n, decides, and creates n + 1 (files/numbered.py). This alone keeps two servers apart, and
decides between two readers.

Old objects are deleted. So the first object of a name has its creation time, in microseconds, as its number. A
name changes less than once per microsecond, so this number is above all numbers of an earlier subscription of
the same name, even if no object of that subscription is left. A late writer of the earlier subscription then
detects that its object is not the newest.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.errors import (
    InvalidRequest,
    SubscriptionExists,
    SubscriptionUnknown,
)
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.numbered import NumberedSequence, numbered_path
from tailrace_server.wal.files.sealed import object_numbers
from tailrace_server.wal.files.sequence_documents import SUBSCRIPTIONS, SubscriptionDocument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from uuid import UUID

    from tailrace_server.wal.files.numbered import Newest
    from tailrace_server.wal.files.object_store import ObjectStore

    Decide = Callable[[SubscriptionDocument], SubscriptionDocument | None]
    """Returns the next object of a subscription, given the newest one; None: no change. It may be called
    several times."""

_NAME_RULE: Final = (
    "use up to 64 letters, digits, underscores, dots and hyphens, and begin with a letter, digit "
    "or underscore"
)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(@[0-9a-f]{16})?", re.ASCII)
_RETAINED: Final = 8
"""Number of superseded objects to retain, so that a concurrent listing names at least one that still exists."""
_FORGOTTEN_US: Final = 7 * 24 * 3600 * 1_000_000
"""Time for which a deleted name retains one object, in microseconds: no writer of the old name is paused for a
week."""
_DELETED_MAX: Final = 100
"""Maximum number of deleted names that retain an object; the newest do. So a caller that creates and deletes
names in a loop fills neither the folder nor the limit of names."""


def check_subscription_name(name: str, *, given: bool = False) -> None:
    """Refuse a malformed subscription name.

    Args:
        name: The name.
        given: True: also refuse a name with the digest of an owner.

    Raises:
        InvalidRequest: The name is malformed.
    """
    if _NAME.fullmatch(name) is None or (given and "@" in name):
        raise InvalidRequest(f"{name[:80]!r} is not a valid name of a subscription: {_NAME_RULE}")


def name_in_log(given: str, owner: str) -> str:
    """Return the name of a subscription in the log; an empty owner means no owner."""
    if not owner or "@" in given:
        return given
    return f"{given}@{hashlib.sha256(owner.encode()).hexdigest()[:16]}"


def given_name(name: str) -> str:
    """Return the name that the owner gave to a subscription."""
    return name.partition("@")[0]


class SubscriptionSequences:
    """The named subscriptions of one catalog. Thread-safe; every method does I/O."""

    def __init__(self, path: Path, uuid: UUID, store: ObjectStore | None = None) -> None:
        """Bind to a catalog's folder; ``store`` reuses an opened store of this catalog."""
        self._store: ObjectStore = store or LocalFiles(path)
        self._catalog = path.name
        self._uuid = uuid

    def names(self) -> list[str]:
        """Return the sorted names, including those of recently deleted subscriptions."""
        return [each for each in self._store.names(SUBSCRIPTIONS) if _NAME.fullmatch(each)]

    def all(self) -> list[SubscriptionDocument]:
        """Return the existing subscriptions, sorted by name."""
        found = (self.newest(each) for each in self.names())
        return [each for each in found if each is not None and not each.deleted]

    def get(self, name: str) -> SubscriptionDocument:
        """Return a subscription.

        Raises:
            SubscriptionUnknown: No subscription of that name exists.
            InvalidRequest: The name is malformed.
        """
        check_subscription_name(name)
        return self._existing(name, self.newest(name))

    def create(
        self,
        wanted: SubscriptionDocument,
        *,
        names_max: int | None = None,
        owner_max: int | None = None,
    ) -> None:
        """Create a subscription; the number in ``wanted`` is ignored.

        Args:
            wanted: The subscription.
            names_max: Maximum number of subscriptions of the catalog; None: no limit.
            owner_max: Maximum number of subscriptions of this owner; None: no limit.

        Raises:
            SubscriptionExists: The name is taken.
            InvalidRequest: The name is malformed, or a limit is reached.
        """
        check_subscription_name(wanted.name)
        # Remove old deleted names first, so that they do not fill the folder.
        others = [each for each in self._forget_deleted(wanted.created) if each.name != wanted.name]
        if (
            owner_max is not None
            and sum(each.owner == wanted.owner for each in others) >= owner_max
        ):
            raise InvalidRequest(
                f"the caller owns {owner_max:,} named subscriptions in catalog {self._catalog!r}, "
                "which is the limit for each owner (named_subscriptions_of_owner); delete some, "
                "or let the operator raise the limit"
            )
        if names_max is not None and len(others) >= names_max:
            raise InvalidRequest(
                f"catalog {self._catalog!r} has {names_max:,} named subscriptions, which is its "
                "limit (named_subscriptions); delete some, or raise the limit"
            )

        def first_document(newest: Newest[SubscriptionDocument]) -> SubscriptionDocument | None:
            found = newest.document
            # A repeated attempt may find the object that it created itself.
            if found is not None and found.id == wanted.id:
                return None
            if found is not None and not found.deleted:
                raise SubscriptionExists(self._catalog, given_name(wanted.name))
            return msgspec.structs.replace(wanted, number=wanted.created)

        self._store.make_folder(SUBSCRIPTIONS)
        self._sequence(wanted.name).change(first_document)

    def change(self, name: str, decide: Decide) -> SubscriptionDocument:
        """Change a subscription, as decided by ``decide``; return the result.

        If another process changes it at the same time, ``decide`` is called again.

        Raises:
            SubscriptionUnknown: No subscription of that name exists.
            TailraceError: As ``decide``.
        """
        check_subscription_name(name)

        def next_document(newest: Newest[SubscriptionDocument]) -> SubscriptionDocument | None:
            return decide(self._existing(name, newest.document))

        changed = self._sequence(name).change(next_document).document
        assert changed is not None, "there is one, or ``next_document`` has raised"
        return changed

    def delete(self, name: str, now: int) -> None:
        """Delete a subscription at a time, in microseconds; late calls of its reader then fail.

        Raises:
            SubscriptionUnknown: No subscription of that name exists.
        """
        gone = {"deleted": True, "moved": now, "criteria": [], "cursor": ""}
        self.change(name, lambda found: msgspec.structs.replace(found, **gone))

    def newest(self, name: str) -> SubscriptionDocument | None:
        """Return the newest object of a name, which may state a deletion; None if no object exists.

        Raises:
            LogCorrupted: The object is damaged.
            CatalogReplaced: The object belongs to another log.
        """
        return self._sequence(name).read().document

    def _existing(self, name: str, found: SubscriptionDocument | None) -> SubscriptionDocument:
        if found is None or found.deleted:
            raise SubscriptionUnknown(self._catalog, name, [each.name for each in self.all()])
        return found

    def _sequence(self, name: str) -> NumberedSequence[SubscriptionDocument]:
        folder = f"{SUBSCRIPTIONS}/{name}"
        return NumberedSequence(
            self._store, folder, SubscriptionDocument, self._uuid, "named", _RETAINED
        )

    def _forget_deleted(self, now: int) -> list[SubscriptionDocument]:
        """Remove the objects of old deleted subscriptions; return the existing subscriptions.

        A deleted subscription is old after a week, or if `_DELETED_MAX` others were deleted after it.
        """
        found = [each for name in self.names() if (each := self.newest(name)) is not None]
        deleted = sorted(
            (each for each in found if each.deleted), key=lambda each: each.moved, reverse=True
        )
        for newer, each in enumerate(deleted):
            if newer >= _DELETED_MAX or each.moved <= now - _FORGOTTEN_US:
                self._forget(each)
        return [each for each in found if not each.deleted]

    def _forget(self, gone: SubscriptionDocument) -> None:
        """Remove the objects of a deleted subscription, except those of a new one of the same name."""
        folder = f"{SUBSCRIPTIONS}/{gone.name}"
        for each in object_numbers(self._store.names(folder)):
            # A new subscription of this name has higher numbers, so its objects survive.
            if each <= gone.number:
                self._store.delete(numbered_path(folder, each))
        self._store.remove_folder(folder)
