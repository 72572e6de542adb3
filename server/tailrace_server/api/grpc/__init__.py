"""The gRPC face: the service with its messages as bytes, health, reflection, and a graceful stop."""

from tailrace_server.api.grpc.server import GrpcServer, GrpcStatistics
from tailrace_server.api.settings import GrpcSettings

__all__ = ["GrpcServer", "GrpcSettings", "GrpcStatistics"]
