"""``least_used``: the proxy with the fewest allocations, shared by all workers.

The counts are a sorted set in Redis; one short script reads the minimum and
adds one, so two workers never see the same minimum. Ties go by member order.

What the count is not: it includes requests that failed later, is never lowered,
and says nothing of latency, success or work in flight. A sole eligible member
may be picked again and again.

Who is put out leaves the set for as long, for all workers (``shared_judge.py``).

Weakness: all proxies count alike, so unequal weights are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import ClassVar, Self

from ..exceptions import SettingsError, StoreError
from ..proxy import Proxy
from ..store.connection import RedisConnection, ping_once
from ..store.gathering import GatheredPicks
from ..store.keys import Keys
from ..store.shared_pool import SharedPool
from ..store.url import parse_url
from ..store.verdicts import (
    Delivery,
    Happened,
    HealthRules,
    Judgement,
    MemberOut,
    Probes,
    VerdictStore,
)
from ..turns import Steps, at_once, emptied
from .base import StrategyOptions, WeightView

logger = logging.getLogger(__name__)

_FOREIGN_LIMIT = 1_000
_MISSING = "Pool %r is missing in Redis; publishing it again"
_READ = 64
"""Proxies read or written in one step."""
_LOOKED_AT = 1_024
"""Proxies merely looked at in one step."""
_SORTED = 4_096
"""Ids sorted in one step."""


class LeastUsedStrategy:
    """Atomic least-used allocation from a sorted set in Redis."""

    shared: ClassVar[bool] = True
    by_site: ClassVar[bool] = False

    def __init__(self, options: StrategyOptions) -> None:
        if not options.redis_url:
            raise SettingsError(
                "SMOOTHPOOL_REDIS_URL is not set, which SMOOTHPOOL_STRATEGY = "
                '"least_used" needs; accepted: a URL such as "redis://localhost:6379/0"'
            )
        self._options = options
        self._url = options.redis_url
        self._address = parse_url(options.redis_url)
        self._keys = Keys(options.key_prefix, options.pool)
        self._connection: RedisConnection | None = None
        self._shared: SharedPool | None = None
        # What this worker published, to publish again should the key vanish; None: it joined.
        self._list: dict[str, str] | None = None
        self._fingerprint = ""
        self._publishing = asyncio.Lock()
        self._known: dict[str, Proxy] = {}
        self._gathered = GatheredPicks(self._fetch, options.look_ahead)
        self._ejected: set[str] = set()
        # Members somebody put into the set by hand, without a line that says how to reach them.
        self._foreign: set[str] = set()

    @classmethod
    def from_options(cls, options: StrategyOptions) -> Self:
        """Build the strategy. Raises SettingsError without a usable Redis URL."""
        return cls(options)

    def check(self, proxies: Sequence[Proxy]) -> None:
        """Refuse unequal weights."""
        odd = next((p for p in proxies if p.weight == 0 or p.weight != proxies[0].weight), None)
        if odd is not None:
            raise SettingsError(
                f"the proxies have unequal weights or weight 0 ({odd.id} has {odd.weight}), but "
                'SMOOTHPOOL_STRATEGY = "least_used" counts all alike; accepted: equal weights, '
                'or SMOOTHPOOL_STRATEGY = "smooth_wrr"'
            )

    def reach(self) -> None:
        """Refuse a Redis that does not answer a PING within a second."""
        try:
            ping_once(self._url)
        except StoreError as error:
            raise SettingsError(
                f"SMOOTHPOOL_REDIS_URL cannot be used: {error}; accepted: the URL of a Redis "
                "that answers when the crawl starts"
            ) from None

    def describe(self) -> str:
        """Return the Redis host and key, without a login."""
        return f"Redis {self._address}, {self._keys.allocations}"

    async def open(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        """Publish the list, or join the pool as it stands when there is none."""
        self._connection = RedisConnection(self._url)
        self._shared = SharedPool(self._connection, self._keys)
        if proxies:
            return await self.reload(proxies)
        return await self.members()

    async def reload(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        """Publish another list in place of the present one; counts are kept."""
        drive = self._options.turns.drive
        lines = await drive(_lines(proxies))
        mark = await drive(fingerprint_in_steps(lines))
        async with self._publishing:
            await self._publish(lines, mark)
            # Only now: should it fail, it is the former list that is mended.
            former, self._list, self._fingerprint = self._list, lines, mark
        await drive(self._know(proxies))
        if former is not None:
            await drive(emptied(former))
        return proxies

    async def _publish(self, lines: dict[str, str], mark: str) -> None:
        result = await self._pool.publish(
            lines,
            mark,
            self._options.start_count,
            candidates=self._options.admission,
        )
        if not result.replaced:
            return
        if self._list is None:
            logger.warning(
                "Pool %r held another list of %d proxies, which this worker's list of %d "
                "replaces for every worker; if both are meant, give them different names "
                "with SMOOTHPOOL_POOL",
                self._options.pool,
                result.replaced,
                len(lines),
            )
        else:  # a reload, which is meant to
            logger.info(
                "Pool %r: a list of %d proxies takes the place of one of %d, for every worker",
                self._options.pool,
                len(lines),
                result.replaced,
            )

    async def members(self) -> Sequence[Proxy]:
        """Read the pool as it stands in Redis."""
        lines = await self._pool.load_members()
        proxies = await self._options.turns.drive(_proxies(lines, self._known))
        await self._options.turns.drive(emptied(lines))
        await self._options.turns.drive(self._know(proxies))
        return proxies

    def _know(self, proxies: Sequence[Proxy]) -> Steps[None]:
        listed: dict[str, Proxy] = {}
        for number, proxy in enumerate(proxies):
            listed[proxy.id] = proxy
            if not number % _LOOKED_AT:
                yield
        gone = set()
        former = self._known
        for number, proxy_id in enumerate(list(former)):
            if proxy_id not in listed:
                gone.add(proxy_id)
            if not number % _LOOKED_AT:
                yield
        self._known = listed
        self._gathered.withdraw(gone)
        self._ejected = {proxy_id for proxy_id in self._ejected if proxy_id in listed}
        self._foreign.clear()
        yield from emptied(former)

    @property
    def _pool(self) -> SharedPool:
        assert self._shared is not None, "open() comes first"
        return self._shared

    def pick(
        self, exclude: Collection[str] = (), site: str = ""
    ) -> str | Awaitable[str | None] | None:
        """Take the least-used member that is neither excluded nor ejected here."""
        if exclude or self._ejected or self._foreign:
            return self._pick(self._ejected | self._foreign | set(exclude))
        taken = self._gathered.take()
        return taken if isinstance(taken, str) else self._mended(taken)

    async def _mended(self, taken: Awaitable[str | None]) -> str | None:
        """Await a pick, and see whether it is for want of the pool that there is none."""
        found = await taken
        return found if found is not None else await self._pick(())

    async def _pick(self, skipped: Collection[str]) -> str | None:
        found = await self._pool.pick_excluding(sorted(skipped)) if skipped else None
        if found is None and self._list is not None and await self._pool.size() == 0:
            # The key is gone (flushed, or a server that came back empty): that is not an
            # empty pool. Any worker with the list mends it.
            async with self._publishing:
                if await self._pool.size() == 0:  # not yet mended by another request, or reloaded
                    logger.warning(_MISSING, self._options.pool)
                    await self._publish(self._list, self._fingerprint)
            found = await self._pool.pick_excluding(sorted(skipped))
        return found

    async def _fetch(self, number: int) -> list[str]:
        return await self._pool.pick_many(number)

    async def lookup(self, proxy_id: str) -> Proxy | None:
        """Read the line of a member that another worker brought in."""
        line = (await self._pool.lines([proxy_id])).get(proxy_id)
        proxy = None
        if line is not None:
            try:
                proxy = Proxy.from_line(line, id=proxy_id)
            except ValueError as error:
                logger.warning("Pool member %s cannot be used: %s", proxy_id, error)
        if proxy is None:
            if len(self._foreign) >= _FOREIGN_LIMIT:
                self._foreign.clear()
            self._foreign.add(proxy_id)
            return None
        self._known[proxy_id] = proxy
        return proxy

    def penalize(self, proxy_id: str, consecutive: int, site: str | None = None) -> int:
        """Do nothing: here a penalty is ejection."""
        return 0

    def eject(self, proxy_id: str, site: str | None = None) -> None:
        """Skip the member in this worker's picks."""
        self._ejected.add(proxy_id)

    async def restore(self, proxy_id: str, site: str | None = None, *, gently: bool = True) -> None:
        """Let the member back at max(own count, the pool's minimum), so that it takes no rush."""
        self._ejected.discard(proxy_id)
        await self._pool.raise_to_minimum(proxy_id, sorted(self._ejected | {proxy_id}))

    def forget(self, site: str) -> None:
        """Keep nothing by site."""

    @property
    def verdicts(self) -> VerdictStore:
        """Return the health of the pool in Redis."""
        return self

    async def report_outcomes(
        self,
        rules: HealthRules,
        outcomes: Sequence[Happened],
        delivery: Delivery | None = None,
    ) -> Judgement:
        """Judge outcomes for all workers."""
        return await self._pool.report_outcomes(rules, outcomes, delivery)

    async def take_probe(
        self,
        probe_timeout: float,
        since_epoch: int = 0,
        wanted: int = 1,
        excluded: Collection[str] = (),
        *,
        unchecked: bool = False,
    ) -> Probes:
        """Lease members that are due; publish the list again where members got lost."""
        found = await self._pool.take_probe(
            probe_timeout, since_epoch, wanted, excluded, unchecked=unchecked
        )
        # Where members or lines got lost. That another worker replaced the list is no reason to
        # bring ours back.
        if not found.whole and self._list is not None and not self._publishing.locked():
            async with self._publishing:
                if await self._pool.fingerprint() in (None, self._fingerprint):
                    logger.warning(_MISSING, self._options.pool)
                    await self._publish(self._list, self._fingerprint)
        return found

    def withdraw(self, gone: Collection[str]) -> None:
        """Drop picks in hand of members that were put out."""
        self._gathered.withdraw(gone)

    async def out(self) -> dict[str, MemberOut]:
        """Return all members that are out, for all workers."""
        return await self._pool.out()

    def weights(self) -> Mapping[str, WeightView]:
        """Return equal weights for all known members."""
        return {name: WeightView(proxy.weight, proxy.weight) for name, proxy in self._known.items()}

    async def close(self) -> None:
        """Close the connections to Redis."""
        if self._connection is not None:
            await self._connection.aclose()


