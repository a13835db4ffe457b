"""Sockets and memory of a crawl over many proxies, on each download handler.

Measures, for each handler that Scrapy has, for plain pages and for pages through tunnels, with and
without what the pool can do about it, each in a process of its own and in random order:

    opened   connections that the proxies saw: each is dialled, and with tunnels a TLS handshake
    peak     most sockets open at a time during the crawl, looked for every 50 ms
    left     sockets open some seconds after the last response (--after, 5 s)
    memory   what the process has grown by then, from the pool's opening on (resident memory)
    cpu      processor time a request, without what counting the sockets takes

Variants: as Scrapy does (keep), SMOOTHPOOL_CONNECTION_CLOSE (close), and
SMOOTHPOOL_MAX_IDLE_CONNECTIONS at a number (bound). "An idle connection" is the growth of
keep beyond that of close, divided by the sockets that its peak has more, since memory once taken is
hardly given back. Proxies are addresses 127.x.y.z, all served by one other process
(many_proxies.py), which answers everything itself.

Does not measure: waiting (there is no distance, and dialling is what distance makes dear), proxies
that do not close when asked to, failures, what proxies and sites bear, other systems than Linux.

Usage: python benchmarks/connections.py [--quick] [--proxies N] [--requests N] [--bound N]
                                        [--after SECONDS] [--rounds N] [--handlers H …]
                                        [--seed N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent

_HANDLERS = "scrapy.core.downloader.handlers."
HANDLERS = {
    "http11": _HANDLERS + "http11.HTTP11DownloadHandler",
    "aiohttp": _HANDLERS + "_aiohttp.AiohttpDownloadHandler",
    "httpx": _HANDLERS + "_httpx.HttpxDownloadHandler",
}
NEEDS = {"http11": "twisted", "aiohttp": "aiohttp", "httpx": "httpx2"}
SPARE = 500  # descriptors for everything but proxies


def installed():
    """Return the names of the handlers that Scrapy has here."""
    modules = {name: path.rpartition(".")[0] for name, path in HANDLERS.items()}
    return [name for name in HANDLERS if find_spec(modules[name]) and find_spec(NEEDS[name])]


def versions():
    found = {"Python": platform.python_version()}
    for name in ("Scrapy", "Twisted", "aiohttp", "httpx2"):
        if find_spec(name.lower()):
            found[name] = metadata.version(name)
    return found


def commit():
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE
    )
    return done.stdout.strip() or "unknown"


def addresses(count):
    """Return *count* loopback addresses, none of which is 127.0.0.1."""
    return [f"127.1.{n // 250}.{n % 250 + 1}" for n in range(count)]


def run(settings):
    """Run one crawl in a process of its own and return what it measured."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(settings, file)
        file.flush()
        done = subprocess.run(
            [sys.executable, str(HERE / "connections_worker.py"), file.name],
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
        raise SystemExit(f"{result['requests']} responses:\n{done.stderr[-3000:]}")
    return result


def measure(options, proxies):
    """Run every crawl, and return the rows by (handler, scheme, variant)."""
    port = int(proxies.stdout.readline())
    lines = [f"http://{address}:{port}" for address in addresses(options.proxies)]
    variants = {
        "keep": {},
        "close": {"SMOOTHPOOL_CONNECTION_CLOSE": True},
        "bound": {"SMOOTHPOOL_MAX_IDLE_CONNECTIONS": options.bound},
    }
    crawls = [(h, s, v) for h in options.handlers for s in ("http", "https") for v in variants]
    rows = {which: [] for which in crawls}
    rng = random.Random(options.seed)
    for _ in range(options.rounds):
        for handler, scheme, variant in rng.sample(crawls, len(crawls)):
            settings = {
                "BENCH_URL": f"{scheme}://site.test/page",
                "BENCH_REQUESTS": options.requests,
                "BENCH_AFTER": options.after,
                "DOWNLOAD_HANDLERS": dict.fromkeys(("http", "https"), HANDLERS[handler]),
                "SMOOTHPOOL_PROXIES": lines,
                **variants[variant],
            }
            result = run(settings)
            print("", file=proxies.stdin, flush=True)
            result["opened"] = int(proxies.stdout.readline())
            rows[handler, scheme, variant].append(result)
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def middle(found, key):
    return statistics.median(one[key] for one in found)


def table(rows):
    """Return the table in Markdown, and the bytes of an idle connection where there are some."""
    text = [
        "| handler | pages | variant | opened | peak | left | memory, MB | cpu, ms |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for (handler, scheme, variant), found in rows.items():
        cpu = 1e3 * middle(found, "cpu") / found[0]["requests"]
        cells = [handler, scheme, variant]
        cells += [f"{middle(found, key):,.0f}" for key in ("opened", "peak", "left")]
        cells += [f"{middle(found, 'memory') / 1e6:.0f}", f"{cpu:.2f}"]
        text.append(f"| {' | '.join(cells)} |")
    idle = {}
    for handler, scheme, variant in rows:
        if variant == "keep":
            keep, close = rows[handler, scheme, "keep"], rows[handler, scheme, "close"]
            more = middle(keep, "peak") - middle(close, "peak")
            if more > 100:
                grown = middle(keep, "memory") - middle(close, "memory")
                idle[f"{handler} {scheme}"] = grown / more
    return "\n".join(text), idle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="150 proxies, in about two minutes")
    parser.add_argument("--proxies", type=int, default=1_500)
    parser.add_argument("--requests", type=int, help="twice the proxies unless given")
    parser.add_argument("--bound", type=int, help="a tenth of the proxies unless given")
    parser.add_argument("--after", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--handlers", nargs="+", choices=list(HANDLERS), default=installed())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.proxies, options.rounds, options.after = 150, 1, 1.0
    options.requests = options.requests or 2 * options.proxies
    options.bound = options.bound or max(1, options.proxies // 10)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * options.proxies + SPARE:
        raise SystemExit(f"ulimit -Hn is {hard}, which is too few for {options.proxies} proxies")
    about = {
        "machine": f"{platform.machine()} {platform.system()}",
        **versions(),
        "commit": commit(),
        "seed": options.seed,
        "rounds": options.rounds,
        "proxies": options.proxies,
        "requests": options.requests,
        "bound": options.bound,
        "seconds after": options.after,
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    with subprocess.Popen(
        [sys.executable, str(HERE / "many_proxies.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as proxies:
        try:
            rows = measure(options, proxies)
        finally:
            proxies.terminate()
    text, idle = table(rows)
    print(text)
    for name, size in idle.items():
        print(f"an idle connection, {name}: {size / 1e3:.0f} kB")
    if options.json:
        found = [
            {"handler": h, "pages": s, "variant": v, "rounds": rows[h, s, v]} for h, s, v in rows
        ]
        options.json.write_text(
            json.dumps({"about": about, "rows": found, "idle_bytes": idle}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
