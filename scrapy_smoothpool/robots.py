"""robots.txt counts double: a page is never crawled as allowed because the pool failed.

Scrapy's RobotsTxtMiddleware takes a robots.txt that could not be had for "no
rules" and remembers that for the whole crawl. So when the reason was the pool
(no proxy free, or every proxy tried was at fault), the host is noted here, its
pages wait, and RobotsTxtMiddleware is made to ask again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.utils.httpobj import urlparse_cached

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

ROBOTS_RETRY_TIMES = 20
"""Least budget of a robots.txt request: "no rules" must be the site's word, not a proxy's."""


class RobotsGuard:
    """Hosts whose robots.txt could not be had through the pool."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.active = crawler.settings.getbool("ROBOTSTXT_OBEY")
        # Bounded by the hosts that RobotsTxtMiddleware itself remembers.
        self._missing: set[str] = set()

    def is_robots(self, request: Request) -> bool:
        """Say whether this is RobotsTxtMiddleware's own request."""
        return (
            self.active
            and request.url.endswith("/robots.txt")
            and bool(request.meta.get("dont_obey_robotstxt"))
        )

    def failed(self, request: Request) -> None:
        """Note that the pool is the reason why this robots.txt cannot be had."""
        self._missing.add(urlparse_cached(request).netloc)

    def arrived(self, request: Request) -> None:
        """Note that the site itself has answered."""
        self._missing.discard(urlparse_cached(request).netloc)

    def holds(self, request: Request) -> bool:
        """Say whether a page must wait, and make RobotsTxtMiddleware ask again if so."""
        if not self._missing or request.meta.get("dont_obey_robotstxt"):
            return False
        netloc = urlparse_cached(request).netloc
        if netloc not in self._missing:
            return False
        self._forget(netloc)
        return True

    def _forget(self, netloc: str) -> None:
        assert self._crawler.engine is not None
        middleware = self._crawler.get_downloader_middleware(RobotsTxtMiddleware)
        # Private, but the only memory of "no rules"; None is exactly that entry.
        parsers = getattr(middleware, "_parsers", {})
        if netloc in parsers and parsers[netloc] is None:
            del parsers[netloc]