def _lines(proxies: Sequence[Proxy]) -> Steps[dict[str, str]]:
    lines = {}
    for number, proxy in enumerate(proxies):
        lines[proxy.id] = proxy.to_line()
        if not number % _READ:
            yield
    return lines


def _proxies(lines: Mapping[str, str], known: Mapping[str, Proxy]) -> Steps[list[Proxy]]:
    proxies = []
    for number, (proxy_id, line) in enumerate(lines.items()):
        proxy = known.get(proxy_id)
        try:
            if proxy is None or proxy.to_line() != line:
                proxy = Proxy.from_line(line, id=proxy_id)
            proxies.append(proxy)
        except ValueError as error:
            logger.warning("Pool member %s is left out: %s", proxy_id, error)
        if not number % _READ:
            yield
    return proxies


def fingerprint(lines: Mapping[str, str]) -> str:
    """Return what tells two lists apart, whatever their order: SHA-256 over ids and lines."""
    return at_once(fingerprint_in_steps(lines))


def fingerprint_in_steps(lines: Mapping[str, str]) -> Steps[str]:
    """Do what :func:`fingerprint` does, in steps."""
    ids = list(lines)
    runs = []
    for start in range(0, len(ids), _SORTED):
        runs.append(sorted(ids[start : start + _SORTED]))
        yield
    digest = hashlib.sha256()
    for number, proxy_id in enumerate(heapq.merge(*runs)):
        digest.update(f"{proxy_id}\0{lines[proxy_id]}\n".encode())
        if not number % _READ:
            yield
    return digest.hexdigest()
