"""What the pool costs each request, where nothing else happens.

Measures: processor time per request with a download handler that does no I/O, so that only
Scrapy's engine and the middlewares are left. One process holds a crawler of each variant over the
same list and feeds them in turns, some hundred requests at a time at a concurrency of 16; a round
is one turn of each in random order, so whatever slows the machine slows all. Given is the median
of a turn's cost and, against the cycling middleware in the same round, the median and 95 %
interval (bootstrap) of the difference. For least_used the raw call is measured in the same rounds:
picks gathered from 16 tasks, with nothing of Scrapy.

Variants: cycle (itertools.cycle over the list), none (no middleware), smooth_wrr, least_used
(picks and outcomes over a local Redis).

Does not measure: downloads, start-up, TLS, failures, memory; the server's own time.

Usage: python benchmarks/middleware_path.py [--rounds N] [--requests N] [--proxies N …]
                                            [--variants V …] [--profile V] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "demo_spider"), str(HERE.parent)]

import scrapy  # noqa: E402
from scrapy import signals  # noqa: E402
from scrapy.crawler import AsyncCrawlerRunner  # noqa: E402
from scrapy.exceptions import DontCloseSpider  # noqa: E402
from scrapy.utils.reactor import install_reactor  # noqa: E402
from worker import NullHandler  # noqa: E402

from crawls import interval, variants  # noqa: E402
from farm.redis_server import RedisServer  # noqa: E402

CONCURRENCY = 16
SETTLE = 0.1  # seconds


class FedSpider(scrapy.Spider):
    """Stays open, and fetches what it is fed."""

    name = "fed"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.closing = False
        crawler.signals.connect(spider.stay, signal=signals.spider_idle)
        return spider

    async def start(self):
        self.settings["BENCH_OPENED"].put_nowait(self)
        return
        yield

    def stay(self):
        if not self.closing:
            raise DontCloseSpider

    async def feed(self, count):
        """Fetch *count* pages and return the processor time of each, in µs."""
        loop = asyncio.get_running_loop()
        self.left, self.done = count, loop.create_future()
        requests = [
            scrapy.Request(f"http://site.test/?{number}", callback=self.parse, dont_filter=True)
            for number in range(count)
        ]
        began = time.process_time()
        for request in requests:
            self.crawler.engine.crawl(request)
        await self.done
        await asyncio.sleep(SETTLE)  # what a variant does beside the request belongs to it
        return 1e6 * (time.process_time() - began) / count

    def parse(self, response):
        self.left -= 1
        if not self.left:
            self.done.set_result(None)


async def raw_call(crawler, count):
    """Return the processor time of a pick from 16 tasks at once, in µs."""
    gathered = crawler.raw_picks

    async def some():
        for _ in range(count // CONCURRENCY):
            found = gathered.take()
            if not isinstance(found, str):
                await found

    began = time.process_time()
    await asyncio.gather(*(some() for _ in range(CONCURRENCY)))
    return 1e6 * (time.process_time() - began) / (count // CONCURRENCY * CONCURRENCY)


def settings_of(own, opened):
    return {
        "BENCH_OPENED": opened,
        "LOG_LEVEL": "ERROR",
        "DOWNLOAD_TIMEOUT": 15,
        "TELNETCONSOLE_ENABLED": False,
        "MEMUSAGE_ENABLED": False,
        "CONCURRENT_REQUESTS": CONCURRENCY,
        "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENCY,
        # Else most of what is left is Scrapy starting 100 tasks for the items of each response.
        "CONCURRENT_ITEMS": 1,
        "DOWNLOAD_HANDLERS": {"http": NullHandler, "https": NullHandler},
        **own,
    }


async def compare(args, count, redis_url):
    from scrapy_smoothpool import get_pool
    from scrapy_smoothpool.store.gathering import GatheredPicks

    lines = [f"http://user{number}:secret@127.0.0.1:8080" for number in range(count)]
    runner = AsyncCrawlerRunner()
    opened = asyncio.Queue()
    crawlers, running = {}, []
    for name, own in variants(args.variants, lines, redis_url, look_ahead=64).items():
        crawlers[name] = crawler = runner.create_crawler(FedSpider)
        crawler.settings.setdict(settings_of(own, opened), priority="cmdline")
        running.append(asyncio.ensure_future(runner.crawl(crawler)))
    none = runner.create_crawler(FedSpider)
    none.settings.setdict(settings_of({}, opened), priority="cmdline")
    crawlers["none"] = none
    running.append(asyncio.ensure_future(runner.crawl(none)))
    for _ in crawlers:
        await opened.get()
    turns = {name: crawler.spider.feed for name, crawler in crawlers.items()}
    if "least_used" in crawlers:
        shared = crawlers["least_used"]
        shared.raw_picks = GatheredPicks(get_pool(shared).strategy._pool.pick_many)
        turns["raw call"] = lambda number: raw_call(shared, number)
    if args.profile:
        await profiled(turns[args.profile], args.requests)
    found = {name: [] for name in turns}
    rng = random.Random(7)
    for number in range(-1, args.rounds):
        names = list(turns)
        rng.shuffle(names)
        for name in names:
            gc.collect()
            took = await turns[name](args.requests)
            if number >= 0:
                found[name].append(took)
    for crawler in crawlers.values():
        crawler.spider.closing = True
    await asyncio.gather(*running)
    return {
        name: {
            "cpu_us": took,
            "more_us": interval([a - b for a, b in zip(took, found["cycle"], strict=True)]),
        }
        for name, took in found.items()
    }


async def profiled(turn, count):
    import cProfile
    import pstats

    await turn(count)
    profile = cProfile.Profile()
    profile.enable()
    await turn(10 * count)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats("scrapy_smoothpool", 45)


def show(count, figures):
    print(f"\n{count:,} proxies, at each request")
    for name, one in figures.items():
        median, (more, low, high) = statistics.median(one["cpu_us"]), one["more_us"]
        if name == "raw call":
            print(f"  {name:12} {median:7.1f} µs")
        else:
            print(f"  {name:12} {median:7.1f} µs  {more:+6.1f} µs [{low:+.1f}, {high:+.1f}]")


async def main(args) -> None:
    figures = {}
    with RedisServer() as server:
        for count in args.proxies:
            figures[count] = await compare(args, count, server.url)
            show(count, figures[count])
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--proxies", type=int, nargs="+", default=[10, 10_000])
    parser.add_argument("--variants", nargs="+", default=["cycle", "smooth_wrr", "least_used"])
    parser.add_argument("--profile")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if "cycle" not in arguments.variants:
        arguments.variants.insert(0, "cycle")
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    from twisted.internet import reactor
    from twisted.internet.defer import Deferred

    done = Deferred.fromFuture(asyncio.get_event_loop().create_task(main(arguments)))
    done.addErrback(lambda failure: failure.printTraceback())
    done.addBoth(lambda _: reactor.stop())
    reactor.run()
