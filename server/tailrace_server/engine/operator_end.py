"""The end of a subscription by an operator: check of the right, error for the client, line in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.errors import EndedByOperator, NotPermitted
from tailrace_server.grants.grant import Action

if TYPE_CHECKING:
    from tailrace_server.grants.principal import Principal
    from tailrace_server.live.subscription import Subscription

_log = structlog.get_logger("tailrace.operator")


def ended_by_operator(
    caller: Principal, catalog: str, subscription: Subscription, reason: str
) -> str:
    """End a subscription with a reason for its client, and return its resume cursor.

    Raises:
        NotPermitted: The caller may not operate the catalog.
    """
    grant = caller.grant(catalog)
    if grant is None or not grant.may(Action.OPERATE):
        raise NotPermitted(f"{caller.name} may not end subscriptions of this server")
    cursor = str(subscription.resume_cursor())
    text = f"an operator has ended the subscription: {reason}; to resume, subscribe after {cursor}"
    subscription.end(EndedByOperator(text, cursor))
    _log.info(
        "subscription ended by an operator",
        operator=caller.name,
        catalog=catalog,
        subscription_id=subscription.acknowledgement.subscription_id,
        principal=subscription.options.peer.principal,
        peer=subscription.options.peer.address,
        reason=reason,
        cursor=cursor,
    )
    return cursor
