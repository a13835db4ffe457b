"""What a failure costs a proxy, and what is left of the traffic of one that always fails."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_smoothpool.health import Health
from scrapy_smoothpool.judge import Evidence
from scrapy_smoothpool.local_judge import LocalJudge
from scrapy_smoothpool.outcome import Outcome
from scrapy_smoothpool.penalties import PenaltyRule, auto_scale, penalty
from scrapy_smoothpool.pool import Pool
from scrapy_smoothpool.proxy import Proxy
from scrapy_smoothpool.strategies.base import StrategyOptions
from scrapy_smoothpool.strategies.in_process import SmoothWRRStrategy
from store.store_helpers import run, stop_loop


@pytest.fixture(scope="module", autouse=True)
def loop():
    yield
    stop_loop()


def proxies(*weights: int) -> list[Proxy]:
    return [
        Proxy("http", f"10.0.{number // 250}.{number % 250 + 1}", 8080, weight=weight)
        for number, weight in enumerate(weights)
    ]


def opened(listed: list[Proxy], **options: object) -> SmoothWRRStrategy:
    strategy = SmoothWRRStrategy.from_options(StrategyOptions(**options))
    run(strategy.open(listed))
    return strategy


# The rules.


@pytest.mark.parametrize(
    ("consecutive", "by"), [(1, 0), (2, 0), (3, 0), (4, 34), (5, 34), (100, 34)]
)
def test_consecutive_costs_nothing_until_max_fails_is_exceeded(consecutive, by):
    rule = PenaltyRule.CONSECUTIVE
    assert penalty(rule, weight=100, max_fails=3, consecutive=consecutive) == by


@pytest.mark.parametrize(
    ("weight", "max_fails", "by"), [(1, 3, 1), (2, 3, 1), (3, 3, 2), (9, 10, 1), (10, 1, 11)]
)
def test_consecutive_punishes_small_weights_too(weight, max_fails, by):
    rule = PenaltyRule.CONSECUTIVE
    assert penalty(rule, weight=weight, max_fails=max_fails, consecutive=max_fails + 1) == by


@pytest.mark.parametrize(
    ("weight", "max_fails", "by"), [(1, 3, 0), (2, 3, 0), (3, 3, 1), (5, 1, 5), (100, 3, 33)]
)
def test_nginx_costs_a_rounded_down_part_of_the_weight_at_every_failure(weight, max_fails, by):
    for consecutive in (1, max_fails, max_fails + 1, 50):
        found = penalty(
            PenaltyRule.NGINX, weight=weight, max_fails=max_fails, consecutive=consecutive
        )
        assert found == by


def test_off_costs_nothing_however_often_it_failed():
    for consecutive in (1, 3, 4, 1_000):
        assert penalty(PenaltyRule.OFF, weight=100, max_fails=3, consecutive=consecutive) == 0


# A run worked out by hand: A has weight 20, B 10; max_fails is 10, so that from its 11th failure
# in a row on each failure costs A 20 // 10 + 1 = 3. A heals by 1 at every selection, picked or
# not, after what it had was counted. B always succeeds.
#
# While both are healthy the sequence is A B A with current weights back at 0 after three picks.
# After 15 selections A was picked, and failed, 10 times: it stands at 20 and nobody owes anything.
# From there on, "gain" being the current weights after the gain, "pays" what the winner pays:
#
#   selection  A gains  gain A, B   pays  picked  outcome     A's effective weight
#                                                             healed   then
RUN_BY_HAND = [
    # 16        20       20, 10     30     A    11th failure   20       17
    ("A", "failure", 20, 17),
    # 17        17        7, 20     27     B                   18
    ("B", "success", 18, 18),
    # 18        18       25,  3     28     A    12th failure   19       16
    ("A", "failure", 19, 16),
    # 19        16       13, 13     26     A    13th failure   17       14    (tie: first in list)
    ("A", "failure", 17, 14),
    # 20        14        1, 23     24     B                   15
    ("B", "success", 15, 15),
    # 21        15       16,  9     25     A    14th failure   16       13
    ("A", "failure", 16, 13),
    # 22        13        4, 19     23     B                   14
    ("B", "success", 14, 14),
    # 23        14       18,  6     24     A    15th failure   15       12
    ("A", "failure", 15, 12),
    # 24        12        6, 16     22     B                   13
    ("B", "success", 13, 13),
    # 25        13       19,  4     23     A    16th failure   14       11
    ("A", "failure", 14, 11),
    # 26        11        7, 14     21     B                   12
    ("B", "success", 12, 12),
    # 27        12       19,  3     22     A    17th failure   13       10
    ("A", "failure", 13, 10),
    # 28        10        7, 13     20     B                   11
    ("B", "success", 11, 11),
    # 29        11       18,  3     21     A    18th failure   12        9
    ("A", "failure", 12, 9),
    # 30         9        6, 13     19     B                   10
    ("B", "success", 10, 10),
    # 31        10       16,  4     20     A    success        11             (the count is 0 again)
    ("A", "success", 11, 11),
    # 32        11        7, 14     21     B                   12
    ("B", "success", 12, 12),
    # 33        12       19,  3     22     A    1st failure    13       13
    ("A", "failure", 13, 13),
    # 34        13       10, 13     23     B                   14
    ("B", "success", 14, 14),
]


def test_a_run_worked_out_by_hand_gives_the_same_picks_and_effective_weights():
    first, second = proxies(20, 10)
    names = {first.id: "A", second.id: "B"}
    strategy = opened([first, second], max_fails=10, weight_scale=1)
    consecutive = 0
    for expected in "ABA" * 5:
        proxy_id = strategy.pick()
        assert names[proxy_id] == expected
        if proxy_id == first.id:
            consecutive += 1
            assert strategy.penalize(proxy_id, consecutive) == 0
    assert consecutive == 10
    assert strategy.weights()[first.id] == (20, 20)

    seen = []
    for _, outcome, _, _ in RUN_BY_HAND:
        proxy_id = strategy.pick()
        healed = strategy.weights()[first.id].effective_weight
        if proxy_id == first.id:
            consecutive = consecutive + 1 if outcome == "failure" else 0
            if consecutive:
                strategy.penalize(proxy_id, consecutive)
        after = strategy.weights()[first.id].effective_weight
        seen.append((names[proxy_id], outcome, healed, after))
    assert seen == RUN_BY_HAND
    assert strategy.weights()[second.id] == (10, 10)


def test_an_effective_weight_ends_at_0_and_its_proxy_is_still_to_be_had():
    (only,) = proxies(2)
    strategy = opened([only], max_fails=1, weight_scale=1)
    for consecutive in range(2, 5):
        assert strategy.penalize(only.id, consecutive) == 3
        assert strategy.weights()[only.id].effective_weight == 0
    assert strategy.pick() == only.id
    assert strategy.weights()[only.id].effective_weight == 1


def test_by_nginx_rule_weight_1_is_never_punished_unless_weights_are_scaled():
    listed = proxies(1, 1)
    to_the_letter = opened(listed, penalty=PenaltyRule.NGINX, weight_scale=1)
    assert to_the_letter.penalize(listed[0].id, 9) == 0
    assert to_the_letter.weights()[listed[0].id] == (1, 1)
    scaled = opened(listed, penalty=PenaltyRule.NGINX, weight_scale=30)
    assert scaled.penalize(listed[0].id, 1) == 10
    assert scaled.weights()[listed[0].id].effective_weight == pytest.approx(20 / 30)


def test_with_rule_off_failures_change_no_pick():
    listed = proxies(5, 1, 1)
    strategy = opened(listed, penalty=PenaltyRule.OFF)
    untouched = opened(listed, penalty=PenaltyRule.OFF)
    for consecutive in range(1, 100):
        proxy_id = strategy.pick()
        assert proxy_id == untouched.pick()
        assert strategy.penalize(proxy_id, consecutive) == 0


# The scale.


@pytest.mark.parametrize(
    ("weights", "max_fails", "scale"),
    [
        ([1] * 10, 3, 300),  # 10 × 3 × 10 / 1
        ([1] * 1_000, 3, 30_000),
        ([5, 1, 1], 3, 39),  # 10 × 3 × 3 / (7 / 3) = 38.57…
        ([5, 1, 1, 0, 0], 3, 39),  # drained ones take no part
        ([7], 1, 2),  # 10 / 7 = 1.43
        ([10], 1, 1),  # exactly 1
        ([1_000, 1_000], 1, 1),  # 0.02, rounded up
        ([0, 0], 3, 1),
        ([], 3, 1),
    ],
)
def test_the_automatic_scale_is_ten_times_max_fails_times_n_by_mean_weight(
    weights, max_fails, scale
):
    assert auto_scale(weights, max_fails) == scale
    assert auto_scale(iter(weights), max_fails) == scale  # read once


@given(st.lists(st.integers(0, 10**9), max_size=50), st.integers(1, 1_000))
def test_the_automatic_scale_is_exact_whatever_the_numbers(weights, max_fails):
    active = [weight for weight in weights if weight]
    expected = 1
    if active:
        mean = Fraction(sum(active), len(active))
        expected = ceil(10 * max_fails * len(active) / mean)
    assert auto_scale(weights, max_fails) == expected


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(2, 10**6)),
)
def test_the_healthy_sequence_is_the_same_for_every_scale(weights, scale):
    listed = proxies(*weights)
    plain, scaled = opened(listed, weight_scale=1), opened(listed, weight_scale=scale)
    assert [plain.pick() for _ in range(100)] == [scaled.pick() for _ in range(100)]
    assert plain.weights() == scaled.weights()


def test_the_scale_follows_the_list():
    strategy = opened(proxies(*[1] * 10))
    assert "weight scale 300" in strategy.describe()
    run(strategy.reload(proxies(*[1] * 20)))
    assert "weight scale 600" in strategy.describe()


# What is left for a proxy that always fails: Must hold 3 of the first issue.


def share_left(weights: list[int], bad: int, rounds: int) -> Fraction:
    """Return the picks of proxy number *bad*, which always fails, as part of its fair share.

    Everything counts from the first pick on, the failures that cost nothing yet included:
    over a few rounds these alone are more than what is promised in the long run.
    """
    listed = proxies(*weights)
    strategy = SmoothWRRStrategy.from_options(StrategyOptions())
    make_health = partial(Health, eject_after=0, eject_time=30, max_percent=50, clock=lambda: 0.0)
    pool = Pool("test", strategy, LocalJudge(strategy, make_health, lambda: 0.0), listed)
    picks = rounds * len(weights)

    async def crawl() -> int:
        await pool.open()
        failed = 0
        for _ in range(picks):
            assignment = await pool.acquire()
            assert assignment is not None
            is_bad = assignment.proxy_id == listed[bad].id
            failed += is_bad
            outcome = Outcome.BANNED if is_bad else Outcome.SUCCESS
            evidence = Evidence(outcome, "a.test", answered=not is_bad)
            pool.report(assignment.proxy_id, assignment.epoch, evidence)
        return failed

    failed = run(crawl())
    assert failed > 3  # it is eased out, not put out: it goes on being tried
    return Fraction(failed * sum(weights), picks * weights[bad])


@pytest.mark.parametrize("n", [10, 100, 1_000])
@pytest.mark.parametrize("place", ["first", "last"])
def test_an_always_failing_proxy_gets_at_most_a_fifth_of_its_fair_share(n, place):
    bad = 0 if place == "first" else n - 1
    assert share_left([1] * n, bad, rounds=100) <= Fraction(1, 5)


@pytest.mark.parametrize("n", [10, 100])
@pytest.mark.parametrize("weight", [3, 4, 5])
def test_of_unequal_weights_one_of_at_least_the_mean_gets_at_most_a_fifth(n, weight):
    weights = [1 + number % 5 for number in range(n)]  # the mean is 3
    assert share_left(weights, weights.index(weight), rounds=100) <= Fraction(1, 5)


@pytest.mark.parametrize("n", [10, 100])
@pytest.mark.parametrize("weight", [1, 2])
def test_a_light_one_gets_little_of_an_average_share(n, weight):
    """The scale is made for the mean weight: of its *own*, smaller share a light one keeps more."""
    weights = [1 + number % 5 for number in range(n)]
    left = share_left(weights, weights.index(weight), rounds=200)
    assert left * Fraction(weight, 3) <= Fraction(3, 10)


def test_without_a_scale_an_always_failing_proxy_would_keep_nearly_all():
    """Why there is a scale: the comparison that shows the tests above can fail."""
    listed = proxies(*[1] * 100)
    strategy = opened(listed, weight_scale=1)
    failed = 0
    for _ in range(10_000):
        if strategy.pick() == listed[0].id:
            failed += 1
            strategy.penalize(listed[0].id, failed)
    assert failed > 80


def test_a_proxy_that_recovers_has_its_whole_share_again():
    n = 10
    listed = proxies(*[1] * n)
    strategy = opened(listed)
    for consecutive in range(1, 20):
        strategy.penalize(listed[0].id, consecutive)
    assert strategy.weights()[listed[0].id].effective_weight == 0
    for _ in range(300):  # 10 × max_fails × n heals its weight, 1 on the scale of 300
        strategy.pick()
    assert strategy.weights()[listed[0].id] == (1, 1)
    picks = [strategy.pick() for _ in range(100 * n)]
    assert 99 <= picks.count(listed[0].id) <= 101
