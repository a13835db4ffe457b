"""When the pool panics, how it goes on meanwhile, and what ends it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clock import Clock
from scrapy_smoothpool.panic import LEAST_BARREN, PACE, PAUSE, Panic


@pytest.fixture
def panic(clock) -> Panic:
    return Panic(clock)


def fail(panic: Panic, times: int, *, size: int = 1, spared: bool = True) -> list[int]:
    """Let requests fail and return at which of them, from 1 on, a panic began."""
    return [n + 1 for n in range(times) if panic.failure(spared=spared, size=size)]


@pytest.mark.parametrize(
    ("size", "failures"), [(0, LEAST_BARREN), (1, LEAST_BARREN), (10, 20), (11, 22), (1_000, 2_000)]
)
def test_a_panic_begins_once_after_two_failures_for_each_proxy(panic, size, failures):
    assert not panic.on
    assert fail(panic, 3_000, size=size) == [failures]
    assert panic.on


def test_there_is_no_panic_while_proxies_can_still_be_put_out(panic):
    assert fail(panic, 1_000, spared=False) == []
    assert not panic.on
    assert fail(panic, 1) == [1]  # the first that could not


def test_one_success_in_a_while_is_no_reason_to_panic(panic):
    for _ in range(100):
        assert fail(panic, LEAST_BARREN - 1) == []
        panic.success()
    assert not panic.on


def test_a_success_ends_it_and_it_may_begin_again(panic):
    for _ in range(3):
        assert fail(panic, 50) == [LEAST_BARREN]
        assert panic.on
        panic.success()
        assert not panic.on


def test_a_success_without_a_panic_changes_nothing(panic):
    panic.success()
    assert not panic.on
    assert fail(panic, LEAST_BARREN) == [LEAST_BARREN]


@pytest.mark.parametrize(("wait", "seconds"), [(False, PACE), (True, PAUSE)])
def test_picks_keep_their_distance(panic, clock, wait, seconds):
    fail(panic, LEAST_BARREN)
    assert panic.may_pick(wait)  # the first at once: it may be over
    for _ in range(5):
        assert not panic.may_pick(wait)
        clock.now += seconds * 0.99
        assert not panic.may_pick(wait)
        clock.now += seconds * 0.02
        assert panic.may_pick(wait)


@pytest.mark.parametrize(("wait", "most"), [(False, 200), (True, 2)])
def test_ten_seconds_see_so_many_picks_however_many_ask(panic, clock, wait, most):
    fail(panic, LEAST_BARREN)
    given_ = 0
    for _ in range(10_000):
        given_ += panic.may_pick(wait)
        clock.now += 0.001
    assert most - 10 <= given_ <= most


def test_a_long_silence_saves_up_no_picks(panic, clock):
    fail(panic, LEAST_BARREN)
    panic.may_pick(False)
    clock.now += 1_000
    assert [panic.may_pick(False) for _ in range(5)] == [True, False, False, False, False]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(0, 15),
    events=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=15),
)
def test_it_is_a_panic_after_so_many_failures_in_a_row_the_last_one_spared(size, events):
    panic = Panic(Clock())
    for failures, success in events:
        began = fail(panic, failures, size=size, spared=False)
        began += fail(panic, 1, size=size)
        assert panic.on == (failures + 1 >= max(LEAST_BARREN, 2 * size))
        assert bool(began) == panic.on
        if success or panic.on:
            panic.success()
        else:
            panic = Panic(Clock())
