"""The options of a write through the Spark data source; `datasource` describes them.

The option ``columns`` can declare the columns of an entity type whose images are rows of a DataFrame as JSON.
Its
value is then Spark's JSON of a schema (``df.schema.jsonValue()``)::

    {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": false, "metadata": {}},
                                  {"name": "price", "type": "decimal(10,2)", "nullable": true, …}, …]}

A member ``"key": ["id"]`` next to ``fields`` names the columns of the primary key.

Encodings are those of Spark's ``to_json``: dates and times as text, bytes in base64, everything else as plain
JSON.

Source: Spark SQL, data types; ``StructType.jsonValue``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from tailrace.errors import InvalidRequest
from tailrace.schema import Origin
from tailrace_server.pipeline.catalog.columns import Sighting
from tailrace_server.pipeline.input.column_listing import listing
from tailrace_server.pipeline.spark.checkpoint import Checkpoint, local_path
from tailrace_server.wal.files.catalog_folder import check_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PLAIN: Final = {
    "boolean": "BOOLEAN",
    "byte": "SMALLINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "VARBINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
}
_DECIMAL: Final = re.compile(r"decimal\(\d+,\d+\)")
_CHARACTERS: Final = re.compile(r"(?:var)?char(\(\d+\))")


class _Field(msgspec.Struct):
    name: str
    type: Any
    nullable: bool = True


class _Table(msgspec.Struct):
    fields: list[_Field]
    key: list[str] = []


def columns_of(schema: object) -> tuple[list[str], str]:
    """Return the names of a table's columns, and the declaration of these columns for a commit.

    Raises:
        InvalidRequest: The value is not the JSON of a schema.
    """
    try:
        table = msgspec.convert(schema, _Table)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"not the JSON of a DataFrame's schema: {error}") from None
    columns = [(field.name, *_type_of(field.type), field.nullable) for field in table.fields]
    names = [field.name for field in table.fields]
    for name in table.key:
        if name not in names:
            raise InvalidRequest(
                f"key names {name!r}, which is not one of the columns {', '.join(names)}"
            )
    return names, listing(columns, tuple(table.key), Origin.TABLE)


def _type_of(kind: object) -> tuple[str, str]:
    """Return the SQL type and the encoding of a Spark type; nested and unknown types are JSON."""
    if not isinstance(kind, str):
        return "JSON", "json"
    if kind in _PLAIN:
        return _PLAIN[kind], "base64" if kind == "binary" else "json"
    if _DECIMAL.fullmatch(kind):
        return kind.upper(), "json"
    if found := _CHARACTERS.fullmatch(kind):
        return f"VARCHAR{found[1]}", "json"
    return "JSON", "json"


OPTIONS: Final = (
    "path",
    "log",
    "catalog",
    "writer",
    "batch",
    "publish",
    "take_over",
    "columns",
    "whole_removals",
)
_OF_SPARK: Final = ("checkpointlocation", "queryname")


@dataclass(frozen=True)
class Options:
    """The options of a write."""

    root: Path
    catalog: str
    writer: str = "spark"
    batch: int | None = None
    publish: bool = True
    take_over: bool = False
    whole_removals: bool = False
    checkpoint: str = ""
    """The folder of the stream's checkpoint; empty if the options do not name it."""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Entity type → names of its columns."""
    listings: Mapping[str, str] = field(default_factory=dict)
    """Entity type → its columns with types, for entity types that were given as a table's schema."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Parse options as Spark passes them; their names may have any case.

        Raises:
            InvalidRequest: An option is missing, unknown or malformed.
        """
        options = {name.lower(): value for name, value in given.items()}
        # Refuse unknown names: a misspelt option must not be ignored silently.
        for name in options:
            if name not in OPTIONS and name not in _OF_SPARK:
                raise InvalidRequest(f"no option {name!r}; the options are {', '.join(OPTIONS)}")
        path = options.get("path")
        # Either ``path``, or both ``log`` and ``catalog``.
        if (path is None) == ("log" not in options) or ("log" in options) != ("catalog" in options):
            raise InvalidRequest(
                "give the catalog with the options log and catalog, or with path = ROOT/NAME"
            )
        folder = Path(path) if path is not None else Path(options["log"], options["catalog"])
        check_name(folder.name if path is not None else options["catalog"])
        try:
            columns, listings = _columns(orjson.loads(options.get("columns", "{}")))
            batch = int(options["batch"]) if "batch" in options else None
        except ValueError as error:
            raise InvalidRequest(f"option columns or batch: {error}") from error
        if batch is not None and not 0 <= batch < 1 << 63:
            raise InvalidRequest(f"option batch is {batch}: must be from 0 to 2^63 - 1")
        return cls(
            root=folder.parent,
            catalog=folder.name,
            writer=options.get("writer", "spark"),
            batch=batch,
            publish=_flag("publish", options.get("publish", "true")),
            take_over=_flag("take_over", options.get("take_over", "false")),
            whole_removals=_flag("whole_removals", options.get("whole_removals", "false")),
            checkpoint=options.get("checkpointlocation", ""),
            columns=columns,
            listings=listings,
        )

    def stored_query_id(self) -> str:
        """Return the id of the stream's query; empty if the checkpoint cannot be read here."""
        if not self.checkpoint:
            return ""
        return Checkpoint(Path(local_path(self.checkpoint))).stored_query_id()

    def declared(self) -> Iterator[Sighting]:
        """Yield the columns that the options declare, as of the first version of the commit."""
        for entity_type, names in self.columns.items():
            yield Sighting(0, entity_type, None, None, self.listings.get(entity_type))
            if entity_type not in self.listings:
                for name in names:
                    yield Sighting(0, entity_type, name)


def _columns(given: object) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the names of columns, and the declarations of tables' schemas, each by entity type."""
    if not isinstance(given, dict):
        raise InvalidRequest("option columns: must be an object, entity type → columns")
    names, listings = {}, {}
    for entity_type, columns in given.items():
        if isinstance(columns, list):
            names[entity_type] = columns
        else:
            names[entity_type], listings[entity_type] = columns_of(columns)
    return names, listings


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"option {name} must be true or false, not {text!r}")
    return text.lower() == "true"
