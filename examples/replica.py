"""Keep a SQLite copy of a catalog's tables in step with it, through kills, stalls and reconnects.

    python examples/replica.py shop shop.sqlite --server 127.0.0.1:7411

Each row is one line of the table ``rows``: entity type, primary key, image. A transaction of the log is one
transaction of SQLite, which holds the cursor, too: so the copy is always that of some version, whole, and a
replica that was killed goes on behind its last transaction, with no gap and no repeat.

A copy that is so old that the log no longer reaches back to it ends with ``PositionCompacted``: begin a new
one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import sys
from typing import TYPE_CHECKING, Self

import tailrace
from tailrace import END, Area, Content, Cursor, Heartbeat, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

_TABLES = """
CREATE TABLE IF NOT EXISTS rows (
    entity_type TEXT NOT NULL, primary_key TEXT NOT NULL, image BLOB NOT NULL,
    PRIMARY KEY (entity_type, primary_key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS place (id INTEGER PRIMARY KEY CHECK (id = 1), cursor TEXT NOT NULL);
"""


class Replica:
    """The copy: applies captures in order, transaction by transaction."""

    def __init__(self, path: Path | str) -> None:
        """Open the file, or make it."""
        # One call at a time, but not always from one thread.
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(_TABLES)
        self._open = False
        self._left = 0
        """Records of the open transaction that are still to come."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file; a transaction that is not complete is forgotten and comes again."""
        self._database.close()

    @property
    def cursor(self) -> Cursor | None:
        """Behind the last transaction that the copy contains whole; None: nothing was copied yet."""
        row = self._database.execute("SELECT cursor FROM place").fetchone()
        return None if row is None else Cursor.parse(row[0])

    def rows(self, entity_type: str) -> dict[str, object]:
        """Return the copy of one table, parsed, by primary key."""
        query = "SELECT primary_key, image FROM rows WHERE entity_type = ?"
        return {
            key: json.loads(image) for key, image in self._database.execute(query, (entity_type,))
        }

    def apply(self, captures: Iterable[tailrace.Capture]) -> None:
        """Apply captures in the order in which they came; what is complete is durable on return."""
        for capture in captures:
            if capture.operation is Operation.TRANSACTION:
                self._begin(capture)
            else:
                assert self._open, f"record {capture.position} came without its lead"
                if capture.area is Area.DATA:
                    self._change(capture)
                self._left -= 1
            if self._left == 0:
                committed = capture.commit_timestamp
                self._commit(
                    Cursor(capture.catalog_uuid, capture.version, END, commit_timestamp=committed)
                )

    def _begin(self, lead: tailrace.Capture) -> None:
        # The lead says how many records follow: so the end is known when it is reached, not when the next
        # begins.
        assert not self._open, f"version {lead.version} began inside another transaction"
        assert lead.after is not None
        self._left = json.loads(lead.after)["mutation_count"]
        self._database.execute("BEGIN")
        self._open = True

    def _change(self, capture: tailrace.Capture) -> None:
        assert not capture.omitted_bytes, f"the image of {capture.position} is too large"
        place = (capture.entity_type, capture.primary_key)
        if capture.after is not None:
            sql = "INSERT OR REPLACE INTO rows VALUES (?, ?, ?)"
            self._database.execute(sql, (*place, capture.after))
        elif capture.primary_key is not None:
            sql = "DELETE FROM rows WHERE (entity_type, primary_key) = (?, ?)"
            self._database.execute(sql, place)
        else:
            # A removal without a key is a truncate.
            self._database.execute("DELETE FROM rows WHERE entity_type = ?", place[:1])

    def _commit(self, cursor: Cursor) -> None:
        self._database.execute("INSERT OR REPLACE INTO place VALUES (1, ?)", (str(cursor),))
        self._database.execute("COMMIT")
        self._open = False


async def follow(server: str, catalog: str, replica: Replica, *, until: int | None = None) -> None:
    """Apply every change to a replica; with ``until``, end once it contains that version."""
    start: dict[str, object] = {"since": 0}
    if replica.cursor is not None:
        start = {"after": replica.cursor}
    async with (
        tailrace.connect(server) as client,
        client.subscribe(catalog, content=Content.AFTER, **start) as changes,  # type: ignore[arg-type]
    ):
        async for message in changes.messages():
            if not isinstance(message, Heartbeat):
                # SQLite waits for the disk; the event loop, which reads ahead meanwhile, does not.
                await asyncio.to_thread(replica.apply, message)
            done = replica_version(replica)
            print(f"\r{catalog} version {done}", end="", file=sys.stderr, flush=True)
            if until is not None and done >= until:
                return


def replica_version(replica: Replica) -> int:
    """Return the version that a replica contains, 0 for none."""
    cursor = replica.cursor
    return 0 if cursor is None else cursor.version


def main() -> None:
    """Follow a catalog until Ctrl-C."""
    arguments = argparse.ArgumentParser(description="Keep a SQLite copy of a catalog.")
    arguments.add_argument("catalog")
    arguments.add_argument("file")
    arguments.add_argument("--server", default="127.0.0.1:7411")
    given = arguments.parse_args()
    with Replica(given.file) as replica:
        try:
            asyncio.run(follow(given.server, given.catalog, replica))
        except KeyboardInterrupt:
            print(f"\nstopped at version {replica_version(replica)}", file=sys.stderr)
        except tailrace.TailraceError as error:
            raise SystemExit(f"\n{error}") from None


if __name__ == "__main__":
    main()
