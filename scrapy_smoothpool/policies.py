"""The policy of a crawl: the default one, a class of the user's, or methods of the spider.

``SMOOTHPOOL_OUTCOME_POLICY`` names either an
:class:`~scrapy_smoothpool.OutcomePolicy` (``classify_response``,
``classify_exception``), or a class that only knows bans, as those written for
scrapy-rotating-proxies do::

    class MyPolicy:
        def response_is_ban(self, request, response):
            return b"Access denied" in response.body or None

        def exception_is_ban(self, request, exception):
            return None

True says that the proxy is banned, False that it is not, None that the default
policy decides. A spider's methods of these names are asked before the class's.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol, cast

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from .exceptions import SettingsError
from .failures import Fault, fault_of
from .outcome import Outcome, OutcomePolicy, is_tunnelled

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)

_NAME = "SMOOTHPOOL_OUTCOME_POLICY"
_ACCEPTED = (
    "the path of a class with classify_response and classify_exception, or with response_is_ban "
    "or exception_is_ban"
)
_CLASSIFY = ("classify_response", "classify_exception")
_IS_BAN = ("response_is_ban", "exception_is_ban")


class Policy(Protocol):
    """What turns a response or an exception into an :class:`~scrapy_smoothpool.Outcome`."""

    def classify_response(self, request: Request, response: Response) -> Outcome:
        """Return what *response* says of its proxy."""

    def classify_exception(self, request: Request, exception: BaseException) -> Outcome:
        """Return what a download that raised *exception* says of its proxy."""


def build_policy(setting: object, crawler: Crawler) -> Policy:
    """Return the policy of *crawler*.

    :param setting: the value of ``SMOOTHPOOL_OUTCOME_POLICY``, None for the default.

    Raises :exc:`~scrapy_smoothpool.exceptions.SettingsError` for whatever cannot
    be used; a class's ``from_crawler`` is honoured.
    """
    given = None if setting is None else _load(setting, crawler)
    spider = crawler.spider or crawler.spidercls
    asked = [name for name in _IS_BAN if _has(given, name) or _has(spider, name)]
    _refuse_async(f"{_NAME} is {setting!r}, whose", given, (*_CLASSIFY, *_IS_BAN))
    _refuse_async(f"the spider {crawler.spidercls.__name__}, whose", spider, _IS_BAN)
    policy = cast("Policy", given if _has(given, _CLASSIFY[0]) else OutcomePolicy())
    if asked:
        policy = BanPolicy(policy, given, crawler)
    if getattr(given, "wants_body", False) or "response_is_ban" in asked:
        policy = BodyPolicy(policy, crawler)
    return policy


class BanPolicy:
    """Asks whether it was a ban, and another policy for all that is not answered."""

    def __init__(self, base: Policy, given: object, crawler: Crawler) -> None:
        self._base = base
        self._given = given
        self._crawler = crawler

    def classify_response(self, request: Request, response: Response) -> Outcome:
        """Return the verdict on *response*; a refused login is none, whatever it looks like."""
        found = Outcome(self._base.classify_response(request, response))
        if found is Outcome.PROXY_ERROR:
            return found
        ban = self._ask("response_is_ban", request, response)
        if ban:
            return Outcome.BANNED
        if ban is None or not found.retry_elsewhere:
            return found
        return Outcome.SUCCESS if 200 <= response.status < 400 else Outcome.NEUTRAL

    def classify_exception(self, request: Request, exception: BaseException) -> Outcome:
        """Return the verdict on *exception*.

        The proxy's certain faults stay what they are, and so do this machine's,
        which rules such as "every exception is a ban" do not mean.
        """
        found = Outcome(self._base.classify_exception(request, exception))
        if found is Outcome.PROXY_ERROR:
            return found
        if fault_of(exception, tunnelled=is_tunnelled(request)) is Fault.LOCAL:
            return found
        ban = self._ask("exception_is_ban", request, exception)
        if ban:
            return Outcome.BANNED
        return found if ban is None else Outcome.NEUTRAL

    def _ask(self, name: str, request: Request, about: object) -> bool | None:
        # Not looked up once: in a shell the spider is not there yet when the policy is built.
        for judge in (self._crawler.spider, self._given):
            method = getattr(judge, name, None)
            if callable(method):
                answer = method(request, about)
                return None if answer is None else bool(answer)
        return None


class BodyPolicy:
    """Shows another policy the body as a spider would see it."""

    def __init__(self, base: Policy, crawler: Crawler) -> None:
        self._base = base
        self._decoder = _decoder(crawler)

    def classify_response(self, request: Request, response: Response) -> Outcome:
        """Return the verdict on a decoded copy; *response* itself is left as it is."""
        return self._base.classify_response(request, self._decoded(request, response))

    def classify_exception(self, request: Request, exception: BaseException) -> Outcome:
        """Return the other policy's verdict."""
        return self._base.classify_exception(request, exception)

    def _decoded(self, request: Request, response: Response) -> Response:
        # A copy in any case: the decoder changes the headers of what it is given.
        try:
            found = cast("Response", self._decoder.process_response(request, response.copy()))
        except Exception as error:
            # Too large, or broken; Scrapy's own middleware will meet that, too, and say so.
            logger.debug("%s is judged compressed: %r", response, error)
            found = response.copy()
        if found.request is None:
            found.request = request
        return found


def _decoder(crawler: Crawler) -> HttpCompressionMiddleware:
    """Return Scrapy's middleware as a decoder: it counts nothing and warns of no size."""
    limit = crawler.settings.getint("DOWNLOAD_MAXSIZE")
    settings = Settings({"DOWNLOAD_MAXSIZE": limit, "DOWNLOAD_WARNSIZE": 0})
    stand_in = SimpleNamespace(stats=None, settings=settings, signals=crawler.signals)
    return HttpCompressionMiddleware(crawler=cast("Crawler", stand_in))


def _load(setting: object, crawler: Crawler) -> object:
    try:
        found = load_object(setting) if isinstance(setting, str) else setting
    except (ImportError, NameError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"{_NAME} is {setting!r}, which cannot be imported ({error}); accepted: {_ACCEPTED}"
        ) from None
    missing = [name for name in _CLASSIFY if not _has(found, name)]
    if len(missing) == 1:
        raise SettingsError(f"{_NAME} is {setting!r}, without {missing[0]}; accepted: {_ACCEPTED}")
    if missing and not any(_has(found, name) for name in _IS_BAN):
        raise SettingsError(f"{_NAME} is {setting!r}; accepted: {_ACCEPTED}")
    if not inspect.isclass(found):
        return found
    try:
        built: object = build_from_crawler(found, crawler)
    except Exception as error:
        # NotConfigured too: it would only be logged, and the crawl would run without proxies.
        raise SettingsError(
            f"{_NAME} is {setting!r}, which cannot be built ({type(error).__name__}: {error}); "
            f"accepted: {_ACCEPTED}, made by from_crawler(crawler) or without arguments"
        ) from error
    return built


def _has(found: object, name: str) -> bool:
    return callable(getattr(found, name, None))


def _refuse_async(whose: str, found: object, names: Iterable[str]) -> None:
    """Refuse coroutines, which would all read as "yes"."""
    for name in names:
        if inspect.iscoroutinefunction(getattr(found, name, None)):
            raise SettingsError(f"{whose} {name} is async; accepted: a plain method")
