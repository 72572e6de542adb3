"""The operators' interface over HTTP: the page at ``/``, its figures, and a request to end a subscription."""

from tailrace_server.api.operator.recent_lines import RecentLines
from tailrace_server.api.operator.routes import OperatorFace

__all__ = ["OperatorFace", "RecentLines"]
