"""The memory that requests hold, inside the memory budget: criteria, and pages that become an answer.

Each kind has a share. It is charged before the bytes are allocated. If they would not fit, the policy is
*refuse*, with ``ServerFull``: no other reader pays for it, and a retry helps once others have ended. Whoever is
alone is never refused: what one request may ask for has bounds of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from tailrace.errors import ServerFull
from tailrace_server.capture.matching.row_condition import condition_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.criteria import Criteria

CRITERIA_SHARE: Final = 5
"""Criteria may come to one part in so many of the memory budget: 100,000 subscribers of a key each need it."""
PAGES_SHARE: Final = 8
"""The same of pages."""

_CRITERIA_BYTES: Final = 1_500
"""Of one criteria, compiled, without its texts."""
_TEXT_BYTES: Final = 120
"""Of a text and its places in tuples and sets, beside its characters."""
_WIDE_BYTES: Final = 4
"""Of a character, at most, where not all are ASCII."""
_HASH_BYTES: Final = 150
"""Of the hash of a key for one entity type, in arrays and in the router's table."""


class KeptBytes:
    """The share of one kind."""

    def __init__(self, what: str, memory_bytes: int, share: int) -> None:
        """Begin with nothing, of one part in ``share``; ``what`` names the kind in errors, in the plural."""
        self._what = what
        self._share = share
        self.bytes_max = memory_bytes // share
        self.bytes = 0
        """The memory of all requests now."""

    def nothing(self) -> Kept:
        """Return what has nothing yet."""
        return Kept(self)

    def keep(self, nbytes: int) -> Kept:
        """Charge bytes until what is returned gives them back.

        Raises:
            ServerFull: There is no room for them.
        """
        kept = Kept(self)
        kept.add(nbytes)
        return kept

    def refusal(self) -> ServerFull:
        """Return why there is no room."""
        return ServerFull(
            f"{self._what} that are kept for requests have {self.bytes_max} bytes together, one part in "
            f"{self._share} of the server's memory (memory), and these would not fit; try again later, or ask "
            "for less"
        )


@dataclass(slots=True)
class Kept:
    """The memory of one request; used by ``with``, or given back by hand."""

    _share: KeptBytes
    nbytes: int = 0

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def add(self, nbytes: int) -> None:
        """Charge more.

        Raises:
            ServerFull: There is no room for it, and others have some.
        """
        share = self._share
        if share.bytes + nbytes > share.bytes_max and share.bytes > self.nbytes:
            raise share.refusal()
        self.nbytes += nbytes
        share.bytes += nbytes

    def move_to(self, other: Kept) -> None:
        """Let another have what this one has."""
        other.nbytes += self.nbytes
        self.nbytes = 0

    def give_back(self) -> None:
        """Charge nothing any more. Idempotent."""
        self._share.bytes -= self.nbytes
        self.nbytes = 0


def criteria_bytes(criteria: Iterable[Criteria], entity_types: int) -> int:
    """Return about what criteria take while they are open, compiled, in bytes.

    Args:
        criteria: What is asked for.
        entity_types: How many the log has: keys without entity types are hashed for each.
    """
    total = 0
    for one in criteria:
        texts = (*one.entity_type, *one.container_name)
        keys = one.primary_key
        types = len(one.entity_type) or entity_types
        total += _CRITERIA_BYTES + _characters(texts) + _characters(keys)
        total += _TEXT_BYTES * (len(texts) + len(keys)) + _HASH_BYTES * len(keys) * types
        if (condition := condition_of(one)) is not None:
            total += condition.nbytes
    return total


def _characters(texts: tuple[str, ...]) -> int:
    """Return the bytes of their characters: joined, as a call for each of 100,000 would hold up the loop."""
    joined = "".join(texts)
    return len(joined) * (1 if joined.isascii() else _WIDE_BYTES)
