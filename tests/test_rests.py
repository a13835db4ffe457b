"""Who rests where, for how long, and that it is forgotten afterwards."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from clock import Clock
from scrapy_smoothpool.rests import MAX_REST, MAX_SITES, Rests


@pytest.fixture
def rests(clock) -> Rests:
    return Rests(clock)


def test_at_first_nobody_rests(rests):
    assert not rests.by_site
    assert rests.on("a.test") == set()


def test_a_proxy_rests_for_its_time_and_on_its_site_only(rests, clock):
    rests.rest("a.test", "a", 2.0)
    assert rests.by_site
    assert rests.on("a.test") == {"a"}
    assert rests.on("b.test") == set()
    clock.now += 1.9
    assert rests.on("a.test") == {"a"}
    clock.now += 0.1
    assert rests.on("a.test") == set()
    assert not rests.by_site


def test_each_proxy_rests_for_its_own_time(rests, clock):
    for name, seconds in {"c": 3.0, "a": 1.0, "b": 2.0}.items():
        rests.rest("a.test", name, seconds)
    for expected in ("abc", "bc", "c", ""):
        assert rests.on("a.test") == set(expected)
        clock.now += 1


def test_a_longer_rest_replaces_the_present_one_and_a_shorter_one_does_not(rests, clock):
    rests.rest("a.test", "a", 10.0)
    rests.rest("a.test", "a", 20.0)
    rests.rest("a.test", "a", 5.0)
    clock.now += 19.9
    assert rests.on("a.test") == {"a"}
    clock.now += 0.1
    assert rests.on("a.test") == set()


def test_a_proxy_may_rest_again(rests, clock):
    for _ in range(3):
        rests.rest("a.test", "a", 1.0)
        assert rests.on("a.test") == {"a"}
        clock.now += 1
        assert rests.on("a.test") == set()


def test_a_rest_that_is_over_and_was_not_looked_at_may_be_replaced(rests, clock):
    rests.rest("a.test", "a", 1.0)
    clock.now += 5
    rests.rest("a.test", "a", 1.0)
    assert rests.on("a.test") == {"a"}
    clock.now += 1
    assert rests.on("a.test") == set()


def test_no_rest_lasts_longer_than_a_day(rests, clock):
    rests.rest("a.test", "a", 1e12)
    rests.rest("a.test", "b", float("inf"))
    assert MAX_REST == 24 * 60 * 60
    clock.now += MAX_REST
    assert rests.on("a.test") == set()


def test_the_least_recently_used_sites_go(rests):
    for site in ("unused.test", "asked.test", "told.test"):
        rests.rest(site, "a", 1_000.0)
    for number in range(MAX_SITES - 3):
        rests.rest(f"{number}.test", "a", 1_000.0)
    assert rests.on("asked.test") == {"a"}
    rests.rest("told.test", "b", 1_000.0)
    rests.rest("new.test", "a", 1_000.0)
    assert len(rests.by_site) == MAX_SITES
    assert rests.on("unused.test") == set()
    assert rests.on("asked.test") == {"a"}
    assert rests.on("told.test") == {"a", "b"}
    assert rests.on("new.test") == {"a"}


def test_memory_does_not_grow_with_the_number_of_rests(rests, clock):
    for number in range(5_000):
        rests.rest("a.test", f"p{number % 10}", 1_000.0)
        clock.now += 0.01  # each a little longer than the one before
    site = rests.by_site["a.test"]
    assert len(site.heap) == len(site.ends) == len(site.ids) == 10
    clock.now += 1_000
    assert rests.on("a.test") == set()
    assert not rests.by_site


class RestsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.rests = Rests(self.clock)
        self.ends: dict[tuple[str, str], float] = {}

    @rule(
        site=st.sampled_from("xy"),
        proxy_id=st.sampled_from("abc"),
        seconds=st.sampled_from([0.5, 1.0, 3.0, 10.0]),
    )
    def rest(self, site, proxy_id, seconds):
        self.rests.rest(site, proxy_id, seconds)
        end = self.clock.now + seconds
        self.ends[site, proxy_id] = max(end, self.ends.get((site, proxy_id), end))

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.5]))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(site=st.sampled_from("xyz"))
    def ask(self, site):
        assert self.rests.on(site) == self.resting(site)

    def resting(self, site: str) -> set[str]:
        return {name for (on, name), end in self.ends.items() if on == site and end > self.clock()}

    @invariant()
    def it_is_true_while_anybody_rests(self):
        if any(self.resting(site) for site in "xy"):
            assert self.rests.by_site

    def teardown(self):
        for site in "xy":
            assert self.rests.on(site) == self.resting(site)


TestRestsAgainstAModel = RestsMachine.TestCase
TestRestsAgainstAModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
