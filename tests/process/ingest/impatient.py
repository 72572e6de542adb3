"""The command, which waits less long for the executors of a cluster: ``python -m …impatient ingest …``."""

from __future__ import annotations

from tailrace_server.cli import main
from tailrace_server.pipeline.spark import cluster

if __name__ == "__main__":
    vars(cluster)["EXECUTORS_WITHIN_S"] = 8.0
    main()
