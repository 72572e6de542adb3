"""Avro types with parts: records, arrays, maps and unions.

Their row forms are tuples: a record's values in the order of its fields, an array's items, a map's
(key, value) pairs by key. A union's row is that of its branch where no two branches could give equal
rows, as in ``["null", "int"]``; otherwise it is `Tagged`, so that the number 1, 1.0 and true differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace_server.cdcv2.errors import DataMisfit
from tailrace_server.cdcv2.scalars import LONG, PRIMITIVES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tailrace_server.cdcv2.scalars import AvroType


class Tagged(NamedTuple):
    """The row form of a union's value where its branches could be confused."""

    branch: str
    """The branch: the full name of a named type, otherwise the type."""
    value: Hashable


class RecordType:
    """Fields in order; decoded and in JSON an object, as a row a tuple."""

    kind, plain = "tuple", False

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: list[tuple[str, AvroType]] = []
        """Filled in once the types of its fields are compiled, which may be this one."""
        self._converted: list[tuple[int, Callable[[Any], Hashable]]] = []

    def complete(self, fields: list[tuple[str, AvroType]]) -> None:
        """Set the fields, once."""
        self.fields = fields
        self._converted = [(i, each.row) for i, (_, each) in enumerate(fields) if not each.plain]

    @property
    def flat(self) -> bool:
        """Whether the row form is the tuple of the decoded values as they are."""
        return not self._converted

    def row(self, decoded: dict[str, Any]) -> tuple[Hashable, ...]:
        """Return the values in order."""
        if not self._converted:
            return tuple(decoded.values())
        values = list(decoded.values())
        for i, convert in self._converted:
            values[i] = convert(values[i])
        return tuple(values)

    def encode(self, value: Any, out: bytearray) -> None:
        """Append the fields."""
        if not isinstance(value, tuple) or len(value) != len(self.fields):
            raise DataMisfit(f"{value!r} is not a tuple of {len(self.fields)} fields")
        for (name, each), part in zip(self.fields, value, strict=True):
            try:
                each.encode(part, out)
            except DataMisfit as error:
                raise error.inside(f".{name}") from None

    def of_json(self, value: Any) -> tuple[Hashable, ...]:
        """Return the row of an object that has every field and no other."""
        if not isinstance(value, dict):
            raise DataMisfit(f"{value!r} is no object")
        names = [name for name, _ in self.fields]
        for name in names:
            if name not in value:
                raise DataMisfit("the field is missing", f".{name}")
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
        """Return the object."""
        return {
            name: each.to_json(part) for (name, each), part in zip(self.fields, value, strict=True)
        }

    def skip(self, raw: bytes, at: int) -> int:
        """Return the place after the fields."""
        for _, each in self.fields:
            at = each.skip(raw, at)
        return at


class ArrayType:
    """Items of one type, in blocks."""

    name, kind, plain = "array", "tuple", False

    def __init__(self, items: AvroType) -> None:
        self._items = items

    def row(self, decoded: list[Any]) -> tuple[Hashable, ...]:
        """Return the items."""
        return tuple(decoded) if self._items.plain else tuple(map(self._items.row, decoded))

    def encode(self, value: Any, out: bytearray) -> None:
        """Append one block, if there are items, and the end."""
        if not isinstance(value, tuple):
            raise DataMisfit(f"{value!r} is no tuple of items")
        if value:
            LONG.encode(len(value), out)
            for i, item in enumerate(value):
                try:
                    self._items.encode(item, out)
                except DataMisfit as error:
                    raise error.inside(f"[{i}]") from None
        out.append(0)

    def of_json(self, value: Any) -> tuple[Hashable, ...]:
        """Return the items of a list."""
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
        """Return the list."""
        return [self._items.to_json(item) for item in value]

    def skip(self, raw: bytes, at: int) -> int:
        """Return the place after the last block."""
        return skip_blocks(raw, at, self._items.skip)


