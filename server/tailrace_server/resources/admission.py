"""Admission: the interface by which the engine checks and records subscriptions and reads of history.

The engine does not know the quotas and the audit behind this interface (access/). By default every request is
admitted, and nothing is recorded::

    with admissions.subscription(…) as admission:      an error in this block: recorded, quotas given back
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
    """The end of a subscription or a read."""

    error: TailraceError | None
    """The reason; None: a read came to its end, or its reader left."""
    captures: int
    """Number of captures handed to the transport."""
    nbytes: int
    """Number of bytes handed to the transport."""
    cursor: str
    """Cursor up to which everything was handed over; empty before the first capture of a read."""


class Admission(Protocol):
    """The admission of one subscription or read."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        """On an error, give all quotas back and record a refusal."""

    def take(self, effective: Sequence[Criteria]) -> None:
        """Take the share of the caller's quotas that the criteria need; call this once.

        Raises:
            QuotaExceeded: Too little of a quota is left.
            ServerFull: Nothing may be admitted at present, as it cannot be recorded.
        """

    def began(self, id: str, start: str = "") -> None:
        """Record the begin of the subscription or read, under an id.

        Raises:
            ServerFull: The audit requires a record, and it cannot be written.
        """

    def passed(self, nbytes: int) -> float:
        """Count bytes of history that were handed over; return the time to wait before the next, in seconds."""

    def ended(self, ending: Callable[[], Ending]) -> None:
        """Record the end and give all quotas back. Idempotent."""


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
        """Return the admission of a subscription; call this before the request is evaluated."""

    def history(
        self,
        caller: Principal,
        peer: Peer,
        catalog: str,
        asked: Sequence[Criteria],
        content: Content,
    ) -> Admission:
        """Return the admission of a read of history; call this before the request is evaluated."""

    def action(
        self, caller: Principal, peer: Peer, catalog: str, action: str, subject: str, reason: str
    ) -> AbstractContextManager[object]:
        """Return a context for an operator's action, which records the action at its end, or its refusal."""

    def faults(self) -> tuple[ServerFault, ...]:
        """Return the present faults of quotas and audit."""


class FreeAdmission:
    """Admits everything and records nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def take(self, effective: Sequence[Criteria]) -> None:
        """Do nothing: there are no quotas."""

    def began(self, id: str, start: str = "") -> None:
        """Do nothing: nothing is recorded."""

    def passed(self, nbytes: int) -> float:
        """Return 0: the next bytes need not wait."""
        return 0.0

    def ended(self, ending: Callable[[], Ending]) -> None:
        """Do nothing: nothing is recorded."""

    def subscription(self, *_: object) -> FreeAdmission:
        """Return this admission."""
        return self

    def history(self, *_: object) -> FreeAdmission:
        """Return this admission."""
        return self

    def action(self, *_: object) -> FreeAdmission:
        """Return this admission."""
        return self

    def faults(self) -> tuple[ServerFault, ...]:
        """Return no faults."""
        return ()


FREE: Final = FreeAdmission()
"""The admission of an engine without restrictions."""
