"""The REST face: history over HTTP, live changes over WebSocket and as server-sent events."""

from tailrace_server.api.rest.routes import RestFace, http_problem

__all__ = ["RestFace", "http_problem"]
