"""1, 2, 4 and 8 worker processes that share one pool in one Redis.

Measures, for the same number of requests split among the workers, all of them through one local
responder and begun at the same moment:

    a second           requests of all workers, until the last one has finished
    µs a request       processor time of all workers, without the responder and Redis
    µs of the server   processor time of Redis a request, sockets included
    spread             the most a proxy was picked less the least (1 is as even as can be)

with `least_used`, and with a middleware that cycles over the list (no Redis) for comparison, in
turns; given are the medians of the rounds and their 95 % intervals. What is to be read from it is
whether sharing a pool costs more when there are more to share it: cores are what workers lack
first, so beyond the machine's number the requests a second cannot grow, pool or not.

Does not measure: other machines (the network), pauses, a pool with proxies that fail.

Usage: python benchmarks/workers.py [--quick] [--workers N …] [--requests N] [--proxies N]
                                    [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from common import HIGHEST, OURS, crawled, interval, responder, start_crawl, write
from redis import Redis

from farm.redis_server import RedisServer


def settings(name, lines, url, pool):
    if name == "cycle":
        return {
            "BENCH_PROXIES": lines,
            "DOWNLOADER_MIDDLEWARES": {"worker.CycleMiddleware": HIGHEST},
        }
    return {
        **OURS,
        "SMOOTHPOOL_PROXIES": lines,
        "SMOOTHPOOL_STRATEGY": "least_used",
        "SMOOTHPOOL_REDIS_URL": url,
        "SMOOTHPOOL_POOL": pool,
    }


def spent(redis):
    cpu = redis.info("cpu")
    return cpu["used_cpu_user"] + cpu["used_cpu_sys"]


def run(name, workers, requests, lines, url):
    """Let the workers crawl; return what all of them together did."""
    with Redis.from_url(url) as redis:
        redis.flushall()
        each = requests // workers
        given = {
            **settings(name, lines, url, "bench"),
            "BENCH_URL": "http://site.test/page",
            "BENCH_REQUESTS": each,
        }
        started = [start_crawl(given, "waiting_worker.py", talks=True) for _ in range(workers)]
        for process in started:
            if process.stdout.readline() != "ready\n":
                raise SystemExit(f"a worker failed:\n{process.communicate()[1][-3000:]}")
        before = spent(redis)
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        found = [crawled(process) for process in started]
        server = spent(redis) - before
        if any(one["requests"] != each for one in found):
            raise SystemExit(f"{[one['requests'] for one in found]} responses of {each} each")
        counts = [
            count
            for _, count in redis.zrange("smoothpool:{bench}:allocations", 0, -1, withscores=True)
        ]
    total = each * workers
    return {
        "rate": total / max(one["wall"] for one in found),
        "cpu_us": 1e6 * sum(one["cpu"] for one in found) / total,
        "server_us": 1e6 * server / total,
        "spread": max(counts) - min(counts) if counts else None,
        "picks": sum(counts) if counts else None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests and rounds")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--requests", type=int, help="of all workers together")
    parser.add_argument("--proxies", type=int, default=1_000)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    requests = args.requests or (1_600 if args.quick else 4_000)
    rounds = args.rounds or (1 if args.quick else 3)
    cases = [(name, number) for name in ("cycle", "least_used") for number in args.workers]
    rows = {case: [] for case in cases}
    rng = random.Random(1)
    with RedisServer() as server, responder() as port:
        lines = [f"http://user{n}:secret@127.0.0.1:{port}" for n in range(args.proxies)]
        for _ in range(rounds):
            for case in rng.sample(cases, len(cases)):
                rows[case].append(run(*case, requests, lines, server.url))
    figures = []
    print(f"{requests:,} requests over {args.proxies:,} proxies, {rounds} rounds")
    for (name, number), found in rows.items():
        row = {"strategy": name, "workers": number}
        for what in ("rate", "cpu_us", "server_us"):
            row[what] = interval([one[what] for one in found])
        shared = name == "least_used"
        row["spread"] = max(one["spread"] for one in found) if shared else None
        figures.append(row)
        print(
            f"  {name:12}{number:2} workers {row['rate'][0]:7.0f} a second "
            f"{row['cpu_us'][0]:7.0f} µs a request  {row['server_us'][0]:5.1f} µs of the server"
            + (f"  spread {row['spread']:g}" if shared else "")
        )
    write(args.json, {"requests": requests, "proxies": args.proxies, "rows": figures})


if __name__ == "__main__":
    main()
