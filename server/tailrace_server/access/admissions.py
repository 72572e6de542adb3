"""Admission of subscriptions and reads: each is recorded in the audit and charged to quotas."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from tailrace.errors import TailraceError
from tailrace_server.access.audit import address_of, unrecorded
from tailrace_server.access.audit_trail import (
    AuditLine,
    Ended,
    HistoryBegun,
    HistoryEnded,
    Subscribed,
)
from tailrace_server.access.quotas import Quotas
from tailrace_server.rows.criteria_form import one_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace.criteria import Content, Criteria
    from tailrace_server.access.audit import Audit
    from tailrace_server.access.quotas import Taken
    from tailrace_server.grants.principal import Peer, Principal
    from tailrace_server.resources.admission import Ending
    from tailrace_server.resources.faults import ServerFault

_VALUES_SHOWN = 100
"""Most values of each list in criteria that a line has; criteria may name 100,000 keys."""


class RecordedAdmissions:
    """The admission of subscriptions and reads to one engine."""

    def __init__(self, audit: Audit, quotas: Quotas | None = None) -> None:
        """Record in an audit, and charge to quotas; the default quotas are off."""
        self._audit = audit
        self._quotas = quotas or Quotas()

    def subscription(
        self,
        caller: Principal,
        peer: Peer,
        catalog: str,
        asked: Sequence[Criteria],
        content: Content,
    ) -> RecordedAdmission:
        """Return the admission of a subscription, nothing charged yet."""
        return RecordedAdmission(self._audit, self._quotas, caller, peer, catalog, asked, content)

    def history(
        self,
        caller: Principal,
        peer: Peer,
        catalog: str,
        asked: Sequence[Criteria],
        content: Content,
    ) -> RecordedAdmission:
        """Return the admission of a read of history, nothing charged yet."""
        return RecordedRead(self._audit, self._quotas, caller, peer, catalog, asked, content)

    @contextmanager
    def action(
        self, caller: Principal, peer: Peer, catalog: str, action: str, subject: str, reason: str
    ) -> Iterator[None]:
        """Record an operator's action if the body succeeds, or its refusal."""
        try:
            yield
        except TailraceError as error:
            self._audit.refused(error, peer, caller, catalog)
            raise
        self._audit.operator_action(caller, peer, action, subject, reason, catalog)

    def faults(self) -> tuple[ServerFault, ...]:
        """Return the fault that the audit cannot be written, if it cannot."""
        return self._audit.faults()


class RecordedAdmission:
    """The admission of one subscription, from its request to its end."""

    __slots__ = (
        "_asked",
        "_audit",
        "_caller",
        "_catalog",
        "_content",
        "_effective",
        "_id",
        "_peer",
        "_quotas",
        "_taken",
    )

    begins: type[AuditLine] = Subscribed
    ends: type[AuditLine] = Ended

    def __init__(
        self,
        audit: Audit,
        quotas: Quotas,
        caller: Principal,
        peer: Peer,
        catalog: str,
        asked: Sequence[Criteria],
        content: Content,
    ) -> None:
        """Begin without a charge; ``asked`` are the criteria of the request."""
        self._audit = audit
        self._quotas = quotas
        self._caller = caller
        self._peer = peer
        self._catalog = catalog
        self._asked = self._effective = asked
        self._content = content
        self._taken: Taken | None = None
        self._id = ""
        """The id of the subscription or read while it is open; empty before and after."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        """On an error, release the quotas; record the error if it is a refusal."""
        if error is not None:
            self._give_back()
        if isinstance(error, TailraceError):
            self._audit.refused(error, self._peer, self._caller, self._catalog)

    def take(self, effective: Sequence[Criteria]) -> None:
        """Charge the quotas for the criteria as granted, ``effective``.

        Raises:
            QuotaExceeded: A quota is used up; nothing was charged.
            ServerFull: The audit is required and cannot be written.
        """
        # Check the audit before the quotas: a refused use must not hold any.
        self._audit.refuse_unrecorded()
        self._effective = effective
        if self._quotas.is_on:
            self._taken = self._take(sum(len(each.primary_key) for each in effective))

    def began(self, id: str, start: str = "") -> None:
        """Record the begin with its criteria, and release the criteria.

        Raises:
            ServerFull: The audit is required and its queue is full.
        """
        self._id = id or uuid4().hex
        if self._audit.is_on:
            fields = {
                "asked": _words(self._asked),
                "effective": _words(self._effective),
                "content": self._content.name or "",
            }
            if start:
                fields["start"] = start
            if not self._put(self.begins, **fields):
                raise unrecorded("its queue is full")
        # Criteria may have 100,000 keys, so they are not retained as long as the subscription is open.
        self._asked = self._effective = ()

    def _take(self, keys: int) -> Taken:
        criteria = {"criteria": (self._catalog, hash(tuple(self._effective)))}
        amounts = {"subscriptions": 1, "keys": keys}
        return self._quotas.take(self._caller, address_of(self._peer), amounts, criteria)

    def _give_back(self) -> None:
        if self._taken is not None:
            self._taken.give_back()
            self._taken = None

    def passed(self, nbytes: int) -> float:
        """Return 0: the bytes of a subscription are not limited."""
        return 0.0

    def ended(self, ending: Callable[[], Ending]) -> None:
        """Release the quotas, and record the reason of the end and the delivered amounts."""
        # Release the quotas even if the use has never begun.
        self._give_back()
        if not self._id:
            return
        found = ending()
        error = found.error
        self._put(
            self.ends,
            code="" if error is None else error.code,
            reason="" if error is None else str(error),
            captures=found.captures,
            bytes=found.nbytes,
            cursor=found.cursor,
        )
        self._id = ""

    def _put(self, kind: type[AuditLine], **fields: object) -> bool:
        return self._audit.put(kind, self._caller, self._peer, self._catalog, id=self._id, **fields)


def _words(criteria: Sequence[Criteria]) -> list[str]:
    """Return a text for each alternative of criteria, and one for the number of omitted alternatives."""
    words = [one_in_words(each, values_shown=_VALUES_SHOWN) for each in criteria[:_VALUES_SHOWN]]
    if len(criteria) > _VALUES_SHOWN:
        words.append(f"{len(criteria) - _VALUES_SHOWN:,} more")
    return words or ["everything"]


class RecordedRead(RecordedAdmission):
    """The admission of one read of history."""

    __slots__ = ()

    begins = HistoryBegun
    ends = HistoryEnded

    def _take(self, keys: int) -> Taken:
        address = address_of(self._peer)
        self._quotas.begin_history(self._caller, address)
        return self._quotas.take(self._caller, address, {"history_reads": 1, "keys": keys})

    def passed(self, nbytes: int) -> float:
        """Charge delivered bytes; return the seconds to wait before the next ones."""
        if not self._quotas.is_on:
            return 0.0
        return self._quotas.history(self._caller, address_of(self._peer), nbytes)
