"""subscriptions/<name>/<n>.json as typed values: what a named subscription is, and how far its reader is.

Each object of the sequence is the whole subscription, so the newest one is the whole truth.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from msgspec import Struct

SUBSCRIPTIONS: Final = "subscriptions"
"""Folder of the subscriptions, a folder for each name."""


class CriteriaDocument(Struct, frozen=True, omit_defaults=True):
    """One alternative of what it wants; enums by their names."""

    area: str = ""
    """Empty: every area."""
    entity_type: list[str] = []
    primary_key: list[str] = []
    operation: list[str] = []
    container_type: list[str] = []
    container_name: list[str] = []
    where: str = ""
    """A condition on rows, as text; empty: none."""
    where_tree: dict[str, Any] = {}
    """The condition as a tree, in its JSON form; empty: none."""
    parameters: dict[str, str] = {}
    """Of the condition, by name."""
    where_version: int | None = None
    """The version whose names of columns the condition has; None: unknown, or there is no condition."""


class SubscriptionDocument(Struct, frozen=True):
    """One named subscription."""

    format_version: int
    number: int
    uuid: UUID
    """The log's."""
    id: UUID
    """Its own: one of the same name that was created after it was deleted has another."""
    name: str
    """The name in the log: the given one, and behind an ``@`` a digest of the owner, if there is one."""
    created: int
    owner: str
    """The caller that created it, as the server knows callers; empty: a command at the log's folder."""
    criteria: list[CriteriaDocument]
    """The criteria; empty: every record at entity level."""
    hold_us: int
    """How old a version may be that retention keeps for it; 0: it keeps nothing."""
    hold_bytes: int
    """How many bytes of the log retention keeps for it; 0: it keeps nothing."""
    cursor: str
    """Everything up to it is acknowledged."""
    moved: int
    """When the cursor moved last."""
    epoch: int = 0
    """Of its newest reader, whose acknowledgements alone count; 0: it never had one."""
    reader: str = ""
    """The newest reader, for people to read."""
    opened: int = 0
    """When that one came."""
    paused: bool = False
    broken: int = 0
    """When its hold was broken; 0: it was not."""
    deleted: bool = False
    """It is gone; the object stays for a while, so that what comes late finds that."""
