"""The demo's subscribers: the request of each, and the captures it has received."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from tailrace.capture import Capture
from tailrace.criteria import Area, ContainerType, Criteria, Operation
from tailrace.cursor import Cursor
from tailrace.position import TimestampMicros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.schema import Schema

SLOW: Final = "slow"
_SUBSCRIPTION: Final = re.compile(r"subscription ([0-9a-f-]{32,36})")


class Line(msgspec.Struct, rename="camel"):
    """A line that a subscriber prints: a capture, a heartbeat, or a note about the subscriber itself."""

    version: int = 0
    index: int = 0
    ordinal: int = 0
    cursor: str = ""
    commit_timestamp: int = 0
    area: str = ""
    operation: str = ""
    entity_type: str | None = None
    primary_key: str | None = None
    changed: tuple[str, ...] | None = None
    container_type: str | None = None
    container_name: str | None = None
    before: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()
    heartbeat: bool = False
    does: str | None = None


_decode = msgspec.json.Decoder(Line).decode


@dataclass(slots=True)
class Watcher:
    """One subscriber process and its output so far."""

    name: str
    colour: str
    wish: str
    """The request, in words."""
    criteria: tuple[Criteria, ...]
    """The request as criteria, for the check."""
    arguments: tuple[str, ...] = ()
    """The request as options of the subscriber's program."""
    program: str = "watch"
    """The program: ``watch``, ``slow``, or a way of ``http_subscribers``."""
    received: list[tuple[int, int, int]] = field(default_factory=list)
    """(version, index, ordinal) of each capture, in the order received."""
    images: list[int] = field(default_factory=list)
    """Hash of each capture's ``after`` image, in the order received."""
    reached: int = 0
    """Version up to which everything was delivered, according to the last heartbeat."""
    subscription_id: str = ""
    mode: str = ""
    """The subscription's state according to the server, such as ``live``; empty if unknown."""
    lag_records: int = 0
    resyncs: int = 0
    """Number of moves from live to resync, according to the server."""
    returns: int = 0
    """Number of moves from resync to live, according to the server."""

    @property
    def moves(self) -> int:
        """The number of moves from live to resync and back."""
        return min(self.resyncs, self.returns)

    def take(self, text: bytes) -> Line:
        """Record a line of the subscriber's output, and return the line decoded."""
        line = _decode(text)
        if line.heartbeat:
            self.reached = Cursor.parse(line.cursor).version
        elif line.does is not None:
            self.name_from(line.does)
        else:
            self.received.append((line.version, line.index, line.ordinal))
            self.images.append(hash(_image(line.after)))
        return line

    def name_from(self, note: str) -> None:
        """Store the subscription's id if a line of the process has it."""
        if match := _SUBSCRIPTION.search(note):
            self.subscription_id = match[1]


def capture_of(line: Line) -> Capture:
    """Return the capture in a line."""
    catalog = UUID(hex=line.cursor.split(".")[1])
    container = None if line.container_type is None else ContainerType[line.container_type]
    return Capture(
        catalog_uuid=catalog,
        version=line.version,
        index=line.index,
        ordinal=line.ordinal,
        commit_timestamp=TimestampMicros(line.commit_timestamp),
        area=Area[line.area],
        operation=Operation[line.operation],
        entity_type=line.entity_type,
        primary_key=line.primary_key,
        changed=line.changed,
        container_type=container,
        container_name=line.container_name,
        before=_image(line.before),
        after=_image(line.after),
    )


def watchers_for(schema: Schema) -> list[Watcher]:
    """Return subscribers for a catalog; their requests name entity types and columns that it has."""
    types = list(schema.entity_types)
    first, last = (
        ("order", "product") if {"order", "product"} <= set(types) else (types[0], types[-1])
    )
    columns = [column.name for column in schema.entity_types[last]]
    column = "price" if "price" in columns else columns[-1]
    return [
        Watcher("everything", "yellow", "every change, with transaction leads", (), ("--leads",)),
        Watcher(
            *(f"{first}s", "green", f"entity type {first}"),
            (Criteria(entity_type=(first,)),),
            ("--entity-type", first),
        ),
        Watcher(
            *("removals", "red", "whatever is removed"),
            (Criteria(operation=(Operation.REMOVE,)),),
            ("--operation", "remove"),
        ),
        Watcher(
            *(f"{column}s", "cyan", f"column {column} of {last}, a capture each"),
            (Criteria(entity_type=(last,), container_name=(column,)),),
            ("--entity-type", last, "--column", column),
        ),
        Watcher(
            *("graphql", "bright_blue", f"entity type {last}, over GraphQL"),
            (Criteria(entity_type=(last,)),),
            ("--criteria", _json({"entityType": [last]})),
            program="graphql",
        ),
        Watcher(
            *("rest", "bright_cyan", "every change, over REST's WebSocket"), (), program="rest"
        ),
        Watcher(
            *("events", "bright_green", f"column {column} of {last}, as server-sent events"),
            (Criteria(entity_type=(last,), container_name=(column,)),),
            ("--criteria", _json({"entityType": [last], "containerName": [column]})),
            program="events",
        ),
        Watcher(
            *(SLOW, "magenta", "everything, too slowly: demand 64, keeps stopping"),
            (),
            program="slow",
        ),
    ]


def _json(criteria: dict[str, list[str]]) -> str:
    return msgspec.json.encode([criteria]).decode()


def _image(raw: msgspec.Raw) -> bytes | None:
    data = bytes(raw)
    return None if data in (b"", b"null") else data


def find(watchers: Sequence[Watcher], subscription_id: str) -> Watcher | None:
    """Return the watcher with a subscription id; None if there is none."""
    return next((each for each in watchers if each.subscription_id == subscription_id), None)
