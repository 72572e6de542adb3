"""The documented schema of a CDCv2 stream: two branches, in which a stream chooses only the type of ``data``.

::

    [ array of record com.materialize.cdc.update   { data: any record, time: long, diff: long },
      record com.materialize.cdc.progress          { lower: array of long, upper: array of long,
                                                     counts: array of record { time, count: long } } ]

A schema may differ from it only in parts that do not change the bytes: doc, aliases, defaults, order, logical
types, ``{"type": "long"}`` for ``"long"``, and full or short names. Any other difference is refused, and the
error names the place. Arrays whose items have no bytes are refused too: three bytes could announce any number
of items.

If the caller allows it, times may be *product times*, which the documented schema does not have. Then ``time``,
the items of ``lower`` and ``upper``, and ``time`` in ``counts`` are ``record com.materialize.cdc.time``. The
fields of this record are longs of any name, one for each coordinate.

Source: Materialize documentation, "Materialize CDC", example schema.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import fastavro

from tailrace_server.cdcv2.composites import ArrayType, MapType, RecordType, UnionType
from tailrace_server.cdcv2.errors import SchemaDiffers
from tailrace_server.cdcv2.scalars import PRIMITIVES, AvroType, EnumType, Fixed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAMESPACE: Final = "com.materialize.cdc"
PROGRESS: Final = f"{NAMESPACE}.progress"
TIME: Final = f"{NAMESPACE}.time"
"""Full name of the record that is a product time."""
DATA_PLACE: Final = "[0].items.fields[0].type"
"""Place of the type of ``data``, which a stream may choose."""

BRANCH: Final = "tailrace-branch"
"""A logical type of our own, for numbers in unions that have both sizes. It makes the decoder say which size
it read.
"""

_ANY_RECORD: Final = "any record"
_LONGS: Final = {"type": "array", "items": "long"}
_DOCUMENTED: Final = [
    {
        "type": "array",
        "items": {
            "type": "record",
            "name": f"{NAMESPACE}.update",
            "fields": [
                {"name": "data", "type": _ANY_RECORD},
                {"name": "time", "type": "long"},
                {"name": "diff", "type": "long"},
            ],
        },
    },
    {
        "type": "record",
        "name": PROGRESS,
        "fields": [
            {"name": "lower", "type": _LONGS},
            {"name": "upper", "type": _LONGS},
            {
                "name": "counts",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": f"{NAMESPACE}.counts",
                        "fields": [
                            {"name": "time", "type": "long"},
                            {"name": "count", "type": "long"},
                        ],
                    },
                },
            },
        ],
    },
]
"""The documented schema in parsing canonical form, except for `_ANY_RECORD`."""

_UNPARSED: Final = (
    fastavro.schema.SchemaParseException,
    fastavro.schema.UnknownType,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)
"""Errors that the Avro library raises for invalid schemas."""

_NUMBERS: Final = ({"int", "long"}, {"float", "double"})
"""Pairs of types whose decoded values have the same Python type."""


def documented_schema(data: dict[str, Any], coordinates: Sequence[str] = ()) -> list[Any]:
    """Return the documented schema with a given type of ``data``, as parsed JSON.

    Args:
        data: The record type.
        coordinates: The names of the coordinates of product times; empty for the documented ``long``.
    """
    schema: list[Any] = json.loads(json.dumps(_DOCUMENTED))
    schema[0]["items"]["fields"][0]["type"] = data
    if coordinates:
        fields = [{"name": name, "type": "long"} for name in coordinates]
        _put_time(schema, {"type": "record", "name": TIME, "fields": fields})
    return schema


def parse(schema: str | list[Any] | dict[str, Any], *, product_times: bool = False) -> list[Any]:
    """Check that a schema is the documented one, and return its canonical form.

    Args:
        schema: JSON text, or the parsed JSON.
        product_times: True to accept times that are records of longs.

    Raises:
        SchemaDiffers: The schema is not the documented one, or ``data`` is not a valid record schema.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise SchemaDiffers("", "JSON", f"text that is none: {error}") from error
    canonical = _canonical(schema)
    # A copy, since `_put_time` changes it.
    expected = json.loads(json.dumps(_DOCUMENTED))
    if product_times and (time := _time_of(canonical)) is not None:
        _put_time(expected, time)
    _compare(expected, canonical, "")
    _check_rules(canonical)
    assert isinstance(canonical, list)
    return canonical


