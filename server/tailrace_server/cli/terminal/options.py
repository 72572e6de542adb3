"""Options of ``watch`` and ``changes``, and what their text means; Typer is not needed to read them."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict, TypeVar, assert_never

from tailrace.criteria import (
    After,
    Area,
    CatchUp,
    Content,
    Criteria,
    FromTime,
    Initial,
    Operation,
    OverrunPolicy,
    Since,
    parameters_in,
)
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.position import END, MAX_VERSION, Index, Position, Version
from tailrace.tls import Tls
from tailrace.transport.target import Target
from tailrace_server.cli.terminal.declared import Argument, Option
from tailrace_server.cli.terminal.times import time_of

if TYPE_CHECKING:
    from tailrace.client import Client
    from tailrace.criteria import Start
    from tailrace.transport.token import TokenSource

VARIABLE: Final = "TAILRACE_TOKEN"
_BYTES_MAX: Final = 64 << 10

TOKEN_FILE: Final = Option(
    "--token-file",
    metavar="FILE",
    help=f"File of the token to show, read at each connect; {VARIABLE} is the token itself.",
)


def token_of(file: str | None) -> TokenSource | None:
    """Return what `tailrace.connect` is to show: a file that is read again each time, a text, or nothing.

    Raises:
        InvalidRequest: The file cannot be read.
    """
    if file is None:
        return os.environ.get(VARIABLE) or None
    path = Path(file).expanduser()
    _read(path)  # what is wrong with it is told now

    async def read() -> str:
        return await asyncio.to_thread(_read, path)

    return read


def _read(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            data = opened.read(_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest(
            f"--token-file {path}: {(error.strerror or str(error)).lower()}"
        ) from error
    if len(data) > _BYTES_MAX or not data.isascii() or not data.strip():
        raise InvalidRequest(f"--token-file {path}: not a token in one line")
    return data.decode("ascii").strip()


_Named = TypeVar("_Named", bound=IntEnum)

DEFAULT_SERVER: Final = "127.0.0.1:7411"
_FILTER = "What to show (fields are AND, repeated values any-of)"
_START = "Where to begin"
_FORM = "Form of the output"

Catalog = Annotated[str, Argument(metavar="CATALOG", help="Name of the catalog.")]
SERVER: Final = Option(
    "--server",
    metavar="HOST:PORT",
    environment="TAILRACE_SERVER",
    help="gRPC address of the server; port 7411 where none is named.",
)
Server = Annotated[str, SERVER]
TokenFile = Annotated[str | None, TOKEN_FILE]
_TLS = "TLS to the server (https:// asks for it as well)"
TLS: Final = Option("--tls", help="Speak TLS, and trust the system's roots.", panel=_TLS)
WithTls = Annotated[bool, TLS]
TLS_CA: Final = Option(
    "--tls-ca",
    metavar="FILE",
    environment="TAILRACE_TLS_CA",
    help="Speak TLS, and trust the CAs in this file (PEM) alone.",
    panel=_TLS,
)
TlsCa = Annotated[str | None, TLS_CA]
TLS_CERTIFICATE: Final = Option(
    "--tls-certificate",
    metavar="FILE",
    environment="TAILRACE_CLIENT_CERTIFICATE",
    help="Your own certificate (PEM), for a server that asks for one.",
    panel=_TLS,
)
TlsCertificate = Annotated[str | None, TLS_CERTIFICATE]
TLS_KEY: Final = Option(
    "--tls-key",
    metavar="FILE",
    environment="TAILRACE_CLIENT_KEY",
    help="Its key (PEM), if it is not in the same file.",
    panel=_TLS,
)
TlsKey = Annotated[str | None, TLS_KEY]
EntityTypes = Annotated[
    list[str] | None,
    Option("--entity-type", metavar="TYPE", help="Only this one.", panel=_FILTER),
]
Keys = Annotated[
    list[str] | None,
    Option("--key", metavar="KEY", help="Only this primary key.", panel=_FILTER),
]
Operations = Annotated[
    list[str] | None,
    Option(
        "--operation",
        metavar="OP",
        help="Only upsert, remove, expire or transaction.",
        panel=_FILTER,
    ),
]
AreaName = Annotated[
    str | None,
    Option(
        "--area",
        metavar="AREA",
        help="Only data, schema or infrastructure.",
        panel=_FILTER,
    ),
]
ColumnNames = Annotated[
    list[str] | None,
    Option(
        "--column",
        metavar="NAME",
        help="Only changes of this column, one capture each.",
        panel=_FILTER,
    ),
]
Where = Annotated[
    str | None,
    Option(
        "--where",
        metavar="SQL",
        help="Rows of one --entity-type that meet this, and what enters and leaves: price > 100.",
        panel=_FILTER,
    ),
]
Parameters = Annotated[
    list[str] | None,
    Option("--param", metavar="NAME=VALUE", help="A value of :NAME in --where.", panel=_FILTER),
]
SincePosition = Annotated[
    str | None,
    Option(
        "--since",
        metavar="V[:INDEX]",
        help="From this version (and record) on, inclusive; 0 = the oldest kept.",
        panel=_START,
    ),
]
AfterCursor = Annotated[
    str | None,
    Option(
        "--after",
        metavar="CURSOR",
        help="Go on strictly after this cursor.",
        panel=_START,
    ),
]
InitialState = Annotated[
    str | None,
    Option(
        "--initial",
        metavar="state",
        help="Begin with the rows as they are now, and go on with their changes. Beside --after it goes on "
        "from there.",
        panel=_START,
    ),
]
CatchUpName = Annotated[
    str | None,
    Option(
        "--catch-up",
        metavar="all|latest",
        help="Where it begins behind what is published: all changes, or the latest of each key. [default: all]",
        panel=_START,
    ),
]
OverrunName = Annotated[
    str | None,
    Option(
        "--overrun",
        metavar="POLICY",
        help="When more comes than is shown: resync (all of it), latest (of each key) or disconnect. "
        "[default: as --catch-up]",
        panel=_START,
    ),
]
FromTimeText = Annotated[
    str | None,
    Option(
        "--from-time",
        metavar="T",
        help="From the first version committed at or after this time: 2026-05-04T10:30, with or "
        "without seconds and zone (else local), microseconds since the epoch, or an age as 15m.",
        panel=_START,
    ),
]
Bodies = Annotated[
    str,
    Option(
        "--body",
        metavar="LIST",
        help="Images to fetch: any of change,before,after; all; none.",
        panel=_FORM,
    ),
]
Values = Annotated[
    str | None,
    Option(
        "--values",
        metavar="raw|decoded",
        help="decoded: by the column's type, so that decimals and times can be read; raw: as the source "
        "wrote them. [default: decoded; with --json raw]",
        panel=_FORM,
    ),
]
AS_JSON: Final = Option("--json", help="One flat JSON object a line, flushed.", panel=_FORM)
AsJson = Annotated[bool, AS_JSON]
WithLeads = Annotated[
    bool,
    Option("--leads", help="Transaction leads as well, with their counts.", panel=_FORM),
]

_BODIES: Final = {
    "change": Content.CHANGE,
    "before": Content.BEFORE,
    "after": Content.AFTER,
    "all": Content.BODY,
    "none": Content.HEADER,
}


def criteria_of(
    *,
    entity_types: list[str] | None,
    keys: list[str] | None,
    operations: list[str] | None,
    area: str | None,
    columns: list[str] | None,
    leads: bool,
    where: str | None = None,
    parameters: list[str] | None = None,
) -> tuple[Criteria, ...]:
    """Return what the filter options ask for.

    Leads are records too, but noise beside the changes they announce: they are asked for only by
    ``--leads``, which adds them to whatever else is, or by naming their operation or area.

    Raises:
        InvalidRequest: An unknown name, or options that contradict each other.
    """
    wanted = Criteria(
        area=None if area is None else _named(Area, area, "--area"),
        entity_type=tuple(entity_types or ()),
        primary_key=tuple(keys or ()),
        operation=tuple(_named(Operation, each, "--operation") for each in operations or ()),
        container_name=tuple(columns or ()),
        where=where,
        parameters=parameters_of(parameters),
    )
    if wanted == Criteria():
        return () if leads else (Criteria(area=Area.DATA), Criteria(area=Area.SCHEMA))
    return (wanted, Criteria(operation=(Operation.TRANSACTION,))) if leads else (wanted,)


def parameters_of(written: list[str] | None) -> dict[str, str]:
    """Return the values of a condition's parameters by name.

    Raises:
        InvalidRequest: One is not written as ``NAME=VALUE``, or is given twice.
    """
    try:
        return parameters_in(written or ())
    except InvalidRequest:
        raise InvalidRequest(f"--param {written!r}: write each once, as NAME=VALUE") from None


def start_of(since: str | None, after: str | None, from_time: str | None) -> Start | None:
    """Return where to begin; None = with what is published next.

    Raises:
        InvalidRequest: More than one is given, or one is not of its form.
    """
    given = [
        name
        for name, value in (("--since", since), ("--after", after), ("--from-time", from_time))
        if value is not None
    ]
    if len(given) > 1:
        raise InvalidRequest(f"{' and '.join(given)} both say where to begin; give one of them")
    if since is not None:
        position = position_of(since, "--since")
        if position.index and not position.version:
            raise InvalidRequest(
                f"--since {since}: 0 is the oldest version that is kept, whichever that is; an index goes with "
                "a version from 1, as 41:3"
            )
        return Since(position)
    if after is not None:
        return After(Cursor.parse(after))
    return None if from_time is None else FromTime(time_of(from_time, "--from-time"))


def initial_of(text: str | None) -> Initial | None:
    """Return what a subscription begins with.

    Raises:
        InvalidRequest: It is nothing that there is.
    """
    return None if text is None else _named(Initial, text, "--initial")


class BehindArguments(TypedDict, total=False):
    """The policy for a reader that is behind, as the client's calls take it."""

    catch_up: CatchUp
    overrun: OverrunPolicy


