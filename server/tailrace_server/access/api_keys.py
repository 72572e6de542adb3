"""Authentication by API key, for teams that have no issuer of tokens.

A key reads ``tlr_NAME_SECRET``; the secret has 256 bits from the system's random source. The file has a line
for each key, and never the key itself::

    # name      sha-256 of the key                                                  made on
    grafana     5c1b…                                                               2026-11-26

A secret of 256 random bits cannot be guessed from its hash, so the hash need not be slow. The name is part of
the key, so one line is compared, in constant time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest, Unauthenticated
from tailrace_server.access.identity import Identity, IdentityKind
from tailrace_server.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace_server.access.identity import Credentials

_PREFIX: Final = "tlr_"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}", re.ASCII)
_LINE: Final = re.compile(r"(\S+)\s+([0-9a-f]{64})\s+(\d{4}-\d\d-\d\d)", re.ASCII)
_HEAD: Final = (
    "# API keys of tailrace: name, SHA-256 of the key, day. Made by `tailrace keys add`.\n"
)
_FILE_BYTES_MAX: Final = 4 << 20
_UNKNOWN: Final = "the API key is not known here"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One line of the file of keys: the name and the hash of a key, and the day on which it was made."""

    name: str
    sha256: str
    made_on: str


def new_key(name: str) -> tuple[str, ApiKey]:
    """Return the text of a new key, which is printed once, and its line for the file.

    Raises:
        InvalidRequest: The name is not valid.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name[:70]!r} is not a valid name of a key: 1 to 64 letters, digits, dots and hyphens"
        )
    text = f"{_PREFIX}{name}_{secrets.token_urlsafe(32)}"
    return text, ApiKey(name, _hash(text), datetime.now(UTC).date().isoformat())


def read_keys(file: Path) -> dict[str, ApiKey]:
    """Return the keys of a file by name.

    Raises:
        ConfigError: The file cannot be read, or a line is not valid; the error names the line.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"API keys: {file}: {(error.strerror or str(error)).lower()}") from error
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"API keys: {file} has more than {_FILE_BYTES_MAX} bytes")
    keys: dict[str, ApiKey] = {}
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None or _NAME.fullmatch(found[1]) is None:
            raise ConfigError(
                f"API keys: {file}, line {number}: not `name sha-256 day`; `tailrace keys add` writes them"
            )
        if found[1] in keys:
            raise ConfigError(f"API keys: {file}, line {number}: {found[1]!r} is there twice")
        keys[found[1]] = ApiKey(*found.groups())
    return keys


def write_keys(file: Path, keys: dict[str, ApiKey]) -> None:
    """Replace a file of keys atomically, with the old file's permissions; a new file is its owner's alone.

    Raises:
        ConfigError: The file cannot be written.
    """
    # Write a new file and rename it: a server that reads meanwhile sees the old keys or the new ones, never a
    # part. The random name and O_EXCL keep other users from preparing the temporary file.
    lines = [f"{each.name:<24} {each.sha256} {each.made_on}\n" for each in keys.values()]
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as opened:
                opened.write(_HEAD + "".join(lines))
                opened.flush()
                os.fsync(opened.fileno())
            # Keep mode and owner: the server may run as another user, who must still be able to read the file.
            with contextlib.suppress(FileNotFoundError):
                old = file.stat()
                os.chmod(temporary, old.st_mode & 0o777)
                if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                    os.chown(temporary, old.st_uid, old.st_gid)
            os.replace(temporary, file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"API keys: {file}: {(error.strerror or str(error)).lower()}") from error


class ApiKeys:
    """Authenticates callers by their API keys."""

    kind: Final = "api_keys"

    def __init__(self, file: Path) -> None:
        """Read the keys of a file.

        Raises:
            ConfigError: As ``read_keys``.
        """
        self.file = file
        self._keys = read_keys(file)

    def reload(self) -> None:
        """Read the file again; if that fails, the keys stay as they are.

        Raises:
            ConfigError: As ``read_keys``.
        """
        self._keys = read_keys(self.file)

    def fingerprints(self) -> Mapping[str, str]:
        """Return the hash of each key, by name."""
        return {name: key.sha256 for name, key in self._keys.items()}

    async def identify(self, credentials: Credentials) -> Identity | None:
        """Return the identity of an API key; None if the credentials have no API key.

        Raises:
            Unauthenticated: The API key is unknown.
        """
        token = credentials.token
        if token is None or not token.startswith(_PREFIX):
            return None
        if (found := self.recognise(credentials)) is None:
            raise Unauthenticated(_UNKNOWN)
        return found

    def recognise(self, credentials: Credentials) -> Identity | None:
        """Return the identity of a known API key; None for all other credentials, wrong keys included."""
        token = credentials.token
        if token is None or not token.startswith(_PREFIX):
            return None
        name, _, secret = token.removeprefix(_PREFIX).partition("_")
        key = self._keys.get(name)
        found = _hash(token)
        # Unknown names are hashed and compared too: the time of an answer does not reveal which names exist.
        same = hmac.compare_digest(found, key.sha256 if key is not None else _hash("nobody"))
        if key is None or not same or not secret:
            return None
        return Identity(IdentityKind.API_KEY, "", name, key_id=key.sha256)

    def accepts(self, identity: Identity) -> bool:
        """Return True if the file still has the identity's key, unchanged."""
        key = self._keys.get(identity.name)
        return key is not None and key.sha256 == identity.key_id


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
