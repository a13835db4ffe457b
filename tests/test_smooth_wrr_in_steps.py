"""Does the selector take over another list in steps, whatever happens between them?

``update`` is compared to the plain loop in ``test_smooth_wrr_against_loop.py``; here
``update_in_steps`` is compared to ``update``, and to what must hold at every step.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_wrr import PlainLoop
from scrapy_smoothpool.strategies import smooth_wrr
from scrapy_smoothpool.strategies.smooth_wrr import SmoothWeightedRoundRobin
from scrapy_smoothpool.turns import at_once

WEIGHTS = st.dictionaries(
    st.integers(0, 60).map("p{}".format), st.one_of(st.integers(0, 6), st.integers(0, 1000))
)


def used(weights: dict[str, int], rng: random.Random, picks: int) -> SmoothWeightedRoundRobin:
    """Return a selector with some past: failures, some out."""
    wrr = SmoothWeightedRoundRobin(weights)
    for _ in range(picks):
        name = wrr.select()
        if name is not None and rng.random() < 0.3:
            wrr.penalize(name, weights[name] // 3 + 1)
    for name in weights:
        if rng.random() < 0.1:
            wrr.disable(name)
    return wrr


@settings(deadline=None)
@given(WEIGHTS, WEIGHTS, st.integers(0, 2**32), st.sampled_from([1, 3, 32]))
def test_with_nothing_between_the_steps_it_is_update(before, after, seed, units):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(smooth_wrr, "_UNITS", units)
        one, other = (used(before, random.Random(seed), seed % 50) for _ in range(2))
        one.update(after)
        at_once(other.update_in_steps(after))
        assert one.snapshot() == other.snapshot()
        assert list(one.snapshot()) == list(other.snapshot())
        assert [one.select() for _ in range(80)] == [other.select() for _ in range(80)]


@settings(deadline=None)
@given(WEIGHTS, st.lists(WEIGHTS, min_size=1, max_size=4), st.integers(0, 2**32))
def test_whatever_happens_between_the_steps(before, lists, seed):
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(smooth_wrr, "_UNITS", 1)
        wrr = used(before, rng, 20)
        for after in lists:
            known = before.keys() | after.keys()
            disabled = {name for name in after if rng.random() < 0.1}
            for _ in wrr.update_in_steps(after, disabled):
                name = wrr.select(rng.sample(sorted(known), min(2, len(known))))
                assert name is None or name in known
                if name is not None:
                    wrr.penalize(name, rng.choice([0, 1, 300]))
                    if rng.random() < 0.1:
                        wrr.disable(name)
                for other in rng.sample(sorted(known), min(1, len(known))):
                    if other in wrr:
                        wrr.enable(other, from_zero=rng.random() < 0.5)
            assert {n: w.weight for n, w in wrr.snapshot().items()} == after
            before = after
        # From here on it is what a plain loop in the same state does.
        loop = PlainLoop({})
        for name, standing in wrr.snapshot().items():
            loop.add(name, standing.weight)
            peer = loop.peers[name]
            peer.effective = standing.effective_weight
            peer.current = standing.current_weight
            peer.disabled = standing.disabled
        assert [wrr.select() for _ in range(150)] == [loop.select() for _ in range(150)]


def test_somebody_can_be_picked_at_every_step_of_a_list_of_others():
    wrr = SmoothWeightedRoundRobin({f"a{n}": 5 for n in range(200)})
    picked = [wrr.select() for _ in wrr.update_in_steps({f"b{n}": 5 for n in range(200)})]
    assert None not in picked
    assert len(picked) > 5


def test_newcomers_may_begin_disabled():
    wrr = SmoothWeightedRoundRobin({"a": 1})
    at_once(wrr.update_in_steps({"a": 1, "b": 1, "c": 1}, disabled={"b"}))
    assert {wrr.select() for _ in range(6)} == {"a", "c"}


@settings(deadline=None)
@given(WEIGHTS, st.integers(0, 2**32))
def test_a_copy_goes_on_alike_and_alone(weights, seed):
    wrr = used(weights, random.Random(seed), 60)
    before, copy = wrr.snapshot(), wrr.copy()
    assert list(copy.snapshot().items()) == list(before.items())
    twin = wrr.copy()
    picks = []
    for number in range(80):
        picks.append(copy.select())
        if picks[-1] is not None:
            copy.penalize(picks[-1], 1)
        copy.add(f"new{number}", number)
        copy.remove(f"new{number}")
    assert wrr.snapshot() == before
    for name in picks:
        assert twin.select() == name
        if name is not None:
            twin.penalize(name, 1)
    assert twin.snapshot() == copy.snapshot()


@pytest.mark.parametrize("failing", [False, True])
def test_list_after_list_forever_leaves_nothing_behind(failing):
    wrr = SmoothWeightedRoundRobin({f"p{n}": 1000 for n in range(300)})
    for step in range(1, 60):
        after = {f"p{n}": 1000 for n in range(100 * step, 100 * step + 300)}
        for _ in wrr.update_in_steps(after):
            name = wrr.select()
            if failing:
                wrr.penalize(name, 500)
    assert len(wrr) == 300
    assert max(len(wrr._names), len(wrr._healing), wrr._lines.capacity) <= 1024


def test_a_step_changes_few_names_and_no_step_writes_everything_anew(monkeypatch):
    n = 5_000
    wrr = SmoothWeightedRoundRobin({f"p{number}": number + 1 for number in range(n)})
    wrr.select()
    monkeypatch.setattr(wrr, "_write", None)
    done = []
    monkeypatch.setattr(wrr, "_place", lambda *a, place=wrr._place: (done.append(a), place(*a)))
    most = 0
    after = {f"p{number}": 2 * number + 1 for number in range(n // 2, n // 2 + 2 * n)}
    for _ in wrr.update_in_steps(after):
        most = max(most, len(done))
        done.clear()
        wrr.select()
    assert 0 < most <= 200
    assert len(wrr) == 2 * n