def behind_arguments(catch_up: str | None, overrun: str | None) -> BehindArguments:
    """Return what ``--catch-up`` and ``--overrun`` ask for.

    Raises:
        InvalidRequest: One is nothing that there is.
    """
    given: BehindArguments = {}
    if catch_up is not None:
        given["catch_up"] = _named(CatchUp, catch_up, "--catch-up")
    if overrun is not None:
        given["overrun"] = _named(OverrunPolicy, overrun, "--overrun")
    return given


class StartArguments(TypedDict, total=False):
    """A start as the client's calls take it."""

    since: Position
    after: Cursor
    from_time: int


def start_arguments(start: Start | None) -> StartArguments:
    """Return a start as keyword arguments of ``Client.subscribe`` and its kind."""
    match start:
        case None:
            return {}
        case Since(position):
            return {"since": position}
        case After(cursor):
            return {"after": cursor}
        case FromTime(timestamp):
            return {"from_time": timestamp}
    assert_never(start)


def position_of(text: str, option: str) -> Position:
    """Read ``V`` or ``V:INDEX``.

    Raises:
        InvalidRequest: It is neither.
    """
    match = re.fullmatch(r"([0-9]{1,19})(?::([0-9]{1,10}))?", text, re.ASCII)
    if match is None or int(match[1]) > MAX_VERSION or int(match[2] or 0) > END:
        raise InvalidRequest(
            f"{option}: not a position: {text!r}; it reads VERSION or VERSION:INDEX, as 41:3"
        )
    return Position(Version(int(match[1])), Index(int(match[2] or 0)))


