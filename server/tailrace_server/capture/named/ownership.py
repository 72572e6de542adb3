"""The owners of named subscriptions: which subscription a caller means by a name, and which ones it may use.

Names belong to their owners. Two callers may give the same name, and neither learns of the other's. Callers
whose identity the server does not know own nothing: what they create can be used by every caller.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace_server.capture.grant import Action
from tailrace_server.capture.granting import door
from tailrace_server.wal.subscriptions.sequence import check_subscription_name, name_in_log

if TYPE_CHECKING:
    from tailrace_server.capture.principal import Principal
    from tailrace_server.wal.files.subscription_documents import SubscriptionDocument
    from tailrace_server.wal.subscriptions.sequence import SubscriptionSequences


def owner_of(caller: Principal) -> str:
    """Return the owner of what a caller creates; empty: none."""
    return "" if caller.name == "anonymous" else caller.name


def may_use(caller: Principal, catalog: str, found: SubscriptionDocument) -> bool:
    """Return True if a caller owns a subscription, operates its catalog, or if there is no owner."""
    return (
        not found.owner
        or found.owner == owner_of(caller)
        or door.may(caller, Action.OPERATE, catalog)
    )


def names_meant(caller: Principal, name: str) -> tuple[str, ...]:
    """Return the names in the log that a caller may mean by a name, its own first."""
    return tuple(dict.fromkeys((name_in_log(name, owner_of(caller)), name)))


async def usable(
    caller: Principal, catalog: str, sequences: SubscriptionSequences, name: str
) -> SubscriptionDocument | None:
    """Return the subscription that a caller means by a name, or None where it may use none of that name.

    Raises:
        InvalidRequest: The name is not of the form.
    """
    check_subscription_name(name)
    for each in names_meant(caller, name):
        found = await asyncio.to_thread(sequences.newest, each)
        if found is not None and not found.deleted and may_use(caller, catalog, found):
            return found
    return None
