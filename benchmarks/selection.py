"""What one `select()` costs, against the plain O(n) loop in the same run.

Measures: the processor time of a pick of `SmoothWeightedRoundRobin` and of the plain loop of
tests/reference_wrr.py over the same weights, in turns (so that a machine that slows down slows
both), as medians of several rounds and as their ratio, at 10, 10,000 and 100,000 proxies:

    ten weights         100, 200 … 1000
    all distinct        every weight another one, in random list order
    half recovering     all distinct, every second one penalised by half anew before each round
    failing every pick  all distinct, each picked one penalised by weight // 3 + 1 (the penalty is
                        part of the time)
    three excluded      ten weights, three names excluded from each pick

Also the time to build a pool, and whether a pick gets slower as t grows (t up to 10**8).

Does not measure: waiting, a crawl, memory, threads, or any other implementation. Both start with a
round that is thrown away. The loop is not run at 100,000, where only the growth from 10 is of
interest.

Usage: python benchmarks/selection.py [--quick] [--seed N]
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import subprocess
import sys
from pathlib import Path
from time import process_time

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from reference_wrr import PlainLoop  # noqa: E402
from scrapy_smoothpool.strategies.smooth_wrr import SmoothWeightedRoundRobin  # noqa: E402

SITUATIONS = (
    "ten weights",
    "all distinct",
    "half recovering",
    "failing every pick",
    "three excluded",
)


class Situation:
    """One selector in one situation; `round` gives the seconds a pick took."""

    def __init__(self, selector, kind, n, seed):
        rng = random.Random(seed)
        if kind in ("ten weights", "three excluded"):
            numbers = [100 * (1 + i % 10) for i in range(n)]
        else:
            numbers = rng.sample(range(1, 20 * n + 1000), n)
        self.weights = {f"p{i}": number for i, number in enumerate(numbers)}
        self.excluded = rng.sample(list(self.weights), 3) if kind == "three excluded" else ()
        self.kind = kind
        started = process_time()
        self.wrr = selector(self.weights)
        self.build_seconds = process_time() - started

    def round(self, picks):
        if self.kind == "half recovering":
            for name in list(self.weights)[::2]:
                self.wrr.penalize(name, self.weights[name] // 2 + 1)
            self.wrr.select()  # the mass of penalties is taken in here, outside the time
        select, penalize, weights, excluded = (
            self.wrr.select,
            self.wrr.penalize,
            self.weights,
            self.excluded,
        )
        started = process_time()
        if self.kind == "failing every pick":
            for _ in range(picks):
                name = select()
                penalize(name, weights[name] // 3 + 1)
        elif excluded:
            for _ in range(picks):
                select(excluded)
        else:
            for _ in range(picks):
                select()
        return (process_time() - started) / picks


def compare(kind, n, rounds, picks, seed):
    """Median seconds a pick: (ours, the plain loop's or None), and the seconds to build ours."""
    ours = Situation(SmoothWeightedRoundRobin, kind, n, seed)
    loop = Situation(PlainLoop, kind, n, seed) if n <= 10_000 else None
    loop_picks = max(3, picks // (n // 10))
    times, loop_times = [], []
    for number in range(rounds + 1):
        ours_took = ours.round(picks if number else max(picks, 2 * n))
        loop_took = loop.round(loop_picks) if loop else None
        if number:
            times.append(ours_took)
            loop_times.append(loop_took)
    median = statistics.median
    return median(times), median(loop_times) if loop else None, ours.build_seconds


def at_late_t(n, picks, seed):
    """Seconds a pick with t moved on to 0 and to 10**8, as after as many picks."""
    took = []
    for t in (0, 10**8):
        situation = Situation(SmoothWeightedRoundRobin, "failing every pick", n, seed)
        wrr = situation.wrr
        standings = [(slot, *wrr._take(slot)) for slot in range(n)]
        wrr._t = t
        for standing in standings:
            wrr._place(*standing)
        situation.round(picks)
        took.append(min(situation.round(picks) for _ in range(5)))
    return took


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


def main():
    parser = argparse.ArgumentParser(description="What one select() costs.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, some seconds in all")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rounds, picks = (3, 1_000) if options.quick else (11, 5_000)
    print(
        f"{platform.machine()} {platform.system()}, {platform.python_implementation()} "
        f"{platform.python_version()}, seed {options.seed}, commit {commit()}, "
        f"medians of {rounds} rounds of {picks} picks"
    )
    at_ten = {}
    print(f"{'proxies':>8}  {'situation':20}{'µs a pick':>10}{'loop µs':>10}   {'ratio':>22}")
    for n in (10, 10_000, 100_000):
        for kind in SITUATIONS:
            ours, loop, built = compare(kind, n, rounds, picks, options.seed)
            at_ten.setdefault(kind, ours)
            if loop is None:
                ratio, loop_text = f"{ours / at_ten[kind]:.1f} × its cost at 10", "-"
            else:
                faster = loop > ours
                ratio = f"{loop / ours:.0f} × faster" if faster else f"{ours / loop:.1f} × slower"
                loop_text = f"{loop * 1e6:.1f}"
            print(f"{n:8}  {kind:20}{ours * 1e6:10.1f}{loop_text:>10}   {ratio:>22}")
        print(f"{n:8}  built in {built * 1e3:.1f} ms")
    early, late = at_late_t(1000, picks, options.seed)
    print(f"    1000  at t = 10**8 a failing pick takes {late / early:.2f} × that at t = 0")


if __name__ == "__main__":
    main()
