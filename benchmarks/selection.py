"""What one `select()` costs, against the plain O(n) loop in the same run.

Measures the processor time of a pick of `SmoothWeightedRoundRobin` at 10, 10,000 and 100,000
proxies, and of the plain loop of tests/reference_wrr.py over the same weights at 10 and 10,000:

    ten weights         100, 200 … 1000
    all distinct        every weight another one, in random list order
    half recovering     all distinct, every second one penalised by half anew before each round
                        (which is not part of the time), from the first to the last pick
    failing every pick  all distinct, each picked one penalised by weight // 3 + 1 (the penalty is
                        part of the time)
    three excluded      ten weights, three names excluded from each pick

In each round all five selectors take their turn, so that a machine that slows down slows all of
them; ratios are taken within a round. Given are medians over the rounds, 95 % intervals of the
median (bootstrap), and whether what must hold does. Distinct weights are of one range at any size,
100,000 to 2,100,000, as the strategy's scale makes them at 100,000 proxies: so none of the
recovering heals unnoticed during a round at 10.

Then, at 100,000: the time of building, of `snapshot`, and of `update` with nothing, a few and all
things different, each with the pick after it; bytes a proxy (tracemalloc). Last, whether a pick
gets slower as t grows (t up to 10**8). Where numpy can be imported, a plain loop in numpy too.

Does not measure: waiting, a crawl, threads, other Pythons, or any other implementation. Each
selector starts with a round that is thrown away. A pick's worst case is not looked for.

Usage: python benchmarks/selection.py [--quick] [--seed N] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import subprocess
import sys
import tracemalloc
from pathlib import Path
from time import process_time

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from reference_wrr import PlainLoop  # noqa: E402
from scrapy_smoothpool.strategies.smooth_wrr import SmoothWeightedRoundRobin  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None

SMALL, MIDDLE, LARGE = 10, 10_000, 100_000
MUST_BE_FASTER = {  # than the plain loop, at MIDDLE
    "ten weights": 80,
    "all distinct": 60,
    "half recovering": 50,
    "failing every pick": 25,
    "three excluded": None,
}
MUST_GROW_AT_MOST = 4  # from SMALL to LARGE
MUST_BE_WITHIN = 3  # times the plain loop, at SMALL


class NumpyLoop:
    """The plain loop of healthy proxies, in numpy."""

    def __init__(self, weights):
        self.names = list(weights)
        self.weights = numpy.array(list(weights.values()), dtype=numpy.int64)
        self.current = numpy.zeros(len(weights), dtype=numpy.int64)
        self.total = int(self.weights.sum())

    def select(self):
        self.current += self.weights
        best = int(self.current.argmax())
        self.current[best] -= self.total
        return self.names[best]


def weights_of(kind, n, seed):
    if kind in ("ten weights", "three excluded"):
        return {f"p{i}": 100 * (1 + i % 10) for i in range(n)}
    numbers = random.Random(seed).sample(range(100_000, 2_100_000), n)
    return {f"p{i}": number for i, number in enumerate(numbers)}


class Situation:
    """One selector in one situation; `round` gives the seconds a pick took."""

    def __init__(self, selector, kind, n, seed, picks):
        self.kind, self.picks = kind, picks
        self.weights = weights_of(kind, n, seed)
        self.excluded = ()
        if kind == "three excluded":
            self.excluded = random.Random(seed).sample(list(self.weights), 3)
        self.wrr = selector(self.weights)

    def round(self, picks=None):
        picks = picks or self.picks
        select, penalize, weights = (
            self.wrr.select,
            getattr(self.wrr, "penalize", None),
            self.weights,
        )
        excluded = self.excluded
        if self.kind == "half recovering":
            for name in list(weights)[::2]:
                penalize(name, weights[name] // 2 + 1)
            select()  # the mass of penalties is taken in here, outside the time
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


def interval(values, rng):
    """The median and its 95 % interval, by resampling."""
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(1000))
    return {"median": statistics.median(values), "low": medians[24], "high": medians[974]}


def measure(kind, rounds, picks, seed):
    """Intervals of seconds a pick and of ratios, all selectors in turns."""
    ours, loop = SmoothWeightedRoundRobin, PlainLoop
    situations = {
        "ours at 10": Situation(ours, kind, SMALL, seed, picks),
        "loop at 10": Situation(loop, kind, SMALL, seed, picks),
        "ours at 10,000": Situation(ours, kind, MIDDLE, seed, picks),
        "loop at 10,000": Situation(loop, kind, MIDDLE, seed, max(3, picks // 500)),
        "ours at 100,000": Situation(ours, kind, LARGE, seed, picks),
    }
    if numpy and kind in ("ten weights", "all distinct"):
        situations["numpy at 10,000"] = Situation(NumpyLoop, kind, MIDDLE, seed, picks // 10)
    for name, situation in situations.items():
        situation.round(2 * len(situation.weights) if name.startswith("ours") else None)
    took = {name: [] for name in situations}
    for _ in range(rounds):
        for name, situation in situations.items():
            took[name].append(situation.round())
    pairs = {
        "times faster at 10,000": ("loop at 10,000", "ours at 10,000"),
        "times the loop at 10": ("ours at 10", "loop at 10"),
        "growth from 10 to 100,000": ("ours at 100,000", "ours at 10"),
    }
    rng = random.Random(seed)
    figures = {name: interval(values, rng) for name, values in took.items()}
    for name, (over, under) in pairs.items():
        ratios = [a / b for a, b in zip(took[over], took[under], strict=True)]
        figures[name] = interval(ratios, rng)
    return figures


def verdicts(kind, figures):
    """(what must hold, the median, whether it holds)."""
    faster = figures["times faster at 10,000"]["median"]
    within = figures["times the loop at 10"]["median"]
    growth = figures["growth from 10 to 100,000"]["median"]
    least = MUST_BE_FASTER[kind]
    if least is None:
        return []  # nothing is promised of this one
    return [
        (f"{kind}: at 10,000 at least {least} × faster than the loop", faster, faster >= least),
        (f"{kind}: at 10 at most {MUST_BE_WITHIN} × the loop", within, within <= MUST_BE_WITHIN),
        (
            f"{kind}: at 100,000 at most {MUST_GROW_AT_MOST} × the cost at 10",
            growth,
            growth <= MUST_GROW_AT_MOST,
        ),
    ]


def whole_list(n, repeats, seed):
    """Median seconds of what goes over the whole list, each with the pick after it."""
    weights = weights_of("all distinct", n, seed)
    few = {name: weight for name, weight in weights.items() if name not in ("p3", "p700")}
    few |= {"new1": 1_000_000, "new2": 500_000}
    heavier = few | {"p5": few["p5"] + 1000, "p900": few["p900"] // 2}
    doubled = {name: 2 * weight for name, weight in heavier.items()}
    steps = {
        "snapshot": lambda wrr: wrr.snapshot(),
        "update, nothing differs": lambda wrr: wrr.update(weights),
        "update, 2 removed and 2 added": lambda wrr: wrr.update(few),
        "update, 2 weights changed": lambda wrr: wrr.update(heavier),
        "update, all weights doubled": lambda wrr: wrr.update(doubled),
    }
    took = {step: [] for step in ("build, with the first pick", *steps)}
    for _ in range(repeats):
        gc.collect()
        started = process_time()
        wrr = SmoothWeightedRoundRobin(weights)
        wrr.select()
        took["build, with the first pick"].append(process_time() - started)
        for step, action in steps.items():
            for _ in range(1000):
                wrr.penalize(wrr.select(), 50_000)
            gc.collect()
            started = process_time()
            action(wrr)
            wrr.select()
            took[step].append(process_time() - started)
    return {step: statistics.median(values) for step, values in took.items()}


def bytes_a_proxy(n, seed):
    """Bytes a proxy beyond the weights given: built, picked from, half of them recovering."""
    weights = weights_of("all distinct", n, seed)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]

    def used():
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / n

    wrr = SmoothWeightedRoundRobin(weights)
    wrr.select()
    sizes = {"built": used()}
    for _ in range(n):
        wrr.select()
    sizes["after n picks"] = used()
    for name in list(weights)[::2]:
        wrr.penalize(name, weights[name] // 2 + 1)
    wrr.select()
    sizes["half recovering"] = used()
    tracemalloc.stop()
    return sizes


def at_late_t(n, picks, seed):
    """The cost of a failing pick with t moved on to 10**8, as after as many picks, to that at 0."""
    took = []
    for t in (0, 10**8):
        situation = Situation(SmoothWeightedRoundRobin, "failing every pick", n, seed, picks)
        wrr = situation.wrr
        standings = [(slot, *wrr._take(slot)) for slot in range(n)]
        wrr._t = t
        for standing in standings:
            wrr._place(*standing)
        situation.round()
        took.append(min(situation.round() for _ in range(5)))
    return took[1] / took[0]


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


def shown(figure, scale=1.0):
    low, high = figure["low"] * scale, figure["high"] * scale
    return f"{figure['median'] * scale:8.2f}  [{low:.2f}, {high:.2f}]"


def main():
    parser = argparse.ArgumentParser(description="What one select() costs.")
    parser.add_argument(
        "--quick", action="store_true", help="shorter rounds, about a minute in all"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    rounds, picks = (20, 500) if options.quick else (30, 3_000)
    about = {
        "machine": f"{platform.machine()} {platform.system()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "seed": options.seed,
        "commit": commit(),
        "rounds": rounds,
        "picks a round": picks,
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    situations, held = {}, []
    for kind in MUST_BE_FASTER:
        figures = situations[kind] = measure(kind, rounds, picks, options.seed)
        print(f"{kind}: median  [95 % interval]")
        for name, figure in figures.items():
            unit, scale = ("µs", 1e6) if " at " in name and "time" not in name else ("×", 1.0)
            print(f"    {name:26}{shown(figure, scale)} {unit}")
        held += verdicts(kind, figures)
    lists = whole_list(LARGE, 3 if options.quick else 7, options.seed)
    print(f"{LARGE:,} proxies as a whole, each with the pick after it, median ms")
    for step, took in lists.items():
        print(f"    {step:50}{took * 1e3:10.2f}")
    memory = bytes_a_proxy(LARGE, options.seed)
    print("bytes a proxy: " + ", ".join(f"{size:.0f} {when}" for when, size in memory.items()))
    late = at_late_t(1000, picks, options.seed)
    print(f"at t = 10**8 a failing pick among 1,000 takes {late:.2f} × that at t = 0")
    print("must hold:")
    for what, figure, holds in held:
        print(f"    {'holds ' if holds else 'BROKEN'}  {what}: {figure:.2f}")
    if options.json:
        results = {
            "about": about,
            "situations": situations,
            "seconds_at_100000": lists,
            "bytes_a_proxy": memory,
            "late_t": late,
            "must_hold": [{"what": w, "figure": f, "holds": h} for w, f, h in held],
        }
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
