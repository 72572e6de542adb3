"""Creation and changes of named subscriptions: functions that return the next object, or raise an error.

The functions do no I/O. So if another process takes the number of an object, the writer can call them again on
the newer object (subscriptions.py).

The start of a subscription is written as ``earliest``, ``latest``, ``41``, ``41:3``, or as a time with its
zone: ``2026-05-04T10:30:00Z``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from msgspec.structs import replace

from tailrace.arguments import micros
from tailrace.conditions import read_where
from tailrace.criteria import Area, ContainerType, Criteria, Operation, canonical, parameter_texts
from tailrace.cursor import Cursor
from tailrace.errors import (
    InvalidRequest,
    PositionCompacted,
    SubscriptionPaused,
    SubscriptionTakenOver,
)
from tailrace.position import END, Position, position_in
from tailrace_server.wal.files.documents import FORMAT_VERSION
from tailrace_server.wal.files.sequence_documents import CriteriaDocument, SubscriptionDocument
from tailrace_server.wal.sequences.subscriptions import (
    check_subscription_name,
    given_name,
    name_in_log,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace_server.wal.state.view import LogView


def taken_over(
    found: SubscriptionDocument, reader: str, now: int, resumed: int | None = None
) -> SubscriptionDocument:
    """Return a subscription with a new reader. Its epoch rises by one, which fences the previous reader.

    Args:
        found: The present subscription.
        reader: Description of the new reader, for people.
        now: Present time, in microseconds since 1970.
        resumed: Epoch that the reader had before its connection broke; None: the reader is new.

    Raises:
        SubscriptionPaused: The subscription is paused and accepts no readers.
        SubscriptionTakenOver: Another reader has come after the resumed epoch.
    """
    if found.paused:
        raise SubscriptionPaused(given_name(found.name))
    # A reader resumes only if no other reader came in between; otherwise two readers would take over in turns.
    if resumed is not None:
        refuse_fenced(found, resumed)
    return replace(found, epoch=found.epoch + 1, reader=reader, opened=now)


def refuse_fenced(found: SubscriptionDocument, epoch: int) -> None:
    """Refuse a reader unless it is the newest.

    Raises:
        SubscriptionPaused: A pause has ended the reader; a new reader would be refused too.
        SubscriptionTakenOver: Another reader, or a reset, has ended the reader.
        InvalidRequest: No reader ever had this epoch.
    """
    if epoch > found.epoch or epoch < 1:
        raise InvalidRequest(
            f"epoch {epoch}: subscription {given_name(found.name)!r} has had readers only up to "
            f"epoch {found.epoch}; send the epoch of your acknowledgement"
        )
    if epoch < found.epoch:
        if found.paused:
            raise SubscriptionPaused(given_name(found.name))
        raise SubscriptionTakenOver(given_name(found.name), epoch, found.epoch, found.reader)


def acknowledged(
    found: SubscriptionDocument, epoch: int, cursor: Cursor, now: int
) -> SubscriptionDocument | None:
    """Return a subscription acknowledged up to a cursor; None if the cursor is unchanged.

    Raises:
        SubscriptionPaused, SubscriptionTakenOver: The reader has been ended.
        InvalidRequest: The cursor is before the acknowledged one, or the epoch never existed.
    """
    # Check the epoch first: a fenced reader must not move the cursor of its successor.
    refuse_fenced(found, epoch)
    before = Cursor.parse(found.cursor)
    if cursor == before:
        return None
    if cursor < before:
        raise InvalidRequest(
            f"acknowledge {cursor}: subscription {given_name(found.name)!r} is already at the "
            f"later cursor {before}; to read records again, reset the subscription"
        )
    return replace(found, cursor=str(cursor), moved=now, broken=0)


def reset(found: SubscriptionDocument, cursor: Cursor, who: str, now: int) -> SubscriptionDocument:
    """Return a subscription that continues after a cursor; the present reader is fenced."""
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
    """Return a subscription that is paused, or resumed if not ``pauses``; None if nothing changes.

    A pause fences the present reader.
    """
    if found.paused == pauses:
        return None
    if not pauses:
        return replace(found, paused=False)
    return replace(found, paused=True, epoch=found.epoch + 1, reader=who, opened=now)


def criteria_documents(criteria: Iterable[Criteria]) -> list[CriteriaDocument]:
    """Return criteria as documents."""
    return [
        CriteriaDocument(
            area="" if one.area is None else one.area.name,
            entity_type=list(one.entity_type),
            primary_key=list(one.primary_key),
            operation=[each.name for each in one.operation],
            container_type=[each.name for each in one.container_type],
            container_name=list(one.container_name),
            **_where_members(one),
            parameters=dict(parameter_texts(one.parameters)),
            where_version=one.where_version,
        )
        for one in criteria
    ]


def _where_members(one: Criteria) -> dict[str, Any]:
    where = read_where(one.where)
    if where is None:
        return {}
    return {"where": where} if isinstance(where, str) else {"where_tree": where.form}


def criteria_in(documents: Iterable[CriteriaDocument]) -> tuple[Criteria, ...]:
    """Return the criteria in documents."""
    return tuple(
        Criteria(
            area=Area[one.area] if one.area else None,
            entity_type=tuple(one.entity_type),
            primary_key=tuple(one.primary_key),
            operation=tuple(Operation[each] for each in one.operation),
            container_type=tuple(ContainerType[each] for each in one.container_type),
            container_name=tuple(one.container_name),
            where=one.where_tree or one.where or None,
            parameters=one.parameters,
            where_version=one.where_version,
        )
        for one in documents
    )


def cursor_at(view: LogView, place: str) -> Cursor:
    """Return the cursor just before a place; version 0 means the earliest place.

    Raises:
        InvalidRequest: The text is not a place, is a time without a zone, or is above the published versions.
        PositionCompacted: The place is no longer retained.
    """
    if place == "latest":
        return view.cursor(view.published, END)
    if place == "earliest":
        return view.cursor(*view.oldest.preceding())
    wanted = position_in(place)
    if wanted is None:
        return view.cursor(*_at_time(view, place).preceding())
    if not wanted.version:  # a subscribe since 0 begins there too
        return view.cursor(*view.oldest.preceding())
    if wanted < view.oldest:
        raise PositionCompacted(wanted, view.oldest, Position(view.published, END))
    if wanted > Position(view.published + 1, 0):
        raise InvalidRequest(
            f"{place}: the newest published version is {view.published}; write "
            f"{view.published + 1}, or latest, to begin with the next version"
        )
    return view.cursor(*wanted.preceding())


def _at_time(view: LogView, place: str) -> Position:
    """Return the first position that was committed at or after a time."""
    try:
        at = micros(datetime.fromisoformat(place))
    except ValueError:
        raise InvalidRequest(
            f"{place[:80]!r} is not a position: write earliest, latest, VERSION, VERSION:INDEX, "
            "or a time with its zone, such as 2026-05-04T10:30:00Z"
        ) from None
    if view.is_trimmed_at(at):
        raise PositionCompacted(view.oldest.preceding(), view.oldest, Position(view.published, END))
    return Position(min(view.version_at(at), view.published + 1), 0)


_DEFAULT_HOLD_US: Final = 24 * 3600 * 1_000_000
_DEFAULT_HOLD_BYTES: Final = 10 << 30


@dataclass(frozen=True, slots=True)
class HoldCap:
    """The largest hold that a client may request; None: no limit."""

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
    """Return the object of a new subscription.

    Args:
        view: Published versions of the log.
        name: Name given by the owner.
        criteria: Criteria; empty: every record at entity level.
        place: Start, see ``cursor_at``.
        hold_us: Age up to which versions are held for it, in microseconds; None: a day, or the cap if lower.
        hold_bytes: Most bytes of the log that are held for it; None: 10 GiB, or the cap if lower.
        cap: Largest permitted hold.
        owner: Principal that creates the subscription.
        now: Present time, in microseconds since 1970.

    Raises:
        InvalidRequest: The name or the place is malformed, or the hold is above the cap.
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
            # Bind the column names of conditions to the present schema, so that later renames do not change
            # them.
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
        raise InvalidRequest(f"{what} {given}: must not be negative")
    if cap is not None and given > cap:
        raise InvalidRequest(
            f"{what}: {given:,} {unit} is too large; the maximum of this server is {cap:,} {unit}"
        )
    return given
