"""The token that commands show a server: from a file, or from the environment."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest
from tailrace_server.cli.declared import Option

if TYPE_CHECKING:
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
