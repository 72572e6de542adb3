"""The request of a subscriber: criteria (which captures), content (which bodies), start (from where).

Several criteria are OR; the fields of one are AND; the values of one field are any-of. A field that
is absent or empty asks for nothing in particular. No criteria at all = every record, entity level,
transaction leads included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from enum import Flag, IntEnum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from tailrace.conditions import Where, number_text, read_where
from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from tailrace.cursor import Cursor
    from tailrace.position import Position, TimestampMicros


class Area(IntEnum):
    """The kind of thing that a record is about."""

    SCHEMA = 1
    DATA = 2
    INFRASTRUCTURE = 3


class Operation(IntEnum):
    """The change of that thing. ``EXPIRE`` is a removal by time-to-live, never mixed up with ``REMOVE``."""

    UPSERT = 1
    REMOVE = 2
    TRANSACTION = 3
    EXPIRE = 4


class CaptureKind(IntEnum):
    """The kind of a capture."""

    CHANGE = 0
    """One change."""
    STATE = 1
    """The row that the change left: a part of the state that a subscription begins with."""
    LATEST = 2
    """The newest change of its key of those that were missed; older ones of the key did not come."""


class Transition(IntEnum):
    """How a change moved its row, as a condition on rows sees it."""

    ENTER = 1
    """It was not in, and is. Also if that is unknown because the source did not send the row before."""
    UPDATE = 2
    """It was in, and still is."""
    LEAVE = 3
    """It was in, and is not; also by a removal. Also if that is unknown."""
    UNKNOWN = 4
    """It may be in or not: a value that the condition needs is not known. Count it as out."""


class Initial(IntEnum):
    """The start of a subscription."""

    STATE = 1
    """The rows of its tables as of one version."""


class ContainerType(IntEnum):
    """The level that a capture speaks of: the catalog, a row, or a column by its declared role.

    Every record of area SCHEMA speaks of the catalog; of area DATA a record speaks of a row, and its
    column-level captures of a column each. So ``CATALOG`` with ``ENTITY`` is all changes of schema and data.
    """

    CATALOG = 1
    ENTITY = 2
    ATTRIBUTE = 3
    ASSOCIATED_DATA = 4
    PRICE = 5
    REFERENCE = 6


COLUMN_TYPES: Final = frozenset(
    {
        ContainerType.ATTRIBUTE,
        ContainerType.ASSOCIATED_DATA,
        ContainerType.PRICE,
        ContainerType.REFERENCE,
    }
)
"""The container types that name a column."""


class Content(Flag):
    """Which bodies a capture carries. ``HEADER`` is none of them, ``BODY`` all three."""

    HEADER = 0
    CHANGE = 1
    BEFORE = 2
    AFTER = 4
    BODY = 7


class CatchUp(IntEnum):
    """The catch-up policy of a subscription that begins behind the published version."""

    ALL = 1
    """Every capture: no gap, no repeat."""
    LATEST = 2
    """Of what it has missed the newest capture of each key, of the kind LATEST; then every capture."""


class OverrunPolicy(IntEnum):
    """The overrun policy of a slow subscription, once the server's ring has overtaken it."""

    RESYNC = 1
    """It is served from the log until it has caught up: no gap, no repeat."""
    LATEST = 2
    """It gets the newest capture of each key that it has missed, as ``CatchUp.LATEST``, and is live again."""
    DISCONNECT = 3
    """It ends with ``SubscriptionOverrun``, behind the captures that came, with the cursor that continues from
    there."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """One alternative of what a subscriber wants; its fields are AND, their values any-of.

    Values are sorted and made distinct, so that two spellings of one wish are equal and share one
    publisher.

    Raises:
        InvalidRequest: An empty name, or fields that contradict each other (a key of a transaction
        lead, say).
    """

    area: Area | None = None
    """None: every area."""
    entity_type: tuple[str, ...] = ()
    """Exact names, case and all; leads have none and never match a name."""
    primary_key: tuple[str, ...] = ()
    """Canonical key text. A truncate (null key) matches every key of its entity type."""
    operation: tuple[Operation, ...] = ()
    container_type: tuple[ContainerType, ...] = ()
    """Naming a column type, or ``container_name``, asks for column-level captures."""
    container_name: tuple[str, ...] = ()
    """Column names."""
    where: Where | None = None
    """A condition on the values of rows of exactly one entity type: SQL, as ``price > :least``, or a dict, as
    ``{"column": "price", "gt": 100}``, which is kept as a `ConditionTree`. Captures say how a change moved its
    row (``Capture.transition``). None: there is no condition on rows."""
    parameters: tuple[tuple[str, str], ...] | Mapping[str, object] = ()
    """Values of the condition's parameters, by name; kept as texts, sorted."""
    where_version: int | None = None
    """The version whose names of columns the condition has; None: the names are those of now. A program that
    saves a cursor saves ``Acknowledgement.where_version`` beside it."""

    def __post_init__(self) -> None:
        """Bring the values into canonical order and refuse contradictions."""
        for name in ("entity_type", "primary_key", "container_name"):
            _check_texts(name, getattr(self, name))
        _check_members("area", () if self.area is None else (self.area,), Area)
        _check_members("operation", self.operation, Operation)
        _check_members("container_type", self.container_type, ContainerType)
        for name in ("entity_type", "primary_key", "operation", "container_type", "container_name"):
            # Their order is kept where a set would mix it: what comes sorted is sorted at once.
            object.__setattr__(self, name, tuple(sorted(dict.fromkeys(getattr(self, name)))))
        object.__setattr__(self, "parameters", parameter_texts(self.parameters))
        for name in ("entity_type", "container_name"):
            if "" in getattr(self, name):
                raise InvalidRequest(
                    f"criteria.{name}: an empty name matches nothing; leave it out"
                )
        self._refuse_contradictions()
        self._refuse_unjudged()

    def named_at(self, version: int) -> Criteria:
        """Return these criteria; the names of a condition without ``where_version`` are those of a version."""
        is_open = self.where is not None and self.where_version is None
        return replace(self, where_version=version) if is_open else self

    def _refuse_unjudged(self) -> None:
        """Refuse a condition that judges no row, or rows of several tables."""
        if self.where is None:
            if self.parameters:
                raise InvalidRequest("criteria.where_parameter: it needs where")
            if self.where_version is not None:
                raise InvalidRequest("criteria.where_version: it needs where")
            return
        object.__setattr__(self, "where", read_where(self.where, "criteria.where"))
        if isinstance(self.where, str):
            _check_texts("where", (self.where,))
        if len(self.entity_type) != 1:
            raise InvalidRequest(
                "criteria.where: it has the columns of one table: name one entity_type, and write further "
                "criteria for others"
            )
        if self.area is Area.SCHEMA or self.container_type == (ContainerType.CATALOG,):
            raise InvalidRequest(
                "criteria.where: records of the schema are no rows; leave it out, or ask for area DATA"
            )

    def _refuse_contradictions(self) -> None:
        named = self.entity_type or self.primary_key or self.container_name
        schema_only = self.area is Area.SCHEMA or self.container_type == (ContainerType.CATALOG,)
        if self.area is Area.INFRASTRUCTURE and named:
            raise InvalidRequest(
                "criteria: area INFRASTRUCTURE holds transaction leads, which have no "
                "entity type, key or column; leave those fields out"
            )
        if self.operation == (Operation.TRANSACTION,):
            if named or self.container_type:
                raise InvalidRequest(
                    "criteria: operation TRANSACTION is a lead, which has no entity type, key, column "
                    "or container"
                )
            if self.area not in (None, Area.INFRASTRUCTURE):
                raise InvalidRequest(
                    f"criteria: operation TRANSACTION belongs to area INFRASTRUCTURE, not {self.area.name}"
                )
        if self.area is Area.INFRASTRUCTURE and self.operation not in (
            (),
            (Operation.TRANSACTION,),
        ):
            raise InvalidRequest(
                "criteria: area INFRASTRUCTURE has the operation TRANSACTION only, not "
                + ", ".join(operation.name for operation in self.operation)
            )
        if schema_only and self.primary_key:
            raise InvalidRequest("criteria: area SCHEMA has no primary keys; leave primary_key out")
        if self.area is Area.SCHEMA and self.container_name:
            raise InvalidRequest(
                "criteria: area SCHEMA has no captures of single columns; leave container_name out"
            )
        if self.area is Area.DATA and self.container_type == (ContainerType.CATALOG,):
            raise InvalidRequest(
                "criteria: container type CATALOG belongs to area SCHEMA, not DATA"
            )
        if (
            self.area is Area.SCHEMA
            and self.container_type
            and ContainerType.CATALOG not in self.container_type
        ):
            raise InvalidRequest(
                "criteria: area SCHEMA has container type CATALOG only, not "
                + ", ".join(kind.name for kind in self.container_type)
            )
        if self.area is Area.INFRASTRUCTURE and self.container_type:
            raise InvalidRequest(
                "criteria: area INFRASTRUCTURE has no containers; leave container_type out"
            )
        if self.area is Area.SCHEMA and self.operation == (Operation.EXPIRE,):
            raise InvalidRequest("criteria: operation EXPIRE is of rows, which area SCHEMA has not")
        if (
            self.operation
            and Operation.UPSERT not in self.operation
            and self.wants_columns
            and not {ContainerType.ENTITY, ContainerType.CATALOG}.intersection(self.container_type)
        ):
            raise InvalidRequest(
                "criteria: only an UPSERT has captures of single columns; ask for container type ENTITY with "
                + ", ".join(operation.name for operation in self.operation)
            )
        if self.container_name and self.container_type and not self.column_types:
            raise InvalidRequest(
                "criteria: container_name names columns, but container_type asks for none of "
                + ", ".join(sorted(kind.name for kind in COLUMN_TYPES))
            )

    @property
    def wants_columns(self) -> bool:
        """True if it asks for column-level captures."""
        return bool(self.container_name or self.column_types)

    @property
    def wants_entities(self) -> bool:
        """True if it asks for entity-level captures (ordinal 0)."""
        return not self.wants_columns or ContainerType.ENTITY in self.container_type

    @property
    def column_types(self) -> frozenset[ContainerType]:
        """The column roles that it names; empty with ``container_name`` means any role."""
        return COLUMN_TYPES.intersection(self.container_type)


