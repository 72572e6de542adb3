"""The decoded images of one batch, shared by all conditions that are evaluated on the batch."""

from __future__ import annotations

from time import thread_time_ns
from typing import TYPE_CHECKING

import numpy as np

from tailrace.criteria import Area
from tailrace_server.rows.typed_images import TypedImages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.live.index.condition_index import ConditionLookup
    from tailrace_server.rows.batch_images import Images
    from tailrace_server.wal.segment.reader import BatchHead


class DecodedBatch:
    """The images of one batch by entity type; each column that conditions need is decoded once."""

    def __init__(
        self,
        head: BatchHead,
        images: Images,
        columns: Mapping[str, Sequence[Column]],
    ) -> None:
        """Set the batch and, by entity type, the columns that conditions need; decode nothing yet."""
        self.head = head
        self._images = images
        self._columns = columns
        self._types: dict[int, TypedImages] = {}
        self._rows_by_type: dict[int, NDArray[np.int32]] = {}
        self._are_rows: dict[int, bool] = {}
        self.found: dict[int, ConditionLookup] = {}
        """Index lookups by entity type; for a type without one, conditions are evaluated on every row."""
        self._cpu_ns: dict[int, int] = {}
        """CPU time of decoding by entity type, in ns."""

    def decode(self) -> None:
        """Decode the columns that conditions need, for all entity types with rows. Slow for many rows."""
        for code, name in enumerate(self.head.entity_types):
            if name in self._columns and len(self._rows(code)):
                self.of(code)

    def cost(self, code: int) -> tuple[int, int]:
        """Return the cost of decoding an entity type: CPU time in ns, and bytes of images."""
        found = self._types.get(code)
        return (0, 0) if found is None else (self._cpu_ns[code], found.nbytes)

    def entity_type(self, code: int) -> str:
        """Return the name of an entity type."""
        return self.head.entity_types[code]

    def has(self, code: int) -> bool:
        """Return True if the batch has a record of an entity type."""
        return bool((self.head.type_codes == code).any())

    def are_rows(self, code: int) -> bool:
        """Return True if all records of an entity type are changes of rows whose images are retained."""
        found = self._are_rows.get(code)
        if found is None:
            count = int(np.count_nonzero(self.head.type_codes == code))
            found = self._are_rows[code] = count == len(self._rows(code))
        return found

    def has_rows(self, code: int) -> bool:
        """Return True if some records of an entity type are changes of rows whose images are retained."""
        return len(self._rows(code)) > 0

    def _rows(self, code: int) -> NDArray[np.int32]:
        found = self._rows_by_type.get(code)
        if found is None:
            head = self.head
            # A truncate has no key, so it is not a change of a row. Expired images cannot be evaluated.
            mine = (head.type_codes == code) & (head.areas == Area.DATA) & (head.key_hashes != 0)
            if self._images.gone is not None:
                mine &= ~self._images.gone
            found = self._rows_by_type[code] = np.flatnonzero(mine).astype(np.int32)
        return found

    def of(self, code: int) -> TypedImages:
        """Return the retained images of the rows of an entity type, decoded; the type must have rows."""
        found = self._types.get(code)
        if found is None:
            # CPU time of this thread, since other threads may run meanwhile.
            begun = thread_time_ns()
            head, name = self.head, self.head.entity_types[code]
            found = self._types[code] = TypedImages(head, self._images, name, self._rows(code))
            found.decode(self._columns.get(name, ()))
            self._cpu_ns[code] = thread_time_ns() - begun
        return found
