"""The pool: proxies, strategy and judge, the one object that both components share.

One request's way: :meth:`Pool.acquire` before the download, :meth:`Pool.report`
after it, :meth:`Pool.give_back` when it never went out. The pool knows nothing
of Scrapy.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from . import sources
from .comparison import Comparison
from .exceptions import PoolNotReady, SettingsError
from .judge import NOTHING, Evidence, Judge, Report
from .outcome import Outcome
from .proxy import Proxy
from .rests import Rests
from .strategies.base import Strategy, WeightView
from .turns import Steps, Stopped, Turns, at_once, emptied

logger = logging.getLogger(__name__)

_FOREIGN_TRIES = 20
_TICKET_SITES = 1_000
"""Sites for which picks are kept; the first go."""
_PRUNE_INTERVAL = 1.0  # seconds between two readings of the whole shared list, and
_PRUNE_SHARE = 10  # times as long as one takes
_BEHIND_ANOTHER = 0.02  # seconds between two looks whether the reload before has ended
_LOOKED_AT = 512
"""Proxies merely looked at in one step."""
_TAKEN_IN = 64
"""Proxies taken in or forgotten in one step."""
_THE_LIST, _THE_FILE = "the new list", "the new list's file"


class Assignment(NamedTuple):
    """A pick: which proxy, and in which epoch of the pool's health."""

    proxy_id: str
    epoch: int
    url: str
    """With the login; for ``meta["proxy"]`` only, never for a log."""


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
    address: str
    picks: int = 0
    successes: int = 0
    failures: int = 0
    unclear: int = 0
    ejections: int = 0
    last_fault: str = ""


