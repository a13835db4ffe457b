"""When is a proxy put out, by whom, for how long, and what may never happen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clock import Clock
from scrapy_smoothpool.health import CANDIDATE, Health, State, Verdict


@pytest.fixture
def make(clock):
    def make(n: int, **options: Any) -> Health:
        given = {"eject_after": 3, "eject_time": 30.0, "max_percent": 50, "clock": clock}
        health = Health(**(given | options))
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


def due(health: Health, exclude: Iterable[str] = ()) -> list[str]:
    """Return all that are due now, in the order in which they are handed out as probes."""
    exclude = set(exclude)
    return list(iter(lambda: health.probe(exclude), None))


def come_back(health: Health, clock: Clock, proxy_id: str) -> None:
    """Wait until a proxy is due and let its probe get through."""
    wake = health[proxy_id].wake
    assert wake is not None
    clock.now = max(clock.now, wake)
    assert health.probe() == proxy_id
    assert health.succeeded(proxy_id)


def probing(health: Health, clock: Clock, proxy_id: str) -> None:
    """Put a proxy out, wait until it is due and send its probe."""
    put_out(health, proxy_id)
    clock.now = health[proxy_id].wake
    assert health.probe() == proxy_id
    assert health[proxy_id].state is State.PROBING


# Counting.


def test_a_proxy_is_put_out_by_its_last_failure_of_as_many_in_a_row(make, clock):
    health = make(4)
    assert fail(health, "p0", 3) == [None, None, 30.0]
    assert health.out == 1
    assert (health["p0"].state, health["p0"].wake) == (State.EJECTED, clock.now + 30.0)
    assert (health["p1"].state, health["p1"].wake) == (State.ACTIVE, None)
    assert (health["p0"].out, health["p1"].out) == (True, False)


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


def test_a_verdict_says_why_it_went_out(make):
    health = make(4)
    for reason in ("banned", "banned", "proxy_error"):
        health.failed("p0", certain=True, reason=reason)
    assert health["p0"].reason == "proxy_error"


# The window.


def outcomes(health: Health, pattern: Iterable[bool], proxy_id: str = "p0") -> int | None:
    """Book outcomes, True a failure; return at which one the proxy went out, None if never."""
    for number, failed in enumerate(pattern, 1):
        if not failed:
            health.succeeded(proxy_id)
        elif health.failed(proxy_id, certain=False).ejected_for is not None:
            return number
    return None


@pytest.mark.parametrize("good", range(10))
def test_nine_failures_in_ten_put_a_proxy_out_within_its_first_20(make, good):
    health = make(10, eject_after=100)
    gone = outcomes(health, (number % 10 != good for number in range(20)))
    assert gone is not None
    assert 10 <= gone <= 20


def test_one_failure_in_twenty_never_puts_a_proxy_out(make):
    health = make(10, eject_after=8)
    epoch = health["p0"].epoch
    assert outcomes(health, (number % 20 == 19 for number in range(2_000))) is None
    assert health["p0"].epoch == epoch


@pytest.mark.parametrize("pattern", [[True, False], [True, True, True, False, False]])
def test_who_fails_less_than_seven_in_ten_stays(make, pattern):
    health = make(10, eject_after=8)
    assert outcomes(health, pattern * 400) is None


def test_fewer_than_ten_outcomes_say_nothing_of_their_share(make):
    health = make(10, eject_after=100)
    assert outcomes(health, [False] + [True] * 8) is None
    assert outcomes(health, [True]) == 1  # the tenth: nine of ten


def test_seven_failures_of_ten_are_enough_and_six_are_not(make):
    health = make(10, eject_after=100)
    assert outcomes(health, [False] * 4 + [True] * 6) is None
    assert outcomes(health, [False] * 3 + [True] * 7, "p1") == 10


def test_only_the_last_twenty_outcomes_count(make):
    health = make(10, eject_after=100)
    outcomes(health, [False] * 1_000)
    assert outcomes(health, [True] * 20) == 14  # 14 of the last 20


def test_only_a_failure_puts_a_proxy_out(make):
    # Spared at its failures, it is poor when it succeeds; there is room by then.
    health = make(4, eject_after=100, max_percent=25)
    fail(health, "p1", 10, certain=False)
    assert health["p1"].out
    assert outcomes(health, [True] * 12) is None
    health.remove("p1")
    health.add("p9")
    health.succeeded("p0")
    assert not health["p0"].out
    assert outcomes(health, [True]) == 1


def test_after_an_ejection_the_window_starts_anew(make, clock):
    health = make(10, eject_after=100)
    assert outcomes(health, [True] * 10) == 10
    come_back(health, clock, "p0")
    assert outcomes(health, [False] * 3 + [True] * 6) is None  # 6 of 10, the probe among them
    assert outcomes(health, [True] * 5) == 4  # 10 of 14; 9 of 13 are fewer than seven in ten


# A refused login.


def test_a_refused_login_puts_out_at_once_and_for_the_longest_time(make, clock):
    health = make(4, eject_time_max=1_800.0)
    verdict = health.failed("p0", certain=True, login=True)
    assert verdict == Verdict(1, 1_800.0)
    clock.now += 1_799.9
    assert health.probe() is None
    clock.now += 0.1
    assert health.probe() == "p0"


def test_a_probe_that_meets_a_refused_login_waits_for_the_longest_time(make, clock):
    health = make(4)
    probing(health, clock, "p0")
    assert health.failed("p0", certain=True, login=True).ejected_for == 1_800.0


def test_a_refused_login_leaves_one_proxy_in(make):
    health = make(3)
    verdicts = [health.failed(f"p{number}", certain=True, login=True) for number in range(3)]
    assert [verdict.ejected_for for verdict in verdicts] == [1_800.0, 1_800.0, None]
    assert verdicts[2].spared


def test_eject_after_0_means_never_for_a_refused_login_too(make):
    health = make(3, eject_after=0)
    assert health.failed("p0", certain=True, login=True) == Verdict(1)


# How long.


def durations(health: Health, times: int) -> list[float | None]:
    """Let the probes of p0 fail and return how long each failure put it out."""
    found = []
    for _ in range(times):
        health._clock.now = health["p0"].wake
        assert health.probe() == "p0"
        found += fail(health, "p0", 1)
    return found


def test_each_ejection_lasts_twice_as_long_as_the_one_before_up_to_the_ceiling(make):
    health = make(4, eject_time_max=1_000.0)
    assert fail(health, "p0", 3)[-1] == 30.0
    assert durations(health, 7) == [60.0, 120.0, 240.0, 480.0, 960.0, 1_000.0, 1_000.0]


def test_it_never_ceases_to_be_a_number(make):
    health = make(4, eject_time_max=float("inf"))
    put_out(health, "p0")
    record = health["p0"]
    record._doublings = 5_000
    assert 0 < durations(health, 1)[0] < float("inf")


def test_a_ceiling_below_the_first_time_does_not_shorten_it(make):
    health = make(4, eject_time_max=1.0)
    assert fail(health, "p0", 3)[-1] == 30.0
    assert durations(health, 2) == [30.0, 30.0]


def test_one_that_fails_soon_after_its_return_is_out_for_longer(make, clock):
    health = make(4)
    for expected in (30.0, 60.0, 120.0):
        assert fail(health, "p0", 3)[-1] == expected
        come_back(health, clock, "p0")
        clock.now += 299.0


@pytest.mark.parametrize(
    ("spell", "seconds"),
    [(0, 240.0), (299, 240.0), (300, 120.0), (599, 120.0), (600, 60.0), (900, 30.0), (9e9, 30.0)],
)
def test_a_good_spell_takes_doublings_back(make, clock, spell, seconds):
    health = make(4)
    put_out(health, "p0")
    durations(health, 2)  # 60, 120
    come_back(health, clock, "p0")
    clock.now += spell
    assert fail(health, "p0", 3)[-1] == seconds


def test_time_spent_out_is_no_good_spell(make, clock):
    health = make(4, eject_time_max=1e9)
    put_out(health, "p0")
    clock.now += 1e6
    assert durations(health, 1) == [60.0]
    for _ in range(20):  # each longer than it takes to be forgiven
        clock.now = max(clock.now, health["p0"].wake) + 1_000
        assert health.probe() == "p0"
        health.inconclusive("p0")
    assert durations(health, 1) == [120.0]


def test_jitter_draws_an_ejection_out(make, clock):
    factors = iter([1.1, 1.05, 1.0])
    health = make(4, jitter=lambda: next(factors))
    assert fail(health, "p0", 3)[-1] == pytest.approx(33.0)
    assert health["p0"].wake == pytest.approx(clock.now + 33.0)
    assert durations(health, 2) == pytest.approx([63.0, 120.0])


# Probes.


def test_one_that_is_out_stays_out_for_whatever_happens_but_its_probe(make, clock):
    health = make(4)
    put_out(health, "p0")
    clock.now += 29.9
    health.unsent("p0")
    health.inconclusive("p0")
    assert health["p0"].wake == pytest.approx(clock.now + 0.1)
    assert health.probe() is None
    clock.now += 0.2
    assert due(health) == ["p0"]


def test_a_proxy_is_due_after_its_time_and_not_before(make, clock):
    health = make(4)
    put_out(health, "p0")
    clock.now += 29.9
    assert health.probe() is None
    assert health["p0"].state is State.EJECTED
    clock.now += 0.1
    assert health.probe() == "p0"
    assert health["p0"].state is State.PROBING
    assert health.out == 1  # until the probe has got through


def test_a_proxy_is_probed_by_one_request_at_a_time(make, clock):
    health = make(4, probe_timeout=100.0)
    probing(health, clock, "p0")
    for _ in range(99):
        clock.now += 1
        assert health.probe() is None


def test_a_probe_that_gets_through_makes_the_proxy_active(make, clock):
    health = make(4)
    probing(health, clock, "p0")
    assert health.succeeded("p0") is True
    record = health["p0"]
    assert (record.state, record.wake, record.consecutive) == (State.ACTIVE, None, 0)
    assert health.out == 0
    assert health.succeeded("p0") is False  # it returns once
    clock.now += 1e6
    assert health.probe() is None


def test_a_proxy_that_is_back_has_to_fail_as_often_as_any_other(make, clock):
    health = make(4)
    probing(health, clock, "p0")
    health.succeeded("p0")
    assert fail(health, "p0", 2) == [None, None]
    assert fail(health, "p0", 1) == [60.0]


@pytest.mark.parametrize("certain", [True, False])
def test_a_probe_that_fails_puts_the_proxy_out_for_longer(make, clock, certain):
    health = make(4)
    probing(health, clock, "p0")
    record = health["p0"]
    epoch = record.epoch
    verdict = health.failed("p0", certain=certain, reason="again")
    assert verdict == Verdict(1, 60.0)
    assert (record.state, record.reason) == (State.EJECTED, "again")
    assert record.epoch > epoch
    assert health.out == 1
    clock.now += 59.9
    assert health.probe() is None
    clock.now += 0.1
    assert health.probe() == "p0"


def test_a_failing_probe_is_out_again_whatever_the_limit(make, clock):
    health = make(2)
    probing(health, clock, "p0")
    health.remove("p1")
    assert health.failed("p0", certain=False).ejected_for == 60.0


def test_a_probe_that_says_nothing_is_repeated_in_a_while(make, clock):
    health = make(4)
    probing(health, clock, "p0")
    epoch = health["p0"].epoch
    clock.now += 7
    health.inconclusive("p0")
    assert (health["p0"].state, health["p0"].epoch) == (State.EJECTED, epoch)
    clock.now += 29.9
    assert health.probe() is None
    clock.now += 0.1
    assert health.probe() == "p0"
    assert fail(health, "p0", 1) == [60.0]  # it did not count as an ejection


def test_a_probe_that_was_not_sent_is_left_to_the_next_request(make, clock):
    health = make(4)
    probing(health, clock, "p0")
    epoch = health["p0"].epoch
    for _ in range(3):
        health.unsent("p0")
        assert health["p0"].epoch == epoch
        assert health.probe() == "p0"
        assert health.probe() is None


def test_a_probe_without_an_outcome_is_repeated_after_its_timeout(make, clock):
    health = make(4, probe_timeout=100.0)
    probing(health, clock, "p0")
    for _ in range(3):
        clock.now += 99.9
        assert health.probe() is None
        clock.now += 0.1
        assert health.probe() == "p0"
    assert health.succeeded("p0")  # whichever of them it was


def test_what_says_nothing_changes_nothing_of_an_active_proxy(make, clock):
    health = make(4)
    fail(health, "p0", 2)
    health.inconclusive("p0")
    health.unsent("p0")
    assert (health["p0"].state, health["p0"].wake) == (State.ACTIVE, None)
    assert fail(health, "p0", 1) == [30.0]


def test_one_that_may_not_be_used_now_waits_for_the_next_request(make, clock):
    health = make(4)
    put_out(health, "p0")
    clock.now += 30
    for _ in range(5):
        assert health.probe(["p0"]) is None
        assert health["p0"].state is State.EJECTED
    assert health.probe(["p1"]) == "p0"


def test_one_that_may_not_be_used_now_keeps_nobody_else_waiting(make, clock):
    health = make(8)
    for proxy_id in ("p0", "p1", "p2", "p3"):
        put_out(health, proxy_id)
        clock.now += 1
    clock.now += 30
    assert due(health, ["p0", "p2"]) == ["p1", "p3"]
    assert due(health) == ["p0", "p2"]


def test_those_due_are_probed_in_the_order_in_which_they_went(make, clock):
    health = make(5)
    for proxy_id in ("p3", "p1", "p2"):
        put_out(health, proxy_id)
        clock.now += 1
    clock.now = 1_031.0
    assert due(health) == ["p3", "p1"]
    clock.now = 1_032.0
    assert due(health) == ["p2"]


def test_a_drained_proxy_is_not_probed_until_it_is_taken_back(make, clock):
    health = make(4)
    put_out(health, "p0")
    health.set_eligible("p0", False)
    clock.now += 40
    assert due(health) == []
    health.set_eligible("p0", True)
    assert due(health) == ["p0"]


def test_a_proxy_taken_back_before_its_time_is_probed_at_its_time(make, clock):
    health = make(4)
    put_out(health, "p0")
    health.set_eligible("p0", False)
    clock.now += 20
    health.set_eligible("p0", True)
    assert due(health) == []
    clock.now += 10
    assert due(health) == ["p0"]


# Epochs.


def test_each_ejection_starts_a_new_epoch(make, clock):
    health = make(4)
    before, other = health["p0"].epoch, health["p1"].epoch
    assert health.is_current("p0", before)
    put_out(health, "p0")
    assert not health.is_current("p0", before)
    after = health["p0"].epoch
    clock.now += 30
    assert health.probe() == "p0"
    assert health.is_current("p0", after)
    health.inconclusive("p0")
    assert not health.is_current("p0", after)  # while its time runs, nothing counts
    clock.now += 30
    assert health.probe() == "p0"
    health.succeeded("p0")
    assert health.is_current("p0", after)  # the return starts none
    probing(health, clock, "p0")
    assert not health.is_current("p0", after)
    probed_in = health["p0"].epoch
    fail(health, "p0", 1)  # its probe: an ejection like any other
    assert not health.is_current("p0", probed_in)
    assert health.is_current("p1", other)


def test_an_assignment_in_a_later_epoch_is_current(make):
    # Somebody else was put out since p1 was listed: that is no business of p1's.
    health = make(4)
    put_out(health, "p0")
    assert health.epochs.now > health["p1"].epoch
    assert health.is_current("p1", health.epochs.now)


@pytest.fixture
def whole_and_site(make):
    """Return the health of a pool of four, and that of one site."""
    whole = make(4, eject_after=1)
    site = make(0, eject_after=1, whole=whole)
    assigned = whole.epochs.now
    for number in range(4):
        site.add(f"p{number}")
    assert whole.epochs.now == assigned
    return whole, site


def test_a_site_and_the_pool_share_one_clock_of_ejections(whole_and_site):
    pool, site = whole_and_site
    assigned = pool.epochs.now
    assert site.is_current("p0", assigned)  # new to the site, but not new
    site.failed("p0", certain=False)
    assert (pool.is_current("p0", assigned), site.is_current("p0", assigned)) == (True, False)
    pool.failed("p1", certain=True)
    assert (pool.is_current("p1", assigned), site.is_current("p1", assigned)) == (False, True)


def test_who_is_out_of_the_pool_counts_as_out_on_a_site(whole_and_site):
    pool, site = whole_and_site
    assert site.failed("p0", certain=False).ejected_for == 30.0
    pool.failed("p1", certain=True)
    assert site.failed("p2", certain=False).spared  # it would be the third of four
    assert (pool.out, site.out) == (1, 1)


def test_a_crowd_that_is_passed_over_costs_little_and_is_looked_at_again(make, clock):
    health = make(400, eject_after=1)
    crowd = {f"p{number}" for number in range(300)}
    for name in sorted(crowd):
        health.failed(name, certain=True)
    clock.now += 30
    looked_at: list[str] = []

    class Crowd:
        def __contains__(self, name):
            looked_at.append(name)
            return name in crowd

    assert health.probe(Crowd()) is None
    assert len(looked_at) <= 32
    for _ in range(9):
        assert health.probe(Crowd()) is None
    assert set(looked_at) == crowd  # each once, then they are left alone
    looked_at.clear()
    assert health.probe(Crowd()) is None
    assert len(looked_at) == 300 % 32
    clock.now += 1
    assert health.probe() in crowd


# Candidates.


def test_a_candidate_begins_outside_and_is_due_at_once(make):
    health = make(1)
    health.add("new", candidate=True)
    assert (health["new"].out, health["new"].reason) == (True, CANDIDATE)
    assert (health.out, health.eligible) == (1, 2)
    assert due(health) == ["new"]
    assert health.succeeded("new")
    assert health.out == 0


@pytest.mark.parametrize("eject_after", [0, 3])
def test_a_candidate_that_fails_waits_longer_each_time(make, clock, eject_after):
    health = make(1, eject_after=eject_after)
    health.add("new", candidate=True)
    for seconds in (30.0, 60.0, 120.0):
        assert due(health) == ["new"]
        assert health.failed("new", certain=False).ejected_for == seconds
        assert due(health) == []
        assert health["new"].reason == CANDIDATE  # until it has passed
        clock.now += seconds
    assert due(health) == ["new"]
    assert health.succeeded("new")


def test_all_may_be_candidates(make):
    health = make(0)
    for name in ("a", "b"):
        health.add(name, candidate=True)
    assert due(health) == ["a", "b"]
    health.failed("a", certain=True)
    health.succeeded("b")
    assert (health.out, health.eligible) == (1, 2)


def test_a_proxy_that_leaves_and_comes_back_starts_a_new_epoch(make):
    health = make(2)
    epoch = health["p0"].epoch
    health.remove("p0")
    health.add("p0")
    assert not health.is_current("p0", epoch)
    assert health.is_current("p0", health["p0"].epoch)


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
    verdicts = [health.failed("p1", certain=True) for _ in range(10)]
    assert [verdict.ejected_for for verdict in verdicts] == [None] * 10
    assert [verdict.spared for verdict in verdicts] == [False] * 2 + [True] * 8
    clock.now += 25
    assert health.probe() == "p0"
    assert fail(health, "p1", 1) == [None]  # not yet: the probe may fail
    health.succeeded("p0")
    assert fail(health, "p1", 1) == [30.0]


def test_one_that_was_spared_and_succeeds_starts_anew(make):
    health = make(2)
    put_out(health, "p0")
    fail(health, "p1", 4)
    health.succeeded("p1")
    health.remove("p0")
    health.add("p0")
    assert fail(health, "p1", 2) == [None, None]
    assert fail(health, "p1", 1) == [30.0]


@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("login", [True, False])
def test_a_pool_of_one_never_wedges(make, certain, login):
    health = make(1, max_percent=100)
    for number in range(1, 100):
        verdict = health.failed("p0", certain=certain, login=login)
        assert verdict == Verdict(number, spared=login or number >= 3)
    assert not health["p0"].out


def test_drained_proxies_do_not_count_as_part_of_the_pool(make):
    health = make(2, max_percent=50)
    for number in range(8):
        health.add(f"drained{number}", eligible=False)
    assert health.eligible == 2
    assert put_out(health, "p0", "p1", certain=False) == ["p0"]
    assert put_out(health, "p1", certain=True) == []  # the eight would not take over


def test_drained_ones_that_are_out_take_nobodys_place(make):
    health = make(5, max_percent=50)
    for number in range(10):
        health.add(f"drained{number}", eligible=False, candidate=True)
    assert (health.out, health.eligible, health.checked) == (10, 5, 5)
    assert put_out(health, "p0", "p1", "p2", certain=False) == ["p0", "p1"]
    assert put_out(health, "p2", "p3", "p4") == ["p2", "p3"]
    health.set_eligible("p0", False)  # out and drained: neither in nor out
    assert put_out(health, "p4") == []
    assert (health.out, health.eligible, health.checked) == (14, 4, 4)


def test_candidates_count_neither_as_out_nor_as_members(make):
    health = make(4, max_percent=50)
    for number in range(20):
        health.add(f"new{number}", candidate=True)
    assert (health.out, health.eligible, health.checked) == (20, 24, 4)
    assert put_out(health, "p0", "p1", "p2", certain=False) == ["p0", "p1"]
    assert put_out(health, "p2", "p3") == ["p2"]
    health.failed("new0", certain=True)  # which leaves it a candidate
    assert put_out(health, "p3") == []
    health.succeeded("new1")
    assert (health.out, health.checked) == (22, 5)
    assert put_out(health, "p3") == ["p3"]
    health.remove("new2")
    health.set_eligible("new3", False)
    assert (health.out, health.eligible, health.checked) == (22, 22, 5)
    assert put_out(health, "new1") == []


def test_a_site_judges_by_those_of_the_whole_that_are_checked(clock):
    def build(whole=None):
        return Health(eject_after=1, eject_time=30.0, max_percent=50, clock=clock, whole=whole)

    whole = build()
    for name in "abcd":
        whole.add(name)
    for number in range(20):
        whole.add(f"new{number}", candidate=True)
        whole.add(f"drained{number}", eligible=False, candidate=True)
    site = build(whole)
    for name in "abc":
        site.add(name)
    assert [site.failed(name, certain=False).spared for name in "abc"] == [False, False, True]
    whole.failed("d", certain=True)
    assert site.failed("c", certain=True).spared


def test_draining_and_taking_back_move_the_limit(make):
    health = make(4)
    health.set_eligible("p3", False)
    health.set_eligible("p3", False)  # told twice, counted once
    assert health.eligible == 3
    assert put_out(health, "p0", "p1", "p2") == ["p0", "p1"]
    health.set_eligible("p3", True)
    assert health.eligible == 4
    assert put_out(health, "p2") == ["p2"]


# Removal.


def test_a_proxy_removed_while_out_makes_room_and_does_not_return(make, clock):
    health = make(3)
    put_out(health, "p0", "p1")
    health.remove("p0")
    assert (health.out, health.eligible) == (1, 2)
    health.add("p3")
    assert put_out(health, "p2") == ["p2"]
    clock.now += 30
    assert sorted(due(health)) == ["p1", "p2"]
    assert health.out == 2
    for proxy_id in ("p1", "p2"):
        health.succeeded(proxy_id)
    assert health.out == 0


def test_nothing_is_awaited_once_those_that_were_out_are_removed(make, clock):
    health = make(3)
    put_out(health, "p0")
    health.remove("p0")
    clock.now += 1e6
    assert health.probe() is None


def failing(health: Health, clock: Clock) -> None:
    fail(health, "p0", 2)


def ejected(health: Health, clock: Clock) -> None:
    put_out(health, "p0")


def is_due(health: Health, clock: Clock) -> None:
    put_out(health, "p0")
    clock.now += 30


def being_probed(health: Health, clock: Clock) -> None:
    probing(health, clock, "p0")


def back(health: Health, clock: Clock) -> None:
    probing(health, clock, "p0")
    health.succeeded("p0")


def out_for_longer(health: Health, clock: Clock) -> None:
    probing(health, clock, "p0")
    fail(health, "p0", 1)


def drained_while_out(health: Health, clock: Clock) -> None:
    put_out(health, "p0")
    health.set_eligible("p0", False)


@pytest.mark.parametrize(
    "bring", [failing, ejected, is_due, being_probed, back, out_for_longer, drained_while_out]
)
def test_a_proxy_added_again_starts_healthy(make, clock, bring):
    health = make(3)
    bring(health, clock)
    health.remove("p0")
    assert (health.out, health.eligible) == (0, 2)
    record = health.add("p0")
    assert (record.state, record.consecutive) == (State.ACTIVE, 0)
    assert (record.wake, record.reason, record.eligible) == (None, "", True)
    assert (health.out, health.eligible) == (0, 3)
    clock.now += 1e6
    assert health.probe() is None
    assert fail(health, "p0", 3) == [None, None, 30.0]
    clock.now += 30
    assert due(health) == ["p0"]


def test_an_ejection_from_before_the_removal_does_not_shorten_the_one_after(make, clock):
    health = make(4)
    put_out(health, "p0")  # until 1030
    clock.now += 20
    health.remove("p0")
    health.add("p0")
    put_out(health, "p0")  # until 1050
    clock.now += 10
    assert due(health) == []
    clock.now += 20
    assert due(health) == ["p0"]


# A list that has shrunk to proxies that are all out.


def test_the_one_that_would_be_back_first_is_let_in(make, clock):
    health = make(4)
    for proxy_id in ("p2", "p0"):
        put_out(health, proxy_id)
        clock.now += 1
    for proxy_id in ("p1", "p3"):
        health.remove(proxy_id)
    assert health.unwedge() == "p2"
    assert (health["p2"].state, health["p0"].state) == (State.ACTIVE, State.EJECTED)
    assert (health.out, health.unwedge()) == (1, None)
    clock.now += 30
    assert due(health) == ["p0"]


def test_nobody_is_let_in_while_one_is_in(make):
    health = make(4)
    put_out(health, "p0", "p1", "p2")
    assert health.unwedge() is None
    health.set_eligible("p3", False)
    assert health.unwedge() == "p0"


def test_a_drained_one_is_neither_let_in_nor_counted(make):
    health = make(4)
    put_out(health, "p0", "p1")
    health.set_eligible("p0", False)
    assert health.unwedge() is None  # p2 and p3 are in
    for proxy_id in ("p2", "p3"):
        health.remove(proxy_id)
    assert health.unwedge() == "p1"


def test_an_empty_pool_cannot_be_unwedged(make):
    assert make(0).unwedge() is None


# Bounds.


def test_the_heap_stays_bounded_however_often_a_probe_is_not_sent(make, clock):
    health = make(10)
    probing(health, clock, "p0")
    for _ in range(5_000):
        clock.now += 0.001
        health.unsent("p0")
        assert health.probe() == "p0"
    assert len(health._wakes) < 250


def test_the_heap_stays_bounded_while_lists_change(make, clock):
    health = make(10)
    for number in range(5_000):
        name = f"n{number}"
        health.add(name)
        assert put_out(health, name) == [name]
        health.set_eligible(name, False)
        health.set_eligible(name, True)
        health.remove(name)
    assert len(health._wakes) < 250
    assert health.out == 0


def test_tidying_the_heap_loses_nobody(make, clock):
    health = make(400, max_percent=100)
    names = [f"p{number}" for number in range(300)]
    for name in names:
        put_out(health, name)
        clock.now += 0.01
    for _ in range(2_000):
        health.add("passing")
        put_out(health, "passing")
        health.remove("passing")
    clock.now += 30
    assert due(health) == names


# Against a simple model.

IDS = [f"p{number}" for number in range(6)]


@dataclass
class Modelled:
    """What a proxy is, told in plain words: a list of outcomes, and the times that matter."""

    eligible: bool
    active_since: float
    epoch: int
    is_out: bool = False
    candidate: bool = False
    probed: bool = False
    due_at: float = 0.0
    consecutive: int = 0
    penalties: int = 0
    last: list[bool] = field(default_factory=list)

    def poor(self) -> bool:
        last = self.last[-20:]
        return len(last) >= 10 and sum(last) / len(last) >= 0.7


class HealthMachine(RuleBasedStateMachine):
    @initialize(
        eject_after=st.sampled_from([0, 1, 3, 8, 50]),
        eject_time=st.sampled_from([1.0, 5.0, 30.0]),
        ceiling=st.sampled_from([1.0, 60.0, 1_800.0]),
        max_percent=st.sampled_from([0, 10, 34, 50, 100]),
        start=st.integers(1, len(IDS)),
        jitter=st.sampled_from([1.0, 1.5]),
        others=st.sampled_from(["none", "candidates", "drained", "drained candidates"]),
    )
    def start(self, eject_after, eject_time, ceiling, max_percent, start, jitter, others):
        self.clock = Clock()
        self.eject_after, self.eject_time, self.jitter = eject_after, eject_time, jitter
        self.ceiling = max(ceiling, eject_time)
        self.max_percent = max_percent
        self.health = Health(
            eject_after=eject_after,
            eject_time=eject_time,
            eject_time_max=ceiling,
            max_percent=max_percent,
            probe_timeout=100.0,
            clock=self.clock,
            jitter=lambda: jitter,
        )
        self.model: dict[str, Modelled] = {}
        self.epochs: set[int] = set()
        for proxy_id in IDS[:start]:
            self.add(proxy_id, True)
        for proxy_id in IDS[start:] if others != "none" else ():
            self.add(proxy_id, "drained" not in others, "candidates" in others)

    def out(self) -> int:
        return sum(proxy.is_out for proxy in self.model.values())

    def eligible(self) -> int:
        return sum(proxy.eligible for proxy in self.model.values())

    def checked(self) -> list[Modelled]:
        return [p for p in self.model.values() if p.eligible and not p.candidate]

    @rule(proxy_id=st.sampled_from(IDS), eligible=st.booleans(), candidate=st.booleans())
    def add(self, proxy_id, eligible, candidate=False):
        if proxy_id not in self.model:
            self.health.add(proxy_id, eligible=eligible, candidate=candidate)
            epoch = self.health[proxy_id].epoch
            assert epoch not in self.epochs
            self.epochs.add(epoch)
            proxy = Modelled(eligible, self.clock.now, epoch, is_out=candidate, candidate=candidate)
            self.model[proxy_id] = proxy
            self.model[proxy_id].due_at = self.clock.now

    def any_of(self, data) -> str:
        return data.draw(st.sampled_from(sorted(self.model)))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), eligible=st.booleans())
    def set_eligible(self, data, eligible):
        proxy_id = self.any_of(data)
        self.health.set_eligible(proxy_id, eligible)
        self.model[proxy_id].eligible = eligible

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        proxy_id = self.any_of(data)
        self.health.remove(proxy_id)
        del self.model[proxy_id]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def succeed(self, data):
        proxy_id = self.any_of(data)
        proxy = self.model[proxy_id]
        assert self.health.succeeded(proxy_id) == proxy.is_out
        proxy.consecutive = 0
        proxy.last.append(False)
        if proxy.is_out:
            proxy.is_out = proxy.probed = proxy.candidate = False
            proxy.active_since = self.clock.now

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def say_nothing(self, data):
        proxy_id = self.any_of(data)
        self.health.inconclusive(proxy_id)
        self.probe_again(proxy_id, after=self.eject_time)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def not_send(self, data):
        proxy_id = self.any_of(data)
        self.health.unsent(proxy_id)
        self.probe_again(proxy_id, after=0.0)

    def probe_again(self, proxy_id, after):
        proxy = self.model[proxy_id]
        if proxy.probed:
            proxy.probed = False
            proxy.due_at = self.clock.now + after

    @precondition(lambda self: self.model)
    @rule(
        data=st.data(), times=st.integers(1, 9), certain=st.booleans(), login=st.sampled_from("nny")
    )
    def fail(self, data, times, certain, login):
        proxy_id = self.any_of(data)
        for _ in range(times):
            self.fail_once(proxy_id, certain, certain and login == "y")

    @rule(certain=st.booleans())
    def fail_all(self, certain):
        for proxy_id in sorted(i for i, proxy in self.model.items() if not proxy.is_out):
            for _ in range(max(1, self.eject_after)):
                self.fail_once(proxy_id, certain, False)

    def fail_once(self, proxy_id, certain, login):
        proxy = self.model[proxy_id]
        proxy.consecutive += 1
        proxy.last.append(True)
        pool = self.checked()
        out = sum(it.is_out for it in pool) + 1
        allowed = out < len(pool) if certain else 100 * out <= self.max_percent * len(pool)
        allowed = allowed and len(pool) > 1
        due = proxy.is_out or (
            self.eject_after > 0
            and (login or proxy.consecutive >= self.eject_after or proxy.poor())
        )
        verdict = self.health.failed(proxy_id, certain=certain, login=login, reason="why")
        assert verdict.consecutive == proxy.consecutive
        assert verdict.spared == (due and not allowed and not proxy.is_out)
        if not due or verdict.spared:
            assert verdict.ejected_for is None
            return
        was_out = proxy.is_out
        if not was_out:
            spells = (self.clock.now - proxy.active_since) // (10 * self.eject_time)
            proxy.penalties = int(max(0, proxy.penalties - spells))
        seconds = self.eject_time
        for _ in range(proxy.penalties):
            seconds = min(2 * seconds, self.ceiling)
        seconds = (self.ceiling if login else seconds) * self.jitter
        assert verdict.ejected_for == pytest.approx(seconds)
        proxy.penalties += 1
        proxy.epoch = self.health[proxy_id].epoch
        assert proxy.epoch not in self.epochs
        self.epochs.add(proxy.epoch)
        proxy.is_out, proxy.probed = True, False
        proxy.due_at = self.clock.now + seconds
        proxy.consecutive = 0
        proxy.last.clear()
        if certain and not was_out:  # it was not the last
            assert any(p.eligible and not p.is_out for p in self.model.values())

    @rule()
    def unwedge(self):
        waiting = {i: p.due_at for i, p in self.model.items() if p.eligible and p.is_out}
        found = self.health.unwedge()
        if not waiting or len(waiting) < self.eligible():
            assert found is None
            return
        assert waiting[found] == min(waiting.values())
        proxy = self.model[found]
        proxy.is_out = proxy.probed = proxy.candidate = False
        proxy.active_since = self.clock.now
        proxy.consecutive = 0
        proxy.last.append(False)

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0, 30.0, 100.0, 1_000.0]))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(exclude=st.sets(st.sampled_from(IDS), max_size=3))
    def probe(self, exclude):
        waiting = {
            proxy_id: proxy.due_at
            for proxy_id, proxy in self.model.items()
            if proxy.is_out
            and proxy.eligible
            and proxy_id not in exclude
            and proxy.due_at <= self.clock.now
        }
        found = self.health.probe(exclude)
        if not waiting:
            assert found is None
            return
        assert waiting[found] == min(waiting.values())
        self.model[found].probed = True
        self.model[found].due_at = self.clock.now + 100.0

    @invariant()
    def counts_are_right(self):
        assert self.health.out == self.out()
        assert self.health.eligible == self.eligible()
        assert self.health.checked == len(self.checked())

    @invariant()
    def nobody_is_lost(self):
        for proxy_id, proxy in self.model.items():
            record = self.health[proxy_id]
            found = (record.eligible, record.consecutive, record.epoch, record.out)
            assert found == (proxy.eligible, proxy.consecutive, proxy.epoch, proxy.is_out)
            assert record.wake == (pytest.approx(proxy.due_at) if proxy.is_out else None)
            assert (record.state is State.PROBING) == proxy.probed
            current = {epoch for epoch in self.epochs if self.health.is_current(proxy_id, epoch)}
            assert current == (
                {epoch for epoch in self.epochs if epoch >= proxy.epoch}
                if proxy.probed or not proxy.is_out
                else set()
            )
        for proxy_id in set(IDS) - self.model.keys():
            assert not any(self.health.is_current(proxy_id, epoch) for epoch in self.epochs)


TestHealthAgainstAModel = HealthMachine.TestCase
TestHealthAgainstAModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
