"""Measures what a list of 100,000 proxies costs: reading it, starting with it, reloading it.

Reading: seconds of processor time to parse 100,000 lines, once for each form in use, each in a
process of its own, with a loop of plain additions before and after it, in whose time a form's is
given, too: other programs on the machine slow both alike.

Starting: seconds until a pool of that size is open, with both strategies; for `least_used` once
with the list (it is published) and once without (the worker joins).

Reloading: `Pool.reload` of another list, while some tasks go on picking and reporting and a
ticker wants to run every 5 ms: with one line changed, half of them, and all. Given are the
ticker's greatest and 99.9th-percentile gap beyond those 5 ms, beside those of a control of
four seconds in which nothing is reloaded, and the seconds the reload took. A gap is time on the
clock; "held" is the part of it in which our own thread computed (beyond 5 ms), which tells what
we do from what other programs on a busy machine do to us. Reading the list in
steps is part of it (`Pool.reload_file`). `smooth_wrr` is also measured with a sequence for each of
two sites.

The server: for `least_used`, a Redis of our own tells of its slowest commands (SLOWLOG, in its
own time) during each reload: with everybody in, and, for the swap, with half of the pool out.

Does not measure: a crawl (see `crawls.py`), the network, several workers that reload at once, or
how fast picks are meanwhile. The garbage collector runs as it does in a crawl; its full passes
are part of the gaps.

Usage: python benchmarks/load.py [--quick] [--seed N] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import multiprocessing
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "demo_spider")]

import redis  # noqa: E402

from farm.redis_server import RedisServer  # noqa: E402
from scrapy_smoothpool.health import Health  # noqa: E402
from scrapy_smoothpool.judge import Evidence  # noqa: E402
from scrapy_smoothpool.local_judge import LocalJudge  # noqa: E402
from scrapy_smoothpool.outcome import Outcome  # noqa: E402
from scrapy_smoothpool.parsing import parse_proxies  # noqa: E402
from scrapy_smoothpool.pool import Pool  # noqa: E402
from scrapy_smoothpool.shared_judge import SharedJudge, health_rules  # noqa: E402
from scrapy_smoothpool.strategies.base import StrategyOptions  # noqa: E402
from scrapy_smoothpool.strategies.registry import find_strategy  # noqa: E402
from scrapy_smoothpool.turns import Turns  # noqa: E402

TICK = 0.005  # seconds between two looks at the clock
PICKERS = 4
MOST_SECONDS = 2.0  # to parse any form
MOST_GAP = 0.020  # seconds beyond the control's, 99.9th percentile
MOST_SCRIPT = 0.020  # seconds the server may be held


def address(number):
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


FORMS = {
    "host:port": lambda i: f"{address(i)}:3128",
    "URL, login, weight": lambda i: f"http://user{i}:pa{i}ss@{address(i)}:3128 weight=3",
    "one gateway": lambda i: f"http://user-{i}:pass@gw.example.com:3128",
    "host:port:user:pass": lambda i: f"{address(i)}:3128:user{i}:pa{i}ss",
    "IPv6": lambda i: f"http://[2001:db8::{i >> 16:x}:{i & 65535:x}]:3128",
    "name and comment": lambda i: f"http://{address(i)}:3128 weight=3 name=p{i} # it",
    "percent-encoded": lambda i: f"http://user{i}:p%40{i}a@{address(i)}:3128",
}


def text_of(form, n):
    if form == "JSON, lines":
        return json.dumps([FORMS["URL, login, weight"](i) for i in range(n)])
    if form == "JSON, objects":
        return json.dumps(
            [{"host": address(i), "port": 3128, "username": f"u{i}", "weight": 3} for i in range(n)]
        )
    if form == "CSV":
        rows = (f"http://user{i}:pa{i}ss@{address(i)}:3128,3" for i in range(n))
        return "proxy,weight\n" + "\n".join(rows)
    return "\n".join(FORMS[form](i) for i in range(n))


ALL_FORMS = (*FORMS, "JSON, lines", "JSON, objects", "CSV")


def a_million_additions():
    started, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return time.process_time() - started


def parse_time(form, n):
    """(seconds, the same in millions of additions), of processor time."""
    text = text_of(form, n)
    before = a_million_additions()
    started = time.process_time()
    found = parse_proxies(text)
    took = time.process_time() - started
    assert len(found) == n
    return took, took / ((before + a_million_additions()) / 2)


def rules():
    return health_rules(eject_after=8, eject_time=3600, eject_time_max=3600, max_percent=100)


class Lab:
    """One pool on an event loop of its own, watched while it works."""

    def __init__(self, strategy, url=None, by_site=False, name="load"):
        turns = Turns()
        self.strategy = find_strategy(strategy).from_options(
            StrategyOptions(pool=name, redis_url=url, turns=turns)
        )
        if url:
            self.judge = SharedJudge(
                self.strategy.verdicts, rules(), probe_timeout=60, clock=time.monotonic
            )
        else:
            make = functools.partial(
                Health, eject_after=8, eject_time=3600, max_percent=50, clock=time.monotonic
            )
            self.judge = LocalJudge(self.strategy, make, time.monotonic, by_site=by_site)
        self.sites = ["a.example", "b.example"] if by_site else ["a.example"]
        self.name, self.turns = name, turns

    async def open(self, proxies):
        self.pool = Pool(self.name, self.strategy, self.judge, proxies, turns=self.turns)
        started = time.perf_counter()
        await self.pool.open()
        return time.perf_counter() - started

    async def pick_on(self, number):
        rng = random.Random(number)
        while True:
            site = rng.choice(self.sites)
            found = await self.pool.acquire(site=site)
            await asyncio.sleep(0.002)  # the download
            if found is not None:
                fault = rng.random() < 0.02
                outcome = Outcome.BANNED if fault else Outcome.SUCCESS
                evidence = Evidence(outcome, site, answered=not fault)
                self.pool.report(found.proxy_id, found.epoch, evidence)

    async def watched(self, work):
        """(seconds it took, the ticker's gaps beyond TICK, our own part of them)."""
        gaps, held = [], []

        async def tick():
            while True:
                before, own = time.perf_counter(), time.thread_time()
                await asyncio.sleep(TICK)
                gaps.append(time.perf_counter() - before - TICK)
                held.append(max(0.0, time.thread_time() - own - TICK))

        tasks = [asyncio.create_task(self.pick_on(number)) for number in range(PICKERS)]
        await asyncio.sleep(0.3)
        tasks.append(asyncio.create_task(tick()))
        started = time.perf_counter()
        await work()
        took = time.perf_counter() - started
        await asyncio.sleep(0.1)  # picks of the new list, too
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return took, sorted(gaps), sorted(held)


def percentile(values, share):
    return values[min(len(values) - 1, int(share * len(values)))]


def gaps_of(what, gaps, held):
    return {
        f"{what}, gap 99.9 %": percentile(gaps, 0.999),
        f"{what}, gap max": gaps[-1],
        f"{what}, held 99.9 %": percentile(held, 0.999),
        f"{what}, held max": held[-1],
    }


def lists(n):
    """The first list, and those to reload in turn: (what changed, text)."""
    line = FORMS["URL, login, weight"]
    first = [line(i) for i in range(n)]
    one = [line(n), *first[1:]]
    half = [line(i + 2 * n) if i % 2 else kept for i, kept in enumerate(one)]
    everybody = [line(i + 4 * n) for i in range(n)]
    return "\n".join(first), [
        ("one line", "\n".join(one)),
        ("half of it", "\n".join(half)),
        ("all of it", "\n".join(everybody)),
    ]


def slowest(raw):
    """(milliseconds, words) of the server's slowest command since the log was reset."""
    entries = raw.slowlog_get(1024)
    if not entries:
        return 0.0, ""
    worst = max(entries, key=lambda entry: entry["duration"])
    words = worst["command"].split(b" ")[:2]
    return worst["duration"] / 1e3, b" ".join(words).decode()[:60]


async def reloads(strategy, n, url=None, by_site=False, out=0):
    """Figures of one pool: opened, left alone, reloaded with each list."""
    lab = Lab(strategy, url, by_site, name=f"load{out}")
    text, others = lists(n)
    proxies = parse_proxies(text)
    raw = redis.Redis.from_url(url, protocol=2) if url else None
    if raw:
        raw.config_set("slowlog-log-slower-than", 500)
        raw.config_set("slowlog-max-len", 1024)
        raw.slowlog_reset()
    figures = {"open, s": await lab.open(proxies)}
    if raw:
        figures["open, slowest command"] = slowest(raw)
        if out:
            put_out(raw, lab, out)
    del proxies
    figures |= gaps_of("control", *(await lab.watched(lambda: asyncio.sleep(4)))[1:])
    for what, other in others:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(other)
            file.flush()
            if raw:
                raw.slowlog_reset()
            took, *gaps = await lab.watched(functools.partial(lab.pool.reload_file, file.name))
        assert len(lab.pool) == n
        figures[f"{what}, s"] = took
        figures |= gaps_of(what, *gaps)
        if raw:
            figures[f"{what}, slowest command"] = slowest(raw)
    if url:
        joiner = Lab(strategy, url, name=f"load{out}")
        figures["join, s"] = await joiner.open(None)
        assert len(joiner.pool) == n
        await joiner.pool.close()
    await lab.pool.close()
    return figures


def put_out(raw, lab, number):
    """Put members out as `report_outcomes.lua` does, at once."""
    keys = lab.strategy._keys
    ids = [name.decode() for name in raw.zrange(keys.allocations, 0, number - 1)]
    later = int(time.time() * 1000) + 3_600_000
    for start in range(0, len(ids), 1000):
        step = ids[start : start + 1000]
        raw.zrem(keys.allocations, *step)
        raw.zadd(keys.benched, dict.fromkeys(step, 0))
        raw.zadd(keys.wakes, dict.fromkeys(step, later))
        raw.zadd(keys.ejections, {name: start + place for place, name in enumerate(step, 1)})
        record = "ejected {} 0 - 1 0 banned"
        raw.hset(keys.health, mapping={name: record.format(1) for name in step})
    raw.set(keys.epoch, len(ids) + 1)


def commit():
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def shown(name, figure):
    if isinstance(figure, tuple):
        return f"{figure[0]:10.2f} ms  {figure[1]}"
    return f"{figure:10.2f} s" if name.endswith(", s") else f"{figure * 1e3:10.2f} ms"


def verdicts(parsed, pools):
    """(what must hold, the figure, whether it holds)."""
    found = [
        (f"parsing {form} takes at most {MOST_SECONDS:g} s", took, took <= MOST_SECONDS)
        for form, (took, _) in parsed.items()
    ]
    for pool, figures in pools.items():
        for name, figure in figures.items():
            kind = name.rpartition(", ")[2]
            if kind.endswith("99.9 %") and not name.startswith("control"):
                beyond = figure - figures[f"control, {kind}"]
                found.append((f"{pool}: {name} beyond the control's", beyond, beyond <= MOST_GAP))
            elif name.endswith("slowest command"):
                seconds = figure[0] / 1e3
                found.append((f"{pool}: {name}", seconds, seconds <= MOST_SCRIPT))
    return found


def main():
    parser = argparse.ArgumentParser(description="What a list of 100,000 proxies costs.")
    parser.add_argument("--quick", action="store_true", help="20,000 proxies")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    n = 20_000 if options.quick else 100_000
    random.seed(options.seed)
    about = {
        "machine": f"{platform.machine()} {platform.system()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "commit": commit(),
        "seed": options.seed,
        "proxies": n,
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    parsed = {}
    # A process for each: what one leaves to the garbage collector is not the next one's burden.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as processes:
        for form in ALL_FORMS:
            parsed[form] = processes.apply(parse_time, (form, n))
            seconds, additions = parsed[form]
            print(f"    parse {form:24}{seconds:8.2f} s  {additions:6.1f} million additions")
    pools = {}
    with RedisServer() as server:
        for name, arguments in {
            "smooth_wrr": {},
            "smooth_wrr, two sites": {"by_site": True},
            "least_used": {"url": server.url},
            "least_used, half out": {"url": server.url, "out": n // 2},
        }.items():
            figures = pools[name] = asyncio.run(reloads(name.split(",")[0], n, **arguments))
            print(name)
            for what, figure in figures.items():
                print(f"    {what:32}{shown(what, figure)}", flush=True)
    held = verdicts(parsed, pools)
    print("must hold:")
    for what, figure, holds in held:
        print(f"    {'holds ' if holds else 'BROKEN'}  {what}: {figure:.4f} s")
    if options.json:
        results = {
            "about": about,
            "parse": parsed,
            "pools": pools,
            "must_hold": [{"what": w, "figure": f, "holds": h} for w, f, h in held],
        }
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
