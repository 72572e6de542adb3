"""Options that commands share, in groups: the server, the filter, the start, the form of the output.

This module does not need Typer, since ``watch`` and ``changes`` also run if only the client is installed.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace.criteria import (
    Area,
    CatchUp,
    Content,
    Criteria,
    Initial,
    Operation,
    OverrunPolicy,
    parameters_in,
)
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.position import Position, TimestampMicros, position_in
from tailrace.tls import Tls
from tailrace.transport.target import Target
from tailrace_server.cli.terminal.times import time_of, version_or_time
from tailrace_server.option_fields import (
    FLAG,
    TIME,
    OptionForm,
    argument,
    choice,
    option,
    text,
    texts,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.client import Client
    from tailrace.transport.token import TokenSource

_Named = TypeVar("_Named", bound=IntEnum)

DEFAULT_SERVER: Final = "127.0.0.1:7411"
FORM: Final = "Form of the output"
_FILTER: Final = "Which changes (fields are AND, repeated values any-of)"
_START: Final = "Where to begin"
_TLS: Final = "TLS to the server (https:// turns it on as well)"
_TOKEN_VARIABLE: Final = "TAILRACE_TOKEN"
_TOKEN_BYTES_MAX: Final = 64 << 10


def _member(kind: type[_Named], flag: str, name: str) -> _Named:
    """Return the member of an enum with a name, ignoring case."""
    try:
        return kind[name.strip().upper()]
    except KeyError:
        names = ", ".join(each.name.lower() for each in kind)
        here = _ELSEWHERE.get(name.strip().lower())
        hint = f" (here it is called {here})" if here is not None else ""
        raise InvalidRequest(f"{flag} {name!r}: choose from {names}{hint}") from None


_ELSEWHERE: Final = {"insert": "upsert", "update": "upsert", "delete": "remove", "ddl": "schema"}
"""Names of operations and areas in other systems."""


def _member_of(kind: type[IntEnum], metavar: str) -> OptionForm:
    return OptionForm(kind=str, parse=partial(_member, kind), metavar=metavar)


def _operations(flag: str, given: Sequence[str] | None) -> tuple[Operation, ...]:
    return tuple(_member(Operation, flag, each) for each in given or ())


def _position(flag: str, given: str) -> Position:
    found = position_in(given)
    if found is None:
        raise InvalidRequest(
            f"{flag} {given!r}: not a position; write VERSION or VERSION:INDEX, such as 41:3"
        )
    return found


def _since(flag: str, given: str) -> Position:
    position = _position(flag, given)
    if position.index and not position.version:
        raise InvalidRequest(
            f"{flag} {given}: version 0 means the oldest retained version and has no index; write "
            "0 alone, or a version from 1 with an index, such as 41:3"
        )
    return position


def _until(flag: str, given: str) -> Position | int:
    """Return the upper bound in an option: a position, or a version, which includes all of its records."""
    position = _position(flag, given)
    return position if ":" in given else position.version


def _time(flag: str, given: str) -> TimestampMicros:
    return time_of(given, flag)


def _parameters(flag: str, given: Sequence[str] | None) -> Mapping[str, str]:
    try:
        return parameters_in(given or ())
    except InvalidRequest:
        raise InvalidRequest(
            f"{flag} {given!r}: write each parameter once, as NAME=VALUE"
        ) from None


_BODIES: Final = {
    "change": Content.CHANGE,
    "before": Content.BEFORE,
    "after": Content.AFTER,
    "all": Content.BODY,
    "none": Content.HEADER,
}


def _content(flag: str, given: str) -> Content:
    content = Content.HEADER
    for name in filter(None, (each.strip() for each in given.split(","))):
        if name not in _BODIES:
            raise InvalidRequest(f"{flag} {name!r}: choose from {', '.join(_BODIES)}")
        content |= _BODIES[name]
    return content


UNTIL: Final = OptionForm(kind=str, parse=_until, metavar="V[:INDEX]")
CURSOR: Final = OptionForm(kind=str, parse=lambda _, given: Cursor.parse(given), metavar="CURSOR")
VERSION_OR_TIME: Final = OptionForm(
    kind=str, parse=lambda flag, given: version_or_time(given, flag), metavar="V|T"
)
MOMENT: Final = OptionForm(kind=str, parse=_time, metavar="T")
PARAMETERS: Final = OptionForm(kind=list[str], parse=_parameters, metavar="NAME=VALUE")
DECODED: Final = choice("raw", "decoded", "raw|decoded")
"""Forms that several options share: the end of a range, cursors, times, parameters, and ``--values``."""

AS_JSON: Final = ("--json", "Print one flat JSON object a line, flushed.", FLAG, False)


def wait_for_option(panel: str) -> Any:
    """Return the option field of the version that a read waits for."""
    return option(
        "--wait-for",
        "Wait until this version is published, before the read.",
        whole(0, "V"),
        None,
        panel=panel,
    )


def wait_option(panel: str) -> Any:
    """Return the option field of the maximum wait for that version, in seconds."""
    return option(
        "--wait", "Longest time to wait for the version: 500ms, 30s, 5m.", TIME, 10.0, panel=panel
    )


@dataclass(frozen=True, kw_only=True)
class CatalogOptions:
    """The catalog that a command reads."""

    catalog: str = argument("CATALOG", "Name of the catalog.")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The server that a command uses: its address, the token, and TLS."""

    server: str = option(
        "--server",
        "gRPC address of the server; the default port is 7411.",
        text("HOST:PORT"),
        DEFAULT_SERVER,
        environment="TAILRACE_SERVER",
    )
    token_file: str | None = option(
        "--token-file",
        f"File with the token to send, read at each connect; {_TOKEN_VARIABLE} holds the token "
        "itself.",
        text("FILE"),
        None,
    )
    tls: bool = option("--tls", "Use TLS, and trust the system's CAs.", FLAG, False, panel=_TLS)
    tls_ca: str | None = option(
        "--tls-ca",
        "Use TLS, and trust only the CAs in this file (PEM).",
        text("FILE"),
        None,
        panel=_TLS,
        environment="TAILRACE_TLS_CA",
    )
    tls_certificate: str | None = option(
        "--tls-certificate",
        "Client certificate (PEM), for a server that requires one.",
        text("FILE"),
        None,
        panel=_TLS,
        environment="TAILRACE_CLIENT_CERTIFICATE",
    )
    tls_key: str | None = option(
        "--tls-key",
        "Key of the client certificate (PEM), if it is in another file.",
        text("FILE"),
        None,
        panel=_TLS,
        environment="TAILRACE_CLIENT_KEY",
    )

    @property
    def asks_for_tls(self) -> bool:
        """True if an option requests TLS; the address can also request it."""
        return bool(self.tls or self.tls_ca or self.tls_certificate or self.tls_key)

    @property
    def trust(self) -> Tls | None:
        """The options of TLS; None for plain text. An empty path is treated as not given."""
        target = self.target  # first: a wrong address is an error of --server
        if not (self.asks_for_tls or target.tls):
            return None
        return Tls(
            ca=self.tls_ca or None,
            certificate=self.tls_certificate or None,
            key=self.tls_key or None,
        )

    @cached_property
    def target(self) -> Target:
        """The address of the server, with the checks of `tailrace.connect`.

        Raises:
            InvalidRequest: The text is not an address, or selects plain text although an option requests TLS.
        """
        try:
            return Target.parse(self.server, tls=self.asks_for_tls)
        except InvalidRequest as error:
            raise InvalidRequest(f"--server {error}") from error

    @cached_property
    def token(self) -> TokenSource | None:
        """The token for `tailrace.connect`: a text, a function that reads the file anew each time, or None.

        Raises:
            InvalidRequest: The file cannot be read.
        """
        if self.token_file is None:
            return os.environ.get(_TOKEN_VARIABLE) or None
        path = Path(self.token_file).expanduser()
        _read_token(path)  # report a fault of the file now, not at the first connect

        async def read() -> str:
            return await asyncio.to_thread(_read_token, path)

        return read

    def connect(self, **options: Any) -> Client:
        """Return a client of the server.

        Raises:
            InvalidRequest: The address, the token file or a TLS file cannot be used.
        """
        from tailrace import connect

        return connect(self.server, tls=self.trust, token=self.token, **options)


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            data = opened.read(_TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest(
            f"--token-file {path}: {(error.strerror or str(error)).lower()}"
        ) from error
    if len(data) > _TOKEN_BYTES_MAX or not data.isascii() or not data.strip():
        raise InvalidRequest(f"--token-file {path}: the file must hold one token in one line")
    return data.decode("ascii").strip()


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """The criteria of captures."""

    entity_type: tuple[str, ...] = option(
        "--entity-type",
        "Only this entity type; repeat for more.",
        texts("TYPE"),
        factory=tuple,
        panel=_FILTER,
    )
    key: tuple[str, ...] = option(
        "--key",
        "Only this primary key; repeat for more.",
        texts("KEY"),
        factory=tuple,
        panel=_FILTER,
    )
    operation: tuple[Operation, ...] = option(
        "--operation",
        "Only this operation: upsert, remove, expire or transaction; repeat for more.",
        OptionForm(kind=list[str], parse=_operations, metavar="OP"),
        factory=tuple,
        panel=_FILTER,
    )
    area: Area | None = option(
        "--area",
        "Only this area: data, schema or infrastructure.",
        _member_of(Area, "AREA"),
        None,
        panel=_FILTER,
    )
    column: tuple[str, ...] = option(
        "--column",
        "Only changes of this column, with one capture for each column.",
        texts("NAME"),
        factory=tuple,
        panel=_FILTER,
    )

    def criteria(self, *, leads: bool = False) -> tuple[Criteria, ...]:
        """Return the criteria that the options describe.

        Lead records are left out by default, since they are noise among the changes. ``--leads`` adds them to
        any other criteria; the options for operation and area can select them.

        Raises:
            InvalidRequest: Options contradict each other.
        """
        # Without any filter, empty criteria would include lead records: name the other areas instead.
        wanted = self._criteria()
        if wanted == Criteria():
            return () if leads else (Criteria(area=Area.DATA), Criteria(area=Area.SCHEMA))
        return (wanted, Criteria(operation=(Operation.TRANSACTION,))) if leads else (wanted,)

    def _criteria(self, **condition: Any) -> Criteria:
        return Criteria(
            area=self.area,
            entity_type=self.entity_type,
            primary_key=self.key,
            operation=self.operation,
            container_name=self.column,
            **condition,
        )


@dataclass(frozen=True, kw_only=True)
class ConditionFilterOptions(FilterOptions):
    """The criteria of captures, with a condition on their rows."""

    where: str | None = option(
        "--where",
        "Only rows of one --entity-type that meet this SQL condition, and rows that begin or "
        "cease to meet it: price > 100.",
        text("SQL"),
        None,
        panel=_FILTER,
    )
    param: Mapping[str, str] = option(
        "--param", "Value of :NAME in --where.", PARAMETERS, factory=dict, panel=_FILTER
    )

    def _criteria(self, **condition: Any) -> Criteria:
        return super()._criteria(where=self.where, parameters=self.param, **condition)


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """The first change that a command reads."""

    since: Position | None = option(
        "--since",
        "Begin with this version (and record), inclusive; 0: the oldest retained version.",
        OptionForm(kind=str, parse=_since, metavar="V[:INDEX]"),
        None,
        panel=_START,
    )
    after: Cursor | None = option(
        "--after", "Begin after this cursor, exclusive.", CURSOR, None, panel=_START
    )
    from_time: TimestampMicros | None = option(
        "--from-time",
        "Begin with the first version committed at or after this time: 2026-05-04T10:30, with or "
        "without seconds and zone (else local), microseconds since the epoch, or an age such as "
        "15m.",
        MOMENT,
        None,
        panel=_START,
    )

    def arguments(self, **others: Any) -> dict[str, Any]:
        """Return the start as arguments of the client's calls; empty if no start is given.

        Args:
            others: Further options that set the start, by name.

        Raises:
            InvalidRequest: More than one start is given.
        """
        given = {"since": self.since, "after": self.after, "from_time": self.from_time}
        return one_of_given("begin", {**others, **given})


def one_of_given(does: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict with the one option that is not None; empty if there is none.

    Args:
        does: The verb for the error: begin or end.
        options: Values of the options by name.

    Raises:
        InvalidRequest: More than one option is given.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InvalidRequest(f"{names} both set where to {does}; give one of them")
    return given


@dataclass(frozen=True, kw_only=True)
class BehindOptions:
    """The initial state of a subscription, and its policies for missed changes."""

    initial: Initial | None = option(
        "--initial",
        "Begin with the current rows, then continue with their changes. With --after, continue "
        "an earlier state from that cursor.",
        _member_of(Initial, "state"),
        None,
        panel=_START,
    )
    catch_up: CatchUp | None = option(
        "--catch-up",
        "For changes that are older than the subscription: all of them, or only the latest of "
        "each key. [default: all]",
        _member_of(CatchUp, "all|latest"),
        None,
        panel=_START,
    )
    overrun: OverrunPolicy | None = option(
        "--overrun",
        "For changes that arrive faster than they are printed: resync (print all later), latest "
        "(only the latest of each key) or disconnect. [default: as --catch-up]",
        _member_of(OverrunPolicy, "POLICY"),
        None,
        panel=_START,
    )


@dataclass(frozen=True, kw_only=True)
class FormOptions:
    """The parts of captures that are printed, and their form."""

    body: Content = option(
        "--body",
        "Images to print, separated by commas: change, before, after; or all, or none.",
        OptionForm(kind=str, parse=_content, show=lambda _: "all", metavar="LIST"),
        Content.BODY,
        panel=FORM,
    )
    values: bool | None = option(
        "--values",
        "decoded: values in the form of their column's type, so that decimals and times are "
        "readable; raw: as the source wrote them. [default: decoded; with --json raw]",
        DECODED,
        None,
        panel=FORM,
    )
    as_json: bool = option(*AS_JSON, panel=FORM)
    leads: bool = option(
        "--leads",
        "Also print the lead record of each transaction, with its counts.",
        FLAG,
        False,
        panel=FORM,
    )

    @property
    def decoded(self) -> bool:
        """True if values are to be decoded."""
        return not self.as_json if self.values is None else self.values
