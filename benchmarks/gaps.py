"""Does a pool hold up the event loop? Whole crawls, also with a Redis that stands still.

Measures how late a task is that wants to run every 5 ms, from the spider's opening to its last
response: the 99.9th percentile over all rounds and the greatest, in ms. Each crawl has a process of
its own and goes through one local responder; each round runs every variant once, in random order.
Collections of garbage and a machine with busy cores make gaps without a pool, too, so what counts
is by how much the control is exceeded, which only cycles over the list. Beside it: how much of the
gaps this process was at work itself ("busy"), which no other process can lengthen; and the greatest
gap at the close, when nothing is on its way any more (the closing table).

    cycle                 the control
    smooth_wrr
    least_used            with a local Redis
    least_used, stalled   Redis stands still (SIGSTOP) for 2 s in the middle; every request has to
                          arrive all the same

Must hold: the 99.9th percentile at most 20 ms above the control's.

Does not measure: the reload of a long list (load.py), the opening of the pool. Figures of one
round say little: there are one or two collections of garbage in it.

Usage: python benchmarks/gaps.py [--quick] [--proxies N …] [--requests N] [--rounds N]
                                 [--stall SECONDS] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from common import HIGHEST, OURS, crawled, responder, start_crawl, write
from redis import Redis

from farm.redis_server import RedisServer

MUST_HOLD = 20.0  # ms above the control
CONTROL, STALLED = "cycle", "least_used, stalled"
VARIANTS = (CONTROL, "smooth_wrr", "least_used", STALLED)


def settings(name, lines, url):
    if name == CONTROL:
        return {
            "BENCH_PROXIES": lines,
            "DOWNLOADER_MIDDLEWARES": {"worker.CycleMiddleware": HIGHEST},
        }
    own = {**OURS, "SMOOTHPOOL_PROXIES": lines}
    if name != "smooth_wrr":
        own |= {
            "SMOOTHPOOL_STRATEGY": "least_used",
            "SMOOTHPOOL_REDIS_URL": url,
            "SMOOTHPOOL_POOL": "bench",
        }
    return own


def stall(server, process, requests, seconds):
    """Let Redis stand still for a while when half of the picks are made."""
    with Redis.from_url(server.url) as redis:
        while process.poll() is None:
            found = redis.zrange("smoothpool:{bench}:allocations", 0, -1, withscores=True)
            if 2 * sum(count for _, count in found) > requests:
                break
            time.sleep(0.1)
        else:
            return  # it failed, which whoever waits for it will say
    server.pause()
    time.sleep(seconds)
    server.resume()


def run(name, lines, args, server):
    with Redis.from_url(server.url) as redis:
        redis.flushall()
    process = start_crawl(
        {
            **settings(name, lines, server.url),
            "BENCH_URL": "http://site.test/page",
            "BENCH_REQUESTS": args.requests,
        },
        "gap_worker.py",
    )
    if name == STALLED:
        stall(server, process, args.requests, args.stall)
    found = crawled(process)
    if found["requests"] != args.requests:
        raise SystemExit(f"{name}: {found['requests']} responses of {args.requests}")
    if name == STALLED and found["wall"] < args.stall:
        raise SystemExit(f"{name}: the crawl was over before Redis stood still")
    return found


def compare(count, args, server, port):
    lines = [f"http://user{n}:secret@127.0.0.1:{port}" for n in range(count)]
    rows = {name: [] for name in VARIANTS}
    rng = random.Random(count)
    for _ in range(args.rounds):
        for name in rng.sample(VARIANTS, len(VARIANTS)):
            rows[name].append(run(name, lines, args, server))
    figures = {}
    for name, found in rows.items():
        figures[name] = row = {
            "gap_999_ms": late(found, "gaps"),
            "busy_999_ms": late(found, "busy"),
            "gap_max_ms": late(found, "gaps", 1.0),
            "closing_ms": statistics.median(1e3 * one["closing"] for one in found),
            "ticks": sum(len(one["gaps"]) for one in found),
        }
        row["more_ms"] = row["gap_999_ms"] - figures[CONTROL]["gap_999_ms"]
        row["busy_more_ms"] = row["busy_999_ms"] - figures[CONTROL]["busy_999_ms"]
    print(f"\n{count:,} proxies, {args.rounds} rounds of {args.requests:,} requests")
    for name, row in figures.items():
        print(
            f"    {name:22}99.9th {row['gap_999_ms']:6.1f} ms, {row['more_ms']:+6.1f} against the "
            f"control (busy {row['busy_999_ms']:6.1f}, {row['busy_more_ms']:+6.1f}); "
            f"greatest {row['gap_max_ms']:6.1f}, at close {row['closing_ms']:6.1f}",
            flush=True,
        )
    return figures


def late(found, what, share=0.999):
    """Return the ms by which that share of the ticks of all rounds was late at most."""
    ticks = sorted(tick for one in found for tick in one[what])
    return 1e3 * ticks[min(len(ticks) - 1, int(len(ticks) * share))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter crawls, fewer rounds")
    parser.add_argument("--proxies", type=int, nargs="+", default=[10, 10_000])
    parser.add_argument("--requests", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--stall", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.requests = args.requests or (800 if args.quick else 2_000)
    args.rounds = args.rounds or (2 if args.quick else 5)
    sizes, held = {}, []
    with RedisServer() as server, responder() as port:
        for count in args.proxies:
            figures = sizes[count] = compare(count, args, server, port)
            for name in VARIANTS[1:]:
                more = figures[name]["more_ms"]
                what = f"{name}, {count:,} proxies: at most {MUST_HOLD:g} ms above the control"
                held.append({"what": what, "figure": more, "holds": more <= MUST_HOLD})
    for one in held:
        print(f"{'holds ' if one['holds'] else 'BROKEN'}  {one['what']}: {one['figure']:+.1f}")
    write(
        args.json,
        {
            "requests": args.requests,
            "rounds": args.rounds,
            "stall": args.stall,
            "sizes": sizes,
            "must_hold": held,
        },
    )


if __name__ == "__main__":
    main()
