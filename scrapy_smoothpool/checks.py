"""What must be right about the Scrapy project before any request may go out.

Every check raises :exc:`~scrapy_smoothpool.exceptions.SettingsError` in
``from_crawler``, which ends the crawl with exit status 1. (``NotConfigured``
would only be logged, and the crawl would run on without proxies.)
"""

from __future__ import annotations

import codecs
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapy.downloadermiddlewares.httpproxy import HttpProxyMiddleware
from scrapy.downloadermiddlewares.redirect import RedirectMiddleware
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.misc import load_object

from .exceptions import SettingsError
from .proxy import SCHEMES, Proxy

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

ORDER = 610
"""Between RedirectMiddleware (600) and HttpProxyMiddleware (750)."""

_SLOW_TIMEOUT = 60
_OTHER_FILES = 100
"""What a crawl opens beside connections: logs, feeds, libraries, name lookups."""

# What each of Scrapy's handlers can speak to a proxy, by the target's scheme (all handlers
# were tried with all schemes). An https proxy in front of an https target is a tunnel in a
# tunnel, which http11 does not do.
_HTTP11 = {"http": {"http", "https"}, "https": {"http"}}
_PLAIN_AND_TLS = {"http": {"http", "https"}, "https": {"http", "https"}}
_SOCKS5 = {"socks5", "socks5h"}
_CAPABILITIES = {
    "HTTP11DownloadHandler": _HTTP11,
    "HTTPDownloadHandler": _HTTP11,
    "AiohttpDownloadHandler": _PLAIN_AND_TLS,
    "HttpxDownloadHandler": {k: v | _SOCKS5 for k, v in _PLAIN_AND_TLS.items()},
    "H2DownloadHandler": {"http": set[str](), "https": set[str]()},
}
# These put the login into a URL again and encode it their own way.
_STREAMING = {"AiohttpDownloadHandler": "latin-1", "HttpxDownloadHandler": "utf-8"}
_BROWSER = "ScrapyPlaywrightDownloadHandler"


class AssignsProxies:
    """The mark of this package's middleware, by which it is found without importing it."""


def middlewares(settings: BaseSettings) -> list[tuple[int, type]]:
    """Return the enabled downloader middlewares as (number, class), in resolved order."""
    found = settings.get_component_priority_dict_with_base("DOWNLOADER_MIDDLEWARES")
    enabled = [(number, key) for key, number in found.items() if number is not None]
    return [(number, load_object(key)) for number, key in sorted(enabled, key=lambda e: e[0])]


def has_middleware(settings: BaseSettings, cls: type = AssignsProxies) -> bool:
    """Say whether *cls* or a subclass is among the enabled downloader middlewares."""
    return any(_is(found, cls) for _, found in middlewares(settings))


def check_order(settings: BaseSettings, cls: type) -> None:
    """Refuse a place from which failures are not seen or logins not understood.

    ``cls`` is the middleware's class. It must come after RetryMiddleware and
    RedirectMiddleware, where those are enabled, and before HttpProxyMiddleware.
    """
    enabled = middlewares(settings)
    own = [place for place, (_, found) in enumerate(enabled) if _is(found, cls)]
    if len(own) != 1:
        raise SettingsError(
            f"DOWNLOADER_MIDDLEWARES enables {len(own)} SmoothPool middlewares; accepted: one"
        )
    place = own[0]
    before: list[type] = [RedirectMiddleware] if settings.getbool("REDIRECT_ENABLED") else []
    before += [RetryMiddleware] if settings.getbool("RETRY_ENABLED") else []
    low = [(n, c) for n, c in enabled if any(_is(c, b) for b in before)]
    high = [(n, c) for n, c in enabled if _is(c, HttpProxyMiddleware)]
    wrong = [entry for entry in reversed(low) if enabled.index(entry) > place]
    wrong += [entry for entry in high if enabled.index(entry) < place]
    if wrong:
        number, other = wrong[0]
        side = "after" if wrong[0] in low else "before"
        raise SettingsError(
            f"DOWNLOADER_MIDDLEWARES has {cls.__name__} at {enabled[place][0]}; accepted: "
            f"{side} {other.__name__} ({number}){_advice(low, high)}"
        )


def others_after(settings: BaseSettings, cls: type) -> list[type]:
    """Return the project's middlewares between *cls* and the downloader, without Scrapy's own."""
    enabled = [found for _, found in middlewares(settings)]
    place = next(place for place, found in enumerate(enabled) if _is(found, cls))
    return [it for it in enabled[place + 1 :] if it.__module__.partition(".")[0] != "scrapy"]


def _advice(low: Sequence[tuple[int, type]], high: Sequence[tuple[int, type]]) -> str:
    least = max((number for number, _ in low), default=ORDER - 1)
    most = min((number for number, _ in high), default=least + 2)
    if least < ORDER < most:
        return f", for instance {ORDER}"
    if most - least > 1:
        return f", for instance {(least + most) // 2}"
    return "; move those two apart first (HttpProxyMiddleware is at 750 by default)"


