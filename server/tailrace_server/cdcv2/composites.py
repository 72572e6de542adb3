"""Avro types with parts: records, arrays, maps and unions.

The row form of a record, an array or a map is a tuple: the record's values in the order of its fields, the
array's items, or the map's (key, value) pairs sorted by key. The row form of a union's value depends on the
branches. If all branches have different kinds of rows, as in ``["null", "int"]``, it is the row form of the
value's branch. Otherwise it is `Tagged` with the branch, so that 1, 1.0 and true stay different.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace_server.cdcv2.errors import DataMisfit
from tailrace_server.cdcv2.scalars import LONG, PRIMITIVES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tailrace_server.cdcv2.scalars import AvroType


class Tagged(NamedTuple):
    """The row form of a union's value if two of its branches could give equal rows."""

    branch: str
    """The branch: the full name of a named type, otherwise the type."""
    value: Hashable


class RecordType:
    """A record: an object in decoded form and in JSON, a tuple of its field values in row form."""

    kind, plain = "tuple", False

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: list[tuple[str, AvroType]] = []
        """Names and types of the fields. `complete` sets them later, since a record may contain itself."""
        self._converted: list[tuple[int, Callable[[Any], Hashable]]] = []
        """Index and conversion of each field whose decoded value differs from its row value."""

    def complete(self, fields: list[tuple[str, AvroType]]) -> None:
        """Set the fields; called once."""
        self.fields = fields
        self._converted = [(i, each.row) for i, (_, each) in enumerate(fields) if not each.plain]

    @property
    def flat(self) -> bool:
        """True if the decoded values are the row values, so that no field needs conversion."""
        return not self._converted

    def row(self, decoded: dict[str, Any]) -> tuple[Hashable, ...]:
        """Return the field values in the order of the fields, which is also the order of decoding."""
        # The common case, and the fastest.
        if not self._converted:
            return tuple(decoded.values())
        values = list(decoded.values())
        for i, convert in self._converted:
            values[i] = convert(values[i])
        return tuple(values)

    def encode(self, value: Any, out: bytearray) -> None:
        """Append the field values in order."""
        if not isinstance(value, tuple) or len(value) != len(self.fields):
            raise DataMisfit(f"{value!r} is not a tuple of {len(self.fields)} fields")
        for (name, each), part in zip(self.fields, value, strict=True):
            try:
                each.encode(part, out)
            except DataMisfit as error:
                raise error.inside(f".{name}") from None

    def of_json(self, value: Any) -> tuple[Hashable, ...]:
        """Return the row of an object, which must have every field and no other member."""
        if not isinstance(value, dict):
            raise DataMisfit(f"{value!r} is not an object")
        names = [name for name, _ in self.fields]
        for name in names:
            if name not in value:
                raise DataMisfit("the field is missing", f".{name}")
        # All fields are there, so any further member is unknown.
        if len(value) > len(names):
            unknown = next(name for name in value if name not in names)
            raise DataMisfit("the schema has no such field", f".{unknown}")
        row = []
        for name, each in self.fields:
            try:
                row.append(each.of_json(value[name]))
            except DataMisfit as error:
                raise error.inside(f".{name}") from None
        return tuple(row)

    def to_json(self, value: Any) -> dict[str, Any]:
        """Return the JSON object of a row."""
        return {
            name: each.to_json(part) for (name, each), part in zip(self.fields, value, strict=True)
        }

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after the fields."""
        for _, each in self.fields:
            at = each.skip(raw, at)
        return at


class ArrayType:
    """An array: items of one type, encoded in blocks."""

    name, kind, plain = "array", "tuple", False

    def __init__(self, items: AvroType) -> None:
        self._items = items

    def row(self, decoded: list[Any]) -> tuple[Hashable, ...]:
        """Return the items as a tuple."""
        return tuple(decoded) if self._items.plain else tuple(map(self._items.row, decoded))

    def encode(self, value: Any, out: bytearray) -> None:
        """Append one block if there are items, then the end mark."""
        if not isinstance(value, tuple):
            raise DataMisfit(f"{value!r} is not a tuple of items")
        if value:
            LONG.encode(len(value), out)
            for i, item in enumerate(value):
                try:
                    self._items.encode(item, out)
                except DataMisfit as error:
                    raise error.inside(f"[{i}]") from None
        out.append(0)

    def of_json(self, value: Any) -> tuple[Hashable, ...]:
        """Return the items of a list as a tuple."""
        if not isinstance(value, list):
            raise DataMisfit(f"{value!r} is no list")
        items = []
        for i, item in enumerate(value):
            try:
                items.append(self._items.of_json(item))
            except DataMisfit as error:
                raise error.inside(f"[{i}]") from None
        return tuple(items)

    def to_json(self, value: Any) -> list[Any]:
        """Return the JSON list of a row."""
        return [self._items.to_json(item) for item in value]

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after the last block."""
        return skip_blocks(raw, at, self._items.skip)


