"""The cursor: a resume point in one log, which means "strictly after this capture".

Text form, the same on every transport, in Spark and in files::

    1.<catalog uuid, 32 hex digits>.<version>.<index>.<ordinal>.<commit timestamp of the version>

The numbers are decimal, without sign or leading zeros. Index and ordinal may be 2147483647, which means "past
the last". The leading 1 is the version of the form. Readers treat the text as opaque; the form is specified so
that any program can create a cursor. Examples are in docs/protocol.md and are tested.

The commit timestamp distinguishes the histories of a log. A log that was restored from an older copy and then
written further has the same uuid and the same version numbers, but other commits. The timestamp may be left
out: the server does not check such a cursor against the history.

A reader that begins with the state of tables as of a version V has a cursor of another form, a
``StateCursor``, until it has received every row::

    2.<catalog uuid>.<V>.<commit timestamp of V, or nothing>.<tables, 16 hex digits>
    2.<catalog uuid>.<V>.<commit timestamp of V, or nothing>.<tables>.<row>

    row:  <entity type, 16 hex digits>.<ordinal>.k<primary key, base64url without padding>
          <entity type, 16 hex digits>.<ordinal>.d<digest of a long key, 32 hex digits>

The first form is the place before the first row, the second the place after a row. Tables, entity types and
long keys are BLAKE2b digests.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from tailrace.errors import CursorInvalid
from tailrace.position import END, MAX_VERSION, Position

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBER: Final = r"(0|[1-9][0-9]{0,18})"
_FORM: Final = re.compile(
    rf"1\.([0-9a-f]{{32}})\.{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?", re.ASCII
)
_STATE_FORM: Final = re.compile(
    rf"2\.([0-9a-f]{{32}})\.{_NUMBER}\.{_NUMBER}?\.([0-9a-f]{{16}})"
    rf"(?:\.([0-9a-f]{{16}})\.{_NUMBER}\.(?:k([A-Za-z0-9_-]*)|d([0-9a-f]{{32}})))?",
    re.ASCII,
)
_TIMESTAMP_MAX: Final = 2**63 - 1
_KEY_BYTES_MAX: Final = 600
"""Maximum size of a primary key in a cursor; a longer key is replaced by its digest, so that a cursor fits into
an HTTP header."""


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place in the log of one catalog. It is exclusive: reading resumes with the first capture after it."""

    catalog_uuid: UUID
    """Identity of the log that the cursor belongs to; other logs refuse it."""
    version: int
    """Version of the last capture passed; 0 is before the first."""
    index: int
    """Index of the last record passed, wholly or in part; ``END``: the whole version."""
    ordinal: int = END
    """Ordinal of the last capture passed in that record; ``END``: the whole record."""
    commit_timestamp: int | None = field(default=None, compare=False)
    """Commit time of ``version``, in µs; None: unknown. 0: the version was not committed yet, since the cursor
    is that of a start that waits for it. Comparisons ignore it: cursors are equal if they name the same
    place."""

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse the text form of a cursor or a ``StateCursor``.

        Raises:
            CursorInvalid: The text is not a cursor; the error describes the form of one.
        """
        if text.startswith("2."):
            return _state_cursor(text)
        match = _FORM.fullmatch(text)
        if match is None:
            raise CursorInvalid(text)
        # The pattern allows 19 digits, which may exceed 63 bits: such a number could not be sent.
        version, index, ordinal = (int(number) for number in match.groups()[1:4])
        timestamp = None if match[5] is None else int(match[5])
        if (
            version > MAX_VERSION
            or index > END
            or ordinal > END
            or (timestamp or 0) > _TIMESTAMP_MAX
        ):
            raise CursorInvalid(text)
        return cls(UUID(hex=match[1]), version, index, ordinal, timestamp)

    @classmethod
    def before(cls, catalog_uuid: UUID, position: Position) -> Cursor:
        """Return the cursor just before ``position``: the first record after it is the one at ``position``."""
        return cls(catalog_uuid, *position.preceding())

    @classmethod
    def past(cls, catalog_uuid: UUID, position: Position) -> Cursor:
        """Return the cursor after the whole record at ``position``."""
        return cls(catalog_uuid, position.version, position.index)

    @property
    def position(self) -> Position:
        """Position of the last record passed, wholly or in part."""
        return Position(self.version, self.index)

    def __str__(self) -> str:
        """Return the text form."""
        place = f"1.{self.catalog_uuid.hex}.{self.version}.{self.index}.{self.ordinal}"
        return place if self.commit_timestamp is None else f"{place}.{self.commit_timestamp}"


class RowMark(NamedTuple):
    """The place of a row's capture within the state of some tables."""

    entity_type: str
    """Digest of the name of the row's entity type."""
    ordinal: int
    primary_key: str | None
    """Primary key of the row; None if it is too long, then ``key_digest`` is set."""
    key_digest: str = ""
    """Digest of a long primary key; empty if ``primary_key`` is set."""

    def is_of_key(self, primary_key: str) -> bool:
        """Return True if the place is in the row with this primary key."""
        if self.primary_key is not None:
            return primary_key == self.primary_key
        return _digest(primary_key.encode(), 16) == self.key_digest

    def __str__(self) -> str:
        if self.primary_key is None:
            return f"{self.entity_type}.{self.ordinal}.d{self.key_digest}"
        key = urlsafe_b64encode(self.primary_key.encode()).decode().rstrip("=")
        return f"{self.entity_type}.{self.ordinal}.k{key}"


