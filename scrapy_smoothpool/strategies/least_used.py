"""``least_used``: the proxy with the fewest allocations, shared by all workers.

The counts are a sorted set in Redis; one short script reads the minimum and
adds one, so two workers never see the same minimum. Ties go by member order.

What the count is not: it includes requests that failed later, is never lowered,
and says nothing of latency, success or work in flight. A sole eligible member
may be picked again and again.

Who is put out leaves the set for as long, for all workers (``shared_judge.py``). What Redis
loses is published again (``published.py``); while it is away a worker waits, or carries on by
itself (``while_away.py``).

Weakness: all proxies count alike, so unequal weights are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import logging
import secrets
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Self

from ..exceptions import SettingsError, StoreError, StoreUnavailable
from ..proxy import Proxy
from ..store.connection import RedisConnection, ping_once
from ..store.gathering import GatheredPicks
from ..store.keys import Keys
from ..store.shared_pool import SharedPool
from ..store.url import parse_url
from ..store.verdicts import (
    IN_ROTATION,
    Delivery,
    Happened,
    HealthRules,
    Judgement,
    MemberOut,
    Probes,
    VerdictStore,
)
from ..turns import Steps, Stopped, at_once, emptied
from .base import StrategyOptions, WeightView
from .published import Published
from .while_away import WhileAway

logger = logging.getLogger(__name__)

_FOREIGN_LIMIT = 1_000
_AGAIN = 0.5
"""Seconds between two tries to reach Redis at start, or to come back to it."""
_FAREWELL = 1.0
"""Seconds in which the last allocations must be handed over."""
_LAST_TRIES = 0.1
"""Seconds between two tries to do that."""
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
        self._address = parse_url(options.redis_url, options.redis_params, options.redis_setting)
        self._keys = Keys(options.key_prefix, options.pool)
        self._shared: SharedPool | None = None
        self._published: Published | None = None
        self._known: dict[str, Proxy] = {}
        self._gathered = GatheredPicks(self._fetch, options.look_ahead)
        self._ejected: set[str] = set()
        # Members somebody put into the set by hand, without a line that says how to reach them.
        self._foreign: set[str] = set()
        # Members that are out for all workers, as far as this one has heard.
        self._out: set[str] = set()
        self._alone: WhileAway | None = None
        self._leaving = asyncio.Lock()
        self._coming_back: asyncio.Task[None] | None = None
        self._closing = False

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
        """Refuse a Redis that does not answer a PING within a second.

        One that cannot be reached is waited for in :meth:`open`, if that was chosen.
        """
        try:
            ping_once(self._address)
        except StoreError as error:
            if isinstance(error, StoreUnavailable) and self._options.redis_start_timeout:
                return
            raise SettingsError(
                f"{self._address.setting} cannot be used: {error}; accepted: the URL of a Redis "
                "that answers when the crawl starts, or SMOOTHPOOL_REDIS_START_TIMEOUT = seconds "
                "to wait for it"
            ) from None

    def describe(self) -> str:
        """Return the Redis host and key, without a login."""
        return f"Redis {self._address}, {self._keys.allocations}"

    async def open(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        """Publish the list, or join the pool as it stands when there is none."""
        options = self._options
        shared = self._shared = SharedPool(RedisConnection(self._address), self._keys)
        self._published = Published(
            shared,
            options.pool,
            start_count=options.start_count,
            candidates=options.admission,
            go_on=options.turns.check,
            knows=lambda: bool(self._known),
            known=self._known_lines,
        )
        if options.carry_on:
            self._alone = WhileAway(shared, secrets.token_hex(8))
        until = time.monotonic() + self._options.redis_start_timeout
        told = False
        while True:
            try:
                await shared.check()
                listed = await (self.reload(proxies) if proxies else self.members())
            except StoreUnavailable as error:
                if time.monotonic() >= until:
                    raise
                if not told:
                    logger.warning(
                        "%s; waiting for it for up to %g s (SMOOTHPOOL_REDIS_START_TIMEOUT)",
                        error,
                        self._options.redis_start_timeout,
                    )
                told = True
            else:
                shared.connection.begin_telling()
                return listed
            await self._options.turns.pause(_AGAIN)

    async def reload(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        """Publish another list in place of the present one; counts are kept."""
        drive = self._options.turns.drive
        lines = await drive(_lines(proxies))
        mark = await drive(fingerprint_in_steps(lines))
        former = self._list.lines
        await self._list.publish(lines, mark)
        if self._options.admission:  # then newcomers are out until they have passed a check
            self._out.update(name for name in lines if name not in self._known)
        await drive(self._know(proxies))
        if former is not None:
            await drive(emptied(former))
        return proxies

    async def _known_lines(self) -> tuple[dict[str, str], str]:
        lines = await self._options.turns.drive(_lines(list(self._known.values())))
        return lines, await self._options.turns.drive(fingerprint_in_steps(lines))

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
        self._out = {proxy_id for proxy_id in self._out if proxy_id in listed}
        self._foreign.clear()
        yield from emptied(former)

    @property
    def _pool(self) -> SharedPool:
        assert self._shared is not None, "open() comes first"
        return self._shared

    @property
    def _list(self) -> Published:
        assert self._published is not None, "open() comes first"
        return self._published

    def pick(
        self, exclude: Collection[str] = (), site: str = ""
    ) -> str | Awaitable[str | None] | None:
        """Take the least-used member that is neither excluded nor ejected here."""
        alone = self._alone
        if alone is not None and alone.active:
            return alone.pick(self._skipped(exclude))
        taken: str | Awaitable[str | None]
        if exclude or self._ejected or self._foreign:
            taken = self._pick(self._skipped(exclude))
        else:
            found = self._gathered.take()
            if isinstance(found, str):
                return found
            taken = self._mended(found)
        return taken if alone is None else self._or_alone(alone, taken, exclude)

    def _skipped(self, exclude: Collection[str]) -> Collection[str]:
        if not (self._ejected or self._foreign):
            return exclude
        return self._ejected | self._foreign | set(exclude)

    async def _mended(self, taken: Awaitable[str | None]) -> str | None:
        """Await a pick, and see whether it is for want of the pool that there is none."""
        found = await taken
        return found if found is not None else await self._pick(())

    async def _pick(self, skipped: Collection[str]) -> str | None:
        found = await self._pool.pick_excluding(sorted(skipped)) if skipped else None
        # The key may be gone (flushed, or a server that came back empty): that is not an
        # empty pool. Any worker mends it, maybe another one just now.
        if found is None and await self._list.mend():
            found = await self._pool.pick_excluding(sorted(skipped))
        return found

    async def _fetch(self, number: int) -> list[str]:
        found = await self._pool.pick_many(number)
        if found.members:
            with suppress(StoreError):  # these picks are made; the next ones will tell again
                await self._list.saw(found.least)
            if self._out:
                self._out.difference_update(found.members)  # another worker's probe got through
        return found.members

    # While Redis is away

    async def _or_alone(
        self, alone: WhileAway, taken: Awaitable[str | None], exclude: Collection[str]
    ) -> str | None:
        """Await a pick, and make it here if Redis does not."""
        try:
            return await taken
        except StoreError:
            async with self._leaving:
                if not alone.active:
                    await self._carry_on(alone)
            return alone.pick(self._skipped(exclude))

    async def _carry_on(self, alone: WhileAway) -> None:
        await self._options.turns.drive(alone.begin(list(self._known), self._out))
        logger.warning(
            "Pool %r: this worker carries on by itself with the %d proxies it knows to be in "
            "rotation; what it allocates will be added to the counts when Redis is back "
            '(SMOOTHPOOL_ON_REDIS_DOWN = "local")',
            self._options.pool,
            len(alone),
        )
        self._coming_back = asyncio.get_running_loop().create_task(self._come_back(alone))

    async def _come_back(self, alone: WhileAway) -> None:
        begun = time.monotonic()
        # A cancellation that comes together with a timeout is lost in redis-py.
        while not self._closing:
            await asyncio.sleep(_AGAIN)
            try:
                await self._list.mend()
                owed = alone.owed
                await alone.hand_over()
            except StoreError:
                continue  # the connection says what there is to say
            except Stopped:
                return
            alone.active = False  # with nothing awaited since the last was handed over
            logger.info(
                "Pool %r is shared again after %.1f s; %d allocations made meanwhile were added",
                self._options.pool,
                time.monotonic() - begun,
                owed,
            )
            return

    @staticmethod
    async def _hand_over_at_last(alone: WhileAway) -> None:
        until = time.monotonic() + _FAREWELL
        while alone.owed and (left := until - time.monotonic()) > 0:
            with suppress(StoreError, TimeoutError):
                await asyncio.wait_for(alone.hand_over(), left)
            await asyncio.sleep(_LAST_TRIES if alone.owed else 0)

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
        found = await self._pool.report_outcomes(rules, outcomes, delivery)
        for happened, judged in zip(outcomes, found.outcomes, strict=True):
            if judged is IN_ROTATION:
                continue
            if judged.restored:
                self._out.discard(happened.proxy_id)
            elif judged.ejected_for is not None:
                self._out.add(happened.proxy_id)
        return found

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
        self._out.update(found.put_out)
        if not found.whole:
            await self._list.mend()
        return found

    def withdraw(self, gone: Collection[str]) -> None:
        """Drop picks in hand of members that were put out."""
        self._gathered.withdraw(gone)

    async def out(self) -> dict[str, MemberOut]:
        """Return all members that are out, for all workers."""
        found = await self._pool.out()
        self._out = set(found)
        return found

    def weights(self) -> Mapping[str, WeightView]:
        """Return equal weights for all known members."""
        return {name: WeightView(proxy.weight, proxy.weight) for name, proxy in self._known.items()}

    async def close(self) -> None:
        """Hand over what is owed, if Redis is there, and close the connections."""
        self._closing = True
        if self._coming_back is not None:
            self._coming_back.cancel()
            with suppress(asyncio.CancelledError):
                await self._coming_back
        if self._shared is None:
            return
        if self._alone is not None and self._alone.owed:
            await self._hand_over_at_last(self._alone)
            if self._alone.owed:
                logger.warning(
                    "Pool %r: Redis is away, so the counts lack %d allocations made meanwhile",
                    self._options.pool,
                    self._alone.owed,
                )
        await self._shared.aclose()


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
