"""The gate of a log: publication waits until tables show what is to be published.

A gate is an entry of the log, so every writer meets it before it can commit again, whoever has put it up::

    writer   commit 6, published ── commit 7 ────────────── commit 8 ────────────────
    gate                  gate ──────────── tables at 7 ─ publish 7 ── tables at 8 ─ …

From there on commits do not publish themselves, and a writer's ``publish`` releases nothing. Whoever keeps the
gate reads what is committed, brings its tables up to date, then publishes. If it is away nothing is published:
the versions above ``published`` are durable and wait. A log has one gate at most. It stays until it is taken
away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest
from tailrace_server.wal.entry_writer import EntryWriter, create_publication
from tailrace_server.wal.files.documents import (
    GATED,
    GateDocument,
    GateEntry,
    PublicationDocument,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.clock import Clock
    from tailrace_server.wal.state.commit_log import CommitLog


def put_up_gate(
    log: CommitLog, name: str, place: str, entity_types: Sequence[str], clock: Clock
) -> GateDocument:
    """Put up a gate, or find the same one standing; return it.

    Args:
        log: The log; its folder must be writable.
        name: What kind of tables.
        place: Where they are.
        entity_types: Those that they show; empty: all.
        clock: Time of the entry.

    Raises:
        InvalidRequest: There is another gate.
        LogFull: No room.
        LogUnreadable: No permission.
    """
    while True:
        log.advance()
        state = log.state
        if state.gate is not None:
            refuse_other_gate(log, name, place, entity_types)
            return state.gate
        gate = GateDocument(name, place, sorted(entity_types), state.last_version)
        if _create(log, gate, clock):
            return gate


def refuse_other_gate(log: CommitLog, name: str, place: str, entity_types: Sequence[str]) -> None:
    """Raise InvalidRequest if there is another gate than this."""
    gate = log.state.gate
    if gate is None:
        return
    if (gate.name, gate.place, gate.entity_types) != (name, place, sorted(entity_types)):
        shown = ", ".join(gate.entity_types) or "all entity types"
        raise InvalidRequest(
            f"catalog {log.state.name!r} has another gate, {gate.name} at {gate.place} for {shown}, and can "
            f"have one: end that export and say tailrace catalog gate {log.state.name} --remove"
        )


def take_away_gate(log: CommitLog, clock: Clock) -> GateDocument | None:
    """Remove the gate and publish the commits that waited for it; return it, None if there is none.

    Raises:
        LogFull: No room.
        LogUnreadable: No permission.
    """
    while True:
        log.advance()
        gate = log.state.gate
        if gate is not None and not _create(log, None, clock):
            continue
        break
    # What waited for the gate is released here, as its writer may never commit again. If this process is killed
    # before that, the next writer that commits or opens releases it.
    if gate is not None:
        view, entry = log.durable_view()
        publish_behind(log, (entry, view.published), {}, clock)
    return gate


def publish_behind(
    log: CommitLog, up_to: tuple[int, int], state_versions: Mapping[str, int], clock: Clock
) -> PublicationDocument | None:
    """Publish up to an entry that ``CommitLog.durable_view`` has returned; None where that is published.

    Args:
        log: The log.
        up_to: The entry and its last version.
        state_versions: Version of each table that shows the catalog at that version.
        clock: Time of the publication.

    Raises:
        LogFull: No room.
    """
    while log.state.published < up_to[1]:
        made = create_publication(log, now=clock.now(), up_to=up_to, state_versions=state_versions)
        if made is not None:
            return made
        log.advance()
    return None


def _create(log: CommitLog, gate: GateDocument | None, clock: Clock) -> bool:
    """Create the entry of a gate; False when another entry has the number."""
    state = log.state
    entries = EntryWriter(log, epoch=state.epoch, writer="", clock=clock)
    return entries.create(
        GateEntry(
            format_version=GATED,
            number=state.last_entry + 1,
            uuid=state.uuid,
            previous_crc32c=state.last_entry_crc,
            epoch=state.epoch,
            timestamp=entries.next_timestamp(),
            gate=gate,
        )
    )
