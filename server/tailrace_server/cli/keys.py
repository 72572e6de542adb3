"""``tailrace keys``: add, list and remove API keys in the file of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.errors import InvalidRequest
from tailrace_server.access.api_keys import new_key, read_keys, write_keys
from tailrace_server.cli.terminal.errors import DONE
from tailrace_server.cli.terminal.output import note

app = typer.Typer(
    no_args_is_help=True,
    help="API keys, with which callers authenticate without an issuer of tokens.",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the key, as it appears in audits.")
]
KeysFile = Annotated[
    Path,
    typer.Option(
        "--file",
        metavar="FILE",
        envvar="TAILRACE_API_KEYS",
        help="File of hashed keys; the same as for `tailrace serve --api-keys`.",
    ),
]


@app.command()
def add(name: Name, file: KeysFile) -> int:
    """Create a key and print it. It is printed only once: the file has only its hash."""
    keys = read_keys(file) if file.exists() else {}
    if name in keys:
        raise InvalidRequest(
            f"keys add {name}: {file} already has a key of this name; remove it first, or choose "
            "another name"
        )
    text, keys[name] = new_key(name)
    write_keys(file, keys)
    note(
        f"added {name} to {file}; a running server accepts it within seconds. The key is printed only "
        "once:"
    )
    typer.echo(text)
    return DONE


@app.command("list")
def list_(file: KeysFile) -> int:
    """List the names of the keys, and the day on which each was made."""
    keys = read_keys(file)
    if not keys:
        note("no keys yet")
    width = max(map(len, keys), default=0)
    for each in keys.values():
        typer.echo(f"{each.name.ljust(width)}  {each.made_on}")
    return DONE


@app.command()
def remove(name: Name, file: KeysFile) -> int:
    """Remove a key. The server ends the streams that use it within seconds."""
    keys = read_keys(file)
    if name not in keys:
        raise InvalidRequest(
            f"keys remove {name}: {file} has no key of this name; see tailrace keys list"
        )
    del keys[name]
    write_keys(file, keys)
    note(f"removed {name} from {file}")
    return DONE
