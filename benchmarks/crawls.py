"""What the pool adds to a crawl, against rotations without a pool, in pairs.

Measures: processor and wall time per request, from the moment some hundred requests are handed to
the engine to the last response. One process holds a crawler of each variant over the same list and
feeds them in turns; a round is one turn of each, in random order, so whatever slows the machine
slows all. Given are medians, and of ratio and difference to the cycling middleware in the same
round the median and its 95 % interval (bootstrap). What a variant does beside its requests
(outcomes on their way to Redis) is awaited and counted. The event loop's gaps are those of a 5 ms
ticker.

    (as it is)       through a local responder in a process of its own, which plays all proxies on
                     one port (so that connections are shared, not dialled)
    --null           through a download handler without I/O: only engine and middlewares are left
    --delay SECONDS  the first, with that much round trip before Redis

Variants: cycle (itertools.cycle over the list), random (random.choice), rotating
(scrapy-rotating-proxies, where installed), smooth_wrr, least_used (over a local Redis),
least_used_ahead (SMOOTHPOOL_LOOK_AHEAD), raw_call (a middleware that awaits least_used's gathered
pick and does nothing else: what the call to Redis costs in a crawl, whoever makes it).

Does not measure: start-up, parsing of lists, dialling, TLS, failures, memory, the server's own
time, what is gained by good picks.

Usage: python benchmarks/crawls.py [--null | --delay SECONDS] [--rounds N] [--requests N]
                                   [--proxies N …] [--variants V …] [--profile V] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
import warnings
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import scrapy
from common import HIGHEST, OURS, interval, relay, responder, write
from scrapy import signals
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.reactor import install_reactor

from farm.redis_server import RedisServer

CONCURRENCY = 16
SETTLE = 0.1  # seconds
TICK = 0.005  # seconds between two looks at the clock
VARIANTS = ["cycle", "random", "rotating", "smooth_wrr", "least_used"]


def variants(names, lines, redis_url, look_ahead):
    """Return the settings of each variant over the same list."""
    own = {"BENCH_PROXIES": lines}
    shared = {
        **OURS,
        "SMOOTHPOOL_PROXIES": lines,
        "SMOOTHPOOL_STRATEGY": "least_used",
        "SMOOTHPOOL_REDIS_URL": redis_url,
        "SMOOTHPOOL_POOL": f"bench{len(lines)}",
    }
    found = {
        "cycle": {**own, "DOWNLOADER_MIDDLEWARES": {"worker.CycleMiddleware": HIGHEST}},
        "random": {**own, "DOWNLOADER_MIDDLEWARES": {"worker.RandomMiddleware": HIGHEST}},
        "smooth_wrr": {**OURS, "SMOOTHPOOL_PROXIES": lines},
        "least_used": shared,
        "least_used_ahead": {**shared, "SMOOTHPOOL_LOOK_AHEAD": look_ahead},
        "raw_call": {
            **own,
            "BENCH_REDIS_URL": redis_url,
            "BENCH_POOL": f"bench{len(lines)}",
            "DOWNLOADER_MIDDLEWARES": {"worker.RawCallMiddleware": HIGHEST},
        },
    }
    if find_spec("rotating_proxies"):
        found["rotating"] = {
            "ROTATING_PROXY_LIST": lines,
            "ROTATING_PROXY_LOGSTATS_INTERVAL": 3_600,
            "DOWNLOADER_MIDDLEWARES": {
                "rotating_proxies.middlewares.RotatingProxyMiddleware": HIGHEST,
                "rotating_proxies.middlewares.BanDetectionMiddleware": HIGHEST + 10,
            },
        }
    return {name: found[name] for name in names if name in found}


def settings_of(own, opened, null):
    found = {
        "BENCH_OPENED": opened,
        "LOG_LEVEL": "ERROR",
        "DOWNLOAD_TIMEOUT": 15,
        "TELNETCONSOLE_ENABLED": False,
        "MEMUSAGE_ENABLED": False,
        "CONCURRENT_REQUESTS": CONCURRENCY,
        "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENCY,
        **own,
    }
    if null:
        found["DOWNLOAD_HANDLERS"] = dict.fromkeys(("http", "https"), "worker.NullHandler")
        # Else most of what is left is Scrapy starting 100 tasks for the items of each response.
        found["CONCURRENT_ITEMS"] = 1
    return found


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

    async def feed(self, count, gaps):
        """Fetch *count* pages; return the seconds of processor and wall time of each."""
        loop = asyncio.get_running_loop()
        self.todo, self.left, self.lost, self.done = count, count, 0, loop.create_future()
        watch = loop.create_task(look(gaps))
        cpu, wall = time.process_time(), time.perf_counter()
        # A few are always queued; all at once would be work for the garbage collector.
        for _ in range(2 * CONCURRENCY):
            self.another()
        await self.done
        wall = time.perf_counter() - wall
        await asyncio.sleep(SETTLE)
        cpu = time.process_time() - cpu
        watch.cancel()
        if self.lost:
            raise SystemExit(f"{self.lost} of {count} requests failed")
        return cpu / count, wall / count

    def another(self):
        if self.todo:
            self.todo -= 1
            url = f"http://site.test/?{self.todo}"
            request = scrapy.Request(url, self.parse, errback=self.failed, dont_filter=True)
            self.crawler.engine.crawl(request)

    def parse(self, response):
        self.another()
        self.left -= 1
        if not self.left:
            self.done.set_result(None)

    def failed(self, failure):
        self.lost += 1
        self.parse(None)


async def look(gaps):
    while True:
        before = time.perf_counter()
        await asyncio.sleep(TICK)
        gaps.append(time.perf_counter() - before - TICK)


async def compare(args, count, redis_url, port):
    """Give all variants over *count* proxies their turns; return the figures of each."""
    lines = [f"http://user{number}:secret@127.0.0.1:{port}" for number in range(count)]
    runner, opened = AsyncCrawlerRunner(), asyncio.Queue()
    crawlers, running = {}, []
    for name, own in variants(args.variants, lines, redis_url, args.look_ahead).items():
        crawlers[name] = crawler = runner.create_crawler(FedSpider)
        crawler.settings.setdict(settings_of(own, opened, args.null), priority="cmdline")
        running.append(asyncio.ensure_future(runner.crawl(crawler)))
        await opened.get()
    spiders = {name: crawler.spider for name, crawler in crawlers.items()}
    found = {name: {"cpu": [], "wall": [], "gaps": []} for name in spiders}
    rng = random.Random(7)
    if args.profile:
        await profiled(spiders[args.profile].feed, args.requests)
    for number in range(-1, args.rounds):  # the first one warms up
        for name in rng.sample(list(spiders), len(spiders)):
            gc.collect()
            gaps = []
            cpu, wall = await spiders[name].feed(args.requests, gaps)
            if number >= 0:
                one = found[name]
                one["cpu"].append(1e6 * cpu)
                one["wall"].append(wall)
                one["gaps"] += gaps
    for spider in spiders.values():
        spider.closing = True
    await asyncio.gather(*running)
    return figures_of(found)


def figures_of(found):
    control = found["cycle"]

    def pairs(one, what):
        return zip(one[what], control[what], strict=True)

    def late(one):
        return 1_000 * sorted(one["gaps"])[int(0.999 * len(one["gaps"]))]

    return {
        name: {
            "cpu_us": one["cpu"],
            "rate": [1 / wall for wall in one["wall"]],
            "ratio": interval([a / b for a, b in pairs(one, "cpu")]),
            "more_us": interval([a - b for a, b in pairs(one, "cpu")]),
            "speed": interval([b / a for a, b in pairs(one, "wall")]),
            "gap_999_ms": late(one),
            "gap_more_ms": late(one) - late(control),
        }
        for name, one in found.items()
    }


async def profiled(turn, count):
    import cProfile
    import pstats

    await turn(count, [])
    profile = cProfile.Profile()
    profile.enable()
    await turn(10 * count, [])
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats("scrapy_smoothpool|redis", 45)


def show(count, figures):
    print(f"\n{count:,} proxies, a request")
    for name, one in figures.items():
        more, ratio, speed = one["more_us"], one["ratio"], one["speed"]
        print(
            f"  {name:16} {median(one['cpu_us']):7.1f} µs  "
            f"{more[0]:+7.1f} µs [{more[1]:+.1f}, {more[2]:+.1f}]  "
            f"× {ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}]  "
            f"{median(one['rate']):5.0f}/s, × {speed[0]:.3f} [{speed[1]:.3f}, {speed[2]:.3f}]  "
            f"late {one['gap_999_ms']:.1f} ms",
            flush=True,
        )


def must_hold(args, sizes):
    """Say what is promised of these figures, and whether it holds."""
    found = []

    def promise(what, figure, holds):
        found.append({"what": what, "figure": figure, "holds": bool(holds)})

    for count, one in sizes.items():
        at = f"at {count:,} proxies"
        if args.null and "smooth_wrr" in one and count >= 10_000:
            more = one["smooth_wrr"]["more_us"][0]
            promise(f"smooth_wrr {at}: at most 30 µs more than cycling", more, more <= 30)
        if args.null and "raw_call" in one and "least_used" in one:
            control = one["cycle"]["cpu_us"]
            more = median(
                (a - c) - 1.5 * (b - c)
                for a, b, c in zip(
                    one["least_used"]["cpu_us"], one["raw_call"]["cpu_us"], control, strict=True
                )
            )
            promise(
                f"least_used {at}: at most 30 µs and 1.5 raw calls more than cycling (the 30 µs)",
                more,
                more <= 30,
            )
        if not args.null and not args.delay:
            for name, most in (("smooth_wrr", 1.03), ("least_used", 1.08)):
                if name in one:
                    middle, _, high = one[name]["ratio"]
                    holds = middle <= most and high <= most + 0.02
                    promise(f"{name} {at}: at most × {most} of cycling", middle, holds)
                if name in one and "rotating" in one and count >= 1_000:
                    rival = median(one["rotating"]["cpu_us"])
                    part = median(one[name]["cpu_us"]) / rival
                    promise(f"{name} {at}: less than scrapy-rotating-proxies (×)", part, part < 1)
        if args.delay:
            for name, least in (("least_used", 0.82), ("least_used_ahead", 0.92)):
                if name in one:
                    speed = one[name]["speed"][0]
                    promise(f"{name} {at}: at least × {least} as fast", speed, speed >= least)
        for name in ("smooth_wrr", "least_used"):
            if name in one:
                more = one[name]["gap_more_ms"]
                promise(f"{name} {at}: at most 20 ms later than cycling (ms)", more, more <= 20)
    return found


async def main(args) -> None:
    sizes = {}
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        redis_url = server.url
        if args.delay:
            distant = stack.enter_context(relay(server.port, args.delay))
            redis_url = f"redis://127.0.0.1:{distant}/0"
        port = stack.enter_context(responder())
        for count in args.proxies:
            sizes[count] = await compare(args, count, redis_url, port)
            show(count, sizes[count])
    promises = must_hold(args, sizes)
    for one in promises:
        print(
            f"  {'holds' if one['holds'] else 'DOES NOT HOLD'}: {one['what']}: {one['figure']:.3f}"
        )
    write(args.json, {"sizes": sizes, "must_hold": promises})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--null", action="store_true", help="no I/O in downloads")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before Redis")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=320, help="in one turn")
    parser.add_argument("--proxies", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--variants", nargs="+", default=VARIANTS)
    parser.add_argument("--look-ahead", type=int, default=64)
    parser.add_argument("--profile", help="of one variant's turn, before all others")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if "cycle" not in arguments.variants:
        arguments.variants.insert(0, "cycle")
    warnings.simplefilter("ignore")  # those of the peer's
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    from twisted.internet import reactor
    from twisted.internet.defer import Deferred

    failed = []
    done = Deferred.fromFuture(asyncio.get_event_loop().create_task(main(arguments)))
    done.addErrback(failed.append)
    done.addBoth(lambda _: reactor.stop())
    reactor.run()
    if failed:
        raise failed[0].value
