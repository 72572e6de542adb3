"""Making a publication: what is committed up to the end of an entry is released to readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import FORMAT_VERSION, PUBLICATIONS, PublicationDocument
from tailrace_server.wal.files.sealed import object_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.wal.state.commit_log import CommitLog


def create_publication(
    log: CommitLog,
    *,
    now: int,
    up_to: tuple[int, int] | None = None,
    state_versions: Mapping[str, int] | None = None,
) -> PublicationDocument | None:
    """Create the publication that comes next, and apply it; None when another has its number.

    Args:
        log: The log as far as it has been read.
        now: µs since the epoch.
        up_to: Number and last version of the entry to release, whose name is durable; None: the last one.
        state_versions: Version of each state table that shows the catalog as it is released.

    Raises:
        LogFull: No room.
    """
    state = log.state
    entry, version = up_to or (state.last_commit_entry, state.last_version)
    publication = PublicationDocument(
        format_version=FORMAT_VERSION,
        number=state.last_publication + 1,
        uuid=state.uuid,
        previous_crc32c=state.publication_crc,
        epoch=state.epoch,
        entry=entry,
        version=version,
        timestamp=now,
        state_versions=dict(state_versions or {}),
    )
    path = f"{PUBLICATIONS}/{object_name(publication.number)}"
    data, crc = documents.sealed(publication)
    if not log.store.create(path, data, failpoint="publication"):
        return None
    if log.withdraws(path, crc):
        return None
    state.apply_publication(path, publication, crc)
    return publication
