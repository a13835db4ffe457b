"""Who is blamed for a failure that may be the site's: only one that stands out there."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clock import Clock
from scrapy_smoothpool.comparison import (
    LEAST_OTHERS,
    LEAST_OWN,
    LEAST_RATE,
    MAX_SITES,
    MAX_SUSPECTS,
    WINDOW,
    Comparison,
    stands_out,
)
from scrapy_smoothpool.health import Health

SITE = "a.test"


@pytest.fixture
def comparison(clock) -> Comparison:
    return Comparison(clock)


def answer(comparison: Comparison, proxies: str, times: int = 1, site: str = SITE) -> None:
    for _ in range(times):
        for proxy_id in proxies:
            comparison.answered(site, proxy_id)


def fail(comparison: Comparison, proxies: str, times: int = 1, site: str = SITE) -> list[bool]:
    """Let proxies fail in turn and return of each failure whether it was blamed."""
    return [comparison.failed(site, name) for _ in range(times) for name in proxies]


# Blamed.


def test_the_only_one_that_fails_is_blamed_from_its_third_failure_on(comparison):
    answer(comparison, "bcdefghijk")
    assert fail(comparison, "a", 6) == [False, False, True, True, True, True]


def test_two_of_ten_that_hang_are_both_blamed(comparison):
    for _ in range(3):
        answer(comparison, "cdefghij")
        assert fail(comparison, "ab") == [False, False]
    answer(comparison, "cdefghij")
    fail(comparison, "ab")
    for _ in range(20):
        answer(comparison, "cdefghij")
        assert fail(comparison, "ab") == [True, True]


def test_four_of_ten_that_hang_are_all_blamed(comparison):
    for _ in range(9):
        answer(comparison, "efghij")
        fail(comparison, "abcd")
    for _ in range(20):
        answer(comparison, "efghij")
        assert fail(comparison, "abcd") == [True] * 4


def test_a_batch_of_timeouts_after_answers_of_the_others_is_blamed(comparison, clock):
    answer(comparison, "bcdefghijk", 4)
    clock.now += 3
    assert fail(comparison, "a", 8) == [False] * 2 + [True] * 6


def test_one_that_begins_to_fail_is_blamed_soon_whatever_it_did_before(comparison):
    answer(comparison, "abcdefghij", 50)
    blamed = []
    for _ in range(10):
        blamed += fail(comparison, "a")
        answer(comparison, "bcdefghij")
    assert blamed == [False] * 2 + [True] * 8


def test_one_that_fails_nine_times_in_ten_is_blamed_for_most_of_them(comparison):
    blamed: list[bool] = []
    for number in range(100):
        answer(comparison, "bcdefghij")
        if number % 10:
            blamed += fail(comparison, "a")
        else:
            answer(comparison, "a")
    assert blamed == [False] * 2 + [True] * 88


@pytest.mark.parametrize(("fails", "of"), [(1, 2), (2, 3), (3, 5), (2, 5)])
def test_one_that_fails_time_and_again_between_its_answers_is_blamed(comparison, fails, of):
    blamed: list[bool] = []
    for _ in range(40):
        blamed += fail(comparison, "a", fails)
        answer(comparison, "a", of - fails)
        answer(comparison, "bcdefghij", of)
    assert blamed.index(True) < 6
    assert all(blamed[blamed.index(True) :])


def test_what_fails_a_little_more_often_than_the_others_is_not_blamed(comparison):
    for _ in range(200):
        assert fail(comparison, "a") == [False]
        answer(comparison, "a", 4)
        answer(comparison, "bcdefghij", 5)


def test_it_takes_more_failures_where_the_others_fail_more_often(comparison):
    assert [least(others_failed=failed) for failed in (0, 20, 200, 400)] == [3, 3, 6, 11]
    assert least(others_failed=500) == 0  # half of them: never


def least(others_failed: int, others: int = 1000) -> int:
    """Failures in a row that are enough, 0 for never."""
    found = (n for n in range(1, 200) if stands_out(n, n, others_failed, others))
    return next(found, 0)


def test_the_limits_are_as_they_are_said_to_be():
    assert stands_out(LEAST_OWN, LEAST_OWN, 0, 100)
    assert not stands_out(LEAST_OWN - 1, LEAST_OWN - 1, 0, 100_000)
    assert stands_out(20, 20, 0, LEAST_OTHERS)
    assert not stands_out(20, 20, 0, LEAST_OTHERS - 1)
    assert stands_out(int(1000 * LEAST_RATE), 1000, 0, 1000)
    assert not stands_out(int(1000 * LEAST_RATE) - 1, 1000, 0, 1000)
    assert stands_out(801, 1000, 400, 1000)
    assert not stands_out(800, 1000, 400, 1000)  # twice the others' rate


def test_of_two_proxies_the_one_that_fails_is_blamed(comparison):
    blamed = []
    for _ in range(20):
        blamed += fail(comparison, "a")
        answer(comparison, "b")
    assert blamed == [False] * LEAST_OTHERS + [True] * (20 - LEAST_OTHERS)


def test_who_fails_is_blamed_while_less_than_half_of_the_others_do(comparison):
    answer(comparison, "a")
    answer(comparison, "bcdefghijk", 6)
    fail(comparison, "bcdefghijk", 4)
    assert fail(comparison, "a", 20)[-1] is True  # of the others 40 of 100 failed
    fail(comparison, "bcdefghijk", 2)
    assert fail(comparison, "a") == [False]  # 60 of 120


# Not blamed.


@pytest.mark.parametrize("n", [1, 2, 3, 10, 100])
def test_when_the_site_is_down_from_the_start_nobody_is_blamed(comparison, n):
    proxies = [f"p{number}" for number in range(n)]
    for _ in range(30):
        assert not any(comparison.failed(SITE, name) for name in proxies)


@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_when_a_site_goes_down_nobody_is_blamed_however_well_it_did(comparison, clock, n):
    proxies = [f"p{number}" for number in range(n)]
    for _ in range(20):
        for name in proxies:
            clock.now += 1 / n
            comparison.answered(SITE, name)
    for _ in range(30):
        for name in proxies:
            clock.now += 1 / n
            assert not comparison.failed(SITE, name)


@pytest.mark.parametrize("seed", range(5))
def test_when_a_site_goes_down_amid_picks_at_random_nobody_goes_out(comparison, seed):
    chance = random.Random(seed)
    proxies = [f"p{number}" for number in range(10)]
    for _ in range(200):
        comparison.answered(SITE, chance.choice(proxies))
    blamed: Counter[str] = Counter()
    for _ in range(500):
        name = chance.choice(proxies)
        blamed[name] += comparison.failed(SITE, name)
    assert max(blamed.values()) < 8  # SMOOTHPOOL_EJECT_AFTER


def test_when_half_of_the_others_fail_it_is_the_site(comparison):
    for _ in range(20):
        answer(comparison, "bcde")
        fail(comparison, "fghi")
        assert fail(comparison, "a") == [False]


def test_a_failure_or_two_say_nothing(comparison):
    answer(comparison, "bcdefghij", 10)
    assert fail(comparison, "a", LEAST_OWN - 1) == [False] * (LEAST_OWN - 1)


def test_a_failure_now_and_then_says_nothing(comparison):
    for _ in range(50):
        answer(comparison, "abcdefghij", 8)
        assert fail(comparison, "a", LEAST_OWN - 1) == [False] * (LEAST_OWN - 1)


@pytest.mark.parametrize("known", [False, True])
def test_one_that_is_first_used_when_the_site_is_down_is_not_blamed(comparison, clock, known):
    """What the others had before it came says nothing."""
    answer(comparison, "bcdefghij", 100)
    clock.now += WINDOW / 2 * known
    answer(comparison, "bcdefghij", 100)
    fail(comparison, "bcdefghij")
    for _ in range(50):
        assert fail(comparison, "abcdefghij") == [False] * 10


def test_a_site_that_goes_down_as_it_is_first_used_costs_it_little(comparison):
    answer(comparison, "bcdefghij", 100)
    assert sum(sum(fail(comparison, "abcdefghij")[:1]) for _ in range(50)) == 0


def test_a_few_outcomes_of_the_others_say_nothing(comparison):
    answer(comparison, "b", LEAST_OTHERS - 1)
    assert fail(comparison, "a", 20) == [False] * 20
    answer(comparison, "b")
    assert fail(comparison, "a") == [True]


def test_a_pool_of_one_is_never_blamed(comparison):
    answer(comparison, "a", 100)
    assert not any(fail(comparison, "a", 100))


def test_what_happens_on_another_site_says_nothing(comparison):
    answer(comparison, "bcdefghij", 10, site="b.test")
    assert not any(fail(comparison, "a", 20))
    assert fail(comparison, "a", 3, site="b.test") == [False, False, True]


def test_one_that_answers_again_is_not_blamed_for_what_was(comparison):
    answer(comparison, "bcdefghij", 10)
    assert fail(comparison, "a", 3)[-1] is True
    answer(comparison, "a", 20)
    answer(comparison, "bcdefghij", 10)
    assert fail(comparison, "a", 2) == [False, False]


# The window.


def test_failures_beyond_the_window_do_not_count(comparison, clock):
    answer(comparison, "bcdefghijk")
    fail(comparison, "a", 2)
    clock.now += WINDOW
    answer(comparison, "bcdefghijk")
    assert fail(comparison, "a", 3) == [False, False, True]


def test_answers_beyond_the_window_do_not_count(comparison, clock):
    answer(comparison, "bcdefghijk")
    clock.now += WINDOW
    assert not any(fail(comparison, "a", 20))


def test_both_halves_of_the_window_count(comparison, clock):
    answer(comparison, "bcdefghijk")
    assert fail(comparison, "a", 2) == [False, False]
    clock.now += WINDOW / 2
    assert fail(comparison, "a") == [True]


def test_an_answer_in_this_half_ends_the_failures_of_the_half_before(comparison, clock):
    answer(comparison, "bcdefghijk")
    fail(comparison, "a", 2)
    clock.now += WINDOW / 2
    answer(comparison, "bcdefghijk")
    answer(comparison, "a", 20)
    answer(comparison, "bcdefghijk")
    assert fail(comparison, "a", 3) == [False, False, True]


@pytest.mark.parametrize("later", [WINDOW / 2, WINDOW - 0.1])
def test_what_went_before_an_answer_in_the_half_before_does_not_count(comparison, clock, later):
    answer(comparison, "bcdefghijk")  # before a's answer: says nothing of the time after it
    answer(comparison, "a")
    clock.now += later
    assert not any(fail(comparison, "abcdefghijk", 10))


def test_after_the_site_was_down_the_one_that_still_fails_is_blamed(comparison, clock):
    for _ in range(120):
        clock.now += 1
        assert not any(fail(comparison, "abcdefghij"))
    seconds = 0
    blamed = False
    while not blamed:
        clock.now += 1
        seconds += 1
        (blamed,) = fail(comparison, "a")
        answer(comparison, "bcdefghij")
    assert seconds <= WINDOW


def test_a_rate_is_of_both_halves_of_the_window(comparison, clock):
    answer(comparison, "bcdefghijk", 3)
    assert fail(comparison, "a", 2) == [False, False]
    answer(comparison, "a", 2)
    clock.now += WINDOW / 2
    answer(comparison, "a")
    answer(comparison, "bcdefghijk", 3)
    assert fail(comparison, "a", 2) == [False, True]  # 4 of 7, of which 2 of 3 in this half


def test_what_was_beyond_the_window_is_no_beginning_for_a_newcomer(comparison, clock):
    answer(comparison, "bcdefghijk")
    clock.now += WINDOW / 2
    answer(comparison, "b")
    clock.now += WINDOW / 2 + 1
    answer(comparison, "c")
    assert not any(fail(comparison, "a", 20))


# Probes.


def test_a_probe_is_blamed_for_one_failure_where_the_others_do_well(comparison):
    answer(comparison, "bcdefghijk")
    assert comparison.failed(SITE, "a", probing=True)


def test_a_probe_is_not_blamed_where_half_of_the_others_fail(comparison):
    fail(comparison, "ghijk")
    answer(comparison, "bcdef")
    assert not comparison.failed(SITE, "a", probing=True)
    answer(comparison, "g")  # in the place of a failure
    assert comparison.failed(SITE, "a", probing=True)


def test_a_probe_is_not_blamed_on_a_site_that_has_just_gone_down(comparison):
    answer(comparison, "bcdefghijk", 100)
    fail(comparison, "bcdef")
    assert not comparison.failed(SITE, "a", probing=True)


def test_a_probe_is_blamed_on_a_site_that_has_come_back(comparison):
    fail(comparison, "bcdefghijk", 100)
    answer(comparison, "bcdefg")
    assert comparison.failed(SITE, "a", probing=True)


def test_a_probe_is_judged_by_enough_of_the_others_within_the_window(comparison, clock):
    assert not comparison.failed(SITE, "a", probing=True)
    answer(comparison, "bcdefghij")
    answer(comparison, "a")  # its own does not count
    assert not comparison.failed(SITE, "a", probing=True)
    clock.now += WINDOW
    answer(comparison, "b", LEAST_OTHERS - 1)
    assert not comparison.failed(SITE, "a", probing=True)
    answer(comparison, "b")
    assert comparison.failed(SITE, "a", probing=True)


def test_late_failures_from_before_it_went_out_do_not_shield_a_probe(comparison):
    answer(comparison, "bcdefghijk")
    fail(comparison, "a", 8)
    answer(comparison, "bcdefghijk")
    assert comparison.failed(SITE, "a", probing=True)


def test_failed_probes_say_nothing_of_the_site(comparison):
    for _ in range(5):
        answer(comparison, "bcdefghijk")
        for number in range(100):
            assert comparison.failed(SITE, f"out{number}", probing=True)
    assert fail(comparison, "a", 3)[-1] is True


# Bounds.


def test_the_least_recently_used_sites_go(comparison):
    answer(comparison, "bcdefghijk", site="old.test")
    answer(comparison, "bcdefghijk", site="kept.test")
    for number in range(MAX_SITES - 1):
        answer(comparison, "a", site=f"{number}.test")
        answer(comparison, "b", site="kept.test")
    assert len(comparison._sites) == MAX_SITES
    assert fail(comparison, "a", 3, site="old.test") == [False] * 3
    assert fail(comparison, "a", 3, site="kept.test") == [False, False, True]
    assert len(comparison._sites) == MAX_SITES


def test_so_many_proxies_are_counted_on_a_site_and_no_more(comparison, clock):
    for number in range(3 * MAX_SUSPECTS):
        comparison.answered(SITE, f"ok{number}")
        assert not comparison.failed(SITE, f"bad{number}")
    site = comparison._sites[SITE]
    assert len(site.now.own) == MAX_SUSPECTS
    answer(comparison, "bcdefghijk", 1_000)
    assert not any(fail(comparison, "z", 10))  # one too many: it is not judged…
    clock.now += WINDOW
    answer(comparison, "bcdefghijk")
    assert fail(comparison, "z", 3)[-1] is True  # …until there is room


# Rates.


@settings(max_examples=100, deadline=None)
@given(
    others=st.integers(1, 12),
    rounds=st.lists(
        st.tuples(st.booleans(), st.booleans(), st.integers(0, 40)), min_size=1, max_size=60
    ),
    data=st.data(),
)
def test_nobody_is_blamed_while_the_others_fail_at_the_same_rate_or_more(others, rounds, data):
    """Where a fails, so do all others in that round; where it does not, they may all the same."""
    clock = Clock()
    comparison = Comparison(clock)
    names = [f"b{number}" for number in range(others)]
    for own, worse, seconds in rounds:
        clock.now += seconds / 10
        order = data.draw(st.permutations(["a", *names]))
        for name in order:
            if own or (worse and name != "a"):
                blamed = comparison.failed(SITE, name)
                assert not (blamed and name == "a")
            else:
                comparison.answered(SITE, name)


SITES = {
    "always well": lambda second: 0.0,
    "5 %": lambda second: 0.05,
    "20 %": lambda second: 0.2,
    "40 %": lambda second: 0.4,
    "80 %": lambda second: 0.8,
    "down for a minute": lambda second: 1.0 if 100 <= second < 160 else 0.0,
    "flaky, then down for a minute": lambda second: 1.0 if 100 <= second < 160 else 0.05,
    "worse and worse": lambda second: second / 200,
}
"""The share of requests that a site fails, whoever brings them."""


@pytest.mark.parametrize("order", ["in turn", "at random"])
@pytest.mark.parametrize("n", [2, 10, 100])
@pytest.mark.parametrize("site", SITES)
def test_what_a_site_does_to_everybody_is_hardly_ever_blamed_and_puts_nobody_out(site, n, order):
    """The figures that the odds were chosen by; 20 requests a second, for 200 seconds."""
    chance = random.Random(n)
    clock = Clock()
    comparison = Comparison(clock)
    health = Health(eject_after=8, eject_time=30, max_percent=100, clock=clock)
    proxies = [f"p{number}" for number in range(n)]
    for name in proxies:
        health.add(name)
    failures = blamed = 0
    for number in range(20 * 200):
        clock.now = number / 20
        name = proxies[number % n] if order == "in turn" else chance.choice(proxies)
        if chance.random() >= SITES[site](clock.now):
            comparison.answered(SITE, name)
            health.succeeded(name)
            continue
        failures += 1
        if comparison.failed(SITE, name):
            blamed += 1
            assert health.failed(name, certain=False).ejected_for is None
    assert blamed <= 2 + failures / 1000


@settings(max_examples=30, deadline=None)
@given(n=st.integers(3, 30), seed=st.integers(0, 10**6), warm=st.integers(0, 30))
def test_one_that_always_fails_among_healthy_ones_is_always_found(n, seed, warm):
    clock = Clock()
    comparison = Comparison(clock)
    chance = random.Random(seed)
    proxies = [f"p{number}" for number in range(n)]
    for _ in range(warm * n):
        comparison.answered(SITE, chance.choice(proxies))
    blamed = []
    for _ in range(40):
        for name in chance.sample(proxies, n):
            clock.now += 0.1 / n
            if name == "p0":
                blamed.append(comparison.failed(SITE, name))
            else:
                comparison.answered(SITE, name)
    assert blamed.index(True) <= 5
    assert all(blamed[blamed.index(True) :])
