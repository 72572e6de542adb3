"""The schema mapping: a small TOML file in which a catalog's owner declares columns.

::

    [entity_types.product]                  present name of the entity type
    renamed_from = "item"                   its previous name; its columns stay
    key = ["id"]
    images = "full"                         as-sent, or filled from the last image of the row
    ttl = "7 days after the last change"    seconds, minutes, hours, days or weeks, after which a row expires;
                                            or a column: the row expires at the time in it

    [entity_types.product.columns.price]
    type = "DECIMAL(10,2)"                  SQL type; values that it cannot hold are refused
    encoding = "json"                       encoding of the values in images; json by default
    role = "PRICE"                          ATTRIBUTE by default
    nullable = false                        true by default
    renamed_from = "cost"
    optional = true                         rows may lack it; otherwise a missing column is an error
    dropped = true                          the source no longer has it

A declaration holds from the first transaction with its entity type. Every error names the file and the key.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace.criteria import ContainerType
from tailrace.errors import InvalidRequest
from tailrace_server.wal.record.unavailable import DEFAULT
from tailrace_server.wal.schema.column_types import fault_of, known_encoding, known_type

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import msgspec

    from tailrace_server.wal.record.unavailable import Unavailable

_UNITS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_AGE: Final = re.compile(r"(\d{1,9}) (second|minute|hour|day|week)s? after the last change")
_NEARLY_AGE: Final = re.compile(r"\d+\s*[a-z]*(\s.*)?|.*\safter\s.*", re.IGNORECASE)
"""Matches texts that are meant as an age, but in another notation; they are not names of columns."""


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """The time after which rows expire, by a column or by an age; exactly one of the two is set."""

    column: str | None = None
    """Column with the time at which its row expires."""
    age_s: int | None = None
    """Seconds from the commit of a row's last change to its expiry."""

    @classmethod
    def parse(cls, text: str) -> TimeToLive:
        """Parse a time to live.

        Raises:
            ValueError: The text is neither a column nor an age; the message describes both.
        """
        if (age := _AGE.fullmatch(text)) is not None:
            if not int(age[1]):
                raise ValueError("must be at least 1 second after the last change")
            return cls(age_s=int(age[1]) * _UNITS[age[2]])
        if _NEARLY_AGE.fullmatch(text):
            raise ValueError(
                "must be a column, or an age as in 7 days after the last change (seconds, minutes, "
                f"hours, days, weeks), not {text!r}"
            )
        return cls(column=text)


