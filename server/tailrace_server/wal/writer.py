"""The writers of a catalog, by their public names."""

from __future__ import annotations

from tailrace_server.wal.catalog_writer import CatalogWriter, CommitReceipt, Publication
from tailrace_server.wal.files.documents import PendingSegment
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation

__all__ = [
    "CatalogWriter",
    "CommitReceipt",
    "LogWriter",
    "Mutation",
    "PendingSegment",
    "Publication",
]
