"""How evenly each strategy spreads picks: the smoother, the less a proxy is hit twice in a row.

Measures, over a sequence of picks without failures:

    deviation    the largest distance, of any proxy at any moment, between its picks so far and
                 its ideal share of all picks so far (1 means: never more than one pick off)
    longest run  the most picks in a row that went to one proxy

For each set of weights: smooth_wrr; least_used alone and with four workers that fetch picks for
16 requests each, in the order in which the requests get them (equal weights only); and for
comparison itertools.cycle (over the list with each proxy as often as its weight says),
random.choice (equal weights only) and random.choices with weights. What is random: the median of
several seeds.

Does not measure: penalties, ejections and retries, which are meant to make a spread uneven; time
between requests (a smooth sequence can still bunch up where downloads take unequally long).

Usage: python benchmarks/smoothness.py [--quick] [--seeds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
from functools import partial
from pathlib import Path

from common import write

from farm.redis_server import RedisServer
from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.gathering import GatheredPicks
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.shared_pool import SharedPool
from scrapy_smoothpool.strategies.smooth_wrr import SmoothWeightedRoundRobin

WORKERS, EACH = 4, 16


def weight_sets():
    zipf = {f"p{n}": round(1_000 / n) for n in range(1, 101)}
    return {
        "5, 1, 1": {"a": 5, "b": 1, "c": 1},
        "10 equal": {f"p{n}": 1 for n in range(10)},
        "1,000 equal": {f"p{n}": 1 for n in range(1_000)},
        "one of 10, ten of 1": {"big": 10, **{f"p{n}": 1 for n in range(10)}},
        "zipf, 100": zipf,
        "1 to 5, 1,000": {f"p{n}": 1 + n % 5 for n in range(1_000)},
    }


def judged(sequence, weights):
    """Return (largest deviation, longest run) of a sequence."""
    total = sum(weights.values())
    share = {name: weight / total for name, weight in weights.items()}
    counts = dict.fromkeys(weights, 0)
    largest = 0.0
    longest = run = 0
    before = None
    for t, name in enumerate(sequence):
        # A proxy is furthest behind just before its pick, and furthest ahead just after it.
        behind = share[name] * t - counts[name]
        counts[name] += 1
        ahead = counts[name] - share[name] * (t + 1)
        largest = max(largest, behind, ahead)
        run = run + 1 if name == before else 1
        longest = max(longest, run)
        before = name
    last = len(sequence)
    return max(largest, *(share[n] * last - counts[n] for n in weights)), longest


def smooth_wrr(weights, picks):
    selector = SmoothWeightedRoundRobin(weights)
    return [selector.select() for _ in range(picks)]


def cycle(weights, picks):
    names = [name for name, weight in weights.items() for _ in range(weight)]
    return list(itertools.islice(itertools.cycle(names), picks))


def choice(weights, picks, seed):
    rng, names = random.Random(seed), list(weights)
    return [rng.choice(names) for _ in range(picks)]


def choices(weights, picks, seed):
    return random.Random(seed).choices(list(weights), list(weights.values()), k=picks)


def least_used(weights, picks, workers, url):
    """Return the sequence in which requests of all workers get their picks."""

    async def request(gathered, sequence, rng):
        while len(sequence) < picks:
            taken = gathered.take()
            sequence.append(taken if isinstance(taken, str) else await taken)
            for _ in range(rng.randrange(8)):  # the download
                await asyncio.sleep(0)

    async def all_workers():
        rng, sequence = random.Random(workers), []
        pools = [
            SharedPool(RedisConnection(url), Keys(pool=f"w{workers}n{len(weights)}"))
            for _ in range(workers)
        ]
        await pools[0].publish({name: f"http://{name}.test" for name in weights}, "list")

        async def fetch(pool, number):
            return (await pool.pick_many(number)).members

        gathered = [GatheredPicks(partial(fetch, pool)) for pool in pools]
        await asyncio.gather(
            *(
                request(g, sequence, rng)
                for g in gathered
                for _ in range(EACH if workers > 1 else 1)
            )
        )
        for pool in pools:
            await pool.aclose()
        return sequence[:picks]

    return asyncio.run(all_workers())


def measure(weights, picks, seeds, url):
    """Return strategy → {deviation, run}; None where it does not know weights."""
    equal = len(set(weights.values())) == 1

    def random_ones(function):
        found = [judged(function(weights, picks, seed), weights) for seed in range(seeds)]
        deviations, runs = zip(*found, strict=True)
        return statistics.median(deviations), statistics.median_high(runs)

    found = {"smooth_wrr": judged(smooth_wrr(weights, picks), weights)}
    for name, workers in (("least_used", 1), (f"least_used, {WORKERS} workers", WORKERS)):
        found[name] = judged(least_used(weights, picks, workers, url), weights) if equal else None
    found["cycle"] = judged(cycle(weights, picks), weights)
    found["random.choice"] = random_ones(choice) if equal else None
    found["random.choices"] = random_ones(choices)
    return {
        name: None if one is None else {"deviation": one[0], "run": one[1]}
        for name, one in found.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2,000 picks instead of 20,000")
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    picks = 2_000 if args.quick else 20_000
    sets = {}
    with RedisServer() as server:
        for title, weights in weight_sets().items():
            found = sets[title] = measure(weights, picks, args.seeds, server.url)
            print(f"\n{title}: {picks:,} picks")
            for name, one in found.items():
                text = "knows no weights"
                if one:
                    text = f"deviation {one['deviation']:8.2f}   longest run {one['run']:3}"
                print(f"    {name:24}{text}", flush=True)
    write(args.json, {"picks": picks, "seeds": args.seeds, "sets": sets})


if __name__ == "__main__":
    main()
