"""Follow products over gRPC by server reflection: neither generated code nor proto files.

python examples/python/grpc_by_reflection.py shop --server 127.0.0.1:7411
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

REFUSED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
)


def learn(channel: grpc.Channel) -> tuple[Any, Any, Any]:
    """Ask the server what it speaks: the call, the class of its requests, the operations by number."""
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    method = pool.FindServiceByName("tailrace.v1.ChangeCapture").FindMethodByName("Subscribe")
    operations = pool.FindEnumTypeByName("tailrace.v1.Operation").values_by_number
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    subscribe = channel.unary_stream(
        "/tailrace.v1.ChangeCapture/Subscribe", request.SerializeToString, response.FromString
    )
    return subscribe, request, operations


def follow(server: str, catalog: str) -> None:
    """Print changes until Ctrl-C; a server that is not there, or lost, is waited for."""
    channel = grpc.insecure_channel(server)
    learned = None
    criteria = {"area": "AREA_DATA", "entity_type": ["product"]}
    wish = {"catalog": catalog, "criteria": [criteria], "body": ["BODY_AFTER"]}
    start: dict[str, object] = {"since_version": 0}
    log = ""
    while True:
        try:
            subscribe, request, operations = learned = learned or learn(channel)
            for message in subscribe(request(**wish, **start)):
                if message.HasField("acknowledgement"):
                    log = message.acknowledgement.catalog_uuid.replace("-", "")
                for each in message.captures:
                    operation = operations[each.operation].name.removeprefix("OPERATION_")
                    image = each.after.decode() if each.HasField("after") else "null"
                    if each.omitted_bytes:  # a row above max_message_bytes, 4 MiB unless asked for
                        image = f"({each.omitted_bytes} bytes left out)"
                    print(
                        f"{each.version}:{each.index}",
                        operation,
                        each.primary_key,
                        image,
                        flush=True,
                    )
                    # Whoever comes back goes on exactly here.
                    start = {"after": f"1.{log}.{each.version}.{each.index}.{each.ordinal}"}
        except grpc.RpcError as error:
            if error.code() in REFUSED:
                raise SystemExit(error.details()) from None
            print(error.details(), file=sys.stderr)  # any other status may be a cut
        time.sleep(1)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Follow products over gRPC, by reflection.")
    arguments.add_argument("catalog", nargs="?", default="shop")
    arguments.add_argument("--server", default="127.0.0.1:7411")
    with suppress(KeyboardInterrupt):
        follow(**vars(arguments.parse_args()))
