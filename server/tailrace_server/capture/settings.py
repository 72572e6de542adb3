"""Every bound of the engine, with its unit and reason; docs/settings.md is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.criteria import CatchUp, OverrunPolicy

if TYPE_CHECKING:
    from tailrace_server.capture.delivery.version_waits import VersionWait


def setting(default: Any, unit: str, reason: str) -> Any:
    """Return a dataclass field that documents itself."""
    return field(default=default, metadata={"unit": unit, "reason": reason})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Bounds of one engine, that is, of one server process."""

    memory_bytes: int = setting(
        1 << 30,
        "bytes",
        "what the process may hold in anonymous memory; the batch cache takes what all else leaves, "
        "as measured",
    )
    frames_bytes: int = setting(
        32 << 20,
        "bytes",
        "encoded frames kept for others, and no more than 2 MiB or two blocks for each open subscription: "
        "enough for those near each other, and memory that is used again soon is still in the "
        "processor's cache",
    )
    reads_bytes: int = setting(
        16 << 20,
        "bytes",
        "heads and scans kept for others: some 300,000 records near each other; the page cache has the rest",
    )
    ring_captures: int = setting(
        250_000,
        "captures",
        "a commit of 100,000 rows fits twice, so that it sends nobody to the log",
    )
    ring_bytes: int = setting(
        1 << 20, "bytes", "4 bytes a capture, or nothing where a whole batch matches"
    )
    rings_bytes: int = setting(
        128 << 20,
        "bytes",
        "all rings together, so that 100,000 publishers stay inside the memory budget",
    )
    queue_captures: int = setting(
        20_000, "captures", "what a subscription may have taken from its ring and not delivered"
    )
    message_bytes: int = setting(
        64 << 10,
        "bytes",
        "where a message is cut: cost is per message up to here, memory per stalled stream beyond",
    )
    max_message_bytes: int = setting(
        4 << 20,
        "bytes",
        "a capture above it comes as a header with omitted_bytes; gRPC's own default limit",
    )
    heartbeat_interval_s: float = setting(
        10.0,
        "seconds",
        "proof of life, and the pace at which a quiet filter's resume cursor advances",
    )
    criteria: int = setting(
        1_000,
        "criteria",
        "of one request at most, by any face: each is compared with every change; keys of equal criteria "
        "belong in one, which may have 100,000",
    )
    send_deadline_s: float = setting(
        60.0,
        "seconds",
        "how long a write may stay blocked before the subscription ends as too slow",
    )
    max_connection_age_s: float | None = setting(
        None,
        "seconds",
        "how long a connection may last, and up to a fifth longer so that not all end at once; then its "
        "subscriptions end with their resume cursor. For servers behind a balancer: a new one gets its share",
    )
    max_connection_age_grace_s: float = setting(
        30.0,
        "seconds",
        "how long what is under way may take after that, a history read or a reader that stalls; then the "
        "connection is cut",
    )
    scan_batches: int = setting(
        32, "batches", "how much of the log one resync step reads before others have their turn"
    )
    scan_rows: int = setting(65_536, "records", "the same in records, where commits were large")
    reader_threads: int = setting(
        2,
        "threads",
        "file reads and encoding leave the event loop; two hide one disk read behind another",
    )
    opening_patience_s: float = setting(
        5.0,
        "seconds",
        "how long start-up, and a subscribe, wait for a catalog whose storage does not answer; a log of "
        "10,000 commits opens in half a second",
    )
    standstill_s: float = setting(
        10.0,
        "seconds",
        "how long a look at a log may be overdue or take before /health says so",
    )
    room_bytes: int = setting(
        64 << 20,
        "bytes",
        "less than this free on the file system of a log is told by /health: a checkpoint or a compaction of "
        "a large log takes as much",
    )
    sql_statements: int = setting(
        4,
        "statements",
        "in SQL at once, each in a process of its own; a further one waits 5 s for a place. One whose reader "
        "stands still keeps it",
    )
    sql_memory_bytes: int = setting(
        64 << 20,
        "bytes",
        "what the sorts, groups and joins of one statement may take; no files are used, so it ends there. What "
        "its functions make may take 128 MiB besides",
    )
    sql_s: float = setting(
        60.0, "seconds", "how long a statement may take, from its start to its last row"
    )
    sql_rows: int = setting(
        10_000_000, "rows", "that one statement may answer; more is an export, as history gives it"
    )
    named_subscriptions: int = setting(
        1_000,
        "names",
        "named subscriptions of one catalog: each has a folder of small files, which a trim and /metrics read",
    )
    named_subscriptions_of_owner: int = setting(
        100,
        "names",
        "named subscriptions of one catalog that one principal may own, so that it leaves names to others. An "
        "open server does not know its callers: there `named_subscriptions` alone counts",
    )
    hold_max_s: float = setting(
        7 * 24 * 3600.0,
        "seconds",
        "the largest hold that a named subscription may be created with: what one reader that stands still "
        "may keep from retention",
    )
    hold_bytes_max: int = setting(
        100 << 30,
        "bytes",
        "the same in bytes of the log; a disk has room for it beside what it needs anyway",
    )
    reopen_interval_s: float = setting(
        2.0, "seconds", "how soon a catalog whose log could not be read is tried again"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionLimits:
    """The options of one subscription beside its start; None takes the engine's bound."""

    queue_captures: int | None = None
    max_message_bytes: int | None = None
    heartbeat_interval_s: float | None = None
    catch_up: CatchUp = CatchUp.ALL
    """The records that it receives of those it is behind as it begins."""
    overrun: OverrunPolicy = OverrunPolicy.RESYNC
    """The policy when its ring has overtaken it."""
    wait: VersionWait | None = None
    """For a version to be published, before the start is found; None: for nothing."""
