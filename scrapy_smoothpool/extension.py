"""The companion: the pool's life, from the list to the closing table.

It reads and checks the settings, builds the pool, opens it before the first
request, books outcomes and applies what follows from them (penalty, ejection,
return), and reports at close. The middleware calls it directly: Scrapy's
signals swallow errors and cannot await Redis. Signals only tell others.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from typing import TYPE_CHECKING, Any, Self, cast

from scrapy import signals as scrapy_signals
from scrapy.exceptions import CloseSpider, NotConfigured
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import load_object

from . import checks, signals, sources
from . import stats as names
from .exceptions import SettingsError, SmoothPoolError
from .health import Health
from .outcome import Outcome, OutcomePolicy
from .pool import Pool, State
from .report import closing_table
from .settings import OnEmpty, Settings
from .stats import Stats
from .strategies.base import StrategyOptions
from .strategies.registry import find_strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .proxy import Proxy

logger = logging.getLogger(__name__)

FINISH_EXHAUSTED = "smoothpool_exhausted"
"""finish_reason of a crawl that ``SMOOTHPOOL_ON_EMPTY = "close"`` ended."""
FINISH_FAILED = "smoothpool_failed"
"""finish_reason of a crawl whose pool could not be opened; no request went out."""

# The extension of a crawler, as an attribute of the crawler: it lives exactly as long, and
# two crawlers in one process share nothing.
_ATTRIBUTE = "_smoothpool_extension"


def get_pool(crawler: Crawler) -> Pool:
    """Return the pool of a crawler.

    Raises :exc:`~scrapy_smoothpool.exceptions.SmoothPoolError` when it has none.
    """
    extension = getattr(crawler, _ATTRIBUTE, None)
    if extension is None:
        raise SmoothPoolError("this crawler has no pool: SmoothPoolMiddleware is not enabled")
    return cast("SmoothPoolExtension", extension).pool


class SmoothPoolExtension:
    """Owns the pool of one crawler.

    Enabled in ``EXTENSIONS`` or brought up by the middleware; either way there
    is one per crawler.
    """

    def __init__(self, crawler: Crawler, settings: Settings) -> None:
        self.crawler = crawler
        self.settings = settings
        self.run = secrets.token_hex(8)
        assert crawler.stats is not None
        self.stats = Stats(crawler.stats)
        self.policy: Any = _policy(settings.outcome_policy)
        self.pool = self._build_pool()
        self._exhausted = False
        self._closing: object = None
        setattr(crawler, _ATTRIBUTE, self)
        crawler.signals.connect(self._spider_opened, signal=scrapy_signals.spider_opened)
        crawler.signals.connect(self._spider_closed, signal=scrapy_signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the extension, refusing whatever could let a request out unproxied."""
        settings = Settings.from_scrapy(crawler.settings)
        if not settings.enabled:
            raise NotConfigured("SMOOTHPOOL_ENABLED is False: requests go out without the pool")
        if not checks.has_middleware(crawler.settings):
            raise SettingsError(
                "SmoothPoolExtension is enabled without SmoothPoolMiddleware, so no request "
                "would get a proxy (a spider's custom_settings replaces the project's "
                "DOWNLOADER_MIDDLEWARES); accepted: DOWNLOADER_MIDDLEWARES with "
                f'{{"scrapy_smoothpool.SmoothPoolMiddleware": {checks.ORDER}}}, or '
                'ADDONS = {"scrapy_smoothpool.Addon": 500}, which survives custom_settings'
            )
        return cls(crawler, settings)

    @classmethod
    def of(cls, crawler: Crawler) -> SmoothPoolExtension:
        """Return the crawler's extension, bringing one up if ``EXTENSIONS`` has none."""
        found = getattr(crawler, _ATTRIBUTE, None)
        return cast("SmoothPoolExtension", found) if found else cls.from_crawler(crawler)

    def _build_pool(self) -> Pool:
        own = self.settings
        strategy = find_strategy(own.strategy).from_options(
            StrategyOptions(
                pool=own.pool,
                key_prefix=own.key_prefix,
                redis_url=own.redis_url,
                start_count=own.start_count,
                max_fails=own.max_fails,
                penalty=own.penalty,
                weight_scale=own.weight_scale,
            )
        )
        proxies = sources.load(own.proxies, own.proxies_file)
        if strategy.shared:
            checks.check_asyncio(str(own.strategy))
        elif proxies is None:
            raise SettingsError(
                "neither SMOOTHPOOL_PROXIES nor SMOOTHPOOL_PROXIES_FILE is set, and "
                f"SMOOTHPOOL_STRATEGY = {own.strategy!r} has no shared pool to join; accepted: "
                'SMOOTHPOOL_PROXIES = ["http://user:pass@host:port", …] or the path of a file'
            )
        elif own.redis_url:
            logger.warning(
                "SMOOTHPOOL_REDIS_URL is set, but SMOOTHPOOL_STRATEGY = %r keeps its state in "
                'this process; "least_used" shares a pool through Redis',
                own.strategy,
            )
        if proxies is not None:
            self._accept(proxies)
            if own.shuffle:
                proxies = sources.shuffled(proxies, random.Random())
        checks.warn_timeout(self.crawler.settings)
        strategy.check(proxies or ())
        health = Health(
            eject_after=own.eject_after,
            eject_time=own.eject_time,
            max_percent=own.eject_max_percent,
            clock=time.monotonic,
        )
        return Pool(
            own.pool,
            strategy,
            health,
            proxies,
            on_restored=self._restored,
            accept=self._accept,
        )

    def _accept(self, proxies: Sequence[Proxy]) -> None:
        checks.check_logins(self.crawler.settings, proxies)
        checks.check_handlers(self.crawler.settings, proxies)

    # The crawl's beginning and end

    async def _spider_opened(self, spider: Spider) -> None:
        try:
            await self.pool.open()
        except Exception as error:
            known = isinstance(error, SmoothPoolError)
            logger.error(
                "Pool %r could not be opened, so no request may go out: %s",
                self.pool.name,
                error,
                exc_info=not known,
            )
            # Any other exception would only be logged, and the crawl would run.
            raise CloseSpider(FINISH_FAILED) from None
        logger.info("%s", self._first_line())

    def _first_line(self) -> str:
        views = self.pool.snapshot()
        weights = sorted({view.weight for view in views})
        spread = "no weights"
        if weights:
            spread = f"weight {weights[0]}" + (f" to {weights[-1]}" if len(weights) > 1 else "")
        return (
            f"Pool {self.pool.name!r}: {self.settings.strategy} over {len(views)} proxies, "
            f"{spread}; {self.pool.strategy.describe()}"
        )

    async def _spider_closed(self, spider: Spider) -> None:
        if self.pool.state is State.OPEN:
            views = self.pool.snapshot()
            self.stats.final(views, per_proxy=self.settings.stats_per_proxy)
            logger.info("Pool %r at close:\n%s", self.pool.name, closing_table(views))
        await self.pool.close()

    # What the middleware reports

    def report(
        self,
        request: Request,
        assigned: tuple[str, int],
        *,
        response: Response | None = None,
        exception: BaseException | None = None,
    ) -> Outcome:
        """Classify the end of a download, book it on its proxy, and return the outcome."""
        outcome = self._classify(request, response, exception)
        proxy_id, epoch = assigned
        result = self.pool.report(proxy_id, epoch, outcome)
        self.stats.outcome(outcome)
        if result.stale:
            self.stats.inc(names.STALE)
        if result.penalty:
            self.stats.inc(names.PENALTIES)
        self.send(
            signals.proxy_outcome,
            request=request,
            proxy_id=proxy_id,
            outcome=outcome,
            response=response,
            exception=exception,
        )
        if result.ejected_for is not None:
            self._ejected(proxy_id, outcome, result.ejected_for)
        return outcome

    def _classify(
        self, request: Request, response: Response | None, exception: BaseException | None
    ) -> Outcome:
        try:
            if response is not None:
                return Outcome(self.policy.classify_response(request, response))
            return Outcome(self.policy.classify_exception(request, exception))
        except Exception:
            logger.exception("SMOOTHPOOL_OUTCOME_POLICY failed on %s; taken as neutral", request)
            return Outcome.NEUTRAL

    def _ejected(self, proxy_id: str, reason: Outcome, duration: float) -> None:
        self.stats.inc(names.EJECTIONS)
        logger.warning(
            "Proxy %s is out for %g s: %d failures in a row, the last a %s (%d of %d are out)",
            proxy_id,
            duration,
            self.settings.eject_after,
            reason.value,
            self.pool.out,
            len(self.pool),
        )
        self.send(signals.proxy_ejected, proxy_id=proxy_id, reason=reason, duration=duration)

    def _restored(self, proxy_id: str) -> None:
        self.stats.inc(names.RESTORATIONS)
        logger.info("Proxy %s may be tried again: its time out is over", proxy_id)
        self.send(signals.proxy_restored, proxy_id=proxy_id)

    def send(self, signal: object, **arguments: Any) -> None:
        """Tell whoever listens."""
        self.crawler.signals.send_catch_log(signal, spider=self.crawler.spider, **arguments)

    # Empty pools

    def exhausted(self, reason: str) -> None:
        """Note that a request found no proxy: say so once, and close if that was chosen."""
        if not self._exhausted:
            self._exhausted = True
            logger.warning(
                "Pool %r has no proxy for a request: %s (SMOOTHPOOL_ON_EMPTY = %r)",
                self.pool.name,
                reason,
                self.settings.on_empty.value,
            )
            self.send(signals.pool_exhausted, reason=reason)
        if self.settings.on_empty is OnEmpty.CLOSE and self._closing is None:
            assert self.crawler.engine is not None
            # As a task of its own: awaited inside process_request it would wait for itself.
            self._closing = deferred_from_coro(
                self.crawler.engine.close_spider_async(reason=FINISH_EXHAUSTED)
            )

    def available(self) -> None:
        """Note that a request found a proxy again."""
        if self._exhausted:
            self._exhausted = False
            logger.info("Pool %r has a proxy again", self.pool.name)


def _policy(value: Any) -> object:
    if value is None:
        return OutcomePolicy()
    accepted = "the path of a class with classify_response and classify_exception"
    try:
        cls = load_object(value)
    except (ImportError, NameError, AttributeError, ValueError, TypeError) as error:
        raise SettingsError(
            f"SMOOTHPOOL_OUTCOME_POLICY is {value!r}, which cannot be imported ({error}); "
            f"accepted: {accepted}"
        ) from None
    if not all(hasattr(cls, name) for name in ("classify_response", "classify_exception")):
        raise SettingsError(f"SMOOTHPOOL_OUTCOME_POLICY is {value!r}; accepted: {accepted}")
    return cls() if isinstance(cls, type) else cls
