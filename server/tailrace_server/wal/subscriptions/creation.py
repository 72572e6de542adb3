"""A new named subscription: what it wants, where it begins, and what it may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from tailrace.criteria import canonical
from tailrace.errors import InvalidRequest
from tailrace_server.wal.files.documents import FORMAT_VERSION
from tailrace_server.wal.files.subscription_documents import SubscriptionDocument
from tailrace_server.wal.subscriptions.criteria_documents import criteria_documents
from tailrace_server.wal.subscriptions.places import cursor_at
from tailrace_server.wal.subscriptions.sequence import check_subscription_name, name_in_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.criteria import Criteria
    from tailrace_server.wal.state.view import LogView

_DEFAULT_HOLD_US: Final = 24 * 3600 * 1_000_000
_DEFAULT_HOLD_BYTES: Final = 10 << 30


@dataclass(frozen=True, slots=True)
class HoldCap:
    """The largest hold that may be asked for; None: no limit."""

    us: int | None = None
    bytes: int | None = None


def new_subscription(
    view: LogView,
    name: str,
    criteria: Sequence[Criteria],
    place: str,
    *,
    hold_us: int | None,
    hold_bytes: int | None,
    cap: HoldCap,
    owner: str,
    now: int,
) -> SubscriptionDocument:
    """Return a subscription that is to be created.

    Args:
        view: What is published of the log.
        name: The name that its owner gives it.
        criteria: What it wants; empty: every record at entity level.
        place: Where it begins, see ``cursor_at``.
        hold_us: How old a version may be that is kept for it; None: a day, or the cap.
        hold_bytes: How many bytes of the log; None: 10 GiB, or the cap.
        cap: The largest hold.
        owner: The principal who creates it.
        now: µs since the epoch.

    Raises:
        InvalidRequest: A name or place that is none, or a hold that is above the cap.
        PositionCompacted: The place is no longer retained.
    """
    check_subscription_name(name, given=True)
    return SubscriptionDocument(
        format_version=FORMAT_VERSION,
        number=0,
        uuid=view.uuid,
        id=uuid4(),
        name=name_in_log(name, owner),
        created=now,
        owner=owner,
        criteria=criteria_documents(
            # Names in conditions mean the columns of now, whatever the source calls others later.
            canonical(each.named_at(view.published) for each in criteria) if criteria else ()
        ),
        hold_us=_within("hold", hold_us, _DEFAULT_HOLD_US, cap.us, "µs"),
        hold_bytes=_within("hold_bytes", hold_bytes, _DEFAULT_HOLD_BYTES, cap.bytes, "bytes"),
        cursor=str(cursor_at(view, place)),
        moved=now,
    )


def _within(what: str, given: int | None, default: int, cap: int | None, unit: str) -> int:
    if given is None:
        return default if cap is None else min(default, cap)
    if given < 0:
        raise InvalidRequest(f"{what} {given}: it cannot be negative")
    if cap is not None and given > cap:
        raise InvalidRequest(f"{what}: {given:,} {unit}, and the largest here is {cap:,} {unit}")
    return given
