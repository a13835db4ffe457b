"""Does an outage cost one timeout and not one a call, and is it told once?"""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import redis
from store_helpers import in_loop, named, run

from clock import Clock
from farm.redis_server import RedisServer
from scrapy_smoothpool.exceptions import StoreError, StoreUnavailable
from scrapy_smoothpool.store.breaker import PAUSE, Breaker
from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.shared_pool import SharedPool

if TYPE_CHECKING:
    from collections.abc import Iterator

GONE = StoreUnavailable("Redis is gone")


@pytest.fixture
def own() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    made = Breaker("Redis at h", clock)
    made.succeeded()
    made.tells = True
    return made


def test_all_go_through_while_it_answers(breaker: Breaker) -> None:
    assert [breaker.admit() for _ in range(3)] == [False] * 3
    assert breaker.refusal() is None


def test_one_tries_again_after_a_pause(breaker: Breaker, clock: Clock) -> None:
    breaker.failed(GONE)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="Redis is gone"):
            breaker.admit()
        clock.now += PAUSE
        assert breaker.admit()
        with pytest.raises(StoreUnavailable):
            breaker.admit()
        breaker.failed(GONE)
        breaker.ended(trial=True)
    clock.now += PAUSE
    assert breaker.admit()
    breaker.ended(trial=True)
    breaker.succeeded()
    assert not breaker.admit()


def test_a_try_that_is_cancelled_leaves_the_next_one_to_another(
    breaker: Breaker, clock: Clock
) -> None:
    breaker.failed(GONE)
    clock.now += PAUSE
    assert breaker.admit()
    breaker.ended(trial=True)
    assert breaker.admit()


def test_each_gets_an_error_of_its_own(breaker: Breaker) -> None:
    breaker.failed(GONE)
    found = []
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as caught:
            breaker.admit()
        found.append(caught.value)
    assert found[0] is not found[1]
    assert GONE not in found


def test_what_a_person_has_to_mend_is_told_once_a_minute_and_holds_nobody_up(
    breaker: Breaker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        breaker.failed(StoreError("no permission"))
        assert not breaker.admit()
        breaker.failed(StoreError("no memory"))
        breaker.succeeded()  # by another command
    clock.now += 60
    breaker.failed(StoreError("no memory"))
    told = [(it.levelname, it.getMessage()) for it in caplog.records]
    assert told == [("ERROR", "no permission"), ("ERROR", "no memory"), ("ERROR", "no memory")]


def test_an_outage_is_told_when_it_begins_and_when_it_is_over(
    breaker: Breaker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        breaker.failed(GONE)
        clock.now += 5
    breaker.succeeded()
    breaker.failed(GONE)
    clock.now += 1
    breaker.failed(StoreError("no permission"))  # it answers, though
    assert [it.getMessage() for it in caplog.records] == [
        "Redis is gone; trying again every 0.5 s",
        "Redis at h answers again after 15.0 s",
        "Redis is gone; trying again every 0.5 s",
        "Redis at h answers again after 1.0 s",
        "no permission",
    ]


def test_nothing_is_told_before_it_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    breaker = Breaker("Redis at h")
    breaker.failed(GONE)
    breaker.failed(StoreError("no permission"))
    breaker.succeeded()
    breaker.failed(GONE)
    assert caplog.records == []


@in_loop
async def test_a_server_that_hangs_costs_a_timeout_a_second_at_most(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = RedisConnection(own.url)
    pool = SharedPool(connection, Keys())
    await pool.publish(named(3), "f")
    tries: list[float] = []
    usual = RedisConnection._try

    async def counted(self: RedisConnection, command: Any) -> Any:
        tries.append(time.monotonic())
        return await usual(self, command)

    monkeypatch.setattr(RedisConnection, "_try", counted)
    failed = 0

    async def requests(until: float) -> None:
        nonlocal failed
        while time.monotonic() < until:
            try:
                await pool.pick()
            except StoreUnavailable:
                failed += 1
                await asyncio.sleep(0.01)

    own.pause()
    begun = time.monotonic()
    try:
        # More than may be under way at a time: those that wait for a place do not try either.
        await asyncio.gather(*(requests(begun + 5) for _ in range(64)))
    finally:
        own.resume()
    later = [at - begun for at in tries if at - begun > 0.9]
    assert len(tries) - len(later) <= 8
    assert 2 <= len(later) <= 5
    assert all(second - first >= 1 for first, second in pairwise(later))
    assert failed > 1_000
    await asyncio.sleep(PAUSE)
    assert await pool.pick() is not None
    await pool.aclose()


@in_loop
async def test_more_than_may_be_under_way_wait_their_turn(own: RedisServer) -> None:
    connection = RedisConnection(f"{own.url}?max_connections=2")
    pool = SharedPool(connection, Keys())
    await pool.publish(named(10), "f")
    found = await asyncio.gather(*(pool.pick() for _ in range(100)))
    assert sorted(found) == sorted([*named(10)] * 10)
    with redis.Redis.from_url(own.url) as raw:
        assert len(raw.client_list()) <= 3
    await pool.aclose()


def test_a_permission_taken_away_is_told_and_mends(
    own: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    connection = RedisConnection(own.url)
    connection.begin_telling()
    pool = SharedPool(connection, Keys())
    run(pool.publish(named(3), "f"))
    with redis.Redis.from_url(own.url) as raw:
        raw.execute_command("ACL", "SETUSER", "default", "-zincrby")
        for _ in range(3):
            with pytest.raises(StoreError):
                run(pool.pick())
        raw.execute_command("ACL", "SETUSER", "default", "+@all")
    assert run(pool.pick()) is not None
    assert [it.levelname for it in caplog.records] == ["ERROR"]
    run(pool.aclose())
