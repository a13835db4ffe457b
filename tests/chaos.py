"""Four workers crawl while Redis is killed, stalled, flushed, restarted empty and failed over.

Usage: make chaos, or python -m chaos [--seed N] [--seeds COUNT] [--pages N] with demo_spider/ and
tests/ on PYTHONPATH

Every seed is one run: which disturbance comes when, and whether the workers wait or carry on by
themselves meanwhile, is drawn from it. A run fails unless every page arrives exactly once, through
a proxy, no worker dies, and between two disturbances the counts of the proxies are apart by no
more than there are workers.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from redis import Redis, RedisError

from crawl import Running
from farm import Farm
from farm.redis_topologies import SentinelSetup
from scrapy_smoothpool.store.keys import Keys

WORKERS = 4
PROXIES = 10
CONCURRENCY = 8
DELAY = 0.5  # seconds a page takes
SETTLING = 8.0  # seconds after a disturbance in which the counts must be even again


@dataclass
class Run:
    """What a run did and found."""

    seed: int
    pages: int
    policy: str = ""
    steps: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"seed {self.seed} ({self.policy}): {', '.join(self.steps)}"


def killed(shop: SentinelSetup, rng: random.Random) -> str:
    """The primary dies, its replica takes over, the dead one returns."""
    shop.failover()
    return "killed"


def stalled(shop: SentinelSetup, rng: random.Random) -> str:
    """The primary hangs for so long that it may or may not lose its place."""
    seconds = rng.choice((0.5, 1.5, 4.0))
    primary = shop.primary
    primary.pause()
    time.sleep(seconds)
    primary.resume()
    time.sleep(0.5)
    shop.wait_until_healthy()
    return f"stalled {seconds:g} s"


def flushed(shop: SentinelSetup, rng: random.Random) -> str:
    with Redis(port=shop.primary.port) as client:
        client.flushall()
    return "flushed"


def restarted(shop: SentinelSetup, rng: random.Random) -> str:
    """The primary comes back at once, empty: nobody fails over, and the replica is emptied."""
    shop.primary.restart()
    shop.wait_until_healthy()
    return "restarted empty"


def failed_over(shop: SentinelSetup, rng: random.Random) -> str:
    shop.force_failover()
    return "failed over"


DISTURBANCES: Sequence[Callable[[SentinelSetup, random.Random], str]] = (
    killed,
    stalled,
    flushed,
    restarted,
    failed_over,
)


def counts(shop: SentinelSetup) -> dict[str, float]:
    keys = Keys()
    try:
        with Redis(port=shop.primary.port, decode_responses=True, socket_timeout=2) as client:
            found = client.zrange(keys.allocations, 0, -1, withscores=True)
            return {**dict(found), **dict(client.zrange(keys.benched, 0, -1, withscores=True))}
    except RedisError:
        return {}


def even(shop: SentinelSetup) -> str:
    """Return what is wrong with the counts, after some time to get even, or nothing."""
    end = time.monotonic() + SETTLING
    while True:
        found = counts(shop)
        if len(found) == PROXIES and max(found.values()) - min(found.values()) <= WORKERS:
            return ""
        if time.monotonic() > end:
            return f"counts {sorted(found.values())}"
        time.sleep(0.1)


def run(seed: int, pages: int) -> Run:
    """Crawl that many pages with the disturbances of a seed."""
    rng = random.Random(seed)
    found = Run(seed, pages, policy=rng.choice(("wait", "local")))
    with ExitStack() as stack:
        farm = stack.enter_context(Farm())
        shop = stack.enter_context(SentinelSetup())
        site, proxies = farm.site(), farm.many(PROXIES)
        site.respond("/page/1", delay=DELAY)
        requests = [
            {"url": f"{site.url}/page/1?{n}", "headers": {"X-Tag": str(n)}} for n in range(pages)
        ]
        settings = {
            "SMOOTHPOOL_STRATEGY": "least_used",
            "SMOOTHPOOL_REDIS_URL": shop.url,
            "SMOOTHPOOL_PROXIES": [proxy.url for proxy in proxies],
            "SMOOTHPOOL_ON_REDIS_DOWN": found.policy,
            "CONCURRENT_REQUESTS": CONCURRENCY,
            "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENCY,
            "DOWNLOAD_TIMEOUT": 15,
            "LOG_LEVEL": "INFO",
        }
        workers = [
            stack.enter_context(Running(requests[n::WORKERS], settings)) for n in range(WORKERS)
        ]
        for worker in workers:
            worker.wait_for("Pool 'default'", 60)
        while all(worker.process.poll() is None for worker in workers):
            time.sleep(rng.uniform(1.0, 3.0))
            if any(worker.process.poll() is not None for worker in workers):
                break
            # Before the next: the last one has to be over.
            fault = even(shop)
            if fault and all(worker.process.poll() is None for worker in workers):
                found.faults.append(f"after {found.steps[-1:]}: {fault}")
            found.steps.append(rng.choice(DISTURBANCES)(shop, rng))
        done = [worker.wait(240) for worker in workers]
    tags = Counter(page["tag"] for each in done for page in each.arrived)
    missing = pages - len(tags)
    repeated = sum(n - 1 for n in tags.values())
    if missing or repeated:
        found.faults.append(f"{missing} pages missing, {repeated} more than once")
    if site.direct:
        found.faults.append(f"{len(site.direct)} direct requests")
    for number, each in enumerate(done):
        if each.exit_code or each.finish_reason != "finished":
            found.faults.append(
                f"worker {number}: exit {each.exit_code}, {each.finish_reason}\n{each.log[-3000:]}"
            )
        if "Traceback" in each.log:
            found.faults.append(f"worker {number}: a traceback\n{each.log[-5000:]}")
        failed = [f"{it['error']}: {it['message']}" for it in each.failed[:3]]
        if failed:
            found.faults.append(f"worker {number}: {failed}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="the first seed; drawn unless given")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--pages", type=int, default=2_000)
    options = parser.parse_args()
    first = random.randrange(10_000) if options.seed is None else options.seed
    failed = 0
    for seed in range(first, first + options.seeds):
        begun = time.monotonic()
        found = run(seed, options.pages)
        took = time.monotonic() - begun
        print(f"{'FAILED' if found.faults else 'ok'}  {found}  ({took:.0f} s)", flush=True)
        for fault in found.faults:
            print(f"    {fault}", flush=True)
        failed += bool(found.faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
