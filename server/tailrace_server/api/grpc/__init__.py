"""The gRPC face: one service over bytes, health and reflection, a graceful stop."""

from tailrace_server.api.grpc.server import GrpcServer
from tailrace_server.api.grpc.settings import GrpcSettings

__all__ = ["GrpcServer", "GrpcSettings"]
