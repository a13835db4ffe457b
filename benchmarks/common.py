"""What the benchmarks share: intervals, crawls in processes of their own, who ran them where."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT / "demo_spider"), str(ROOT)]

OURS = {"ADDONS": {"scrapy_smoothpool.Addon": 500}}
HIGHEST = 610


def interval(values, seed=1):
    """Return the median and its 95 % interval (2,000 bootstrap samples)."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2_000))
    return statistics.median(values), medians[50], medians[1949]


def start_crawl(settings, script="worker.py", talks=False):
    """Start one crawl in a process of its own; `crawled` waits for it."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(settings, file)
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), file.name],
        stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE,
        env={"PYTHONPATH": f"{ROOT}:{HERE}", "PATH": "/usr/bin:/bin"},
    )
    process.settings_file = Path(file.name)
    return process


def crawled(process):
    """Return what the crawl measured, once it has ended."""
    out, errors = process.communicate()
    process.settings_file.unlink()
    lines = out.splitlines()
    if process.returncode or not lines:
        raise SystemExit(f"a crawl failed:\n{errors[-3000:]}")
    return json.loads(lines[-1])


def responder():
    """Run the canned responder, as a context manager that gives its port."""
    return _serving("responder.py")


def relay(port, seconds):
    """Run a relay to *port* with that much delay, as a context manager that gives its port."""
    return _serving("relay.py", str(port), str(seconds))


@contextmanager
def _serving(script, *arguments):
    with subprocess.Popen(
        [sys.executable, str(HERE / script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def write(path, figures):
    """Write the figures where `--json` says, if it does."""
    if path:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def about():
    """Say when, where and with what the benchmarks run."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {
            "cores": _cores(),
            "processor": _processor(),
            "system": _system(),
        },
        "versions": {
            "Python": f"{platform.python_version()} ({platform.python_implementation()})",
            "Scrapy": _version("scrapy"),
            "Twisted": _version("twisted"),
            "redis-py": _version("redis"),
            "hiredis": _version("hiredis"),
            "scrapy-rotating-proxies": _version("scrapy-rotating-proxies"),
            "server": _server(),
        },
        "commit": _commit(),
    }


def _cores():
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count()


def _processor():
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _system():
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = platform.system()
    return f"{name}, {platform.system()}, {platform.machine()}"


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _server():
    from farm.redis_server import ServerNotFound, find_server

    try:
        words = subprocess.run(
            [find_server(), "--version"], capture_output=True, text=True, check=True
        ).stdout.split()
    except (ServerNotFound, OSError, subprocess.CalledProcessError):
        return "none"
    number = next((word[2:] for word in words if word.startswith("v=")), "unknown")
    return f"{words[0]} {number}"


def _commit():
    def git(*words):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        changed = git("status", "--porcelain", "--", "scrapy_smoothpool", "benchmarks/*.py")
        return (git("rev-parse", "--short", "HEAD") or "unknown") + (", changed" if changed else "")
    except OSError:
        return "unknown"
