"""One cheap request through a proxy that no page has used yet.

It goes out by the project's own download handlers, since a proxy is of use only
if these can speak to it, but past the engine and the downloader: no middleware,
slot, delay, signal, stat or cache of the crawl ever sees it. The handlers are
instances apart, because the crawl's own have connection limits of the size of
CONCURRENT_REQUESTS, and checks that hang would use these up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy import signals as scrapy_signals
from scrapy.core.downloader.handlers import DownloadHandlers
from scrapy.downloadermiddlewares.httpproxy import HttpProxyMiddleware
from scrapy.exceptions import DownloadCancelledError, DownloadTimeoutError, StopDownload
from scrapy.settings import BaseSettings
from scrapy.signalmanager import SignalManager
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from . import meta as keys
from .evidence import Classifier
from .policies import BodyPolicy

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.utils.asyncio import CallLaterResult

    from .judge import Evidence
    from .policies import Policy
    from .proxy import Proxy

T = TypeVar("T")

GRACE = 0.25
"""Seconds beyond the timeout that a handler has for ending a check itself."""
BODY_LIMIT = 65_536
"""Bytes of a body that are waited for, where the policy wants one."""

# Of the project's default headers only what proxies and sites tell browsers by, and the login
# for proxies that have none in the list. Others may be meant for one site alone.
_HEADERS = frozenset({"accept", "accept-language", "proxy-authorization"})


class Checker:
    """Checks proxies for one crawler.

    :param policy: the crawl's outcome policy. Where it wants bodies, a check is
        a GET instead of a HEAD.
    :param timeout: seconds that one check may take.
    :param concurrency: most checks at a time; the caller sees to it, the
        handlers' own limits are set to it.
    """

    def __init__(
        self, crawler: Crawler, policy: Policy, *, timeout: float, concurrency: int
    ) -> None:
        self._classifier = Classifier(policy)
        self._timeout = timeout
        self._method = "GET" if isinstance(policy, BodyPolicy) else "HEAD"
        self._apart = _Apart(crawler, concurrency)
        self._handlers: DownloadHandlers | None = None
        # Scrapy's own, so that logins are sent just as they will be with pages.
        self._logins = HttpProxyMiddleware(crawler.settings.get("HTTPPROXY_AUTH_ENCODING"))
        self._headers = _headers(crawler.settings)
        self._received: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._connections: dict[Any, CallLaterResult] = {}
        self._apart.signals.connect(self._bytes_received, signal=scrapy_signals.bytes_received)

    async def check(self, proxy: Proxy, url: str) -> Evidence:
        """Send one request for *url* through *proxy* and return what became of it.

        ``answered`` says that the proxy passed. Takes ``timeout`` seconds at most,
        and a quarter of one. Redirects are not followed. Raises nothing but what
        cancels it.
        """
        request = self.request(proxy, url)
        found = await self.fetch(request)
        if isinstance(found, Exception):
            return self._classifier.evidence(request, None, found, keys.site_of(request))
        return self._classifier.evidence(request, found, None, keys.site_of(request))

    def request(self, proxy: Proxy, url: str) -> Request:
        """Return the request of a check. Its headers hold the login."""
        meta = {
            keys.PROXY: proxy.url,
            keys.PROXY_ID: proxy.id,
            "download_timeout": self._timeout,
            # A HEAD has no body, whatever length it tells; a GET is stopped in time.
            "download_maxsize": 0,
            "download_warnsize": 0,
        }
        request = Request(url, method=self._method, headers=self._headers, meta=meta)
        self._logins.process_request(request)
        return request

    async def fetch(self, request: Request) -> Response | Exception:
        """Download *request* and return the response, or the exception that it ended in."""
        late = DownloadTimeoutError(f"no end within {self._timeout:g} seconds")
        return await _within(self._timeout + GRACE, self._download(request), late)

    async def _download(self, request: Request) -> Response | Exception:
        # Errors are returned: one that comes when nobody waits any more is not "unhandled" then.
        try:
            if self._handlers is None:
                self._handlers = DownloadHandlers(cast("Crawler", self._apart))
            self._limit_connections(self._handlers, request.url.partition(":")[0])
            return await self._handlers.download_request_async(request)
        except Exception as error:
            return error

    async def close(self) -> None:
        """Give connections and handlers up. Another check would open new ones."""
        handlers, self._handlers = self._handlers, None
        for protocol in list(self._connections):
            self._end(protocol)
        if handlers is not None:
            # They listen to this, on the signals that are theirs alone.
            await self._apart.signals.send_catch_log_async(scrapy_signals.engine_stopped)
            self._apart.signals.disconnect_all(scrapy_signals.engine_stopped)

    def _bytes_received(self, data: bytes, request: Request) -> None:
        received = self._received[request] = self._received.get(request, 0) + len(data)
        if received > BODY_LIMIT:
            raise StopDownload(fail=False)

    # Scrapy's http11 handler forgets connections on which CONNECT failed or was not answered: they
    # stay open until the proxy closes them, and what it sends is kept. Thousands of bad proxies
    # would use up the descriptors, so here no connection outlives its check by long.

    def _limit_connections(self, handlers: DownloadHandlers, scheme: str) -> None:
        """See to it that the http11 handler's connections end in time."""
        pool: Any = getattr(handlers._get_handler(scheme), "_pool", None)
        factory = getattr(pool, "_factory", None)
        if factory is None or getattr(factory, "limited", False):
            return

        def limited(*arguments: Any) -> Any:
            made = factory(*arguments)
            build = made.buildProtocol

            def built(address: Any) -> Any:
                protocol = build(address)
                limit = self._timeout + 2 * GRACE
                self._connections[protocol] = call_later(limit, self._end, protocol)
                return protocol

            made.buildProtocol = built
            return made

        limited.limited = True  # type: ignore[attr-defined]
        pool._factory = limited

    def _end(self, protocol: Any) -> None:
        timer = self._connections.pop(protocol, None)
        if timer is not None:
            timer.cancel()
        abort = getattr(protocol.transport, "abortConnection", None)
        if abort is not None:
            abort()


