"""Which requests ask for their connection to be closed afterwards, and how many need not.

Scrapy's download handlers keep every connection for the next request through the same proxy: http11
for 240 s, aiohttp for 15 to 30 s, httpx for good. Over thousands of proxies that is thousands of
sockets that are hardly ever used again; through a gateway with another exit for each connection it
is the same exit again and again. What works alike on all handlers, and through no private part of
any, is the header ``Connection: close``: to a proxy it speaks for the connection to the proxy, in a
tunnel for the site's, and the tunnel goes with that.

A bound on idle connections is kept the same way: requests get places, and those that find no place
ask for their connection to be closed. Since proxies take turns, the connection idle for longest is
the one that is wanted next: closing that one, as caches usually do, would leave none that is ever
used again. So a place stays with its proxy and site, and the others go without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from scrapy import signals as scrapy_signals
from scrapy.utils.httpobj import urlparse_cached

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

HEADER = b"Connection"
_CLOSE = b"close"

LIFE = 240.0
"""Seconds after which http11 and aiohttp have surely closed an idle connection."""

Key = tuple[str, str, str]
"""What connections are shared by at most: proxy id, scheme and host:port of the site."""


class Connections:
    """Asks for connections to be closed, in requests that are about to go out.

    :param close: whether every request of the pool asks.
    :param most: idle connections that may be kept; 0 for no bound.
    :param gives_up: whether the handlers close what was idle for :data:`LIFE`; where they keep it
        for good, its place is never free again.
    :param clock: seconds.
    """

    def __init__(
        self, *, close: bool, most: int, gives_up: bool, clock: Callable[[], float]
    ) -> None:
        self.chooses = close or most > 0
        """Whether requests are to be shown to :meth:`sent` whatever their proxy."""
        self._close = close
        self._most = most
        self._life = LIFE if gives_up else float("inf")
        self._clock = clock
        self._warned = False
        # Idle connections by whom they serve: (number, when the last of them was used), least
        # recently used first. Written here only; an entry that is not true any more (the other
        # side closed) wastes a place until it is used or LIFE is over.
        self._idle: dict[Key, tuple[int, float]] = {}
        self._idle_number = 0
        # Requests under way that hold a place. Weak, so that one that vanishes gives it back.
        self._using: WeakKeyDictionary[Request, Key] = WeakKeyDictionary()

    def connect(self, crawler: Crawler) -> None:
        """Listen for the end of downloads, if there are places to be given back."""
        if self._most:
            crawler.signals.connect(self._downloaded, signal=scrapy_signals.response_downloaded)
            crawler.signals.connect(self._left, signal=scrapy_signals.request_left_downloader)

    def sent(self, request: Request, proxy_id: str, *, rotates: bool) -> bool:
        """Say whether the request was given the header; :func:`.meta.take_out` takes it out again.

        :param rotates: whether this proxy's connections are to be closed in any case.
        """
        headers = request.headers
        if HEADER in headers:
            self._see(headers[HEADER] or b"", request)
            return False
        if not (self._close or rotates) and self._find_place(request, proxy_id):
            return False
        headers[HEADER] = _CLOSE
        return True

    def _see(self, value: bytes, request: Request) -> None:
        # Often copied from a browser along with all its headers, without a thought.
        if not self._warned and value.strip().lower() != _CLOSE:
            self._warned = True
            logger.warning(
                "%s brings a Connection header of its own, which is honoured: its connection is "
                "kept although SMOOTHPOOL_CONNECTION_CLOSE, SMOOTHPOOL_MAX_IDLE_CONNECTIONS or "
                "close=yes on the proxy's line asks for another thing (DEFAULT_REQUEST_HEADERS "
                "may have it); leave the header out",
                request,
            )

    # Places

    def _find_place(self, request: Request, proxy_id: str) -> bool:
        self._expire()
        url = urlparse_cached(request)
        key = (proxy_id, url.scheme, url.netloc)
        number, used = self._idle.pop(key, (0, 0.0))
        if number:
            self._idle_number -= 1
            if number > 1:
                # Last now, though not used last: what lies behind it only waits a little longer.
                self._idle[key] = number - 1, used
        elif self._idle_number + len(self._using) >= self._most:
            return False
        self._using[request] = key
        return True

    def _expire(self) -> None:
        limit = self._clock() - self._life
        while self._idle:
            key, (number, used) = next(iter(self._idle.items()))
            if used > limit:
                return
            del self._idle[key]
            self._idle_number -= number

    def _downloaded(self, request: Request) -> None:
        key = self._using.pop(request, None)
        if key is not None:
            number, _ = self._idle.pop(key, (0, 0.0))
            self._idle[key] = number + 1, self._clock()
            self._idle_number += 1

    def _left(self, request: Request) -> None:
        # After _downloaded; a download that failed leaves no connection.
        self._using.pop(request, None)
