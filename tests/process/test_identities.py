"""Identities of a server process: set up as the page says, and no credential in anything that it says."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING

import httpx
import pytest
import websockets
from websockets.asyncio.client import connect

import tailrace
from tailrace.errors import TailraceError
from tests.process.commands import TERMINATE, Command, ServerProcess, outcome
from tests.support.inprocess import PATIENCE_S, know
from tests.support.issuer import TokenIssuer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

LIVE = "/v1/catalogs/shop/changes/live"


async def test_no_credential_is_in_anything_that_a_server_or_a_client_says(
    log_root: Path, tmp_path: Path
) -> None:
    """Logs at their loudest, answers, headers, metrics, listings, errors with their tracebacks."""
    know(log_root, "shop", {"product": ("id",)})
    issuer = TokenIssuer("https://login.example")
    (tmp_path / "jwks.json").write_bytes(issuer.jwks())
    issuers, keys = issuer.settings(tmp_path, keys="jwks.json"), tmp_path / "keys"
    said: list[str] = []
    # 1. A key as the page has it made; it is shown on stdout, once, and nowhere else.
    status, key, notes = await outcome("keys", "add", "job", "--file", keys)
    assert status == 0
    said.append(notes)
    token, expired = issuer.token(), issuer.token(-1)
    secrets = [key.strip(), token, expired, "gArbage.gArbage.gArbage", "sEcret"]
    options = ("--identities", str(issuers), "--api-keys", str(keys), "--log-level", "debug")
    server = ServerProcess(log_root, (*options, "--log-format", "json"))
    async with server.up() as command:
        # 2. Each secret in each place, the wrong ones too.
        async with httpx.AsyncClient(base_url=f"http://{server.http}", trust_env=False) as http:
            for secret in secrets:
                bearer = {"authorization": f"Bearer {secret}"}
                for headers in (
                    bearer,
                    {"authorization": secret},
                    {"authorization": f"x {secret}"},
                ):
                    for path in ("/v1/catalogs", "/subscriptions", "/metrics", "/health", "/none"):
                        answer = await http.get(path, headers=headers)
                        said += [answer.text, str(answer.headers)]
                for url in (f"{LIVE}?ticket={secret}", f"/v1/catalogs?token={secret}"):
                    said.append((await http.get(url)).headers.get("www-authenticate", ""))
                said.append(await _over_a_socket(server.http, secret))
                said.append(await _over_grpc(server.grpc, secret))
            said.append(
                (await http.get("/metrics", headers={"authorization": f"Bearer {token}"})).text
            )
        # 3. A command that shows the key from a file, while the server lists it.
        file = tmp_path / "token"
        file.write_text(key)
        status, listed, notes = await outcome(
            *("catalog", "list", "--server", server.grpc, "--token-file", file)
        )
        assert (status, "shop" in listed) == (0, True), notes
        said += [listed, notes]
        async with Command(
            *("watch", "shop", "--server", server.grpc, "--token-file", file)
        ) as watching:
            await watching.note("watching shop")
            # 4. The key goes: whoever holds it is told by its name.
            status, _, notes = await outcome("keys", "remove", "job", "--file", keys)
            assert status == 0
            await watching.note("api_key job is no longer accepted")
            assert await watching.end() != 0
            said += [notes, *watching.notes]
        command.send(TERMINATE)
        assert await command.end() == 0
        said += command.notes
    whole = "\n".join(said)
    for secret in secrets:
        for part in (secret, secret.rpartition(".")[2], secret.rpartition("_")[2]):
            assert part not in whole, f"{part[:12]}… is in what was said"
    assert '"event": "serving"' in whole, "the log is there"


async def _over_a_socket(address: str, secret: str) -> str:
    """Return what a socket that is initialised with a secret, and renewed with it, is told."""
    said = []
    protocol = websockets.Subprotocol("tailrace.v1")
    async with connect(f"ws://{address}{LIVE}", subprotocols=[protocol]) as socket:
        init = {"type": "connection_init", "payload": {"token": secret}}
        renewal = {"type": "token", "payload": {"token": secret}}
        try:
            for message in (init, {"type": "ping", "payload": {"token": secret}}, renewal):
                await socket.send(json.dumps(message))
                if message is not renewal:
                    said.append(str(await socket.recv()))
        except websockets.ConnectionClosed as closed:
            said.append(str(closed))
    return "\n".join([*said, str(socket.close_reason)])


async def _over_grpc(target: str, secret: str) -> str:
    """Return what a program is told, with its traceback, that shows a secret."""
    timeouts = tailrace.Timeouts(connect_s=PATIENCE_S)

    async def ask() -> str:
        return secret

    said = []
    for token in (secret, ask):
        client = tailrace.connect(target, token=token, timeouts=timeouts)
        try:
            async with client:
                await client.list_catalogs()
        except TailraceError as error:
            said += ["".join(traceback.format_exception(error)), repr(error), repr(client)]
    return "\n".join(said)
