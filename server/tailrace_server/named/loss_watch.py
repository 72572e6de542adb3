"""Periodic check of every catalog's named subscriptions and settings, for metrics, heartbeats and warnings."""

from __future__ import annotations

import asyncio
import heapq
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from tailrace.errors import LogError
from tailrace.named import SubscriptionHealth
from tailrace_server.log_cache.loss import NO_LOSS, Loss, RetentionTerms, loss_of
from tailrace_server.named.requests import NamedView
from tailrace_server.wal.files.local_files import LocalFiles
from tailrace_server.wal.sequences.definitions import newest_definitions
from tailrace_server.wal.sequences.settings import newest_settings
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.upkeep.keeping import excess_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from tailrace_server.catalogs.observer import Observer
    from tailrace_server.log_cache.damage import Damage
    from tailrace_server.wal.files.sequence_documents import SubscriptionDocument
    from tailrace_server.wal.state.view import LogView

_EVERY_S: Final = 5.0
_QUIET_AT_ONCE: Final = 100
"""The most catalogs without named subscriptions in one round: with a thousand, each is checked every 50 s."""
_NEAR: Final = 5
"""A loss is near if less than 1/5 of the retained or held time or bytes is left."""
_log = structlog.get_logger("tailrace.named")


@dataclass(frozen=True, slots=True)
class WatchedSubscription:
    """One named subscription at the last check."""

    named: NamedView
    loss: Loss
    """The time and bytes left until retention may remove records that the subscription still needs."""


class LossWatch:
    """The periodic check. Used on the event loop; files are read in threads."""

    def __init__(self, root: Path, observers: Callable[[], Sequence[tuple[str, Observer]]]) -> None:
        """Watch the catalogs under a log root; ``observers`` returns name and observer of the open ones."""
        self._root = root
        self._observers = observers
        self._found: dict[str, tuple[WatchedSubscription, ...]] = {}
        self._looking: set[str] = set()
        self._looked_at: dict[str, float] = {}
        """Catalog → monotonic time at which its last check began."""
        self._warned: dict[tuple[str, str], str] = {}
        """Catalog and name of a subscription → kind of its last logged warning."""

    @property
    def found(self) -> list[WatchedSubscription]:
        """The named subscriptions of all catalogs at their last check, sorted by catalog and name."""
        return [each for _, found in sorted(self._found.items()) for each in found]

    async def run(self) -> None:
        """Check all catalogs periodically; a catalog whose storage hangs does not delay the others."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                observers = dict(self._observers())
                self._found = {
                    name: each for name, each in self._found.items() if name in observers
                }
                for name in self._due(observers):
                    self._looking.add(name)
                    tasks.create_task(self._look_at(name, observers[name]))
                await asyncio.sleep(_EVERY_S)

    def _due(self, names: Iterable[str]) -> list[str]:
        """Return the catalogs to check in this round.

        These are all catalogs with named subscriptions, and up to ``_QUIET_AT_ONCE`` others, the longest
        unchecked first. A catalog whose last check is still running is left out.
        """
        before, now = self._looked_at, time.monotonic()
        due = [name for name in names if name not in self._looking]
        quiet = [name for name in due if not self._found.get(name)]
        # A catalog that has never been checked counts as checked at 0, so it comes first.
        first = heapq.nsmallest(_QUIET_AT_ONCE, quiet, key=lambda name: before.get(name, 0.0))
        due = [name for name in due if self._found.get(name)] + first
        self._looked_at = {name: before.get(name, 0.0) for name in names} | dict.fromkeys(due, now)
        return due

    async def _look_at(self, catalog: str, observer: Observer) -> None:
        view = observer.log.view
        try:
            settings, documents = await asyncio.to_thread(
                _read, self._root / catalog, view, observer.log.reading.damage
            )
        except Exception as error:  # usually a fault of the storage; retry in a later round
            _log.warning("named subscriptions not read", catalog=catalog, error=str(error))
            return
        finally:
            self._looking.discard(catalog)
        # The log may have changed while the files were read.
        view, now = observer.log.view, time.time_ns() // 1000
        observer.log.retention = terms = RetentionTerms.of(settings)
        observer.log.excess = excess_of(view, settings, documents, now)
        found = tuple(_watched(each, view, terms, now) for each in documents)
        self._found[catalog] = found
        for each in found:
            self._warn(each, terms)

    def _warn(self, one: WatchedSubscription, terms: RetentionTerms) -> None:
        """Log a warning when a loss is near, and when it has happened; each only once."""
        named, key = one.named, (one.named.catalog, one.named.name)
        if named.health in (SubscriptionHealth.BROKEN, SubscriptionHealth.LOST):
            word = named.health.name
        else:
            word = "NEAR" if _is_near(one, terms) else ""
        if self._warned.get(key, "") == word:
            return
        self._warned[key] = word
        if word:
            _log.warning(
                "named subscription loses its place soon"
                if word == "NEAR"
                else "named subscription has no hold",
                catalog=named.catalog,
                name=named.name,
                health=named.health.name,
                needed=str(named.hold.needed),
                lost_in_s=None if one.loss.in_us is None else one.loss.in_us // 1_000_000,
                lost_in_bytes=one.loss.in_bytes,
                reader=named.document.reader,
            )


def _read(
    path: Path, view: LogView, damage: Damage
) -> tuple[Mapping[str, int], list[SubscriptionDocument]]:
    """Return a catalog's settings and named subscriptions, and note damaged files.

    Definitions are read too, but only to find damage.
    """
    store = LocalFiles(path)
    with suppress(LogError):  # damaged definitions concern only readers of views
        damage.noted(partial(newest_definitions, store, view.uuid))
    settings = damage.noted(partial(newest_settings, store, view.uuid)).settings
    return settings, damage.noted(SubscriptionSequences(path, view.uuid).all)


def _watched(
    document: SubscriptionDocument, view: LogView, terms: RetentionTerms, now: int
) -> WatchedSubscription:
    named = NamedView.of(document, view, now)
    if named.hold.lost:
        return WatchedSubscription(named, NO_LOSS)
    hold = (0, 0) if document.broken else (document.hold_us, document.hold_bytes)
    return WatchedSubscription(named, loss_of(view, named.hold.needed, terms, hold, now))


def _is_near(one: WatchedSubscription, terms: RetentionTerms) -> bool:
    document, loss = one.named.document, one.loss
    # Records stay as long as either the hold or retention keeps them, so the larger one is the whole.
    whole_us = max(document.hold_us, terms.lookback_us or 0)
    whole_bytes = max(document.hold_bytes, terms.bytes_left or 0)
    by_time = loss.in_us is not None and loss.in_us * _NEAR < whole_us
    by_bytes = loss.in_bytes is not None and loss.in_bytes * _NEAR < whole_bytes
    return by_time or by_bytes
