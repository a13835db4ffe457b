"""Does a pool grow in a long crawl?

Measures the resident memory of whole crawls at one request and at a later one (20,000 and 200,000),
and how much more it grew than that of the same crawl with a middleware that only cycles over the
list. Each crawl has a process of its own; garbage is collected before each look. All the while

* 3 % of the proxies refuse connections, 5 % are banned for a while, others answer 404 or 503: so
  there are retries, ejections and returns;
* requests go to 5,000 sites, eight to each in a row;
* 5,000 logins at one gateway are the proxies, and every 5,000 requests a tenth of them is replaced
  by logins never seen before.

    smooth_wrr           one verdict for all sites
    smooth_wrr by site   SMOOTHPOOL_SCOPE = "site"; over 100 logins, none of them replaced, since
                         with 5,000 only 40 sites are remembered at a time
    least_used           with a local Redis, whose own memory is given, too

Must hold: less than 5 MB more than the control, from request 20,000 on. Before that, what is
bounded is not full yet.

Does not measure: connections (the handler does no I/O), memory at the start, which is the list's.

Usage: python benchmarks/memory.py [--quick] [--from N] [--to N] [--sessions N] [--sites N]
                                   [--variants V …] [--at-once N] [--json FILE]
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import HIGHEST, OURS, crawled, start_crawl, write
from long_crawl import sessions
from redis import Redis

from farm.redis_server import RedisServer

MUST_HOLD = 5.0  # MB more than the control
WARM = 20_000  # requests from which on it must
FEW = 100
CONTROL = "cycle"
# What has nothing to do with proxies is left out: a crawl takes half as long then.
LEFT_OUT = {
    f"scrapy.downloadermiddlewares.{name}": None
    for name in (
        "cookies.CookiesMiddleware",
        "defaultheaders.DefaultHeadersMiddleware",
        "httpauth.HttpAuthMiddleware",
        "httpcompression.HttpCompressionMiddleware",
        "redirect.MetaRefreshMiddleware",
        "redirect.RedirectMiddleware",
        "useragent.UserAgentMiddleware",
    )
}
VARIANTS = (CONTROL, "smooth_wrr", "smooth_wrr by site", "least_used")


def settings(name, args, url):
    lines = sessions(0, args.sessions)
    every = args.reload
    own = {
        **OURS,
        # Each has but a few requests before it is replaced.
        "SMOOTHPOOL_MAX_FAILS": 1,
        "SMOOTHPOOL_EJECT_AFTER": 2,
        "SMOOTHPOOL_EJECT_TIME": 1,
        "SMOOTHPOOL_EJECT_TIME_MAX": 5,
        "DOWNLOADER_MIDDLEWARES": LEFT_OUT,
    }
    if name == CONTROL:
        own = {
            "BENCH_CONTROL": True,
            "BENCH_PROXIES": lines,
            "DOWNLOADER_MIDDLEWARES": {"long_crawl.ReplaceableCycle": HIGHEST, **LEFT_OUT},
        }
    elif name == "smooth_wrr by site":
        lines, every = lines[:FEW], 0
        own["SMOOTHPOOL_SCOPE"] = "site"
    elif name == "least_used":
        own |= {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": url}
    if name != CONTROL:
        own["SMOOTHPOOL_PROXIES"] = lines
    return {
        **own,
        "BENCH_NULL": True,
        "BENCH_SAMPLES": [args.first, args.last],
        "BENCH_SITES": args.sites,
        "BENCH_SESSIONS": args.sessions,
        "BENCH_RELOAD": every,
        "LOG_LEVEL": "CRITICAL",
    }


def run(name, args, server):
    found = crawled(start_crawl(settings(name, args, server.url), "long_crawl.py"))
    first, last = (found["samples"][str(n)] / 1e6 for n in (args.first, args.last))
    row = {"first_mb": first, "last_mb": last, "grew_mb": last - first}
    told = ("retries", "ejections", "restorations", "crawled", "cpu")
    row |= {what: found[what] for what in told}
    if name == "least_used":
        with Redis.from_url(server.url) as redis:
            row["redis_mb"] = redis.info("memory")["used_memory"] / 1e6
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="from 5,000 to 20,000")
    parser.add_argument("--from", type=int, dest="first", metavar="N")
    parser.add_argument("--to", type=int, dest="last", metavar="N")
    parser.add_argument("--sessions", type=int, default=5_000)
    parser.add_argument("--sites", type=int, default=5_000)
    parser.add_argument("--reload", type=int, default=5_000, help="requests between two reloads")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--at-once", type=int, default=2, help="crawls at the same time")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.first = args.first or (5_000 if args.quick else 20_000)
    args.last = args.last or (20_000 if args.quick else 200_000)
    names = [CONTROL, *(name for name in args.variants if name != CONTROL)]
    with RedisServer() as server, ThreadPoolExecutor(args.at_once) as threads:
        # The control last: it is the shortest.
        futures = {name: threads.submit(run, name, args, server) for name in names[::-1]}
        rows = {name: futures[name].result() for name in names}
    held = []
    print(f"resident memory, MB, from request {args.first:,} to {args.last:,}")
    for name, row in rows.items():
        row["more_mb"] = row["grew_mb"] - rows[CONTROL]["grew_mb"]
        print(
            f"    {name:20}{row['first_mb']:7.1f} to {row['last_mb']:7.1f}  {row['grew_mb']:+6.1f}"
            f"  {row['more_mb']:+6.1f} against the control; {row['retries']:,} retries, "
            f"{row['ejections']:,} ejections, {row['restorations']:,} returns, "
            f"{row['cpu']:.0f} s of processor time"
        )
        if name != CONTROL and args.first >= WARM:
            what = f"{name}: less than {MUST_HOLD:g} MB more than the control"
            held.append(
                {"what": what, "figure": row["more_mb"], "holds": row["more_mb"] < MUST_HOLD}
            )
    for one in held:
        print(f"{'holds ' if one['holds'] else 'BROKEN'}  {one['what']}: {one['figure']:+.1f}")
    write(args.json, {"first": args.first, "last": args.last, "variants": rows, "must_hold": held})


if __name__ == "__main__":
    main()
