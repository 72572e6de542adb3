"""Which records have no bodies any more: those of some entity types below a version of each.

Heads stay, so positions, running numbers and counts do. That a body is missing is never read off the record,
as many records have none: it is said by entity type and version, in the checkpoint (docs/wal-format.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tailrace.criteria import Area
from tailrace.errors import BodiesExpired
from tailrace.position import Position
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tailrace.schema import Schema
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.segment.refs import BatchRef
    from tailrace_server.wal.state.schema_history import Schemas

BodiesFrom = tuple[tuple[str, int], ...]
"""Of entity types without old bodies: the first version that has them, behind the name in its schema."""


class ExpiredBodies:
    """Tells the records without bodies. Threads may share it."""

    __slots__ = ("_schemas", "_stop", "_types", "bodies_from")

    def __init__(self, bodies_from: BodiesFrom, schemas: Schemas) -> None:
        """Bind to what the checkpoint says, and to all schemas of the log."""
        self.bodies_from = bodies_from
        self._schemas = schemas
        self._stop = max((version for _, version in bodies_from), default=0)
        self._types = [
            (EntityNames(schemas.at(version), name), version) for name, version in bodies_from
        ]

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with."""
        return self._schemas.at(version)

    def may_be_in(self, ref: BatchRef) -> bool:
        """Return whether a batch may hold records without bodies; False: it has none."""
        return ref.first.version < self._stop

    def first_kept(self, entity_type: str, version: int) -> int:
        """Return from which version on an entity type has bodies; 0 where all that are kept have.

        Args:
            entity_type: Its name in the schema of …
            version: … this version.
        """
        return self.by_name(version).get(entity_type, 0) if self._types else 0

    def by_name(self, version: int) -> dict[str, int]:
        """Return the first version with bodies, by the name at a version of each entity type without some."""
        schema = self.schema_of(version)
        found = ((names.name_in(schema), first) for names, first in self._types)
        return {name: first for name, first in found if name is not None}

    def rows_in(self, head: BatchHead) -> npt.NDArray[np.bool_] | None:
        """Return which records of a batch have no bodies any more; None: all have, and none is looked at."""
        if not self.may_be_in(head.ref):
            return None
        found = np.zeros(len(head.versions), np.bool_)
        for names, first in self._types:
            # Versions do not fall, so what is below lies before.
            count = int(np.searchsorted(head.versions, first))
            if count:
                part = head.type_codes[:count], head.entity_types, head.versions[:count]
                found[:count] |= names.rows_in(self, *part)
        # Changes of the schema stay whole. A truncate has no key, and no bodies that could be missed.
        found &= (head.areas == Area.DATA) & (head.key_hashes != 0)
        return found

    def refuse(self, head: BatchHead, rows: Sequence[int] | npt.NDArray[Any]) -> None:
        """Refuse to show bodies of some records of a batch, if one of them has none any more.

        Args:
            head: The head of the batch.
            rows: Offsets in it; the first that is refused is named.

        Raises:
            BodiesExpired: It is so.
        """
        gone = self.rows_in(head)
        if gone is None:
            return
        wanted = gone[np.asarray(rows, np.int64)]
        if wanted.any():
            raise self.error(head, int(rows[int(np.argmax(wanted))]))

    def error(self, head: BatchHead, row: int) -> BodiesExpired:
        """Return the error of one record of a batch, which has no bodies any more."""
        version, name = int(head.versions[row]), head.entity_types[int(head.type_codes[row])]
        oldest = Position(self.first_kept(name, version), 0)
        return BodiesExpired(Position(version, int(head.indexes[row])), name, oldest)
