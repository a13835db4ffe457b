"""Spiders that the admission tests run: they check proxies while a crawl is under way."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import scrapy
from scrapy.utils.asyncio import is_asyncio_available, sleep
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import CancelledError, DeferredList

from scrapy_smoothpool.admission import Admission
from scrapy_smoothpool.checker import Checker
from scrapy_smoothpool.parsing import parse_proxies
from scrapy_smoothpool.policies import build_policy
from scrapy_smoothpool.pool import Assignment


class CheckingSpider(scrapy.Spider):
    """Check each (line, URL) of the job, all at once."""

    name = "checking"

    def __init__(self, job: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job: dict[str, Any] = json.loads(Path(job).read_text())

    def checker(self) -> Checker:
        return Checker(
            self.crawler,
            build_policy(self.settings.get("POLICY"), self.crawler),
            timeout=self.job["timeout"],
            concurrency=self.job.get("concurrency", 100),
        )

    def write(self, result: dict[str, Any]) -> None:
        Path(self.job["result"]).write_text(json.dumps(result))

    async def start(self):
        checker = self.checker()
        before = dict(self.crawler.stats.get_stats())
        found: list[dict[str, Any]] = []

        async def one(line: str, url: str) -> None:
            proxy = parse_proxies(line)[0]
            began = time.monotonic()
            evidence = await checker.check(proxy, url)
            found.append(
                {
                    "proxy": line,
                    "url": url,
                    "outcome": evidence.outcome,
                    "answered": evidence.answered,
                    "login": evidence.login,
                    "site": evidence.site,
                    "why": evidence.why,
                    "seconds": time.monotonic() - began,
                }
            )

        jobs = [deferred_from_coro(one(*job)) for job in self.job["checks"]]
        await maybe_deferred_to_future(DeferredList(jobs, fireOnOneErrback=True))
        after = dict(self.crawler.stats.get_stats())
        changed = [k for k in after if before.get(k) != after[k] and not k.startswith("log_count")]
        await checker.close()
        result = {"found": found, "stats": changed}
        self.write(result)
        return
        yield


class AdmissionSpider(CheckingSpider):
    """Run the admission over a pool that is a list, until each was reported once, or for a time."""

    name = "admission"

    async def start(self):
        lines = self.job["lines"]
        pool = ListPool([parse_proxies(line)[0] for line in lines])
        checker = self.checker()
        admission = Admission(pool, checker.check, concurrency=self.job["concurrency"])
        pool.admission = admission
        began = time.monotonic()
        admission.start(self.job["url"])
        admission.start(self.job["url"])
        if "page" in self.job:
            yield scrapy.Request(self.job["page"], callback=self.page)
        end = began + self.job.get("seconds", 60)
        while len(pool.reports) < len(lines) and time.monotonic() < end:
            await sleep(0.02)
        checked = time.monotonic()
        await sleep(self.job.get("linger", 0.1))
        self.logger.info("all is checked")
        stopping = time.monotonic()
        await admission.stop()
        await checker.close()
        stopped = time.monotonic()
        # A turn for what was cancelled.
        await sleep(0.05)
        tasks = asyncio.all_tasks() if is_asyncio_available() else set()
        result = {
            "reports": [[i, e.outcome, e.answered, e.why, t - began] for i, e, t in pool.reports],
            "seconds": checked - began,
            "stop_seconds": stopped - stopping,
            "most": pool.most,
            "asked": pool.asked,
            "page": getattr(self, "page_after", 0) - began,
            "tasks": [str(t) for t in tasks if "scrapy_smoothpool" in str(t)],
        }
        self.write(result)

    def page(self, response):
        self.page_after = time.monotonic()


class ListPool:
    """Leases each proxy once."""

    def __init__(self, proxies) -> None:
        self.proxies = {proxy.id: proxy for proxy in proxies}
        self.due = list(self.proxies)
        self.reports: list[tuple[str, Any, float]] = []
        self.most = 0
        self.asked = 0
        self.admission: Admission | None = None

    def take_probes(self, most):
        self.asked += 1
        taken, self.due = self.due[:most], self.due[most:]
        return [Assignment(proxy_id, 1, self.proxies[proxy_id].url) for proxy_id in taken]

    def checked(self, proxy_id, epoch, evidence):
        self.most = max(self.most, self.admission.running)
        self.reports.append((proxy_id, evidence, time.monotonic()))

    def proxy(self, proxy_id):
        return self.proxies.get(proxy_id)


class StubbornHandler:
    """A download handler that neither ends nor lets itself be cancelled, for three seconds."""

    lazy = True

    async def download_request(self, request):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try:
                await sleep(0.2)
            except (asyncio.CancelledError, CancelledError):
                continue
        raise RuntimeError("too late, about user:secret")

    async def close(self) -> None:
        pass


class WantsBody:
    """Takes an empty body for a ban, as the policy that comes with scrapy-rotating-proxies."""

    def response_is_ban(self, request, response):
        return not response.body
