"""Authentication by JWT: signed by a known issuer, issued for this server, and valid now.

::

    token ──▶ seen lately? ──▶ who it is
                │ no
                ▼
    header and `iss`, unverified: which issuer, which key ──▶ signature ──▶ exp, nbf, aud, sub ──▶ who it is

The unverified header and `iss` only choose the issuer and the key: the algorithm must be in the issuer's
settings, and the key must belong to that issuer. The hash of a verified token is cached, and valid while the
issuer has its key. The hash of an expired token stays cached too, so that the token is not verified again.

JSON is parsed strictly: half a character, or NaN, in a claim would get into names and fail wherever a name is
written.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec
from joserfc import jws
from joserfc.errors import JoseError, SecurityWarning

from tailrace.errors import TokenExpired, TransportError, Unauthenticated
from tailrace_server.access.identity import Identity, IdentityKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.access.identity import Credentials
    from tailrace_server.access.key_sets import Issuer, IssuerKeys, PublicKey

_SEEN_MAX: Final = 10_000
"""Most verified tokens that are cached; each takes about 1 KB with its claims."""
_CLAIMS_BYTES_KEPT: Final = 4 << 10
"""Size of the largest token that is cached; a larger token is verified each time."""
_KEYS_TRIED_MAX: Final = 8
"""Most keys that are tried for a token without a key id."""
_SUBJECT_MAX: Final = 255
_UNREADABLE: Final = "the token is not a JWT: it cannot be read"


class JwtTokens:
    """Authenticates callers by their JWTs."""

    def __init__(self, issuers: Mapping[str, tuple[Issuer, IssuerKeys]]) -> None:
        """Accept tokens of these issuers; the keys of ``issuers`` are the issuers' names."""
        self._issuers = issuers
        self._seen: OrderedDict[bytes, Identity] = OrderedDict()
        self._salt = secrets.token_bytes(16)

    async def identify(self, credentials: Credentials) -> Identity | None:
        """Return the identity that a JWT proves; None if the credentials have no JWT.

        Raises:
            Unauthenticated: The JWT is not accepted.
            TokenExpired: The JWT is valid but for its expiry.
            TransportError: The issuer's keys cannot be fetched now.
        """
        token = credentials.token
        if token is None or token.count(".") != 2:
            return None
        if not token.isascii():
            raise Unauthenticated("the token is not a JWT: it has characters that are not allowed")
        # 1. A token that was verified before is not verified again, unless the issuer has removed its key.
        if (known := self.recognise(credentials)) is not None:
            return known
        # 2. The unverified header and claims choose the issuer and the key.
        header, claims = _object(token, 0), _object(token, 1)
        _data(token, 2)  # else one signature could be written in many ways, each a token of its own
        issuer, keys = self._issuer_of(claims)
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
            raise Unauthenticated("the token's algorithm is not one of the accepted ones")
        kid = header.get("kid")
        if not isinstance(kid, str | None):
            raise Unauthenticated("the token's key id is not a text")
        if "crit" in header:
            raise Unauthenticated(
                "the token has extensions (`crit`), which this server does not support"
            )
        # 3. The signature is verified; from then on the claims are known to be the issuer's.
        key_id = await _signed_by(token, algorithm, kid, keys)
        identity = _identity(claims, issuer, key_id)
        self._keep(self._mark(token), identity, len(token))
        _check_time(identity.expires_at)
        return identity

    def recognise(self, credentials: Credentials) -> Identity | None:
        """Return the identity of a token that was verified before; None for any other token.

        Raises:
            TokenExpired: The token was verified before and has expired.
        """
        token = credentials.token
        if token is None or not token.isascii():
            return None
        mark = self._mark(token)
        known = self._seen.get(mark)
        if known is None or not self.accepts(known):
            return None
        self._seen.move_to_end(mark)
        _check_time(known.expires_at)
        return known

    def _mark(self, token: str) -> bytes:
        # Only a keyed hash of the token is stored, so the cache holds no credential.
        return hashlib.blake2b(token.encode(), key=self._salt, digest_size=20).digest()

    def accepts(self, identity: Identity) -> bool:
        """Return True if the issuer still has the key that signed the identity's token."""
        found = self._issuers.get(identity.issuer)
        return found is not None and found[1].has(identity.key_id)

    def _issuer_of(self, claims: Mapping[str, Any]) -> tuple[Issuer, IssuerKeys]:
        name = claims.get("iss")
        found = self._issuers.get(name) if isinstance(name, str) else None
        if found is None:
            raise Unauthenticated("the token's issuer is not accepted by this server")
        return found

    def _keep(self, mark: bytes, identity: Identity, size: int) -> None:
        if size > _CLAIMS_BYTES_KEPT:
            return
        self._seen[mark] = identity
        self._seen.move_to_end(mark)
        while len(self._seen) > _SEEN_MAX:
            self._seen.popitem(last=False)