@dataclass(frozen=True, slots=True)
class StateCursor(Cursor):
    """A place in the initial state of a subscription.

    As a plain ``Cursor`` it is the end of ``version``. Code that uses it so would skip the rows after this
    place.
    """

    tables: str = ""
    """Digest of the names of the state's entity types. The place is valid only in a state of the same
    tables."""
    row: RowMark | None = None
    """The last capture passed; None: none yet."""

    @classmethod
    def begin(cls, version: Cursor, entity_types: Iterable[str]) -> StateCursor:
        """Return the cursor before the first row of a state.

        Args:
            version: The cursor at the end of the state's version.
            entity_types: Names of the state's tables, in the order in which they are sent.
        """
        names = "\0".join(entity_types).encode()
        return cls(
            version.catalog_uuid,
            version.version,
            END,
            commit_timestamp=version.commit_timestamp,
            tables=_digest(names, 8),
        )

    def behind(self, entity_type: str, primary_key: str, ordinal: int = 0) -> StateCursor:
        """Return the cursor after the capture of a row in the same state."""
        return replace(self, row=row_mark(entity_type, primary_key, ordinal))

    def behind_state(self) -> Cursor:
        """Return the cursor after the whole state: the end of its version in the log."""
        return Cursor(self.catalog_uuid, self.version, END, commit_timestamp=self.commit_timestamp)

    def __str__(self) -> str:
        """Return the text form."""
        timestamp = "" if self.commit_timestamp is None else self.commit_timestamp
        start = f"2.{self.catalog_uuid.hex}.{self.version}.{timestamp}.{self.tables}"
        return start if self.row is None else f"{start}.{self.row}"


def row_mark(entity_type: str, primary_key: str, ordinal: int) -> RowMark:
    """Return the place of a row's capture; a long primary key becomes a digest."""
    data = primary_key.encode()
    known = len(data) <= _KEY_BYTES_MAX
    return RowMark(
        type_mark(entity_type),
        ordinal,
        primary_key if known else None,
        "" if known else _digest(data, 16),
    )


def type_mark(entity_type: str) -> str:
    """Return the digest of an entity type's name, as hex digits."""
    return _digest(entity_type.encode(), 8)


def _digest(data: bytes, size: int) -> str:
    return blake2b(data, digest_size=size).hexdigest()


def _state_cursor(text: str) -> StateCursor:
    """Parse the text form of a ``StateCursor``.

    Raises:
        CursorInvalid: The text is not a ``StateCursor``.
    """
    match = _STATE_FORM.fullmatch(text)
    if match is None or int(match[2]) > MAX_VERSION or int(match[3] or 0) > _TIMESTAMP_MAX:
        raise CursorInvalid(text)
    row = None
    if match[5] is not None:
        if int(match[6]) > END:
            raise CursorInvalid(text)
        try:
            key = None if match[7] is None else urlsafe_b64decode(_padded(match[7])).decode()
        except ValueError:
            raise CursorInvalid(text) from None
        row = RowMark(match[5], int(match[6]), key, match[8] or "")
    return StateCursor(
        UUID(hex=match[1]),
        int(match[2]),
        END,
        commit_timestamp=None if match[3] is None else int(match[3]),
        tables=match[4],
        row=row,
    )


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)
