"""The gRPC face: one service over bytes, health and reflection, a graceful stop."""

from tailrace_server.api.grpc.server import GrpcServer, GrpcStatistics
from tailrace_server.api.settings import GrpcSettings

__all__ = ["GrpcServer", "GrpcSettings", "GrpcStatistics"]
