"""The companion: the pool's life, from the list to the closing table.

It reads and checks the settings, builds the pool, opens it before the first
request, books outcomes and applies what follows from them (penalty, ejection,
return), and reports at close. The middleware calls it directly: Scrapy's
signals swallow errors and cannot await Redis. Signals only tell others.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from scrapy import signals as scrapy_signals
from scrapy.exceptions import CloseSpider, NotConfigured
from scrapy.utils.asyncio import create_looping_call, is_asyncio_available, sleep
from scrapy.utils.defer import deferred_from_coro

from . import checks, signals, sources
from . import stats as names
from .admission import Admission, check_url
from .checker import Checker
from .evidence import Classifier
from .exceptions import SettingsError, SmoothPoolError
from .health import Health
from .judge import NOTHING, Evidence, Judge, Report, Return
from .local_judge import LocalJudge
from .logs import any_handler_for
from .outcome import Outcome
from .policies import build_policy
from .pool import Pool, State
from .report import Summary, closing_table
from .settings import OnEmpty, OnPanic, OnRedisDown, Scope, Settings
from .shared_judge import SharedJudge, health_rules
from .stats import Stats
from .strategies.base import Strategy, StrategyOptions
from .strategies.registry import find_strategy
from .turns import Stopped, Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .meta import Assigned
    from .proxy import Proxy

logger = logging.getLogger(__name__)

FINISH_EXHAUSTED = "smoothpool_exhausted"
"""finish_reason of a crawl that ``SMOOTHPOOL_ON_EMPTY = "close"`` ended."""
FINISH_REDIS_DOWN = "smoothpool_redis_down"
"""finish_reason of a crawl that ``SMOOTHPOOL_ON_REDIS_DOWN = "close"`` ended."""
FINISH_FAILED = "smoothpool_failed"
"""finish_reason of a crawl whose pool could not be opened; no request went out."""

_WATCH = 0.25
"""Seconds between two looks whether a crawl that is being opened is still wanted."""

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
        self.policy = build_policy(settings.outcome_policy, crawler)
        self._checker: Checker | None = None
        self._handlers_checked = False
        self._turns = Turns(sleep, _aside)
        self.admission: Admission | None = None
        self.classifier = Classifier(self.policy, self.stats)
        self.pool = self._build_pool()
        if settings.admission:
            self._checker = Checker(
                crawler,
                self.policy,
                timeout=settings.admission_timeout,
                concurrency=settings.admission_concurrency,
            )
            self.admission = Admission(
                self.pool, self._checker.check, concurrency=settings.admission_concurrency
            )
        self._ejections = Summary(logger, "ejections")
        self._panics = Summary(logger, "panics", most=1)
        self.is_heard = partial(signals.has_receivers, crawler.signals)
        self.dry = False
        """Whether the last request to want a proxy found none."""
        self._flushing = create_looping_call(self.stats.flush)
        self.debugging = True
        """Whether anybody sees this package's debug lines; known when the spider opens."""
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
                redis_params=own.redis_params,
                redis_setting=own.redis_setting,
                redis_start_timeout=own.redis_start_timeout,
                carry_on=own.on_redis_down is OnRedisDown.LOCAL,
                start_count=own.start_count,
                look_ahead=own.look_ahead,
                max_fails=own.max_fails,
                penalty=own.penalty,
                weight_scale=own.weight_scale,
                admission=bool(own.admission),
                turns=self._turns,
            )
        )
        if own.scope is Scope.SITE and not strategy.by_site:
            raise SettingsError(
                f'SMOOTHPOOL_SCOPE is "site", but SMOOTHPOOL_STRATEGY = {own.strategy!r} keeps no '
                'sequence for each site; accepted: "pool", or SMOOTHPOOL_STRATEGY = "smooth_wrr"'
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
        elif own.redis_url and own.redis_setting == "SMOOTHPOOL_REDIS_URL":
            logger.warning(
                "SMOOTHPOOL_REDIS_URL is set, but SMOOTHPOOL_STRATEGY = %r keeps its state in "
                'this process; "least_used" shares a pool through Redis',
                own.strategy,
            )
        if proxies is not None:
            if not any(proxy.weight for proxy in proxies):
                raise SettingsError(
                    "every proxy of the list has weight 0, which is drained: none would ever be "
                    "used; accepted: a weight of at least 1 for one of them"
                )
            self._accept(proxies)
            if own.shuffle:
                proxies = sources.shuffled(proxies, random.Random())
        for name, wanted in (
            ("SMOOTHPOOL_CONNECTION_CLOSE", own.connection_close),
            ("SMOOTHPOOL_MAX_IDLE_CONNECTIONS", own.max_idle_connections),
        ):
            if wanted:
                checks.check_closing(self.crawler.settings, name)
        checks.warn_timeout(self.crawler.settings)
        if proxies is not None:
            strategy.check(proxies)
        strategy.reach()
        return Pool(
            own.pool,
            strategy,
            self._build_judge(strategy),
            proxies,
            accept=self._accept,
            turns=self._turns,
        )

    def _build_judge(self, strategy: Strategy) -> Judge:
        own = self.settings
        # The outcome of a probe comes within the download's time, and that of its slot.
        probe_timeout = 30 + 2 * self.crawler.settings.getfloat("DOWNLOAD_TIMEOUT")
        if own.admission and own.scope is Scope.POOL:  # then no request ever probes
            probe_timeout = 30 + own.admission_timeout
        wait_in_panic = own.on_panic is OnPanic.WAIT
        if strategy.verdicts is not None:
            return SharedJudge(
                strategy.verdicts,
                health_rules(
                    eject_after=own.eject_after,
                    eject_time=own.eject_time,
                    eject_time_max=own.eject_time_max,
                    max_percent=own.eject_max_percent,
                ),
                probe_timeout=probe_timeout,
                clock=time.monotonic,
                jitter=_jitter,
                wait_in_panic=wait_in_panic,
                admission=bool(own.admission),
                on_report=self._concluded,
                on_return=self._returned,
            )
        make_health = partial(
            Health,
            eject_after=own.eject_after,
            eject_time=own.eject_time,
            eject_time_max=own.eject_time_max,
            max_percent=own.eject_max_percent,
            probe_timeout=probe_timeout,
            clock=time.monotonic,
            jitter=_jitter if strategy.shared else lambda: 1.0,
        )
        return LocalJudge(
            strategy,
            make_health,
            time.monotonic,
            by_site=own.scope is Scope.SITE,
            wait_in_panic=wait_in_panic,
            admission=bool(own.admission),
            on_return=self._returned,
        )

    def _accept(self, proxies: Sequence[Proxy]) -> None:
        checks.check_logins(self.crawler.settings, proxies)
        # A long list comes in pieces.
        checks.check_handlers(self.crawler.settings, proxies, warn=not self._handlers_checked)
        self._handlers_checked = True
        closing = next((proxy.id for proxy in proxies if proxy.close), None)
        if closing is not None:
            checks.check_closing(self.crawler.settings, f"close=yes of {closing}")

    # The crawl's beginning and end

    async def _spider_opened(self, spider: Spider) -> None:
        # Opening may wait for Redis. Scrapy sends no signal when a crawl is stopped meanwhile.
        watch = create_looping_call(self._stop_opening)
        if self.crawler.crawling:
            watch.start(_WATCH)
        try:
            await self.pool.open()
        except Stopped:
            logger.info("The crawl was stopped before pool %s was open", self.label)
            raise CloseSpider("shutdown") from None
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
        finally:
            if watch.running:
                watch.stop()
        self.debugging = any_handler_for(logger, logging.DEBUG)
        self._flushing.start(names.FLUSH)
        logger.info("%s", self._first_line())
        if not self.settings.connection_close:
            kept = len(self.pool) - len(self.pool.closing)
            bound = self.settings.max_idle_connections or kept
            checks.warn_descriptors(self.crawler.settings, min(kept, bound))

    def _stop_opening(self) -> None:
        if not self.crawler.crawling:
            self._turns.stop()

    @property
    def label(self) -> str:
        """The pool's name and the spider's, for the log: a process may run several."""
        spider = self.crawler.spider
        return f"{self.pool.name!r}" + (f" (spider {spider.name!r})" if spider else "")

    def _first_line(self) -> str:
        views = self.pool.snapshot()
        weights = sorted({view.weight for view in views})
        spread = "no weights"
        if weights:
            spread = f"weight {weights[0]}" + (f" to {weights[-1]}" if len(weights) > 1 else "")
        return (
            f"Pool {self.label}: {self.settings.strategy} over {len(views)} "
            f"{'proxy' if len(views) == 1 else 'proxies'}, {spread}; "
            f"{self.pool.strategy.describe()}"
        )

    async def _spider_closed(self, spider: Spider) -> None:
        if self._flushing.running:
            self._flushing.stop()
        try:
            if self.admission is not None and self._checker is not None:
                await self.admission.stop()
                await self._checker.close()
            self.stats.flush()
            if self.pool.state is State.OPEN:
                await self.pool.refresh()
                views = self.pool.snapshot()
                self.stats.final(views, per_proxy=self.settings.stats_per_proxy)
                logger.info("Pool %s at close:\n%s", self.label, closing_table(views))
        finally:
            self._ejections.close()
            await self.pool.close()

    def admit(self, request: Request) -> None:
        """See to it that proxies are checked, by the first request's site unless one is set."""
        if self.admission is not None:
            self.admission.start(check_url(self.settings.admission, request.url))

    @property
    def checking(self) -> bool:
        """Whether some proxies were not checked yet, so that an empty pool means little."""
        return self.admission is not None and self.admission.first_round

    # What the middleware reports

    def report(
        self,
        request: Request,
        assigned: Assigned,
        *,
        response: Response | None = None,
        exception: BaseException | None = None,
    ) -> Outcome:
        """Classify the end of a download, book it on its proxy, and return the outcome."""
        proxy_id, epoch, site = assigned
        evidence = self.classifier.evidence(request, response, exception, site)
        outcome = evidence.outcome
        result = self.pool.report(proxy_id, epoch, evidence)
        self.stats.outcomes[outcome] += 1
        if self.is_heard(signals.proxy_outcome):
            self.send(
                signals.proxy_outcome,
                request=request,
                proxy_id=proxy_id,
                outcome=outcome,
                response=response,
                exception=exception,
            )
        if result is not None and result is not NOTHING:
            self._follow(proxy_id, evidence, result)
        return outcome

    def _concluded(self, proxy_id: str, evidence: Evidence, result: Report) -> None:
        """Take in what a shared pool decided, some time after the outcome."""
        if result is NOTHING or evidence.check:
            return  # the admission tells of its checks
        self.pool.concluded(proxy_id, result)
        self._follow(proxy_id, evidence, result)

    def _follow(self, proxy_id: str, evidence: Evidence, result: Report) -> None:
        """Tell of what an outcome led to; a shared pool's verdicts come a little later."""
        if result.stale:
            self.stats.inc(names.STALE)
        if result.blamed and evidence.outcome is Outcome.AMBIGUOUS:
            self.stats.inc(names.BLAMED)
        if result.penalty:
            self.stats.inc(names.PENALTIES)
        if result.panic:
            self._panicked(result.site)
        if result.ejected_for is not None:
            self._ejected(proxy_id, evidence, result)

    def _ejected(self, proxy_id: str, evidence: Evidence, result: Report) -> None:
        self.stats.inc(names.EJECTIONS)
        duration, count = result.ejected_for or 0.0, result.consecutive
        if evidence.login:
            self.stats.inc(names.LOGINS_REFUSED)
            logger.error(
                "Proxy %s refused its login (407) and is out for %.0f s: check its user name and "
                "password, and that its plan has not run out",
                proxy_id,
                duration,
            )
        else:
            self._ejections.warn(
                "Proxy %s is out%s for %.3g s after %s %s: %s (%d of %d are out%s)",
                proxy_id,
                _on(result.site),
                duration,
                f"{count} failures in a row, the last a" if count > 1 else "a",
                evidence.outcome.value,
                evidence.why,
                self.pool.out,
                len(self.pool),
                " everywhere" if result.site else "",
            )
        self.send(
            signals.proxy_ejected,
            proxy_id=proxy_id,
            reason=evidence.outcome,
            duration=duration,
            site=result.site,
        )

    def _panicked(self, site: str) -> None:
        self.stats.inc(names.PANICS)
        self._panics.warn(
            "Pool %s: hardly anything gets through%s, and no more proxies may be put out (%d of "
            "%d are); SMOOTHPOOL_ON_PANIC = %r until something succeeds",
            self.label,
            _on(site),
            self.pool.out,
            len(self.pool),
            self.settings.on_panic.value,
        )

    def _returned(self, back: Return) -> None:
        if back.admitted:
            self.stats.inc(names.ADMITTED)
            logger.debug("Proxy %s is admitted: it passed its check", back.proxy_id)
            return
        self.stats.inc(names.RESTORATIONS)
        logger.info(
            "Proxy %s may be used again%s: its probe got through", back.proxy_id, _on(back.site)
        )
        self.send(
            signals.proxy_restored,
            proxy_id=back.proxy_id,
            reason=back.reason,
            duration=back.duration,
            site=back.site,
        )

    def send(self, signal: object, **arguments: Any) -> None:
        """Tell whoever listens."""
        if self.is_heard(signal):
            self.crawler.signals.send_catch_log(signal, spider=self.crawler.spider, **arguments)

    # Empty pools

    def exhausted(self, reason: str) -> None:
        """Note that a request found no proxy: say so once, and close if that was chosen."""
        own = self.settings.on_empty
        self._ran_dry(reason, f"SMOOTHPOOL_ON_EMPTY = {own.value!r}")
        if own is OnEmpty.CLOSE:
            self._close(FINISH_EXHAUSTED)

    def redis_is_down(self, reason: str) -> None:
        """Note that Redis gave a request no proxy: say so once, and close if that was chosen."""
        own = self.settings.on_redis_down
        self._ran_dry(reason, f"SMOOTHPOOL_ON_REDIS_DOWN = {own.value!r}")
        if own is OnRedisDown.CLOSE:
            self._close(FINISH_REDIS_DOWN)

    def _ran_dry(self, reason: str, choice: str) -> None:
        if self.dry:
            return
        self.dry = True
        logger.warning("Pool %s has no proxy for a request: %s (%s)", self.label, reason, choice)
        self.send(signals.pool_exhausted, reason=reason, duration=self.pool.judge.next_due)

    def _close(self, reason: str) -> None:
        if self._closing is None:
            assert self.crawler.engine is not None
            # As a task of its own: awaited inside process_request it would wait for itself.
            self._closing = deferred_from_coro(
                self.crawler.engine.close_spider_async(reason=reason)
            )

    def available(self) -> None:
        """Note that a request found a proxy again."""
        self.dry = False
        logger.info("Pool %s has a proxy again", self.label)


def _on(site: str) -> str:
    return f" on {site}" if site else ""


async def _aside(function: Callable[[], Any]) -> Any:
    """Call a function in a thread, on whatever loop there is."""
    if is_asyncio_available():
        return await asyncio.to_thread(function)
    from twisted.internet.threads import deferToThread

    return await deferToThread(function)


def _jitter() -> float:
    """Up to a tenth longer, so that workers that share a pool do not probe in step."""
    return random.uniform(1.0, 1.1)