def _is(found: object, cls: type) -> bool:
    return isinstance(found, type) and issubclass(found, cls)


def check_logins(settings: BaseSettings, proxies: Iterable[Proxy]) -> None:
    """Refuse logins that HttpProxyMiddleware is not there to send, or cannot encode."""
    with_login = [proxy for proxy in proxies if proxy.username is not None]
    if not with_login:
        return
    if not settings.getbool("HTTPPROXY_ENABLED"):
        raise SettingsError(
            "HTTPPROXY_ENABLED is False, but the list has proxies with logins, which "
            "HttpProxyMiddleware sends; accepted: True"
        )
    if not has_middleware(settings, HttpProxyMiddleware):
        raise SettingsError(
            "DOWNLOADER_MIDDLEWARES disables HttpProxyMiddleware, which sends the logins of "
            f"proxies such as {with_login[0].id}; accepted: 750, its default"
        )
    encoding = settings.get("HTTPPROXY_AUTH_ENCODING")
    for proxy in with_login:
        try:
            f"{proxy.username}:{proxy.password}".encode(encoding)
        except UnicodeEncodeError:
            raise SettingsError(
                f"HTTPPROXY_AUTH_ENCODING is {encoding!r}, in which the login of {proxy.id} "
                'cannot be written; accepted: "utf-8", if the proxy expects that'
            ) from None


def check_handlers(settings: BaseSettings, proxies: Iterable[Proxy], *, warn: bool = True) -> None:
    """Refuse proxies that the active download handlers cannot speak to.

    :param warn: say of handlers that are not known that they are not.
    """
    proxies = list(proxies)
    for target, handler in _handlers(settings):
        known = next((c.__name__ for c in handler.__mro__ if c.__name__ in _CAPABILITIES), None)
        if known is None:
            if warn:
                logger.warning(
                    "DOWNLOAD_HANDLERS uses %s for %s, of which it is not known whether it "
                    'honours meta["proxy"]; make sure that it does, or requests go out directly',
                    handler.__name__,
                    target,
                )
            continue
        spoken = _CAPABILITIES[known][target]
        for proxy in proxies:
            if proxy.scheme not in spoken:
                raise SettingsError(
                    f"{proxy.id}: {handler.__name__}, which DOWNLOAD_HANDLERS has for {target} "
                    f"pages, cannot use {proxy.scheme} proxies; accepted in "
                    "SMOOTHPOOL_PROXIES: "
                    f"{' or '.join(sorted(spoken)) or 'another handler'}{_handler_advice(proxy)}"
                )
            if known in _STREAMING:
                _check_streaming_login(settings, proxy, handler, _STREAMING[known])
    _check_http11_hosts(settings, proxies)


def _check_streaming_login(
    settings: BaseSettings, proxy: Proxy, handler: type, encoding: str
) -> None:
    login = f"{proxy.username or ''}{proxy.password or ''}"
    if "/" in login:
        raise SettingsError(
            f'{proxy.id}: {handler.__name__} in DOWNLOAD_HANDLERS misreads logins with "/"; '
            "accepted: a login without it, or Scrapy's HTTP11DownloadHandler"
        )
    chosen = str(settings.get("HTTPPROXY_AUTH_ENCODING"))
    if not login.isascii() and codecs.lookup(chosen) != codecs.lookup(encoding):
        raise SettingsError(
            f"HTTPPROXY_AUTH_ENCODING is {chosen!r}, but {handler.__name__} in DOWNLOAD_HANDLERS "
            f"sends the login of {proxy.id} in {encoding} whatever it says; accepted: "
            f'"{encoding}", or HTTP11DownloadHandler'
        )


def _handlers(settings: BaseSettings) -> list[tuple[str, type]]:
    found = settings.getwithbase("DOWNLOAD_HANDLERS")
    handlers = []
    for target in ("http", "https"):
        if found.get(target) is None:
            continue
        try:
            cls = load_object(found[target])
        except (ImportError, NameError, AttributeError, ValueError) as error:
            raise SettingsError(
                f"DOWNLOAD_HANDLERS has {found[target]!r} for {target}, which cannot be loaded "
                f"({error}); accepted: an installed download handler"
            ) from None
        if isinstance(cls, type):
            handlers.append((target, cls))
    return handlers


def _handler_advice(proxy: Proxy) -> str:
    if proxy.scheme in _SOCKS5:
        return (
            " (scrapy.core.downloader.handlers._httpx.HttpxDownloadHandler, with httpx2 and "
            "socksio installed, speaks SOCKS5; it is experimental)"
        )
    return " (HttpxDownloadHandler and AiohttpDownloadHandler do)" * (proxy.scheme == "https")