def decoded_of(values: str | None, *, as_json: bool) -> bool:
    """Return whether values are to come decoded.

    Raises:
        InvalidRequest: The option is neither raw nor decoded.
    """
    if values not in (None, "raw", "decoded"):
        raise InvalidRequest(f"--values {values!r}: is raw or decoded")
    return not as_json if values is None else values == "decoded"


def content_of(bodies: str) -> Content:
    """Read a list of bodies.

    Raises:
        InvalidRequest: One is unknown.
    """
    content = Content.HEADER
    for name in filter(None, (each.strip() for each in bodies.split(","))):
        if name not in _BODIES:
            raise InvalidRequest(
                f"--body: no body named {name!r}; choose from {', '.join(_BODIES)}"
            )
        content |= _BODIES[name]
    return content


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Which server a command asks, and how it is reached."""

    server: str
    """As it is shown: host and port."""
    target: str
    """As `tailrace.connect` takes it."""
    tls: Tls | None = None
    token: TokenSource | None = field(default=None, repr=False)
    """The token for it."""

    def connect(self, **options: Any) -> Client:
        """Return a client of the server.

        Raises:
            InvalidRequest: A file of TLS cannot be used.
        """
        from tailrace import connect

        return connect(self.target, tls=self.tls, token=self.token, **options)


def server_of(
    text: str,
    *,
    tls: bool = False,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    token_file: str | None = None,
) -> ServerOptions:
    """Return the server that the options name, checked as `tailrace.connect` does.

    Raises:
        InvalidRequest: It is not an address, options contradict each other, or the file of the token cannot be
            read.
    """
    asked = bool(tls or ca or certificate or key)
    try:
        found = Target.parse(text, tls=asked)
    except InvalidRequest as error:
        raise InvalidRequest(f"--server {error}") from error
    wanted = Tls(ca=ca or None, certificate=certificate or None, key=key or None)
    wanted_tls = wanted if asked or found.tls else None
    return ServerOptions(found.name, text, wanted_tls, token_of(token_file))


def _named(kind: type[_Named], text: str, option: str) -> _Named:
    """Return the member of an enum by its name, however it is cased."""
    try:
        return kind[text.strip().upper()]
    except KeyError:
        names = ", ".join(each.name.lower() for each in kind)
        here = _ELSEWHERE.get(text.strip().lower())
        hint = f" ({here} is what it is called here)" if here is not None else ""
        raise InvalidRequest(f"{option}: no {text!r} here; choose from {names}{hint}") from None


_ELSEWHERE: Final = {"insert": "upsert", "update": "upsert", "delete": "remove", "ddl": "schema"}
"""Names of operations and areas in other systems."""