def arity(canonical: list[Any]) -> int | None:
    """Return the number of coordinates of a schema's times; None for the documented ``long``."""
    time = _time_of(canonical)
    return None if time is None else len(time["fields"])


def same(expected: list[Any], found: list[Any]) -> None:
    """Raise if two canonical forms differ.

    Raises:
        SchemaDiffers: They differ; the message names the place of the first difference.
    """
    _compare(expected, found, "")


def compile_type(schema: Any, named: dict[str, AvroType] | None = None) -> AvroType:
    """Return the compiled type of a canonical schema.

    Args:
        schema: The schema.
        named: The named types so far, by full name; this call adds new ones.
    """
    named = {} if named is None else named
    if isinstance(schema, str):
        return PRIMITIVES.get(schema) or named[schema]
    if isinstance(schema, list):
        return UnionType([compile_type(branch, named) for branch in schema])
    match schema["type"]:
        case "record" | "error":
            # Register the record before its fields are compiled: a field may refer to the record.
            record = named[schema["name"]] = RecordType(schema["name"])
            record.complete(
                [(field["name"], compile_type(field["type"], named)) for field in schema["fields"]]
            )
            return record
        case "enum":
            named[schema["name"]] = EnumType(schema["name"], schema["symbols"])
            return named[schema["name"]]
        case "fixed":
            named[schema["name"]] = Fixed(schema["name"], schema["size"])
            return named[schema["name"]]
        case "array":
            return ArrayType(compile_type(schema["items"], named))
        case "map":
            return MapType(compile_type(schema["values"], named))
        case other:
            return compile_type(other, named)


def decoder_schema(schema: Any) -> Any:
    """Return a canonical schema for the decoder, in which some numbers in unions have the mark `BRANCH`.

    A number is marked if its union has number types of both sizes, as int and long.
    """
    if isinstance(schema, list):
        names = {branch for branch in schema if isinstance(branch, str)}
        both = set().union(*(pair for pair in _NUMBERS if pair <= names))
        return [
            {"type": branch, "logicalType": BRANCH}
            if isinstance(branch, str) and branch in both
            else decoder_schema(branch)
            for branch in schema
        ]
    if isinstance(schema, dict):
        marked = {
            name: decoder_schema(schema[name]) for name in ("items", "values") if name in schema
        }
        if "fields" in schema:
            marked["fields"] = [
                {**field, "type": decoder_schema(field["type"])} for field in schema["fields"]
            ]
        return {**schema, **marked}
    return schema


def _time_of(canonical: Any) -> dict[str, Any] | None:
    """Return the record of product times in a canonical schema; None if its times are not such records."""
    try:
        time: Any = canonical[0]["items"]["fields"][1]["type"]
        kinds = {field["type"] for field in time["fields"] if time["name"] == TIME}
    except (LookupError, TypeError):
        return None
    found: dict[str, Any] = time
    return found if kinds == {"long"} else None


def _put_time(schema: list[Any], time: dict[str, Any]) -> None:
    """Replace the documented times. The first place defines the record; the others refer to it by name."""
    schema[0]["items"]["fields"][1]["type"] = time
    lower, upper, counts = schema[1]["fields"]
    lower["type"] = {"type": "array", "items": TIME}
    upper["type"] = {"type": "array", "items": TIME}
    counts["type"]["items"]["fields"][0]["type"] = TIME


def _canonical(schema: Any) -> Any:
    try:
        fastavro.parse_schema(schema)  # the canonical form does not check anything
        return json.loads(fastavro.schema.to_parsing_canonical_form(schema))
    except _UNPARSED as e:
        raise SchemaDiffers(
            _fault(schema), "a valid Avro schema", f"{type(e).__name__}: {e}"
        ) from e


def _check_rules(canonical: Any) -> None:
    """Refuse schemas that the Avro specification forbids but the Avro library accepts."""
    names: set[str] = set()
    for part in _parts(canonical):
        match part:
            case list():
                kinds = [each if isinstance(each, str) else each.get("name", each["type"])
                         for each in part if not isinstance(each, list)]  # fmt: skip
                if len(set(kinds)) < len(part):
                    raise SchemaDiffers(
                        DATA_PLACE, "unions of different branches", f"a union of {', '.join(kinds)}"
                    )
            case {"items": items} if takes_no_bytes(items, canonical):
                raise SchemaDiffers(
                    DATA_PLACE, "arrays of what takes bytes", f"an array of {_shown(items)}"
                )
            case {"name": str(name)}:
                if name in names:
                    raise SchemaDiffers(
                        DATA_PLACE, "names of its own", f"{name}, for another type too"
                    )
                names.add(name)


