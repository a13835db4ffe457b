"""What the pool adds to a crawl, against rotations without a pool, in pairs.

Measures: processor time per request of whole crawls, each in a fresh process, from the spider's
opening to its last response. In turns: each round runs every variant once, in random order, so
that a machine that slows down slows all; given are the medians, and the median and 95 % interval
(bootstrap) of the ratio and difference to the cycling middleware of the same round.

    --null      a download handler without I/O: only engine and middlewares (difference in µs)
    otherwise   a local responder that plays all proxies on one port (ratio)

Variants: cycle (itertools.cycle over the list), random (random.choice), rotating
(scrapy-rotating-proxies, where installed), smooth_wrr, least_used (with a local Redis).

Does not measure: start-up, parsing of lists, dialling, TLS, memory, what is gained by good picks.

Usage: python benchmarks/crawls.py [--null] [--rounds N] [--requests N] [--proxies N …]
                                   [--variants V …] [--delay SECONDS] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "demo_spider"), str(HERE.parent)]

from farm.redis_server import RedisServer  # noqa: E402

OURS = {"ADDONS": {"scrapy_smoothpool.Addon": 500}}
HIGHEST = 610


def variants(names, lines, redis_url, look_ahead):
    """Return the settings of each variant over the same list."""
    own = {"BENCH_PROXIES": lines}
    found = {
        "cycle": {**own, "DOWNLOADER_MIDDLEWARES": {"worker.CycleMiddleware": HIGHEST}},
        "random": {**own, "DOWNLOADER_MIDDLEWARES": {"worker.RandomMiddleware": HIGHEST}},
        "smooth_wrr": {**OURS, "SMOOTHPOOL_PROXIES": lines},
        "least_used": {
            **OURS,
            "SMOOTHPOOL_PROXIES": lines,
            "SMOOTHPOOL_STRATEGY": "least_used",
            "SMOOTHPOOL_REDIS_URL": redis_url,
            "SMOOTHPOOL_POOL": f"bench{len(lines)}",
        },
    }
    found["least_used_ahead"] = {**found["least_used"], "SMOOTHPOOL_LOOK_AHEAD": look_ahead}
    if find_spec("rotating_proxies"):
        found["rotating"] = {
            "ROTATING_PROXY_LIST": lines,
            "DOWNLOADER_MIDDLEWARES": {
                "rotating_proxies.middlewares.RotatingProxyMiddleware": HIGHEST,
                "rotating_proxies.middlewares.BanDetectionMiddleware": HIGHEST + 10,
            },
        }
    return {name: found[name] for name in names if name in found}


def run(settings):
    """Run one crawl in a process of its own and return what it measured."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(settings, file)
        file.flush()
        done = subprocess.run(
            [sys.executable, str(HERE / "worker.py"), file.name],
            capture_output=True,
            text=True,
            cwd=HERE,
            env={"PYTHONPATH": f"{HERE.parent}:{HERE}", "PATH": "/usr/bin:/bin"},
        )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"a crawl failed:\n{done.stderr[-3000:]}")
    result = json.loads(lines[-1])
    if result["requests"] != settings["BENCH_REQUESTS"]:
        raise SystemExit(f"{result['requests']} responses of {settings['BENCH_REQUESTS']}")
    return result


def interval(values, seed=1):
    """Return the median and its 95 % interval (2,000 bootstrap samples)."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2_000))
    return statistics.median(values), medians[50], medians[1949]


class Delay:
    """A TCP relay that holds every byte for a while, each way: a distant Redis."""

    def __init__(self, port, seconds):
        self.target, self.seconds = port, seconds / 2
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        threading.Thread(target=self._main, daemon=True).start()
        self.ready.wait()

    def _main(self):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0)
        )
        self.port = self.server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()

    async def _serve(self, reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader, writer):
        while data := await reader.read(65_536):
            self.loop.call_later(self.seconds, writer.write, data)
        self.loop.call_later(self.seconds, writer.close)


def compare(args, count, redis_url, port):
    """Run all variants over *count* proxies and return the figures."""
    lines = [f"http://user{n}:secret@127.0.0.1:{port}" for n in range(count)]
    chosen = variants(args.variants, lines, redis_url, args.look_ahead)
    base = {
        "BENCH_URL": "http://site.test/page",
        "BENCH_REQUESTS": args.requests,
        "BENCH_NULL": args.null,
    }
    rows = {name: [] for name in chosen}
    rng = random.Random(count)
    for _ in range(args.rounds + 1):
        for name in rng.sample(list(chosen), len(chosen)):
            rows[name].append(run({**base, **chosen[name]}))
    rows = {name: found[1:] for name, found in rows.items()}  # the first round warms up
    print(f"\n{count:,} proxies, {args.rounds} rounds of {args.requests:,} requests")
    figures = {}
    for name, found in rows.items():
        micro = [1e6 * one["cpu"] / one["requests"] for one in found]
        rate = [one["requests"] / one["wall"] for one in found]
        control = rows["cycle"]
        ratio = interval([a["cpu"] / b["cpu"] for a, b in zip(found, control, strict=True)])
        more = interval(
            [
                1e6 * (a["cpu"] - b["cpu"]) / a["requests"]
                for a, b in zip(found, control, strict=True)
            ]
        )
        speed = interval([b["wall"] / a["wall"] for a, b in zip(found, control, strict=True)])
        gap = max(one["gap_999"] for one in found)
        print(
            f"  {name:17} {statistics.median(micro):7.1f} µs  "
            f"{more[0]:+7.1f} µs [{more[1]:+.1f}, {more[2]:+.1f}]  "
            f"× {ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}]  "
            f"{statistics.median(rate):6.0f}/s, speed × {speed[0]:.3f} "
            f"[{speed[1]:.3f}, {speed[2]:.3f}]  gap p99.9 {1000 * gap:.1f} ms",
            flush=True,
        )
        figures[name] = {
            "cpu_us": micro,
            "rate": rate,
            "ratio": ratio,
            "more_us": more,
            "speed": speed,
            "gap_999": [one["gap_999"] for one in found],
            "gap_max": [one["gap_max"] for one in found],
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--null", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--proxies", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before Redis")
    parser.add_argument("--look-ahead", type=int, default=64)
    parser.add_argument(
        "--variants", nargs="+", default=["cycle", "random", "rotating", "smooth_wrr", "least_used"]
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if "cycle" not in args.variants:
        args.variants.insert(0, "cycle")
    figures = {}
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        redis_url = server.url
        if args.delay:
            redis_url = f"redis://127.0.0.1:{Delay(server.port, args.delay).port}/0"
        responder = stack.enter_context(
            subprocess.Popen(
                [sys.executable, str(HERE / "responder.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        port = int(responder.stdout.readline())
        for count in args.proxies:
            figures[count] = compare(args, count, redis_url, port)
        responder.terminate()
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