def _data(token: str, place: int) -> bytes:
    """Decode one part of a token; only the canonical base64url text is accepted."""
    text = token.split(".")[place]
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except ValueError:
        data = None
    if data is None or base64.urlsafe_b64encode(data).rstrip(b"=") != text.encode():
        raise Unauthenticated(_UNREADABLE)
    return data


def _object(token: str, place: int) -> Mapping[str, Any]:
    """Return the header or the claims of a token, unverified."""
    try:
        value = msgspec.json.decode(_data(token, place))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Unauthenticated(_UNREADABLE)
    return value


async def _signed_by(token: str, algorithm: str, kid: str | None, keys: IssuerKeys) -> str:
    """Return the thumbprint of the key that signed a token.

    Raises:
        Unauthenticated: No key of the issuer has signed it.
        TransportError: The issuer's keys cannot be fetched now.
    """
    candidates = await keys.candidates(kid)
    if not candidates and keys.error:
        # The caller is not at fault: the error is retriable and not counted as a wrong credential.
        raise TransportError(
            "the keys of the token's issuer cannot be fetched at present; try again"
        )
    if not candidates:
        raise Unauthenticated("the token's key is not one of its issuer's keys")
    # Without a key id every key must be tried, so their number is bounded: a signature check costs CPU.
    for thumbprint, key in candidates[:_KEYS_TRIED_MAX]:
        try:
            _verify(token, key, algorithm)
        except (JoseError, ValueError, TypeError, RecursionError):
            continue
        return thumbprint
    raise Unauthenticated("the token's signature was not made with a key of its issuer")


def _verify(token: str, key: PublicKey, algorithm: str) -> None:
    """Raise an error unless this key has signed the token with this algorithm."""
    if algorithm != "EdDSA":
        jws.deserialize_compact(token, key, [algorithm])
        return
    with warnings.catch_warnings():
        # joserfc warns because the name EdDSA covers two curves; the key determines the curve.
        warnings.simplefilter("ignore", SecurityWarning)
        jws.deserialize_compact(token, key, [algorithm])


def _identity(claims: Mapping[str, Any], issuer: Issuer, key_id: str) -> Identity:
    """Return the identity in a token's verified claims.

    Raises:
        Unauthenticated: The claims have no `exp`, no subject or another audience, are not yet valid, or
            have an invalid time.
    """
    expires_at = _moment(claims, "exp")
    if expires_at is None:
        raise Unauthenticated(
            "the token has no `exp`, so it would never expire; use tokens with `exp`"
        )
    expires_at += issuer.leeway_s
    not_before = _moment(claims, "nbf")
    if not_before is not None and time.time() < not_before - issuer.leeway_s:
        raise Unauthenticated("the token is not valid yet (`nbf`)")
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if not any(each in issuer.audiences for each in named if isinstance(each, str)):
        raise Unauthenticated("the token is for another audience (`aud`)")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= _SUBJECT_MAX:
        raise Unauthenticated(f"the token has no `sub` of 1 to {_SUBJECT_MAX} characters")
    return Identity(IdentityKind.JWT, issuer.issuer, subject, claims, expires_at, key_id)


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise Unauthenticated(f"the token's `{name}` is not a time")
    return float(value)


def _check_time(expires_at: float | None) -> None:
    if expires_at is not None and time.time() >= expires_at:
        raise TokenExpired("the token has expired")
