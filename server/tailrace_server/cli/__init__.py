"""The command line: one module per command."""

from tailrace_server.listener import let_who_asks_wait

let_who_asks_wait()  # first of all: every command's modules import gRPC

from tailrace_server.cli.application import main  # noqa: E402 - see above

__all__ = ["main"]
