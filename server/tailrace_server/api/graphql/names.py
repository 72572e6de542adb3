"""GraphQL names of entity types and columns.

A GraphQL name matches ``[_A-Za-z][_0-9A-Za-z]*``, and names with two leading underscores are reserved. Any
other character is replaced by an underscore. If two names become equal, the later one gets a number. Entity
types and columns are only appended to a schema, so a GraphQL name is stable until its entity type or column is
renamed.
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
    """Return GraphQL field name → column name; the field's name differs only where GraphQL requires it."""
    taken: dict[str, str] = {}
    for column in columns:
        taken[_free(_fitting(column), taken)] = column
    return taken


def type_names(entity_types: Iterable[str], reserved: Iterable[str]) -> dict[str, str]:
    """Return stem → entity type, for example ``OrderLine`` → ``order_line``.

    All GraphQL names of an entity type are derived from its stem. The names of two stems never collide.
    """
    found: dict[str, str] = {}
    taken = set(reserved)
    for entity_type in entity_types:
        words = _WORDS.findall(entity_type)
        wanted = _fitting("".join(word[0].upper() + word[1:] for word in words))
        stem, number = wanted, 1
        # A stem is free only if all names that are derived from it are free.
        while not taken.isdisjoint(made_of(stem)):
            number += 1
            stem = _numbered(wanted, number)
        taken.update(made_of(stem))
        found[stem] = entity_type
    return found


def made_of(stem: str) -> tuple[str, ...]:
    """Return all names derived from a stem; ``…SchemaChange`` occurs only as part of a field's name."""
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
    """Return stem → names of the query fields for one row and for the table: ``orderLine``, ``orderLines``.

    If a name is taken by a common field or an earlier entity type, the field is ``orderLineRow`` or
    ``orderLineTable`` instead.
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
    """Return a stem with a lower-case first letter, for field names: ``orderLine``."""
    return f"{stem[0].lower()}{stem[1:]}"


class CatalogNames:
    """The GraphQL names of all entity types of a catalog, also of those that a schema does not contain."""

    def __init__(
        self, entity_types: Iterable[str], reserved: Iterable[str], fields: Iterable[str]
    ) -> None:
        """Choose a stem for each entity type, and names for the fields of its table.

        Args:
            entity_types: The entity types of the log.
            reserved: Names of types that every schema has.
            fields: Names of query fields that every schema has.
        """
        self.stems = type_names(entity_types, reserved)
        """Stem → entity type."""
        histories = (f"{lower(stem)}Changes" for stem in self.stems)
        self.tables = table_fields(self.stems, {*fields, *histories})
        """Stem → names of the query fields for one row and for the table."""
        self._stem_of: dict[str, str] = {}
        """Name of a type or field → stem."""
        for stem, pair in self.tables.items():
            live = (f"on{stem}Change", f"on{stem}SchemaChange", f"{lower(stem)}Changes")
            self._stem_of |= dict.fromkeys((*made_of(stem), *live, *pair), stem)

    def stems_in(self, words: Iterable[str]) -> set[str]:
        """Return the stems to which the names in ``words`` belong."""
        return {stem for word in words if (stem := self._stem_of.get(word)) is not None}


def words_in(document: str) -> set[str]:
    """Return all words of a document that may be names, including words in comments and strings."""
    return set(_NAMES.findall(document))


def where_type(stem: str) -> str:
    """Return the name of the input type for an entity type's condition."""
    return f"{stem}Where"


def beside(fields: Iterable[str], reserved: Iterable[str]) -> dict[str, str]:
    """Return name → field for an input that has reserved names too: a field ``and`` is named ``and_2``."""
    own = [*fields]
    taken = {*reserved}
    found: dict[str, str] = {}
    # A new name must not collide with a later field either, so all fields count as taken.
    for field in own:
        name = _free(field, {*taken, *own}) if field in taken else field
        found[name] = field
        taken.add(name)
    return found


def _fitting(text: str) -> str:
    name = re.sub(r"^__+", "_", _OTHER.sub("_", text))
    return name if name and not name[0].isdigit() else f"_{name}"


def _free(name: str, taken: Container[str]) -> str:
    """Return a name, with a number appended if the name is taken."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = _numbered(name, number)
    return found


def _numbered(name: str, number: int) -> str:
    """Return a name with a number appended, without creating two leading underscores."""
    return f"_{number}" if name == "_" else f"{name}_{number}"
