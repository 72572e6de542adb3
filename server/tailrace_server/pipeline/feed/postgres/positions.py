"""The positions of PostgreSQL in a catalog, the requests that they have, and the slot: positions are JSON.

The catalog has one of these at any time::

    none                             nothing was read
    {"snapshot": true, …}            a snapshot has begun, and not ended: the next run begins a new one
    {"lsn": "0/16B3748", …}          everything up to this LSN is in the catalog, except for the requests
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.feed.postgres.replication import lsn_of
from tailrace_server.pipeline.feed.postgres.tables import entity_type_of

_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")
_NOT_IN_A_SLOT: Final = re.compile(r"[^a-z0-9_]")


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a table that must be read again (resnapshot.py)."""

    slot: str
    """Slot of the ingest that is asked."""
    schema: str
    table: str
    where: str = ""
    """Condition of the rows (filters/parsing.py); empty: all rows. It is not free SQL: any user of the database
    can write a request, and the ingest reads the rows with its own rights."""

    def __str__(self) -> str:
        """Return the part as messages name it."""
        name = entity_type_of(self.schema, self.table)
        return f"{name} where {self.where}" if self.where else name


class PostgresPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position in the log of a server."""

    system: str
    """Identifier of the database cluster."""
    database: str
    lsn: str = ""
    snapshot: bool = False
    timeline: int = 0
    """Timeline of the server's log; 0 in positions of old versions."""
    requests: tuple[Request, ...] = ()
    """Requests before the LSN that are not done."""

    @classmethod
    def of(cls, text: str) -> PostgresPosition:
        """Return a position from its text."""
        return msgspec.json.decode(text, type=cls)

    @property
    def number(self) -> int:
        """The LSN; 0 if there is none."""
        return lsn_of(self.lsn) if self.lsn else 0

    @property
    def text(self) -> str:
        """The text in the catalog."""
        return msgspec.json.encode(self).decode()


def slot_name(given: str | None, catalog: str) -> str:
    """Return the slot of a catalog, or a given one.

    Raises:
        InvalidRequest: The given name is malformed.
    """
    slot = ("tailrace_" + _NOT_IN_A_SLOT.sub("_", catalog.lower()))[:63] if given is None else given
    if _SLOT.fullmatch(slot) is None:
        raise InvalidRequest(
            f"--slot {slot!r}: write at most 63 lower-case letters, digits and underscores"
        )
    return slot
