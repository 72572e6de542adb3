"""The command line: one module per command."""

import os
import sys

from tailrace_server.extras import remedy
from tailrace_server.process import poll_in_calling_thread

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit; the console script.

    It is installed with the client alone, too, which cannot run it: that is said in one line, with the status
    of what cannot begin (errors.py, whose imports may be those that are missing).
    """
    poll_in_calling_thread()  # first of all: every command's modules import gRPC
    try:
        from tailrace_server.cli.application import main as run
    except ModuleNotFoundError as error:
        wanted = remedy(error)
        if wanted is None or os.environ.get("TAILRACE_TRACEBACK"):
            raise
        print(f"error: {wanted}", file=sys.stderr)
        sys.exit(2)
    run()