_IMAGES: Final = {"as-sent": False, "full": True}
_ROLES: Final = {kind.name: kind for kind in ContainerType if kind is not ContainerType.CATALOG}


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A column as a mapping declares it; a property that is not declared is None."""

    sql_type: str | None = None
    encoding: str | None = None
    role: ContainerType | None = None
    nullable: bool | None = None
    renamed_from: str | None = None
    optional: bool = False
    dropped: bool = False
    same_when_added_again: bool = False
    """True if a column of this name that is added after a drop is the dropped column, with its old values."""


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """An entity type, as a mapping declares it."""

    columns: Mapping[str, DeclaredColumn] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    renamed_from: str | None = None
    whole_images: bool | None = None
    """True if an ingest fills values that the source omits from its images; None if this is not declared."""
    time_to_live: TimeToLive | None = None
    """Time after which an ingest lets rows expire; None: never. If this is set, images are filled too."""


@dataclass(frozen=True, slots=True)
class SchemaMapping:
    """All declarations of a catalog, checked as far as this is possible without data."""

    entity_types: Mapping[str, DeclaredType] = field(default_factory=dict)
    source: str = "the schema mapping"
    """Name of the mapping in error messages."""

    @classmethod
    def load(cls, path: Path) -> SchemaMapping:
        """Load a mapping from a file.

        Raises:
            InvalidRequest: The file is missing, is not TOML, or has an unknown key or a wrong value.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise InvalidRequest(f"schema mapping {path}: {reason}") from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str = "the schema mapping") -> SchemaMapping:
        """Parse a mapping from TOML; ``source`` is its name in errors. Errors as `load`."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidRequest(f"{source}: not TOML: {error}") from error
        parser = _MappingParser(source)
        types = parser.table(document, "", ("entity_types",)).get("entity_types", {})
        found = {
            name: parser.entity_type(value, f"entity_types.{name}")
            for name, value in parser.dictionary(types, "entity_types").items()
        }
        return cls(found, source)

    def fault_of(
        self,
        entity_type: str,
        image: Mapping[str, msgspec.Raw],
        unavailable: Unavailable = DEFAULT,
    ) -> str | None:
        """Return why a value of an image does not fit its declared type; None if all do."""
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
                fault = fault_of(column.sql_type, column.encoding or "json", text, unavailable)
                if fault is not None:
                    return f"column {name}: {fault}, and {self.source} declares {column.sql_type}"
        return None

    def where(self, entity_type: str, column: str | None = None) -> str:
        """Return the name of an entity type or column of the mapping, for error messages."""
        place = f"entity_types.{entity_type}"
        return f"{self.source}: {place}" + ("" if column is None else f".columns.{column}")


class _MappingParser:
    """Parser of a decoded TOML document; its errors name the wrong key."""

    def __init__(self, source: str) -> None:
        self._source = source

    def entity_type(self, value: Any, key: str) -> DeclaredType:
        table = self.table(value, key, ("renamed_from", "key", "images", "ttl", "columns"))
        columns = {
            name: self.column(each, f"{key}.columns.{name}")
            for name, each in self.dictionary(table.get("columns", {}), f"{key}.columns").items()
        }
        names = table.get("key", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.error(f"{key}.key", "must be a list of column names")
        images = table.get("images")
        if images not in (None, *_IMAGES):
            raise self.error(f"{key}.images", f"must be {' or '.join(_IMAGES)}, not {images!r}")
        whole = None if images is None else _IMAGES[images]
        time_to_live = self.time_to_live(table, key)
        if time_to_live is not None:
            if whole is False:
                raise self.error(
                    f"{key}.images",
                    "must be full if ttl is set: an expiry contains the row's last image",
                )
            whole = True
        renamed_from = self.text(table, "renamed_from", key)
        return DeclaredType(columns, tuple(names), renamed_from, whole, time_to_live)

    def time_to_live(self, table: dict[str, Any], key: str) -> TimeToLive | None:
        text = self.text(table, "ttl", key)
        try:
            return None if text is None else TimeToLive.parse(text)
        except ValueError as error:
            raise self.error(f"{key}.ttl", str(error)) from None

    def column(self, value: Any, key: str) -> DeclaredColumn:
        known = (
            "type",
            "encoding",
            "role",
            "nullable",
            "renamed_from",
            "optional",
            "dropped",
            "same_when_added_again",
        )
        table = self.table(value, key, known)
        sql_type, encoding = self.text(table, "type", key), self.text(table, "encoding", key)
        if sql_type is not None and not known_type(sql_type):
            raise self.error(
                f"{key}.type", f"no SQL type {sql_type!r}; docs/schemas.md lists all of them"
            )
        if encoding is not None and not known_encoding(encoding):
            raise self.error(
                f"{key}.encoding",
                f"no encoding {encoding!r}; docs/schemas.md lists all of them",
            )
        if encoding is not None and sql_type is None:
            raise self.error(f"{key}.encoding", "an encoding also needs a type")
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
            same_when_added_again=bool(self.flag(table, "same_when_added_again", key)),
        )

    def table(self, value: Any, key: str, known: tuple[str, ...]) -> dict[str, Any]:
        table = self.dictionary(value, key)
        for name in table:
            if name not in known:
                place = f"{key}.{name}".lstrip(".")
                raise self.error(place, f"not known; known keys here are {', '.join(known)}")
        return table

    def dictionary(self, value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(key, f"must be a table, not {value!r}")
        return value

    def text(self, table: dict[str, Any], name: str, key: str) -> str | None:
        value = table.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.error(f"{key}.{name}", f"must be a non-empty text, not {value!r}")
        return value

    def flag(self, table: dict[str, Any], name: str, key: str) -> bool | None:
        value = table.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key}.{name}", f"must be true or false, not {value!r}")
        return value

    def error(self, key: str, reason: str) -> InvalidRequest:
        return InvalidRequest(f"{self._source}: {key}: {reason}")
