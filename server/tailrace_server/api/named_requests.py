"""Checked requests of named subscriptions, the same for every face."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cursor import Cursor, StateCursor
from tailrace.errors import InvalidRequest
from tailrace_server.api import requests
from tailrace_server.named.requests import NewSubscription

if TYPE_CHECKING:
    from tailrace.v1.named_subscription_pb2 import AcknowledgeRequest, CreateSubscriptionRequest


def create(request: CreateSubscriptionRequest) -> NewSubscription:
    """Return the subscription that is to be created.

    Raises:
        InvalidRequest: Criteria that contradict themselves.
    """
    return NewSubscription(
        name=request.name,
        criteria=requests.criteria(request.criteria),
        place=getattr(request, "from") if request.HasField("from") else "latest",
        hold_us=request.hold_ms * 1000 if request.HasField("hold_ms") else None,
        hold_bytes=request.hold_bytes if request.HasField("hold_bytes") else None,
    )


def acknowledgement(request: AcknowledgeRequest) -> tuple[str, int, Cursor]:
    """Return name, epoch and cursor of an acknowledgement.

    Raises:
        InvalidRequest: There is no epoch.
        CursorInvalid: It is no cursor.
    """
    if request.epoch < 1:
        raise InvalidRequest(
            "epoch: that of the acknowledgement which the reader got when it subscribed is required"
        )
    cursor = Cursor.parse(request.cursor)
    if isinstance(cursor, StateCursor):
        raise InvalidRequest("cursor: it is a place in a state, which is no place in the log")
    return request.name, request.epoch, cursor
