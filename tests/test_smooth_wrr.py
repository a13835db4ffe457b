"""What the selector promises, by tables to be checked by hand and one question a test."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scrapy_smoothpool.strategies import smooth_wrr
from scrapy_smoothpool.strategies.smooth_wrr import SmoothWeightedRoundRobin

UNFIT_NUMBERS = [-1, 1.0, 1.5, math.nan, math.inf, True, False, None, "1"]


def picks(wrr, count, exclude=()):
    return [wrr.select(exclude) for _ in range(count)]


def standing(wrr, name):
    """(weight, effective_weight, current_weight, disabled)"""
    return tuple(wrr.snapshot()[name])


@pytest.mark.parametrize(
    ("weights", "sequence"),
    [
        ({"a": 5, "b": 1, "c": 1}, "aabacaa"),
        ({"A": 3, "B": 2, "C": 1}, "ABACBA"),
        ({"a": 1, "b": 1, "c": 1}, "abc"),
        ({"a": 1, "b": 5}, "bbabbb"),  # level at the third pick: first in list order
        ({"a": 7}, "a"),
    ],
)
def test_worked_sequences(weights, sequence):
    wrr = SmoothWeightedRoundRobin(weights)
    for _ in range(3):
        assert "".join(picks(wrr, len(sequence))) == sequence
        assert {state.current_weight for state in wrr.snapshot().values()} == {0}


def test_current_weights_of_the_worked_table():
    wrr = SmoothWeightedRoundRobin({"a": 5, "b": 1, "c": 1})
    table = []
    for _ in range(7):
        wrr.select()
        table.append(tuple(state.current_weight for state in wrr.snapshot().values()))
    assert table == [
        (-2, 1, 1),
        (-4, 2, 2),
        (1, -4, 3),
        (-1, -3, 4),
        (4, -2, -2),
        (2, -1, -1),
        (0, 0, 0),
    ]


def test_a_round_gives_each_its_weight():
    weights = {f"p{i}": 1 + i * i % 13 for i in range(40)}
    round_ = Counter(picks(SmoothWeightedRoundRobin(weights), sum(weights.values())))
    assert round_ == weights


def test_one_factor_on_all_weights_changes_nothing():
    weights = {"a": 5, "b": 1, "c": 3, "d": 3}
    scaled = {name: 1000 * weight for name, weight in weights.items()}
    assert picks(SmoothWeightedRoundRobin(weights), 60) == picks(
        SmoothWeightedRoundRobin(scaled), 60
    )


def test_a_penalty_lowers_the_share_and_heals_by_one_a_selection():
    wrr = SmoothWeightedRoundRobin({"a": 10, "b": 10})
    wrr.penalize("a", 6)
    assert standing(wrr, "a") == (10, 4, 0, False)
    wrr.select()
    # Gained 4 before it healed to 5; b gained 10 and paid 14.
    assert standing(wrr, "a") == (10, 5, 4, False)
    assert standing(wrr, "b") == (10, 10, -4, False)
    picks(wrr, 20)
    assert standing(wrr, "a")[1] == 10


def test_a_penalty_never_goes_below_zero():
    wrr = SmoothWeightedRoundRobin({"a": 10, "b": 10})
    wrr.penalize("a", 10**9)
    assert standing(wrr, "a")[1] == 0
    wrr.penalize("b", 0)
    assert standing(wrr, "b")[1] == 10


def test_where_all_are_at_zero_each_counts_as_one():
    wrr = SmoothWeightedRoundRobin({"a": 10, "b": 20, "c": 30})
    for name in "abc":
        wrr.penalize(name, 99)
    assert wrr.select() == "a"
    assert [standing(wrr, name)[1:3] for name in "abc"] == [(1, -2), (1, 1), (1, 1)]


def test_a_lone_proxy_that_always_fails_is_still_picked():
    wrr = SmoothWeightedRoundRobin({"a": 3})
    for _ in range(50):
        assert wrr.select() == "a"
        wrr.penalize("a", 3)
    assert standing(wrr, "a") == (3, 0, 0, False)


def test_a_drained_proxy_is_listed_and_never_picked():
    wrr = SmoothWeightedRoundRobin({"a": 0, "b": 1})
    assert picks(wrr, 5) == ["b"] * 5
    assert "a" in wrr
    assert len(wrr) == 2
    assert standing(wrr, "a") == (0, 0, 0, False)
    wrr.reweight("a", 1)
    assert picks(wrr, 4) == ["a", "b", "a", "b"]


@pytest.mark.parametrize("weights", [{}, {"a": 0}, {"a": 0, "b": 0}])
def test_nothing_eligible_is_none(weights):
    wrr = SmoothWeightedRoundRobin(weights)
    before = wrr.snapshot()
    assert wrr.select() is None
    assert wrr.snapshot() == before


def test_a_disabled_proxy_stands_still_and_returns_as_it_was():
    wrr = SmoothWeightedRoundRobin({"a": 5, "b": 3, "c": 1})
    wrr.penalize("a", 4)
    wrr.select()
    before = standing(wrr, "a")
    wrr.disable("a")
    wrr.disable("a")
    assert "a" not in picks(wrr, 9)
    assert standing(wrr, "a") == (*before[:3], True)
    wrr.enable("a")
    wrr.enable("a")
    assert standing(wrr, "a") == before


def test_from_zero_is_a_gentle_return():
    weights = {f"p{i}": 1000 for i in range(10)}
    wrr = SmoothWeightedRoundRobin(weights)
    picks(wrr, 5)
    wrr.disable("p3")
    picks(wrr, 500)
    wrr.enable("p3", from_zero=True)
    assert standing(wrr, "p3") == (1000, 0, 0, False)
    early = Counter(picks(wrr, 200))
    late = Counter(picks(wrr, 2000)[1000:])
    assert early["p3"] < 5
    assert late["p3"] == pytest.approx(100, abs=2)


def test_excluded_ones_neither_gain_heal_nor_count():
    wrr = SmoothWeightedRoundRobin({"a": 5, "b": 2, "c": 1})
    wrr.penalize("a", 3)
    before = standing(wrr, "a")
    assert wrr.select(["a", "a", "nobody"]) == "b"
    assert standing(wrr, "a") == before
    assert [standing(wrr, name)[2] for name in "bc"] == [-1, 1]


def test_excluding_everyone_changes_nothing():
    wrr = SmoothWeightedRoundRobin({"a": 5, "b": 2, "c": 1})
    picks(wrr, 3)
    wrr.penalize("b", 1)
    wrr.disable("c")
    before = wrr.snapshot()
    assert wrr.select({"a", "b"}) is None
    assert wrr.snapshot() == before


def test_an_added_proxy_goes_last_and_starts_at_zero():
    wrr = SmoothWeightedRoundRobin({"b": 1})
    wrr.add("a", 1)
    assert list(wrr.snapshot()) == ["b", "a"]
    assert picks(wrr, 4) == ["b", "a", "b", "a"]


def test_a_removed_proxy_is_gone_and_may_be_added_anew():
    wrr = SmoothWeightedRoundRobin({"a": 5, "b": 1})
    picks(wrr, 2)
    wrr.remove("a")
    assert "a" not in wrr
    assert picks(wrr, 2) == ["b", "b"]
    wrr.add("a", 2)
    assert standing(wrr, "a") == (2, 2, 0, False)
    assert list(wrr.snapshot()) == ["b", "a"]


def test_many_adds_and_removes_keep_list_order():
    wrr = SmoothWeightedRoundRobin({})
    for i in range(300):
        wrr.add(f"p{i}", 1)
    for i in range(0, 300, 3):
        wrr.remove(f"p{i}")
    kept = [f"p{i}" for i in range(300) if i % 3]
    assert list(wrr.snapshot()) == kept
    assert picks(wrr, len(kept)) == kept


@pytest.mark.parametrize(
    ("penalty", "weight", "effective"), [(0, 4, 4), (4, 5, 3), (4, 20, 12), (10, 20, 0), (1, 0, 0)]
)
def test_reweight_keeps_the_proportion(penalty, weight, effective):
    wrr = SmoothWeightedRoundRobin({"a": 10, "b": 10})
    wrr.penalize("a", penalty)
    wrr.reweight("a", weight)
    assert standing(wrr, "a")[:2] == (weight, effective)


def test_reweight_brings_every_debt_within_the_new_total():
    wrr = SmoothWeightedRoundRobin({"a": 1000, "b": 1000, "c": 1})
    wrr.select()
    wrr.disable("b")
    wrr.reweight("a", 1)
    # Enabled are a and c, total 2; the disabled one is clamped like all.
    assert [standing(wrr, name)[2] for name in "abc"] == [-2, 2, 1]
    assert "a" in picks(wrr, 4)


def test_update_replaces_the_list_by_difference():
    wrr = SmoothWeightedRoundRobin({"a": 5, "b": 1, "c": 1, "d": 2})
    picks(wrr, 4)
    wrr.disable("d")
    c, d = standing(wrr, "c"), standing(wrr, "d")
    wrr.update({"y": 1, "d": 2, "c": 1, "a": 5, "x": 3})
    assert list(wrr.snapshot()) == ["a", "c", "d", "y", "x"]
    assert (standing(wrr, "c"), standing(wrr, "d")) == (c, d)
    assert standing(wrr, "x") == (3, 3, 0, False)


def test_update_clamps_only_when_a_weight_changed():
    wrr = SmoothWeightedRoundRobin({"a": 1000, "b": 1000, "c": 1})
    wrr.select()
    wrr.update({"a": 1000, "c": 1, "d": 1})
    assert standing(wrr, "a")[2] == -1001
    wrr.update({"a": 10, "c": 1, "d": 1})
    assert standing(wrr, "a")[2] == -12


def test_update_with_the_same_list_changes_nothing():
    weights = {"a": 5, "b": 1, "c": 1}
    wrr = SmoothWeightedRoundRobin(weights)
    wrr.penalize("a", 2)
    picks(wrr, 3)
    before = wrr.snapshot()
    wrr.update(dict(reversed(weights.items())))
    assert wrr.snapshot() == before
    assert list(wrr.snapshot()) == list(before)


def test_the_mapping_given_is_not_kept():
    weights = {"a": 1}
    wrr = SmoothWeightedRoundRobin(weights)
    weights["b"] = 1
    assert len(wrr) == 1


def test_a_snapshot_is_frozen_and_does_not_follow():
    wrr = SmoothWeightedRoundRobin({"a": 2, "b": 1})
    before = wrr.snapshot()
    wrr.select()
    assert before["a"].current_weight == 0
    with pytest.raises(AttributeError):
        before["a"].weight = 7


@pytest.mark.parametrize("number", UNFIT_NUMBERS)
def test_unfit_numbers_are_refused_and_change_nothing(number):
    with pytest.raises(ValueError, match="'a'"):
        SmoothWeightedRoundRobin({"a": number})
    wrr = SmoothWeightedRoundRobin({"a": 1, "b": 1})
    wrr.select()
    before = wrr.snapshot()
    for refused in (
        lambda: wrr.add("c", number),
        lambda: wrr.reweight("a", number),
        lambda: wrr.penalize("a", number),
        lambda: wrr.update({"b": 1, "a": number}),
    ):
        with pytest.raises(ValueError, match=r"must be a whole number >= 0"):
            refused()
    assert wrr.snapshot() == before


def test_a_name_listed_already_cannot_be_added():
    wrr = SmoothWeightedRoundRobin({"a": 1})
    with pytest.raises(ValueError, match="listed already"):
        wrr.add("a", 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda wrr: wrr.penalize("x", 1),
        lambda wrr: wrr.disable("x"),
        lambda wrr: wrr.enable("x"),
        lambda wrr: wrr.enable("x", from_zero=True),
        lambda wrr: wrr.remove("x"),
        lambda wrr: wrr.reweight("x", 1),
    ],
)
def test_unknown_names_are_key_errors(call):
    with pytest.raises(KeyError, match="x"):
        call(SmoothWeightedRoundRobin({"a": 1}))


def test_starting_t_afresh_is_not_to_be_seen(monkeypatch):
    weights = {f"p{i}": 10 * (1 + i % 4) for i in range(9)}

    def run(restart_at):
        monkeypatch.setattr(smooth_wrr, "_RESTART_AT", restart_at)
        wrr = SmoothWeightedRoundRobin(weights)
        wrr.disable("p4")
        seen = []
        for step in range(400):
            name = wrr.select([f"p{step % 3}"])
            if step % 5 == 0:
                wrr.penalize(name, 7)
            seen.append((name, wrr.snapshot()))
        return seen

    assert run(1 << 28) == run(13)


def test_neither_scrapy_twisted_nor_redis_is_needed():
    # The package's own __init__ imports Scrapy; these two modules must not.
    program = """
import sys, types
package = types.ModuleType("scrapy_smoothpool")
package.__path__ = ["scrapy_smoothpool"]
sys.modules["scrapy_smoothpool"] = package
import scrapy_smoothpool.strategies.smooth_wrr
print(*sorted({"scrapy", "twisted", "redis"} & set(sys.modules)))
"""
    root = Path(smooth_wrr.__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == ""
