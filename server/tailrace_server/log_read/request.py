"""The request of a read, and its form as options that are texts, as Spark passes them.

========================================  ==============================================================
option (case is ignored)
========================================  ==============================================================
``log`` and ``catalog``, or ``path``      place of the log
``entityType``                            the table; not for ``captures``, unless one table is wanted
``shape``                                 ``changes`` (default), ``state`` or ``captures``
``columns``                               names separated by commas, or a JSON array of names
``startingVersion``, ``endingVersion``    first and last version of a range, both inclusive
``startingTimestamp``,                    commit times, ISO 8601, UTC unless they have a zone, both inclusive
``endingTimestamp``
``startingCursor``, ``endingCursor``      a position that a read or a subscription returned: the range
                                          begins after it, or ends with it
``version``, ``timestamp``                the version or time of a ``state``; by default the newest version
``where``                                 a condition on rows, in the condition language
``deduplicationMode``                     ``none`` (default), ``netChanges``
``computeUpdates``                        ``true``, ``false``
``misfits``                               ``refuse`` (default), ``null``
``rowsPerPart``                           about the number of records in a part
``schemaVersion``                         the version whose schema gives the columns
``server``, ``token``                     address and token of a server to read through, in place of ``log``
``tls``, ``tlsCa``, ``tlsCertificate``,   TLS to the server: ``true``, or files in PEM, as for `tailrace.Tls`
``tlsKey``
========================================  ==============================================================
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace.cursor import Cursor, StateCursor
from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace.tls import Tls
from tailrace_server.typed.misfits import OnMisfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Bound = int | datetime | Cursor
"""A bound of a range: a version, a commit time with a zone, or a cursor."""

CHANGE_TYPES: Final = ("insert", "update_preimage", "update_postimage", "delete")
"""The values of ``_change_type``, as in Delta's change data feed."""

_E = TypeVar("_E", bound=Enum)


class Shape(Enum):
    """The form of the rows of a read."""

    CHANGES = "changes"
    """One row for each insert and delete, and two for an update; typed columns."""
    STATE = "state"
    """The rows of the table as of a version; typed columns."""
    CAPTURES = "captures"
    """The records of the log as they are, of all entity types; images are JSON."""


class Deduplication(Enum):
    """The treatment of several changes of one key in a range."""

    NONE = "none"
    """Every change is returned."""
    NET_CHANGES = "netChanges"
    """At most one net change of each key is returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A read of one catalog. It is not checked against the log: `plan` does that."""

    log: Path | None = None
    """The log root; None: the read goes through ``server``."""
    catalog: str
    entity_type: str | None = None
    """The table; None: all entity types, for captures only."""
    shape: Shape = Shape.CHANGES
    columns: tuple[str, ...] | None = None
    """Names of the columns of the result, in its order; None: all."""
    starting: Bound | None = None
    """The first version or time of a range, inclusive, or the cursor before it; None: the oldest retained."""
    ending: Bound | None = None
    """The last version or time of a range, or the cursor with which it ends, inclusive; None: the newest."""
    at: int | datetime | None = None
    """The version or time of a state; None: the newest version."""
    where: str | None = None
    """A condition on rows. An update into it becomes an insert, and out of it a delete."""
    deduplication: Deduplication = Deduplication.NONE
    compute_updates: bool = False
    """True: a net change of an existing row is an update; False: a delete and an insert, as in Spark."""
    on_misfit: OnMisfit = OnMisfit.RAISE
    keys: tuple[str, ...] | None = None
    """The only primary keys to return, as texts; None: all. For filters that a caller pushes down."""
    change_types: frozenset[str] | None = None
    """The only change types to return; None: all. For filters that a caller pushes down."""
    schema_version: int | None = None
    """The version whose schema gives the columns; None: the newest, or for a state its own version."""
    rows_per_part: int = 200_000
    """About the number of records in a part."""
    server: str | None = None
    """Address of a server to read through; None: the log's files are read."""
    token: str | None = field(default=None, repr=False)
    """The caller's token for the server; never printed."""
    tls: Tls | None = None
    """TLS to the server; None: plain text, unless the address selects TLS."""

    def __post_init__(self) -> None:
        """Check what needs no log.

        Raises:
            InvalidRequest: Parts of the request contradict each other.
        """
        if (self.log is None) == (self.server is None):
            raise InvalidRequest(
                "give log or server: the folder of the log, or a server to read through"
            )
        if self.server is None and (self.token is not None or self.tls is not None):
            raise InvalidRequest(
                "token and tls belong to server, the address of a server to read through"
            )
        is_state = self.shape is Shape.STATE
        if not self.entity_type and self.shape is not Shape.CAPTURES:
            raise InvalidRequest(
                f"a read of {self.shape.value} needs entityType: the name of one table; the shape captures "
                "reads all"
            )
        if is_state and (self.starting is not None or self.ending is not None):
            raise InvalidRequest(
                "a state has no range: give version or timestamp, or read the shape changes"
            )
        if not is_state and self.at is not None:
            raise InvalidRequest(
                f"version and timestamp belong to the shape state: give the range of {self.shape.value} by "
                "startingVersion and endingVersion, or by timestamps"
            )
        if self.shape is not Shape.CHANGES and self.deduplication is not Deduplication.NONE:
            raise InvalidRequest("deduplicationMode belongs to the shape changes")
        if self.shape is Shape.CAPTURES and self.where is not None:
            raise InvalidRequest(
                "where belongs to the shapes changes and state: captures have no typed columns"
            )
        if self.columns is not None and not self.columns:
            raise InvalidRequest("columns is empty: name at least one column, or leave columns out")
        if self.rows_per_part < 1:
            raise InvalidRequest(f"rowsPerPart {self.rows_per_part}: give at least 1")
        for name, bound in (("starting", self.starting), ("ending", self.ending)):
            _refuse_state_cursor(name, bound)
        _refuse_reversed(self.starting, self.ending)
        unknown = sorted((self.change_types or frozenset()) - {*CHANGE_TYPES})
        if unknown:
            raise InvalidRequest(
                f"change type {unknown[0]!r} is unknown{nearest(unknown[0], CHANGE_TYPES)}"
            )

    @classmethod
    def of(cls, options: Mapping[str, str], also: Iterable[str] = ()) -> ReadRequest:
        """Return the request that options describe; the module's table lists the options.

        Args:
            options: Name → value; case in names is ignored.
            also: Names of further options, which the caller reads itself.

        Raises:
            InvalidRequest: An option is unknown, malformed or contradicts another.
        """
        return cls(**_fields_of(options, tuple(also)))


