"""The name of one entity type, version by version.

An entity type keeps its identity when it is renamed: the id of its first column. Records of earlier versions
have the name of that time. An entity type without columns is identified by its name alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.state.schema_history import HasSchemas, PublishedSchemas


class EntityNames:
    """The names of one entity type. Threads may share it."""

    def __init__(self, schema: Schema, name: str) -> None:
        """Bind to the entity type that has a name in a schema; ``KeyError`` if none has."""
        columns = schema.entity_types[name]
        self._name = name
        self._identity = columns[0].id if columns else None
        self._known: dict[int, str | None] = {}

    def name_in(self, schema: Schema) -> str | None:
        """Return the entity type's name in a schema; None if the schema does not have it."""
        if schema.id not in self._known:
            self._known[schema.id] = next(
                (
                    name
                    for name, columns in schema.entity_types.items()
                    if (columns[0].id == self._identity if columns else name == self._name)
                ),
                None,
            )
        return self._known[schema.id]

    def columns_in(self, schema: Schema) -> tuple[Column, ...]:
        """Return the entity type's columns in a schema; empty if the schema does not have it."""
        return schema.entity_types.get(self.name_in(schema) or "", ())

    def rows_in(
        self,
        view: HasSchemas,
        codes: npt.NDArray[np.int32],
        entity_types: tuple[str, ...],
        versions: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows of the entity type, compared by its name at the version of each row.

        Args:
            view: The log that they are of.
            codes: Places in ``entity_types``, shape (n,).
            entity_types: Names that are used.
            versions: Of the rows, not falling, shape (n,).
        """
        ours = np.zeros(len(codes), np.bool_)
        one_schema = view.schema_of(int(versions[0])) is view.schema_of(int(versions[-1]))
        for number in versions[:1].tolist() if one_schema else np.unique(versions).tolist():
            name = self.name_in(view.schema_of(number))
            if name is not None and name in entity_types:
                mine = codes == entity_types.index(name)
                ours |= mine if one_schema else mine & (versions == number)
        return ours

    def first_name(self, view: PublishedSchemas) -> str:
        """Return the entity type's first name in the log, which is the same in every later view."""
        # No schema forgets an entity type, and a log keeps its schemas when it is trimmed. So the first
        # version that knows this one is found by halving.
        low, high = 0, view.published
        while high - low > 1:
            middle = (low + high) // 2
            if self.name_in(view.schema_of(middle)) is None:
                low = middle
            else:
                high = middle
        return self.name_in(view.schema_of(high)) or self._name
