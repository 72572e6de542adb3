"""GraphQL names of entity types and columns.

A name of GraphQL is ``[_A-Za-z][_0-9A-Za-z]*``, and two leading underscores belong to the language. A character
that does not fit is replaced by an underscore; if two would become equal, the later one gets a number. Entity
types and columns are only ever appended to a schema, so a name stays until its owner is renamed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

_OTHER: Final = re.compile(r"[^0-9A-Za-z_]", re.ASCII)
_NAMES: Final = re.compile(r"[_A-Za-z][_0-9A-Za-z]*", re.ASCII)
_WORDS: Final = re.compile(r"[0-9A-Za-z]+", re.ASCII)


def field_names(columns: Iterable[str]) -> dict[str, str]:
    """Return GraphQL field name → column, as near to the column's own name as can be."""
    taken: dict[str, str] = {}
    for column in columns:
        taken[_free(_fitting(column), taken)] = column
    return taken


def type_names(entity_types: Iterable[str], reserved: Iterable[str]) -> dict[str, str]:
    """Return stem → entity type: ``order_line`` is ``OrderLine``, and all other names are made from that.

    Nothing that is made of one stem has the name of what is made of another.
    """
    found: dict[str, str] = {}
    taken = set(reserved)
    for entity_type in entity_types:
        words = _WORDS.findall(entity_type)
        wanted = _fitting("".join(word[0].upper() + word[1:] for word in words))
        stem, number = wanted, 1
        while not taken.isdisjoint(made_of(stem)):
            number += 1
            stem = _numbered(wanted, number)
        taken.update(made_of(stem))
        found[stem] = entity_type
    return found


def made_of(stem: str) -> tuple[str, ...]:
    """Return every name that is made of a stem, also in the names of fields, as ``onProductSchemaChange``."""
    return (
        stem,
        f"{stem}Change",
        f"{stem}SchemaChange",
        f"{stem}ChangeEdge",
        f"{stem}ChangeConnection",
        f"{stem}Table",
        where_type(stem),
    )


def table_fields(stems: Iterable[str], taken: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return stem → the names of its fields for one row and for all: ``orderLine``, ``orderLines``.

    If one is taken, by a common name or by an earlier entity type, it is ``orderLineRow`` or
    ``orderLineTable``.
    """
    used = set(taken)
    found: dict[str, tuple[str, str]] = {}
    for stem in stems:
        name = lower(stem)
        pair = []
        for wanted, other in ((name, f"{name}Row"), (f"{name}s", f"{name}Table")):
            pair.append(_free(other if wanted in used else wanted, used))
            used.add(pair[-1])
        found[stem] = (pair[0], pair[1])
    return found


def lower(stem: str) -> str:
    """Return a stem as fields begin with it: ``orderLine``."""
    return f"{stem[0].lower()}{stem[1:]}"


class CatalogNames:
    """The names of all entity types of a catalog, whichever of them a schema has."""

    def __init__(
        self, entity_types: Iterable[str], reserved: Iterable[str], fields: Iterable[str]
    ) -> None:
        """Give a stem to each entity type, and names to the fields of its table.

        Args:
            entity_types: Those of the log.
            reserved: Names of types that every schema has.
            fields: Names of fields of queries that every schema has.
        """
        self.stems = type_names(entity_types, reserved)
        """Stem → entity type."""
        histories = (f"{lower(stem)}Changes" for stem in self.stems)
        self.tables = table_fields(self.stems, {*fields, *histories})
        """Stem → the names of its fields for one row and for all."""
        self._stem_of: dict[str, str] = {}
        for stem, pair in self.tables.items():
            live = (f"on{stem}Change", f"on{stem}SchemaChange", f"{lower(stem)}Changes")
            self._stem_of |= dict.fromkeys((*made_of(stem), *live, *pair), stem)

    def stems_in(self, words: Iterable[str]) -> set[str]:
        """Return the stems of the names among some words."""
        return {stem for word in words if (stem := self._stem_of.get(word)) is not None}


def words_in(document: str) -> set[str]:
    """Return all that may be a name in a document; words of comments and strings count too."""
    return set(_NAMES.findall(document))


def where_type(stem: str) -> str:
    """Return the name of an entity type's condition."""
    return f"{stem}Where"


def beside(fields: Iterable[str], reserved: Iterable[str]) -> dict[str, str]:
    """Return name → field, where fields are beside reserved names: ``and`` is ``and_2`` there."""
    own = [*fields]
    taken = {*reserved}
    found: dict[str, str] = {}
    for field in own:
        name = _free(field, {*taken, *own}) if field in taken else field
        found[name] = field
        taken.add(name)
    return found


def _fitting(text: str) -> str:
    name = re.sub(r"^__+", "_", _OTHER.sub("_", text))
    return name if name and not name[0].isdigit() else f"_{name}"


def _free(name: str, taken: Container[str]) -> str:
    """Return a name, with a number behind it where it is taken."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = _numbered(name, number)
    return found


def _numbered(name: str, number: int) -> str:
    """Return a name with a number behind it, which is not to make two leading underscores of one."""
    return f"_{number}" if name == "_" else f"{name}_{number}"
