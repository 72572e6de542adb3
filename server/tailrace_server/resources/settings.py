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
        "anonymous memory of the process; the batch cache takes what all else leaves",
    )
    frames_bytes: int = setting(
        32 << 20,
        "bytes",
        "encoded frames cached for other subscriptions; at most 2 MiB or two blocks for each open "
        "one",
    )
    reads_bytes: int = setting(
        16 << 20,
        "bytes",
        "heads and scans cached for other subscriptions: some 300,000 records",
    )
    ring_captures: int = setting(
        250_000,
        "captures",
        "a commit of 100,000 rows fits twice, so its readers stay live",
    )
    ring_bytes: int = setting(
        1 << 20, "bytes", "4 bytes a capture, or nothing if a whole batch matches"
    )
    rings_bytes: int = setting(
        128 << 20,
        "bytes",
        "all rings together, so that 100,000 publishers stay inside the memory budget",
    )
    queue_captures: int = setting(
        20_000, "captures", "captures that a subscription has taken from its ring and not delivered"
    )
    message_bytes: int = setting(
        64 << 10,
        "bytes",
        "size at which a message is cut; larger ones cost memory for each stalled stream",
    )
    max_message_bytes: int = setting(
        4 << 20,
        "bytes",
        "a larger capture comes as a header with omitted_bytes; gRPC's own default limit",
    )
    heartbeat_interval_s: float = setting(
        10.0,
        "seconds",
        "proof of life; also how often the resume cursor of a quiet filter advances",
    )
    criteria: int = setting(
        1_000,
        "criteria",
        "most alternatives of one request; one alternative may have 100,000 keys",
    )
    send_deadline_s: float = setting(
        60.0,
        "seconds",
        "how long a write may stay blocked before the subscription ends as too slow",
    )
    max_connection_age_s: float | None = setting(
        None,
        "seconds",
        "age at which a connection ends, up to a fifth later; its subscriptions get their resume "
        "cursor, so that a balancer can move them to a new server",
    )
    max_connection_age_grace_s: float = setting(
        30.0,
        "seconds",
        "how much longer open requests may take before the connection is cut",
    )
    scan_batches: int = setting(
        32, "batches", "batches that one resync step reads before others have their turn"
    )
    scan_rows: int = setting(
        65_536, "records", "records that one resync step reads before others have their turn"
    )
    reader_threads: int = setting(
        2,
        "threads",
        "threads for file reads and encoding; two hide one disk read behind another",
    )
    opening_patience_s: float = setting(
        5.0,
        "seconds",
        "how long start-up and a subscribe wait for a catalog whose storage does not answer",
    )
    standstill_s: float = setting(
        10.0,
        "seconds",
        "how long a read of a log may take or be overdue before /health reports it",
    )
    room_bytes: int = setting(
        64 << 20,
        "bytes",
        "/health reports a file system of a log with less free space; a checkpoint needs as much",
    )
    sql_statements: int = setting(
        4,
        "statements",
        "statements at once, each in a process of its own; a further one waits 5 s for a place",
    )
    sql_memory_bytes: int = setting(
        64 << 20,
        "bytes",
        "sorts, groups and joins of one statement, without files; its functions may take 128 MiB "
        "more",
    )
    sql_s: float = setting(60.0, "seconds", "time of a statement, from its start to its last row")
    sql_rows: int = setting(10_000_000, "rows", "rows of one answer; read more as history")
    named_subscriptions: int = setting(
        1_000,
        "names",
        "names of one catalog; each has a folder of small files",
    )
    named_subscriptions_of_owner: int = setting(
        100,
        "names",
        "names of one catalog that one principal may own; not on a server without identities",
    )
    hold_max_s: float = setting(
        7 * 24 * 3600.0,
        "seconds",
        "the longest hold that a named subscription may be created with",
    )
    hold_bytes_max: int = setting(
        100 << 30,
        "bytes",
        "the largest hold in bytes of the log",
    )
    reopen_interval_s: float = setting(
        2.0, "seconds", "how soon the server tries a catalog again whose log it could not read"
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
