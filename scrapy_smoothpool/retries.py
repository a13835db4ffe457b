"""Tries elsewhere: a budget of the pool's own, apart from Scrapy's ``RETRY_TIMES``.

A request that met a bad proxy goes through one not yet tried for it. What it has
been through stays with it (:class:`~.meta.Tries`) across these retries and
Scrapy's, so that a page costs at most ``SMOOTHPOOL_RETRY_TIMES + RETRY_TIMES +
1`` fetches; a success or another URL starts anew.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from . import meta as keys
from . import stats as names
from .outcome import Outcome
from .robots import ROBOTS_RETRY_TIMES

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from .pool import Pool
    from .robots import RobotsGuard
    from .stats import Stats

logger = logging.getLogger(__name__)

_BACKOFF = 0.25
_BACKOFF_MAX = 5.0


def still_before(moment: float) -> bool:
    """Say whether a Unix time is ahead; never more than a backoff, should the clock be set back."""
    return 0 < moment - time.time() <= _BACKOFF_MAX


class Retries:
    """The budgets of one crawler's requests.

    :param times: ``SMOOTHPOOL_RETRY_TIMES``.
    """

    def __init__(
        self, crawler: Crawler, stats: Stats, pool: Pool, robots: RobotsGuard, *, times: int
    ) -> None:
        self._stats = stats
        self._pool = pool
        self._robots = robots
        self._times = times
        self._priority_adjust = crawler.settings.getint("RETRY_PRIORITY_ADJUST")

    def left(self, request: Request, tries: keys.Tries) -> bool:
        """Say whether the request may be sent again."""
        if self._robots.is_robots(request):
            # Through every proxy once, if need be; after that its pages wait, not this request.
            untried = len(tries.proxies) < self._pool.eligible
            return untried and tries.retries < max(self._times, ROBOTS_RETRY_TIMES)
        return tries.retries < self._times and not request.meta.get("dont_retry")

    def remember(
        self, request: Request, proxy_id: str, *, pause: float = 0.0, backoff: float = 0.0
    ) -> keys.Tries:
        """Note on the request that it has been through a proxy, so that it goes elsewhere.

        :param pause: seconds before it is sent at all.
        :param backoff: seconds before it may go through this proxy again.
        """
        tries, now = keys.tries_of(request), time.time()
        tries = tries._replace(
            url=request.url,
            proxies=(*(p for p in tries.proxies if p != proxy_id), proxy_id),
            not_before=now + pause,
            last_not_before=now + backoff,
        )
        request.meta[keys.TRIES] = tuple(tries)
        return tries

    def again(self, request: Request, proxy_id: str, outcome: Outcome, what: str) -> Request | None:
        """Return the request for another try, None when its budget is spent.

        Either way the request remembers the proxy, so that a retry by Scrapy's
        RetryMiddleware goes elsewhere, too.
        """
        tries = keys.tries_of(request)
        attempts = tries.retries + int(request.meta.get("retry_times", 0))
        backoff = min(_BACKOFF * 2 ** min(attempts, 10), _BACKOFF_MAX)
        # The first ban may be the proxy's; from then on the site is given time.
        again_banned = outcome is Outcome.BANNED and attempts > 0
        patient = again_banned and not self._robots.is_robots(request)
        pause = backoff / 2 if patient else 0.0
        tries = self.remember(request, proxy_id, pause=pause, backoff=backoff)
        if not self.left(request, tries):
            if self._times and not request.meta.get("dont_retry"):
                self._stats.inc(names.RETRIES_SPENT)
            return None
        self._stats.inc(names.RETRIES)
        logger.debug("%s goes elsewhere after %s: %s, %s", request, proxy_id, outcome.value, what)
        again = request.replace(dont_filter=True, priority=request.priority + self._priority_adjust)
        again.meta[keys.TRIES] = tuple(tries._replace(retries=tries.retries + 1))
        return again
