"""Who waits for gRPC's connections: to be chosen before gRPC is imported, which reads its environment then.

By itself gRPC has a pool of threads wait for sockets and hand each event on to the thread that asked for it.
Its older listener lets the thread that asks wait itself, so a message wakes a thread less: a tenth of the
server's time where one subscriber catches up, nothing to be seen with a hundred (docs/adr/0036).
"""

from __future__ import annotations

import os
from typing import Final

EXPERIMENTS: Final = "GRPC_EXPERIMENTS"
"""Of gRPC: names to switch on, with a minus to switch off."""


def let_who_asks_wait() -> None:
    """Take the older listener in this process, unless the environment says itself what gRPC is to try."""
    os.environ.setdefault(EXPERIMENTS, "-event_engine_listener")
