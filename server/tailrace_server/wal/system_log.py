"""The system log: a log of what happened to the catalogs of a log root.

Each record has area SCHEMA, entity type ``catalog``, and the catalog's name as its key. A uuid and an event
identify it::

    created    UPSERT   change {"event": "created"}     after {name, uuid, created}
    replaced   UPSERT   change {"event": "replaced"}    before and after, with different uuids
    dropped    REMOVE   change {"event": "dropped"}     before {name, uuid, created}

The records are derived from the folders: ``record_changes`` compares the existing catalogs with the system log
and writes the missing records. So a crash between a folder's rename and its record loses nothing, and a repeat
adds nothing. The next command that writes records a folder that was added by hand. A missing folder counts as a
drop only with the mark of ``tailrace catalog drop``: otherwise its volume may just not be mounted. Several
processes may record at once: each takes over the system log from the other, and the loser starts again from the
winner's records.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from tailrace.criteria import Area, Operation
from tailrace.errors import LogCorrupted, LogUnreadable, WriterFenced
from tailrace_server.wal.catalog_writer import CatalogWriter
from tailrace_server.wal.files.catalog_folder import (
    SYSTEM_CATALOG,
    SYSTEM_WRITER,
    create_folder,
    is_catalog,
    is_dropped,
    list_catalogs,
    read_named,
)
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.transaction_writer import TransactionWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace.clock import Clock

Descriptor = dict[str, Any]
"""Name, uuid and creation time of a catalog."""

ENTITY_TYPE: Final = "catalog"

_log = logging.getLogger("tailrace.wal")


def record_changes(root: Path, *, clock: Clock | None = None) -> None:
    """Write the missing records about catalogs to the system log.

    Raises:
        LogFull: The file system is full; the next call writes the records.
        LogCorrupted: The system log is damaged.
    """
    create_folder(root, SYSTEM_CATALOG, clock)
    while True:
        recorded = _recorded(root)
        # Compare before opening a writer: opening fences other processes and creates an entry, and usually
        # nothing is missing.
        if not _missing(recorded, _standing(root, recorded)):
            return
        try:
            opened = CatalogWriter.open(root, SYSTEM_CATALOG, writer=SYSTEM_WRITER, clock=clock)
            with TransactionWriter(opened) as writer:
                # Opening publishes commits that a killed writer left, and the missing records may be among
                # them.
                recorded = _recorded(root)
                for mutation in _missing(recorded, _standing(root, recorded)):
                    writer.append([mutation])
        except WriterFenced:
            _log.debug("another process has taken over the system log of %s", root)


def _standing(root: Path, recorded: Mapping[str, Descriptor]) -> dict[str, Descriptor]:
    """Return the catalogs that were not dropped, by name; an unreadable one keeps its recorded descriptor."""
    # 1. Begin with the recorded catalogs. A folder that is missing, unreadable, damaged, of a newer format or a
    #    copy of another catalog is not a drop, and must not keep the other catalogs from being recorded.
    found = {
        name: descriptor
        for name, descriptor in recorded.items()
        if not is_dropped(root, UUID(descriptor["uuid"]))
    }
    # 2. Where a folder can be read, its descriptor replaces the recorded one.
    for name in list_catalogs(root):
        with suppress(LogUnreadable, LogCorrupted):
            document = read_named(root, name)
            found[name] = {"name": name, "uuid": str(document.uuid), "created": document.created}
    return found


def recorded_uuid(root: Path, name: str) -> UUID | None:
    """Return the uuid of a catalog in the system log; None if the catalog is unknown or was dropped."""
    found = _recorded(root).get(name) if is_catalog(root / SYSTEM_CATALOG) else None
    return None if found is None else UUID(found["uuid"])


def _recorded(root: Path) -> dict[str, Descriptor]:
    """Return the catalogs that exist according to the system log, by name."""
    assert is_catalog(root / SYSTEM_CATALOG)
    standing: dict[str, Descriptor] = {}
    view = CommitLog.open(root / SYSTEM_CATALOG).view
    with BatchReader(root / SYSTEM_CATALOG) as reader:
        for place in range(len(view)):
            batch = view.batch(place)
            keys = reader.head(batch).primary_keys.to_pylist()
            images = reader.body(batch, ["after"])["after"].to_pylist()
            for name, after in zip(keys, images, strict=True):
                if name is None:
                    continue
                if after is None:
                    standing.pop(name, None)
                else:
                    standing[name] = orjson.loads(after)
    return standing


def _missing(
    recorded: Mapping[str, Descriptor], standing: Mapping[str, Descriptor]
) -> list[Mutation]:
    """Return the records that turn the recorded catalogs into the standing ones."""
    missing = []
    for name in sorted(recorded.keys() | standing.keys()):
        before, after = recorded.get(name), standing.get(name)
        if before == after:
            continue
        event = "created" if before is None else "dropped" if after is None else "replaced"
        missing.append(
            Mutation(
                entity_type=ENTITY_TYPE,
                primary_key=name,
                operation=Operation.UPSERT if after is not None else Operation.REMOVE,
                before=None if before is None else orjson.dumps(before),
                after=None if after is None else orjson.dumps(after),
                change=orjson.dumps({"event": event}),
                changed=("uuid", "created") if event == "replaced" else None,
                area=Area.SCHEMA,
            )
        )
    return missing
