"""An argument ``where`` as a tree. Its members are joined by AND."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import InvalidRequest
from tailrace_server.filters.errors import ConditionRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WHERE: Final = "where"
"""The argument."""
JOINED: Final = ("and", "or")
INVERTED: Final = "not"
LIKE: Final = ("like", "ilike")
NUMBERS: Final = frozenset({"Int", "BigInt", "Float", "Decimal"})
"""Kinds of tests whose values are numbers."""


@dataclass(frozen=True, slots=True)
class TypedCondition:
    """A ``where`` as a tree."""

    tree: dict[str, Any]
    """In the JSON form of a request's tree."""
    places: Mapping[str, str]
    """Path of each column's tests in the tree → their place in the argument."""

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell what is wrong with the condition by its place in the argument.

        Raises:
            ConditionRefused: It was raised inside.
        """
        try:
            yield
        except ConditionRefused as error:
            if not isinstance(error.place, str):
                raise
            path, _, test = error.place.rpartition(".")
            place = self.places.get(path)
            if place is None:
                raise
            at = place if test == "column" else f"{place}.{test}"
            raise ConditionRefused(f"{at}: {error.what}") from None


@dataclass(frozen=True, slots=True)
class WhereType:
    """The meaning of the fields of one entity type's ``where``."""

    columns: Mapping[str, tuple[str, str]]
    """Field → its column, and the kind of its tests."""

    def condition(self, value: Mapping[str, Any]) -> TypedCondition:
        """Return what an argument says.

        Raises:
            InvalidRequest: It says nothing somewhere, or null; names the place.
        """
        places: dict[str, str] = {}
        return TypedCondition(self._tree(value, WHERE, "", places), places)

    def _tree(
        self, value: Mapping[str, Any], at: str, path: str, places: dict[str, str]
    ) -> dict[str, Any]:
        if not value:
            raise InvalidRequest(f"{at}: it has no test; leave it out where all rows are meant")
        parts = []
        for number, (name, part) in enumerate(value.items()):
            inner_path = path if len(value) == 1 else _within(path, f"and[{number}]")
            inner_at = f"{at}.{name}"
            if part is None:
                raise InvalidRequest(
                    f"{inner_at}: null asks for nothing; leave it out, or ask isNull"
                )
            parts.append(self._part(name, part, inner_at, inner_path, places))
        return parts[0] if len(parts) == 1 else {"and": parts}

    def _part(
        self, name: str, part: Any, at: str, path: str, places: dict[str, str]
    ) -> dict[str, Any]:
        if name == INVERTED:
            return {name: self._tree(part, at, _within(path, name), places)}
        if name in JOINED:
            if not part:
                raise InvalidRequest(f"{at}: the list is empty")
            inner = _within(path, name)
            return {
                name: [
                    self._tree(each, f"{at}[{number}]", f"{inner}[{number}]", places)
                    for number, each in enumerate(part)
                ]
            }
        column, kind = self.columns[name]
        places[path] = at
        return {"column": column, **_tests(part, kind, at)}


def _tests(tests: Mapping[str, Any], kind: str, at: str) -> dict[str, Any]:
    """Return the tests of a column in the JSON form of a tree."""
    if not tests:
        raise InvalidRequest(f"{at}: it has no test; leave it out where all rows are meant")
    found: dict[str, Any] = {}
    for name, value in tests.items():
        if value is None:
            raise InvalidRequest(f"{at}.{name}: NULL equals nothing; ask isNull")
        if name == "in":
            if not value:
                raise InvalidRequest(f"{at}.{name}: the list is empty")
            found[name] = [_value(each, kind) for each in value]
        else:
            found[name] = value if name in (*LIKE, "isNull") else _value(value, kind)
    return found


def _value(value: Any, kind: str) -> Any:
    """Return a value in the JSON form of a tree: numbers by their digits, all else as it is."""
    if kind in NUMBERS or type(value) is float:
        return {"number": str(value)}
    return value


def _within(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