# Asked for at every request, and Python 3.11 takes 0.3 µs to look up a member.
_OPEN = State.OPEN
_SUCCESS = Outcome.SUCCESS


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
    """Proxies, strategy and judge of one worker.

    :param proxies: the worker's list, or None to join a shared pool as it stands.
    :param accept: called with proxies that this worker did not list itself;
        raises :exc:`~scrapy_smoothpool.exceptions.SettingsError` for one that it
        cannot use.
    :param turns: does what takes long over a long list; the strategy should have the same.
    """

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        judge: Judge,
        proxies: Sequence[Proxy] | None,
        accept: Callable[[Sequence[Proxy]], object] = lambda proxies: None,
        clock: Callable[[], float] = time.monotonic,
        turns: Turns | None = None,
    ) -> None:
        self.name = name
        self.strategy = strategy
        self.judge = judge
        self.state = State.NEW
        self._list = proxies
        self._accept = accept
        self._members: dict[str, _Member] = {}
        self.closing: set[str] = set()
        """Ids of proxies whose connections are to be closed after each request."""
        # Picks whose request never went out, by the sequence they belong to, oldest first
        # (design rule 4): the next request that may use one takes it, so the sequence of
        # proxies really used stays exact.
        self._tickets: dict[str, deque[Assignment]] = {}
        self._clock = clock
        self._next_prune = 0.0
        self._turns = turns or Turns()
        # Who reloads now, and who waits to, in this order.
        self._reloads: deque[object] = deque()
        self._comparison = Comparison(clock)
        self.rests = Rests(clock)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def out(self) -> int:
        """Number of proxies that are ejected now."""
        return self.judge.out

    @property
    def eligible(self) -> int:
        """Number of proxies that take part when healthy (drained ones do not)."""
        return self.judge.eligible

    async def open(self) -> None:
        """Load or join the pool. Whatever goes wrong leaves it unusable, never empty-but-open."""
        try:
            proxies = await self.strategy.open(self._list or ())
            if self._list is None:
                await self._turns.drive(self._accepted(proxies))
            await self._turns.drive(self._apply(proxies))
            await self.judge.open()
        except BaseException:
            self.state = State.FAILED
            raise
        self.state = State.OPEN

    async def close(self) -> None:
        """End the pool; nothing is assigned afterwards, and reloads break off."""
        self.state = State.CLOSED
        self._turns.stop()
        await self.judge.close()
        await self.strategy.close()

    async def reload(self, proxies: Sequence[Proxy]) -> None:
        """Replace the list by difference: who stays keeps counts, health and place.

        Requests go on meanwhile, and a long list is worked through in steps, between which they
        have their turns; each proxy is then as the old list has it or as the new one does.
        Reloads that are wanted at the same time follow one another.

        Raises :exc:`~scrapy_smoothpool.exceptions.SettingsError`, and keeps the
        old list, for one that could not have been started with;
        :exc:`~scrapy_smoothpool.exceptions.StoreError`, and keeps it, too, when Redis cannot
        take the new one; :exc:`~scrapy_smoothpool.exceptions.PoolNotReady` when the pool is not
        open or closes meanwhile.
        """

        async def given() -> Sequence[Proxy]:
            return proxies

        await self._in_order(given)

    async def reload_list(self, value: object) -> None:
        """Read what ``SMOOTHPOOL_PROXIES`` takes (a list, a dict, a text) and :meth:`reload` it.

        Raises what :meth:`reload` raises, and
        :exc:`~scrapy_smoothpool.exceptions.ProxyListError` for lines that cannot be read.
        """

        async def read() -> Sequence[Proxy]:
            return await self._turns.drive(sources.read_setting(value, _THE_LIST))

        await self._in_order(read, ours=True)

    async def reload_file(self, path: object) -> None:
        """Read a file such as ``SMOOTHPOOL_PROXIES_FILE`` names and :meth:`reload` it.

        It is read in a thread. Raises what :meth:`reload_list` raises.
        """

        async def read() -> Sequence[Proxy]:
            text = await self._turns.aside(lambda: sources.file_text(path, _THE_FILE))
            return await self._turns.drive(sources.read_text(path, text, _THE_FILE))

        await self._in_order(read, ours=True)

    async def _in_order(
        self, read: Callable[[], Awaitable[Sequence[Proxy]]], *, ours: bool = False
    ) -> None:
        place = object()
        self._reloads.append(place)
        try:
            while self._reloads[0] is not place:
                await self._turns.pause(_BEHIND_ANOTHER)
            if self.state is State.OPEN:
                proxies = await read()
                await self._reload(proxies)
                if ours and isinstance(proxies, list):
                    await self._turns.drive(emptied(proxies))
        except Stopped:
            pass
        except Exception:
            # Redis fails a call under way when its connection is closed.
            if self.state is not State.CLOSED:
                raise
        finally:
            self._reloads.remove(place)
        if self.state is not State.OPEN:
            raise PoolNotReady(f"pool {self.name!r} is {self.state}, its list is not reloaded")

    async def _reload(self, proxies: Sequence[Proxy]) -> None:
        if not proxies:
            raise SettingsError(f"the new list of pool {self.name!r} is empty; the old one stays")
        drive = self._turns.drive
        new, changed, proxies = await drive(self._difference(proxies))
        await drive(self._accepted([*new, *changed]))
        await drive(self._checked(proxies))
        self.judge.expect(len(proxies))
        # Known before they can be picked; who leaves is forgotten when they no longer can.
        introduced: list[str] = []
        try:
            await drive(self._introduce(new, introduced))
            listed = await self.strategy.reload(proxies)
        except BaseException:
            for proxy_id in introduced:
                self._forget(proxy_id)
            raise
        try:
            await drive(self._apply(listed))
        except Stopped:
            raise
        except BaseException:  # cancelled: but this list is in force
            at_once(self._apply(listed))
            raise

    def _difference(
        self, proxies: Sequence[Proxy]
    ) -> Steps[tuple[list[Proxy], list[Proxy], list[Proxy]]]:
        """Return who is new, who is not as before, and the list, the others as known already.

        Refuses what no list may have.
        """
        seen: set[str] = set()
        new, changed, listed, usable = [], [], [], False
        for proxy in proxies:
            proxy_id = proxy.id
            if proxy_id in seen:
                raise SettingsError(
                    f"several proxies of the new list share the id {proxy_id}; the old list "
                    "stays; give each a name= of its own"
                )
            seen.add(proxy_id)
            usable = usable or proxy.weight > 0
            member = self._members.get(proxy_id)
            if member is None:
                new.append(proxy)
            elif member.proxy != proxy:
                changed.append(proxy)
            else:
                proxy = member.proxy
            listed.append(proxy)
            if not len(seen) % _LOOKED_AT:
                yield
        if not usable:
            raise SettingsError(
                f"every proxy of the new list of pool {self.name!r} has weight 0, which is "
                "drained; the old list stays; accepted: a weight of at least 1 for one of them"
            )
        yield from emptied(seen)
        return new, changed, listed

    def _accepted(self, proxies: Sequence[Proxy]) -> Steps[None]:
        for start in range(0, max(1, len(proxies)), _LOOKED_AT):
            self._accept(proxies[start : start + _LOOKED_AT])
            yield

    def _checked(self, proxies: Sequence[Proxy]) -> Steps[None]:
        for start in range(0, len(proxies), _LOOKED_AT):
            # With the first, since what a strategy cannot work with may be a difference.
            self.strategy.check([proxies[0], *proxies[start : start + _LOOKED_AT]])
            yield

    def _introduce(self, proxies: Sequence[Proxy], introduced: list[str]) -> Steps[None]:
        for number, proxy in enumerate(proxies):
            if proxy.id not in self._members:
                self._take_in(proxy)
                introduced.append(proxy.id)
            if not number % _TAKEN_IN:
                yield

    def _take_in(self, proxy: Proxy) -> None:
        self._members[proxy.id] = _Member(proxy, proxy.url, proxy.address)
        if proxy.close:
            self.closing.add(proxy.id)
        self.judge.add(proxy.id, eligible=proxy.weight > 0)

    def _forget(self, proxy_id: str) -> None:
        self.closing.discard(proxy_id)
        if self._members.pop(proxy_id, None) is not None:
            self.judge.remove(proxy_id)

    def _apply(self, proxies: Sequence[Proxy]) -> Steps[None]:
        """Let exactly these be the members."""
        listed: set[str] = set()
        for number, proxy in enumerate(proxies):
            listed.add(proxy.id)
            member = self._members.get(proxy.id)
            if member is None:
                self._take_in(proxy)
            elif member.proxy is not proxy and member.proxy != proxy:
                if (member.proxy.weight > 0) is not (proxy.weight > 0):
                    self.judge.set_eligible(proxy.id, proxy.weight > 0)
                member.proxy, member.url, member.address = proxy, proxy.url, proxy.address
                (self.closing.add if proxy.close else self.closing.discard)(proxy.id)
            if not number % _TAKEN_IN:
                yield
        yield from self._keep(listed)
        yield from emptied(listed)

    def _keep(self, listed: Container[str]) -> Steps[None]:
        """Forget whoever is not listed; nobody new is taken in."""
        done = 0
        for number, proxy_id in enumerate(list(self._members)):
            if proxy_id not in listed:
                self._forget(proxy_id)
                done += 1
            if not number % _LOOKED_AT or not (done + 1) % _TAKEN_IN:
                yield
        yield from self.judge.settled(self._members)

    async def acquire(self, tried: Sequence[str] = (), site: str = "") -> Assignment | None:
        """Pick a proxy for a request, None when there is none for it now.

        :param tried: the proxies this request has been through, in order. One
            that is not among them comes first, then any but the last. The last
            itself is only given to a caller that passes an empty sequence.
        :param site: the request's site; proxies that rest there, or are out
            there, are passed over.

        Raises :exc:`~scrapy_smoothpool.exceptions.StoreError` when Redis cannot
        answer, :exc:`~scrapy_smoothpool.exceptions.PoolNotReady` when the pool
        is not open.
        """
        if self.state is not _OPEN:
            raise PoolNotReady(f"pool {self.name!r} is {self.state}, no request may go out")
        judge = self.judge
        # Each site has its own sequence where it has its own verdicts.
        sequence = site if judge.by_site else ""
        if not (tried or self._tickets or self.rests.by_site or judge.minds(sequence)):
            if not self.strategy.shared:  # then there is nothing to wait for
                epoch = judge.epoch
                picked = self.strategy.pick((), sequence)
                if isinstance(picked, str) and (member := self._members.get(picked)) is not None:
                    member.picks += 1
                    return Assignment(picked, epoch, member.url)
            return await self._next((), sequence)
        if not judge.may_pick(sequence):
            return None
        resting = self.resting(site)
        first = {*tried, *resting} if resting else tried
        # What has failed already is not risked on a proxy that may be bad.
        probe = self.judge.probe(first, sequence, may=not tried)
        found = None if probe is None else await self._probing(probe, sequence)
        if found is None:
            found = await self._pick(first, sequence)
        if found is None and len(tried) > 1:
            found = await self._pick({tried[-1], *resting}, sequence)
        if found is None and tried and (probe := self.judge.probe(first, sequence)) is not None:
            found = await self._probing(probe, sequence)
        if found is None and self.judge.panicking(sequence):
            self.judge.nothing_found(sequence)
        return found

    async def _probing(
        self, probe: str | Awaitable[str | None], sequence: str
    ) -> Assignment | None:
        proxy_id = probe if isinstance(probe, str) else await probe
        if proxy_id is None or not await self._may_probe(proxy_id, sequence):
            return None
        return self._assign(proxy_id, self.judge.epoch)

    async def _may_probe(self, proxy_id: str, sequence: str) -> bool:
        """Get to know a proxy that is to be probed; give the lease back where that fails."""
        if proxy_id in self._members:
            return True
        try:
            known = await self._meet(proxy_id)
        except BaseException:
            self.judge.unsent(proxy_id, sequence)
            raise
        if not known:
            self.judge.unsent(proxy_id, sequence, usable=False)
        return known

    def resting(self, site: str) -> Collection[str]:
        """Return the ids of proxies that rest on a site because it asked for it."""
        return self.rests.on(site) if self.rests.by_site else ()

    def only_there(self, site: str) -> bool:
        """Say whether a pool that has none for a site may have some for others."""
        return self.judge.by_site and self.out < self.eligible

    def panicking(self, site: str) -> bool:
        """Say whether hardly anything gets through and no more proxies may be put out."""
        return self.judge.panicking(site if self.judge.by_site else "")

    def paced(self, site: str) -> bool:
        """Say whether it is only the panic's walking pace for which a request has to wait."""
        return self.judge.paced(site if self.judge.by_site else "")

    def proxy(self, proxy_id: str) -> Proxy | None:
        """Return a proxy, None when it has left the pool."""
        member = self._members.get(proxy_id)
        return member.proxy if member else None

    def address(self, proxy_id: str) -> str | None:
        """Return a proxy's address without its login, None when it has left the pool."""
        member = self._members.get(proxy_id)
        return member.address if member else None

    def _assign(self, proxy_id: str, epoch: int) -> Assignment | None:
        member = self._members.get(proxy_id)
        if member is None:
            return None
        member.picks += 1
        return Assignment(proxy_id, epoch, member.url)

    async def _pick(self, exclude: Collection[str], sequence: str) -> Assignment | None:
        if self._tickets and (ticket := self._ticket(exclude, sequence)) is not None:
            return ticket
        return await self._next(exclude, sequence)

    async def _next(self, exclude: Collection[str], sequence: str) -> Assignment | None:
        judge, strategy = self.judge, self.strategy
        for _ in range(_FOREIGN_TRIES):
            epoch = judge.epoch
            picked = strategy.pick(exclude, sequence)
            at_once = not strategy.shared
            if picked is None or isinstance(picked, str):
                proxy_id = picked
            else:
                at_once, proxy_id = False, await picked
            if proxy_id is None:
                return None
            if proxy_id not in self._members:
                if not await self._meet(proxy_id):
                    continue
                epoch = judge.epoch  # a new proxy begins one
            # While Redis answered, another request's outcome may have put the proxy out.
            if at_once or not judge.is_out(proxy_id, sequence):
                return self._assign(proxy_id, epoch)
        return None

    async def _meet(self, proxy_id: str) -> bool:
        """Get to know a proxy that another worker brought into the shared pool."""
        found = self.strategy.lookup(proxy_id)
        proxy = await found if isinstance(found, Awaitable) else found
        if proxy is None:
            logger.warning("Pool member %s is skipped: nobody knows how to reach it", proxy_id)
            return False
        if proxy_id not in self._members:  # another request may have met it meanwhile
            try:
                self._accept([proxy])
            except SettingsError as error:
                logger.warning("Pool member %s is skipped by this worker: %s", proxy_id, error)
                self.strategy.eject(proxy_id)
                return False
            self._take_in(proxy)
        # A stranger means that the list was replaced: those that left must not count any more.
        if self._clock() >= self._next_prune:
            await self._prune()
        return proxy_id in self._members

    async def _prune(self) -> None:
        """Forget proxies that left the shared pool; nobody new is taken in unseen."""
        self._next_prune = math.inf  # one at a time
        begun = self._clock()
        try:
            listed = {proxy.id for proxy in await self.strategy.members()}
            if not self._reloads:  # which sees to that itself
                await self._turns.drive(self._keep(listed))
        finally:
            took = self._clock() - begun
            self._next_prune = self._clock() + max(_PRUNE_INTERVAL, _PRUNE_SHARE * took)

    def _ticket(self, exclude: Collection[str], sequence: str) -> Assignment | None:
        tickets = self._tickets.get(sequence)
        for ticket in list(tickets or ()):
            assert tickets is not None
            member = self._members.get(ticket.proxy_id)
            if (
                member is None
                or not member.proxy.weight  # drained meanwhile
                or not self.judge.is_current(ticket.proxy_id, ticket.epoch, sequence)
            ):
                tickets.remove(ticket)
            elif ticket.proxy_id not in exclude:
                tickets.remove(ticket)
                if not tickets:
                    del self._tickets[sequence]
                # With the login that is valid now.
                return self._assign(ticket.proxy_id, ticket.epoch)
        if tickets is not None and not tickets:
            del self._tickets[sequence]
        return None

    def give_back(self, proxy_id: str, epoch: int, site: str = "") -> None:
        """Keep a pick whose request never went out for the next request. Counts stay."""
        sequence = site if self.judge.by_site else ""
        member = self._members.get(proxy_id)
        if member is None or not self.judge.is_current(proxy_id, epoch, sequence):
            return
        member.picks -= 1  # counted again when it is used
        if self.judge.is_probing(proxy_id, epoch, sequence):
            self.judge.unsent(proxy_id, sequence)
        else:
            tickets = self._tickets.setdefault(sequence, deque())
            tickets.append(Assignment(proxy_id, epoch, member.url))
            if len(self._tickets) > _TICKET_SITES:
                del self._tickets[next(iter(self._tickets))]

    def report(self, proxy_id: str, epoch: int, evidence: Evidence) -> Report | None:
        """Book the outcome of a download on the proxy it went through.

        None when a shared pool's verdict is still to come: see :meth:`concluded`.
        """
        outcome = evidence.outcome
        blamed = outcome is not _SUCCESS and outcome.is_failure
        if evidence.answered:
            self._comparison.answered(evidence.site, proxy_id)
        elif outcome is Outcome.AMBIGUOUS:
            sequence = evidence.site if self.judge.by_site else ""
            probing = self.judge.is_probing(proxy_id, epoch, sequence)
            blamed = self._comparison.failed(evidence.site, proxy_id, probing=probing)
        member = self._members.get(proxy_id)
        if member is None:
            return Report(stale=True)
        if outcome is _SUCCESS:
            member.successes += 1
        else:
            self._note(member, proxy_id, evidence, blamed)
        report = self.judge.report(proxy_id, epoch, evidence, blamed)
        if report is not None and report is not NOTHING:
            self.concluded(proxy_id, report)
        return report

    def _note(self, member: _Member, proxy_id: str, evidence: Evidence, blamed: bool) -> None:
        ambiguous = evidence.outcome is Outcome.AMBIGUOUS
        member.failures += blamed
        member.unclear += ambiguous and not blamed
        if blamed or ambiguous:
            member.last_fault = evidence.why
        if evidence.rest:
            self.rests.rest(evidence.site, proxy_id, evidence.rest)

    def concluded(self, proxy_id: str, report: Report) -> None:
        """Note what an outcome led to."""
        member = self._members.get(proxy_id)
        if member is not None and report.ejected_for is not None:
            member.ejections += 1

    async def take_probes(self, most: int) -> Sequence[Assignment]:
        """Return up to *most* proxies that are due, for checks instead of requests.

        Raises :exc:`~scrapy_smoothpool.exceptions.StoreError` when Redis cannot answer.
        """
        if self.state is not State.OPEN:
            return []
        taken = self.judge.take_probes(most)
        left = deque(await taken if isinstance(taken, Awaitable) else taken)
        found: list[Assignment] = []
        try:
            while left:
                proxy_id = left.popleft()
                if await self._may_probe(proxy_id, ""):
                    url = self._members[proxy_id].url
                    found.append(Assignment(proxy_id, self.judge.epoch, url))
        except BaseException:
            for proxy_id in (*left, *(it.proxy_id for it in found)):
                self.judge.unsent(proxy_id, "")
            raise
        return found

    def checked(self, proxy_id: str, epoch: int, evidence: Evidence) -> Awaitable[None] | None:
        """Take in how a check ended. It is no request: nothing but health changes.

        Returns what to await for that to be so, in a shared pool.
        """
        member = self._members.get(proxy_id)
        if member is None:
            return None
        failed = not evidence.answered and evidence.outcome is not Outcome.NEUTRAL
        if failed:
            member.last_fault = evidence.why
        self.judge.report(proxy_id, epoch, evidence._replace(check=True), failed)
        return self.judge.judged()

    async def refresh(self) -> None:
        """Bring :meth:`snapshot` up to date where other workers have a say."""
        await self.judge.refresh()

    def snapshot(self) -> list[MemberView]:
        """Return every proxy with its weights and what this worker has seen of it."""
        weights = self.strategy.weights()
        views = []
        for proxy_id, member in self._members.items():
            weight = weights.get(proxy_id) or WeightView(member.proxy.weight, member.proxy.weight)
            standing = self.judge.standing(proxy_id)
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
                    standing.consecutive,
                    standing.out,
                    standing.reason,
                    member.last_fault,
                )
            )
        return views
