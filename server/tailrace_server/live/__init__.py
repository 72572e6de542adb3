"""Live delivery: from published batches to every subscriber, as columns up to the socket.

::

    wal.Tailer ─▶ observer ─▶ router ─▶ publisher ─▶ ring of runs ─▶ subscription ─▶ a face
                                            one per criteria   │           ▲
                                                               └─ overrun ─┴─ resync: read the log

Reading order: ring, publisher, router, intake, subscription; then the observer in `catalogs`.
"""
