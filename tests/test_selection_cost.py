"""A pick's cost stays far below a visit to every proxy, whatever the weights.

Counted, not timed: the unit is one replayed node of a tournament, against one proxy visited by the
plain loop. A replay takes up to five times as long as a visit (benchmarks/selection.py has the
times), so 1/250 of the visits is at most 1/50 of the loop's time.
"""

from __future__ import annotations

import random

import pytest

from scrapy_smoothpool.strategies import smooth_wrr
from scrapy_smoothpool.strategies.smooth_wrr import SmoothWeightedRoundRobin
from scrapy_smoothpool.strategies.tournament import KineticTournament

N = 10_000
PICKS = 5_000
REPLAYS_A_VISIT = 5

WEIGHTS = {
    "equal": lambda rng: [100] * N,
    "ten distinct": lambda rng: [100 * (1 + i % 10) for i in range(N)],
    "all distinct": lambda rng: rng.sample(range(1, 20 * N), N),
    "one giant": lambda rng: [10**9] + [1] * (N - 1),
    "powers of two": lambda rng: [1 << rng.randrange(40) for _ in range(N)],
}


class Counting(list):
    """A tournament's due times: each match played writes one."""

    writes = 0

    def __setitem__(self, index, value):
        Counting.writes += 1
        super().__setitem__(index, value)


class CountingTournament(KineticTournament):
    def __init__(self, lines):
        super().__init__(lines)
        self._due = Counting(self._due)


@pytest.fixture
def replays_a_pick(monkeypatch):
    monkeypatch.setattr(smooth_wrr, "KineticTournament", CountingTournament)

    def measure(wrr, pick):
        wrr.select()  # the first one plays every match
        Counting.writes = 0
        for _ in range(PICKS):
            pick()
        return Counting.writes / PICKS

    return measure


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("health", ["healthy", "half recovering", "a failure a pick"])
def test_a_pick_among_ten_thousand_costs_a_fiftieth_of_the_plain_loop(replays_a_pick, kind, health):
    weights = {f"p{i}": w for i, w in enumerate(WEIGHTS[kind](random.Random(1)))}
    wrr = SmoothWeightedRoundRobin(weights)
    if health == "half recovering":
        for name in list(weights)[::2]:
            wrr.penalize(name, weights[name] // 2 + 1)

    def pick():
        name = wrr.select()
        if health == "a failure a pick":
            wrr.penalize(name, weights[name] // 3 + 1)

    # A failing pick costs the plain loop no visit more, and is promised at half as much.
    promised = 25 if health == "a failure a pick" else 50
    assert replays_a_pick(wrr, pick) <= N / promised / REPLAYS_A_VISIT


def test_excluding_a_few_costs_a_few_paths(replays_a_pick):
    weights = {f"p{i}": 100 * (1 + i % 10) for i in range(N)}
    wrr = SmoothWeightedRoundRobin(weights)
    tried = [f"p{i}" for i in range(0, N, N // 4)]
    levels = N.bit_length()
    assert replays_a_pick(wrr, lambda: wrr.select(tried)) <= 2 * (len(tried) + 1) * levels


def test_a_few_differences_among_ten_thousand_cost_a_few_matches(replays_a_pick):
    weights = {f"p{i}": w for i, w in enumerate(random.Random(1).sample(range(1, 20 * N), N))}
    wrr = SmoothWeightedRoundRobin(weights)
    rounds = iter(range(PICKS))

    def reload_and_pick():
        number = next(rounds)
        if number % 100 == 0:
            del weights[f"p{number}"]
            weights[f"new{number}"] = number + 1
            weights[f"p{number + 1}"] += 1
            wrr.update(weights)
        wrr.select()

    # Three changes a reload, each two matches or so and the winner's path at worst.
    assert replays_a_pick(wrr, reload_and_pick) <= 2 * N.bit_length()


def test_failures_forever_leave_nothing_behind():
    wrr = SmoothWeightedRoundRobin({f"p{i}": 10**6 for i in range(20)})
    for step in range(20_000):
        name = wrr.select([f"p{step % 7}"])
        wrr.penalize(name, 300_000)
    assert len(wrr._healing) <= len(wrr)


def test_coming_and_going_forever_leaves_nothing_behind():
    wrr = SmoothWeightedRoundRobin({f"p{i}": 1000 for i in range(20)})
    for step in range(5_000):
        wrr.add(f"p{step + 20}", 1000)
        wrr.penalize(f"p{step + 20}", 500)
        wrr.remove(f"p{step}")
        wrr.select()
    assert len(wrr) == 20
    assert max(len(wrr._names), len(wrr._healing), wrr._lines.capacity) <= 64
