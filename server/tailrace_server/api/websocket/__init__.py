"""The WebSocket side of the JSON faces: one state machine after graphql-transport-ws, and a guarded socket.

A face (`connection.Face`) gives payloads their meaning. The order of messages, and how a socket ends, are
implemented here once for all faces.
"""

from tailrace_server.api.websocket.connection import Face, SocketConnection, SocketOperation
from tailrace_server.api.websocket.sockets import Sockets

__all__ = ["Face", "SocketConnection", "SocketOperation", "Sockets"]
