"""A long crawl of a benchmark, in a process of its own: prints its memory at given requests.

Not run by hand: `memory.py` starts it with its settings as JSON. There is no I/O: the handler
answers, or fails as a proxy would, by which login a request comes with. Requests go to many sites,
some to each in a row; the list is replaced in part now and then, by new sessions at one gateway.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import itertools
import os
import subprocess
from pathlib import Path
from zlib import crc32

import scrapy
from scrapy.exceptions import CloseSpider
from scrapy.http import HtmlResponse
from twisted.internet.error import ConnectionRefusedError
from worker import CycleMiddleware, Meter, NullHandler, main

from scrapy_smoothpool import get_pool, parse_proxies

PHASE = 3_000
"""Requests after which those that are banned for a while change."""
AHEAD = 100
"""Requests under way, or waiting to be."""
BURST = 8
"""Requests to a site in a row."""


def resident():
    """Return the resident memory of this process, bytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # not Linux
        found = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True)
        return int(found.stdout) * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def sessions(first, number):
    """Return the lines of so many sessions at one gateway."""
    return [f"http://session-{n}:secret@gateway.test:8000" for n in range(first, first + number)]


class FaultyHandler(NullHandler):
    """Answers each request, or does to it what the proxy of its login does."""

    crawled = 0
    samples: dict[int, int]

    def __init__(self, crawler):
        type(self).crawled, type(self).samples = 0, {}
        self.wanted = set(crawler.settings.getlist("BENCH_SAMPLES"))

    async def download_request(self, request):
        cls = type(self)
        cls.crawled += 1
        if cls.crawled in self.wanted:
            gc.collect()
            cls.samples[cls.crawled] = resident()
        response = await super().download_request(request)
        login = base64.b64decode(request.headers.get("Proxy-Authorization", b"Basic ")[6:])
        kind = crc32(login) % 100
        if kind < 3:
            raise ConnectionRefusedError
        status = 200
        if kind < 8 and (cls.crawled // PHASE + kind) % 3 == 0:
            status = 403
        elif kind == 8:
            status = 503
        elif kind == 9:
            status = 404
        return response.replace(status=status, cls=HtmlResponse)


class ReplaceableCycle(CycleMiddleware):
    """The control: knows nothing but a list, which can be replaced."""

    lists: itertools.cycle

    def __init__(self, proxies):
        self.replace(proxies)
        self.next = lambda: next(type(self).lists)

    @classmethod
    def replace(cls, proxies):
        cls.lists = itertools.cycle(proxies)


class LongSpider(scrapy.Spider):
    name = "long"
    ended = 0

    async def start(self):
        settings = self.settings
        sites, every = settings.getint("BENCH_SITES"), settings.getint("BENCH_RELOAD")
        last = max(settings.getlist("BENCH_SAMPLES"))
        for number in itertools.count():
            # Scrapy takes start requests without end: they would be the memory that grows.
            # By what has ended, or the retries would pile up.
            while number - self.ended > AHEAD:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            if FaultyHandler.crawled >= last:
                return
            if every and number and number % every == 0:
                await self.reload(number // every)
            site = number // BURST % sites
            yield scrapy.Request(
                f"http://site{site}.test/{number}",
                dont_filter=True,
                errback=self.failed,
                meta={"handle_httpstatus_all": False},
            )

    async def reload(self, times):
        """Replace a tenth of the sessions by new ones."""
        number = self.settings.getint("BENCH_SESSIONS")
        lines = sessions(times * (number // 10), number)
        if self.settings["BENCH_CONTROL"]:
            parse_proxies("\n".join(lines))
            ReplaceableCycle.replace(lines)
        else:
            await get_pool(self.crawler).reload(parse_proxies("\n".join(lines)))

    def parse(self, response):
        self.ended += 1

    def failed(self, failure):
        self.ended += 1
        if failure.check(CloseSpider):
            raise failure.value


class LongMeter(Meter):
    def figures(self):
        stats = self.crawler.stats.get_stats()
        told = ("retries", "ejections", "restorations", "outcome/proxy_error", "outcome/banned")
        return {
            **super().figures(),
            "samples": FaultyHandler.samples,
            "crawled": FaultyHandler.crawled,
            **{name: stats.get(f"smoothpool/{name}", 0) for name in told},
        }


if __name__ == "__main__":
    main(LongSpider, LongMeter, FaultyHandler)