def parameters_in(written: Iterable[str]) -> dict[str, str]:
    """Return the values of a condition's parameters by name, of texts such as ``least=100``.

    Raises:
        InvalidRequest: One is not written so, or is given twice.
    """
    found: dict[str, str] = {}
    for each in written:
        name, equals, value = each.partition("=")
        if not equals or name in found:
            raise InvalidRequest("where_parameter: write each once, as name=value")
        found[name] = value
    return found


def parameter_texts(parameters: object) -> tuple[tuple[str, str], ...]:
    """Return the values of a condition's parameters as texts, sorted by name.

    Raises:
        InvalidRequest: A name is none, or a value has no place in a condition.
    """
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    try:
        found = {name: parameter_text(value) for name, value in pairs}  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"criteria.parameters: {parameters!r}: write a dict of names and values"
        ) from None
    for name in found:
        if not isinstance(name, str) or not name or "=" in name:
            raise InvalidRequest(f"criteria.parameters: {name!r} is no name of a parameter")
    _check_texts("parameters", (each for pair in found.items() for each in pair))
    return tuple(sorted(found.items()))


def parameter_text(value: object) -> str:
    """Return a value as the text that a condition reads.

    Raises:
        InvalidRequest: It is None, which equals nothing, a number of too many digits, or no such value.
    """
    match value:
        case None:
            raise InvalidRequest("parameters: NULL equals nothing; ask IS NULL in the condition")
        case bool():
            return "true" if value else "false"
        case date() | time():
            return value.isoformat()
        case str() | UUID():
            return str(value)
        case int() | float() | Decimal():
            try:
                return number_text(value)
            except ValueError as error:
                raise InvalidRequest(f"parameters: {error}") from None
    raise InvalidRequest(
        f"parameters: {type(value).__name__} is no type of a parameter: give a number, a text, a day or time, "
        "a UUID, True or False; bytes as their text in base64"
    )


