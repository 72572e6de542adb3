"""The place where a read of state continues: after a row of one version, as text for the client.

::

    s1.<log uuid, 32 hex>.<version>.<time>.<entity type, 8 hex>.<key hash, 16 hex>.k<key, base64url>
    s1.<log uuid, 32 hex>.<version>.<time>.<entity type, 8 hex>.<key hash, 16 hex>.d<digest, 32 hex>

The state of a version never changes, so the place stays valid as long as the version can be read. The time is
the version's commit timestamp in microseconds, as in a cursor. It detects a log that was restored and written
again, in which the same number means another version. A long key is replaced by its digest; then its row has to
be searched. The digest of the entity type's name detects a page of another table.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Self
from uuid import UUID

from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.position import END

_FORM: Final = re.compile(
    r"s1\.([0-9a-f]{32})\.(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,18})\.([0-9a-f]{8})\.([0-9a-f]{16})"
    r"\.(?:k([A-Za-z0-9_-]{0,200})|d([0-9a-f]{32}))"
)
_KEY_BYTES_MAX: Final = 150
"""The most bytes of a key in the text; a longer key is replaced by its digest."""


@dataclass(frozen=True, slots=True)
class StatePage:
    """A place in a table's state: all rows up to a key have been read."""

    passed: Cursor
    """The cursor after the version, with its commit timestamp, or 0 if the log no longer has that."""
    type_digest: str
    """The digest of the name of the entity type or view."""
    key_hash: int
    """The key hash of the last row that was read."""
    primary_key: str | None
    """The key of this row; None: the key is long, and ``digest`` identifies it."""
    digest: str
    """The digest of a long key; otherwise empty."""

    def __str__(self) -> str:
        passed = self.passed
        at = f"{passed.catalog_uuid.hex}.{passed.version}.{passed.commit_timestamp or 0}"
        start = f"s1.{at}.{self.type_digest}.{self.key_hash:016x}"
        if self.primary_key is None:
            return f"{start}.d{self.digest}"
        return f"{start}.k{urlsafe_b64encode(self.primary_key.encode()).decode().rstrip('=')}"

    @classmethod
    def behind(cls, passed: Cursor, entity_type: str, key_hash: int, primary_key: str) -> Self:
        """Return the page after a row.

        Args:
            passed: The cursor after the version.
            entity_type: The name of the entity type or view.
            key_hash: The row's key hash.
            primary_key: The row's key.
        """
        data = primary_key.encode()
        short = len(data) <= _KEY_BYTES_MAX
        return cls(
            passed,
            type_digest(entity_type),
            key_hash,
            primary_key if short else None,
            "" if short else _digest(data, 16),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a page.

        Raises:
            InvalidRequest: The text is not a page.
        """
        found = _FORM.fullmatch(text)
        # Versions and timestamps are 64-bit numbers in the log.
        if found is None or max(int(found[2]), int(found[3])) >= 1 << 63:
            raise _refused(text)
        uuid, version, time, kind, hash, key, digest = found.groups()
        try:
            padded = None if key is None else key + "=" * (-len(key) % 4)
            known = None if padded is None else urlsafe_b64decode(padded).decode()
        except ValueError:
            raise _refused(text) from None
        passed = Cursor(UUID(hex=uuid), int(version), END, commit_timestamp=int(time))
        return cls(passed, kind, int(hash, 16), known, digest or "")

    def is_of_key(self, primary_key: str) -> bool:
        """Return True if a key, which must have the page's hash, is that of the last row that was read."""
        if self.primary_key is not None:
            return primary_key == self.primary_key
        return _digest(primary_key.encode(), 16) == self.digest


def type_digest(entity_type: str) -> str:
    """Return the digest of an entity type's name, in hexadecimal."""
    return _digest(entity_type.encode(), 4)


def _digest(data: bytes, size: int) -> str:
    return blake2b(data, digest_size=size).hexdigest()


def _refused(text: str) -> InvalidRequest:
    shown = text if len(text) <= 100 else text[:100] + "…"
    return InvalidRequest(
        f"page: {shown!r} is not a page; send the next page of an earlier answer unchanged"
    )
