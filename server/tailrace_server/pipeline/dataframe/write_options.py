"""The options of a write through the Spark data source.

=========  ==========================================================================================
option     meaning
=========  ==========================================================================================
log        the log root (with ``catalog``); or ``path`` = ROOT/NAME
catalog    name of the catalog; made if absent
entityType the entity type of typed rows; or a column ``_entity_type`` has it
key        the columns of the key of typed rows, separated by commas, or as a JSON array
images     ``full`` fills old images that typed rows lack from the log; default: ``as-sent``
mode       ``snapshot``: typed rows are all rows of the entity type, and the differences to the log become one
           version; default: ``changes``
writer     stable name of the writer; default ``spark``. A restart under the same name needs no
           ``take_over``. Once another name has taken over, a stream can continue only under a new name
batch      (batch writes) a number that rises from write to write; a repeated number is skipped if the
           rows are the same, and refused if not. Default: none, so that every write is committed
publish    ``true`` (default) publishes with the commit, ``false`` leaves that to a later writer
take_over  ``true`` lets a writer with a new name take the catalog, and a new checkpoint take the writer
columns    JSON, entity type → its columns: images of these types are not inspected for new columns.
           ``df.schema.jsonValue()`` declares types too, and rows have to fit them; a list of names
           declares none. A member ``key``, next to ``fields``, names the columns of the key
whole_     ``true`` if each ``before`` of a removal has the value of every column of its row; the log
removals   then records this. Default: ``false``
=========  ==========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.pipeline.catalog.columns import Sighting
from tailrace_server.pipeline.dataframe.table_schema import columns_of
from tailrace_server.pipeline.dataframe.typed_rows import TYPE, TypedForm
from tailrace_server.pipeline.spark.checkpoint import Checkpoint, local_path
from tailrace_server.wal.files.catalog_folder import check_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OPTIONS: Final = (
    "path",
    "log",
    "catalog",
    "entityType",
    "key",
    "images",
    "mode",
    "writer",
    "batch",
    "publish",
    "take_over",
    "columns",
    "whole_removals",
)
_OF_SPARK: Final = ("checkpointlocation", "queryname")
_IMAGES: Final = ("as-sent", "full")
_MODES: Final = ("changes", "snapshot")


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
    entity_type: str = ""
    """The entity type of all typed rows; empty: a column has it, or the rows are records."""
    key: tuple[str, ...] = ()
    """The columns of the key of typed rows."""
    whole_images: bool = False
    """True if old images that typed rows lack are filled in."""
    snapshot: bool = False
    """True if typed rows are all rows of the entity type."""
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
        known = {name.lower() for name in (*OPTIONS, *_OF_SPARK)}
        for name in options:
            if name not in known:
                raise InvalidRequest(f"no option {name!r}{nearest(name, OPTIONS)}")
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
            entity_type=options.get("entitytype", ""),
            key=_names(options.get("key", "")),
            whole_images=_choice("images", options.get("images", ""), _IMAGES) == "full",
            snapshot=_choice("mode", options.get("mode", ""), _MODES) == "snapshot",
            checkpoint=options.get("checkpointlocation", ""),
            columns=columns,
            listings=listings,
        )

    def typed(self, schema: Mapping[str, Any]) -> TypedForm | None:
        """Return the typed form of a DataFrame; None if its rows are records (`input_rows`).

        Args:
            schema: ``df.schema.jsonValue()``.

        Raises:
            InvalidRequest: The columns or the options cannot be used together.
        """
        names = [each["name"] for each in schema["fields"]]
        if not (self.entity_type or self.key or TYPE in names):
            for name, given in (("images", self.whole_images), ("mode", self.snapshot)):
                if given:
                    raise InvalidRequest(
                        f"option {name} is for typed rows; give the options entityType and key too"
                    )
            return None
        if self.columns:
            raise InvalidRequest("option columns is for records; typed rows have their own columns")
        if self.snapshot and not self.entity_type:
            raise InvalidRequest("a snapshot is of one entity type; give the option entityType")
        return TypedForm.of(schema, self.entity_type, self.key)

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


def _names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas, or given as a JSON array if a name has a comma."""
    if text.startswith("["):
        try:
            return tuple(msgspec.json.decode(text, type=list[str]))
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"option key: {error}") from None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _choice(name: str, text: str, known: Sequence[str]) -> str:
    if not text:
        return known[0]
    if text.lower() not in known:
        raise InvalidRequest(f"option {name}: no {text!r}{nearest(text, known)}")
    return text.lower()
