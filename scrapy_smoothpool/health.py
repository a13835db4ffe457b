"""Easing out and letting back in: each proxy's health as a pure state machine.

::

                 too many failures, or a login refused
        ACTIVE ────────────────────────────────────────> EJECTED
          ^                                               │   ^
          │ the probe succeeds              its time over │   │ the probe fails (longer),
          │                                               v   │ says nothing (once more)
          └──────────────────────────────────────────── PROBING

An *active* proxy goes out after ``eject_after`` failures in a row, or when at
least ``POOR`` of its last ``WINDOW`` outcomes were failures (and there were
``LEAST`` of them): one failure in twenty never ejects, nine in ten soon do. A
refused login puts it out at once and for the longest time.

The first ejection lasts ``eject_time``, each further one twice the one before,
up to ``eject_time_max``; every ``FALL_BACK`` × ``eject_time`` that a proxy then
stays active takes one doubling back.

When its time is over a proxy is *due*: one request probes it. Success makes it
active, failure puts it out again for longer; a probe that says nothing about
the proxy (the site was down, the request never went out) is repeated.

Two limits (after Envoy's outlier detection): bans and verdicts by comparison
never put out more than ``max_percent`` of the pool, since a rule that calls
every answer a ban would otherwise empty it; certain faults may put out all but
one. So a pool of one never wedges. Neither candidates (see below) nor drained
proxies are part of the pool here, and none of them counts as put out.

Each ejection starts a new *epoch*, a number that only grows. An assignment
carries the number of its moment; an outcome whose proxy was put out (or newly
listed) since says nothing about the proxy as it is now and changes nothing.

A *candidate* begins outside, due at once: whoever probes it decides whether it
comes in.

Clock (seconds, monotonic) and randomness are injected; nothing here does I/O.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from enum import StrEnum

WINDOW = 20
"""Outcomes that are remembered of each proxy."""
LEAST = 10
"""Outcomes needed before their share of failures counts."""
POOR = 70
"""Percent of failures among them that puts a proxy out."""
FALL_BACK = 10
"""Multiple of ``eject_time`` in which a healthy proxy is forgiven one doubling."""

CANDIDATE = "unchecked"
"""The reason why a candidate is out."""

PASSED_OVER = 32
"""Due proxies that one request passes over at most; then they are left alone for a while."""
LEFT_ALONE = 1.0
"""Seconds for which such proxies are not looked at."""

_MASK = (1 << WINDOW) - 1
_TIDY = 100
"""Entries beyond two a proxy that may pile up before the outdated ones are cleared away."""


class State(StrEnum):
    """Where a proxy stands."""

    ACTIVE = "active"
    EJECTED = "ejected"
    PROBING = "probing"


# Asked for at every request, and Python 3.11 takes 0.3 µs to look up a member.
_ACTIVE = State.ACTIVE
_EJECTED = State.EJECTED


@dataclass(slots=True)
class HealthRecord:
    """One proxy's health. Written by :class:`Health` only, read by the pool and its report."""

    eligible: bool = True
    """Takes part in selections when healthy; False for a drained one (weight 0)."""
    state: State = State.ACTIVE
    epoch: int = 0
    """When it was listed or last put out; see :class:`Epochs`."""
    consecutive: int = 0
    """Failures in a row; 0 after a success or an ejection."""
    reason: str = ""
    """Why it was last put out."""
    out_since: float = 0.0
    """Clock reading of when it went out; that of its last return is kept apart."""
    wake: float | None = None
    """Clock reading of the next step: end of the ejection, or of the wait for a probe's outcome."""
    _history: int = 0
    """The last outcomes, one bit each, 1 a failure, the newest lowest."""
    _seen: int = 0
    _doublings: int = 0
    _active_since: float = 0.0

    @property
    def out(self) -> bool:
        """Whether it is out of the selection."""
        return self.state is not _ACTIVE

    @property
    def candidate(self) -> bool:
        """Whether it is out because nothing is known of it yet."""
        return self.out and self.reason == CANDIDATE

    def note(self, failed: bool) -> None:
        """Remember one outcome."""
        self._history = (self._history << 1 | failed) & _MASK
        if self._seen < WINDOW:
            self._seen += 1
        self.consecutive = self.consecutive + 1 if failed else 0

    @property
    def poor(self) -> bool:
        """Whether too many of the last outcomes were failures."""
        return self._seen >= LEAST and self._history.bit_count() * 100 >= POOR * self._seen


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one failure led to."""

    consecutive: int
    ejected_for: float | None = None
    """Seconds of the ejection this failure caused, None when it caused none."""
    spared: bool = False
    """It would have been ejected, but too much of the pool is out already."""


class Epochs:
    """The clock of ejections: one more for each, and for each proxy that is listed."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def next(self) -> int:
        """Begin a new epoch and return it."""
        self.now += 1
        return self.now


