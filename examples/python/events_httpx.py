"""Follow products as server-sent events, with httpx.

python examples/python/events_httpx.py shop --server 127.0.0.1:7412
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import suppress

import httpx


def follow(server: str, catalog: str) -> None:
    """Print changes until Ctrl-C; a lost server is waited for."""
    url = f"http://{server}/v1/catalogs/{catalog}/changes/live"
    wish = {"sinceVersion": "0", "area": "DATA", "entityType": "product", "body": "after"}
    headers = {"accept": "text/event-stream"}
    # A heartbeat comes every 10 s: who hears nothing for much longer has lost the server.
    with httpx.Client(timeout=httpx.Timeout(10, read=30)) as client:
        while True:
            try:
                with client.stream("GET", url, params=wish, headers=headers) as answer:
                    if answer.is_client_error:
                        raise SystemExit(json.loads(answer.read())["detail"])
                    answer.raise_for_status()
                    event: dict[str, str] = {}
                    for line in answer.iter_lines():
                        if line:
                            name, _, value = line.partition(": ")
                            event[name] = value
                            continue
                        if "event" not in event:  # the others are signals, with a name
                            show(**json.loads(event["data"]))
                        elif event["event"] == "error":
                            print(json.loads(event["data"])["detail"], file=sys.stderr)
                        if "id" in event:  # whoever comes back goes on exactly here
                            headers["last-event-id"] = event["id"]
                        event = {}
            except httpx.HTTPError as error:
                print(error, file=sys.stderr)
            time.sleep(1)


def show(
    *,
    version: int,
    index: int,
    operation: str,
    primaryKey: str,
    after: object = None,
    omittedBytes: int = 0,
    **_: object,
) -> None:
    """Print a change; the names are those of its JSON."""
    image = json.dumps(after, ensure_ascii=False, separators=(",", ":"))
    if omittedBytes:  # a row above maxMessageBytes, 4 MiB unless we ask for another bound
        image = f"({omittedBytes} bytes left out)"
    print(f"{version}:{index} {operation} {primaryKey} {image}", flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Follow products as server-sent events.")
    arguments.add_argument("catalog", nargs="?", default="shop")
    arguments.add_argument("--server", default="127.0.0.1:7412")
    with suppress(KeyboardInterrupt):
        follow(**vars(arguments.parse_args()))
