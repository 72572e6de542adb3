"""Codecs that cut captures to their visible part: hidden columns are removed from images and from ``changed``.

The identity of the cut is part of a codec's name, and frames are cached by this name. So columns are cut once
for each batch and set of columns, for all subscribers that see the same.

The other members of an image keep the source's text: names, order, and each value byte for byte. An image with
nothing to hide is not changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area
from tailrace.errors import InvalidRequest, NotPermitted
from tailrace_server.codecs.cdcv2 import CDCV2
from tailrace_server.codecs.columns import Codec
from tailrace_server.codecs.member_cutter import cutter_for
from tailrace_server.grants.grant import ALL_COLUMNS, Columns
from tailrace_server.grants.shown import Rule, Visibility, columns_of, image_columns_of
from tailrace_server.grants.shown_views import ViewedRows, viewed
from tailrace_server.wal.record.columns import NAME_TYPE, decode_members, multiplicity_of
from tailrace_server.wal.record.text_columns import NameLists, Texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tailrace.schema import Schema
    from tailrace_server.codecs.columns import CaptureColumns, EncodedMessages
    from tailrace_server.grants.shown_views import ShownView

_COMPILED_FROM: Final = 16
"""The least number of captures for compiled code: a call of it costs as much as to parse a few images."""
_CODECS_MAX: Final = 1_024
"""The most codecs that are cached; a subscription holds its own codec in any case."""
_LEAD_MEMBERS: Final = (
    "transaction_id",
    "source_timestamp",
    "snapshot",
    "late",
    "of",
    "without_end",
)
"""The members of a TRANSACTION record that describe the transaction, not its records."""


class ColumnCut(Protocol):
    """Interface of a function that cuts captures to a part of their columns; equal values cut alike."""

    @property
    def name(self) -> str:
        """The identity of the cut."""

    def of(self, columns: CaptureColumns) -> CaptureColumns:
        """Return captures without what the cut hides."""


class CutCodec(Codec):
    """A codec that cuts captures and then encodes them with another codec."""

    def __init__(self, inner: Codec, cut: ColumnCut) -> None:
        """Combine a cut and the codec ``inner``."""
        self.name = f"{inner.name}, {cut.name}"
        self._inner = inner
        self._cut = cut

    def encode(self, columns: CaptureColumns) -> pa.BinaryArray:
        """Return the frames of the cut captures."""
        return self._inner.encode(self._cut.of(columns))

    def messages(self, columns: CaptureColumns, message_bytes: int) -> EncodedMessages:
        """Return the messages of the cut captures."""
        return self._inner.messages(self._cut.of(columns), message_bytes)

    def with_omitted(self, header_frame: bytes, omitted_bytes: int) -> bytes:
        """Return the frame that ``inner`` makes; ``header_frame`` is already cut."""
        return self._inner.with_omitted(header_frame, omitted_bytes)


@lru_cache(_CODECS_MAX)
def cut_codec(codec: Codec, cut: ColumnCut) -> Codec:
    """Return the codec that cuts captures and encodes them with ``codec``; cached."""
    return CutCodec(codec, cut)


@dataclass(frozen=True, slots=True)
class GrantedCut:
    """The cut of a batch to the granted columns: their names, images with only these, and their counts."""

    shown: Visibility

    @property
    def name(self) -> str:
        """The identity of the cut."""
        return f"cut {self.shown.identity.hex()}"

    def of(self, columns: CaptureColumns) -> CaptureColumns:
        """Return captures without what the cut hides."""
        return cut(columns, self.shown)


@dataclass(frozen=True, slots=True)
class ViewCut:
    """A cut to the columns of views, which are matched by id."""

    views: tuple[ShownView, ...]

    @property
    def name(self) -> str:
        """The identity of the cut."""
        return f"views {viewed(None, self.views).cut_identity.hex()}"

    def of(self, columns: CaptureColumns) -> CaptureColumns:
        """Return captures without what the cut hides."""
        return cut_by_schema(columns, viewed(None, self.views).columns_in)


@dataclass(frozen=True, slots=True)
class IdCut:
    """A cut of images to the columns with some ids, or to all columns except these."""

    ids: frozenset[int]
    listed: bool
    """True: keep the columns with these ids. False: remove them."""

    @property
    def name(self) -> str:
        """The identity of the cut."""
        return f"columns {'' if self.listed else 'but '}{sorted(self.ids)}"

    def of(self, columns: CaptureColumns) -> CaptureColumns:
        """Return captures without what the cut hides."""
        return cut_to_ids(columns, self.ids, listed=self.listed)


def codec_of(codec: Codec, shown: Visibility | None) -> Codec:
    """Return a codec that encodes only the visible part of captures.

    CDCv2 identifies a row by all of its bytes: without a column, two rows could become one. So it needs whole
    rows.

    Raises:
        NotPermitted: The codec is CDCv2, and not everything is granted.
        InvalidRequest: The codec is CDCv2, and a view has only some columns.
    """
    if shown is None:
        return codec
    views: tuple[ShownView, ...] = ()
    granted: Visibility | None = shown
    if isinstance(shown, ViewedRows):
        views, granted = tuple(each for each in shown.views if each.ids is not None), shown.granted
    if codec is CDCV2 and granted is not None:
        raise NotPermitted("CDCV2 needs whole rows, but not every column and image is granted")
    if codec is CDCV2 and views:
        raise InvalidRequest("CDCV2 needs whole rows, but the view has only some of their columns")
    # The outer codec cuts first: the cut of the view, then that of the grants.
    if granted is not None:
        codec = cut_codec(codec, GrantedCut(granted))  # type: ignore[arg-type]
    return cut_codec(codec, ViewCut(views)) if views else codec  # type: ignore[arg-type]


def column_codec(codec: Codec, ids: frozenset[int]) -> Codec:
    """Return a codec that cuts images to the columns with some ids."""
    return cut_codec(codec, IdCut(ids, listed=True))  # type: ignore[arg-type]


def living_codec(codec: Codec, schema: Schema, entity_type: str) -> Codec:
    """Return a codec for rows of a state that removes the columns which the source has dropped.

    The image of a row that has not changed since the drop still has the dropped column's value. The source no
    longer has this value, and a column that was added later under the same name is another one.

    Args:
        codec: The wire form.
        schema: The schema of the version that is read.
        entity_type: The entity type that is read.
    """
    columns = schema.entity_types.get(entity_type, ())
    gone = frozenset(column.id for column in columns if column.dropped)
    return cut_codec(codec, IdCut(gone, listed=False)) if gone else codec  # type: ignore[arg-type]


def cut_to_ids(columns: CaptureColumns, ids: frozenset[int], *, listed: bool) -> CaptureColumns:
    """Cut the images of rows to the columns with some ids, or to all columns except these.

    Each column is looked up by its id, under its name in the row's own version. If two columns of a schema have
    the same name, images have the later one, because the earlier one was dropped.
    """

    def columns_in(entity_type: str, schema: Schema) -> Columns | None:
        written = {each.name: each.id for each in schema.entity_types.get(entity_type, ())}
        names = frozenset(name for name, id in written.items() if id in ids)
        return Columns(names, listed=listed) if listed or names else None

    return cut_by_schema(columns, columns_in)


def cut_by_schema(
    columns: CaptureColumns, columns_in: Callable[[str, Schema], Columns | None]
) -> CaptureColumns:
    """Cut captures to columns that depend on the schema of each capture's version.

    Args:
        columns: The captures.
        columns_in: Function that returns the columns to keep of an entity type, by their names in a schema;
            None: all columns.
    """
    columns = columns.gathered()
    # 1. Find the cut of each capture: one for each entity type and version, of which most batches have few.
    views: dict[_View, int] = {_UNCUT: 0}
    rows = np.flatnonzero((columns.areas == Area.DATA) & (columns.type_codes >= 0))
    known: dict[tuple[int, int], int] = {}
    places = np.zeros(len(columns), np.int32)
    parts = zip(columns.type_codes[rows].tolist(), columns.versions[rows].tolist(), strict=True)
    for row, part in zip(rows.tolist(), parts, strict=True):
        place = known.get(part)
        if place is None:
            code, version = part
            found = columns_in(columns.entity_types[code], columns.schema_of(version))
            view = _UNCUT if found is None else (found, found)
            place = known[part] = views.setdefault(view, len(views))
        places[row] = place
    if len(views) == 1:
        return columns
    # 2. Cut the images and the names of changed columns.
    listed = [*views]
    names = columns.names
    texts = {
        name: _cut_texts(columns, _EVERYTHING, name, body, places, listed)
        for name, body in columns.texts.items()
    }
    if not names.all_null:
        names = _cut_names(names, places, [named for named, _ in listed])
    return replace(columns, names=names, texts=texts)


def cut(columns: CaptureColumns, shown: Visibility) -> CaptureColumns:
    """Cut captures to their visible part."""
    columns = columns.gathered()
    # 1. Find the cut of each capture. Usually it depends on the entity type alone, and in some on the key.
    cuts = [_type_cut(shown, name) for name in columns.entity_types]
    codes = columns.type_codes.tolist()
    keys: list[str | None] | None = None
    views: dict[tuple[Columns, Columns | None], int] = {_UNCUT: 0}
    places = np.zeros(len(columns), np.int32)
    for place, code in enumerate(codes):
        found = _UNCUT if code < 0 else cuts[code]
        if found is None:
            keys = columns.keys.array.to_pylist() if keys is None else keys
            rules = shown.rules_for(columns.entity_types[code], keys[place])
            found = columns_of(rules), image_columns_of(rules)
        if found is not _UNCUT:
            places[place] = views.setdefault(found, len(views))
    others = bool((columns.areas != Area.DATA).any())  # TRANSACTION and schema records
    if len(views) == 1 and not others:
        return columns
    # 2. Cut bodies and names. The bodies read the uncut names, so the names are replaced after them.
    listed = [*views]
    names = columns.names
    texts = {
        name: _cut_texts(columns, shown, name, body, places, listed)
        for name, body in columns.texts.items()
    }
    if len(views) > 1 and not names.all_null:
        names = _cut_names(names, places, [named for named, _ in listed])
    return replace(columns, names=names, texts=texts)


_View = tuple[Columns, Columns | None]
_UNCUT: Final[_View] = (ALL_COLUMNS, ALL_COLUMNS)
_EVERYTHING: Final = Visibility((), (Rule(None, ALL_COLUMNS, True),), None, counted_are_all=True)
"""Visibility of everything, for cuts that do not depend on grants."""


def _type_cut(shown: Visibility, entity_type: str) -> _View | None:
    """Return the columns that are visible in each row of an entity type, and those in its images.

    None: the visible columns depend on the row's key.
    """
    rules = shown.rules_of(entity_type)
    if any(rule.keys is not None for rule in rules):
        return None
    found = columns_of(rules), image_columns_of(rules)
    return _UNCUT if found == _UNCUT else found


def _cut_names(names: NameLists, places: NDArray[np.int32], views: list[Columns]) -> NameLists:
    """Return the lists of changed columns without hidden columns; null stays null."""
    # The lists are one array of codes with offsets. Remove hidden codes from the array for all lists at once,
    # and compute the new offsets from the running count of the codes that stay.
    array = names.array
    offsets = np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1]
    begin, end = int(offsets[0]), int(offsets[-1])
    codes = array.values.indices.to_numpy()[begin:end]
    shows = np.array([[*map(view.shows, names.names)] for view in views], np.bool_)
    keep = shows[np.repeat(places, np.diff(offsets)), codes]
    sums = np.zeros(len(codes) + 1, np.int32)
    np.cumsum(keep, out=sums[1:])
    kept = pa.DictionaryArray.from_arrays(pa.array(codes[keep]), array.values.dictionary)
    starts = pa.py_buffer(sums[offsets - begin])
    validity = array.buffers()[0] if array.null_count else None
    lists = pa.Array.from_buffers(
        pa.list_(NAME_TYPE), len(array), [validity, starts], children=[kept]
    )
    return NameLists.of(lists)


def _cut_texts(
    columns: CaptureColumns,
    shown: Visibility,
    name: str,
    body: Texts,
    places: NDArray[np.int32],
    views: list[_View],
) -> Texts:
    """Return the cut body ``name`` of each capture."""

    def by_parser(row: int, image: bytes) -> bytes | None:
        return _cut_text(columns, shown, name, row, image, views[places[row]])

    cutter = cutter_for(len(columns)) if len(columns) >= _COMPILED_FROM else None
    if cutter is not None and not body.all_null:
        rules = _rules(columns, name, body, places, views)
        sets = [imaged or ALL_COLUMNS for _, imaged in views[1:]]
        return cutter.cut(body, rules, sets, by_parser)
    images: list[bytes | None] = body.array.to_pylist()
    for row, image in enumerate(images):
        if image is not None:
            images[row] = by_parser(row, image)
    return Texts.of(pa.array(images, body.array.type))


def _rules(
    columns: CaptureColumns,
    name: str,
    body: Texts,
    places: NDArray[np.int32],
    views: list[_View],
) -> NDArray[np.int32]:
    """Return the instruction for each row, in the form of ``MemberCutter.cut``."""
    of_view = [-1 if imaged is None else place for place, (_, imaged) in enumerate(views)]
    rules = np.array(of_view, np.int32)[places]
    # Leave to the parser all bodies that are not images of rows: those of TRANSACTION and schema records, and
    # a ``change`` without columns.
    rules[columns.areas != Area.DATA] = -1
    if name == "change":
        multiple = pc.starts_with(body.array, '{"diff":')
        multiple = pc.and_(pc.fill_null(multiple, False), columns.names.array.is_null())
        unlike = pc.or_(columns.keys.array.is_null(), multiple)
        rules[unlike.to_numpy(zero_copy_only=False) & (rules > 0)] = -1
    return rules


def _cut_text(
    columns: CaptureColumns, shown: Visibility, name: str, row: int, image: bytes, view: _View
) -> bytes | None:
    """Return the cut body ``name`` of one capture."""
    named, imaged = view
    area, code = columns.areas.item(row), columns.type_codes.item(row)
    if area == Area.INFRASTRUCTURE:
        return cut_lead(image, shown)
    if area == Area.SCHEMA:
        return _cut_schema_text(image, name, named, shown)
    if view == _UNCUT or (name == "change" and _is_no_column(columns, row, image, code)):
        return image
    return None if imaged is None else cut_image(image, imaged)


def _is_no_column(columns: CaptureColumns, row: int, change: bytes, code: int) -> bool:
    """Return True if a ``change`` has no columns: it is a truncate's, or has the number of copies of a row."""
    if columns.keys.array[row].as_py() is None:
        return True
    if multiplicity_of(change) is None or columns.names.array[row].is_valid:
        return False
    # A column may be called "diff" too: then the text looks like a number of copies, and is an image.
    types = columns.schema_of(int(columns.versions[row])).entity_types
    return all(each.name != "diff" for each in types.get(columns.entity_types[code], ()))


