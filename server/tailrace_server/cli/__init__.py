"""The command line: one module per command."""

import sys

from tailrace_server.cli.commands import named
from tailrace_server.extras import installed
from tailrace_server.process import poll_in_calling_thread, quiet_core, read_deep_values

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit; the console script.

    If only the client is installed, `plain` runs in place of `application`, with two commands. See
    docs/adr/0002.
    """
    read_deep_values()
    poll_in_calling_thread()  # before any module of a command, since they import gRPC
    quiet_core("ERROR" if named(sys.argv[1:]) == "serve" else "NONE")
    if installed("cli"):
        from tailrace_server.cli.application import main as run
    else:
        from tailrace_server.cli.plain import main as run
    run()
