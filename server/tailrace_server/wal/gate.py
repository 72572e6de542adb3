"""The gate of a log: it delays publication until external tables show the versions to publish.

A gate is an entry of the log, so every writer reads it before its next commit, whichever process set the gate::

    writer   commit 6, published ── commit 7 ────────────── commit 8 ────────────────
    gate                  gate ──────────── tables at 7 ─ publish 7 ── tables at 8 ─ …

After the gate's entry, commits do not publish themselves, and a writer's ``publish`` releases nothing. The
process that serves the gate reads the committed versions, updates its tables, then publishes. While that
process is down nothing is published: the versions above ``published`` are durable and wait. A log has at most
one gate. The gate stays until it is removed.
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
    """Set a gate unless the same gate is set already; return it.

    Args:
        log: The log; its folder must be writable.
        name: Kind of the tables.
        place: Place of the tables.
        entity_types: The entity types that the tables show; empty: all.
        clock: Source of the entry's timestamp.

    Raises:
        InvalidRequest: The log has another gate.
        LogFull: The file system is full.
        LogUnreadable: Permission is missing.
    """
    while True:
        log.advance()
        state = log.state
        if state.gate is not None:
            refuse_other_gate(log, name, place, entity_types)
            return state.gate
        # The entry's number follows from the state just read. If another entry takes it, read that and check
        # again.
        gate = GateDocument(name, place, sorted(entity_types), state.last_version)
        if _create(log, gate, clock):
            return gate


def refuse_other_gate(log: CommitLog, name: str, place: str, entity_types: Sequence[str]) -> None:
    """Raise InvalidRequest if the log has a gate that differs from this one."""
    gate = log.state.gate
    if gate is None:
        return
    if (gate.name, gate.place, gate.entity_types) != (name, place, sorted(entity_types)):
        shown = ", ".join(gate.entity_types) or "all entity types"
        raise InvalidRequest(
            f"catalog {log.state.name!r} already has a gate, {gate.name} at {gate.place} for "
            f"{shown}, and can have only one: end that export and run tailrace catalog gate "
            f"{log.state.name} --remove"
        )


def take_away_gate(log: CommitLog, clock: Clock) -> GateDocument | None:
    """Remove the gate and publish the commits that waited for it; return the gate, or None if there was none.

    Raises:
        LogFull: The file system is full.
        LogUnreadable: Permission is missing.
    """
    while True:
        log.advance()
        gate = log.state.gate
        if gate is not None and not _create(log, None, clock):
            continue
        break
    # Publish here what waited for the gate, as the catalog's writer may never commit again. If this process is
    # killed before that, the next writer that commits or opens the catalog publishes it.
    if gate is not None:
        view, entry = log.durable_view()
        publish_behind(log, (entry, view.published), {}, clock)
    return gate


def publish_behind(
    log: CommitLog, up_to: tuple[int, int], state_versions: Mapping[str, int], clock: Clock
) -> PublicationDocument | None:
    """Publish up to an entry from ``CommitLog.durable_view``; return None if that is published already.

    Args:
        log: The log.
        up_to: Number and last version of the entry.
        state_versions: Table → its version that shows the catalog as of the entry.
        clock: Source of the publication's time.

    Raises:
        LogFull: The file system is full.
    """
    while log.state.published < up_to[1]:
        made = create_publication(log, now=clock.now(), up_to=up_to, state_versions=state_versions)
        if made is not None:
            return made
        log.advance()
    return None


def _create(log: CommitLog, gate: GateDocument | None, clock: Clock) -> bool:
    """Create the entry that sets or removes the gate; return False if another entry has the number."""
    state = log.state
    # Any process may create this entry, so it uses the present epoch: it fences no writer.
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
