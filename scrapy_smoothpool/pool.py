"""The pool: proxies, strategy and health, the one object that both components share.

One request's way: :meth:`Pool.acquire` before the download, :meth:`Pool.report`
after it, :meth:`Pool.give_back` when it never went out. The pool knows nothing
of Scrapy.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from .comparison import Comparison
from .exceptions import PoolNotReady, SettingsError, StoreError
from .health import Health
from .outcome import Outcome
from .panic import Panic
from .proxy import Proxy
from .rests import Rests
from .strategies.base import Strategy, WeightView

logger = logging.getLogger(__name__)

_FOREIGN_TRIES = 20
_PRUNE_INTERVAL = 1.0  # seconds between two readings of the whole shared list


class Assignment(NamedTuple):
    """A pick: which proxy, and in which epoch of the pool's health."""

    proxy_id: str
    epoch: int
    url: str
    """With the login; for ``meta["proxy"]`` only, never for a log."""


class Evidence(NamedTuple):
    """What is known of how a download ended."""

    outcome: Outcome
    site: str = ""
    answered: bool = False
    """The site answered, so the proxy carried the request: success, or neutral with a response."""
    login: bool = False
    """The proxy refused the login."""
    why: str = ""
    """In a few words, without secrets: a status, or the names of an error."""
    rest: float | None = None
    """Seconds for which the site asked not to be asked again (``Retry-After``)."""


class Report(NamedTuple):
    """What an outcome changed."""

    stale: bool = False
    blamed: bool = False
    """It counted as a failure of the proxy."""
    penalty: int = 0
    ejected_for: float | None = None
    """Seconds."""
    consecutive: int = 0
    panic: bool = False
    """With this failure the pool began to panic."""


class State(StrEnum):
    """The life of a pool."""

    NEW = "new"
    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(slots=True)
class _Member:
    """One proxy and what this worker has seen of it. Written by the pool only."""

    proxy: Proxy
    url: str
    picks: int = 0
    successes: int = 0
    failures: int = 0
    unclear: int = 0
    ejections: int = 0
    last_fault: str = ""


class MemberView(NamedTuple):
    """One proxy in :meth:`Pool.snapshot`. Free of secrets."""

    id: str
    weight: int
    effective_weight: float
    picks: int
    successes: int
    failures: int
    unclear: int
    """Ambiguous outcomes: retried elsewhere, blamed on nobody."""
    ejections: int
    consecutive_failures: int
    out: bool
    reason: str
    """Why it is out: an outcome."""
    last_fault: str
    """What its last failure was: a status or the names of an error."""


