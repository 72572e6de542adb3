"""WebSockets of the JSON faces: the state machine of graphql-transport-ws, and a guarded socket.

A face (`connection.Face`) interprets the payloads. The order of messages and the end of a socket are
implemented here, once for all faces.
"""

from tailrace_server.api.websocket.connection import Face, SocketConnection, SocketOperation
from tailrace_server.api.websocket.sockets import Sockets

__all__ = ["Face", "SocketConnection", "SocketOperation", "Sockets"]
