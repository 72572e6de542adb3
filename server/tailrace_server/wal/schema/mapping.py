"""What a catalog's owner declares about its columns: a small TOML file.

::

    [entity_types.product]                  named as it is now
    renamed_from = "item"                   as it was named before; what was known of it stays
    key = ["id"]

    [entity_types.product.columns.price]
    type = "DECIMAL(10,2)"                  SQL type; a value that it cannot hold is not taken
    encoding = "json"                       how the images' text encodes it; json unless given
    role = "PRICE"                          ATTRIBUTE unless given
    nullable = false                        true unless given
    renamed_from = "cost"
    optional = true                         rows may be without it; else its absence is a mistake
    dropped = true                          the source has it no more

A declaration holds from the first transaction that touches its entity type. Every error names file and key.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace.criteria import ContainerType
from tailrace.errors import InvalidRequest
from tailrace_server.wal.schema.column_types import fault_of, known_encoding, known_type

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import msgspec

_ROLES: Final = {kind.name: kind for kind in ContainerType if kind is not ContainerType.CATALOG}


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A column as a mapping states it; None where it says nothing."""

    sql_type: str | None = None
    encoding: str | None = None
    role: ContainerType | None = None
    nullable: bool | None = None
    renamed_from: str | None = None
    optional: bool = False
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """An entity type as a mapping states it."""

    columns: Mapping[str, DeclaredColumn] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    renamed_from: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaMapping:
    """A mapping, checked as far as it can be without data."""

    entity_types: Mapping[str, DeclaredType] = field(default_factory=dict)
    source: str = "the schema mapping"
    """What errors call it."""

    @classmethod
    def load(cls, path: Path) -> SchemaMapping:
        """Read a file.

        Raises:
            InvalidRequest: It is not there, no TOML, or says something that it cannot say.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise InvalidRequest(f"schema mapping {path}: {reason}") from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str = "the schema mapping") -> SchemaMapping:
        """Read TOML. Errors as ``load``; ``source`` is what they call it."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidRequest(f"{source}: not TOML: {error}") from error
        reader = _Reader(source)
        types = reader.table(document, "", ("entity_types",)).get("entity_types", {})
        found = {
            name: reader.entity_type(value, f"entity_types.{name}")
            for name, value in reader.dictionary(types, "entity_types").items()
        }
        return cls(found, source)

    def fault_of(self, entity_type: str, image: Mapping[str, msgspec.Raw]) -> str | None:
        """Return why an image's values are not of the declared types; None if they are."""
        declared = self.entity_types.get(entity_type)
        for name, column in declared.columns.items() if declared is not None else ():
            value = image.get(name)
            if value is None:
                continue
            text = bytes(value)
            if text == b"null":
                if column.nullable is False:
                    return f"column {name} is null, and {self.source} declares it not nullable"
            elif column.sql_type is not None:
                fault = fault_of(column.sql_type, column.encoding or "json", text)
                if fault is not None:
                    return f"column {name}: {fault}, and {self.source} declares {column.sql_type}"
        return None

    def where(self, entity_type: str, column: str | None = None) -> str:
        """Return what an error calls a place of the mapping."""
        place = f"entity_types.{entity_type}"
        return f"{self.source}: {place}" + ("" if column is None else f".columns.{column}")


class _Reader:
    """Reads a document, and names the key of what is wrong."""

    def __init__(self, source: str) -> None:
        self._source = source

    def entity_type(self, value: Any, key: str) -> DeclaredType:
        table = self.table(value, key, ("renamed_from", "key", "columns"))
        columns = {
            name: self.column(each, f"{key}.columns.{name}")
            for name, each in self.dictionary(table.get("columns", {}), f"{key}.columns").items()
        }
        names = table.get("key", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.error(f"{key}.key", "a list of column names is wanted")
        return DeclaredType(columns, tuple(names), self.text(table, "renamed_from", key))

    def column(self, value: Any, key: str) -> DeclaredColumn:
        known = (
            "type",
            "encoding",
            "role",
            "nullable",
            "renamed_from",
            "optional",
            "dropped",
        )
        table = self.table(value, key, known)
        sql_type, encoding = self.text(table, "type", key), self.text(table, "encoding", key)
        if sql_type is not None and not known_type(sql_type):
            raise self.error(
                f"{key}.type", f"no SQL type {sql_type!r}; docs/schemas.md lists those there are"
            )
        if encoding is not None and not known_encoding(encoding):
            raise self.error(
                f"{key}.encoding",
                f"no encoding {encoding!r}; docs/schemas.md lists those there are",
            )
        if encoding is not None and sql_type is None:
            raise self.error(f"{key}.encoding", "an encoding needs a type beside it")
        role = self.text(table, "role", key)
        if role is not None and role not in _ROLES:
            raise self.error(f"{key}.role", f"no role {role!r}; choose one of {', '.join(_ROLES)}")
        return DeclaredColumn(
            sql_type=sql_type,
            encoding=encoding,
            role=None if role is None else _ROLES[role],
            nullable=self.flag(table, "nullable", key),
            renamed_from=self.text(table, "renamed_from", key),
            optional=bool(self.flag(table, "optional", key)),
            dropped=bool(self.flag(table, "dropped", key)),
        )

    def table(self, value: Any, key: str, known: tuple[str, ...]) -> dict[str, Any]:
        table = self.dictionary(value, key)
        for name in table:
            if name not in known:
                place = f"{key}.{name}".lstrip(".")
                raise self.error(place, f"not known; known here are {', '.join(known)}")
        return table

    def dictionary(self, value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(key, f"a table is wanted, not {value!r}")
        return value

    def text(self, table: dict[str, Any], name: str, key: str) -> str | None:
        value = table.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.error(f"{key}.{name}", f"a text is wanted, not {value!r}")
        return value

    def flag(self, table: dict[str, Any], name: str, key: str) -> bool | None:
        value = table.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key}.{name}", f"true or false is wanted, not {value!r}")
        return value

    def error(self, key: str, reason: str) -> InvalidRequest:
        return InvalidRequest(f"{self._source}: {key}: {reason}")
