"""Errors of requests, which are mistakes of the caller; requests for named subscriptions included."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from tailrace.errors.endings import SubscriptionBroken
from tailrace.errors.tree import TailraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name, to append to an error: the most similar name, or else all known names.

    Case is ignored. At most 20 names are listed.
    """
    names = sorted(known)
    folded = {each.casefold(): each for each in names}
    if near := get_close_matches(name.casefold(), folded, 1):
        return f"; did you mean {folded[near[0]]}?"
    more = ", …" if len(names) > 20 else ""
    return f"; known: {', '.join(names[:20])}{more}" if names else "; none is known yet"


class InvalidRequest(TailraceError):
    """The request is invalid. The cause is the caller; a retry does not help."""

    code = "INVALID_REQUEST"
    advice = "Correct the request; the text names the field."


class CursorInvalid(InvalidRequest):
    """The text is not a cursor. The cause is the caller; a retry does not help."""

    code = "CURSOR_INVALID"
    advice = "Send a cursor unchanged, as it was received."

    def __init__(self, text: str) -> None:
        """Store at most 100 characters of the text that was refused."""
        shown = text if len(text) <= 100 else text[:100] + "…"
        super().__init__(
            f"not a cursor: {shown!r}; a cursor has the form 1.<catalog "
            "uuid>.<version>.<index>.<ordinal>.<commit timestamp> and comes from a capture, a "
            "heartbeat or an acknowledgement"
        )
        self.text = shown

    def figures(self) -> dict[str, str]:
        """Return the text that was refused."""
        return {"cursor": self.text}


class CatalogUnknown(InvalidRequest):
    """The server has no catalog of that name. The name is wrong, or the catalog was not created yet."""

    code = "CATALOG_UNKNOWN"
    advice = "Correct the name, or retry once the catalog has been created."

    def __init__(self, name: str, known: Sequence[str]) -> None:
        """Store the requested name and the existing names."""
        names = ", ".join(sorted(known)) or "none yet"
        super().__init__(f"no catalog named {name!r}; known catalogs: {names}")
        self.name = name
        self.known = tuple(sorted(known))

    def figures(self) -> dict[str, str]:
        """Return the requested name, and the existing names separated by commas."""
        return {"catalog": self.name, "known": ",".join(self.known)}


class EntityTypeUnknown(InvalidRequest):
    """No published version of the catalog has an entity type of that name. Usually the name is wrong."""

    code = "ENTITY_TYPE_UNKNOWN"
    advice = "Correct the name, or retry once a first row of the entity type has been written."

    def __init__(self, catalog: str, entity_type: str, known: Sequence[str]) -> None:
        """Store the catalog, the requested name, and the entity types of the newest version."""
        hint = nearest(entity_type, known)
        super().__init__(f"catalog {catalog!r} has no entity type {entity_type!r}{hint}")
        self.catalog = catalog
        self.entity_type = entity_type
        self.known = tuple(sorted(known))

    def figures(self) -> dict[str, str]:
        """Return the catalog, the requested name, and the existing names separated by commas."""
        return {
            "catalog": self.catalog,
            "entity_type": self.entity_type,
            "known": ",".join(self.known),
        }


class RowUnknown(InvalidRequest):
    """The table has no row with that key as of the version that was read. A retry may help later."""

    code = "ROW_UNKNOWN"
    advice = "Correct the key: it never existed, or its row has been removed."

    def __init__(self, entity_type: str, primary_key: str, version: int) -> None:
        """Store the entity type, at most 100 characters of the key, and the version."""
        shown = primary_key if len(primary_key) <= 100 else primary_key[:100] + "…"
        super().__init__(f"{entity_type!r} has no row of key {shown!r} as of version {version}")
        self.entity_type = entity_type
        self.primary_key = shown
        self.version = version

    def figures(self) -> dict[str, str]:
        """Return the entity type, the key and the version."""
        return {
            "entity_type": self.entity_type,
            "primary_key": self.primary_key,
            "version": str(self.version),
        }


class Unsupported(InvalidRequest):
    """The request has a field or value that this server does not support. Servers never ignore such a field."""

    code = "UNSUPPORTED"
    advice = "Leave the field out, or use a newer server."

    def __init__(self, field: str, reason: str) -> None:
        """Store the path of the field, such as ``criteria[0].where``."""
        super().__init__(f"unsupported: {field}: {reason}")
        self.field = field

    def figures(self) -> dict[str, str]:
        """Return the path of the field."""
        return {"field": self.field}


class SubscriptionUnknown(InvalidRequest):
    """The catalog has no named subscription of that name that the caller may use."""

    code = "SUBSCRIPTION_UNKNOWN"
    advice = "Correct the name, or create the subscription."

    def __init__(self, catalog: str, name: str, known: Sequence[str]) -> None:
        """Store the catalog, the requested name, and the existing names."""
        names = f"; it has: {', '.join(sorted(known))}" if known else ""
        super().__init__(f"catalog {catalog!r} has no named subscription {name!r}{names}")
        self.catalog = catalog
        self.name = name
        self.known = tuple(sorted(known))

    def figures(self) -> dict[str, str]:
        """Return the catalog, the requested name, and the existing names separated by commas."""
        return {"catalog": self.catalog, "name": self.name, "known": ",".join(self.known)}


class SubscriptionExists(InvalidRequest):
    """The catalog already has a named subscription of that name. A retry does not help."""

    code = "SUBSCRIPTION_EXISTS"
    advice = "Choose another name, or use the existing subscription."

    def __init__(self, catalog: str, name: str) -> None:
        """Store the catalog and the name."""
        super().__init__(f"catalog {catalog!r} already has a named subscription {name!r}")
        self.catalog = catalog
        self.name = name

    def figures(self) -> dict[str, str]:
        """Return the catalog and the name."""
        return {"catalog": self.catalog, "name": self.name}


class SubscriptionPaused(InvalidRequest):
    """The named subscription is paused and accepts no readers.

    Its cursor stays where it is, and the log that it needs is retained up to its cap.
    """

    code = "SUBSCRIPTION_PAUSED"
    advice = "Resume it: `tailrace subscription resume NAME`."

    def __init__(self, name: str) -> None:
        """Store the name."""
        super().__init__(f"subscription {name!r} is paused; resume it first")
        self.name = name

    def figures(self) -> dict[str, str]:
        """Return the name."""
        return {"name": self.name}


class SubscriptionTakenOver(SubscriptionBroken):
    """Another reader has taken over the named subscription, or it was reset, paused or deleted.

    This reader is fenced: it receives no more captures, and the server refuses its acknowledgements. A retry
    does not help.
    """

    code = "SUBSCRIPTION_TAKEN_OVER"
    retriable = False
    advice = "Stop this reader; to take the subscription back, subscribe again by its name."

    def __init__(self, name: str, epoch: int, holder_epoch: int, holder: str) -> None:
        """Store the name, the epoch of this reader, the newer epoch, and its reader."""
        super().__init__(
            f"subscription {name!r}: this reader has epoch {epoch}, but "
            f"{holder or 'another reader'} has taken it with epoch {holder_epoch}; stop this "
            "reader, or subscribe again to take it back"
        )
        self.name = name
        self.epoch = epoch
        self.holder_epoch = holder_epoch
        self.holder = holder

    def figures(self) -> dict[str, str]:
        """Return the name, the epoch of this reader, the newer epoch, and its reader."""
        return {
            "name": self.name,
            "epoch": str(self.epoch),
            "holder_epoch": str(self.holder_epoch),
            "holder": self.holder,
        }
