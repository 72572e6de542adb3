"""The request of a subscriber: criteria (which captures), content (which bodies), start (from where).

Several criteria are combined by OR, the fields of one criteria by AND, and a field matches if any of its values
does. A field that is absent or empty matches everything. An empty list of criteria matches every record at
entity level, lead records included.
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
    """The kind of change. ``EXPIRE`` is a removal by time to live; ``REMOVE`` does not include it."""

    UPSERT = 1
    REMOVE = 2
    TRANSACTION = 3
    EXPIRE = 4


class CaptureKind(IntEnum):
    """The kind of a capture."""

    CHANGE = 0
    """One change."""
    STATE = 1
    """A row of the initial state of a subscription, as its last change left it."""
    LATEST = 2
    """The newest of the missed changes of a key; the older missed changes of that key are not delivered."""


class Transition(IntEnum):
    """How a change moved a row into or out of the set of rows that meet a condition."""

    ENTER = 1
    """The row meets the condition, and did not before the change. Also if the source sent no before-image, so
    that this is unknown."""
    UPDATE = 2
    """The row met the condition before the change, and still does."""
    LEAVE = 3
    """The row met the condition before the change, and does not any more, or was removed. Also if it is unknown
    whether it met the condition before."""
    UNKNOWN = 4
    """It is unknown whether the row meets the condition, since a value that the condition needs is unknown.
    Treat the row as one that does not."""


class Initial(IntEnum):
    """The content that a subscription delivers before the changes."""

    STATE = 1
    """The rows of the tables in its criteria, as of one version."""


class ContainerType(IntEnum):
    """The level of a capture: the catalog, a row, or a column by its declared role.

    A record of area SCHEMA is at the level of the catalog. A record of area DATA is at the level of a row, and
    its column-level captures at the level of a column. So ``CATALOG`` with ``ENTITY`` selects all changes of
    schema and data.
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
"""The container types at the level of a column."""


class Content(Flag):
    """The bodies that a capture carries. ``HEADER`` selects none of them, ``BODY`` all three."""

    HEADER = 0
    CHANGE = 1
    BEFORE = 2
    AFTER = 4
    BODY = 7


class CatchUp(IntEnum):
    """The captures that a subscription gets of the versions published before it began."""

    ALL = 1
    """Every capture: no gap, no repeat."""
    LATEST = 2
    """The newest missed capture of each key, of the kind LATEST; after them every new capture."""


