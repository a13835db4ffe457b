"""Does a pool hold up the event loop? Whole crawls, also with a Redis that stands still.

Measures how late a task is that wants to run every 5 ms, from the spider's opening to its closing:
the 99.9th percentile and the greatest, in ms. Each crawl has a process of its own and goes through
one local responder; each round runs every variant once, in random order; given are medians of the
rounds. A machine with busy cores has gaps without a pool, too, so what counts is by how much the
control, which only cycles over the list, is exceeded in the same round.

    cycle                 the control
    smooth_wrr
    least_used            with a local Redis
    least_used, stalled   Redis stands still (SIGSTOP) for 2 s in the middle; every request has to
                          arrive all the same

Must hold: the 99.9th percentile at most 20 ms above the control's.

Does not measure: the reload of a long list (load.py), the opening of the pool.

Usage: python benchmarks/gaps.py [--quick] [--proxies N …] [--requests N] [--rounds N]
                                 [--stall SECONDS] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from common import HIGHEST, OURS, crawled, interval, responder, start_crawl, write
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
        }
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
    print(f"\n{count:,} proxies, {args.rounds} rounds of {args.requests:,} requests")
    for name, found in rows.items():
        pairs = list(zip(found, rows[CONTROL], strict=True))
        more = interval([1e3 * (one["gap_999"] - control["gap_999"]) for one, control in pairs])
        figures[name] = {
            "gap_999_ms": [1e3 * one["gap_999"] for one in found],
            "gap_max_ms": [1e3 * one["gap_max"] for one in found],
            "more_ms": more,
        }
        print(
            f"    {name:22}99.9th {statistics.median(figures[name]['gap_999_ms']):6.1f} ms, "
            f"{more[0]:+6.1f} [{more[1]:+.1f}, {more[2]:+.1f}] against the control; "
            f"greatest {max(figures[name]['gap_max_ms']):6.1f} ms",
            flush=True,
        )
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter crawls, fewer rounds")
    parser.add_argument("--proxies", type=int, nargs="+", default=[10, 10_000])
    parser.add_argument("--requests", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--stall", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.requests = args.requests or (600 if args.quick else 2_000)
    args.rounds = args.rounds or (2 if args.quick else 5)
    sizes, held = {}, []
    with RedisServer() as server, responder() as port:
        for count in args.proxies:
            figures = sizes[count] = compare(count, args, server, port)
            for name in VARIANTS[1:]:
                more = figures[name]["more_ms"][0]
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