class _Apart:
    """A crawler as download handlers know it: the same, with limits and signals of its own."""

    def __init__(self, crawler: Crawler, concurrency: int) -> None:
        self._crawler = crawler
        self.signals = SignalManager(self)
        self.settings = BaseSettings(crawler.settings)
        handlers = crawler.settings.getwithbase("DOWNLOAD_HANDLERS")
        wanted = {scheme: handlers[scheme] for scheme in ("http", "https") if scheme in handlers}
        own = {
            "DOWNLOAD_HANDLERS_BASE": {},
            "DOWNLOAD_HANDLERS": wanted,
            "CONCURRENT_REQUESTS": concurrency,
            "CONCURRENT_REQUESTS_PER_DOMAIN": concurrency,
        }
        for name, value in own.items():
            # Taken out first: set() would merge handlers into those that are there.
            self.settings.attributes.pop(name, None)
            self.settings.set(name, value, "cmdline")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._crawler, name)


def _headers(settings: BaseSettings) -> dict[str, Any]:
    given = settings.getdict("DEFAULT_REQUEST_HEADERS")
    headers = {k: v for k, v in given.items() if k.lower() in _HEADERS and v is not None}
    agent = settings.get("USER_AGENT")
    if agent:
        headers["User-Agent"] = agent
    # A proxy may never be used again, or not for long.
    headers["Connection"] = "close"
    return headers


async def _within(
    seconds: float, coroutine: Coroutine[Any, Any, T], late: Exception
) -> T | Exception:
    """Return what *coroutine* returns, or *late* if it takes longer than *seconds*.

    It is cancelled when it is late, or when this is cancelled; what it does then
    is not waited for, so one that takes no notice holds nobody up.
    """
    done: Deferred[Any] = Deferred()
    work = deferred_from_coro(coroutine)

    def ended(result: T | Failure) -> None:
        if not done.called:
            # A failure is no error of the download, but its end by somebody else's hand.
            cut = isinstance(result, Failure)
            done.callback(DownloadCancelledError("cancelled") if cut else result)

    def expire() -> None:
        if not done.called:
            done.callback(late)

    timer = call_later(seconds, expire)
    work.addBoth(ended)
    try:
        return cast("T | Exception", await maybe_deferred_to_future(done))
    finally:
        timer.cancel()
        work.cancel()