class OverrunPolicy(IntEnum):
    """The server's reaction when its ring drops captures that a slow subscription has not received."""

    RESYNC = 1
    """The server delivers from the log until the subscription has caught up: no gap, no repeat."""
    LATEST = 2
    """The server delivers the newest missed capture of each key, as for ``CatchUp.LATEST``, then continues
    live."""
    DISCONNECT = 3
    """The server ends the subscription with ``SubscriptionOverrun``. The error has the cursor after the last
    capture sent, from which a new subscription can resume."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """A filter on captures. All fields must match; a field matches if any of its values does.

    Values are sorted and made distinct, so that equivalent criteria are equal and share one publisher.

    Raises:
        InvalidRequest: A name is empty, or fields contradict each other, such as a primary key together with
            the operation ``TRANSACTION``.
    """

    area: Area | None = None
    """Area of the record; None: every area."""
    entity_type: tuple[str, ...] = ()
    """Exact, case-sensitive names of entity types. Lead records have no entity type, so no name matches
    them."""
    primary_key: tuple[str, ...] = ()
    """Canonical key texts. A truncate (null key) matches every key of its entity type."""
    operation: tuple[Operation, ...] = ()
    container_type: tuple[ContainerType, ...] = ()
    """Levels of captures. A column type here, or a ``container_name``, requests column-level captures."""
    container_name: tuple[str, ...] = ()
    """Column names."""
    where: Where | None = None
    """Condition on the values of the rows of exactly one entity type; None: no condition.

    It is SQL, such as ``price > :least``, or a dict, such as ``{"column": "price", "gt": 100}``, which is
    stored as a `ConditionTree`. ``Capture.transition`` says how a change moved its row in respect of the
    condition.
    """
    parameters: tuple[tuple[str, str], ...] | Mapping[str, object] = ()
    """Values of the condition's parameters, by name; stored as texts, sorted by name."""
    where_version: int | None = None
    """Version by whose column names the condition is read; None: the current names.

    A program that saves a cursor should save ``Acknowledgement.where_version`` with it.
    """

    def __post_init__(self) -> None:
        """Bring the values into canonical order and refuse contradictions.

        Raises:
            InvalidRequest: A value has a wrong type, or the criteria could never match.
        """
        # Check types before anything sorts or compares the values: errors must name the field.
        for name in ("entity_type", "primary_key", "container_name"):
            _check_texts(name, getattr(self, name))
        _check_members("area", () if self.area is None else (self.area,), Area)
        _check_members("operation", self.operation, Operation)
        _check_members("container_type", self.container_type, ContainerType)
        for name in ("entity_type", "primary_key", "operation", "container_type", "container_name"):
            # `dict.fromkeys` keeps the order of the values, a set would mix it: sorting sorted values is cheap.
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
        """Return these criteria with ``where_version`` set, if they have a condition without one."""
        is_open = self.where is not None and self.where_version is None
        return replace(self, where_version=version) if is_open else self

    def _refuse_unjudged(self) -> None:
        """Refuse a condition that is not about the rows of exactly one table."""
        if self.where is None:
            if self.parameters:
                raise InvalidRequest("criteria.where_parameter: needs where")
            if self.where_version is not None:
                raise InvalidRequest("criteria.where_version: needs where")
            return
        object.__setattr__(self, "where", read_where(self.where, "criteria.where"))
        if isinstance(self.where, str):
            _check_texts("where", (self.where,))
        if len(self.entity_type) != 1:
            raise InvalidRequest(
                "criteria.where: a condition is on the columns of one table: give one "
                "entity_type, and write more criteria for other tables"
            )
        if self.area is Area.SCHEMA or self.container_type == (ContainerType.CATALOG,):
            raise InvalidRequest(
                "criteria.where: records of area SCHEMA have no rows to test; leave where out, "
                "or use area DATA"
            )

    def _refuse_contradictions(self) -> None:
        """Refuse criteria that could never match, which is better than a subscription that stays silent.

        Raises:
            InvalidRequest: Two fields contradict each other; the error names both.
        """
        named = self.entity_type or self.primary_key or self.container_name
        schema_only = self.area is Area.SCHEMA or self.container_type == (ContainerType.CATALOG,)
        # 1. Area INFRASTRUCTURE and operation TRANSACTION mean lead records, which have no names and
        # containers.
        if self.area is Area.INFRASTRUCTURE and named:
            raise InvalidRequest(
                "criteria: area INFRASTRUCTURE has only leads of transactions, which have no "
                "entity type, key or column; leave those fields out"
            )
        if self.operation == (Operation.TRANSACTION,):
            if named or self.container_type:
                raise InvalidRequest(
                    "criteria: operation TRANSACTION selects leads, which have no entity type, "
                    "key, column or container; leave those fields out"
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
                "criteria: area INFRASTRUCTURE has only the operation TRANSACTION, not "
                + ", ".join(operation.name for operation in self.operation)
            )
        # 2. Records of area SCHEMA are about a catalog's columns, not about rows.
        if schema_only and self.primary_key:
            raise InvalidRequest("criteria: area SCHEMA has no primary keys; leave primary_key out")
        if self.area is Area.SCHEMA and self.container_name:
            raise InvalidRequest(
                "criteria: area SCHEMA has no captures of single columns; leave container_name out"
            )
        if self.area is Area.DATA and self.container_type == (ContainerType.CATALOG,):
            raise InvalidRequest("criteria: container type CATALOG is of area SCHEMA, not DATA")
        if (
            self.area is Area.SCHEMA
            and self.container_type
            and ContainerType.CATALOG not in self.container_type
        ):
            raise InvalidRequest(
                "criteria: area SCHEMA has only the container type CATALOG, not "
                + ", ".join(kind.name for kind in self.container_type)
            )
        if self.area is Area.INFRASTRUCTURE and self.container_type:
            raise InvalidRequest(
                "criteria: area INFRASTRUCTURE has no containers; leave container_type out"
            )
        if self.area is Area.SCHEMA and self.operation == (Operation.EXPIRE,):
            raise InvalidRequest(
                "criteria: operation EXPIRE applies to rows, which area SCHEMA does not have"
            )
        # 3. Column-level captures exist only for upserts, and only with a column type or a column name.
        if (
            self.operation
            and Operation.UPSERT not in self.operation
            and self.wants_columns
            and not {ContainerType.ENTITY, ContainerType.CATALOG}.intersection(self.container_type)
        ):
            raise InvalidRequest(
                (
                    "criteria: only an UPSERT has captures of single columns; use container type "
                    "ENTITY with "
                )
                + ", ".join(operation.name for operation in self.operation)
            )
        if self.container_name and self.container_type and not self.column_types:
            raise InvalidRequest(
                (
                    "criteria: container_name selects columns, but container_type does not include "
                    "any of "
                )
                + ", ".join(sorted(kind.name for kind in COLUMN_TYPES))
            )

    @property
    def wants_columns(self) -> bool:
        """True if the criteria request column-level captures."""
        return bool(self.container_name or self.column_types)

    @property
    def wants_entities(self) -> bool:
        """True if the criteria request entity-level captures (ordinal 0)."""
        return not self.wants_columns or ContainerType.ENTITY in self.container_type

    @property
    def column_types(self) -> frozenset[ContainerType]:
        """The column roles in ``container_type``; empty together with a ``container_name`` means any role."""
        return COLUMN_TYPES.intersection(self.container_type)


