"""Conversion of a GraphQL field's arguments to a request of the engine, by the rules that all faces share.

Arguments have the JSON names of proto/tailrace/v1, so they are parsed like a JSON request. An error contains
the path of the argument or criteria at fault.

The argument ``where`` becomes a condition tree, in which the members of one object are joined by AND.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from strawberry import UNSET
from strawberry.utils.str_converters import to_camel_case

from tailrace.criteria import Area
from tailrace.errors import InvalidRequest
from tailrace.v1.change_capture_pb2 import SubscribeRequest
from tailrace_server.api import requests
from tailrace_server.api.json_requests import ELSEWHERE, from_json, in_json
from tailrace_server.filters.tree import ConditionRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace_server.api.requests import Wish


_BODIES: Final = ("change", "before", "after")
STARTS: Final = frozenset({"sinceVersion", "sinceIndex", "after", "fromTime"})
"""Arguments that set the start of a subscription."""


WHERE: Final = "where"
"""Name of the argument that has a condition."""
JOINED: Final = ("and", "or")
INVERTED: Final = "not"
LIKE: Final = ("like", "ilike")
NUMBERS: Final = frozenset({"Int", "BigInt", "Float", "Decimal"})
"""Kinds of tests whose values are numbers."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a catalog that a field covers; criteria can only narrow it."""

    area: Area | None = None
    """The only area that the field covers; None means all areas."""
    entity_type: str | None = None
    """The only entity type that the field covers; None means all entity types."""

    @property
    def rows_of(self) -> str | None:
        """The entity type if the field covers only changes of its rows; else None."""
        return self.entity_type if self.area is Area.DATA else None

    def narrowed(
        self, criteria: object, tree: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return criteria restricted to the scope, in the JSON form of a request.

        Args:
            criteria: The criteria of the arguments; None if there are none.
            tree: A condition that is added to each criteria, as a tree in JSON form; None if there is none.

        Raises:
            InvalidRequest: One of the criteria requests changes outside the scope.
        """
        # Without criteria, one empty criteria is narrowed: several criteria are alternatives.
        alternatives: list[dict[str, Any]] = plain(criteria or [])
        if self.area is None:
            return alternatives
        out = []
        for place, one in enumerate(alternatives or [{}]):
            at = f"criteria[{place}]"
            if one.get("area") not in (None, self.area.name):
                raise InvalidRequest(
                    f"{at}.area: this field has only changes of area {self.area.name}"
                )
            named = one.get("entityType") or []
            if self.entity_type is not None and named not in ([], [self.entity_type]):
                raise InvalidRequest(
                    f"{at}.entityType: this field has only changes of {self.entity_type!r}"
                )
            inside: dict[str, Any] = {"area": self.area.name}
            if self.entity_type is not None:
                inside["entityType"] = [self.entity_type]
            if tree is not None:
                if "where" in one:
                    raise InvalidRequest(f"{at}.where: the field also has where; give one of them")
                inside["whereTree"] = tree
            out.append({**one, **inside})
        return out


def wish_of(
    arguments: Mapping[str, Any],
    scope: Scope,
    bodies: frozenset[str],
    tree: Mapping[str, Any] | None = None,
    *,
    criteria_max: int,
) -> Wish:
    """Return the request of a subscription field.

    Args:
        arguments: The arguments by GraphQL name, as graphql-core coerces them.
        scope: The part of the catalog that the field covers.
        bodies: Names of the bodies that the selection needs.
        tree: The condition of the argument ``where``, as a tree in JSON form; None if there is none.
        criteria_max: Maximum number of criteria.

    Raises:
        InvalidRequest, Unsupported: An argument is invalid; the error contains its GraphQL name.
    """
    asked = {
        name: plain(value)
        for name, value in arguments.items()
        if value is not None and name not in ("signals", "where")
    }
    asked["criteria"] = scope.narrowed(asked.get("criteria"), tree)
    asked["body"] = [name for name in _BODIES if name in bodies]
    message = from_json(SubscribeRequest, asked, criteria_max=criteria_max, without=ELSEWHERE)
    return in_json(requests.wish)(message)


def plain(value: Any) -> Any:
    """Return an argument as JSON values: enums as names, inputs as objects without null members.

    A null ``where`` is kept, so that the parser of the request refuses it.
    """
    if isinstance(value, str):
        return value  # First, because most values are keys, and there may be 100,000.
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        value = {to_camel_case(each.name): getattr(value, each.name) for each in fields(value)}
    if isinstance(value, dict):
        return {
            name: plain(part)
            for name, part in value.items()
            if part is not UNSET and (part is not None or name == WHERE)
        }
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value


@dataclass(frozen=True, slots=True)
class TypedCondition:
    """An argument ``where``, converted to a condition tree."""

    tree: dict[str, Any]
    """The tree in the JSON form of a request."""
    places: Mapping[str, str]
    """Path of a column's tests in the tree → path of these tests in the argument."""

    @contextmanager
    def told(self) -> Iterator[None]:
        """Replace the tree path in an error of the block by the path in the argument.

        Raises:
            ConditionRefused: The block has raised this error.
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
    """The fields of one entity type's ``where``, with their columns."""

    columns: Mapping[str, tuple[str, str]]
    """Field → column, and kind of the tests on that column."""

    def condition(self, value: Mapping[str, Any]) -> TypedCondition:
        """Return the condition of an argument ``where``.

        Raises:
            InvalidRequest: A member is empty or null; the error contains its path.
        """
        places: dict[str, str] = {}
        return TypedCondition(self._tree(value, WHERE, "", places), places)

    def _tree(
        self, value: Mapping[str, Any], at: str, path: str, places: dict[str, str]
    ) -> dict[str, Any]:
        if not value:
            raise InvalidRequest(f"{at}: it has no test; leave it out to get all rows")
        parts = []
        for number, (name, part) in enumerate(value.items()):
            # Several members become the elements of an "and"; a single one needs none, so its path is shorter.
            inner_path = path if len(value) == 1 else _within(path, f"and[{number}]")
            inner_at = f"{at}.{name}"
            if part is None:
                raise InvalidRequest(f"{inner_at}: null is not a test; leave it out, or use isNull")
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
        # Remember where the client wrote these tests: errors of the condition name places in the tree.
        places[path] = at
        return {"column": column, **_tests(part, kind, at)}


def _tests(tests: Mapping[str, Any], kind: str, at: str) -> dict[str, Any]:
    """Return the tests of a column in the JSON form of a condition tree."""
    if not tests:
        raise InvalidRequest(f"{at}: it has no test; leave it out to get all rows")
    found: dict[str, Any] = {}
    for name, value in tests.items():
        if value is None:
            raise InvalidRequest(f"{at}.{name}: NULL is equal to no value; use isNull")
        if name == "in":
            if not value:
                raise InvalidRequest(f"{at}.{name}: the list is empty")
            found[name] = [_value(each, kind) for each in value]
        else:
            found[name] = value if name in (*LIKE, "isNull") else _value(value, kind)
    return found


def _value(value: Any, kind: str) -> Any:
    """Return a value in the JSON form of a condition tree: numbers as text, other values unchanged."""
    # A float can also be the value of a JSON column.
    if kind in NUMBERS or type(value) is float:
        return {"number": str(value)}
    return value


def _within(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
