"""The judge of a shared pool: tells Redis what happened and does what Redis decided.

All workers of the pool share one verdict, by the server's clock. The plain pick
asks nobody: who is out is not in the rotation it picks from. Beside it,

* outcomes are delivered in batches by a task of their own, so that no request
  waits for its outcome to be judged; what follows from them is told when the
  reply is there;
* about once a second, and when a proxy is due, one request asks whether there is
  something to probe. A probe is leased to one worker.

Outcomes that Redis cannot take now are kept (a bounded number of them) and
delivered later; they carry the epoch in which their proxy was assigned, so late
ones change nothing. A batch whose reply was lost may have been judged: it is sent
again as it was, under the same number, until it is answered, and counts once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Coroutine,
    Generator,
    Sequence,
)
from contextlib import suppress
from typing import Any, NamedTuple

from .exceptions import StoreError, StoreUnavailable
from .health import CANDIDATE, FALL_BACK, LEAST, POOR, WINDOW
from .judge import NOTHING, Evidence, Report, Return, Standing
from .outcome import Outcome
from .panic import Panic
from .store.verdicts import (
    IN_ROTATION,
    Delivery,
    Happened,
    HealthRules,
    Judged,
    Kind,
    Probes,
    VerdictStore,
)
from .turns import Steps

logger = logging.getLogger(__name__)

# Asked for at every request, and Python 3.11 takes 0.3 µs to look up a member.
_SUCCESS = Outcome.SUCCESS
_SUCCEEDED = Kind.SUCCESS

LOOK = 1.0
"""Seconds between two looks at what others decided and who is due."""
MOST = 500
"""Outcomes in one delivery."""
KEPT = 10_000
"""Outcomes kept while Redis does not take them, beside a batch in doubt; the oldest go first."""
GATHER = 0.2
"""Seconds in which successes are gathered for one delivery. A failure, or a probe that got through,
is delivered at once, with what is before it."""
PAUSE = 0.5
"""Seconds between two tries to deliver, while Redis does not answer."""
LONG_PAUSE = 5.0
"""Seconds between two tries to deliver, while Redis refuses: a person has to mend that."""
UNUSABLE = 1_000
"""Members that this worker cannot use and remembers not to probe."""
FAREWELL = 1.0
"""Seconds in which the last outcomes must be delivered."""
HASTE = 0.1
"""The same when Redis did not answer before."""
_LOOKED_AT = 1_024
"""Members merely looked at in one step."""


def health_rules(
    *, eject_after: int, eject_time: float, eject_time_max: float, max_percent: int
) -> HealthRules:
    """Return the rules of :class:`~scrapy_smoothpool.health.Health` for Redis; times in s."""
    return HealthRules(
        eject_after,
        eject_time,
        eject_time_max,
        max_percent,
        window=WINDOW,
        least=LEAST,
        poor=POOR,
        fall_back=FALL_BACK,
    )


class _Waiting(NamedTuple):
    """An outcome to be delivered, and what to tell of it."""

    happened: Happened
    evidence: Evidence
    blamed: bool


class _Out(NamedTuple):
    """What is known of a proxy that is out."""

    reason: str
    since: float
    """This worker's clock when it heard of it."""


