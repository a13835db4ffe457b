"""What the outcome tests run inside the crawl: requests sent to a chosen proxy, outcomes kept."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from scrapy.exceptions import IgnoreRequest

from scrapy_smoothpool import Outcome, OutcomePolicy, get_pool
from scrapy_smoothpool import signals as ours
from scrapy_smoothpool.failures import is_descriptor_exhaustion, is_login_fault
from scrapy_smoothpool.strategies.in_process import SmoothWRRStrategy
from spiders import Recorder


class PinnedStrategy(SmoothWRRStrategy):
    """Pick the proxy that the request names in ``meta["via"]``."""

    wanted: str | None = None

    def pick(self, exclude: Collection[str] = (), site: str = "") -> str | None:
        return type(self).wanted


class Choose:
    """Hand a request's wish to the strategy; nothing is awaited between the two."""

    def process_request(self, request):
        PinnedStrategy.wanted = request.meta["via"]
        if request.meta.get("starve"):
            starve()


class Raise:
    """Raise what a request asks for, before or after the pool's place."""

    where = "before"

    def process_request(self, request):
        wish = request.meta.get("raise", {}).get(self.where)
        if wish is not None:
            raise {"IgnoreRequest": IgnoreRequest, "ValueError": ValueError}[wish]("as asked")


class RaiseAfter(Raise):
    where = "after"


def starve() -> None:
    """Leave this process no descriptor to open."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))


def feed() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))


class AccessDenied:
    """A policy that knows bans by the page's text."""

    def response_is_ban(self, request, response):
        return "Access denied" in response.text or None


class Reads(OutcomePolicy):
    """The same as an outcome policy."""

    wants_body = True

    def classify_response(self, request, response):
        denied = b"Access denied" in response.body
        return Outcome.BANNED if denied else super().classify_response(request, response)


class OutcomeRecorder(Recorder):
    """Keep every outcome, and what became of the proxies."""

    def __init__(self, crawler):
        super().__init__(crawler)
        self.outcomes: list[dict[str, Any]] = []
        crawler.signals.connect(self.on_outcome, signal=ours.proxy_outcome)

    def on_outcome(self, request, proxy_id, outcome, response, exception):
        self.outcomes.append(
            {
                "kind": request.meta.get("kind"),
                "proxy": proxy_id,
                "outcome": outcome.value,
                "login": is_login_fault(response or exception),
                "exhausted": exception is not None and is_descriptor_exhaustion(exception),
                "said": response.status if response is not None else list(told(exception)),
            }
        )
        if request.meta.get("starve"):
            feed()

    def write(self):
        members = [view._asdict() for view in get_pool(self.crawler).snapshot()]
        super().write()
        path = Path(self.crawler.spider.job["result"])
        result = json.loads(path.read_text())
        path.write_text(json.dumps({**result, "outcomes": self.outcomes, "members": members}))


def told(error: BaseException | None) -> Iterator[str]:
    """Yield an exception and its causes, for a reader of a failed test."""
    for _ in range(8):
        if error is None:
            return
        yield f"{type(error).__module__}.{type(error).__name__}: {str(error)[:200]}"
        for reason in getattr(error, "reasons", None) or ():
            yield f"reason {reason!r}"[:200]
        error = error.__cause__ or error.__context__
