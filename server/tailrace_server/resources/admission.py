"""The check that the engine makes before each subscription and each read of history, and reports the end of.

The engine does not know the quotas and the audit behind it (access/). By default everything is
admitted, and nothing recorded::

    with admissions.subscription(…) as admission:      refused in here by anything: recorded, given back
        admission.take(effective criteria)             QuotaExceeded
        … open it …
        admission.began(id, start)                     from here on `ended` gives back
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tailrace.criteria import Content, Criteria
    from tailrace.errors import TailraceError
    from tailrace_server.grants.principal import Peer, Principal
    from tailrace_server.resources.faults import ServerFault


@dataclass(frozen=True, slots=True)
class Ending:
    """How a subscription or a read ended."""

    error: TailraceError | None
    """Why; None: a read came to its end, or its reader left it."""
    captures: int
    """Handed to the transport."""
    nbytes: int
    cursor: str
    """Everything before it was handed over; empty before the first capture of a read."""


class Admission(Protocol):
    """The admission of one subscription or read."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        """Give everything back if it was left by an error, which is recorded as a refusal."""

    def take(self, effective: Sequence[Criteria]) -> None:
        """Take what the criteria need of the caller's quotas; once.

        Raises:
            QuotaExceeded: There is less.
            ServerFull: Nothing may be given now, as it cannot be recorded.
        """

    def began(self, id: str, start: str = "") -> None:
        """Record that it begins, under an id.

        Raises:
            ServerFull: It cannot be recorded, and has to be.
        """

    def passed(self, nbytes: int) -> float:
        """Count bytes of history that were handed over; return for how long the next have to wait, seconds."""

    def ended(self, ending: Callable[[], Ending]) -> None:
        """Record that it ended and give everything back. Idempotent."""


class Admissions(Protocol):
    """Admits subscriptions and reads. Lives on the event loop."""

    def subscription(
        self,
        caller: Principal,
        peer: Peer,
        catalog: str,
        asked: Sequence[Criteria],
        content: Content,
    ) -> Admission:
        """Return what a subscription is admitted with, before anything is looked at."""

    def history(
        self,
        caller: Principal,
        peer: Peer,
        catalog: str,
        asked: Sequence[Criteria],
        content: Content,
    ) -> Admission:
        """Return what a read of history is admitted with, before anything is looked at."""

    def action(
        self, caller: Principal, peer: Peer, catalog: str, action: str, subject: str, reason: str
    ) -> AbstractContextManager[object]:
        """Return what an operator's action is done in: recorded once it is done, or as refused."""

    def faults(self) -> tuple[ServerFault, ...]:
        """Return what is wrong with it now."""


class FreeAdmission:
    """Admits everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def take(self, effective: Sequence[Criteria]) -> None:
        """Take nothing."""

    def began(self, id: str, start: str = "") -> None:
        """Record nothing."""

    def passed(self, nbytes: int) -> float:
        """Let the next bytes go at once."""
        return 0.0

    def ended(self, ending: Callable[[], Ending]) -> None:
        """Record nothing."""

    def subscription(self, *_: object) -> FreeAdmission:
        """Return this."""
        return self

    def history(self, *_: object) -> FreeAdmission:
        """Return this."""
        return self

    def action(self, *_: object) -> FreeAdmission:
        """Return this."""
        return self

    def faults(self) -> tuple[ServerFault, ...]:
        """Return none."""
        return ()


FREE: Final = FreeAdmission()
"""The admission of an engine without restrictions."""