def _fields_of(options: Mapping[str, str], also: tuple[str, ...]) -> dict[str, Any]:
    known = {name.lower(): name for name in (*_OPTIONS, "path", *also)}
    given: dict[str, str] = {}
    for written, value in options.items():
        name = known.get(written.lower())
        if name is None:
            raise InvalidRequest(f"option {written!r} is unknown{nearest(written, known.values())}")
        if name in given:
            raise InvalidRequest(f"option {name} is given twice, with names that differ by case")
        given[name] = value
    if "path" in given:
        if "log" in given or "catalog" in given:
            raise InvalidRequest(
                "give either path, which ends with the catalog, or log and catalog"
            )
        path = Path(given.pop("path"))
        given |= {"log": str(path.parent), "catalog": path.name}
    for name in ("catalog", *(() if "server" in given else ("log",))):
        if not given.get(name):
            raise InvalidRequest(
                f"option {name} is missing: give log and catalog, or path, or server and catalog"
            )
    fields: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, (field_name, parsed) in _OPTIONS.items():
        if name not in given:
            continue
        if field_name in sources:
            raise InvalidRequest(f"options {sources[field_name]} and {name} exclude each other")
        sources[field_name] = name
        try:
            fields[field_name] = parsed(given[name])
        except InvalidRequest:
            raise
        except ValueError as error:
            raise InvalidRequest(f"option {name}: {given[name]!r} is {error}") from None
    files = {name: fields.pop(f"tls_{name}", None) for name in ("ca", "certificate", "key")}
    if fields.pop("tls", False) or any(files.values()):
        fields["tls"] = Tls(**files)
    return fields


def _version(text: str) -> int:
    if re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII) is None:
        raise ValueError("not a version: give a whole number")
    return int(text)


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            "not a time: write it as 2026-05-04T10:30:00Z; without a zone it is UTC"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _names(text: str) -> tuple[str, ...]:
    if text.lstrip()[:1] != "[":
        return tuple(each.strip() for each in text.split(",") if each.strip())
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ValueError("not a list of names: write names with commas, or a JSON array of texts")
    return tuple(names)


def _flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text.strip().lower() == "true"


def _count(text: str) -> int:
    if re.fullmatch(r"[1-9]\d{0,17}", text.strip(), re.ASCII) is None:
        raise ValueError("not a count: give a whole number above zero")
    return int(text)


def _one_of(kind: type[_E]) -> Callable[[str], _E]:
    """Return a function that reads a member of an enum by its value; case is ignored."""

    def read(text: str) -> _E:
        values = [str(each.value) for each in kind]
        for each in kind:
            if str(each.value).lower() == text.strip().lower():
                return each
        raise ValueError(f"unknown{nearest(text, values)}")

    return read


_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "log": ("log", Path),
    "catalog": ("catalog", str),
    "entityType": ("entity_type", lambda text: text or None),
    "shape": ("shape", _one_of(Shape)),
    "columns": ("columns", _names),
    "startingVersion": ("starting", _version),
    "startingTimestamp": ("starting", _time),
    "startingCursor": ("starting", Cursor.parse),
    "endingVersion": ("ending", _version),
    "endingTimestamp": ("ending", _time),
    "endingCursor": ("ending", Cursor.parse),
    "version": ("at", _version),
    "timestamp": ("at", _time),
    "where": ("where", str),
    "deduplicationMode": ("deduplication", _one_of(Deduplication)),
    "computeUpdates": ("compute_updates", _flag),
    "misfits": ("on_misfit", _one_of(OnMisfit)),
    "rowsPerPart": ("rows_per_part", _count),
    "schemaVersion": ("schema_version", _version),
    "server": ("server", str),
    "token": ("token", str),
    "tls": ("tls", _flag),
    "tlsCa": ("tls_ca", str),
    "tlsCertificate": ("tls_certificate", str),
    "tlsKey": ("tls_key", str),
}
"""Option → the field of the request that it gives, and the function that reads its text."""


def _refuse_state_cursor(name: str, bound: Bound | None) -> None:
    if isinstance(bound, StateCursor):
        raise InvalidRequest(
            f"{name}Cursor: this cursor is inside the initial state of a subscription, and a read would skip "
            "the rest of that state; use a cursor of a change"
        )


def _refuse_reversed(starting: Bound | None, ending: Bound | None) -> None:
    first, last = starting, ending
    if isinstance(first, Cursor):
        first, last = first.version, last.version if isinstance(last, Cursor) else last
    comparable = (isinstance(first, int) and isinstance(last, int)) or (
        isinstance(first, datetime) and isinstance(last, datetime)
    )
    if comparable and first > last:  # type: ignore[operator]
        raise InvalidRequest(
            f"the start {first} is after the end {last}: give the earlier bound first"
        )
