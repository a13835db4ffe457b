"""What the accounting tests run inside the crawl: every attempt marked, every outcome kept."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

from scrapy import signals

from outcome_spiders import OutcomeRecorder, feed
from scrapy_smoothpool import signals as ours
from spiders import ListSpider


class CountedSpider(ListSpider):
    """Note the full names of errors."""

    name = "counted"

    def failure(self, failure):
        super().failure(failure)
        self.failed[-1]["error"] = f"{failure.type.__module__}.{failure.type.__name__}"


class AttemptRecorder(OutcomeRecorder):
    """Give every attempt a number of its own, which the proxy's log shows.

    A handler that repeats a request on its own sends the same number again.
    """

    def __init__(self, crawler):
        super().__init__(crawler)
        self.given: list[list[str]] = []
        self.booked: list[list[Any]] = []
        self.times: dict[str, float] = {}
        crawler.signals.connect(self.on_exhausted, signal=ours.pool_exhausted)
        crawler.signals.connect(self.on_closed, signal=signals.spider_closed)

    def on_assigned(self, request, proxy_id):
        super().on_assigned(request, proxy_id)
        tag = str(len(self.given))
        request.headers["X-Tag"] = tag
        self.given.append([tag, proxy_id])

    def on_outcome(self, request, proxy_id, outcome, response, exception):
        super().on_outcome(request, proxy_id, outcome, response, exception)
        self.booked.append([request.headers["X-Tag"].decode(), proxy_id, outcome.value])

    def on_exhausted(self):
        self.times.setdefault("exhausted", time.monotonic())

    def on_closed(self):
        self.times["closed"] = time.monotonic()

    def write(self):
        feed()
        super().write()
        path = Path(self.crawler.spider.job["result"])
        result = json.loads(path.read_text())
        more = {"given": self.given, "booked": self.booked, "times": self.times}
        path.write_text(json.dumps({**result, **more}))


class FewDescriptors:
    """Leave this process a few descriptors as soon as the first page has arrived.

    Until then Scrapy and Python still open files of their own.
    """

    FEW = 6

    def __init__(self, crawler):
        self.crawler = crawler
        self.done = False

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_request(self, request):
        if self.crawler.spider.arrived and not self.done:
            self.done = True
            lowest_free = os.dup(0)
            os.close(lowest_free)
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + self.FEW, hard))
