"""Errors of named subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors.endings import SubscriptionBroken
from tailrace.errors.requests import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence


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
