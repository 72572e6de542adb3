"""What a token costs at the door: CPU of one check, by algorithm, known and unknown.

::

    token ──▶ hash ──▶ known? ──▶ who it is                                      known
                         │ no
                         └──▶ header, claims ──▶ signature ──▶ claims ──▶ who    unknown

Baseline of the same run: the bare verification of the same signature by `cryptography`. A connection costs one
check; one with a function for tokens costs an unknown one for each new token.

    python -m bench.token_checks

It does not show what a new key costs: a fetch, which waits for the issuer, not for the processor.
"""

from __future__ import annotations

import asyncio
import base64
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from tailrace_server.access.configured import Access
from tailrace_server.access.identity import Credentials
from tailrace_server.access.settings import AccessSettings
from tests.support.issuer import TokenIssuer

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = 1_000
"""A second's worth of connects."""
ROUNDS = 5


async def measure(algorithm: str, folder: Path) -> None:
    """Print the microseconds of CPU of a check: the median round, and the range of all."""
    issuer = TokenIssuer("https://login.example", algorithm)
    (folder / "jwks.json").write_bytes(issuer.jwks())
    file = issuer.settings(folder, keys="jwks.json")
    tokens = [Credentials(issuer.token(sub=f"number {n}", team=["a", "b"])) for n in range(TOKENS)]
    verify = bare(issuer)
    known: list[float] = []
    unknown: list[float] = []
    bare_us: list[float] = []
    for _ in range(ROUNDS):
        door = Access(AccessSettings(identities=file)).door
        for into in (unknown, known):
            began = time.process_time()
            for each in tokens:
                principal = await door.admit(each)
            into.append((time.process_time() - began) / TOKENS * 1e6)
            assert principal.name.startswith(f"jwt number {TOKENS - 1}")
        began = time.process_time()
        for each in tokens:
            assert each.token is not None
            verify(each.token)
        bare_us.append((time.process_time() - began) / TOKENS * 1e6)
    print(
        f"{algorithm:6} known {_shown(known)}   unknown {_shown(unknown)}   bare {_shown(bare_us)}"
    )


def _shown(figures: list[float]) -> str:
    return f"{sorted(figures)[ROUNDS // 2]:6.1f} ({min(figures):.1f} to {max(figures):.1f})"


def bare(issuer: TokenIssuer) -> Callable[[str], None]:
    """Return what verifies the signature of a token, and nothing else."""
    key: Any = issuer.keys[0].get_op_key("verify")

    def verify(token: str) -> None:
        signed, _, signature = token.rpartition(".")
        raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
        if issuer.algorithm == "RS256":
            key.verify(raw, signed.encode(), padding.PKCS1v15(), SHA256())
        elif issuer.algorithm == "PS256":
            pss = padding.PSS(padding.MGF1(SHA256()), SHA256.digest_size)
            key.verify(raw, signed.encode(), pss, SHA256())
        elif issuer.algorithm == "ES256":
            parts = (int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
            key.verify(encode_dss_signature(*parts), signed.encode(), ec.ECDSA(SHA256()))
        else:
            key.verify(raw, signed.encode())

    return verify


async def main() -> None:
    """Measure each algorithm."""
    print(f"µs of CPU a check; {TOKENS} tokens, {ROUNDS} rounds: median (range)")
    with tempfile.TemporaryDirectory() as folder:
        for algorithm in ("RS256", "PS256", "ES256", "EdDSA"):
            await measure(algorithm, Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