class _Delivered:
    """Delivers when it is awaited, and nothing when nobody does."""

    def __init__(self, deliver: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._deliver = deliver

    def __await__(self) -> Generator[Any, Any, None]:
        yield from self._deliver().__await__()


class SharedJudge:
    """Judges by what all workers of the pool have seen.

    :param probe_timeout: seconds to wait for a probe's outcome before another is sent.
    :param clock: seconds, monotonic; for this worker's own pauses only.
    :param jitter: factor by which an ejection is drawn out; 1 or more.
    :param admission: checks probe, not requests. Without it this worker leaves those
        alone that nobody has checked yet.
    :param on_report: called with what an outcome led to, some time after it.
    :param on_return: called when this worker's probe brought a proxy back.
    """

    by_site = False

    def __init__(
        self,
        store: VerdictStore,
        rules: HealthRules,
        *,
        probe_timeout: float,
        clock: Callable[[], float],
        jitter: Callable[[], float] = lambda: 1.0,
        wait_in_panic: bool = False,
        admission: bool = False,
        on_report: Callable[[str, Evidence, Report], object] = lambda *_: None,
        on_return: Callable[[Return], object] = lambda back: None,
    ) -> None:
        self._store = store
        self._rules = rules
        self._probe_timeout = probe_timeout
        self._clock = clock
        self._jitter = jitter
        self._wait_in_panic = wait_in_panic
        self._admission = admission
        self._on_report = on_report
        self._on_return = on_return
        self._panic = Panic(clock)
        self._eligible: set[str] = set()
        self._total = 0
        self._checked = 0
        self._out_count = 0
        self.epoch = 0
        # Up to which epoch this worker knows who was put out, and when each was.
        self._known_until = 0
        self._put_out: dict[str, int] = {}
        # Put out by this worker's own outcomes since it looked, id → epoch then or later.
        self._own: dict[str, int] = {}
        self._out: dict[str, _Out] = {}  # as far as this worker knows
        self._consecutive: dict[str, int] = {}
        self._probing: dict[str, int] = {}  # leased to this worker, id → epoch
        self._unusable: set[str] = set()  # by this worker; others may probe them
        self._next_look = 0.0
        self._next_wake: float | None = None
        self._queue: deque[_Waiting] = deque(maxlen=KEPT)
        self._in_doubt: list[_Waiting] = []  # sent, not answered; before the queue
        self._delivery = Delivery(secrets.token_hex(8), 0)  # its number, or the last one's
        self._delivering: asyncio.Task[None] | None = None
        self._order = asyncio.Lock()  # of deliveries
        self._urgent = asyncio.Event()
        self._closing = False
        self._told = False
        self._away = False  # Redis did not answer the last call

    @property
    def out(self) -> int:
        """Number of proxies that are out, by the last reply."""
        return self._out_count

    @property
    def eligible(self) -> int:
        """Number of proxies in the pool, by the last reply."""
        return self._total or len(self._eligible)

    @property
    def checked(self) -> int:
        """Number of them that are no candidates: the pool as the limits and a panic see it."""
        return self._checked

    # The list

    async def open(self) -> None:
        """See at once who is out: a worker that joins knows what all know."""
        self._learn(await self._take_probe(0, ()))
        await self.refresh()

    async def refresh(self) -> None:
        """Read who is out now."""
        if self._away:
            return  # nobody waits for a report of what cannot be had
        await self._deliver()
        with suppress(StoreError):
            found = await self._store.out()
            for number, back in enumerate(list(self._out)):
                if back not in found:
                    self._out.pop(back, None)
                if not number % _LOOKED_AT:
                    await asyncio.sleep(0)
            for number, (name, member) in enumerate(found.items()):
                self._heard(name, member.reason)
                if not number % _LOOKED_AT:
                    await asyncio.sleep(0)
            self._out_count = len(found)

    def add(self, proxy_id: str, *, eligible: bool) -> None:
        """Take in one more."""
        if eligible:
            self._eligible.add(proxy_id)

    def set_eligible(self, proxy_id: str, eligible: bool) -> None:
        """Note whether a member takes part when healthy."""
        (self._eligible.add if eligible else self._eligible.discard)(proxy_id)

    def remove(self, proxy_id: str) -> None:
        """Forget one that left the list; the rest of it when the list is settled."""
        self._eligible.discard(proxy_id)

    def settled(self, members: Container[str]) -> Steps[None]:
        """Forget, in steps, what was known of others than the *members*."""
        self._total = 0
        self._unusable.clear()
        known: dict[str, int] | dict[str, _Out]
        for known in (self._put_out, self._own, self._out, self._consecutive, self._probing):
            for number, name in enumerate(list(known)):
                if name not in members:
                    known.pop(name, None)
                if not number % _LOOKED_AT:
                    yield

    # Before a request

    def minds(self, site: str) -> bool:
        """Say whether it is time to look, or there is a panic."""
        return self._panic.on or (not self._admission and self._clock() >= self._next_look)

    def may_pick(self, site: str) -> bool:
        """Say whether a request may be tried now."""
        return not self._panic.on or self._panic.may_pick(self._wait_in_panic)

    @property
    def next_due(self) -> float | None:
        """Seconds until a proxy that is out is due, by the last look."""
        return None if self._next_wake is None else max(0.0, self._next_wake - self._clock())

    def panicking(self, site: str) -> bool:
        """Say whether hardly anything gets through."""
        return self._panic.on

    def nothing_found(self, site: str) -> None:
        """Note that nothing came of the turn."""
        self._panic.give_turn_back()

    def paced(self, site: str) -> bool:
        """Say whether it is only the panic's walking pace for which a request has to wait."""
        return not self._wait_in_panic and self._panic.between_turns

    def expect(self, size: int) -> None:
        """Keep nothing whose size depends on the list's."""

    def probe(
        self, exclude: Collection[str], site: str, *, may: bool = True
    ) -> Awaitable[str | None] | None:
        """Look, once in a while, whether this request has to probe a proxy."""
        if self._admission or not may or self._clock() < self._next_look:
            return None
        self._next_look = self._clock() + LOOK  # this one asks; the others pick meanwhile
        return self._probe(exclude)

    async def _probe(self, exclude: Collection[str]) -> str | None:
        try:
            found = await self._take(1, exclude)
        except StoreError:
            return None  # the pick that comes next has its own way to deal with that
        return found[0] if found else None

    async def take_probes(self, most: int) -> Sequence[str]:
        """Lease up to *most* proxies that are due."""
        return await self._take(most, ())

    async def _take(self, most: int, exclude: Collection[str]) -> list[str]:
        if self._unusable:
            exclude = {*exclude, *self._unusable}
        probes = await self._take_probe(most, exclude)
        self._learn(probes)
        for name, reason in probes.leased.items():
            self._probing[name] = probes.epoch
            self._heard(name, reason)
        now = self._clock()
        self._next_wake = None if probes.next_wake is None else now + probes.next_wake
        if probes.leased:
            self._next_look = now  # there may be more of them
        elif self._next_wake is not None:
            self._next_look = min(self._next_look, self._next_wake)
        return list(probes.leased)

    async def _take_probe(self, most: int, exclude: Collection[str]) -> Probes:
        # An unchecked proxy is for checks; no request of a page goes through it.
        try:
            found = await self._store.take_probe(
                self._probe_timeout, self._known_until, most, exclude, unchecked=self._admission
            )
        except StoreUnavailable:
            self._away = True
            raise
        self._away = False
        return found

    def _learn(self, probes: Probes) -> None:
        self.epoch = max(self.epoch, probes.epoch)
        self._total, self._checked = probes.members, probes.checked
        for name in probes.put_out:
            self._put_out[name] = probes.complete_until
            if self._own.pop(name, None) is None:
                self._out.pop(name, None)  # by somebody else: what was known is of the time before
            self._heard(name, "")
        if probes.put_out:
            self._store.withdraw(probes.put_out)
        self._known_until = probes.complete_until
        for name in [name for name, epoch in self._own.items() if epoch <= self._known_until]:
            del self._own[name]

    def _heard(self, proxy_id: str, reason: str) -> None:
        """Note that a proxy is out, and why if that is known."""
        known = self._out.get(proxy_id)
        if known is None:
            self._out[proxy_id] = _Out(reason, self._clock())
        elif not known.reason:
            self._out[proxy_id] = known._replace(reason=reason)

    def is_out(self, proxy_id: str, site: str) -> bool:
        """Trust the rotation: who was picked from it was in it."""
        self._out.pop(proxy_id, None)  # another worker's probe brought it back
        return False

    def is_current(self, proxy_id: str, epoch: int, site: str) -> bool:
        """Say whether a proxy has not been put out since *epoch*, as far as is known here."""
        if proxy_id in self._probing:
            return self._probing[proxy_id] <= epoch
        return self._put_out.get(proxy_id, 0) <= epoch

    def is_probing(self, proxy_id: str, epoch: int, site: str) -> bool:
        """Say whether an assignment of *epoch* is this worker's probe."""
        return self._probing.get(proxy_id, epoch + 1) <= epoch

    def unsent(self, proxy_id: str, site: str, *, usable: bool = True) -> None:
        """Give the lease back: the next request, here or elsewhere, probes."""
        if not usable and len(self._unusable) < UNUSABLE:
            self._unusable.add(proxy_id)
        epoch = self._probing.pop(proxy_id)
        happened = Happened(proxy_id, epoch, Kind.UNSENT)
        self._tell(_Waiting(happened, Evidence(Outcome.NEUTRAL), blamed=False))
        self._next_look = self._clock()

    # After it

    def report(self, proxy_id: str, epoch: int, evidence: Evidence, blamed: bool) -> Report | None:
        """Pass an outcome on; None, since what follows is told when Redis has answered."""
        kind = self._kind(proxy_id, epoch, evidence, blamed)
        if kind is None:
            return NOTHING  # it says nothing of the proxy
        if self._probing and self.is_probing(proxy_id, epoch, ""):
            del self._probing[proxy_id]
            self._urgent.set()
        if kind is _SUCCEEDED:
            if not evidence.check:
                self._panic.success()
            happened = Happened(proxy_id, epoch, kind)
        else:
            reason = evidence.outcome.value
            happened = Happened(proxy_id, epoch, kind, reason, self._jitter())
        self._tell(_Waiting(happened, evidence, blamed))
        return None

    def judged(self) -> Awaitable[None]:
        """Deliver what was reported, in one go for all who await this; later if Redis is away."""
        return _Delivered(self._deliver)

    def _kind(self, proxy_id: str, epoch: int, evidence: Evidence, blamed: bool) -> Kind | None:
        if blamed:
            if evidence.login:
                return Kind.LOGIN
            certain = evidence.outcome is Outcome.PROXY_ERROR
            return Kind.FAULTY if certain else Kind.FAILED
        if evidence.outcome is _SUCCESS:
            return _SUCCEEDED
        if not self.is_probing(proxy_id, epoch, ""):
            return None
        return Kind.PASSED if evidence.answered else Kind.UNCLEAR

    def _tell(self, waiting: _Waiting) -> None:
        self._queue.append(waiting)
        if waiting.happened.kind is not _SUCCEEDED or len(self._queue) >= MOST:
            self._urgent.set()
        if self._delivering is None and not self._closing:
            self._delivering = asyncio.get_running_loop().create_task(self._keep_delivering())

    async def _keep_delivering(self) -> None:
        try:
            # Not by cancellation alone: one that comes together with a timeout is lost in redis-py.
            while (self._queue or self._in_doubt) and not self._closing:
                if not self._urgent.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._urgent.wait(), GATHER)
                pause = await self._deliver()
                while pause and not self._closing:
                    await asyncio.sleep(pause)
                    pause = await self._deliver()
        finally:
            self._delivering = None

    async def _deliver(self) -> float:
        """Deliver what waits now; seconds until the next try if Redis did not take it, else 0."""
        async with self._order:
            self._urgent.clear()
            return await self._deliver_in_order()

    async def _deliver_in_order(self) -> float:
        # What comes in meanwhile is gathered for another delivery.
        left = len(self._in_doubt) + len(self._queue)
        while left > 0 and (batch := self._next_batch()):
            left -= len(batch)
            try:
                judgement = await self._store.report_outcomes(
                    self._rules, [waiting.happened for waiting in batch], self._delivery
                )
            except StoreUnavailable:
                self._away = True
                return PAUSE
            except StoreError as error:
                # A failover ends by itself (READONLY until then); the rest a person has to mend.
                if not self._told:
                    logger.error(
                        "Outcomes cannot be shared with the other workers, and are kept: %s", error
                    )
                self._told = True
                return LONG_PAUSE
            self._told, self._away, self._in_doubt = False, False, []
            self.epoch = max(self.epoch, judgement.epoch)
            self._out_count, self._total = judgement.out, judgement.members
            self._checked = judgement.checked
            for waiting, judged in zip(batch, judgement.outcomes, strict=True):
                try:
                    self._conclude(waiting, judged)
                except Exception:  # of whoever is told; the others are told all the same
                    name = waiting.happened.proxy_id
                    logger.exception("What follows from an outcome of proxy %s was not told", name)
        return 0.0

    def _next_batch(self) -> list[_Waiting]:
        """Return what is in doubt, or else what waits, which is in doubt from now on."""
        if not self._in_doubt and self._queue:
            self._in_doubt = [self._queue.popleft() for _ in range(min(MOST, len(self._queue)))]
            self._delivery = self._delivery._replace(number=self._delivery.number + 1)
        return self._in_doubt

    def _conclude(self, waiting: _Waiting, judged: Judged) -> None:
        """Do what Redis decided."""
        proxy_id = waiting.happened.proxy_id
        if judged is IN_ROTATION and waiting.happened.kind is _SUCCEEDED:
            self._consecutive.pop(proxy_id, None)
            if not waiting.evidence.check:
                self._panic.success()  # see below
            self._on_report(proxy_id, waiting.evidence, NOTHING)
            return
        if judged.stale:
            self._on_report(proxy_id, waiting.evidence, Report(stale=True))
            return
        if judged.consecutive and judged.ejected_for is None:
            self._consecutive[proxy_id] = judged.consecutive
        else:
            self._consecutive.pop(proxy_id, None)
        if judged.ejected_for is not None:
            self._heard(proxy_id, waiting.happened.reason)
            self._put_out[proxy_id] = self.epoch
            if self.epoch > self._known_until:
                self._own[proxy_id] = self.epoch
            self._store.withdraw((proxy_id,))
        began = False
        if waiting.happened.kind is Kind.SUCCESS and not waiting.evidence.check:
            # Told before, when it came in; now once more, in order with the failures.
            self._panic.success()
        elif waiting.blamed and not waiting.evidence.check:
            began = self._panic.failure(spared=judged.spared, size=self.checked)
        if judged.restored:
            self._on_return(self._return(proxy_id))
        self._on_report(
            proxy_id,
            waiting.evidence,
            Report(
                blamed=waiting.blamed,
                ejected_for=judged.ejected_for,
                consecutive=judged.consecutive,
                panic=began,
            ),
        )

    def _return(self, proxy_id: str) -> Return:
        known = self._out.pop(proxy_id, None)
        if known is None:
            return Return(proxy_id)
        return Return(
            proxy_id,
            admitted=known.reason == CANDIDATE,
            reason=known.reason,
            duration=self._clock() - known.since,
        )

    def standing(self, proxy_id: str) -> Standing:
        """Return a proxy's health, as far as it is known here."""
        known = self._out.get(proxy_id)
        count = self._consecutive.get(proxy_id, 0)
        return Standing(known is not None, known.reason if known else "", count)

    async def close(self) -> None:
        """Deliver the last outcomes, for a moment at most, and give leases back."""
        for name, epoch in self._probing.items():
            happened = Happened(name, epoch, Kind.UNSENT)
            self._queue.append(_Waiting(happened, Evidence(Outcome.NEUTRAL), blamed=False))
        self._probing.clear()
        self._closing = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._deliver(), HASTE if self._away else FAREWELL)
        if self._delivering is not None:
            self._delivering.cancel()
            with suppress(asyncio.CancelledError):
                await self._delivering
