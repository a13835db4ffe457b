"""The downloader middleware: gives each request its proxy and watches what becomes of it.

It assigns and observes; it does no arithmetic. One request's way through it:

1. :meth:`~SmoothPoolMiddleware.process_request` asks the pool and sets
   ``meta["proxy"]``, or waits, or refuses; it never lets a request of the pool
   out without a proxy.
2. ``request_reached_downloader`` notes that the pick is spent.
3. ``response_downloaded``, or :meth:`~SmoothPoolMiddleware.process_exception`,
   takes everything out of the request again and books the outcome.
4. :meth:`~SmoothPoolMiddleware.process_response` sends the request elsewhere
   when the outcome says so and the budget allows.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

from scrapy import signals as scrapy_signals
from scrapy.exceptions import IgnoreRequest

from . import checks, signals
from . import meta as keys
from . import stats as names
from .connections import Connections
from .exceptions import PoolExhausted, StoreError, UnsupportedRequest
from .extension import SmoothPoolExtension
from .failures import describe, scrub
from .outcome import Outcome
from .pool import State
from .retries import Retries, still_before
from .robots import RobotsGuard
from .settings import OnEmpty, OnRedisDown
from .waiting import Waiting

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .pool import Assignment

logger = logging.getLogger(__name__)

_CARRIED = ("http:", "https:")
_LOCAL = ("data:", "file:")

# Asked for at every request, and Python 3.11 takes 0.3 µs to look up a member.
_NEW = State.NEW
_SUCCESS = Outcome.SUCCESS

_NOWHERE = "http://0.0.0.0:1"
"""Stands in for a proxy that has left the pool; nothing can be reached through it."""


class SmoothPoolMiddleware(checks.AssignsProxies):
    """Assigns proxies to requests. Belongs at 610 in ``DOWNLOADER_MIDDLEWARES``."""

    def __init__(self, crawler: Crawler, extension: SmoothPoolExtension) -> None:
        self._crawler = crawler
        self._extension = extension
        self._pool = extension.pool
        self._settings = extension.settings
        self._stats = extension.stats
        self._waits = extension.settings.on_empty is OnEmpty.WAIT
        self._robots = RobotsGuard(crawler)
        self._waiting = Waiting(
            crawler, extension.stats, run=extension.run, timeout=extension.settings.wait_timeout
        )
        self._retries = Retries(
            crawler,
            extension.stats,
            extension.pool,
            self._robots,
            times=extension.settings.retry_times,
        )
        self._redirects = crawler.settings.getbool("REDIRECT_ENABLED")
        self._browser = checks.uses_browser_handler(crawler.settings)
        self._connections = Connections(
            close=extension.settings.connection_close,
            most=extension.settings.max_idle_connections,
            gives_up=checks.gives_idle_up(crawler.settings),
            clock=time.monotonic,
        )
        self._connections.connect(crawler)
        self._some_close = self._connections.chooses
        # Outcomes that ask for another try, from response_downloaded to process_response.
        # By request, not in meta: an error on the way must not leave a verdict that a copy
        # of the request would carry along.
        self._verdicts: WeakKeyDictionary[Request, tuple[str, Outcome, str]] = WeakKeyDictionary()
        self._retried_by_scrapy = {
            int(status) for status in crawler.settings.getlist("RETRY_HTTP_CODES")
        }
        connect = crawler.signals.connect
        self._watches_scheduler = False
        if checks.others_after(crawler.settings, type(self)):
            self._watch_scheduler()
        # Sent at every request.
        self._receivers = (signals.receiver(self._sent), signals.receiver(self._downloaded))
        connect(self._receivers[0], signal=scrapy_signals.request_reached_downloader)
        connect(self._receivers[1], signal=scrapy_signals.response_downloaded)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware and, if need be, its companion extension.

        Raises :exc:`~scrapy_smoothpool.exceptions.SettingsError` for whatever
        could let a request out unproxied, NotConfigured only when
        ``SMOOTHPOOL_ENABLED`` is False.
        """
        extension = SmoothPoolExtension.of(crawler)
        checks.check_order(crawler.settings, cls)
        return cls(crawler, extension)

    # Before the download

    async def process_request(self, request: Request) -> Request | None:
        """Give the request a proxy, or return the request that waits in its place."""
        if keys.ASSIGNED in request.meta:
            self._give_back(request)
        if self._robots.active and self._robots.holds(request):
            self._stats.inc(names.ROBOTS_WAITS)
            why = f"robots.txt could not be had, {self._robots.why(request)}"
            if self._extension.checking or self._robots.was_early(request):
                return await self._wait(request, why)
            return await self._none_for(request, why)
        if not self._wants_proxy(request):
            self._waiting.passes()
            return None
        while self._pool.state is _NEW and not self._waiting.closing:
            # Another component sent this from its own spider_opened handler.
            await self._waiting.hold(request)
        early = False
        if self._extension.admission is not None:
            self._extension.admit(request)
            early = self._extension.checking
        waiting = self._waiting
        if waiting.dry is not None and self._waits and not waiting.may_ask():
            return await self._wait(request, waiting.dry)
        tries = keys.tries_of(request) if keys.TRIES in request.meta else keys.NO_TRIES
        site = keys.site_of(request)
        if tries.not_before and still_before(tries.not_before):
            return await self._wait(request, "it is banned again and again", counts=False)
        # What says that the pool is not empty is asked before the pick and not after it: it may
        # end while Redis answers, or between two looks at the clock.
        too_soon = bool(tries.proxies) and still_before(tries.last_not_before)
        rested = bool(self._pool.rests.by_site and self._pool.resting(site))
        try:
            assignment = await self._pool.acquire(tries.proxies, site)
            if assignment is None and tries.proxies and not too_soon:
                assignment = await self._pool.acquire((), site)
        except StoreError as error:
            self._stats.inc(names.STORE_ERRORS)
            return await self._redis_is_down(request, waiting.ran_dry(str(error)))
        if assignment is not None:
            self._assign(request, assignment, site)
            return None
        if too_soon:
            return await self._wait(request, "the only proxy left has just failed", counts=False)
        if self._pool.paced(site):
            return await self._wait(request, "hardly anything gets through", counts=False)
        if rested:
            # The site's own wish: other sites go on, and the pool is not empty.
            return await self._none_for(request, f"proxies rest on {site} (Retry-After)")
        if self._pool.only_there(site):
            return await self._none_for(request, self._why(site))
        return await self._no_proxy(request, waiting.ran_dry(self._why(site)), early=early)

    def _wants_proxy(self, request: Request) -> bool:
        """Say whether the pool has to serve this request; raise if nothing may carry it."""
        meta, url = request.meta, request.url
        if keys.USE_POOL in meta and meta[keys.USE_POOL] is False:
            self._stats.inc(names.BYPASSED)
            return False
        if keys.PROXY in meta:
            proxy = meta[keys.PROXY]
            if proxy is not None and not checks.is_usable_proxy(proxy):
                raise self._refusal(request, 'meta["proxy"] names no proxy that could be used')
            self._stats.inc(names.PINNED)
            return False
        if not url.startswith(_CARRIED):
            if url.startswith(_LOCAL):
                return False
            raise self._refusal(request, "no HTTP proxy can carry this scheme")
        if self._browser and meta.get("playwright"):
            raise self._refusal(request, 'the browser does not use meta["proxy"]')
        return True

    def _refusal(self, request: Request, why: str) -> UnsupportedRequest:
        self._stats.inc(names.REFUSED)
        return UnsupportedRequest(
            f'{request}: {why}; accepted: a proxy URL, None, or meta["smoothpool"] = False to '
            "send it without the pool"
        )

    def _assign(self, request: Request, assignment: Assignment, site: str) -> None:
        waiting = self._waiting
        waiting.dry = None
        if waiting.holders and not self._pool.panicking(site):
            # Else the next ones wait as well, and nothing is gained by haste.
            waiting.passes()
        meta = request.meta
        if keys.WAIT in meta:
            waiting.over(request)
        proxy_id, epoch, meta[keys.PROXY] = assignment
        meta[keys.PROXY_ID] = proxy_id
        meta[keys.ASSIGNED] = (proxy_id, epoch, site)
        self._stats.assigned += 1
        extension = self._extension
        if extension.dry:
            extension.available()
        if extension.is_heard(signals.proxy_assigned):
            extension.send(signals.proxy_assigned, request=request, proxy_id=proxy_id)
        if extension.debugging:
            logger.debug("%s goes through %s", request, proxy_id)

    # Without a proxy

    def _why(self, site: str) -> str:
        if not len(self._pool):
            if self._pool.strategy.shared:
                return (
                    f"the pool is empty: no worker has published a list as {self._pool.name!r} in "
                    f"{self._pool.strategy.describe()} (SMOOTHPOOL_PROXIES in one of them does)"
                )
            return "the pool is empty"
        out = f"{self._pool.out} of {len(self._pool)}"
        if self._pool.panicking(site):
            return f"hardly anything gets through ({out} are out)"
        if self._pool.only_there(site):
            return f"those that are not out everywhere ({out} are) are out on {site}"
        return f"{out} proxies are out"

    async def _no_proxy(self, request: Request, reason: str, *, early: bool) -> Request:
        if early:
            # Not empty, but not known yet: whatever is to become of an empty pool can wait.
            return await self._wait(request, f"{reason}, and not all of them are checked yet")
        self._extension.exhausted(reason)
        return await self._none_for(request, reason)

    async def _redis_is_down(self, request: Request, reason: str) -> Request:
        self._extension.redis_is_down(reason)
        closes = self._settings.on_redis_down is OnRedisDown.CLOSE
        if closes and not self._robots.is_robots(request):
            self._stats.inc(names.WAITS_ENDED)
            raise PoolExhausted(
                f"no proxy for {request}: {reason} "
                f"(SMOOTHPOOL_ON_REDIS_DOWN = {self._settings.on_redis_down.value!r})"
            )
        return await self._wait(request, reason)

    async def _none_for(self, request: Request, reason: str) -> Request:
        if not self._waits and not self._robots.is_robots(request):
            self._stats.inc(names.WAITS_ENDED)
            raise PoolExhausted(
                f"no proxy for {request}: {reason} "
                f"(SMOOTHPOOL_ON_EMPTY = {self._settings.on_empty.value!r})"
            )
        return await self._wait(request, reason)

    async def _wait(self, request: Request, reason: str, *, counts: bool = True) -> Request:
        """Hold the request's place for a moment, and return the request that goes back.

        :param counts: whether this is a wait for a free proxy, which has a limit;
            a pause before the next try is not.
        """
        self._watch_scheduler()
        wait = self._waiting.start(request)
        held = await self._waiting.hold(request, panic=self._pool.panicking(keys.site_of(request)))
        if self._robots.is_robots(request):
            raise self._no_robots(request, reason)
        return self._waiting.back(request, wait, held if counts else 0.0, reason)

    def _no_robots(self, request: Request, reason: str) -> IgnoreRequest:
        # Its pages do the waiting, through the scheduler. IgnoreRequest, since Scrapy logs
        # anything else with a traceback at every turn.
        self._robots.failed(request, reason, early=self._extension.checking)
        return IgnoreRequest(f"robots.txt waits for a proxy: {reason}")

    # On the way

    def _give_back(self, request: Request) -> None:
        """Take out an assignment whose download never happened, or failed unheard."""
        sent = keys.SENT in request.meta
        assigned = keys.take_out(request)
        if assigned is None:
            return
        if sent:
            # The download failed, and another component made something of it before we heard.
            self._extension.report(request, assigned)
            return
        self._stats.inc(names.TICKETS)
        self._pool.give_back(*assigned)

    def _watch_scheduler(self) -> None:
        """See to it that nothing of ours is stored by the scheduler; not before it can happen.

        Only what waits goes there with something of ours in it, and what a middleware of the
        project's returns on the way. For all others the signal would be 4 µs for nothing.
        """
        if not self._watches_scheduler:
            self._watches_scheduler = True
            connect = self._crawler.signals.connect
            connect(self._scheduled, signal=scrapy_signals.request_scheduled)

    def _scheduled(self, request: Request) -> None:
        # A request returned by another middleware's process_request goes to the scheduler (and
        # maybe a JOBDIR) with our assignment still in it.
        request.meta.pop(keys.RETURNED, None)
        self._give_back(request)

    def _sent(self, request: Request, **_: object) -> None:
        meta = request.meta
        assigned = meta.get(keys.ASSIGNED)
        if assigned is None:
            return
        meta[keys.SENT] = True
        proxy, address = meta.get(keys.PROXY), self._pool.address(assigned[0])
        # No address: it has left the pool. Then nothing is taken for granted.
        if (address is None or proxy != address) and not checks.is_usable_proxy(proxy):
            # Another component took the proxy away; without it this would go out directly.
            # The login is gone, too: at worst the proxy asks for it.
            logger.error(
                '%s has lost its proxy on the way: a middleware changes meta["proxy"]; it was '
                "put back",
                request,
            )
            meta[keys.PROXY] = address or _NOWHERE
        # Last: whatever went wrong here, the request has its proxy.
        if self._some_close or self._pool.closing:
            rotates = assigned[0] in self._pool.closing
            if (rotates or self._some_close) and self._connections.sent(
                request, assigned[0], rotates=rotates
            ):
                meta[keys.SENT] = keys.CLOSES

    # After the download

    def _downloaded(self, request: Request, response: Response, **_: object) -> None:
        assigned = keys.take_out(request)
        if assigned is None:
            return
        outcome = self._extension.report(request, assigned, response=response)
        if outcome.retry_elsewhere:
            self._verdicts[request] = (assigned[0], outcome, f"status {response.status}")
            if self._retries.left(request, keys.tries_of(request)):
                # A cache that stored a ban would answer every retry with it.
                request.meta.setdefault(keys.DONT_CACHE, keys.OURS)
        elif outcome is _SUCCESS:
            request.meta.pop(keys.TRIES, None)
        elif response.status in self._retried_by_scrapy:
            self._retries.remember(request, assigned[0])
        else:
            request.meta.pop(keys.TRIES, None)

    async def process_response(self, request: Request, response: Response) -> Request | Response:
        """Send the request elsewhere if its download asks for that and its budget allows."""
        meta = request.meta
        if keys.ASSIGNED in meta:
            self._give_back(request)
        verdict = self._verdicts.pop(request, None)
        if meta.get(keys.DONT_CACHE) == keys.OURS:
            del meta[keys.DONT_CACHE]
        robots = self._robots.active and self._robots.is_robots(request)
        if verdict is None:
            if not robots:
                return response
            redirected = 300 <= response.status < 400 and self._redirects
            if not redirected:
                self._robots.arrived(request)
            return response
        again = self._retries.again(request, *verdict)
        if again is not None:
            return again
        if robots and verdict[1] is not Outcome.BANNED:
            # Maybe not the site's answer: reading it as "no rules" would open every page.
            raise self._no_robots(request, f"the last answer was a {response.status}")
        if robots:
            self._robots.arrived(request)
        return response

    async def process_exception(self, request: Request, exception: Exception) -> Request | None:
        """Book a failed download and send the request elsewhere if its budget allows."""
        if keys.SENT not in request.meta:
            self._give_back(request)
            return None
        assigned = keys.take_out(request)
        if assigned is None:
            return None
        outcome = self._extension.report(request, assigned, exception=exception)
        what = describe(exception)
        scrub(exception)
        if not outcome.retry_elsewhere:
            return None
        again = self._retries.again(request, assigned[0], outcome, what)
        if again is None and self._robots.is_robots(request):
            raise self._no_robots(request, f"the last try ended in a {what}") from None
        return again
