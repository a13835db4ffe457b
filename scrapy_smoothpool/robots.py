"""robots.txt counts double: a page is never crawled as allowed because the pool failed.

Two things in Scrapy's RobotsTxtMiddleware would open a site's closed pages:

* It takes a robots.txt that could not be had for "no rules" and remembers that
  for the whole crawl. When the reason may be the pool (no proxy free, or no
  proxy tried brought an answer of the site's), the host is noted here, its
  pages wait, and RobotsTxtMiddleware is made to ask again, ever more rarely.
* Of the pages that wait for the same robots.txt, all but the first are told "no
  rules" (Scrapy 2.14 to 2.19: they await one Deferred, whose result is gone
  after the first). A proxy makes that wait longer and the pages more, so the
  first pages of a host after its robots.txt are checked once more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.utils.httpobj import urlparse_cached
from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

ROBOTS_RETRY_TIMES = 20
"""Least budget of a robots.txt request: "no rules" must be the site's word, not a proxy's."""

_HOSTS = 10_000
_PAUSE = 0.5
_PAUSE_MAX = 60.0


class _Missing:
    """A host whose robots.txt could not be had: why, and when it is asked for again."""

    __slots__ = ("early", "next_ask", "pause", "reason")

    def __init__(self) -> None:
        self.reason = ""
        self.early = False
        self.pause = _PAUSE / 2
        self.next_ask = 0.0


class RobotsGuard:
    """What is known of the robots.txt of hosts. Inactive without ROBOTSTXT_OBEY."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.active = crawler.settings.getbool("ROBOTSTXT_OBEY")
        # More pages than this cannot have been waiting for one robots.txt.
        self._most_waiting = 2 * (crawler.settings.getint("CONCURRENT_REQUESTS") or 1_000)
        # Hosts without a robots.txt yet, maybe by the pool's fault. Cleared when it arrives.
        self._missing: dict[str, _Missing] = {}
        # Hosts whose robots.txt has come lately -> pages still to be checked once more.
        self._recent: dict[str, int] = {}

    def is_robots(self, request: Request) -> bool:
        """Say whether this is RobotsTxtMiddleware's own request, redirected or not."""
        if not self.active or not request.meta.get("dont_obey_robotstxt"):
            return False
        return self._asked_for(request).endswith("/robots.txt")

    @staticmethod
    def _asked_for(request: Request) -> str:
        redirected = request.meta.get("redirect_urls")
        return str(redirected[0]) if redirected else request.url

    def _host(self, request: Request) -> str:
        return urlsplit(self._asked_for(request)).netloc

    def failed(self, request: Request, reason: str, *, early: bool = False) -> None:
        """Note that this robots.txt cannot be had, maybe by the pool's fault.

        :param early: it was too early to say that the pool had no proxy.
        """
        missing = self._missing.setdefault(self._host(request), _Missing())
        missing.reason, missing.early = reason, early
        missing.pause = _PAUSE if early else min(2 * missing.pause, _PAUSE_MAX)
        missing.next_ask = time.monotonic() + missing.pause

    def arrived(self, request: Request) -> None:
        """Note that the site itself has answered."""
        host = self._host(request)
        self._missing.pop(host, None)
        if len(self._recent) >= _HOSTS:
            del self._recent[next(iter(self._recent))]
        self._recent[host] = self._most_waiting

    def why(self, request: Request) -> str:
        """Return why the robots.txt of a page's host could not be had."""
        missing = self._missing.get(urlparse_cached(request).netloc)
        return missing.reason if missing else ""

    def was_early(self, request: Request) -> bool:
        """Say whether a page's robots.txt was only asked for when it was too early to say."""
        missing = self._missing.get(urlparse_cached(request).netloc)
        return missing is not None and missing.early

    def holds(self, request: Request) -> bool:
        """Say whether a page must wait for its host's robots.txt.

        Raises IgnoreRequest for a page that it forbids and that was let through.
        """
        if not (self._missing or self._recent) or request.meta.get("dont_obey_robotstxt"):
            return False
        netloc = urlparse_cached(request).netloc
        missing = self._missing.get(netloc)
        if missing is not None:
            if time.monotonic() >= missing.next_ask:
                self._ask_again(netloc)
            return True
        left = self._recent.get(netloc)
        if left is not None:
            if left > 1:
                self._recent[netloc] = left - 1
            else:
                del self._recent[netloc]
            self._check_again(netloc, request)
        return False

    def _ask_again(self, netloc: str) -> None:
        parsers = self._parsers()
        if netloc in parsers and parsers[netloc] is None:  # None is "no rules"
            del parsers[netloc]

    def _check_again(self, netloc: str, request: Request) -> None:
        middleware = self._middleware()
        parser = self._parsers().get(netloc)
        if middleware is not None and parser is not None and not isinstance(parser, Deferred):
            middleware.process_request_2(parser, request)

    def _middleware(self) -> RobotsTxtMiddleware | None:
        return self._crawler.get_downloader_middleware(RobotsTxtMiddleware)

    def _parsers(self) -> dict[str, Any]:
        # Private, but the only place where "no rules" is remembered.
        return getattr(self._middleware(), "_parsers", {})