class Pool:
    """Proxies, strategy and health of one worker.

    :param proxies: the worker's list, or None to join a shared pool as it stands.
    :param on_restored: called with the id of a proxy whose ejection ended.
    :param accept: called with proxies that this worker did not list itself;
        raises :exc:`~scrapy_smoothpool.exceptions.SettingsError` for one that it
        cannot use.
    """

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        health: Health,
        proxies: Sequence[Proxy] | None,
        on_restored: Callable[[str], object] = lambda proxy_id: None,
        accept: Callable[[Sequence[Proxy]], object] = lambda proxies: None,
        clock: Callable[[], float] = time.monotonic,
        wait_in_panic: bool = False,
    ) -> None:
        self.name = name
        self.strategy = strategy
        self.state = State.NEW
        self._health = health
        self._list = proxies
        self._on_restored = on_restored
        self._accept = accept
        self._wait_in_panic = wait_in_panic
        self._members: dict[str, _Member] = {}
        # Picks whose request never went out, oldest first (design rule 4): the next request
        # that may use one takes it, so the sequence of proxies really used stays exact.
        self._tickets: deque[Assignment] = deque()
        self._clock = clock
        self._next_prune = 0.0

        # Probes that got through; their proxies are put back before the next pick.
        self._returning: list[str] = []
        self._comparison = Comparison(clock)
        self._rests = Rests(clock)
        self._panic = Panic(clock)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def out(self) -> int:
        """Number of proxies that are ejected now."""
        return self._health.out

    async def open(self) -> None:
        """Load or join the pool. Whatever goes wrong leaves it unusable, never empty-but-open."""
        try:
            proxies = await self.strategy.open(self._list or ())
            if self._list is None:
                self._accept(proxies)
            self._apply(proxies)
        except BaseException:
            self.state = State.FAILED
            raise
        self.state = State.OPEN

    async def close(self) -> None:
        """End the pool; nothing is assigned afterwards."""
        self.state = State.CLOSED
        await self.strategy.close()

    async def reload(self, proxies: Sequence[Proxy]) -> None:
        """Replace the list by difference: who stays keeps counts, health and place.

        Raises :exc:`~scrapy_smoothpool.exceptions.SettingsError`, and keeps the
        old list, for one that could not have been started with.
        """
        if not proxies:
            raise SettingsError(f"the new list of pool {self.name!r} is empty; the old one stays")
        self._accept(proxies)
        self.strategy.check(proxies)
        self._apply(await self.strategy.reload(proxies))

    def _apply(self, proxies: Sequence[Proxy]) -> None:
        listed = {proxy.id: proxy for proxy in proxies}
        for gone in self._members.keys() - listed.keys():
            del self._members[gone]
            self._health.remove(gone)
        for proxy_id, proxy in listed.items():
            member = self._members.get(proxy_id)
            if member is None:
                self._add(proxy)
            else:
                member.proxy, member.url = proxy, proxy.url
                self._health.set_eligible(proxy_id, proxy.weight > 0)
        if (last := self._health.unwedge()) is not None:
            self._returning.append(last)

    def _add(self, proxy: Proxy) -> _Member:
        member = self._members[proxy.id] = _Member(proxy, proxy.url)
        self._health.add(proxy.id, eligible=proxy.weight > 0)
        return member

    async def acquire(self, tried: Sequence[str] = (), site: str = "") -> Assignment | None:
        """Pick a proxy for a request, None when there is none for it now.

        :param tried: the proxies this request has been through, in order. One
            that is not among them comes first, then any but the last. The last
            itself is only given to a caller that passes an empty sequence.
        :param site: the request's site; proxies that rest there are passed over.

        Raises :exc:`~scrapy_smoothpool.exceptions.StoreError` when Redis cannot
        answer, :exc:`~scrapy_smoothpool.exceptions.PoolNotReady` when the pool
        is not open.
        """
        if self.state is not State.OPEN:
            raise PoolNotReady(f"pool {self.name!r} is {self.state}, no request may go out")
        while self._returning:
            await self._restore(self._returning.pop(0))
        if self._panic.on and not self._panic.may_pick(self._wait_in_panic):
            return None
        resting = self.resting(site)
        first = {*tried, *resting} if resting else tried
        probe = self._health.probe(first)
        if probe is not None:
            return self._assign(probe)
        found = await self._pick(first)
        if found is None and len(tried) > 1:
            found = await self._pick({tried[-1], *resting})
        return found

    def resting(self, site: str) -> Collection[str]:
        """Return the ids of proxies that rest on a site because it asked for it."""
        return self._rests.on(site) if self._rests else ()

    @property
    def eligible(self) -> int:
        """Number of proxies that take part when healthy (drained ones do not)."""
        return self._health.eligible

    def address(self, proxy_id: str) -> str | None:
        """Return a proxy's URL without its login, None when it has left the pool."""
        member = self._members.get(proxy_id)
        return member.proxy.address if member else None

    @property
    def panic(self) -> bool:
        """Whether hardly anything gets through and no more proxies may be put out."""
        return self._panic.on

    def _assign(self, proxy_id: str) -> Assignment:
        member = self._members[proxy_id]
        member.picks += 1
        return Assignment(proxy_id, self._health.epochs.now, member.url)

    async def _restore(self, proxy_id: str) -> None:
        if proxy_id not in self._members or self._health[proxy_id].out:
            return  # removed, or put out again, since its probe got through
        # The proxy is active again whether or not the store can be told.
        try:
            result = self.strategy.restore(proxy_id)
            if isinstance(result, Awaitable):
                await result
        except StoreError as error:
            logger.warning("Proxy %s is back, but its count was not raised: %s", proxy_id, error)
        self._on_restored(proxy_id)

    async def _pick(self, exclude: Collection[str]) -> Assignment | None:
        if self._tickets and (ticket := self._ticket(exclude)) is not None:
            return ticket
        for _ in range(_FOREIGN_TRIES):
            picked = self.strategy.pick(exclude)
            proxy_id = await picked if isinstance(picked, Awaitable) else picked
            if proxy_id is None:
                return None
            member = self._members.get(proxy_id) or await self._meet(proxy_id)
            # While Redis answered, another request's outcome may have put the proxy out.
            if member is not None and not self._health[proxy_id].out:
                return self._assign(proxy_id)
        return None

    async def _meet(self, proxy_id: str) -> _Member | None:
        """Get to know a proxy that another worker brought into the shared pool."""
        found = self.strategy.lookup(proxy_id)
        proxy = await found if isinstance(found, Awaitable) else found
        if proxy is None:
            logger.warning("Pool member %s is skipped: nobody knows how to reach it", proxy_id)
            return None
        if proxy_id not in self._members:  # another request may have met it meanwhile
            try:
                self._accept([proxy])
            except SettingsError as error:
                logger.warning("Pool member %s is skipped by this worker: %s", proxy_id, error)
                self.strategy.eject(proxy_id)
                return None
            self._add(proxy)
        # A stranger means that the list was replaced: those that left must not count any more.
        if self._clock() >= self._next_prune:
            await self._prune()
        return self._members.get(proxy_id)

    async def _prune(self) -> None:
        """Forget proxies that left the shared pool; nobody new is taken in unseen."""
        self._next_prune = self._clock() + _PRUNE_INTERVAL
        listed = {proxy.id for proxy in await self.strategy.members()}
        self._apply([m.proxy for proxy_id, m in self._members.items() if proxy_id in listed])

    def _ticket(self, exclude: Collection[str]) -> Assignment | None:
        for ticket in list(self._tickets):
            if not self._health.is_current(ticket.proxy_id, ticket.epoch):
                self._tickets.remove(ticket)
            elif not self._health[ticket.proxy_id].eligible:
                self._tickets.remove(ticket)  # drained meanwhile
            elif ticket.proxy_id not in exclude:
                self._tickets.remove(ticket)
                return self._assign(ticket.proxy_id)  # with the login that is valid now
        return None

    def give_back(self, proxy_id: str, epoch: int) -> None:
        """Keep a pick whose request never went out for the next request. Counts stay."""
        member = self._members.get(proxy_id)
        if member is None or not self._health.is_current(proxy_id, epoch):
            return
        member.picks -= 1  # counted again when it is used
        if self._health[proxy_id].out:
            self._health.unsent(proxy_id)
        else:
            self._tickets.append(Assignment(proxy_id, epoch, member.url))

    def report(self, proxy_id: str, epoch: int, evidence: Evidence) -> Report:
        """Book the outcome of a download on the proxy it went through."""
        outcome = evidence.outcome
        blamed = outcome.is_failure
        if evidence.answered:
            self._comparison.answered(evidence.site, proxy_id)
        elif outcome is Outcome.AMBIGUOUS:
            blamed = self._comparison.failed(evidence.site, proxy_id)
        member = self._members.get(proxy_id)
        if member is None:
            return Report(stale=True)
        member.successes += outcome is Outcome.SUCCESS
        member.failures += blamed
        if blamed or outcome is Outcome.AMBIGUOUS:
            member.last_fault = evidence.why
        member.unclear += outcome is Outcome.AMBIGUOUS and not blamed
        if evidence.rest:
            self._rests.rest(evidence.site, proxy_id, evidence.rest)
        if not self._health.is_current(proxy_id, epoch):
            return Report(stale=True)
        if blamed:
            return self._failed(proxy_id, member, evidence)
        self._not_failed(proxy_id, evidence)
        return Report()

    def _not_failed(self, proxy_id: str, evidence: Evidence) -> None:
        success = evidence.outcome is Outcome.SUCCESS
        if success:
            self._panic.success()
        probing = self._health[proxy_id].out
        if success or (probing and evidence.answered):
            if self._health.succeeded(proxy_id):
                self._returning.append(proxy_id)
        elif probing:
            self._health.inconclusive(proxy_id)

    def _failed(self, proxy_id: str, member: _Member, evidence: Evidence) -> Report:
        outcome = evidence.outcome
        verdict = self._health.failed(
            proxy_id,
            certain=outcome is Outcome.PROXY_ERROR,
            reason=outcome.value,
            login=evidence.login,
        )
        began = self._panic.failure(spared=verdict.spared, size=self._health.eligible)
        if verdict.ejected_for is None:
            by = self.strategy.penalize(proxy_id, verdict.consecutive)
            return Report(blamed=True, penalty=by, panic=began)
        self.strategy.eject(proxy_id)
        member.ejections += 1
        return Report(
            blamed=True,
            ejected_for=verdict.ejected_for,
            consecutive=verdict.consecutive,
            panic=began,
        )

    def snapshot(self) -> list[MemberView]:
        """Return every proxy with its weights and what this worker has seen of it."""
        weights = self.strategy.weights()
        views = []
        for proxy_id, member in self._members.items():
            weight = weights.get(proxy_id) or WeightView(member.proxy.weight, member.proxy.weight)
            record = self._health[proxy_id]
            views.append(
                MemberView(
                    proxy_id,
                    weight.weight,
                    weight.effective_weight,
                    member.picks,
                    member.successes,
                    member.failures,
                    member.unclear,
                    member.ejections,
                    record.consecutive,
                    record.out,
                    record.reason if record.out else "",
                    member.last_fault,
                )
            )
        return views