def _check_texts(name: str, values: Iterable[str]) -> None:
    """Refuse what would match something else than was meant, or could not be sent.

    Raises:
        InvalidRequest: One text where several are taken (each letter would count as a name), a
            value that is no text, or a text that UTF-8 cannot hold.
    """
    if isinstance(values, str):
        raise InvalidRequest(f"criteria.{name}: {values!r} is one text; write ({values!r},)")
    try:
        "".join(values).encode()
    except TypeError as error:
        raise InvalidRequest(
            f"criteria.{name}: must be a tuple of texts; {_no_text(values)}"
        ) from error
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"criteria.{name}: not UTF-8: {error}") from error


def _no_text(values: object) -> str:
    if not isinstance(values, Iterable):
        return f"it is {type(values).__name__}"
    return f"{next((type(each).__name__ for each in values if not isinstance(each, str)), '')} is in it"


def _check_members(name: str, values: Iterable[IntEnum], kind: type[IntEnum]) -> None:
    """Refuse what is not a tuple of an enum's members.

    Raises:
        InvalidRequest: It is not.
    """
    if not isinstance(values, Iterable):
        raise InvalidRequest(f"criteria.{name}: {values!r} is one value; write a tuple of it")
    wrong = [value for value in values if not isinstance(value, kind)]
    if wrong:
        raise InvalidRequest(
            f"criteria.{name}: must be members of {kind.__name__}, not {wrong[0]!r}"
        )


def canonical(criteria: Iterable[Criteria]) -> tuple[Criteria, ...]:
    """Return the alternatives distinct and in a fixed order: the identity of a shared publisher.

    An alternative without any field asks for every record, entity level; the list without any
    alternative means the same, so both give ``(Criteria(),)``.
    """
    distinct = set(criteria)
    # The text of one with 100,000 keys takes milliseconds, and most requests have one criteria.
    ordered = sorted(distinct, key=repr) if len(distinct) > 1 else distinct
    return tuple(ordered) or (Criteria(),)


@dataclass(frozen=True, slots=True)
class Since:
    """Start at a position, inclusive. Version 0 is the oldest retained position and never raises."""

    position: Position


@dataclass(frozen=True, slots=True)
class After:
    """Start strictly after a cursor, also in the middle of a record."""

    cursor: Cursor
    from_time: TimestampMicros | None = None
    """And not before the first version committed at or after it, for a start by ``FromTime`` that is
    resumed."""


@dataclass(frozen=True, slots=True)
class FromTime:
    """Start at the first version whose commit timestamp is at or after a time."""

    timestamp: TimestampMicros


Start = Since | After | FromTime
"""The start of a subscription; None = the first version after the one published at acceptance."""


@dataclass(frozen=True, slots=True)
class FromState:
    """Start with the rows of the criteria's tables as of one version; continue with the changes behind."""

    after: Cursor | None = None
    """Go on strictly after it, in the state or behind it; None: with the state as of now."""


Beginning = Start | FromState
"""The beginning of a subscription: a start, or a state; None as of ``Start``."""
