"""Requests that wait for a proxy without standing in anybody's way.

A waiter holds its CONCURRENT_REQUESTS place for a moment, is offered a proxy
again, and goes back to the scheduler. So other requests get their turn, a
closing spider is not kept waiting, and a JOBDIR keeps those that never got one.

What makes the others keep their pace:

* A waiting request goes back one priority lower (its own is restored when it
  gets a proxy). At the same priority Scrapy's LIFO queues would hand out the
  same waiters over and over, with everything below them starving.
* While it holds its place it counts as active in its downloader slot. Scrapy's
  default queue serves the slot with the fewest active requests first, and
  would otherwise prefer the host that waits to every host that works.
* Waiters beyond half of CONCURRENT_REQUESTS go back much sooner while other
  requests pass, so that one of these finds a place at once.
* Only one waiter at a time asks the pool, a few times a second.

Going back and coming again costs some milliseconds of processor time. While the
pool panics that would be all that a crawl does, so there each stays the longer
the more there are.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from scrapy.utils.asyncio import sleep

from . import meta as keys
from . import stats as names
from .exceptions import PoolExhausted

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from .stats import Stats

logger = logging.getLogger(__name__)

HOLD = 0.25
"""Seconds a waiter holds its place at a time."""
LONG_HOLD = 1.0
"""The longest of all holds, while the pool panics."""
_FEW = 4
"""Waiters that hold their places no longer in a panic than at other times."""
SHORT_HOLD = 0.02
"""The same for those beyond half of the places, while others pass."""
_OTHERS = 2.0  # seconds for which one request that passes makes others likely
NO_SCHEDULER_WAIT = 1.0
"""Seconds that a request of ``engine.download_async`` may wait in all."""


class Waiting:
    """The waiting of one crawler.

    :param run: a token of this run, so that a resumed crawl starts its waits anew.
    :param timeout: ``SMOOTHPOOL_WAIT_TIMEOUT``, seconds.
    """

    def __init__(self, crawler: Crawler, stats: Stats, *, run: str, timeout: float) -> None:
        self._crawler = crawler
        self._stats = stats
        self._run = run
        self._timeout = timeout
        self._half = max(1, crawler.settings.getint("CONCURRENT_REQUESTS") // 2)
        self.holders = 0
        """Requests that wait and hold their places at this moment."""
        self._other_passed = -_OTHERS
        self._next_ask = 0.0
        self.dry: str | None = None
        """Why the pool had no proxy when it was last asked; None if it had one."""

    def may_ask(self) -> bool:
        """Say whether it is this request's turn to ask a pool that was dry."""
        now = time.monotonic()
        if now < self._next_ask:
            return False
        self._next_ask = now + HOLD
        return True

    def ran_dry(self, reason: str) -> str:
        """Note that the pool had no proxy, and return why."""
        self.dry = reason
        self._next_ask = time.monotonic() + HOLD
        return reason

    def passes(self) -> None:
        """Note that a request goes its way without waiting."""
        if self.holders:
            self._other_passed = time.monotonic()

    @property
    def closing(self) -> bool:
        """Whether the spider is being closed: then nothing waits any longer."""
        # Scrapy has no public way to ask, and no signal before the last request is done.
        slot = getattr(self._crawler.engine, "_slot", None)
        return slot is None or slot.closing is not None

    async def hold(self, request: Request, *, panic: bool = False) -> float:
        """Wait a moment, counted as active in the request's slot; none when closing.

        Returns the seconds waited.

        :param panic: the pool panics.
        """
        if self.closing:
            return 0.0
        passing = time.monotonic() - self._other_passed < _OTHERS
        seconds = HOLD
        if passing and self.holders >= self._half:
            seconds = SHORT_HOLD
        elif panic:  # not all for the same time, or they would all come back at once
            seconds = min(max(HOLD, HOLD * self.holders / _FEW), LONG_HOLD)
        assert self._crawler.engine is not None
        _, slot = self._crawler.engine.downloader._get_slot(request)
        slot.active.add(request)
        self.holders += 1
        try:
            await sleep(seconds)
        finally:
            self.holders -= 1
            slot.active.discard(request)
        return seconds

    def start(self, request: Request) -> keys.Wait:
        """Return the request's wait, begun now if this is its first time in this run."""
        found = request.meta.get(keys.WAIT)
        if found is None:
            self._stats.inc(names.WAITS)
            own = (request.priority, request.dont_filter)
        else:
            own = (found[2], found[3])
            if found[0] == self._run:
                return keys.Wait(*found)
        wait = keys.Wait(self._run, time.time() + self._timeout, *own)
        request.meta[keys.WAIT] = tuple(wait)
        return wait

    def back(self, request: Request, wait: keys.Wait, held: float, reason: str) -> Request:
        """Return the request that goes back to the scheduler in this one's place.

        :param held: seconds it has just held its place.

        Raises :exc:`~scrapy_smoothpool.exceptions.PoolExhausted` when its time
        is over, or when it has no scheduler to go back to.
        """
        waited = float(request.meta.get(keys.RETURNED) or 0.0) + held
        if self.closing and keys.RETURNED in request.meta:
            # Without a scheduler it would come straight back, for ever.
            raise PoolExhausted(f"no proxy for {request} before the spider closed: {reason}")
        # Of this run's clock alone: a clock set back must not wait for ever.
        left = min(wait.deadline - time.time(), self._timeout)
        if not self.closing and (left <= 0 or waited >= NO_SCHEDULER_WAIT):
            self._stats.inc(names.WAITS_ENDED)
            limit = f"{self._timeout:g} s (SMOOTHPOOL_WAIT_TIMEOUT)"
            if waited >= NO_SCHEDULER_WAIT:
                limit = f"{NO_SCHEDULER_WAIT:g} s (requests of download_async have no scheduler)"
            raise PoolExhausted(f"no proxy for {request} within {limit}: {reason}")
        self._stats.inc(names.WAITS_REQUEUED)
        again = request.replace(dont_filter=True, priority=wait.priority - 1)
        again.meta[keys.RETURNED] = waited
        return again

    @staticmethod
    def over(request: Request) -> None:
        """Give the request its own priority and filter flag back: it has its proxy."""
        found = request.meta.pop(keys.WAIT, None)
        request.meta.pop(keys.RETURNED, None)
        if found is not None:
            request.priority, request.dont_filter = found[2], found[3]