def _parts(schema: Any) -> Iterator[Any]:
    """Yield a schema and all schemas inside it, except names and primitive types."""
    if isinstance(schema, list):
        yield schema
        for branch in schema:
            yield from _parts(branch)
    elif isinstance(schema, dict):
        yield schema
        for inner in (schema.get("items"), schema.get("values")):
            yield from _parts(inner)
        for field in schema.get("fields", ()):
            yield from _parts(field["type"])


def nests(schema: Any, within: frozenset[str] = frozenset()) -> bool:
    """Return True if a record in a canonical schema contains itself, so that its values may nest to any depth.

    Args:
        schema: The schema.
        within: The full names of the enclosing records.
    """
    match schema:
        case str():
            return schema in within
        case list():
            return any(nests(branch, within) for branch in schema)
        case {"fields": fields, "name": name}:
            return any(nests(field["type"], within | {name}) for field in fields)
        case {"items": inner} | {"values": inner}:
            return nests(inner, within)
    return False


def takes_no_bytes(schema: Any, whole: Any) -> bool:
    """Return True if no value of a type has any bytes.

    ``whole`` is the schema that defines the type's names.
    """
    match schema:
        case "null" | {"type": "fixed", "size": 0}:
            return True
        case {"fields": fields}:
            return all(takes_no_bytes(field["type"], whole) for field in fields)
        case str() if schema not in PRIMITIVES:
            named = (part for part in _parts(whole) if isinstance(part, dict))
            found = next((part for part in named if part.get("name") == schema), "long")
            # A record that always contains itself has no finite value, and this recursion would never end.
            return not nests(found) and takes_no_bytes(found, whole)
    return False


def _fault(schema: Any) -> str:
    """Return the place of ``data`` if an invalid schema is valid without ``data``; otherwise an empty text."""
    try:
        whole = json.loads(json.dumps(schema))
        whole[0]["items"]["fields"][0]["type"] = "long"
        fastavro.parse_schema(whole)
    except _UNPARSED:
        return ""
    return DATA_PLACE


def _compare(expected: Any, found: Any, place: str) -> None:
    # The type of ``data``, which a stream may choose.
    if expected == _ANY_RECORD:
        if not isinstance(found, dict) or found.get("type") != "record":
            raise SchemaDiffers(place, "a record", _shown(found))
        return
    if isinstance(expected, list):
        if not isinstance(found, list):
            raise SchemaDiffers(place, f"{len(expected)} branches", _shown(found))
        for i, part in enumerate(expected):
            at = f"{place}[{i}]"
            if i == len(found):
                raise SchemaDiffers(at, _shown(part), "nothing")
            _compare(part, found[i], at)
        if len(found) > len(expected):
            raise SchemaDiffers(
                f"{place}[{len(expected)}]", "nothing", _shown(found[len(expected)])
            )
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        if expected.keys() & _PARTS and expected.get("type") != found.get("type"):
            raise SchemaDiffers(place, _shown(expected), _shown(found))
        # Compare names before parts: a wrong name explains the fault better than a wrong part does.
        for name in sorted(expected.keys() | found.keys(), key=lambda name: (name in _PARTS, name)):
            at = f"{place}.{name}" if place else name
            if name not in found or name not in expected:
                raise SchemaDiffers(at, _shown(expected.get(name)), _shown(found.get(name)))
            _compare(expected[name], found[name], at)
        return
    if expected != found:
        raise SchemaDiffers(place, _shown(expected), _shown(found))


_PARTS: Final = frozenset({"fields", "items", "values", "symbols"})


def _shown(schema: Any) -> str:
    """Return a short description of a schema, for errors."""
    match schema:
        case None:
            return "nothing"
        case {"type": "array", "items": items}:
            return f"an array of {_shown(items)}"
        case {"type": "record" | "enum" | "fixed" as kind, "name": name}:
            return f"{kind} {name}"
        case {"type": kind, "name": name}:
            return f"field {name} of {_shown(kind)}"
        case list():
            return f"a union of {len(schema)}"
        case _:
            text = schema if isinstance(schema, str) else json.dumps(schema)
            return text if len(text) <= 60 else text[:60] + "…"
