"""A process that is killed at any instant of an acknowledgement loses nothing that was acknowledged."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tailrace.cursor import Cursor
from tailrace.position import END
from tailrace_server.wal.sequences import subscription_changes
from tailrace_server.wal.sequences.subscription_changes import HoldCap, new_subscription
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tailrace_server.wal.state.commit_log import CommitLog
from tests.server.wal.logs import finish, python, write

if TYPE_CHECKING:
    from pathlib import Path

READER = """
import sys
from pathlib import Path
from tailrace.position import END
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.sequences import subscription_changes as changes
from tailrace_server.wal.sequences.subscriptions import SubscriptionSequences
from tests.support import failpoints
path = Path(sys.argv[1])
view = CommitLog.open(path).view
sequences = SubscriptionSequences(path, view.uuid)
sequences.change("billing", lambda found: changes.taken_over(found, "a process", 1))
failpoints.arm(sys.argv[2])
for version in range(1, 31):
    cursor = view.cursor(version, END)
    sequences.change("billing", lambda found: changes.acknowledged(found, 1, cursor, 1))
    print("durable", version, flush=True)
"""


@pytest.mark.parametrize("place", ["before_link", "linked", "after_link"])
def test_what_was_acknowledged_is_there_after_a_kill(log_root: Path, place: str) -> None:
    write(log_root, "shop", 30, per_commit=10)
    catalog = log_root / "shop"
    view = CommitLog.open(catalog).view
    sequences = SubscriptionSequences(catalog, view.uuid)
    sequences.create(
        new_subscription(
            *(view, "billing", (), "earliest"),
            hold_us=None,
            hold_bytes=None,
            cap=HoldCap(),
            owner="",
            now=0,
        )
    )
    status, out, _ = finish(python(READER, catalog, f"named.{place}=kill@20"))
    assert status == -signal.SIGKILL
    told = int(out.split()[-1])
    assert told == 19
    # What it was told is durable; the one under way is, or is not.
    kept = Cursor.parse(sequences.get("billing").cursor)
    assert kept == view.cursor(told + (place != "before_link"), END)
    # The next reader goes on there, and whatever the dead one left is no hindrance.
    found = sequences.change(
        "billing", partial(subscription_changes.taken_over, reader="another", now=2)
    )
    assert found.epoch == 2
    last = view.cursor(30, END)
    sequences.change("billing", lambda found: subscription_changes.acknowledged(found, 2, last, 3))
    assert Cursor.parse(sequences.get("billing").cursor) == last
