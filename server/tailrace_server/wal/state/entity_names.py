"""The name of one entity type in each version.

An entity type is identified by the id of its first column, which a rename does not change. Records have the
name that was valid in their version. An entity type without columns is identified by its name alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.state.schema_history import HasSchemas, PublishedSchemas


class EntityNames:
    """The names of one entity type, by schema. Thread-safe."""

    def __init__(self, schema: Schema, name: str) -> None:
        """Bind to the entity type that has a name in a schema.

        Raises:
            KeyError: The schema has no entity type of this name.
        """
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
        """Return a mask of the rows that belong to the entity type, by its name at each row's version.

        Args:
            view: The schemas of the log that has the rows.
            codes: Place in ``entity_types`` of each row's entity type, shape (n,).
            entity_types: The names to which ``codes`` refer.
            versions: Version of each row, in ascending order, shape (n,); at least one.
        """
        # Nearly all batches are written with one schema: then one comparison covers all rows.
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
        # Later schemas contain every entity type of earlier ones, and a trim deletes no schemas. So a binary
        # search finds the first version whose schema has this entity type.
        low, high = 0, view.published
        while high - low > 1:
            middle = (low + high) // 2
            if self.name_in(view.schema_of(middle)) is None:
                low = middle
            else:
                high = middle
        return self.name_in(view.schema_of(high)) or self._name


def columns_under(columns: Iterable[Column], names: Mapping[str, str]) -> tuple[Column, ...]:
    """Return columns under other names; ``names`` has the new name → the name in ``columns`` of each."""
    there = {each.name: each for each in columns}
    return tuple(replace(there[inside], name=name) for name, inside in names.items())