def parameters_in(written: Iterable[str]) -> dict[str, str]:
    """Parse texts such as ``least=100`` into parameter values by name.

    Raises:
        InvalidRequest: A text has no ``=``, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for each in written:
        name, equals, value = each.partition("=")
        if not equals or name in found:
            raise InvalidRequest("where_parameter: write each parameter once, as name=value")
        found[name] = value
    return found


def parameter_texts(parameters: object) -> tuple[tuple[str, str], ...]:
    """Return the names and values of a condition's parameters as texts, sorted by name.

    Raises:
        InvalidRequest: A name is invalid, or a value has a type that conditions do not support.
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
            raise InvalidRequest(
                f"criteria.parameters: {name!r} is not a valid name of a parameter"
            )
    _check_texts("parameters", (each for pair in found.items() for each in pair))
    return tuple(sorted(found.items()))


def parameter_text(value: object) -> str:
    """Return a parameter's value as the text that conditions use.

    Raises:
        InvalidRequest: The value is None, which equals nothing in SQL, a number of too many digits, or of an
            unsupported type.
    """
    match value:
        case None:
            raise InvalidRequest(
                "parameters: NULL is equal to no value; write IS NULL in the condition"
            )
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
        f"parameters: {type(value).__name__} is not a type of a parameter: give a number, a text, "
        "a day or time, a UUID, True or False; give bytes as base64 text"
    )


def _check_texts(name: str, values: Iterable[str]) -> None:
    """Refuse names that would match something else than intended, or cannot be sent.

    Raises:
        InvalidRequest: ``values`` is a single text (each letter would be taken for a name), contains a value
            that is not a text, or contains a text that cannot be encoded as UTF-8.
    """
    if isinstance(values, str):
        raise InvalidRequest(f"criteria.{name}: {values!r} is a single text; write ({values!r},)")
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
    """Check that values are members of an enum.

    Raises:
        InvalidRequest: ``values`` is a single value, or contains one that is not a member of ``kind``.
    """
    if not isinstance(values, Iterable):
        raise InvalidRequest(f"criteria.{name}: {values!r} is a single value; write a tuple")
    wrong = [value for value in values if not isinstance(value, kind)]
    if wrong:
        raise InvalidRequest(
            f"criteria.{name}: must be members of {kind.__name__}, not {wrong[0]!r}"
        )


def canonical(criteria: Iterable[Criteria]) -> tuple[Criteria, ...]:
    """Return criteria without duplicates and in a fixed order, as the identity of a shared publisher.

    Criteria without any field match every record at entity level, and so does an empty list. Both give
    ``(Criteria(),)``.
    """
    distinct = set(criteria)
    # Skip the sort of a single criteria: its `repr` takes milliseconds if it has 100,000 keys.
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
    """Lower bound of the commit time, for a start by ``FromTime`` that is resumed. The later of cursor and time
    applies."""


@dataclass(frozen=True, slots=True)
class FromTime:
    """Start at the first version whose commit timestamp is at or after a time."""

    timestamp: TimestampMicros


Start = Since | After | FromTime
"""The start of a subscription; None = after the version that is published when the server accepts it."""


@dataclass(frozen=True, slots=True)
class FromState:
    """Start with the rows of the criteria's tables as of one version; continue with the changes after it."""

    after: Cursor | None = None
    """Cursor to resume strictly after, in the state or in the changes after it; None: the current state."""


Beginning = Start | FromState
"""The beginning of a subscription: a start, or an initial state. None has the same meaning as for ``Start``."""
