"""``tailrace catalog``: list the catalogs of a log root or a server, and drop one. The settings: kept.py."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.errors import CatalogUnknown, InvalidRequest, LogError
from tailrace.position import TimestampMicros
from tailrace.schema import Catalog
from tailrace_server.cli import options
from tailrace_server.cli.catalog.kept import create, set_, show, unset
from tailrace_server.cli.errors import DONE, FAILED, complain, describe, status_of
from tailrace_server.cli.output import date_text, note, printable
from tailrace_server.cli.typed import (
    AsJson,
    LogInsteadOfServer,
    LogRoot,
    Server,
    TlsCa,
    TlsCertificate,
    TlsKey,
    TokenFile,
    WithTls,
)
from tailrace_server.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

app = typer.Typer(no_args_is_help=True, help="The catalogs of a log root or a server.")
for _name, _command in (("create", create), ("show", show), ("set", set_), ("unset", unset)):
    app.command(_name)(_command)


@app.command("list")
def list_(
    log: LogInsteadOfServer = None,
    server: Server = options.DEFAULT_SERVER,
    token_file: TokenFile = None,
    as_json: AsJson = False,
    tls: WithTls = False,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> int:
    """List the catalogs, with what each has committed and published."""
    if log is not None:
        catalogs, unreadable = _catalogs_in(log)
        reasons = {name: describe(error) for name, error in unreadable.items()}
        _show(catalogs, reasons, as_json=as_json)
        return max(map(status_of, unreadable.values()), default=DONE)
    from tailrace_server.cli.running import run

    asked = options.server_of(
        server, tls=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key, token_file=token_file
    )
    return run(_list(asked, as_json=as_json))


@app.command()
def drop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the catalog.")],
    log: LogRoot,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> int:
    """Drop a catalog with its whole log; its subscriptions end with CatalogReplaced.

    There is no way back.
    """
    from tailrace_server.wal.catalog import drop_catalog, list_catalogs, read_catalog

    known = list_catalogs(log)
    if name not in known:
        raise CatalogUnknown(name, known)
    uuid = read_catalog(log / name).uuid
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidRequest(f"catalog drop {name}: nobody to ask; say --yes")
        typer.confirm(f"Drop catalog {name!r} ({uuid}) in {log} with its whole log?", abort=True)
    drop_catalog(log, name)
    note(f"dropped {name} ({uuid})")
    return 0


@app.command()
def gate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the catalog.")],
    log: LogRoot,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Take the gate away, and publish what waits for it."),
    ] = False,
) -> int:
    """Show what publication of a catalog waits for, or have it wait no longer.

    An export puts up the gate (export delta --gate). It stays when that ends,
    and nothing is published until it runs again or the gate is taken away.
    """
    from tailrace.clock import SystemClock
    from tailrace_server.wal.catalog import open_catalog
    from tailrace_server.wal.gate import take_away_gate

    opened = open_catalog(log, name)
    shown = opened.gate
    if not shown:
        note(f"catalog {name} has no gate: commits are published by their writers")
        return DONE
    if remove:
        before = opened.state.published
        take_away_gate(opened, SystemClock())
        count = opened.state.published - before
        note(
            f"took the gate {printable(shown)} away; {counted(count, 'version')} published with it"
        )
        return DONE
    published, committed = opened.state.published, opened.state.last_version
    waiting = (
        f"versions {published + 1:,} to {committed:,} wait"
        if committed > published
        else "none waits"
    )
    note(f"publication of {name} waits for {printable(shown)}: {waiting}")
    return DONE


async def _list(server: options.ServerOptions, *, as_json: bool) -> int:
    async with server.connect() as client:
        catalogs, unreadable = await client.list_catalogs(), await client.list_unreadable()
    _show(catalogs, unreadable, as_json=as_json)
    return FAILED if unreadable else DONE


def _catalogs_in(root: Path) -> tuple[list[Catalog], dict[str, LogError]]:
    """Return the catalogs below a log root, as its files say, and why others cannot be read."""
    from tailrace_server.log_root import check_log_root
    from tailrace_server.wal.catalog import list_catalogs, open_catalog

    check_log_root(root)
    catalogs: list[Catalog] = []
    unreadable: dict[str, LogError] = {}
    for name in list_catalogs(root):
        try:
            view = open_catalog(root, name).view
        except LogError as error:
            unreadable[name] = error
            continue
        catalogs.append(
            Catalog(
                name=view.name,
                uuid=view.uuid,
                oldest=view.oldest,
                published=view.published,
                committed=view.committed,
                newest_timestamp=TimestampMicros(view.newest_timestamp),
            )
        )
    return catalogs, unreadable


def _show(catalogs: Sequence[Catalog], unreadable: Mapping[str, str], *, as_json: bool) -> None:
    """Show catalogs, and complain of those that cannot be read, each with its reason."""
    if catalogs or not unreadable:
        _list_catalogs(catalogs, as_json=as_json)
    for name, reason in unreadable.items():
        complain(f"catalog {name!r}: {reason}")


def _list_catalogs(catalogs: Sequence[Catalog], *, as_json: bool) -> None:
    if as_json:
        import orjson

        for each in catalogs:
            fields = {
                "name": each.name,
                "uuid": str(each.uuid),
                "oldest": str(each.oldest),
                "publishedVersion": each.published,
                "committedVersion": each.committed,
                "newestTimestamp": each.newest_timestamp,
            }
            sys.stdout.buffer.write(orjson.dumps(fields) + b"\n")
        sys.stdout.buffer.flush()
        return
    if not catalogs:
        note("no catalogs yet")
        return
    rows = [("NAME", "PUBLISHED", "COMMITTED", "OLDEST", "NEWEST", "UUID")] + [
        (
            each.name,
            f"{each.published:,}",
            f"{each.committed:,}",
            str(each.oldest),
            date_text(each.newest_timestamp) if each.newest_timestamp else "-",
            str(each.uuid),
        )
        for each in catalogs
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, published, committed, *rest in rows:
        cells = [name.ljust(widths[0]), published.rjust(widths[1]), committed.rjust(widths[2])]
        cells += [text.ljust(width) for text, width in zip(rest, widths[3:], strict=True)]
        typer.echo("  ".join(cells).rstrip())
