"""The demo: a shop of some 300 pages, crawled through local proxies, good and bad, offline.

Crawl 1 spreads its requests by smooth weighted round robin; crawl 2 is done by two
processes that share one Redis under least_used. Exit status 0 means that every page
arrived and that no request reached the site without a proxy.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from crawls import Worker
from farm import Answer, Close, Farm, Forward, ForwardProxy, Site, chain, first, half
from farm.redis_server import RedisServer

PAGES = 300
ROBOTS = "User-agent: *\nDisallow: /private/\n"
#: What an ordinary way through a proxy takes, in seconds.
USUAL = Forward(delay=0.08)
#: When a crawl is given up, in seconds.
PATIENCE = 60


def say(text: str) -> None:
    """Tell the user what goes on."""
    print(text, flush=True)


@dataclass(frozen=True, slots=True)
class Member:
    """One of the farm's proxies and what is special about it."""

    proxy: ForwardProxy
    what: str


def cast(farm: Farm) -> list[Member]:
    """Start the proxies; their weights count in crawl 1 only."""
    return [
        Member(farm.proxy("oak", weight=5, behaviour=USUAL), "no login"),
        Member(farm.proxy("elm", weight=3, behaviour=USUAL), "no login"),
        Member(farm.proxy("ash", weight=3, login=("ash", "p@ss:w%rd"), behaviour=USUAL), "a login"),
        Member(
            farm.proxy("gate", weight=2, logins={"ann": "one", "bob": "two"}, behaviour=USUAL),
            "a gateway, two logins",
        ),
        Member(farm.proxy("snail", weight=1, behaviour=Forward(delay=0.15)), "slow: 0.15 s"),
        Member(farm.proxy("grump", weight=2), "answers 403 half the time"),
        Member(farm.proxy("lazarus", weight=4), "fails at first, then recovers"),
        Member(farm.proxy("ghost", weight=2, listening=False), "dead: refuses connections"),
    ]


def fall_ill(farm: Farm) -> None:
    """Give the ill ones their illness (again), so that both crawls meet the same farm."""
    farm.proxies["grump"].behaviour = chain(half(Answer(403)), lambda hit: USUAL)
    farm.proxies["lazarus"].behaviour = chain(first(8, Close()), lambda hit: USUAL)


