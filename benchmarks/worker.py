"""One crawl of a benchmark, in a process of its own: prints what it cost as one line of JSON.

Not run by hand: other scripts start it with its settings as JSON. Measured is the processor time
from the spider's opening to its closing, so that imports, the list's parsing and the pool's
publishing are left out, and the longest gap between two turns of the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import scrapy
from scrapy import signals
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import HtmlResponse

from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.gathering import GatheredPicks
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.shared_pool import SharedPool

TICK = 0.005  # seconds between two looks at the clock


class NullHandler:
    """A download handler that does no I/O: engine and middlewares are all there is."""

    lazy = False

    def __init__(self, crawler):
        pass

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def download_request(self, request):
        await asyncio.sleep(0)
        return HtmlResponse(request.url, body=b"<p>nothing</p>", request=request)

    async def close(self):
        pass


class CycleMiddleware:
    """The least a rotation can do."""

    def __init__(self, proxies):
        self.next = itertools.cycle(proxies).__next__

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.settings.getlist("BENCH_PROXIES"))

    def process_request(self, request):
        request.meta["proxy"] = self.next()


class RandomMiddleware(CycleMiddleware):
    """What most tutorials do."""

    def __init__(self, proxies):
        self.next = lambda: random.choice(proxies)


class RawCallMiddleware:
    """What a pick through Redis costs whoever makes it: gathered, one call in flight."""

    def __init__(self, crawler):
        settings = crawler.settings
        connection = RedisConnection(settings["BENCH_REDIS_URL"])
        self.shared = SharedPool(connection, Keys("smoothpool", settings["BENCH_POOL"]))
        self.picks = GatheredPicks(self._fetch)
        self.url = settings.getlist("BENCH_PROXIES")[0]
        crawler.signals.connect(self.close, signal=signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def _fetch(self, number):
        return (await self.shared.pick_many(number)).members

    async def process_request(self, request):
        found = self.picks.take()
        if not isinstance(found, str):
            await found
        request.meta["proxy"] = self.url

    async def close(self):
        await self.shared.aclose()


class BenchSpider(scrapy.Spider):
    name = "bench"

    async def start(self):
        url = self.settings["BENCH_URL"]
        for number in range(self.settings.getint("BENCH_REQUESTS")):
            yield scrapy.Request(f"{url}?{number}", dont_filter=True)

    def parse(self, response):
        pass


class Meter:
    """Measures from the spider's opening to its closing."""

    def __init__(self, crawler):
        self.crawler = crawler
        self.gaps: list[float] = []
        crawler.signals.connect(self.opened, signal=signals.spider_opened)
        crawler.signals.connect(self.idle, signal=signals.spider_idle)
        crawler.signals.connect(self.closed, signal=signals.engine_stopped)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def opened(self, spider):
        # After the pool: handlers of spider_opened run in the order of the extensions.
        self.watch = asyncio.get_running_loop().create_task(self.look())
        self.cpu, self.wall = time.process_time(), time.monotonic()

    def idle(self, spider):
        self.cpu_end, self.wall_end = time.process_time(), time.monotonic()

    async def look(self):
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK)
            self.gaps.append(time.monotonic() - before - TICK)

    def closed(self):
        self.watch.cancel()
        print(json.dumps(self.figures()), flush=True)

    def figures(self) -> dict[str, Any]:
        stats = self.crawler.stats.get_stats()
        gaps = sorted(self.gaps) or [0.0]
        return {
            "cpu": self.cpu_end - self.cpu,
            "wall": self.wall_end - self.wall,
            "requests": stats.get("response_received_count", 0),
            "gap_max": gaps[-1],
            "gap_999": gaps[int(len(gaps) * 0.999)],
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }


def main(
    spider: type[scrapy.Spider] = BenchSpider,
    meter: type[Meter] = Meter,
    null_handler: type[NullHandler] = NullHandler,
) -> None:
    """Run the crawl that the first argument describes."""
    given: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    settings = {
        "LOG_LEVEL": "ERROR",
        "TELNETCONSOLE_ENABLED": False,
        "EXTENSIONS": {meter: 1_000},
        "MEMUSAGE_ENABLED": False,
        "CONCURRENT_REQUESTS": 16,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "DOWNLOAD_TIMEOUT": 15,
        **given,
    }
    if settings.pop("BENCH_NULL", False):
        settings["DOWNLOAD_HANDLERS"] = {"http": null_handler, "https": null_handler}
        # Else most of what is left is Scrapy starting 100 tasks for the items of each response.
        settings["CONCURRENT_ITEMS"] = 1
    process = AsyncCrawlerProcess(settings)
    process.crawl(spider)
    process.start()


if __name__ == "__main__":
    main()
