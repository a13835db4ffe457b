"""The selector does what the plain loop does: every pick, and every weight left behind.

Twice: a hypothesis state machine, which finds small counterexamples, and 200 fixed runs of 10,000
random operations, which get far into a pool's life. A failing run names its seed.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reference_wrr import PlainLoop
from scrapy_smoothpool.strategies import smooth_wrr
from scrapy_smoothpool.strategies.smooth_wrr import SmoothWeightedRoundRobin

RUNS = 200
OPERATIONS = 10_000
RUNS_A_TEST = 10


def snapshot_of(wrr):
    """Names in order, with (weight, effective_weight, current_weight, disabled)."""
    return [(name, tuple(state)) for name, state in wrr.snapshot().items()]


class BothAgree(RuleBasedStateMachine):
    """Every operation goes to both; nothing may tell them apart."""

    weights = st.one_of(st.integers(0, 6), st.integers(0, 1000))

    def __init__(self):
        super().__init__()
        self.wrr, self.loop, self.added = SmoothWeightedRoundRobin({}), PlainLoop({}), 0

    def both(self, operation, *args, **kwargs):
        ours = getattr(self.wrr, operation)(*args, **kwargs)
        theirs = getattr(self.loop, operation)(*args, **kwargs)
        assert ours == theirs
        return ours

    def any_name(self, data):
        return data.draw(st.sampled_from(list(self.loop.peers)))

    @rule(times=st.integers(1, 12))
    def select(self, times):
        for _ in range(times):
            self.both("select")

    @rule(data=st.data())
    def select_without(self, data):
        names = st.sampled_from([*self.loop.peers, "nobody"])
        self.both("select", data.draw(st.lists(names, max_size=6)))

    @rule(by=st.integers(0, 700))
    def select_and_fail(self, by):
        name = self.both("select")
        if name is not None:
            self.both("penalize", name, by)

    @rule(weight=weights)
    def add(self, weight):
        self.added += 1
        self.both("add", f"p{self.added}", weight)

    @precondition(lambda self: len(self.loop))
    @rule(data=st.data(), by=st.integers(0, 1200))
    def penalize(self, data, by):
        self.both("penalize", self.any_name(data), by)

    @precondition(lambda self: len(self.loop))
    @rule(data=st.data(), operation=st.sampled_from(["disable", "enable", "remove"]))
    def switch(self, data, operation):
        self.both(operation, self.any_name(data))

    @precondition(lambda self: len(self.loop))
    @rule(data=st.data())
    def enable_from_zero(self, data):
        self.both("enable", self.any_name(data), from_zero=True)

    @precondition(lambda self: len(self.loop))
    @rule(data=st.data(), weight=weights)
    def reweight(self, data, weight):
        self.both("reweight", self.any_name(data), weight)

    @rule(data=st.data())
    def update(self, data):
        names = [*self.loop.peers, f"p{self.added + 1}", f"p{self.added + 2}"]
        self.added += 2
        kept = data.draw(st.lists(st.sampled_from(names), unique=True))
        old = {name: peer.weight for name, peer in self.loop.peers.items()}
        change = data.draw(st.booleans())
        self.both(
            "update",
            {
                name: data.draw(self.weights) if change or name not in old else old[name]
                for name in kept
            },
        )

    @invariant()
    def nothing_tells_them_apart(self):
        assert snapshot_of(self.wrr) == list(self.loop.snapshot().items())
        assert len(self.wrr) == len(self.loop)


BothAgree.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestBothAgree = BothAgree.TestCase


def operation_and_arguments(rng, loop, newcomer, top):
    """A random change, in the proportions of a troubled pool's day."""
    names = list(loop.peers)
    name = rng.choice(names) if names else None
    kind = rng.random()
    if name is None or (kind < 0.10 and len(names) < 16):
        return "add", (newcomer, rng.randint(0, top))
    if kind < 0.18:
        return "remove", (name,)
    if kind < 0.45:
        return "penalize", (name, rng.choice([0, 1, top // 3 + 1, rng.randint(0, 2 * top)]))
    if kind < 0.55:
        return "disable", (name,)
    if kind < 0.85:
        return "enable", (name,)
    if kind < 0.95:
        # Among them what hurts most: 1000 to 1 and back.
        return "reweight", (name, rng.choice([1, top, rng.randint(0, top)]))
    changing = rng.random() < 0.5
    weights = {
        old: rng.randint(0, top) if changing and rng.random() < 0.3 else peer.weight
        for old, peer in loop.peers.items()
        if rng.random() < 0.9
    }
    return "update", (weights | {newcomer: rng.randint(0, top)},)


def run_both(seed):
    rng = random.Random(seed)
    top = rng.choice([1, 3, 10, 1000, 1000, 10**6])
    weights = {f"p{i}": rng.randint(0, top) for i in range(rng.choice([0, 1, 2, 3, 5, 8, 12]))}
    wrr, loop = SmoothWeightedRoundRobin(weights), PlainLoop(weights)
    failing = rng.choice([0.0, 0.1, 0.6])
    for step in range(OPERATIONS):
        where = f"seed {seed}, step {step}"
        if rng.random() < 0.9:
            exclude = ()
            if rng.random() < 0.2:
                names = [*loop.peers, "nobody"]
                exclude = rng.sample(names, rng.randint(0, min(4, len(names))))
            picked = loop.select(exclude)
            assert wrr.select(exclude) == picked, where
            if picked is not None and rng.random() < failing:
                by = loop.peers[picked].weight // 3 + 1
                wrr.penalize(picked, by)
                loop.penalize(picked, by)
        elif rng.random() < 0.1 and len(loop):
            name = rng.choice(list(loop.peers))
            wrr.enable(name, from_zero=True)
            loop.enable(name, from_zero=True)
        else:
            operation, args = operation_and_arguments(rng, loop, f"new{step}", top)
            getattr(wrr, operation)(*args)
            getattr(loop, operation)(*args)
        if step % 97 == 0:
            assert snapshot_of(wrr) == list(loop.snapshot().items()), where
    assert snapshot_of(wrr) == list(loop.snapshot().items()), f"seed {seed}, at the end"


@pytest.mark.parametrize("first_seed", range(0, RUNS, RUNS_A_TEST))
def test_ten_runs_of_ten_thousand_operations(first_seed, monkeypatch):
    if first_seed % (2 * RUNS_A_TEST):
        # Every other ten start t afresh again and again, which 268 million picks do once.
        monkeypatch.setattr(smooth_wrr, "_RESTART_AT", 61)
    for seed in range(first_seed, first_seed + RUNS_A_TEST):
        run_both(seed)


def test_a_pool_of_a_thousand_agrees_too():
    rng = random.Random(5)
    weights = {f"p{i}": rng.choice([1, 7, 7, rng.randint(1, 500)]) * 100 for i in range(1000)}
    wrr, loop = SmoothWeightedRoundRobin(weights), PlainLoop(weights)
    for step in range(6000):
        exclude = rng.sample(list(weights), 3) if step % 50 == 0 else ()
        picked = loop.select(exclude)
        assert wrr.select(exclude) == picked, step
        if number_of(picked) % 5 == 0:
            for each in (wrr, loop):
                each.penalize(picked, weights[picked] // 3 + 1)
    assert snapshot_of(wrr) == list(loop.snapshot().items())


def number_of(name):
    """The proxy's number: one in five is sick, the same ones in each run."""
    return int(name[1:])
