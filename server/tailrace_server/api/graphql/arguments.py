"""From the arguments of a field to a request for the engine, by the rules that all faces share.

Arguments are those of proto/tailrace/v1 by their JSON names, so they are read as a JSON request is: unknown
values are refused by path, and a contradiction names the criteria that it is in.

An argument ``where`` becomes a tree, in which the members of one object are joined by AND.
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
"""Arguments that say where a subscription begins."""


WHERE: Final = "where"
"""The argument."""
JOINED: Final = ("and", "or")
INVERTED: Final = "not"
LIKE: Final = ("like", "ilike")
NUMBERS: Final = frozenset({"Int", "BigInt", "Float", "Decimal"})
"""Kinds of tests whose values are numbers."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a catalog that a field is about, whatever its criteria say besides."""

    area: Area | None = None
    entity_type: str | None = None

    @property
    def rows_of(self) -> str | None:
        """The entity type whose rows it is about; None: it is about others too, or about the schema."""
        return self.entity_type if self.area is Area.DATA else None

    def narrowed(
        self, criteria: object, tree: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return criteria within the scope, in the JSON form.

        Args:
            criteria: As they were given; None: none.
            tree: A condition that holds for each of them, in its JSON form; None: there is none.

        Raises:
            InvalidRequest: One asks for something outside it.
        """
        alternatives: list[dict[str, Any]] = plain(criteria or [])
        if self.area is None:
            return alternatives
        out = []
        for place, one in enumerate(alternatives or [{}]):
            at = f"criteria[{place}]"
            if one.get("area") not in (None, self.area.name):
                raise InvalidRequest(
                    f"{at}.area: this field has changes of area {self.area.name} only"
                )
            named = one.get("entityType") or []
            if self.entity_type is not None and named not in ([], [self.entity_type]):
                raise InvalidRequest(
                    f"{at}.entityType: this field has changes of {self.entity_type!r} only"
                )
            inside: dict[str, Any] = {"area": self.area.name}
            if self.entity_type is not None:
                inside["entityType"] = [self.entity_type]
            if tree is not None:
                if "where" in one:
                    raise InvalidRequest(
                        f"{at}.where: the field has where itself; give one of them"
                    )
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
    """Return what a subscription asks for.

    Args:
        arguments: By GraphQL name, as graphql-core coerces them.
        scope: What the field is about.
        bodies: Names of the bodies that its selection needs.
        tree: What the argument ``where`` says, in the JSON form; None: there is none.
        criteria_max: How many criteria it may have.

    Raises:
        InvalidRequest, Unsupported: Something in it has no meaning; named as the caller wrote it.
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
    """Return an argument as JSON has it: enums by name, inputs as objects, without what is null.

    A condition that is null is an exception: it stays, so that the reader of the request refuses it.
    """
    if isinstance(value, str):
        return value  # most values are keys, of which there may be 100,000
    if isinstance(value, Enum):
        return value.value
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
