"""The REST face: tables, history and SQL over HTTP; live changes over WebSocket and server-sent events."""

from tailrace_server.api.rest.routes import RestFace, http_problem

__all__ = ["RestFace", "http_problem"]
