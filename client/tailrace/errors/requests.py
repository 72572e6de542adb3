"""Errors of requests, those for named subscriptions included: the caller's mistakes."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from tailrace.errors.endings import SubscriptionBroken
from tailrace.errors.tree import TailraceError

if TYPE_CHECKING:
    from collections.abc import Sequence


class InvalidRequest(TailraceError):
    """The request has no meaning. The caller's doing; a retry does not help."""

    code = "INVALID_REQUEST"
    advice = "Correct the request; the text names the field."


class CursorInvalid(InvalidRequest):
    """The text is not a cursor. The caller's doing; a retry does not help."""

    code = "CURSOR_INVALID"
    advice = "Hand in a cursor as it came, unchanged."

    def __init__(self, text: str) -> None:
        """Keep at most 100 characters of the text that was refused."""
        shown = text if len(text) <= 100 else text[:100] + "…"
        super().__init__(
            f"not a cursor: {shown!r}; a cursor reads "
            "1.<catalog uuid>.<version>.<index>.<ordinal>.<commit timestamp> "
            "and comes from a capture, a heartbeat or an acknowledgement"
        )
        self.text = shown

    def figures(self) -> dict[str, str]:
        """Return the text that was refused."""
        return {"cursor": self.text}


class CatalogUnknown(InvalidRequest):
    """No catalog of that name is served. The caller's doing, unless it is about to be created."""

    code = "CATALOG_UNKNOWN"
    advice = "Correct the name, or retry once the catalog has been created."

    def __init__(self, name: str, known: Sequence[str]) -> None:
        """Keep the name that was asked for and the names that exist."""
        names = ", ".join(sorted(known)) or "none yet"
        super().__init__(f"no catalog named {name!r}; known catalogs: {names}")
        self.name = name
        self.known = tuple(sorted(known))

    def figures(self) -> dict[str, str]:
        """Return the name asked for and the names that exist, separated by commas."""
        return {"catalog": self.name, "known": ",".join(self.known)}


class EntityTypeUnknown(InvalidRequest):
    """No published version of the catalog has an entity type of that name. The caller's doing, most often."""

    code = "ENTITY_TYPE_UNKNOWN"
    advice = "Correct the name, or retry once a first row of the entity type has been written."

    def __init__(self, catalog: str, entity_type: str, known: Sequence[str]) -> None:
        """Keep the catalog, the name that was asked for, and those that the newest version has."""
        names = ", ".join(sorted(known)) or "none yet"
        near = get_close_matches(entity_type, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        super().__init__(
            f"catalog {catalog!r} has no entity type {entity_type!r}; it has: {names}{hint}"
        )
        self.catalog = catalog
        self.entity_type = entity_type
        self.known = tuple(sorted(known))

    def figures(self) -> dict[str, str]:
        """Return catalog, the name asked for, and the names that there are, separated by commas."""
        return {
            "catalog": self.catalog,
            "entity_type": self.entity_type,
            "known": ",".join(self.known),
        }


class RowUnknown(InvalidRequest):
    """No row has that key as of the version that was read. A retry helps once there is one."""

    code = "ROW_UNKNOWN"
    advice = "Correct the key: it never was, or its row has been removed."

    def __init__(self, entity_type: str, primary_key: str, version: int) -> None:
        """Keep what was asked for, at most 100 characters of the key, and the version."""
        shown = primary_key if len(primary_key) <= 100 else primary_key[:100] + "…"
        super().__init__(f"{entity_type!r} has no row of key {shown!r} as of version {version}")
        self.entity_type = entity_type
        self.primary_key = shown
        self.version = version

    def figures(self) -> dict[str, str]:
        """Return entity type, key and version."""
        return {
            "entity_type": self.entity_type,
            "primary_key": self.primary_key,
            "version": str(self.version),
        }


class Unsupported(InvalidRequest):
    """A field or value that this server does not know or has not built; never ignored silently."""

    code = "UNSUPPORTED"
    advice = "Leave the field out, or ask a newer server."

    def __init__(self, field: str, reason: str) -> None:
        """Keep the path of the field, as ``criteria[0].where``."""
        super().__init__(f"unsupported: {field}: {reason}")
        self.field = field

    def figures(self) -> dict[str, str]:
        """Return the path of the field."""
        return {"field": self.field}


class SubscriptionUnknown(InvalidRequest):
    """The catalog has no named subscription of that name, or none that the caller may use."""

    code = "SUBSCRIPTION_UNKNOWN"
    advice = "Correct the name, or create the subscription."

    def __init__(self, catalog: str, name: str, known: Sequence[str]) -> None:
        """Keep the catalog, the name that was asked for, and those that there are."""
        names = f"; it has: {', '.join(sorted(known))}" if known else ""
        super().__init__(f"catalog {catalog!r} has no named subscription {name!r}{names}")
        self.catalog = catalog
        self.name = name
        self.known = tuple(sorted(known))

    def figures(self) -> dict[str, str]:
        """Return catalog, the name asked for, and the names that there are, separated by commas."""
        return {"catalog": self.catalog, "name": self.name, "known": ",".join(self.known)}


class SubscriptionExists(InvalidRequest):
    """The name of a subscription is taken. A retry does not help."""

    code = "SUBSCRIPTION_EXISTS"
    advice = "Take another name, or use the subscription that there is."

    def __init__(self, catalog: str, name: str) -> None:
        """Keep catalog and name."""
        super().__init__(f"catalog {catalog!r} has a named subscription {name!r} already")
        self.catalog = catalog
        self.name = name

    def figures(self) -> dict[str, str]:
        """Return catalog and name."""
        return {"catalog": self.catalog, "name": self.name}


class SubscriptionPaused(InvalidRequest):
    """A named subscription takes no readers now. It keeps its place, and its hold up to the cap."""

    code = "SUBSCRIPTION_PAUSED"
    advice = "Resume it: `tailrace subscription resume NAME`."

    def __init__(self, name: str) -> None:
        """Keep the name."""
        super().__init__(f"subscription {name!r} is paused; resume it first")
        self.name = name

    def figures(self) -> dict[str, str]:
        """Return the name."""
        return {"name": self.name}


class SubscriptionTakenOver(SubscriptionBroken):
    """Another reader has taken a named subscription, or somebody has reset, paused or deleted it.

    This reader is fenced: nothing more comes, and its acknowledgements are refused. A retry does not help.
    """

    code = "SUBSCRIPTION_TAKEN_OVER"
    retriable = False
    advice = "Stop this reader; subscribe again by the name only to take it back."

    def __init__(self, name: str, epoch: int, holder_epoch: int, holder: str) -> None:
        """Keep the name, both epochs, and who came after."""
        super().__init__(
            f"subscription {name!r}: this reader has epoch {epoch}, but epoch {holder_epoch} was taken by "
            f"{holder or 'somebody'}; stop this reader, or subscribe again to take it back"
        )
        self.name = name
        self.epoch = epoch
        self.holder_epoch = holder_epoch
        self.holder = holder

    def figures(self) -> dict[str, str]:
        """Return the name, both epochs, and who came after."""
        return {
            "name": self.name,
            "epoch": str(self.epoch),
            "holder_epoch": str(self.holder_epoch),
            "holder": self.holder,
        }
