"""The choice of gRPC's listener; in processes of their own, as gRPC reads its environment once."""

from __future__ import annotations

import os
import subprocess
import sys

from tailrace_server.listener import EXPERIMENTS

_USE_GRPC = "import grpc; grpc.insecure_channel('127.0.0.1:1').close()"
_CHOOSE = "from tailrace_server.listener import let_who_asks_wait; let_who_asks_wait(); "
_SEEN_BY_GRPC = f"""
import os, sys

class Seen:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("{EXPERIMENTS}"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Seen())
sys.argv = ["tailrace", "--help"]
from tailrace_server.cli import main
main()
"""


def ran(code: str, experiments: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run code with the variable set, or without it."""
    environment = {name: value for name, value in os.environ.items() if name != EXPERIMENTS}
    if experiments is not None:
        environment[EXPERIMENTS] = experiments
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )


def test_grpc_knows_what_it_is_told() -> None:
    assert "Unknown experiment" in ran(_USE_GRPC, "-never_heard_of").stderr
    assert ran(_CHOOSE + _USE_GRPC).stderr == ""


def test_every_command_says_it_before_grpc_is_imported() -> None:
    assert ran(_SEEN_BY_GRPC).stdout.split() == ["-event_engine_listener"]


def test_what_the_environment_says_stands() -> None:
    assert ran(_SEEN_BY_GRPC, "event_engine_fork").stdout.split() == ["event_engine_fork"]
