"""The objects of named subscriptions: one sequence for each name, changed by exclusive creation.

::

    subscriptions/billing@1c0f…/00000000000000000041.json      superseded; the last few stay for a while
                                00000000000000000042.json      the newest: the whole subscription

Each owner has names of its own, so that it neither learns nor blocks the names of others. The name in the log
is the given name, an ``@``, and a digest of the owner; without an owner it is the given name alone.

Whoever changes a subscription reads object n and creates n + 1. Another who wanted the same has lost, reads
n + 1 and decides again. That alone keeps two servers apart, and decides between two readers.

Old objects are deleted, so a writer that was held up for long might create a number that was used before. So
each writer looks, after it has created an object, whether that object is the newest. If not, it decides again:
what it wanted is then part of what it reads, or another writer came first.

For the same reason the first object of a name has the time of its creation, in µs, as its number. A name
changes less than once in a µs, so this number is above all that an earlier subscription of the name had, also
if nothing of that one is left. A late writer of the earlier one then finds that its object is not the newest.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.errors import (
    CatalogReplaced,
    InvalidRequest,
    LogCorrupted,
    LogError,
    SubscriptionExists,
    SubscriptionUnknown,
)
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.files.sealed import object_name, object_numbers
from tailrace_server.wal.files.sequence_documents import SUBSCRIPTIONS, SubscriptionDocument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore

    Decide = Callable[[SubscriptionDocument], SubscriptionDocument | None]
    """Returns what is to follow a subscription as it is now; None: it stays. It may be asked several times."""

_NAME_RULE: Final = (
    "use up to 64 letters, digits, underscores, dots and hyphens, a letter, digit or underscore "
    "first"
)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(@[0-9a-f]{16})?", re.ASCII)
_KEPT: Final = 8
"""Superseded objects that stay, so that a concurrent listing finds one that still exists."""
_ATTEMPTS: Final = 256
_FORGOTTEN_US: Final = 7 * 24 * 3600 * 1_000_000
"""How long a deleted name leaves one object: no writer that knew the name is held up for a week."""
_DELETED_MAX: Final = 100
"""How many deleted names leave an object; the newest do. So names that a caller creates and deletes in a loop
fill neither the folder nor the limit of names."""


def check_subscription_name(name: str, *, given: bool = False) -> None:
    """Refuse what cannot name a subscription; ``given``: also a name that says whose it is.

    Raises:
        InvalidRequest: It is not of the form.
    """
    if _NAME.fullmatch(name) is None or (given and "@" in name):
        raise InvalidRequest(f"{name[:80]!r} cannot name a subscription: {_NAME_RULE}")


def name_in_log(given: str, owner: str) -> str:
    """Return the name that a subscription has in the log; empty owner: none."""
    if not owner or "@" in given:
        return given
    return f"{given}@{hashlib.sha256(owner.encode()).hexdigest()[:16]}"


def given_name(name: str) -> str:
    """Return the name that the owner of a subscription gave it."""
    return name.partition("@")[0]


class SubscriptionSequences:
    """The named subscriptions of one catalog. Any thread may use it; every method does I/O."""

    def __init__(self, path: Path, uuid: UUID, store: ObjectStore | None = None) -> None:
        """Bind to a catalog's folder; ``store`` has its objects, if somebody has opened it already."""
        self._store: ObjectStore = store or LocalFiles(path)
        self._catalog = path.name
        self._uuid = uuid

    def names(self) -> list[str]:
        """Return the names, sorted; those deleted lately are among them."""
        return [each for each in self._store.names(SUBSCRIPTIONS) if _NAME.fullmatch(each)]

    def all(self) -> list[SubscriptionDocument]:
        """Return the subscriptions that there are, by name."""
        found = (self.newest(each) for each in self.names())
        return [each for each in found if each is not None and not each.deleted]

    def get(self, name: str) -> SubscriptionDocument:
        """Return one as it is now.

        Raises:
            SubscriptionUnknown: There is none of that name.
            InvalidRequest: The name is not of the form.
        """
        check_subscription_name(name)
        found = self.newest(name)
        if found is None or found.deleted:
            raise SubscriptionUnknown(self._catalog, name, [each.name for each in self.all()])
        return found

    def create(
        self,
        wanted: SubscriptionDocument,
        *,
        names_max: int | None = None,
        owner_max: int | None = None,
    ) -> None:
        """Create a subscription; its number does not matter.

        Args:
            wanted: The subscription.
            names_max: How many subscriptions the catalog may have; None: no limit.
            owner_max: How many of them the owner of this one may have; None: no limit.

        Raises:
            SubscriptionExists: The name is taken.
            InvalidRequest: The name is not of the form, or there are as many subscriptions as there may be.
        """
        check_subscription_name(wanted.name)
        others = [each for each in self._forget_deleted(wanted.created) if each.name != wanted.name]
        if (
            owner_max is not None
            and sum(each.owner == wanted.owner for each in others) >= owner_max
        ):
            raise InvalidRequest(
                f"the caller has {owner_max:,} named subscriptions in catalog {self._catalog!r}, the limit of "
                "each owner (named_subscriptions_of_owner); delete some, or have the operator raise it"
            )
        if names_max is not None and len(others) >= names_max:
            raise InvalidRequest(
                f"catalog {self._catalog!r} has {names_max:,} named subscriptions, the limit "
                "(named_subscriptions); delete some, or raise it"
            )
        self._store.make_folder(SUBSCRIPTIONS)
        self._store.make_folder(f"{SUBSCRIPTIONS}/{wanted.name}")
        for _ in range(_ATTEMPTS):
            found = self.newest(wanted.name)
            if found is not None and found.id == wanted.id:
                return
            if found is not None and not found.deleted:
                raise SubscriptionExists(self._catalog, given_name(wanted.name))
            if self._put(wanted, max(wanted.created, 1 if found is None else found.number + 1)):
                return
        raise self._contended(wanted.name)

    def change(self, name: str, decide: Decide) -> SubscriptionDocument:
        """Bring a subscription to what is decided of it, whoever else changes it; return it as it is then.

        Raises:
            SubscriptionUnknown: There is none of that name.
            TailraceError: What ``decide`` raises.
        """
        for _ in range(_ATTEMPTS):
            found = self.get(name)
            wanted = decide(found)
            if wanted is None:
                return found
            if self._put(wanted, found.number + 1):
                return msgspec.structs.replace(wanted, number=found.number + 1)
        raise self._contended(name)

    def delete(self, name: str, now: int) -> None:
        """Delete a subscription at a time, µs: what comes late from its reader finds that it is gone.

        Raises:
            SubscriptionUnknown: There is none of that name.
        """
        gone = {"deleted": True, "moved": now, "criteria": [], "cursor": ""}
        self.change(name, lambda found: msgspec.structs.replace(found, **gone))

    def newest(self, name: str) -> SubscriptionDocument | None:
        """Return the newest object of a name, which may say that it was deleted; None where there is none.

        Raises:
            LogCorrupted: It is damaged.
            CatalogReplaced: It is of another log.
        """
        for _ in range(_ATTEMPTS):
            numbers = self._numbers(name)
            if not numbers:
                return None
            path = _path(name, numbers[-1])
            # One that is gone was superseded between the listing and now, many times over.
            found = documents.read(self._store, path, SubscriptionDocument)
            if found is not None:
                return self._checked(path, found[0], numbers[-1])
        raise self._contended(name)

    def _checked(
        self, path: str, document: SubscriptionDocument, number: int
    ) -> SubscriptionDocument:
        if document.uuid != self._uuid:
            raise CatalogReplaced(path, self._uuid, document.uuid)
        if document.number != number:
            raise LogCorrupted(path, 0, f"it says that it is number {document.number}")
        return document

    def _put(self, document: SubscriptionDocument, number: int) -> bool:
        """Create the object of a number; return whether it is the newest, and so what was decided by it."""
        name = document.name
        data = documents.sealed(msgspec.structs.replace(document, number=number))[0]
        if not self._store.create(_path(name, number), data, failpoint="named"):
            return False
        numbers = self._numbers(name)
        for each in numbers:
            if each <= numbers[-1] - _KEPT:
                self._store.delete(_path(name, each))
        return bool(numbers) and numbers[-1] == number

    def _forget_deleted(self, now: int) -> list[SubscriptionDocument]:
        """Remove what names have left that were deleted a week ago, or before many others; return the rest."""
        found = [each for name in self.names() if (each := self.newest(name)) is not None]
        deleted = sorted(
            (each for each in found if each.deleted), key=lambda each: each.moved, reverse=True
        )
        for newer, each in enumerate(deleted):
            if newer >= _DELETED_MAX or each.moved <= now - _FORGOTTEN_US:
                self._forget(each)
        return [each for each in found if not each.deleted]

    def _forget(self, gone: SubscriptionDocument) -> None:
        """Remove the objects of a deleted name, but not those by which it was created anew meanwhile."""
        for each in self._numbers(gone.name):
            if each <= gone.number:
                self._store.delete(_path(gone.name, each))
        self._store.remove_folder(f"{SUBSCRIPTIONS}/{gone.name}")

    def _numbers(self, name: str) -> list[int]:
        return object_numbers(self._store.names(f"{SUBSCRIPTIONS}/{name}"))

    def _contended(self, name: str) -> LogError:
        return LogError(
            f"subscription {name!r} of catalog {self._catalog!r} was changed by others {_ATTEMPTS} times "
            "meanwhile; try again"
        )


def _path(name: str, number: int) -> str:
    return f"{SUBSCRIPTIONS}/{name}/{object_name(number)}"
