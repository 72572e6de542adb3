"""The images of a batch that tests hand to predicates, read when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.rows.batch_images import BatchImages

if TYPE_CHECKING:
    from tailrace_server.rows.batch_images import WrittenSchemas
    from tailrace_server.wal.segment.reader import BatchReader
    from tailrace_server.wal.segment.refs import BatchRef


def images_of(reader: BatchReader, ref: BatchRef, written: WrittenSchemas) -> BatchImages:
    """Return the images of a batch."""
    return BatchImages(lambda name: reader.body(ref, (name,))[name], written)