def _check_http11_hosts(settings: BaseSettings, proxies: Iterable[Proxy]) -> None:
    """Refuse hosts that Twisted's endpoints or Scrapy's default resolver cannot take."""
    if not any("HTTP11" in cls.__name__ for _, cls in _handlers(settings)):
        return
    # Two names, the older one deprecated: get() would warn of it.
    named = (settings.attributes.get(n) for n in ("TWISTED_DNS_RESOLVER", "DNS_RESOLVER"))
    resolvers = [str(attribute.value) for attribute in named if attribute is not None]
    ipv6 = any("CachingHostnameResolver" in resolver for resolver in resolvers)
    for proxy in proxies:
        if ":" in proxy.host and not ipv6:
            raise SettingsError(
                f"{proxy.id}: Scrapy's default resolver cannot reach IPv6 proxies; accepted: "
                'TWISTED_DNS_RESOLVER = "scrapy.resolver.CachingHostnameResolver"'
            )
        if "_" in proxy.host:
            raise SettingsError(
                f'{proxy.id}: HTTP11DownloadHandler takes no host names with "_"; accepted: the '
                "host's address, or HttpxDownloadHandler or AiohttpDownloadHandler in "
                "DOWNLOAD_HANDLERS"
            )


def is_usable_proxy(value: object) -> bool:
    """Say whether a user's ``meta["proxy"]`` names a proxy that will really be used.

    Handlers take some odd values (``"//"``, ``"http://"``, ``0``) for "no proxy".
    """
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value if "://" in value else f"http://{value.removeprefix('//')}")
        host = (parts.hostname or "").strip()
    except ValueError:
        return False
    return bool(host) and parts.scheme in SCHEMES


def uses_browser_handler(settings: BaseSettings) -> bool:
    """Say whether some requests may be handed to a browser, which ignores ``meta["proxy"]``."""
    return any(base.__name__ == _BROWSER for _, cls in _handlers(settings) for base in cls.__mro__)


def gives_idle_up(settings: BaseSettings) -> bool:
    """Say whether the download handlers close connections that were idle for some minutes."""
    giving = ("HTTP11DownloadHandler", "HTTPDownloadHandler", "AiohttpDownloadHandler")
    return all(
        any(base.__name__ in giving for base in cls.__mro__) for _, cls in _handlers(settings)
    )


def check_closing(settings: BaseSettings, what: str) -> None:
    """Refuse *what* where no request can ask for its connection to be closed: in HTTP/2."""
    httpx = any(
        base.__name__ == "HttpxDownloadHandler"
        for _, cls in _handlers(settings)
        for base in cls.__mro__
    )
    if httpx and settings.getbool("HTTPX_HTTP2_ENABLED"):
        raise SettingsError(
            f"HTTPX_HTTP2_ENABLED is True, but {what} asks for connections to be closed, which a "
            "request cannot do in HTTP/2; accepted: False, or a pool that keeps its connections"
        )


def warn_descriptors(settings: BaseSettings, kept: int) -> None:
    """Warn when the connections that may be kept are more than this process may open.

    :param kept: how many connections may stay idle, one to each proxy.
    """
    most = open_files()
    needed = kept + settings.getint("CONCURRENT_REQUESTS") + _OTHER_FILES
    if most is not None and needed > most:
        logger.warning(
            "Up to %d connections to proxies may be kept open, but this process may open only %d "
            "files (ulimit -n): downloads would fail; set SMOOTHPOOL_MAX_IDLE_CONNECTIONS to %d "
            "or less, or SMOOTHPOOL_CONNECTION_CLOSE, or raise the limit (docs/connections.md)",
            kept,
            most,
            max(1, most // 2),
        )


def open_files() -> int | None:
    """Return how many files this process may open, None where there is no limit to be read."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def check_asyncio(strategy: str) -> None:
    """Refuse a Redis strategy where asyncio cannot run (a non-asyncio reactor)."""
    if not is_asyncio_available():
        raise SettingsError(
            f"SMOOTHPOOL_STRATEGY = {strategy!r} needs asyncio, which the reactor in "
            "TWISTED_REACTOR does not run; accepted: "
            '"twisted.internet.asyncioreactor.AsyncioSelectorReactor" (Scrapy\'s default), '
            "or TWISTED_REACTOR_ENABLED = False"
        )


def warn_timeout(settings: BaseSettings) -> None:
    """Warn when one hanging proxy would hold a place for long."""
    timeout = settings.getfloat("DOWNLOAD_TIMEOUT")
    if timeout > _SLOW_TIMEOUT:
        logger.warning(
            "DOWNLOAD_TIMEOUT is %g s: a proxy that accepts and never answers holds one of "
            "CONCURRENT_REQUESTS for that long each time; 15 to 30 s suits a proxy pool",
            timeout,
        )
