"""The options that say where named subscriptions are, which all commands about them share."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path  # noqa: TC003 - read by Typer
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace_server.cli import options
from tailrace_server.cli.subscriptions.place import AtServer, InFolder
from tailrace_server.cli.typed import (  # noqa: TC001 - read by Typer
    LogInsteadOfServer,
    Server,
    TlsCa,
    TlsCertificate,
    TlsKey,
    TokenFile,
    WithTls,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tailrace_server.cli.subscriptions.place import SubscriptionsPlace


@dataclass(frozen=True, slots=True)
class Where:
    """The catalog that a command is about, and where it is found."""

    catalog: str
    log: Path | None
    server: options.ServerOptions | None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[SubscriptionsPlace]:
        """Open the folder, or a connection."""
        if self.log is not None:
            yield InFolder(self.log, self.catalog)
            return
        assert self.server is not None
        async with self.server.connect() as client:
            yield AtServer(client, self.catalog)


def _where(
    catalog: Annotated[
        str, typer.Option("--catalog", metavar="CATALOG", help="Name of the catalog.")
    ],
    log: LogInsteadOfServer = None,
    server: Server = options.DEFAULT_SERVER,
    token_file: TokenFile = None,
    tls: WithTls = False,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> Where:
    """Return where a command looks; a folder needs no server."""
    if log is not None:
        return Where(catalog, log, None)
    asked = options.server_of(
        server, tls=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key, token_file=token_file
    )
    return Where(catalog, None, asked)


def located(command: Callable[..., int]) -> Callable[..., int]:
    """Return a command that takes ``where`` as options: ``--catalog``, and ``--log`` or ``--server``."""
    own = inspect.signature(command, eval_str=True).parameters
    shared = inspect.signature(_where, eval_str=True).parameters

    @wraps(command)
    def with_options(**given: Any) -> int:
        where = _where(**{name: given.pop(name) for name in shared})
        return command(where=where, **given)

    # Typer calls by name, so that what has no default need not stand first.
    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in (*own.values(), *shared.values())
        if each.name != "where"
    ]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options
