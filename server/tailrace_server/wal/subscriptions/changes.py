"""The changes of a named subscription: each function returns the next object, or refuses.

They are pure, so that whoever loses the race for a number asks them again (sequence.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, SubscriptionPaused, SubscriptionTakenOver
from tailrace_server.wal.subscriptions.sequence import given_name

if TYPE_CHECKING:
    from tailrace_server.wal.files.subscription_documents import SubscriptionDocument


def taken_over(
    found: SubscriptionDocument, reader: str, now: int, resumed: int | None = None
) -> SubscriptionDocument:
    """Return a subscription with a new reader, whose epoch is one higher: the one before is fenced.

    Args:
        found: It as it is.
        reader: The new one, for people.
        now: µs since the epoch.
        resumed: The epoch that the reader had before its connection broke; None: it comes for the first time.

    Raises:
        SubscriptionPaused: It takes no readers.
        SubscriptionTakenOver: Another one came since the epoch that is resumed.
    """
    if found.paused:
        raise SubscriptionPaused(given_name(found.name))
    if resumed is not None:
        refuse_fenced(found, resumed)
    return replace(found, epoch=found.epoch + 1, reader=reader, opened=now)


def refuse_fenced(found: SubscriptionDocument, epoch: int) -> None:
    """Refuse a reader that is not the newest.

    Raises:
        SubscriptionPaused: A pause has ended it, and a new reader would be refused too.
        SubscriptionTakenOver: Another reader, or a reset, has ended it.
        InvalidRequest: There never was a reader of this epoch.
    """
    if epoch > found.epoch or epoch < 1:
        raise InvalidRequest(
            f"epoch {epoch}: subscription {given_name(found.name)!r} has had readers up to epoch "
            f"{found.epoch}; send that of the acknowledgement that you got"
        )
    if epoch < found.epoch:
        if found.paused:
            raise SubscriptionPaused(given_name(found.name))
        raise SubscriptionTakenOver(given_name(found.name), epoch, found.epoch, found.reader)


def acknowledged(
    found: SubscriptionDocument, epoch: int, cursor: Cursor, now: int
) -> SubscriptionDocument | None:
    """Return a subscription that its reader is done with up to a cursor; None: it was there before.

    Raises:
        SubscriptionPaused, SubscriptionTakenOver: Its reader has been ended.
        InvalidRequest: The cursor lies before what was acknowledged already.
    """
    refuse_fenced(found, epoch)
    before = Cursor.parse(found.cursor)
    if cursor == before:
        return None
    if cursor < before:
        raise InvalidRequest(
            f"acknowledge {cursor}: subscription {given_name(found.name)!r} is at {before} already, which lies "
            "behind it; to read something again, reset the subscription"
        )
    return replace(found, cursor=str(cursor), moved=now, broken=0)


def reset(found: SubscriptionDocument, cursor: Cursor, who: str, now: int) -> SubscriptionDocument:
    """Return a subscription that continues behind a cursor; its present reader is fenced."""
    return replace(
        found,
        cursor=str(cursor),
        moved=now,
        broken=0,
        epoch=found.epoch + 1,
        reader=who,
        opened=now,
    )


def paused(
    found: SubscriptionDocument, who: str, now: int, *, pauses: bool
) -> SubscriptionDocument | None:
    """Return a subscription that takes no readers, or takes them again; None: it is so already.

    A reader that it has is fenced by a pause.
    """
    if found.paused == pauses:
        return None
    if not pauses:
        return replace(found, paused=False)
    return replace(found, paused=True, epoch=found.epoch + 1, reader=who, opened=now)