class Health:
    """Failure counts, ejections and probes of all proxies of a pool.

    :param eject_after: failures in a row that put a proxy out; 0 means never,
        whatever happens.
    :param eject_time: seconds of the first ejection.
    :param eject_time_max: seconds of the longest.
    :param max_percent: share of the pool that bans may put out, 0 to 100.
    :param probe_timeout: seconds to wait for a probe's outcome before another is sent.
    :param clock: seconds, monotonic.
    :param jitter: factor by which an ejection is drawn out, so that many workers
        or proxies do not come back at the same moment; 1 or more.
    :param whole: the health of the whole pool, when this one judges for a single
        site: its epochs and its size count, and who is out there is out here.
    """

    def __init__(
        self,
        *,
        eject_after: int,
        eject_time: float,
        max_percent: int,
        clock: Callable[[], float],
        eject_time_max: float = 1800.0,
        probe_timeout: float = 180.0,
        jitter: Callable[[], float] = lambda: 1.0,
        whole: Health | None = None,
    ) -> None:
        self._eject_after = eject_after
        self._eject_time = eject_time
        self._eject_time_max = max(eject_time, eject_time_max)
        self._max_percent = max_percent
        self._probe_timeout = probe_timeout
        self._clock = clock
        self._jitter = jitter
        self._records: dict[str, HealthRecord] = {}
        self._out = 0  # drained ones and candidates included
        # Of those eligible: all, those out that were in before, and those not checked yet.
        self._eligible = 0
        self._ejected = 0
        self._candidates = 0
        # Of the whole pool, so that a proxy that leaves and comes back starts a new one.
        self.epochs: Epochs = whole.epochs if whole else Epochs()
        self._whole = whole
        # (wake, id); an entry counts only while it agrees with the record's own wake, so what
        # was removed or decided otherwise meanwhile is skipped when its time comes.
        self._wakes: list[tuple[float, str]] = []
        # Entries that were passed over in a crowd, with the time to look at them again.
        self._left_alone: deque[tuple[float, tuple[float, str]]] = deque()

    def __getitem__(self, proxy_id: str) -> HealthRecord:
        return self._records[proxy_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __contains__(self, proxy_id: object) -> bool:
        return proxy_id in self._records

    def is_out(self, proxy_id: str) -> bool:
        """Say whether a proxy is watched and out of the selection."""
        record = self._records.get(proxy_id)
        return record is not None and record.state is not _ACTIVE

    @property
    def anyone_due(self) -> bool:
        """Whether :meth:`probe` may have one to probe."""
        if not self._wakes and not self._left_alone:
            return False
        now = self._clock()
        return any(crowd and crowd[0][0] <= now for crowd in (self._wakes, self._left_alone))

    @property
    def out(self) -> int:
        """Number of proxies that are ejected or being probed."""
        return self._out

    @property
    def eligible(self) -> int:
        """Number of proxies that take part in selections when healthy."""
        return self._eligible

    @property
    def checked(self) -> int:
        """Number of them that are no candidates: the pool as the limits and a panic see it."""
        return self._eligible - self._candidates

    def _count(self, record: HealthRecord, by: int) -> None:
        # Around whatever changes a record: off with it as it was, on with it as it is.
        self._out += by * record.out
        if record.eligible:
            self._eligible += by
            self._candidates += by * record.candidate
            self._ejected += by * (record.out and not record.candidate)

    def add(self, proxy_id: str, *, eligible: bool = True, candidate: bool = False) -> HealthRecord:
        """Start watching a proxy.

        :param eligible: False for a drained one (weight 0).
        :param candidate: it begins outside and is due at once.
        """
        record = self._records[proxy_id] = HealthRecord(eligible)
        record._active_since = self._clock()
        # One that a site sees for the first time is not new: what is under way counts.
        record.epoch = 0 if self._whole else self.epochs.next()
        if candidate:
            record.state, record.reason = State.EJECTED, CANDIDATE
            record.out_since = self._clock()
            self._wake_at(proxy_id, record, self._clock())
        self._count(record, 1)
        return record

    def is_due(self, proxy_id: str) -> bool:
        """Say whether a proxy that is out may be probed now."""
        record = self._records[proxy_id]
        return record.wake is not None and record.wake <= self._clock()

    def set_eligible(self, proxy_id: str, eligible: bool) -> None:
        """Note that a proxy was drained or taken back into service."""
        record = self._records[proxy_id]
        if eligible and not record.eligible and record.wake is not None:
            self._wake_at(proxy_id, record, record.wake)  # it was skipped when due
        self._count(record, -1)
        record.eligible = eligible
        self._count(record, 1)

    def remove(self, proxy_id: str) -> None:
        """Stop watching a proxy and forget its health."""
        self._count(self._records.pop(proxy_id), -1)

    def unwedge(self) -> str | None:
        """Let one proxy back in if the list has shrunk to proxies that are all out.

        Returns its id: the one that would have come back first.
        """
        if not self._eligible or self._out < self._eligible:
            return None
        waiting = [(r.wake or 0.0, i) for i, r in self._records.items() if r.out and r.eligible]
        if len(waiting) < self._eligible:
            return None
        proxy_id = min(waiting)[1]
        self.succeeded(proxy_id)
        return proxy_id

    def is_current(self, proxy_id: str, epoch: int) -> bool:
        """Say whether an assignment made in ``epoch`` may still change the proxy's health."""
        record = self._records.get(proxy_id)
        # Nothing is assigned to a proxy while its time runs; only a probe's outcome counts.
        return record is not None and record.epoch <= epoch and record.state is not _EJECTED

    def succeeded(self, proxy_id: str) -> bool:
        """Note a success. Returns True when it ended an ejection: the probe got through."""
        record = self._records[proxy_id]
        record.note(failed=False)
        if record.state is _ACTIVE:
            return False
        self._count(record, -1)
        record.state, record.wake = State.ACTIVE, None
        self._count(record, 1)
        record._active_since = self._clock()
        return True

    def went_well(self, proxy_id: str, epoch: int) -> bool:
        """Note a success of a proxy that is in and has been since *epoch*.

        The usual case, in one call; False, with nothing noted, when it is another one.
        """
        record = self._records.get(proxy_id)
        if record is None or record.state is not _ACTIVE or record.epoch > epoch:
            return False
        if record.consecutive or record._history or record._seen < WINDOW:
            record.note(failed=False)
        return True

    def failed(
        self, proxy_id: str, *, certain: bool, reason: str = "", login: bool = False
    ) -> Verdict:
        """Note a failure and eject the proxy if that was one too many.

        :param certain: the fault is the proxy's beyond doubt (it could not be
            reached, it refused the login); False for bans and comparisons.
        :param login: the proxy refused the login, which time alone rarely mends.
        """
        record = self._records[proxy_id]
        record.note(failed=True)
        consecutive = record.consecutive
        if record.state is not State.ACTIVE:
            return Verdict(consecutive, self._eject(proxy_id, record, reason, login))
        if not self._eject_after:
            return Verdict(consecutive)
        if not (login or consecutive >= self._eject_after or record.poor):
            return Verdict(consecutive)
        if not self._may_eject(certain):
            return Verdict(consecutive, spared=True)
        return Verdict(consecutive, self._eject(proxy_id, record, reason, login))

    def _may_eject(self, certain: bool) -> bool:
        out, checked = self._ejected + 1, self.checked
        if self._whole is not None:
            out, checked = out + self._whole._ejected, self._whole.checked
        if certain:
            return out < checked
        return out * 100 <= checked * self._max_percent and checked > 1

    def _eject(self, proxy_id: str, record: HealthRecord, reason: str, login: bool) -> float:
        now = self._clock()
        if record.state is State.ACTIVE:
            record.out_since = now
            forgiven = int((now - record._active_since) / (FALL_BACK * self._eject_time))
            record._doublings = max(0, record._doublings - forgiven)
        # 2.0 ** 64 seconds is past any ceiling; without the bound a float could overflow.
        duration = self._eject_time * 2.0 ** min(record._doublings, 64)
        duration = self._eject_time_max if login else min(duration, self._eject_time_max)
        duration *= self._jitter()
        record._doublings += 1
        record.epoch = self.epochs.next()
        self._count(record, -1)
        if not record.candidate:  # which it stays until it has passed
            record.reason = reason
        record.state = State.EJECTED
        self._count(record, 1)
        record.consecutive = record._history = record._seen = 0
        self._wake_at(proxy_id, record, now + duration)
        return duration

    def inconclusive(self, proxy_id: str) -> None:
        """Note an outcome that says nothing of the proxy; a probe will be repeated in a while."""
        record = self._records[proxy_id]
        if record.state is State.PROBING:
            record.state = State.EJECTED
            self._wake_at(proxy_id, record, self._clock() + self._eject_time)

    @property
    def next_due(self) -> float | None:
        """Seconds until a proxy is due, 0 if one is; None when nobody is out."""
        while self._wakes:
            when, proxy_id = self._wakes[0]
            record = self._records.get(proxy_id)
            if record is not None and record.wake == when and record.eligible:
                return max(0.0, when - self._clock())
            heapq.heappop(self._wakes)
        return None

    def unsent(self, proxy_id: str) -> None:
        """Note that an assignment never went out; if it was a probe, the next request is one."""
        record = self._records[proxy_id]
        if record.state is State.PROBING:
            record.state = State.EJECTED
            self._wake_at(proxy_id, record, self._clock())

    def _wake_at(self, proxy_id: str, record: HealthRecord, when: float) -> None:
        record.wake = when
        heapq.heappush(self._wakes, (when, proxy_id))
        if len(self._wakes) > 2 * len(self._records) + _TIDY:
            self._wakes = [
                (r.wake, name) for name, r in self._records.items() if r.wake is not None
            ]
            heapq.heapify(self._wakes)
            self._left_alone.clear()

    def probe(self, exclude: Container[str] = ()) -> str | None:
        """Return a proxy that is due and must be probed by this request, None if there is none.

        O(1) when none is due. One that is in *exclude* waits for the next request, and keeps
        nobody else waiting. A drained one is not probed.
        """
        if not self.anyone_due:
            return None
        now = self._clock()
        while self._left_alone and self._left_alone[0][0] <= now:
            heapq.heappush(self._wakes, self._left_alone.popleft()[1])
        passed: set[tuple[float, str]] = set()
        found = None
        while self._wakes and self._wakes[0][0] <= now:
            when, proxy_id = entry = heapq.heappop(self._wakes)
            record = self._records.get(proxy_id)
            if record is None or record.wake != when or not record.eligible:
                continue
            if proxy_id in exclude:
                passed.add(entry)
                if len(passed) == PASSED_OVER:
                    # A crowd that many requests will pass over (thousands may rest on a site).
                    again = now + LEFT_ALONE
                    self._left_alone.extend((again, entry) for entry in passed)
                    return None
                continue
            self.begin_probe(proxy_id)
            found = proxy_id
            break
        for entry in passed:
            heapq.heappush(self._wakes, entry)
        return found

    def begin_probe(self, proxy_id: str) -> None:
        """Note that a proxy that is out is probed from now on."""
        record = self._records[proxy_id]
        record.state = State.PROBING
        # Should no outcome arrive (its request was lost), another will probe.
        self._wake_at(proxy_id, record, self._clock() + self._probe_timeout)
