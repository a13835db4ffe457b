"""What does a worker do with the counts of a pool while Redis is away, and after it lost them?"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from itertools import count

import pytest
from redis import Redis

from farm.redis_server import RedisServer
from farm.tcp_relay import TcpRelay
from scrapy_smoothpool.exceptions import StoreError, StoreUnavailable
from scrapy_smoothpool.proxy import Proxy
from scrapy_smoothpool.store import scripts
from scrapy_smoothpool.store.verdicts import Happened, Kind
from scrapy_smoothpool.strategies.base import StrategyOptions
from scrapy_smoothpool.strategies.least_used import LeastUsedStrategy
from scrapy_smoothpool.strategies.while_away import WhileAway
from scrapy_smoothpool.turns import at_once
from store.store_helpers import in_loop, rules, run, stop_loop

_numbers = count()


@pytest.fixture(scope="module", autouse=True)
def _loop():
    yield
    stop_loop()


@pytest.fixture
def own():
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(own):
    with Redis(port=own.port, decode_responses=True) as client:
        yield client


@pytest.fixture
def worker(own):
    """Return workers of one pool over so many proxies; None: without a list."""
    made = []

    async def worker(proxies=None, **options):
        listed = [Proxy("http", f"10.0.{n // 250}.{n % 250 + 1}", 80) for n in range(proxies or 0)]
        given = {"redis_url": own.url, **options}
        strategy = LeastUsedStrategy.from_options(StrategyOptions(**given))
        made.append(strategy)
        await strategy.open(listed)
        return strategy

    yield worker
    for strategy in made:
        run(strategy.close())


async def pick(strategy, exclude=()):
    found = strategy.pick(exclude)
    return found if found is None or isinstance(found, str) else await found


async def picks(strategy, times):
    return [await pick(strategy) for _ in range(times)]


async def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def counts(client):
    return dict(client.zrange("smoothpool:{default}:allocations", 0, -1, withscores=True))


# On its own.


@in_loop
async def test_picks_go_on_evenly_and_are_added_to_the_counts(own, client, worker, caplog):
    caplog.set_level(logging.INFO)
    one = await worker(5, carry_on=True)
    await picks(one, 10)
    own.pause()
    alone = await picks(one, 52)
    assert max(Counter(alone).values()) - min(Counter(alone).values()) == 1
    own.resume()
    await until(lambda: not one._alone.active)
    # The pick that found Redis away may have counted: its reply was lost.
    assert sum(counts(client).values()) in (62, 63)
    after = await picks(one, 10)
    assert sum(counts(client).values()) in (72, 73)
    assert max(counts(client).values()) - min(counts(client).values()) <= 1
    assert set(after) == set(alone)
    told = [it.getMessage() for it in caplog.records]
    assert sum("carries on by itself with the 5 proxies" in text for text in told) == 1
    assert sum("52 allocations made meanwhile were added" in text for text in told) == 1


@in_loop
async def test_nobody_waits_once_it_carries_on(own, worker):
    one = await worker(5, carry_on=True)
    own.pause()
    await pick(one)
    begun = time.monotonic()
    assert None not in await picks(one, 1_000)
    assert time.monotonic() - begun < 0.5
    own.resume()


@in_loop
async def test_who_is_out_stays_out(own, worker):
    one, two = await worker(4, carry_on=True), await worker(carry_on=True)
    ids = sorted(proxy.id for proxy in await one.members())
    at_once_out = rules(eject_after=1, max_percent=100)
    found = await one.report_outcomes(at_once_out, [Happened(ids[0], 0, Kind.FAILED)])
    await two.report_outcomes(at_once_out, [Happened(ids[1], found.epoch, Kind.FAILED)])
    await one.take_probe(10.0)  # so it hears of the other's
    own.pause()
    assert set(await picks(one, 12)) == set(ids[2:])
    assert await pick(one, (ids[2],)) == ids[3]
    assert await pick(one, ids[2:]) is None
    own.resume()


@in_loop
async def test_who_came_back_is_picked(own, worker):
    one = await worker(3, carry_on=True)
    ids = sorted(proxy.id for proxy in await one.members())
    soon = rules(eject_after=1, eject_time=0.05, max_percent=100)
    await one.report_outcomes(soon, [Happened(name, 0, Kind.FAILED) for name in ids[:2]])
    await asyncio.sleep(0.1)
    probes = await one.take_probe(10.0)
    assert len(probes.leased) == 1
    (back,) = probes.leased
    await one.report_outcomes(soon, [Happened(back, probes.epoch, Kind.SUCCESS)])
    own.pause()
    assert set(await picks(one, 6)) == {back, ids[2]}
    own.resume()


@in_loop
async def test_candidates_are_not_picked_unchecked(own, worker):
    one = await worker(3, carry_on=True, admission=True)
    ids = sorted(proxy.id for proxy in await one.members())
    probes = await one.take_probe(10.0, 0, 1, (), unchecked=True)
    (checked,) = probes.leased
    await one.report_outcomes(rules(), [Happened(checked, probes.epoch, Kind.SUCCESS)])
    own.pause()
    assert set(await picks(one, 4)) == {checked} < set(ids)
    own.resume()


@in_loop
async def test_an_addition_whose_reply_is_lost_counts_once(own, client, worker, monkeypatch):
    one = await worker(3, carry_on=True)
    lost = []
    usual = scripts.add_allocations

    async def lose(*args):
        found = await usual(*args)
        if len(lost) < 2:
            lost.append(args)
            raise StoreError("the reply was lost")
        return found

    monkeypatch.setattr(scripts, "add_allocations", lose)
    own.pause()
    await picks(one, 30)
    own.resume()
    await until(lambda: not one._alone.active)
    assert len(lost) == 2
    assert sum(counts(client).values()) in (30, 31)


@in_loop
async def test_several_workers_alone_keep_the_pool_even(own, client, worker):
    workers = [await worker(6, carry_on=True) for _ in range(4)]
    own.pause()
    found = await asyncio.gather(*(picks(one, 100) for one in workers))
    own.resume()
    for one in workers:
        await until(lambda one=one: not one._alone.active)
    spread = counts(client).values()
    assert 400 <= sum(spread) <= 404
    assert max(spread) - min(spread) <= 4
    # They do not all begin with the same proxy: 1 in 216 that four agree by chance.
    assert all(len(set(each)) == 6 for each in found)


@in_loop
async def test_one_that_closes_while_redis_is_away_says_what_is_missing(own, worker, caplog):
    one = await worker(3, carry_on=True)
    own.pause()
    await picks(one, 7)
    begun = time.monotonic()
    await one.close()
    assert time.monotonic() - begun < 1.5
    assert "the counts lack 7 allocations" in caplog.text
    own.resume()


@in_loop
async def test_one_that_closes_after_redis_came_back_hands_over(own, client, worker):
    one = await worker(3, carry_on=True)
    own.pause()
    await picks(one, 7)
    own.resume()
    await asyncio.sleep(0.6)
    await one.close()
    assert sum(counts(client).values()) in (7, 8)


@in_loop
async def test_without_being_asked_to_it_does_not_carry_on(own, worker):
    one = await worker(3)
    own.pause()
    with pytest.raises(StoreError):
        await pick(one)
    own.resume()


def test_each_begins_at_a_place_of_its_own():
    first = set()
    for _ in range(100):
        alone = WhileAway(None, "w")
        at_once(alone.begin("abcde", ()))
        first.add(alone.pick())
    assert first == set("abcde")


def test_the_account_is_bounded_by_the_pool():
    alone = WhileAway(None, "w")
    at_once(alone.begin([f"p{n}" for n in range(10)], {"p3"}))
    for _ in range(1_000):
        assert alone.pick() != "p3"
    assert (alone.owed, len(alone._owed), len(alone)) == (1_000, 9, 9)


# Lost data.


@in_loop
async def test_a_flushed_pool_is_back_with_the_counts_that_were_known(own, client, worker):
    one = await worker(4)
    await picks(one, 42)
    client.flushall()
    assert None not in await picks(one, 2)
    assert min(counts(client).values()) >= 10
    assert max(counts(client).values()) - min(counts(client).values()) <= 1


@in_loop
async def test_the_one_that_saw_more_raises_what_another_brought_back(own, client, worker, caplog):
    caplog.set_level(logging.INFO)
    one, two = await worker(4), await worker(4)
    await picks(one, 4)
    await picks(two, 400)
    client.flushall()
    assert await pick(one) is not None  # which knows of a count of 0
    assert max(counts(client).values()) == 1
    assert await pick(two) is not None
    assert min(counts(client).values()) >= 99
    assert "had counts below 100, which was the least of them before: 4 are raised" in caplog.text
    assert max(counts(client).values()) - min(counts(client).values()) <= 1


@in_loop
async def test_a_member_that_somebody_sets_back_takes_no_rush(own, client, worker):
    one = await worker(4)
    names = sorted(proxy.id for proxy in await one.members())
    await picks(one, 400)
    client.zadd("smoothpool:{default}:allocations", {names[3]: 0})
    found = await picks(one, 40)
    assert Counter(found)[names[3]] <= 12


@in_loop
async def test_the_agreed_start_count_is_a_least(own, client, worker):
    one = await worker(3, start_count=500)
    assert set(counts(client).values()) == {500}
    await picks(one, 30)
    client.flushall()
    await pick(one)
    assert min(counts(client).values()) >= 509


@in_loop
async def test_a_worker_that_joined_lets_those_with_a_list_be_first(own, client, worker):
    with_list, joined = await worker(3), await worker()
    await picks(joined, 6)
    client.flushall()
    late = asyncio.ensure_future(pick(joined))
    await asyncio.sleep(0.2)
    assert counts(client) == {}
    assert await pick(with_list) is not None
    assert await late is not None
    assert len(counts(client)) == 3


@in_loop
async def test_a_worker_that_joined_brings_all_back_with_their_lines(own, client, worker):
    await worker(3)
    joined = await worker()
    before = client.hgetall("smoothpool:{default}:members")
    mark = client.get("smoothpool:{default}:fingerprint")
    client.flushall()
    assert await pick(joined) is not None
    assert client.hgetall("smoothpool:{default}:members") == before
    assert client.get("smoothpool:{default}:fingerprint") == mark


@in_loop
async def test_a_rotation_that_is_lost_with_somebody_out_is_brought_back(own, client, worker):
    """The pool is not empty then: who is out is still there."""
    first = await worker(5)
    ids = sorted(proxy.id for proxy in await first.members())
    await first.report_outcomes(rules(eject_after=1), [Happened(ids[0], 0, Kind.FAILED)])
    await first.close()
    joined = await worker()
    client.delete("smoothpool:{default}:allocations")
    assert await pick(joined) in ids[1:]
    assert set(counts(client)) == set(ids[1:])
    assert client.zcard("smoothpool:{default}:benched") == 1


@in_loop
async def test_what_redis_has_of_a_list_is_brought_back_by_whoever_is_there(own, client, worker):
    """By one with another list, too: that was replaced, and stays so."""
    replaced, live = await worker(3), await worker(5)
    before = client.hgetall("smoothpool:{default}:members")
    await live.close()
    client.delete("smoothpool:{default}:allocations")
    assert await pick(replaced) is not None
    assert client.hgetall("smoothpool:{default}:members") == before
    assert set(counts(client)) == set(before)


@in_loop
async def test_lines_that_are_lost_are_written_again_by_whoever_knows_them(own, client, worker):
    await (await worker(4)).close()
    joined = await worker()
    before = client.hgetall("smoothpool:{default}:members")
    client.delete("smoothpool:{default}:members")
    assert await pick(joined) is not None
    await joined.take_probe(10.0)  # which each worker does once a second
    assert client.hgetall("smoothpool:{default}:members") == before
    assert sum(counts(client).values()) == 1


@in_loop
async def test_a_list_replaced_by_another_stays_so_while_nothing_is_lost(own, client, worker):
    replaced, live = await worker(3), await worker(5)
    await replaced.take_probe(10.0)
    await picks(replaced, 10)
    assert client.hlen("smoothpool:{default}:members") == 5
    assert len(counts(client)) == 5
    assert await pick(live) is not None


@in_loop
async def test_a_start_waits_for_a_redis_that_goes_away_while_a_list_is_published(own, worker):
    with TcpRelay(own.port) as relay:
        url = relay.url_for(own.url)
        relay.delay(0.1)
        opening = asyncio.ensure_future(worker(1_000, redis_url=url, redis_start_timeout=20.0))
        with Redis(port=own.port) as raw:
            await until(lambda: raw.keys("*staging*"))
        await asyncio.to_thread(relay.refuse)
        await asyncio.sleep(1)
        await asyncio.to_thread(relay.flow)
        strategy = await opening
        assert await pick(strategy) is not None
        await strategy.close()


@in_loop
async def test_the_farewell_goes_on_trying_for_a_moment(own, client, worker):
    with TcpRelay(own.port) as relay:
        one = await worker(3, carry_on=True, redis_url=relay.url_for(own.url))
        await asyncio.to_thread(relay.refuse)
        await picks(one, 30)
        closing = asyncio.ensure_future(one.close())
        await asyncio.sleep(0.3)
        await asyncio.to_thread(relay.flow)
        await closing
        assert sum(counts(client).values()) == 30


@in_loop
async def test_a_pool_that_nobody_published_stays_empty(own, client, worker):
    joined = await worker()
    begun = time.monotonic()
    assert await pick(joined) is None
    assert time.monotonic() - begun < 0.3  # there is nobody to wait for
    assert counts(client) == {}


@in_loop
async def test_a_list_that_could_not_be_published_is_not_brought_back(own, client, worker):
    one = await worker(3)
    own.pause()
    with pytest.raises(StoreError):
        await one.reload([Proxy("http", "10.9.9.9", 80)])
    own.resume()
    await asyncio.sleep(0.6)
    client.flushall()
    assert await pick(one) is not None
    assert len(counts(client)) == 3


@in_loop
async def test_a_close_ends_though_its_cancellation_is_lost(own, worker, monkeypatch):
    """As redis-py loses one that comes at the very moment of a timeout."""
    one = await worker(3, carry_on=True)
    own.pause()
    await pick(one)
    usual = one._pool.size

    async def deaf():
        try:
            return await usual()
        except asyncio.CancelledError:
            raise StoreUnavailable("did not answer in time") from None

    monkeypatch.setattr(one._list, "mend", deaf)
    await asyncio.sleep(0.8)  # by now it tries to come back
    await asyncio.wait_for(one.close(), 5)
    own.resume()
