"""Quotas: bounds on the use of the server by each principal and each address.

Each use is charged to two accounts, that of the principal and that of the address. An address may use several
times the quota of a principal, since people share addresses. Anonymous callers are charged to their address
only. `Taken` releases what a use has taken, once, however the use ends. A rate is bounded by a token bucket.

The number of accounts is bounded. The least recently used account is dropped first, unless it holds something.
Accounts that hold something are at most as many as the open connections.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Final

from tailrace.errors import QuotaExceeded
from tailrace_server.access.identity import Identity, IdentityKind
from tailrace_server.access.settings import QuotaSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from tailrace_server.grants.principal import Principal


_HOST_BITS = 64
"""Bits of an IPv6 address that are ignored: a caller with one address has the whole block, and may use a new
address for each connection."""


_ACCOUNTS_MAX: Final = 50_000
_AGAIN_S: Final = 5.0
"""Seconds after which a caller should retry when a quota is used up. It is a guess: other callers free it."""
_MINUTE_S: Final = 60.0

FAILURES: Final = "failed_authentications"
REQUESTS: Final = "requests"
HISTORY_BYTES: Final = "history_bytes"
_ANONYMOUS: Final = "anonymous"
_CLASSES: Final = {
    IdentityKind.JWT: "token",
    IdentityKind.API_KEY: "api_key",
    IdentityKind.CERTIFICATE: "certificate",
}


def block_of(address: str) -> str:
    """Return an IPv4 address as it is, the /64 block of an IPv6 address, and any other text unchanged."""
    try:
        found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        network = int(found) >> _HOST_BITS << _HOST_BITS
        return f"{IPv6Address(network)}/{128 - _HOST_BITS}"
    return str(found)


class TokenBucket:
    """A bucket that holds at most ``capacity`` and fills at ``rate`` a second. The caller passes the time."""

    __slots__ = ("_at", "_level", "capacity", "rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        """Make a full bucket."""
        self.rate = rate
        self.capacity = capacity
        self._level = capacity
        self._at = now

    def level(self, now: float) -> float:
        """Return the amount in the bucket; a negative amount is a debt."""
        self._level = min(self.capacity, self._level + max(0.0, now - self._at) * self.rate)
        self._at = max(self._at, now)
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until the bucket holds an amount; 0 if it does now."""
        return max(0.0, (amount - self.level(now)) / self.rate)

    def take(self, amount: float, now: float) -> None:
        """Take an amount; the bucket goes into debt if it holds less."""
        self._level = self.level(now) - amount


class Account:
    """The current use of the server by one principal or one address."""

    __slots__ = ("buckets", "distinct", "held")

    def __init__(self) -> None:
        """Make an account without use."""
        self.held: Counter[str] = Counter()
        """The held amount of each quota."""
        self.distinct: Counter[tuple[str, Hashable]] = Counter()
        """The number of holders of each thing, for quotas that count distinct things; by quota and thing."""
        self.buckets: dict[str, TokenBucket] = {}


