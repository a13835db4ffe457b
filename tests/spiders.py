"""Spiders that the crawl tests run, each in a process of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import scrapy
from scrapy import signals
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.asyncio import sleep


class ListSpider(scrapy.Spider):
    """Fetch a list of requests and record what became of each."""

    name = "list"

    def __init__(self, job: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job: dict[str, Any] = json.loads(Path(job).read_text())
        self.arrived: list[dict[str, Any]] = []
        self.failed: list[dict[str, Any]] = []

    async def start(self):
        for request in self.job["requests"]:
            yield self.request(**request)

    def request(self, url: str, **kwargs: Any) -> scrapy.Request:
        kwargs.setdefault("dont_filter", True)
        return scrapy.Request(url, callback=self.parse, errback=self.failure, **kwargs)

    def parse(self, response):
        self.arrived.append(
            {
                "url": response.url,
                "status": response.status,
                "proxy": response.meta.get("smoothpool_proxy"),
                "meta": sorted(response.meta),
                "flags": response.flags,
                "tag": response.request.headers.get("X-Tag", b"").decode(),
            }
        )
        yield from self.follow(response)

    def follow(self, response):
        return ()

    def failure(self, failure):
        self.failed.append(
            {
                "url": failure.request.url,
                "error": failure.type.__name__,
                "message": failure.getErrorMessage(),
            }
        )


class ChainSpider(ListSpider):
    """Fetch the requests one after the other, each from the callback of the one before."""

    name = "chain"

    async def start(self):
        self.rest = list(reversed(self.job["requests"]))
        yield self.request(**self.rest.pop())

    def follow(self, response):
        if self.rest:
            yield self.request(**self.rest.pop())

    def failure(self, failure):
        super().failure(failure)
        yield from self.follow(None)


class _WaitersFirst:
    """Send the job's "first" requests and let them wait before anything else."""

    async def start(self):
        for url in self.job["first"]:
            yield self.request(url)
        await sleep(1.5)
        async for request in super().start():
            yield request


class WaitingListSpider(_WaitersFirst, ListSpider):
    name = "waiting_list"


class WaitingChainSpider(_WaitersFirst, ChainSpider):
    name = "waiting_chain"


class PrioritySpider(ListSpider):
    """Record what became of the requests' own attributes."""

    name = "priority"

    def parse(self, response):
        request = response.request
        self.arrived.append(
            {
                "url": request.url,
                "priority": request.priority,
                "dont_filter": request.dont_filter,
            }
        )


class LinksSpider(ListSpider):
    """Follow the links of every page."""

    name = "links"

    def follow(self, response):
        for href in response.css("a::attr(href)").getall():
            yield self.request(response.urljoin(href), dont_filter=False)


class CopyMetaSpider(ListSpider):
    """Request each page's next with ``meta=response.meta``, as careless spiders do."""

    name = "copymeta"

    def follow(self, response):
        following = self.job["next"].pop(0) if self.job["next"] else None
        if following:
            yield self.request(following, meta=response.meta)


class ClosingSpider(ListSpider):
    """Close the spider from the callback of a request whose URL holds the word "close"."""

    name = "closing"

    def follow(self, response):
        if "close" in response.url:
            raise scrapy.exceptions.CloseSpider("asked")
        return ()


class DownloadAsyncSpider(ListSpider):
    """Fetch everything by ``engine.download_async``."""

    name = "download_async"

    async def start(self):
        for request in self.job["requests"]:
            try:
                response = await self.crawler.engine.download_async(
                    scrapy.Request(callback=NO_CALLBACK, **request)
                )
            except Exception as error:
                self.failed.append(
                    {
                        "url": request["url"],
                        "error": type(error).__name__,
                        "message": str(error),
                    }
                )
            else:
                list(self.parse(response))
        return
        yield


class FilesSpider(ListSpider):
    """Hand the requests to a files pipeline."""

    name = "files"

    async def start(self):
        yield {"file_urls": [request["url"] for request in self.job["requests"]]}


class CustomSettingsSpider(ListSpider):
    """Replace the project's middlewares, as a spider's custom_settings may."""

    name = "custom"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {}}  # noqa: RUF012


class Recorder:
    """An extension that writes what happened to the job's result file."""

    def __init__(self, crawler):
        self.crawler = crawler
        self.signals: list[list[Any]] = []
        self.reason = None
        crawler.signals.connect(self.closed, signal=signals.spider_closed)
        crawler.signals.connect(self.write, signal=signals.engine_stopped)
        from scrapy_smoothpool import signals as ours

        self.assigned: list[list[str]] = []
        crawler.signals.connect(self.on_assigned, signal=ours.proxy_assigned)
        for name in ("proxy_ejected", "proxy_restored", "pool_exhausted"):
            handler = self.heard(name)
            crawler.signals.connect(handler, signal=getattr(ours, name), weak=False)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def on_assigned(self, request, proxy_id):
        self.assigned.append([request.url, proxy_id])

    def heard(self, name):
        def handler(proxy_id=None, reason=None):
            self.signals.append([name, proxy_id, str(reason)])

        return handler

    def closed(self, spider, reason):
        self.reason = reason

    def write(self):
        spider = self.crawler.spider
        if spider is None or not hasattr(spider, "job"):
            return
        result = {
            "stats": self.crawler.stats.get_stats(),
            "arrived": spider.arrived,
            "failed": spider.failed,
            "signals": self.signals,
            "assigned": self.assigned,
            "finish_reason": self.reason,
            # The same clock in all processes of a machine.
            "stopped": time.monotonic(),
        }
        Path(spider.job["result"]).write_text(json.dumps(result, default=str))


class DropsProxy:
    """Takes the proxy away after us."""

    def process_request(self, request):
        request.meta.pop("proxy", None)


class EmptiesProxy:
    def process_request(self, request):
        request.meta["proxy"] = ""


class ForgetfulPolicy:
    """Forgets to return anything."""

    def classify_response(self, request, response):
        pass

    def classify_exception(self, request, exception):
        pass
