"""Every bound of the engine, with its unit and reason; docs/settings.md is generated from these fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.criteria import CatchUp, OverrunPolicy

if TYPE_CHECKING:
    from tailrace_server.resources.version_waits import VersionWait


def setting(default: Any, unit: str, reason: str) -> Any:
    """Return a dataclass field that documents itself."""
    return field(default=default, metadata={"unit": unit, "reason": reason})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Bounds of one engine, that is, of one server process."""

    memory_bytes: int = setting(
        1 << 30,
        "bytes",
        "most anonymous memory of the process; the batch cache takes what the other parts leave",
    )
    frames_bytes: int = setting(
        32 << 20,
        "bytes",
        "most bytes of encoded frames cached for other subscriptions; at most 2 MiB or two "
        "blocks for each open subscription",
    )
    reads_bytes: int = setting(
        16 << 20,
        "bytes",
        "most bytes of heads and scans cached for other subscriptions: about 300,000 records",
    )
    ring_captures: int = setting(
        250_000,
        "captures",
        "most captures of one ring; a commit of 100,000 rows fits twice, so its readers stay live",
    )
    ring_bytes: int = setting(
        1 << 20,
        "bytes",
        "most bytes of one ring: 4 bytes a capture, or nothing if a whole batch matches",
    )
    rings_bytes: int = setting(
        128 << 20,
        "bytes",
        "most bytes of all rings together, so that 100,000 publishers stay inside the memory "
        "budget",
    )
    queue_captures: int = setting(
        20_000,
        "captures",
        "most captures that a subscription has taken from its ring and not yet delivered",
    )
    message_bytes: int = setting(
        64 << 10,
        "bytes",
        "size at which a message is complete; larger messages cost memory for each stalled stream",
    )
    max_message_bytes: int = setting(
        4 << 20,
        "bytes",
        "largest message; a larger capture is sent without bodies, with omitted_bytes; the "
        "default is gRPC's own limit",
    )
    heartbeat_interval_s: float = setting(
        10.0,
        "seconds",
        "interval between heartbeats; they also advance the resume cursor of a subscription "
        "without matches",
    )
    criteria: int = setting(
        1_000,
        "criteria",
        "most criteria of one request; each may have 100,000 keys",
    )
    send_deadline_s: float = setting(
        60.0,
        "seconds",
        "longest time for which a write may be blocked; then the subscription ends as too slow",
    )
    max_connection_age_s: float | None = setting(
        None,
        "seconds",
        "age at which a connection is closed, up to 1/5 later; its subscriptions get their "
        "resume cursor, so that a load balancer can move them to a new server",
    )
    max_connection_age_grace_s: float = setting(
        30.0,
        "seconds",
        "extra time for open requests after max_connection_age; then the connection is cut",
    )
    scan_batches: int = setting(
        32,
        "batches",
        "most batches that one resync step reads before other subscriptions have their turn",
    )
    scan_rows: int = setting(
        65_536,
        "records",
        "most records that one resync step reads before other subscriptions have their turn",
    )
    reader_threads: int = setting(
        2,
        "threads",
        "threads for file reads and encoding; with two, one encodes while the other waits for "
        "the disk",
    )
    opening_patience_s: float = setting(
        5.0,
        "seconds",
        "longest wait of start-up and of a subscribe for a catalog whose storage does not answer",
    )
    standstill_s: float = setting(
        10.0,
        "seconds",
        "time after which /health reports that a read of a log is running or overdue",
    )
    room_bytes: int = setting(
        64 << 20,
        "bytes",
        "least free space of a log's file system; with less, /health reports it; a checkpoint "
        "needs as much",
    )
    sql_statements: int = setting(
        4,
        "statements",
        "most SQL statements at once, each in a process of its own; a further one waits 5 s for "
        "a place",
    )
    sql_memory_bytes: int = setting(
        64 << 20,
        "bytes",
        "most memory for sorts, groups and joins of one statement, which writes no temporary "
        "files; its functions may take 128 MiB more",
    )
    sql_s: float = setting(
        60.0, "seconds", "longest time of a statement, from its start to its last row"
    )
    sql_rows: int = setting(
        10_000_000, "rows", "most rows of one SQL answer; larger ones are better read as history"
    )
    named_subscriptions: int = setting(
        1_000,
        "names",
        "most named subscriptions of one catalog; each has a folder of small files",
    )
    named_subscriptions_of_owner: int = setting(
        100,
        "names",
        "most named subscriptions of one catalog that one principal may own; without effect on a "
        "server without identities",
    )
    hold_max_s: float = setting(
        7 * 24 * 3600.0,
        "seconds",
        "longest hold with which a named subscription may be created",
    )
    hold_bytes_max: int = setting(
        100 << 30,
        "bytes",
        "largest hold in bytes of the log with which a named subscription may be created",
    )
    reopen_interval_s: float = setting(
        2.0,
        "seconds",
        "interval at which the server tries again to open a catalog whose log it could not read",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionLimits:
    """The options of one subscription, except its start; None means the engine's bound."""

    queue_captures: int | None = None
    max_message_bytes: int | None = None
    heartbeat_interval_s: float | None = None
    catch_up: CatchUp = CatchUp.ALL
    """Which of the records before the live end the subscription receives when it begins."""
    overrun: OverrunPolicy = OverrunPolicy.RESYNC
    """Policy when the ring has evicted captures that the subscription has not taken."""
    wait: VersionWait | None = None
    """Version whose publication to wait for before the start is looked up; None: no wait."""