def cut_image(image: bytes, columns: Columns) -> bytes | None:
    """Return a JSON object without its hidden members; None if the text is not an object."""
    # 1. The fast path: an image that does not contain a hidden name is not parsed. Escapes could hide a name.
    if not columns.listed and b"\\" not in image:
        quoted = _quoted(columns)
        if not any(name in image for name in quoted):
            return image
    # 2. Values are copied as bytes: parsing and writing them again could change a number.
    try:
        members = decode_members(image)
    except msgspec.DecodeError:
        return None
    kept = {name: raw for name, raw in members.items() if columns.shows(name)}
    return image if len(kept) == len(members) else msgspec.json.encode(kept)


@lru_cache(256)
def _quoted(columns: Columns) -> tuple[bytes, ...]:
    return tuple(b'"%b"' % name.encode("utf-8", "surrogatepass") for name in columns.names)


def cut_lead(image: bytes, shown: Visibility) -> bytes:
    """Return the body of a TRANSACTION record with the visible counts only; ``transaction_id`` is not cut."""
    if shown.counted is None:
        return image
    members = decode_members(image)
    # Copy the members that describe the transaction. All others are, or may be, about hidden records.
    kept: dict[str, Any] = {name: members[name] for name in _LEAD_MEMBERS if name in members}
    if "counts" in members:
        counts = {
            name: count
            for name, count in msgspec.json.decode(
                bytes(members["counts"]), type=dict[str, int]
            ).items()
            if name in shown.counted
        }
        kept["counts"] = counts
        if shown.counted_are_all:
            kept["mutation_count"] = sum(counts.values())
    return msgspec.json.encode(kept)


