"""The WebSocket side of the JSON faces: one state machine after graphql-transport-ws, and a guarded socket.

What a payload means is the face's business (`connection.Face`); who may speak when, and how it ends, is settled
here once for all of them.
"""

from tailrace_server.api.websocket.connection import Face, SocketConnection, SocketOperation
from tailrace_server.api.websocket.sockets import Sockets

__all__ = ["Face", "SocketConnection", "SocketOperation", "Sockets"]
