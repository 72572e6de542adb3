"""JWTs: signed by a known issuer, for this server, and valid now.

::

    token ──▶ seen lately? ──▶ who it is
                │ no
                ▼
    header and `iss`, unverified: which issuer, which key ──▶ signature ──▶ exp, nbf, aud, sub ──▶ who it is

What the unverified part says only chooses the issuer and the key: the algorithm has to be one that the issuer's
settings list, and the key one of that issuer's. A token that was verified is known by its hash until its key is
gone: also one that has expired, so that it costs no second check.

JSON is read strictly: half a character, or a number that is none, would come into names, and fail wherever
those are written.
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
"""Verified tokens that are known by their hash; about 1 KB each with their claims."""
_CLAIMS_BYTES_KEPT: Final = 4 << 10
"""A token with more is verified each time."""
_KEYS_TRIED_MAX: Final = 8
"""Keys that a token without a key id is tried with."""
_SUBJECT_MAX: Final = 255
_UNREADABLE: Final = "the token is no JWT: it cannot be read"


class JwtTokens:
    """Tells who somebody is by a JWT."""

    def __init__(self, issuers: Mapping[str, tuple[Issuer, IssuerKeys]]) -> None:
        """Accept tokens of these issuers, by their name."""
        self._issuers = issuers
        self._seen: OrderedDict[bytes, Identity] = OrderedDict()
        self._salt = secrets.token_bytes(16)

    async def identify(self, credentials: Credentials) -> Identity | None:
        """Return who a token is of; None of what is no JWT.

        Raises:
            Unauthenticated: It is one, and not accepted.
            TokenExpired: It was once.
        """
        token = credentials.token
        if token is None or token.count(".") != 2:
            return None
        if not token.isascii():
            raise Unauthenticated("the token is no JWT: it has characters that none has")
        # 1. One that was verified before. Its key may have gone, and its time be over.
        if (known := self.recognise(credentials)) is not None:
            return known
        # 2. What it says of itself chooses issuer and key.
        header, claims = _object(token, 0), _object(token, 1)
        _data(token, 2)  # else one signature could be written in many ways, each a token of its own
        issuer, keys = self._issuer_of(claims)
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
            raise Unauthenticated("the token's algorithm is none of those that are accepted")
        kid = header.get("kid")
        if not isinstance(kid, str | None):
            raise Unauthenticated("the token's key id is no text")
        if "crit" in header:
            raise Unauthenticated("the token has extensions (`crit`), and none is known here")
        # 3. Its signature; then its claims are those of the issuer.
        key_id = await _signed_by(token, algorithm, kid, keys)
        identity = _identity(claims, issuer, key_id)
        self._keep(self._mark(token), identity, len(token))
        _check_time(identity.expires_at)
        return identity

    def recognise(self, credentials: Credentials) -> Identity | None:
        """Return who a token is of that was verified before; None of any other.

        Raises:
            TokenExpired: It was accepted once.
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
        return hashlib.blake2b(token.encode(), key=self._salt, digest_size=20).digest()

    def accepts(self, identity: Identity) -> bool:
        """Return whether its issuer still has the key that signed it."""
        found = self._issuers.get(identity.issuer)
        return found is not None and found[1].has(identity.key_id)

    def _issuer_of(self, claims: Mapping[str, Any]) -> tuple[Issuer, IssuerKeys]:
        name = claims.get("iss")
        found = self._issuers.get(name) if isinstance(name, str) else None
        if found is None:
            raise Unauthenticated("the token is of an issuer that is not accepted here")
        return found

    def _keep(self, mark: bytes, identity: Identity, size: int) -> None:
        if size > _CLAIMS_BYTES_KEPT:
            return
        self._seen[mark] = identity
        self._seen.move_to_end(mark)
        while len(self._seen) > _SEEN_MAX:
            self._seen.popitem(last=False)


def _data(token: str, place: int) -> bytes:
    """Return the bytes of a part of a token, which has one way to be written."""
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
        Unauthenticated: None of the issuer's has.
        TransportError: The issuer does not answer, so that is unknown now.
    """
    candidates = await keys.candidates(kid)
    if not candidates and keys.error:
        # No fault of the caller's: it is to come again, and is not counted among those who guess.
        raise TransportError("the keys of the token's issuer cannot be had now; try again")
    if not candidates:
        raise Unauthenticated("the token's key is none of its issuer's")
    for thumbprint, key in candidates[:_KEYS_TRIED_MAX]:
        try:
            _verify(token, key, algorithm)
        except (JoseError, ValueError, TypeError, RecursionError):
            continue
        return thumbprint
    raise Unauthenticated("the token's signature is not by a key of its issuer")


def _verify(token: str, key: PublicKey, algorithm: str) -> None:
    """Raise unless a key has signed a token, by this algorithm and no other."""
    if algorithm != "EdDSA":
        jws.deserialize_compact(token, key, [algorithm])
        return
    with warnings.catch_warnings():
        # The name covers two curves; the key says which.
        warnings.simplefilter("ignore", SecurityWarning)
        jws.deserialize_compact(token, key, [algorithm])


def _identity(claims: Mapping[str, Any], issuer: Issuer, key_id: str) -> Identity:
    """Return who verified claims are of.

    Raises:
        Unauthenticated: They are not for us, not yet valid, or without a subject.
    """
    expires_at = _moment(claims, "exp")
    if expires_at is None:
        raise Unauthenticated("the token has no `exp`: it would be valid for ever")
    expires_at += issuer.leeway_s
    not_before = _moment(claims, "nbf")
    if not_before is not None and time.time() < not_before - issuer.leeway_s:
        raise Unauthenticated("the token is not valid yet (`nbf`)")
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if not any(each in issuer.audiences for each in named if isinstance(each, str)):
        raise Unauthenticated("the token is for somebody else (`aud`)")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= _SUBJECT_MAX:
        raise Unauthenticated(f"the token has no `sub` of 1 to {_SUBJECT_MAX} characters")
    return Identity(IdentityKind.JWT, issuer.issuer, subject, claims, expires_at, key_id)


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise Unauthenticated(f"the token's `{name}` is no time")
    return float(value)


def _check_time(expires_at: float | None) -> None:
    if expires_at is not None and time.time() >= expires_at:
        raise TokenExpired("the token has expired")
