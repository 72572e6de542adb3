"""The queue of the audit and its thread: in order, bounded, and loud where it cannot write."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

from tailrace_server.access.audit_trail import (
    AuditFile,
    AuditLine,
    AuditTrail,
    Ended,
    Refused,
    moment,
)
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pathlib import Path

FULL = "/dev/full"
"""Takes nothing, as a full disk does."""


def line(number: int, kind: type[AuditLine] = Ended, **fields: Any) -> AuditLine:
    return kind(time=moment(), principal=str(number), **fields)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def full_disk(path: Path) -> Path:
    """Put a disk without room under the path, until something else is put there."""
    path.symlink_to(FULL)
    return path


def make_room(path: Path) -> None:
    path.unlink()
    path.touch()


def test_lines_are_written_in_order_to_the_last_one(path: Path) -> None:
    trail = AuditTrail(AuditFile(path), 1 << 20)
    for number in range(1_000):
        assert trail.put(line(number))
    trail.close(30.0)
    assert [each["principal"] for each in lines_of(path)] == [str(n) for n in range(1_000)]
    found = trail.statistics()
    assert (found.written, found.lost, found.queued_bytes) == (1_000, 0, 0)


def test_a_full_disk_is_told_at_once_and_when_it_goes_on_nothing_is_missing(
    full_disk: Path,
) -> None:
    with structlog.testing.capture_logs() as told:
        trail = AuditTrail(AuditFile(full_disk), 1 << 20, again_s=0.01)
        trail.put(line(1))
        wait_until(lambda: trail.statistics().standing_still_s > 0)
        assert trail.statistics().reason == "No space left on device"
        trail.put(line(2))
        make_room(full_disk)
        wait_until(lambda: trail.statistics().written == 2)
        assert trail.statistics().standing_still_s == 0
        trail.close(30.0)
    assert [each["principal"] for each in lines_of(full_disk)] == ["1", "2"]
    assert [(each["event"], each["log_level"]) for each in told] == [
        ("audit not written", "error"),
        ("audit resumed", "info"),
    ]


def test_what_does_not_fit_is_lost_counted_and_told_in_its_place(full_disk: Path) -> None:
    trail = AuditTrail(AuditFile(full_disk), 4_000, again_s=0.01)
    kept = 0
    while trail.put(line(kept)):
        kept += 1
    assert not trail.put(line(-1))
    assert kept > 3
    assert trail.statistics().lost == 2
    make_room(full_disk)
    wait_until(lambda: trail.statistics().written == kept + 1)
    trail.put(line(kept))
    trail.close(30.0)
    found = lines_of(full_disk)
    assert [each["principal"] for each in found if each["event"] == "ended"] == [
        str(n) for n in range(kept + 1)
    ]
    assert (found[kept]["event"], found[kept]["lost"]) == ("audit_resumed", 2)


def test_lines_that_anybody_can_cause_leave_half_of_the_queue(full_disk: Path) -> None:
    trail = AuditTrail(AuditFile(full_disk), 8_000, again_s=0.01)
    refused = line(0, Refused, code="UNAUTHENTICATED", reason="x" * 200)
    while trail.put(refused):
        pass
    assert trail.statistics().queued_bytes <= 4_000
    assert trail.put(line(1))
    assert not trail.put(refused)
    trail.close(30.0)


def test_what_is_left_at_the_end_is_told(full_disk: Path) -> None:
    with structlog.testing.capture_logs() as told:
        trail = AuditTrail(AuditFile(full_disk), 1 << 20, again_s=0.01)
        trail.put(line(1))
        wait_until(lambda: trail.statistics().standing_still_s > 0)
        trail.close(30.0)
    assert told[-1]["event"] == "audit lost"
    assert told[-1]["lost_bytes"] > 0
    assert not trail.put(line(2))


def test_a_write_that_does_not_return_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stderr is a pipe whose reader reads nothing."""
    reading, writing = os.pipe()
    # What was read last may be counted a moment later, and nothing more comes.
    os.set_blocking(reading, False)
    clock = Clock()
    with os.fdopen(writing, "w") as stderr, os.fdopen(reading, "rb", buffering=0) as reader:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stderr)
            trail = AuditTrail(AuditFile(None), 1 << 20, clock)
        while trail.put(line(0, reason="x" * 2_000)):
            pass
        assert trail.statistics().standing_still_s == 0

        def hangs() -> bool:
            clock.now += 1.0
            return trail.statistics().reason == "a write does not return"

        wait_until(hangs)
        assert trail.statistics().standing_still_s >= 5.0
        while trail.statistics().queued_bytes:
            reader.read(1 << 16)
        assert trail.statistics().reason == ""
        trail.close(30.0)
