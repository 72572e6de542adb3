"""Records whose bodies have expired: for some entity types, all records below a version.

The heads of such records are retained, with their positions, running numbers and counts. A record without
bodies may never have had any. So the checkpoint lists the entity types and versions (docs/wal-format.md).
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
"""For each entity type with expired bodies: its name, and the first version with bodies. The name is the one in
the schema of that version."""


class ExpiredBodies:
    """Looks up the records whose bodies have expired. Thread-safe."""

    __slots__ = ("_schemas", "_stop", "_types", "bodies_from")

    def __init__(self, bodies_from: BodiesFrom, schemas: Schemas) -> None:
        """Build the look-up from the checkpoint's list and the log's schemas."""
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
        """Return False if certainly no record of a batch has expired bodies. This reads nothing."""
        return ref.first.version < self._stop

    def first_kept(self, entity_type: str, version: int) -> int:
        """Return the first version from which an entity type has bodies; 0 if none have expired.

        Args:
            entity_type: The entity type's name in the schema of ``version``.
            version: A version.
        """
        return self.by_name(version).get(entity_type, 0) if self._types else 0

    def by_name(self, version: int) -> dict[str, int]:
        """Return, for each entity type with expired bodies, the first version that has bodies.

        The keys are the names of the entity types in the schema of ``version``.
        """
        schema = self.schema_of(version)
        found = ((names.name_in(schema), first) for names, first in self._types)
        return {name: first for name, first in found if name is not None}

    def rows_in(self, head: BatchHead) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the records of a batch with expired bodies; None if there are certainly none."""
        if not self.may_be_in(head.ref):
            return None
        found = np.zeros(len(head.versions), np.bool_)
        for names, first in self._types:
            # Versions ascend in a batch, so the records below ``first`` are at its beginning.
            count = int(np.searchsorted(head.versions, first))
            if count:
                part = head.type_codes[:count], head.entity_types, head.versions[:count]
                found[:count] |= names.rows_in(self, *part)
        # Only data expires: schema changes keep their bodies. A truncate (key hash 0) never has bodies.
        found &= (head.areas == Area.DATA) & (head.key_hashes != 0)
        return found

    def refuse(self, head: BatchHead, rows: Sequence[int] | npt.NDArray[Any]) -> None:
        """Check that the bodies of some records of a batch have not expired.

        Args:
            head: The head of the batch.
            rows: The records' row numbers in the batch; the error names the first expired one.

        Raises:
            BodiesExpired: The bodies of one of the records have expired.
        """
        gone = self.rows_in(head)
        if gone is None:
            return
        wanted = gone[np.asarray(rows, np.int64)]
        if wanted.any():
            raise self.error(head, int(rows[int(np.argmax(wanted))]))

    def error(self, head: BatchHead, row: int) -> BodiesExpired:
        """Return the error for a record whose bodies have expired, given by its row number in a batch."""
        version, name = int(head.versions[row]), head.entity_types[int(head.type_codes[row])]
        oldest = Position(self.first_kept(name, version), 0)
        return BodiesExpired(Position(version, int(head.indexes[row])), name, oldest)