class Demo:
    """Both crawls over one farm, and what came of them."""

    def __init__(self, farm: Farm, directory: Path) -> None:
        self.farm = farm
        self.directory = directory
        self.site: Site = farm.site(tls=True, pages=PAGES, robots=ROBOTS, secure_every=6)
        self.members = cast(farm)
        self.expected = {"/", *(f"/page/{number}" for number in range(1, PAGES + 1))}
        self.arrived = 0
        self.direct = 0
        self.failed: list[str] = []
        self.tables: list[tuple[str, str]] = []

    def write_list(self, name: str, weights: bool) -> str:
        """Write a list of the proxies, one a line, and return its path."""
        path = self.directory / name
        lines = []
        for proxy in (member.proxy for member in self.members):
            users = [f"-{user}" for user, _ in proxy.logins] if len(proxy.logins) > 1 else [""]
            for line, user in zip(proxy.lines if weights else proxy.urls, users, strict=True):
                lines.append(f"{line} name={proxy.name}{user}\n")
        path.write_text("".join(lines), "utf-8")
        return str(path)

    def smooth(self) -> None:
        """Crawl 1: one process, unequal weights."""
        settings = {
            "SMOOTHPOOL_STRATEGY": "smooth_wrr",
            "SMOOTHPOOL_PROXIES_FILE": self.write_list("weighted.txt", weights=True),
        }
        self.begin()
        with contextlib.ExitStack() as stack:
            workers = [self.worker(stack, "worker", settings)]
            self.follow("Crawl 1, smooth_wrr", workers)

    def shared(self, redis_url: str) -> None:
        """Crawl 2: two processes, one Redis; only the first is given the list."""
        joining = {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": redis_url}
        proxies_file = self.write_list("equal.txt", weights=False)
        publishing = {**joining, "SMOOTHPOOL_PROXIES_FILE": proxies_file}
        self.begin()
        with contextlib.ExitStack() as stack:
            workers = [self.worker(stack, "worker-1", publishing, "0/2")]
            say("  worker-1 publishes its list in Redis")
            while workers[0].running and not any(member.proxy.hits for member in self.members):
                time.sleep(0.02)
            say("  worker-2 starts without a list and joins the pool")
            workers.append(self.worker(stack, "worker-2", joining, "1/2"))
            self.follow("Crawl 2, least_used", workers)

    def worker(
        self, stack: contextlib.ExitStack, name: str, settings: dict[str, str], part: str = "0/1"
    ) -> Worker:
        """Start one crawling process."""
        arguments = {"site": self.site.url_for("/"), "part": part}
        worker = Worker(name, self.directory, settings, arguments, lambda text: say(f"  {text}"))
        stack.callback(worker.close)
        return worker

    def begin(self) -> None:
        """Forget what the last crawl did to the farm."""
        fall_ill(self.farm)
        self.site.clear()
        for member in self.members:
            member.proxy.clear()

    def follow(self, title: str, workers: list[Worker]) -> None:
        """Report progress until the crawl is done, then count."""
        began = told = time.monotonic()
        while any(worker.running for worker in workers) and time.monotonic() - began < PATIENCE:
            time.sleep(0.1)
            if time.monotonic() - told >= 2:
                told = time.monotonic()
                say(f"  … {self.served()} of {len(self.expected)} pages served")
        for worker in workers:
            if worker.wait(1) != 0:
                self.failed.append(worker.name)
                say(f"  {worker.name} failed; the end of its log:\n{worker.log_tail()}")
            self.tables += [(f"{title}: {worker.name}", table) for table in worker.tables]
        pages: set[str] = set().union(*(worker.paths() for worker in workers))
        arrived = len(pages & self.expected)
        self.arrived += arrived
        self.direct += len(self.site.direct)
        seconds = time.monotonic() - began
        say(f"  {arrived} of {len(self.expected)} pages arrived in {seconds:.1f} s")
        self.tables.append((f"{title}: as the proxies themselves saw it", self.seen()))

    def served(self) -> int:
        """Return how many pages have left the site so far."""
        return len({hit.path for hit in self.site.hits} & self.expected)

    def seen(self) -> str:
        """Return what each proxy received and what it brought from the site."""
        brought = Counter(hit.via for hit in self.site.hits)
        rows = [f"{'proxy':<9}{'asked':>6}{'CONNECTs':>10}{'brought':>9}  what it is"]
        for member in self.members:
            proxy, hits = member.proxy, member.proxy.hits
            tunnels = sum(hit.kind == "connect" for hit in hits)
            plain = len(hits) - tunnels
            rows.append(
                f"{proxy.name:<9}{plain:>6}{tunnels:>10}{brought[proxy.name]:>9}  {member.what}"
            )
        return "\n".join(rows)

    def verdict(self) -> bool:
        """Print the tables and the last line; True when all is as promised."""
        for title, table in self.tables:
            say(f"\n{title}\n{table}")
        total = 2 * len(self.expected)
        say(
            f"\n{self.arrived} of {total} pages arrived (two crawls of {len(self.expected)}); "
            f"{self.direct} requests reached the site directly."
        )
        return self.arrived == total and not self.direct and not self.failed


def main() -> int:
    """Run both crawls; 0 when every page arrived and nothing went out directly."""
    with tempfile.TemporaryDirectory(prefix="smoothpool-demo-") as name, Farm() as farm:
        demo = Demo(farm, Path(name))
        say(f"A shop of {PAGES} linked pages on {demo.site.url}, each sixth by https; 8 proxies:")
        for member in demo.members:
            say(f"  {member.proxy.name:<9}{member.proxy.address:<17} {member.what}")
        say("\nCrawl 1: smooth_wrr, one process, unequal weights")
        demo.smooth()
        say("\nCrawl 2: least_used, two processes sharing one Redis, half of the shop each")
        with RedisServer(unix=True) as server:
            say("  a Redis server of its own is up")
            demo.shared(server.url)
        return 0 if demo.verdict() else 1


if __name__ == "__main__":
    sys.exit(main())
