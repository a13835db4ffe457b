"""One crawl of `connections.py`, in a process of its own: prints its sockets and its memory.

Not run by hand. Reads its settings as JSON from the file that is its first argument.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from scrapy import signals
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.exceptions import DontCloseSpider
from worker import BenchSpider

TICK = 0.05  # seconds between two counts of sockets


def sockets() -> int:
    """Return how many sockets this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue  # the directory's own
    return found


def resident() -> int:
    """Return the resident memory in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class Meter:
    """Counts sockets from the spider's opening until some seconds after its last response."""

    def __init__(self, crawler):
        self.crawler = crawler
        self.after = crawler.settings.getfloat("BENCH_AFTER")
        self.done_at = 0.0
        self.result: dict[str, Any] = {}
        crawler.signals.connect(self.opened, signal=signals.spider_opened)
        crawler.signals.connect(self.idle, signal=signals.spider_idle)
        crawler.signals.connect(self.stopped, signal=signals.engine_stopped)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def opened(self, spider):
        gc.collect()
        self.before, self.memory = sockets(), resident()
        self.peak = 0
        self.watch = asyncio.get_running_loop().create_task(self.look())
        self.cpu, self.looking = time.process_time(), 0.0

    async def look(self):
        while True:
            began = time.process_time()
            self.peak = max(self.peak, sockets() - self.before)
            self.looking += time.process_time() - began
            await asyncio.sleep(TICK)

    def idle(self, spider):
        now = time.monotonic()
        if not self.done_at:
            self.done_at = now
            self.watch.cancel()
            self.result["cpu"] = time.process_time() - self.cpu - self.looking
            self.result["peak"] = max(self.peak, sockets() - self.before)
        if now - self.done_at < self.after:
            raise DontCloseSpider
        if "left" not in self.result:
            gc.collect()
            self.result["left"] = sockets() - self.before
            self.result["memory"] = resident() - self.memory

    def stopped(self):
        stats = self.crawler.stats.get_stats()
        self.result["requests"] = stats.get("response_received_count", 0)
        print(json.dumps(self.result), flush=True)


def main() -> None:
    """Run the crawl that the first argument describes."""
    given: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings = {
        "ADDONS": {"scrapy_smoothpool.Addon": 500},
        "LOG_LEVEL": "ERROR",
        "TELNETCONSOLE_ENABLED": False,
        "REMOTE_CONTROL_ENABLED": False,
        "MEMUSAGE_ENABLED": False,
        "EXTENSIONS": {Meter: 1_000},
        "CONCURRENT_REQUESTS": 16,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "DOWNLOAD_TIMEOUT": 15,
        **given,
    }
    process = AsyncCrawlerProcess(settings)
    process.crawl(BenchSpider)
    process.start()


if __name__ == "__main__":
    main()
