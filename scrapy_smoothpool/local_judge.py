"""The judge of a pool in one process: one verdict for all sites, or one a site.

With one verdict a site, faults of the proxy itself (it cannot be reached, it
breaks connections, it fares worse than the others) count everywhere, while a
ban counts for that proxy on that site only. Each site then has its own failure
counts, ejections and probes, and its own panic.

Bounded: the least recently used sites go, and with them their bans.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from dataclasses import dataclass
from typing import Protocol

from .exceptions import StoreError
from .health import CANDIDATE, Health
from .judge import NOTHING, Evidence, Report, Return, Standing
from .outcome import Outcome
from .panic import Panic
from .strategies.base import Strategy
from .turns import Steps

logger = logging.getLogger(__name__)

MAX_SITES = 1_000
MAX_SEATS = 200_000
"""Proxies times sites, at most; about 100 MB."""


_SUCCESS = Outcome.SUCCESS  # asked for at every request, and Python 3.11 looks it up for 0.3 µs


class MakeHealth(Protocol):
    """Builds a :class:`Health` with the pool's settings."""

    def __call__(self, *, whole: Health | None = None) -> Health:
        """Build the pool's health, or that of one site."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """What one verdict counts for: one site, or ("") everything."""

    site: str
    health: Health
    panic: Panic

    @property
    def of_strategy(self) -> str | None:
        """The scope as a strategy is told it."""
        return self.site or None


class _Passed:
    """Who is not to be probed: excluded by the request, or out in the other scope.

    One that is due in both is probed in both at once, or neither would ever end where
    there is but one site.
    """

    __slots__ = ("_exclude", "_health")

    def __init__(self, exclude: Collection[str], health: Health) -> None:
        self._exclude = exclude
        self._health = health

    def __contains__(self, proxy_id: object) -> bool:
        name = str(proxy_id)
        health = self._health
        return name in self._exclude or (health.is_out(name) and not health.is_due(name))


class LocalJudge:
    """Judges the proxies of one worker by what this worker has seen.

    :param make_health: builds the state machines, with the pool's settings.
    :param clock: seconds, monotonic.
    :param by_site: give each site verdicts of its own.
    :param admission: proxies begin as candidates, and checks probe, not requests.
    :param on_return: called when a proxy is back in the selection.
    """

    def __init__(
        self,
        strategy: Strategy,
        make_health: MakeHealth,
        clock: Callable[[], float],
        *,
        by_site: bool = False,
        wait_in_panic: bool = False,
        admission: bool = False,
        on_return: Callable[[Return], object] = lambda back: None,
    ) -> None:
        self.by_site = by_site
        self._strategy = strategy
        self._make_health = make_health
        self._clock = clock
        self._wait_in_panic = wait_in_panic
        self._admission = admission
        self._on_return = on_return
        self._whole = _Scope("", make_health(), Panic(clock))
        self._epochs = self._whole.health.epochs
        self._sites: OrderedDict[str, _Scope] = OrderedDict()
        # Probes that got through; their proxies are put back before the next pick.
        self._returning: list[Return] = []

    @property
    def health(self) -> Health:
        """The health that counts everywhere."""
        return self._whole.health

    @property
    def out(self) -> int:
        """Number of proxies that are out everywhere."""
        return self.health.out

    @property
    def eligible(self) -> int:
        """Number of proxies that take part when healthy."""
        return self.health.eligible

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._epochs.now

    # The list

    async def open(self) -> None:
        """Know nothing beforehand."""

    def add(self, proxy_id: str, *, eligible: bool) -> None:
        """Take in one more, as a candidate if there is admission."""
        self.health.add(proxy_id, eligible=eligible, candidate=self._admission)
        if self._admission:
            self._strategy.eject(proxy_id)

    def set_eligible(self, proxy_id: str, eligible: bool) -> None:
        """Note whether a member takes part when healthy."""
        for scope in (self._whole, *self._sites.values()):
            if proxy_id in scope.health:
                scope.health.set_eligible(proxy_id, eligible)

    def remove(self, proxy_id: str) -> None:
        """Forget one that left the list."""
        for scope in (self._whole, *self._sites.values()):
            if proxy_id in scope.health:
                scope.health.remove(proxy_id)

    def settled(self, members: Container[str]) -> Steps[None]:
        """Let one in if the list has shrunk to proxies that are all out."""
        yield
        # Candidates may all be out: whether one works is not known before its check.
        if not self._admission and (last := self.health.unwedge()) is not None:
            self._returning.append(self._return(self._whole, last))

    def _scope(self, site: str) -> _Scope:
        if not self.by_site:
            return self._whole
        scope = self._sites.get(site)
        if scope is None:
            health = self._make_health(whole=self.health)
            scope = self._sites[site] = _Scope(site, health, Panic(self._clock))
            self.expect(self.eligible)
        else:
            self._sites.move_to_end(site)
        return scope

    def expect(self, size: int) -> None:
        """Keep no more sites than a list of that size allows."""
        most = max(2, min(MAX_SITES, MAX_SEATS // (size or 1)))
        while len(self._sites) > most:
            oldest, _ = self._sites.popitem(last=False)
            self._strategy.forget(oldest)

    # Before a request

    def minds(self, site: str) -> bool:
        """Say whether somebody is to be put back or is due, or there is a panic."""
        scope = self._scope(site) if self.by_site else self._whole
        if scope.panic.on or self._returning or self._whole.health.anyone_due:
            return True
        return self.by_site and scope.health.anyone_due

    def may_pick(self, site: str) -> bool:
        """Say whether a request may be tried now."""
        panic = self._scope(site).panic
        return not panic.on or panic.may_pick(self._wait_in_panic)

    def nothing_found(self, site: str) -> None:
        """Note that nothing came of the turn."""
        self._scope(site).panic.give_turn_back()

    def paced(self, site: str) -> bool:
        """Say whether it is only the panic's walking pace for which a request has to wait."""
        return not self._wait_in_panic and self._scope(site).panic.between_turns

    @property
    def next_due(self) -> float | None:
        """Seconds until a proxy that is out everywhere is due."""
        return self.health.next_due

    def panicking(self, site: str) -> bool:
        """Say whether hardly anything gets through (on that site)."""
        return self._scope(site).panic.on

    def probe(
        self, exclude: Collection[str], site: str, *, may: bool = True
    ) -> str | Awaitable[str | None] | None:
        """Put back who returns, and return a proxy that this request has to probe."""
        if self._returning:
            return self._put_back_and_probe(exclude, site, may)
        return self._probe(exclude, site) if may else None

    async def _put_back_and_probe(
        self, exclude: Collection[str], site: str, may: bool
    ) -> str | None:
        await self._put_back()
        return self._probe(exclude, site) if may else None

    def _probe(self, exclude: Collection[str], site: str) -> str | None:
        if not self.by_site:
            return None if self._admission else self.health.probe(exclude)
        health = self._scope(site).health
        found = None
        if not self._admission:
            found = self.health.probe(_Passed(exclude, health))
            if found is not None and health.is_out(found):
                health.begin_probe(found)
        return found or health.probe(_Passed(exclude, self.health))

    def take_probes(self, most: int) -> Sequence[str] | Awaitable[Sequence[str]]:
        """Return up to *most* proxies that are due everywhere."""
        if self._returning:
            return self._put_back_and_take(most)
        return self._take(most)

    async def _put_back_and_take(self, most: int) -> Sequence[str]:
        await self._put_back()
        return self._take(most)

    def _take(self, most: int) -> Sequence[str]:
        found: list[str] = []
        while len(found) < most and (proxy_id := self.health.probe()) is not None:
            found.append(proxy_id)
        return found

    async def _put_back(self) -> None:
        while self._returning:
            back = self._returning.pop(0)
            health = self._scope(back.site).health if back.site else self.health
            if back.proxy_id not in self.health or health.is_out(back.proxy_id):
                continue  # removed, or put out again, since its probe got through
            # The proxy is active again whether or not the store can be told.
            try:
                result = self._strategy.restore(
                    back.proxy_id, back.site or None, gently=not back.admitted
                )
                if isinstance(result, Awaitable):
                    await result
            except StoreError as error:
                logger.warning(
                    "Proxy %s is back, but its count was not raised: %s", back.proxy_id, error
                )
            self._on_return(back)

    def is_out(self, proxy_id: str, site: str) -> bool:
        """Say whether a proxy is out, everywhere or on the site."""
        return self._whole.health.is_out(proxy_id) or (
            self.by_site and self._scope(site).health.is_out(proxy_id)
        )

    def is_current(self, proxy_id: str, epoch: int, site: str) -> bool:
        """Say whether a proxy is in (or being probed), and has been since *epoch*."""
        if not self.health.is_current(proxy_id, epoch):
            return False
        if not self.by_site:
            return True
        health = self._scope(site).health
        return proxy_id not in health or health.is_current(proxy_id, epoch)

    def is_probing(self, proxy_id: str, epoch: int, site: str) -> bool:
        """Say whether an assignment of *epoch* is a probe."""
        return self.is_out(proxy_id, site) and self.is_current(proxy_id, epoch, site)

    def unsent(self, proxy_id: str, site: str, *, usable: bool = True) -> None:
        """Note that a probe never went out."""
        for health in {self.health, self._scope(site).health}:
            if proxy_id in health:
                health.unsent(proxy_id)

    # After it

    def report(self, proxy_id: str, epoch: int, evidence: Evidence, blamed: bool) -> Report:
        """Take in an outcome: a ban where it counts, everything else everywhere."""
        whole = self._whole
        if not self.by_site or evidence.check:
            well = evidence.outcome is _SUCCESS and not evidence.check
            if well and whole.health.went_well(proxy_id, epoch):
                whole.panic.success()
                return NOTHING
            return self._book(whole, whole.panic, proxy_id, epoch, evidence, blamed)
        if proxy_id not in whole.health:
            return Report(stale=True)
        scope = self._scope(evidence.site)
        if proxy_id not in scope.health:
            scope.health.add(proxy_id, eligible=self.health[proxy_id].eligible)
        banned = evidence.outcome is Outcome.BANNED
        everywhere = self._book(
            self._whole,
            scope.panic,
            proxy_id,
            epoch,
            # That it was turned away there speaks for the proxy elsewhere.
            evidence._replace(answered=evidence.answered or evidence.turned_away),
            blamed and not banned,
        )
        here = self._book(scope, scope.panic, proxy_id, epoch, evidence, banned)
        return here if banned else everywhere

    def _book(
        self,
        scope: _Scope,
        panic: Panic,
        proxy_id: str,
        epoch: int,
        evidence: Evidence,
        failed: bool,
    ) -> Report:
        health = scope.health
        if not health.is_current(proxy_id, epoch):
            return Report(stale=True)
        if failed:
            return self._failed(scope, panic, proxy_id, evidence)
        success = evidence.outcome is _SUCCESS
        if success and not evidence.check:
            panic.success()
        record = health[proxy_id]
        if success or (record.out and evidence.answered):
            if health.succeeded(proxy_id):
                self._returning.append(self._return(scope, proxy_id))
        elif record.out:
            health.inconclusive(proxy_id)
        return NOTHING

    def _return(self, scope: _Scope, proxy_id: str) -> Return:
        record = scope.health[proxy_id]
        return Return(
            proxy_id,
            scope.site,
            admitted=record.reason == CANDIDATE,
            reason=record.reason,
            duration=self._clock() - record.out_since,
        )

    def _failed(self, scope: _Scope, panic: Panic, proxy_id: str, evidence: Evidence) -> Report:
        outcome = evidence.outcome
        verdict = scope.health.failed(
            proxy_id,
            certain=outcome is Outcome.PROXY_ERROR,
            reason=outcome.value,
            login=evidence.login,
        )
        # A check that fails is no request that got nowhere.
        size = self.health.checked
        began = not evidence.check and panic.failure(spared=verdict.spared, size=size)
        if verdict.ejected_for is None:
            by = self._strategy.penalize(proxy_id, verdict.consecutive, scope.of_strategy)
            return Report(blamed=True, penalty=by, panic=began, site=scope.site)
        self._strategy.eject(proxy_id, scope.of_strategy)
        return Report(
            blamed=True,
            ejected_for=verdict.ejected_for,
            consecutive=verdict.consecutive,
            panic=began,
            site=scope.site,
        )

    def judged(self) -> None:
        """Return nothing to await: an outcome is judged when it is reported."""

    def standing(self, proxy_id: str) -> Standing:
        """Return a proxy's health everywhere."""
        record = self.health[proxy_id]
        return Standing(record.out, record.reason if record.out else "", record.consecutive)

    async def refresh(self) -> None:
        """Be up to date always."""

    async def close(self) -> None:
        """Have nothing to deliver."""
