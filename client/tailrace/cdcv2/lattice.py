"""The two kinds of time: integers, which are totally ordered, and tuples of them, which are partially ordered.

A set of times is written as an antichain, which is a tuple of incomparable times. It means all times at or
after one of them. The empty antichain means the empty set.
"""

from __future__ import annotations

from operator import le
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tailrace.cdcv2.errors import InvalidStatement

if TYPE_CHECKING:
    from collections.abc import Iterable


T = TypeVar("T")

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
"""A parsed JSON value."""

TIME_MAX: Final = 2**63 - 1
"""The largest coordinate of a time; times are non-negative Avro longs."""


class Lattice(Protocol[T]):
    """A kind of time: its order, and its JSON form."""

    @property
    def name(self) -> str:
        """Name of this kind of time in saved state."""

    @property
    def minimum(self) -> T:
        """The earliest time, which is at or before every other."""

    def less_equal(self, a: T, b: T) -> bool:
        """Return True if ``a`` is at or before ``b``."""

    def join(self, a: T, b: T) -> T:
        """Return the earliest time at or after both."""

    def order(self, time: T) -> tuple[int, ...] | int:
        """Return a sort key that agrees with the order: a time before another one sorts before it."""

    def check(self, time: object) -> T:
        """Return ``time`` after checking that it is a time of this kind.

        Raises:
            InvalidStatement: ``time`` has another type, is negative, or exceeds 64 bits.
        """

    def to_json(self, time: T) -> JsonValue:
        """Return the JSON form of a time."""

    def from_json(self, value: JsonValue) -> T:
        """Return the time of a JSON form.

        Raises:
            InvalidStatement: The value is not a time of this kind.
        """


class Integers:
    """Integers from 0 to 2**63 - 1 as times, totally ordered. The documented Avro schema has these times."""

    name: Final = "integers"
    minimum: Final = 0

    def less_equal(self, a: int, b: int) -> bool:
        """Return True if ``a`` is at or before ``b``."""
        return a <= b

    def join(self, a: int, b: int) -> int:
        """Return the later time."""
        return max(a, b)

    def order(self, time: int) -> int:
        """Return the time itself."""
        return time

    def check(self, time: object) -> int:
        """Return ``time`` after checking that it is an integer in range."""
        if type(time) is int and 0 <= time <= TIME_MAX:
            return time
        raise _no_coordinate(time)

    def to_json(self, time: int) -> JsonValue:
        """Return the number."""
        return time

    def from_json(self, value: JsonValue) -> int:
        """Return the number, checked."""
        return self.check(value)


class Product:
    """Tuples of integers as times. A time is at or before another if each of its coordinates is.

    The sort order is that of tuples: by the first coordinate, then by the next.
    """

    def __init__(self, arity: int) -> None:
        if arity < 1:
            raise ValueError(f"a product of {arity} coordinates has no times; give at least 1")
        self.arity = arity
        self.name = f"product({arity})"
        self.minimum: tuple[int, ...] = (0,) * arity

    def less_equal(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        """Return True if ``a`` is at or before ``b`` in every coordinate."""
        return all(map(le, a, b))

    def join(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        """Return the later of each coordinate."""
        return tuple(map(max, a, b))

    def order(self, time: tuple[int, ...]) -> tuple[int, ...]:
        """Return the time itself."""
        return time

    def check(self, time: object) -> tuple[int, ...]:
        """Return ``time`` after checking that it is a tuple of ``arity`` integers in range."""
        if not isinstance(time, tuple) or len(time) != self.arity:
            raise InvalidStatement(f"time {time!r} is not a tuple of {self.arity} integers")
        for coordinate in time:
            if type(coordinate) is not int or not 0 <= coordinate <= TIME_MAX:
                raise _no_coordinate(coordinate)
        return time

    def to_json(self, time: tuple[int, ...]) -> JsonValue:
        """Return the list of coordinates."""
        return list(time)

    def from_json(self, value: JsonValue) -> tuple[int, ...]:
        """Return the time of a list of coordinates, checked."""
        return self.check(tuple(value) if isinstance(value, list) else value)


INTEGERS: Final = Integers()
"""The kind of time of the documented Avro schema."""


def product(arity: int) -> Product:
    """Return the lattice of tuples of ``arity`` integers, at least one."""
    return Product(arity)


def antichain(lattice: Lattice[T], times: Iterable[T]) -> tuple[T, ...]:
    """Return the minimal elements of a set of times, without duplicates, sorted by `Lattice.order`."""
    ordered = sorted(times, key=lattice.order)
    if len(ordered) < 2:
        return tuple(ordered)
    least: list[T] = []
    less_equal = lattice.less_equal
    # A time that is before another sorts before it, so comparing with those kept so far is enough.
    for time in ordered:
        if not any(less_equal(kept, time) for kept in least):
            least.append(time)
    return tuple(least)


def reaches(lattice: Lattice[T], bound: tuple[T, ...], time: T) -> bool:
    """Return True if ``time`` is at or after some element of ``bound``."""
    less_equal = lattice.less_equal
    for element in bound:  # noqa: SIM110 - `any` takes three times as long, and this is the hottest call
        if less_equal(element, time):
            return True
    return False


def _no_coordinate(value: object) -> InvalidStatement:
    if type(value) is not int:
        return InvalidStatement(f"time {value!r} is not an integer")
    return InvalidStatement(f"time {value} is outside 0 to {TIME_MAX}")
