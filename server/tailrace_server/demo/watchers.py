"""The demo's subscribers: what each asks for, and what it has received."""

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
    """The JSON form of a capture or heartbeat, or a note of the slow subscriber about itself."""

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
    """One subscriber process, as the demo sees it."""

    name: str
    colour: str
    wish: str
    """Its request, in words."""
    criteria: tuple[Criteria, ...]
    """The same as criteria, for the check."""
    arguments: tuple[str, ...] = ()
    """The same as options of its program."""
    program: str = "watch"
    """``watch``, ``slow``, or the way of ``faces``."""
    received: list[tuple[int, int, int]] = field(default_factory=list)
    """(version, index, ordinal) of each capture, as they came."""
    images: list[int] = field(default_factory=list)
    """Hash of each capture's image after, as it came."""
    reached: int = 0
    """Version up to which everything was delivered, from the last heartbeat."""
    subscription_id: str = ""
    mode: str = ""
    lag_records: int = 0
    resyncs: int = 0
    returns: int = 0

    @property
    def moves(self) -> int:
        """How often it went from live into resync and back."""
        return min(self.resyncs, self.returns)

    def take(self, text: bytes) -> Line:
        """Note a line of its output and return it."""
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
        """Read the subscription's id from a note of the process."""
        if match := _SUBSCRIPTION.search(note):
            self.subscription_id = match[1]


def capture_of(line: Line) -> Capture:
    """Return the capture of a line."""
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
    """Return subscribers whose wishes suit a catalog: the shop's by name, others' by what they hold."""
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
    """Return the watcher of a subscription."""
    return next((each for each in watchers if each.subscription_id == subscription_id), None)
