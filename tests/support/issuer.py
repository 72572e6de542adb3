"""An issuer of tokens as a test needs one: real keys, real JWTs, and their JWKS over HTTP on loopback."""

from __future__ import annotations

import json
import threading
import time
import warnings
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, KeyParameters, OKPKey, RSAKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AUDIENCE: Final = "tailrace"
Key = RSAKey | ECKey | OKPKey


def new_key(algorithm: str, kid: str) -> Key:
    """Return a private key for an algorithm."""
    parameters: KeyParameters = {"kid": kid, "use": "sig"}
    if algorithm.startswith(("RS", "PS")):
        return RSAKey.generate_key(2048, parameters)
    if algorithm.startswith("ES"):
        return ECKey.generate_key("P-256", parameters)
    return OKPKey.generate_key("Ed25519", parameters)


class TokenIssuer:
    """Signs tokens, and publishes its keys while it is served."""

    def __init__(self, address: str, algorithm: str = "EdDSA") -> None:
        """Begin with one key."""
        self.address = address
        """Its name, and where it is served."""
        self.algorithm = algorithm
        self.keys: list[Key] = [new_key(algorithm, "1")]
        """Those that are published; the last one signs."""
        self.asked: list[str] = []
        """Paths that were asked for."""
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        """Answers in place of its own, by path."""

    def rotate(self) -> None:
        """Sign with a new key, and publish no other."""
        self.keys = [new_key(self.algorithm, str(int(str(self.keys[-1].kid)) + 1))]

    def jwks(self) -> bytes:
        """Return its public keys."""
        return json.dumps({"keys": [each.as_dict(private=False) for each in self.keys]}).encode()

    def token(self, lifetime_s: float = 600, *, key: Key | None = None, **claims: Any) -> str:
        """Return a token; claims that are None are left out."""
        key = key or self.keys[-1]
        body = {
            "iss": self.address,
            "aud": AUDIENCE,
            "sub": "anna",
            "exp": time.time() + lifetime_s,
        }
        body |= claims
        head = {"alg": self.algorithm, "kid": key.kid}
        return signed(head, {name: value for name, value in body.items() if value is not None}, key)

    def settings(self, folder: Path, **members: Any) -> Path:
        """Write and return a file of issuers that names this one; without ``keys``, by discovery."""
        table: dict[str, Any] = {
            "issuer": self.address,
            "audience": AUDIENCE,
            "algorithms": [self.algorithm],
        }
        table |= {"leeway_s": 0, **members}
        file = folder / "identities.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
        file.write_text("\n".join(["[[issuer]]", *lines, ""]))
        return file

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for a path."""
        self.asked.append(path)
        if path in self.answers:
            return self.answers[path]
        if path == "/jwks":
            return 200, {}, self.jwks()
        if path == "/.well-known/openid-configuration":
            found = {"issuer": self.address, "jwks_uri": f"{self.address}/jwks"}
            return 200, {}, json.dumps(found).encode()
        return 404, {}, b""


def signed(head: dict[str, Any], claims: dict[str, Any], key: Key) -> str:
    """Return a JWT with a head as it is given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        return jwt.encode(head, claims, key, algorithms=[head["alg"]])


@contextmanager
def issuing(algorithm: str = "EdDSA") -> Iterator[TokenIssuer]:
    """Serve an issuer on loopback for the time of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = issuer.answer(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer = TokenIssuer(f"http://127.0.0.1:{server.server_port}", algorithm)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
