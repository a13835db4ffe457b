"""When is a proxy put out, by whom, for how long, and what may never happen."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scrapy_smoothpool.health import Health


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock):
    def make(n: int, *, eject_after: int = 3, max_percent: int = 50) -> Health:
        health = Health(
            eject_after=eject_after, eject_time=30.0, max_percent=max_percent, clock=clock
        )
        for number in range(n):
            health.add(f"p{number}")
        return health

    return make


def fail(health: Health, proxy_id: str, times: int, *, certain: bool = True) -> list[float | None]:
    """Let a proxy fail and return how long each failure put it out."""
    return [health.failed(proxy_id, certain=certain).ejected_for for _ in range(times)]


def put_out(health: Health, *proxy_ids: str, certain: bool = True) -> list[str]:
    """Let proxies fail three times each and return those that were put out."""
    return [
        proxy_id
        for proxy_id in proxy_ids
        if any(seconds is not None for seconds in fail(health, proxy_id, 3, certain=certain))
    ]


# Counting.


def test_a_proxy_is_put_out_by_its_last_failure_of_as_many_in_a_row(make, clock):
    health = make(4)
    assert fail(health, "p0", 3) == [None, None, 30.0]
    assert health.out == 1
    assert health["p0"].out_until == clock.now + 30.0
    assert health["p1"].out_until is None


def test_a_verdict_says_how_many_failures_there_were_in_a_row(make):
    health = make(4)
    counts = [health.failed("p0", certain=True).consecutive for _ in range(3)]
    assert counts == [1, 2, 3]
    assert health["p0"].consecutive == 0  # starts anew for the time after


def test_a_success_starts_the_count_anew(make):
    health = make(4)
    fail(health, "p0", 2)
    health.succeeded("p0")
    assert fail(health, "p0", 2) == [None, None]
    assert health["p0"].consecutive == 2
    assert fail(health, "p0", 1) == [30.0]


def test_failures_of_one_are_not_counted_on_another(make):
    health = make(4)
    for _ in range(2):
        for number in range(4):
            assert fail(health, f"p{number}", 1) == [None]
    assert health.out == 0


def test_eject_after_0_means_never(make):
    health = make(4, eject_after=0)
    assert fail(health, "p0", 100) == [None] * 100
    assert health["p0"].consecutive == 100
    assert health.out == 0


def test_one_that_is_out_is_not_put_out_again_and_returns_at_its_time(make, clock):
    health = make(4)
    put_out(health, "p0")
    clock.now += 20
    assert fail(health, "p0", 5) == [None] * 5
    assert health.out == 1
    clock.now += 10
    assert health.due() == ["p0"]


# Epochs.


def test_each_ejection_starts_a_new_epoch(make, clock):
    health = make(4)
    assert health.is_current("p0", 0)
    put_out(health, "p0")
    assert not health.is_current("p0", 0)
    assert health.is_current("p0", 1)
    clock.now += 30
    health.due()
    assert health.is_current("p0", 1)
    assert health.is_current("p1", 0)


def test_nothing_is_current_of_a_proxy_that_is_not_there(make):
    health = make(1)
    health.remove("p0")
    assert not health.is_current("p0", 0)
    assert not health.is_current("never", 0)


# Limits.


@pytest.mark.parametrize(("n", "out"), [(1, 0), (2, 1), (3, 2), (10, 9)])
def test_certain_faults_put_out_all_but_one(make, n, out):
    health = make(n)
    assert put_out(health, *(f"p{number}" for number in range(n))) == [
        f"p{number}" for number in range(out)
    ]
    assert health.out == out


@pytest.mark.parametrize(
    ("n", "max_percent", "out"),
    [
        (10, 50, 5),
        (9, 50, 4),  # 5 of 9 are more than half
        (3, 50, 1),
        (2, 50, 1),
        (1, 50, 0),
        (10, 0, 0),
        (10, 9, 0),
        (10, 10, 1),
        (10, 99, 9),
        (2, 100, 2),  # the user's own wish
        (1, 100, 0),  # a pool of one never wedges
    ],
)
def test_bans_put_out_a_share_of_the_pool_at_most(make, n, max_percent, out):
    health = make(n, max_percent=max_percent)
    for _ in range(5):  # however long they go on
        put_out(health, *(f"p{number}" for number in range(n)), certain=False)
    assert health.out == out


def test_bans_and_certain_faults_share_one_count(make):
    health = make(4)
    assert put_out(health, "p0", "p1") == ["p0", "p1"]
    assert put_out(health, "p2", certain=False) == []
    assert put_out(health, "p2") == ["p2"]
    assert put_out(health, "p3") == []


def test_one_that_was_spared_goes_at_its_next_failure_once_there_is_room(make, clock):
    health = make(2)
    put_out(health, "p0")
    clock.now += 5
    assert fail(health, "p1", 10) == [None] * 10
    clock.now += 25
    assert health.due() == ["p0"]
    assert fail(health, "p1", 1) == [30.0]


def test_drained_proxies_do_not_count_as_part_of_the_pool(make):
    health = make(2, max_percent=50)
    for number in range(8):
        health.add(f"drained{number}", eligible=False)
    assert health.eligible == 2
    assert put_out(health, "p0", "p1", certain=False) == ["p0"]
    assert put_out(health, "p1", certain=True) == []  # the eight would not take over


def test_draining_and_taking_back_move_the_limit(make):
    health = make(4)
    health.set_eligible("p3", False)
    health.set_eligible("p3", False)  # told twice, counted once
    assert health.eligible == 3
    assert put_out(health, "p0", "p1", "p2") == ["p0", "p1"]
    health.set_eligible("p3", True)
    assert health.eligible == 4
    assert put_out(health, "p2") == ["p2"]


# Return.


def test_a_proxy_returns_after_its_time_and_not_before(make, clock):
    health = make(4)
    put_out(health, "p0")
    clock.now += 29.9
    assert health.due() == []
    assert health["p0"].out_until is not None
    clock.now += 0.1
    assert health.due() == ["p0"]
    assert health["p0"].out_until is None
    assert health.out == 0
    assert health.due() == []


def test_those_due_return_in_the_order_in_which_they_went(make, clock):
    health = make(5)
    for proxy_id in ("p3", "p1", "p2"):
        put_out(health, proxy_id)
        clock.now += 1
    assert health.next_return == 1_030.0
    clock.now = 1_031.0
    assert health.due() == ["p3", "p1"]
    assert health.next_return == 1_032.0
    clock.now = 2_000.0
    assert health.due() == ["p2"]
    assert health.next_return is None


def test_a_proxy_can_be_put_out_again_after_its_return(make, clock):
    health = make(4)
    for round_ in range(1, 4):
        assert fail(health, "p0", 3)[-1] == 30.0
        assert health["p0"].epoch == round_
        clock.now += 30
        assert health.due() == ["p0"]


# Removal.


def test_a_proxy_removed_while_out_makes_room_and_does_not_return(make, clock):
    health = make(3)
    put_out(health, "p0", "p1")
    health.remove("p0")
    assert (health.out, health.eligible) == (1, 2)
    health.add("p3")
    assert put_out(health, "p2") == ["p2"]
    clock.now += 30
    assert sorted(health.due()) == ["p1", "p2"]
    assert health.out == 0


def test_nothing_is_awaited_once_those_that_were_out_are_removed(make):
    health = make(3)
    put_out(health, "p0")
    health.remove("p0")
    assert health.next_return is None


def test_a_proxy_added_again_starts_healthy(make):
    health = make(3)
    put_out(health, "p0")
    fail(health, "p0", 2)
    health.remove("p0")
    record = health.add("p0")
    assert (record.consecutive, record.out_until) == (0, None)
    assert (health.out, health.eligible) == (0, 3)


def test_an_ejection_from_before_the_removal_does_not_shorten_the_one_after(make, clock):
    health = make(4)
    put_out(health, "p0")  # until 1030
    clock.now += 20
    health.remove("p0")
    health.add("p0")
    put_out(health, "p0")  # until 1050
    clock.now += 10
    assert health.due() == []
    clock.now += 20
    assert health.due() == ["p0"]


# Against a simple model.

IDS = [f"p{number}" for number in range(6)]


@dataclass
class Modelled:
    eligible: bool
    consecutive: int = 0
    epoch: int = 0
    out_until: float | None = None


class HealthMachine(RuleBasedStateMachine):
    @initialize(
        eject_after=st.integers(0, 3),
        eject_time=st.sampled_from([1.0, 5.0, 30.0]),
        max_percent=st.sampled_from([0, 10, 34, 50, 100]),
        start=st.integers(1, len(IDS)),
    )
    def start(self, eject_after, eject_time, max_percent, start):
        self.clock = Clock()
        self.eject_after, self.eject_time = eject_after, eject_time
        self.max_percent = max_percent
        self.health = Health(
            eject_after=eject_after,
            eject_time=eject_time,
            max_percent=max_percent,
            clock=self.clock,
        )
        self.model: dict[str, Modelled] = {}
        for proxy_id in IDS[:start]:
            self.add(proxy_id, True)

    def out(self) -> int:
        return sum(proxy.out_until is not None for proxy in self.model.values())

    def eligible(self) -> int:
        return sum(proxy.eligible for proxy in self.model.values())

    @rule(proxy_id=st.sampled_from(IDS), eligible=st.booleans())
    def add(self, proxy_id, eligible):
        if proxy_id not in self.model:
            self.health.add(proxy_id, eligible=eligible)
            self.model[proxy_id] = Modelled(eligible)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), eligible=st.booleans())
    def set_eligible(self, data, eligible):
        proxy_id = data.draw(st.sampled_from(sorted(self.model)))
        self.health.set_eligible(proxy_id, eligible)
        self.model[proxy_id].eligible = eligible

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        proxy_id = data.draw(st.sampled_from(sorted(self.model)))
        self.health.remove(proxy_id)
        del self.model[proxy_id]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def succeed(self, data):
        proxy_id = data.draw(st.sampled_from(sorted(self.model)))
        self.health.succeeded(proxy_id)
        self.model[proxy_id].consecutive = 0

    @precondition(lambda self: self.model)
    @rule(data=st.data(), times=st.integers(1, 4), certain=st.booleans())
    def fail(self, data, times, certain):
        proxy_id = data.draw(st.sampled_from(sorted(self.model)))
        for _ in range(times):
            self.fail_once(proxy_id, certain)

    def fail_once(self, proxy_id, certain):
        proxy = self.model[proxy_id]
        proxy.consecutive += 1
        out, eligible = self.out() + 1, self.eligible()
        allowed = out < eligible if certain else 100 * out <= self.max_percent * eligible
        expected = (
            self.eject_after > 0
            and proxy.consecutive >= self.eject_after
            and proxy.out_until is None
            and allowed
            and eligible > 1
        )
        verdict = self.health.failed(proxy_id, certain=certain)
        assert verdict.consecutive == proxy.consecutive
        assert verdict.ejected_for == (self.eject_time if expected else None)
        if expected:
            proxy.consecutive = 0
            proxy.epoch += 1
            proxy.out_until = self.clock.now + self.eject_time
            if certain:
                assert any(p.eligible and p.out_until is None for p in self.model.values())

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 30.0]))
    def time_passes(self, seconds):
        self.clock.now += seconds
        expected = {
            proxy_id
            for proxy_id, proxy in self.model.items()
            if proxy.out_until is not None and proxy.out_until <= self.clock.now
        }
        back = self.health.due()
        assert len(back) == len(expected)
        assert set(back) == expected
        for proxy_id in back:
            self.model[proxy_id].out_until = None

    @invariant()
    def counts_are_right(self):
        assert self.health.out == self.out()
        assert self.health.eligible == self.eligible()

    @invariant()
    def nobody_is_lost(self):
        for proxy_id, proxy in self.model.items():
            record = self.health[proxy_id]
            found = (record.eligible, record.consecutive, record.epoch, record.out_until)
            assert found == (proxy.eligible, proxy.consecutive, proxy.epoch, proxy.out_until)
            assert self.health.is_current(proxy_id, proxy.epoch)
            assert not self.health.is_current(proxy_id, proxy.epoch - 1)
        for proxy_id in set(IDS) - self.model.keys():
            assert not self.health.is_current(proxy_id, 0)

    @invariant()
    def the_next_return_is_that_of_the_first_one_out(self):
        times = [p.out_until for p in self.model.values() if p.out_until is not None]
        assert self.health.next_return == min(times, default=None)


TestHealthAgainstAModel = HealthMachine.TestCase
TestHealthAgainstAModel.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
