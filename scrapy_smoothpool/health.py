"""Which proxies are out, and until when: a pure state machine.

A proxy is *active* or *ejected*. ``eject_after`` failures in a row put it out
for ``eject_time`` seconds; a success in between starts the count anew. Two
limits (design rule 6, after Envoy's outlier detection):

* bans never put out more than ``max_percent`` of the pool, since a rule that
  calls every answer a ban would otherwise empty it;
* certain proxy faults may put out all but one, so that a pool of one never
  wedges and there is always a proxy left to try.

Each ejection starts a new *epoch*. An outcome of a request that was assigned in
an earlier epoch says nothing about the proxy as it is now and changes nothing.

The clock is injected (seconds, monotonic); nothing here does I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class HealthRecord:
    """One proxy's health. Written by :class:`Health` only, read by the pool and its report."""

    eligible: bool = True
    """Takes part in selections when healthy (weight above 0)."""
    consecutive: int = 0
    """Failures in a row; 0 after a success or an ejection."""
    epoch: int = 0
    """Number of ejections so far; assignments carry it."""
    out_until: float | None = None
    """Clock reading at which the ejection ends, None while active."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one failure led to."""

    consecutive: int
    ejected_for: float | None = None
    """Seconds of the ejection this failure caused, None when it caused none."""


class Health:
    """Failure counts and ejections of all proxies of a pool.

    :param eject_after: failures in a row that put a proxy out; 0 means never.
    :param eject_time: seconds a proxy stays out.
    :param max_percent: share of the pool that bans may put out, 0 to 100.
    :param clock: seconds, monotonic.
    """

    def __init__(
        self, *, eject_after: int, eject_time: float, max_percent: int, clock: Callable[[], float]
    ) -> None:
        self._eject_after = eject_after
        self._eject_time = eject_time
        self._max_percent = max_percent
        self._clock = clock
        self._records: dict[str, HealthRecord] = {}
        self._eligible = 0
        self._out = 0
        # (out_until, id); an entry whose proxy was removed meanwhile is skipped.
        self._returns: list[tuple[float, str]] = []

    def __getitem__(self, proxy_id: str) -> HealthRecord:
        return self._records[proxy_id]

    @property
    def out(self) -> int:
        """Number of proxies that are ejected now."""
        return self._out

    @property
    def eligible(self) -> int:
        """Number of proxies that take part in selections when healthy."""
        return self._eligible

    def add(self, proxy_id: str, *, eligible: bool = True) -> HealthRecord:
        """Start watching a proxy; ``eligible`` is False for a drained one (weight 0)."""
        record = self._records[proxy_id] = HealthRecord(eligible)
        self._eligible += eligible
        return record

    def set_eligible(self, proxy_id: str, eligible: bool) -> None:
        """Note that a proxy was drained or taken back into service."""
        record = self._records[proxy_id]
        self._eligible += eligible - record.eligible
        record.eligible = eligible

    def remove(self, proxy_id: str) -> None:
        """Stop watching a proxy and forget its health."""
        record = self._records.pop(proxy_id)
        self._eligible -= record.eligible
        if record.out_until is not None:
            self._out -= 1

    def is_current(self, proxy_id: str, epoch: int) -> bool:
        """Say whether an assignment made in ``epoch`` may still change the proxy's health."""
        record = self._records.get(proxy_id)
        return record is not None and record.epoch == epoch

    def succeeded(self, proxy_id: str) -> None:
        """Note a success: the count of failures in a row starts anew."""
        self._records[proxy_id].consecutive = 0

    def failed(self, proxy_id: str, *, certain: bool) -> Verdict:
        """Note a failure and eject the proxy if that was one too many.

        :param certain: the fault is the proxy's beyond doubt (it could not be
            reached, it refused the login); False for bans.
        """
        record = self._records[proxy_id]
        record.consecutive += 1
        if (
            not self._eject_after
            or record.consecutive < self._eject_after
            or record.out_until is not None
            or not self._may_eject(certain)
        ):
            return Verdict(record.consecutive)
        verdict = Verdict(record.consecutive, self._eject_time)
        record.consecutive = 0
        record.epoch += 1
        record.out_until = self._clock() + self._eject_time
        self._out += 1
        heapq.heappush(self._returns, (record.out_until, proxy_id))
        return verdict

    def _may_eject(self, certain: bool) -> bool:
        if certain:
            return self._out + 1 < self._eligible
        return (self._out + 1) * 100 <= self._eligible * self._max_percent and self._eligible > 1

    @property
    def next_return(self) -> float | None:
        """Clock reading at which the next ejected proxy may come back, None if none is out."""
        while self._returns:
            out_until, proxy_id = self._returns[0]
            record = self._records.get(proxy_id)
            # Another time: removed, added again and ejected again since.
            if record is not None and record.out_until == out_until:
                return out_until
            heapq.heappop(self._returns)
        return None

    def due(self) -> list[str]:
        """Make every proxy whose time is over active again and return their ids.

        O(1) when none is due.
        """
        if not self._returns:
            return []
        now, back = self._clock(), []
        while (out_until := self.next_return) is not None and out_until <= now:
            _, proxy_id = heapq.heappop(self._returns)
            self._records[proxy_id].out_until = None
            self._out -= 1
            back.append(proxy_id)
        return back
