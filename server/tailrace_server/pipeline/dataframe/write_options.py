"""The options of a write through the Spark data source; `datasource` describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.columns import Sighting
from tailrace_server.pipeline.dataframe.table_schema import columns_of
from tailrace_server.pipeline.spark.checkpoint import Checkpoint, local_path
from tailrace_server.wal.files.catalog_folder import check_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    """The folder of the stream's checkpoint, if the stream's options name it."""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Entity type → names of its columns."""
    listings: Mapping[str, str] = field(default_factory=dict)
    """Entity type → its columns with their types, for types that were given as a table's schema."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Read options as Spark gives them, names in any case.

        Raises:
            InvalidRequest: An option is missing, unknown or malformed.
        """
        options = {name.lower(): value for name, value in given.items()}
        for name in options:
            if name not in OPTIONS and name not in _OF_SPARK:
                raise InvalidRequest(f"no option {name!r}; there are {', '.join(OPTIONS)}")
        path = options.get("path")
        if (path is None) == ("log" not in options) or ("log" in options) != ("catalog" in options):
            raise InvalidRequest(
                "name the catalog by options log and catalog, or by path = ROOT/NAME"
            )
        folder = Path(path) if path is not None else Path(options["log"], options["catalog"])
        check_name(folder.name if path is not None else options["catalog"])
        try:
            columns, listings = _columns(orjson.loads(options.get("columns", "{}")))
            batch = int(options["batch"]) if "batch" in options else None
        except ValueError as error:
            raise InvalidRequest(f"option columns or batch: {error}") from error
        if batch is not None and not 0 <= batch < 1 << 63:
            raise InvalidRequest(f"option batch is {batch}: it must be from 0 to 2^63 - 1")
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
        """Return the id of the stream's query; empty if its checkpoint cannot be read here."""
        if not self.checkpoint:
            return ""
        return Checkpoint(Path(local_path(self.checkpoint))).stored_query_id()

    def declared(self) -> Iterator[Sighting]:
        """Yield the columns that the options declare, from the first version of the commit on."""
        for entity_type, names in self.columns.items():
            yield Sighting(0, entity_type, None, None, self.listings.get(entity_type))
            if entity_type not in self.listings:
                for name in names:
                    yield Sighting(0, entity_type, name)


def _columns(given: object) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the names of columns, and the listings of tables' schemas, by entity type."""
    if not isinstance(given, dict):
        raise InvalidRequest("option columns: it must be an object, entity type → columns")
    names, listings = {}, {}
    for entity_type, columns in given.items():
        if isinstance(columns, list):
            names[entity_type] = columns
        else:
            names[entity_type], listings[entity_type] = columns_of(columns)
    return names, listings


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"option {name} is true or false, not {text!r}")
    return text.lower() == "true"