class MapType:
    """Values by text, in blocks; as a row by key, so that equal maps are equal rows."""

    name, kind, plain = "map", "tuple", False

    def __init__(self, values: AvroType) -> None:
        self._values = values

    def row(self, decoded: dict[str, Any]) -> tuple[tuple[str, Hashable], ...]:
        """Return the pairs by key."""
        return tuple((key, self._values.row(decoded[key])) for key in sorted(decoded))

    def encode(self, value: Any, out: bytearray) -> None:
        """Append one block, if there are pairs, and the end."""
        if not isinstance(value, tuple):
            raise DataMisfit(f"{value!r} is no tuple of pairs")
        if value:
            LONG.encode(len(value), out)
            for pair in value:
                if not isinstance(pair, tuple) or len(pair) != 2:
                    raise DataMisfit(f"{pair!r} is no pair of key and value")
                key, part = pair
                PRIMITIVES["string"].encode(key, out)
                try:
                    self._values.encode(part, out)
                except DataMisfit as error:
                    raise error.inside(f"[{key!r}]") from None
        out.append(0)

    def of_json(self, value: Any) -> tuple[tuple[str, Hashable], ...]:
        """Return the pairs of an object, by key."""
        if not isinstance(value, dict):
            raise DataMisfit(f"{value!r} is no object")
        pairs = []
        for key in sorted(value):
            try:
                pairs.append((key, self._values.of_json(value[key])))
            except DataMisfit as error:
                raise error.inside(f"[{key!r}]") from None
        return tuple(pairs)

    def to_json(self, value: Any) -> dict[str, Any]:
        """Return the object."""
        return {key: self._values.to_json(part) for key, part in value}

    def skip(self, raw: bytes, at: int) -> int:
        """Return the place after the last block."""

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
"""The kind of a row by its Python type."""

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
"""The branches that a decoded value can belong to, by its Python type. What could belong to two of the
branches of a union comes as (branch, value): named types, and numbers where both sizes are branches."""


class UnionType:
    """One of several types; in JSON null, or an object with the branch as its only name."""

    name = kind = "union"

    def __init__(self, branches: list[AvroType]) -> None:
        self._branches = branches
        self._index = {branch.name: i for i, branch in enumerate(branches)}
        kinds = [branch.kind for branch in branches]
        self._tagged = len(set(kinds)) < len(kinds)
        self._by_kind = {branch.kind: i for i, branch in enumerate(branches)}
        self.plain = not self._tagged and all(
            branch.plain and branch.name in PRIMITIVES for branch in branches
        )

    def row(self, decoded: Any) -> Hashable:
        """Return the branch's row, tagged where branches could be confused."""
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
        """Return the row of null or of an object with the branch as its only name."""
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
        """Return null, or the object of one branch."""
        index, part = self._branch_of(value)
        branch = self._branches[index]
        return None if branch.name == "null" else {branch.name: branch.to_json(part)}

    def skip(self, raw: bytes, at: int) -> int:
        """Return the place after the value."""
        index, after = LONG.read(raw, at)
        if not 0 <= index < len(self._branches):
            raise DataMisfit(f"the union at byte {at} has no branch {index}")
        return self._branches[index].skip(raw, after)

    def _branch_of(self, value: Any) -> tuple[int, Any]:
        if self._tagged:
            if not isinstance(value, Tagged) or value.branch not in self._index:
                raise DataMisfit(f"{value!r} is no Tagged of one of {', '.join(self._index)}")
            return self._index[value.branch], value.value
        index = self._by_kind.get(KINDS.get(type(value), ""))
        if index is None:
            raise DataMisfit(f"{value!r} is none of {', '.join(self._index)}")
        return index, value


def skip_blocks(raw: bytes, at: int, skip: Callable[[bytes, int], int]) -> int:
    """Return the place after blocks of items: a count before each, negative with a size behind it, 0 last.

    The size is for who jumps over a block; items are walked here, and readers walk them too, so it is not
    held against them.
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
