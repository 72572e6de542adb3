"""What operators see over HTTP: the page at ``/`` and its figures."""

from tailrace_server.api.operator.recent_lines import RecentLines
from tailrace_server.api.operator.routes import OperatorFace

__all__ = ["OperatorFace", "RecentLines"]