def _cut_schema_text(image: bytes, body: str, columns: Columns, shown: Visibility) -> bytes | None:
    """Return the body of a schema record with the visible columns only; None if nothing is visible."""
    cutting: Callable[[dict[str, Any], Columns, Visibility], dict[str, Any] | None]
    cutting = _cut_changes if body == "change" else _cut_entity_type
    try:
        value = msgspec.json.decode(image)
    except msgspec.DecodeError:
        return None
    if not isinstance(value, dict):
        return None
    kept = cutting(value, columns, shown)
    return image if kept == value else None if kept is None else msgspec.json.encode(kept)


def _cut_entity_type(
    value: dict[str, Any], columns: Columns, shown: Visibility
) -> dict[str, Any] | None:
    # In a record that renames an entity type, the body has another name than the record.
    if "entity_type" not in value:
        return value if columns.are_all else None
    if not shown.rules_of(value["entity_type"]):
        return None
    listed = [each for each in value.get("columns", ()) if columns.shows(each["name"])]
    return {**value, "columns": listed}


def _cut_changes(value: dict[str, Any], columns: Columns, shown: Visibility) -> dict[str, Any]:
    def is_shown(change: dict[str, Any]) -> bool:
        if change.get("what") == "entity_type_renamed":
            return all(shown.rules_of(change[end]) for end in ("from", "to"))
        names = [change.get("column")]
        if change.get("what") == "column_renamed":
            names.append(change.get("from"))
        return all(columns.shows(name) for name in names if isinstance(name, str))

    if not isinstance(value.get("changes"), list):
        return value  # a record of the system log, about a catalog
    return {**value, "changes": [*filter(is_shown, value["changes"])]}
