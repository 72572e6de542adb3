"""The capture engine: from published log batches to every subscriber, columnar to the socket.

::

    wal.Tailer ─▶ observer ─▶ router ─▶ publisher ─▶ ring of runs ─▶ subscription ─▶ a face
                                            one per criteria   │           ▲
                                                               └─ overrun ─┴─ resync: read the log

Reading order: matching/ (run, predicate, router), delivery/ (ring, publisher, intake, start, subscription),
then observer and engine.
"""
