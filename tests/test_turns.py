"""Is long work done in steps, with turns for others between them, and can it be broken off?"""

from __future__ import annotations

import asyncio
import gc

import pytest

from scrapy_smoothpool.turns import MOST, Stopped, Turns, at_once, emptied
from store.store_helpers import in_loop, stop_loop


@pytest.fixture(scope="module", autouse=True)
def loop():
    yield
    stop_loop()


class Work:
    """So many steps, each of which takes some seconds of a clock that only they move."""

    def __init__(self, number: int, each: float = MOST / 2) -> None:
        self.now = 0.0
        self.done = 0
        self.closed = False
        self._number, self._each = number, each

    def steps(self):
        try:
            for _ in range(self._number):
                self.done += 1
                self.now += self._each
                yield
        finally:
            self.closed = True
        return "done"


class Pauses:
    """Counts turns, and what was done of some work at each."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.at: list[int] = []

    async def __call__(self, seconds: float) -> None:
        self.at.append(self.work.done)
        await asyncio.sleep(seconds)

    def turns(self) -> Turns:
        return Turns(self, clock=lambda: self.work.now)


def test_at_once_returns_what_the_steps_return():
    assert at_once(Work(5).steps()) == "done"


@in_loop
async def test_others_have_a_turn_after_a_few_milliseconds():
    work = Work(7)
    pauses = Pauses(work)
    assert await pauses.turns().drive(work.steps()) == "done"
    assert pauses.at == [2, 4, 6]


@in_loop
async def test_short_work_is_not_interrupted():
    work = Work(5, each=0.0)
    pauses = Pauses(work)
    await pauses.turns().drive(work.steps())
    assert pauses.at == []


@in_loop
async def test_others_run_meanwhile():
    ran = []

    async def other():
        for number in range(3):
            ran.append(number)
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(other())
    work = Work(20, each=MOST)
    await Turns(clock=lambda: work.now).drive(work.steps())
    assert ran == [0, 1, 2]
    await task


@in_loop
async def test_stopped_work_ends_at_its_present_step():
    work = Work(100, each=MOST)

    async def stop(seconds: float) -> None:
        if work.done == 3:
            turns.stop()

    turns = Turns(stop, clock=lambda: work.now)
    with pytest.raises(Stopped):
        await turns.drive(work.steps())
    assert work.done == 3
    assert work.closed


@in_loop
async def test_an_error_of_a_step_comes_out():
    def steps():
        yield
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        await Turns().drive(steps())


@in_loop
async def test_what_blocks_runs_in_a_thread():
    import threading

    assert await Turns().aside(threading.get_ident) != threading.get_ident()


def test_containers_are_emptied_in_steps():
    a, b, c = dict.fromkeys(range(2000)), set(range(700)), [1, 2]
    assert sum(1 for _ in emptied(a, b, c)) >= 5
    assert not a
    assert not b
    assert not c


@in_loop
async def test_what_is_built_in_steps_is_not_looked_through_by_the_collector_again():
    work = Work(50, each=MOST)
    full = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append(info)

    kept = []

    def building():
        for _ in work.steps():
            kept.extend([[]] for _ in range(2_000))
            yield

    gc.collect()
    gc.callbacks.append(note)
    try:
        await Turns(clock=lambda: work.now).drive(building())
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 100_000
    assert full == []
    # And it is not withdrawn from the collector for good.
    assert gc.get_freeze_count() == 0
    assert gc.isenabled()