class MapType:
    """A map from text keys to values, encoded in blocks.

    Its row is sorted by key, so that equal maps have equal rows.
    """

    name, kind, plain = "map", "tuple", False

    def __init__(self, values: AvroType) -> None:
        self._values = values

    def row(self, decoded: dict[str, Any]) -> tuple[tuple[str, Hashable], ...]:
        """Return the pairs, sorted by key."""
        return tuple((key, self._values.row(decoded[key])) for key in sorted(decoded))

    def encode(self, value: Any, out: bytearray) -> None:
        """Append one block if there are pairs, then the end mark."""
        if not isinstance(value, tuple):
            raise DataMisfit(f"{value!r} is not a tuple of pairs")
        if value:
            LONG.encode(len(value), out)
            for pair in value:
                if not isinstance(pair, tuple) or len(pair) != 2:
                    raise DataMisfit(f"{pair!r} is not a pair of key and value")
                key, part = pair
                PRIMITIVES["string"].encode(key, out)
                try:
                    self._values.encode(part, out)
                except DataMisfit as error:
                    raise error.inside(f"[{key!r}]") from None
        out.append(0)

    def of_json(self, value: Any) -> tuple[tuple[str, Hashable], ...]:
        """Return the pairs of an object, sorted by key."""
        if not isinstance(value, dict):
            raise DataMisfit(f"{value!r} is not an object")
        pairs = []
        for key in sorted(value):
            try:
                pairs.append((key, self._values.of_json(value[key])))
            except DataMisfit as error:
                raise error.inside(f"[{key!r}]") from None
        return tuple(pairs)

    def to_json(self, value: Any) -> dict[str, Any]:
        """Return the JSON object of a row."""
        return {key: self._values.to_json(part) for key, part in value}

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after the last block."""

        def skip_pair(raw: bytes, at: int) -> int:
            return self._values.skip(raw, PRIMITIVES["string"].skip(raw, at))

        return skip_blocks(raw, at, skip_pair)


KINDS: Final = {
    type(None): "null",
    bool: "number",
    int: "number",
    float: "number",
    str: "text",
    bytes: "bytes",
    tuple: "tuple",
}
"""Python type of a row → its kind. Rows of different kinds are never equal."""

DECODED: Final = {
    bool: ("boolean",),
    int: ("int", "long"),
    float: ("float", "double"),
    str: ("string",),
    bytes: ("bytes",),
    list: ("array",),
    dict: ("map",),
    type(None): ("null",),
}
"""Python type of a decoded value → the branches that it can belong to.

A value that could belong to two branches of a union is decoded as (branch, value). This concerns named types,
and numbers if both sizes are branches."""


class UnionType:
    """A union of several types.

    In JSON a value is null, or an object whose only member is named after the branch.
    """

    name = kind = "union"

    def __init__(self, branches: list[AvroType]) -> None:
        self._branches = branches
        self._index = {branch.name: i for i, branch in enumerate(branches)}
        # Rows of two branches of one kind could be equal, so each row then names its branch.
        kinds = [branch.kind for branch in branches]
        self._tagged = len(set(kinds)) < len(kinds)
        self._by_kind = {branch.kind: i for i, branch in enumerate(branches)}
        self.plain = not self._tagged and all(
            branch.plain and branch.name in PRIMITIVES for branch in branches
        )

    def row(self, decoded: Any) -> Hashable:
        """Return the row form of the value, tagged if another branch could give an equal row."""
        # A tuple can only be the decoder's (branch, value): no decoded value is a tuple itself.
        if type(decoded) is tuple:
            name, value = decoded
        else:
            name = next(name for name in DECODED[type(decoded)] if name in self._index)
            value = decoded
        row = self._branches[self._index[name]].row(value)
        return Tagged(name, row) if self._tagged else row

    def encode(self, value: Any, out: bytearray) -> None:
        """Append the index of the branch and the value."""
        index, part = self._branch_of(value)
        LONG.encode(index, out)
        self._branches[index].encode(part, out)

    def of_json(self, value: Any) -> Hashable:
        """Return the row of null, or of an object whose only member is named after the branch."""
        if value is None and "null" in self._index:
            return Tagged("null", None) if self._tagged else None
        if not isinstance(value, dict) or len(value) != 1:
            raise DataMisfit(f"{value!r} is neither null nor an object of one branch")
        ((name, part),) = value.items()
        if name not in self._index:
            raise DataMisfit(f"{name!r} is no branch; there are {', '.join(self._index)}")
        try:
            row = self._branches[self._index[name]].of_json(part)
        except DataMisfit as error:
            raise error.inside(f".{name}") from None
        return Tagged(name, row) if self._tagged else row

    def to_json(self, value: Any) -> Any:
        """Return null, or an object whose only member is named after the branch."""
        index, part = self._branch_of(value)
        branch = self._branches[index]
        return None if branch.name == "null" else {branch.name: branch.to_json(part)}

    def skip(self, raw: bytes, at: int) -> int:
        """Return the index after the value."""
        index, after = LONG.read(raw, at)
        if not 0 <= index < len(self._branches):
            raise DataMisfit(f"the union at byte {at} has no branch {index}")
        return self._branches[index].skip(raw, after)

    def _branch_of(self, value: Any) -> tuple[int, Any]:
        """Return the index of a row's branch, and the row without its tag.

        Raises:
            DataMisfit: The row belongs to no branch.
        """
        if self._tagged:
            if not isinstance(value, Tagged) or value.branch not in self._index:
                raise DataMisfit(f"{value!r} is no Tagged of one of {', '.join(self._index)}")
            return self._index[value.branch], value.value
        # All branches have different kinds of rows, so the kind identifies the branch.
        index = self._by_kind.get(KINDS.get(type(value), ""))
        if index is None:
            raise DataMisfit(f"{value!r} is none of {', '.join(self._index)}")
        return index, value


def skip_blocks(raw: bytes, at: int, skip: Callable[[bytes, int], int]) -> int:
    """Return the index after the blocks of an array or a map.

    Each block begins with the number of its items; 0 ends the last block. After a negative number comes the
    size of the block in bytes. The size is not checked, because decoders ignore it and read the items one by
    one.
    """
    while True:
        count, at = LONG.read(raw, at)
        if count == 0:
            return at
        if count < 0:
            _, at = LONG.read(raw, at)
            count = -count
        for _ in range(count):
            at = skip(raw, at)