class Quotas:
    """The quotas and all accounts of a server. They live on the event loop."""

    def __init__(
        self,
        settings: QuotaSettings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without accounts."""
        self._settings = settings = settings or QuotaSettings()
        self._monotonic = monotonic
        self._accounts: OrderedDict[tuple[str, ...], Account] = OrderedDict()
        """The accounts, least recently used first."""
        self._limits: dict[str, float | None] = {
            "connections": settings.quota_connections,
            "streams": settings.quota_streams,
            "subscriptions": settings.quota_subscriptions,
            "criteria": settings.quota_criteria,
            "keys": settings.quota_keys,
            "history_reads": settings.quota_history_reads,
            HISTORY_BYTES: settings.quota_history_bytes,
            REQUESTS: settings.quota_requests,
        }
        self.is_on = any(limit is not None for limit in self._limits.values())
        self.used: Counter[tuple[str, str]] = Counter()
        """The amounts that are held now, by quota and class of principal."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """The number of refusals since the server began, by quota and class of principal."""

    @property
    def accounts(self) -> int:
        """The number of accounts."""
        return len(self._accounts)

    def take(
        self,
        caller: Principal | None,
        address: str,
        amounts: Mapping[str, int],
        distinct: Mapping[str, Hashable] | None = None,
    ) -> Taken:
        """Take amounts of quotas until the returned `Taken` gives them back.

        Args:
            caller: The caller; None: no identity is proven yet.
            address: The caller's address, without a port.
            amounts: The amount of each quota.
            distinct: By quota, a thing that is charged only if the account does not hold it already.

        Raises:
            QuotaExceeded: A quota is used up; nothing was taken.
        """
        taken = Taken(self, class_of(caller))
        if not self.is_on:
            return taken
        wanted = [(quota, amount) for quota, amount in amounts.items() if self._limits[quota]]
        things = [
            (quota, thing) for quota, thing in (distinct or {}).items() if self._limits[quota]
        ]
        # 1. Check all accounts before anything is taken.
        accounts = self._of(caller, address)
        for account, share in accounts:
            for quota, amount in wanted:
                self._refuse_above(quota, account.held[quota], amount, share, taken.of)
            for quota, thing in things:
                if not account.distinct[quota, thing]:
                    self._refuse_above(quota, account.held[quota], 1, share, taken.of)
        # 2. From here on nothing fails.
        for quota, amount in (*wanted, *((quota, 1) for quota, _ in things)):
            taken.count(quota, amount)
        for account, _ in accounts:
            for quota, amount in wanted:
                taken.note(account, quota, amount)
            for quota, thing in things:
                taken.note_distinct(account, quota, thing)
        return taken

    def request(self, caller: Principal | None, address: str) -> None:
        """Count a request.

        Raises:
            QuotaExceeded: The caller or the address has made too many requests in the last second.
        """
        limit = self._limits[REQUESTS]
        if limit is not None:
            self._spend(caller, address, REQUESTS, 1, limit)

    def begin_history(self, caller: Principal | None, address: str) -> None:
        """Refuse a read of history while earlier reads have exceeded the bytes per second.

        Raises:
            QuotaExceeded: The bucket of the caller or of the address is in debt.
        """
        limit = self._limits[HISTORY_BYTES]
        if limit is not None:
            self._spend(caller, address, HISTORY_BYTES, 0, limit)

    def history(self, caller: Principal | None, address: str, nbytes: int) -> float:
        """Count delivered bytes of history; return the seconds to wait before the next ones."""
        limit = self._limits[HISTORY_BYTES]
        if limit is None:
            return 0.0
        # The bytes are delivered already, so the buckets go into debt, and the caller waits until it is paid.
        now, wait_s = self._monotonic(), 0.0
        for account, share in self._of(caller, address):
            bucket = _bucket(account, HISTORY_BYTES, limit * share, limit * share, now)
            bucket.take(nbytes, now)
            wait_s = max(wait_s, bucket.wait_s(0, now))
        return wait_s

    def refuse_after_failures(self, address: str) -> None:
        """Refuse to check a credential from an address that has sent too many wrong ones.

        Raises:
            QuotaExceeded: The address must wait; the error has the time.
        """
        limit = self._settings.quota_failed_authentications
        account = self._accounts.get(("address", block_of(address)))
        if limit is None or account is None or FAILURES not in account.buckets:
            return
        bucket, now = account.buckets[FAILURES], self._monotonic()
        wait_s = bucket.wait_s(1, now)
        if wait_s:
            self.refused[FAILURES, _ANONYMOUS] += 1
            raise QuotaExceeded(FAILURES, limit, limit - bucket.level(now), _rounded(wait_s))

    def failed(self, address: str) -> None:
        """Count a wrong credential; peers without an address are not counted."""
        # Failures are counted by address, because a wrong credential proves no principal.
        limit = self._settings.quota_failed_authentications
        if limit is not None and address:
            now = self._monotonic()
            account = self._account(("address", block_of(address)))
            _bucket(account, FAILURES, limit / _MINUTE_S, limit, now).take(1, now)

    def _spend(
        self, caller: Principal | None, address: str, quota: str, amount: int, limit: float
    ) -> None:
        now = self._monotonic()
        buckets = [
            (_bucket(account, quota, limit * share, limit * share, now), limit * share)
            for account, share in self._of(caller, address)
        ]
        # Check both accounts before either is charged: a refusal must cost nothing.
        for bucket, most in buckets:
            wait_s = bucket.wait_s(amount, now)
            if wait_s:
                self.refused[quota, class_of(caller)] += 1
                raise QuotaExceeded(quota, most, most - bucket.level(now), _rounded(wait_s))
        for bucket, _ in buckets:
            bucket.take(amount, now)

    def _refuse_above(self, quota: str, held: int, amount: int, share: int, of: str) -> None:
        limit = self._limits[quota]
        assert limit is not None
        if held + amount > limit * share:
            self.refused[quota, of] += 1
            raise QuotaExceeded(quota, limit * share, held, _AGAIN_S)

    def _of(self, caller: Principal | None, address: str) -> list[tuple[Account, int]]:
        """Return the accounts that a use is charged to, each with the multiple of the quota that it may use."""
        found = []
        if address:
            block = ("address", block_of(address))
            found.append((self._account(block), self._settings.quota_address_share))
        identity = getattr(caller, "identity", None)
        if isinstance(identity, Identity):
            key = ("principal", identity.kind.value, identity.issuer, identity.name)
            found.append((self._account(key), 1))
        return found

    def _account(self, key: tuple[str, ...]) -> Account:
        account = self._accounts.get(key)
        if account is None:
            self._make_room()
            account = self._accounts[key] = Account()
        self._accounts.move_to_end(key)
        return account

    def _make_room(self) -> None:
        """Drop the least recently used account; one that holds something moves to the end instead."""
        # An account with held amounts must survive, since `Taken` will give them back to it. It moves to the
        # end, so that the next call does not check it again.
        for _ in range(len(self._accounts)):
            if len(self._accounts) < _ACCOUNTS_MAX:
                return
            key, oldest = self._accounts.popitem(last=False)
            if not any(oldest.held.values()):
                return
            self._accounts[key] = oldest


class Taken:
    """The quotas that one use has taken; a context manager, or released by ``give_back``."""

    __slots__ = ("_counted", "_distinct", "_held", "_quotas", "of")

    def __init__(self, quotas: Quotas, of: str) -> None:
        """Begin with nothing taken; ``of`` is the class of the principal."""
        self._quotas = quotas
        self.of = of
        self._held: list[tuple[Account, str, int]] = []
        self._distinct: list[tuple[Account, str, Hashable]] = []
        self._counted: list[tuple[str, int]] = []

    def __enter__(self) -> Taken:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def count(self, quota: str, amount: int) -> None:
        """Add an amount to the figures of the server, once, however many accounts it is charged to."""
        self._quotas.used[quota, self.of] += amount
        self._counted.append((quota, amount))

    def note(self, account: Account, quota: str, amount: int) -> None:
        """Charge an amount to an account."""
        account.held[quota] += amount
        self._held.append((account, quota, amount))

    def note_distinct(self, account: Account, quota: str, thing: Hashable) -> None:
        """Charge 1 to an account, unless it holds the same thing already."""
        # Several uses may hold the same thing; only the first one is charged, and only the last one gives it
        # back.
        account.distinct[quota, thing] += 1
        if account.distinct[quota, thing] == 1:
            account.held[quota] += 1
        self._distinct.append((account, quota, thing))

    def give_back(self) -> None:
        """Give everything back. Idempotent."""
        for account, quota, amount in self._held:
            _give(account, quota, amount)
        for account, quota, thing in self._distinct:
            account.distinct[quota, thing] -= 1
            if not account.distinct[quota, thing]:
                del account.distinct[quota, thing]
                _give(account, quota, 1)
        for quota, amount in self._counted:
            self._quotas.used[quota, self.of] -= amount
        self._held, self._distinct, self._counted = [], [], []


def _give(account: Account, quota: str, amount: int) -> None:
    account.held[quota] -= amount
    assert account.held[quota] >= 0


def class_of(caller: Principal | None) -> str:
    """Return the class of a principal for metrics, which never contain its name."""
    identity = getattr(caller, "identity", None)
    return _CLASSES[identity.kind] if isinstance(identity, Identity) else _ANONYMOUS


def _bucket(account: Account, quota: str, rate: float, capacity: float, now: float) -> TokenBucket:
    bucket = account.buckets.get(quota)
    if bucket is None:
        bucket = account.buckets[quota] = TokenBucket(rate, max(1.0, capacity), now)
    return bucket


def _rounded(seconds: float) -> float:
    """Return seconds rounded up to milliseconds, at least one."""
    return max(0.001, round(seconds + 0.0005, 3))
