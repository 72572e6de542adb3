"""File descriptors: the server takes as many as it may have.

Each connection takes one, and so does each open file of the log. Shells and service managers start a process
with a low limit that it may raise itself, often 1,024: idle connections would reach it long before the
server's own bounds do.
"""

from __future__ import annotations

import resource

import structlog

_log = structlog.get_logger("tailrace.server")


def raise_limit() -> None:
    """Raise this process's limit to the highest that it may set; a refusal is logged."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _log.warning("limit of file descriptors stays", limit=soft, reason=str(error))
