"""The command line: one module per command."""

from tailrace_server.cli.application import main

__all__ = ["main"]
