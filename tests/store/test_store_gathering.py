"""Does everybody who waits for a pick get one, or an error, whoever else is cancelled?"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from store_helpers import fingerprint, in_loop, named, run

from farm.redis_server import RedisServer
from scrapy_smoothpool.exceptions import StoreUnavailable
from scrapy_smoothpool.store.breaker import PAUSE
from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.gathering import MOST, GatheredPicks
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.shared_pool import SharedPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_numbers = count()


@pytest.fixture(scope="module")
def own() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


class Calls:
    """The real pool's picks, and what was asked of it."""

    def __init__(self, pool: SharedPool) -> None:
        self.pool = pool
        self.asked: list[int] = []
        self.in_flight = 0
        self.most_in_flight = 0

    async def fetch(self, number: int) -> list[str]:
        self.asked.append(number)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return (await self.pool.pick_many(number)).members
        finally:
            self.in_flight -= 1


@pytest.fixture
def calls(own: RedisServer) -> Iterator[Calls]:
    pool = SharedPool(RedisConnection(own.url), Keys(pool=f"gather{next(_numbers)}"))
    yield Calls(pool)
    run(pool.aclose())


async def publish(calls: Calls, count: int) -> None:
    members = named(count)
    await calls.pool.publish(members, fingerprint(members))


async def until(holds: Callable[[], object]) -> None:
    for _ in range(5_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("waited for nothing")


async def taken(picks: GatheredPicks) -> str | None:
    found = picks.take()
    return found if isinstance(found, str) else await found


@in_loop
async def test_what_is_wanted_at_once_is_one_call(calls: Calls) -> None:
    await publish(calls, 10)
    picks = GatheredPicks(calls.fetch)
    found = await asyncio.gather(*(taken(picks) for _ in range(20)))
    assert calls.asked == [20]
    # Who asked first has the first pick.
    assert found == sorted(named(10)) * 2


@in_loop
async def test_a_batch_is_bounded_and_one_call_in_flight(calls: Calls) -> None:
    await publish(calls, 10)
    picks = GatheredPicks(calls.fetch)
    found = await asyncio.gather(*(taken(picks) for _ in range(1_000)))
    assert Counter(found) == dict.fromkeys(named(10), 100)
    assert max(calls.asked) == MOST
    assert calls.most_in_flight == 1
    assert sum(calls.asked) == 1_000


@in_loop
async def test_those_who_come_during_a_call_are_in_the_next(own: RedisServer, calls: Calls) -> None:
    await publish(calls, 10)
    picks = GatheredPicks(calls.fetch)
    own.pause()
    first = asyncio.ensure_future(taken(picks))
    await until(lambda: calls.in_flight)
    rest = [asyncio.ensure_future(taken(picks)) for _ in range(5)]
    await asyncio.sleep(0)
    own.resume()
    await asyncio.gather(first, *rest)
    assert calls.asked == [1, 5]


@in_loop
async def test_an_empty_pool_gives_everyone_none(calls: Calls) -> None:
    picks = GatheredPicks(calls.fetch)
    assert await asyncio.gather(*(taken(picks) for _ in range(100))) == [None] * 100
    await publish(calls, 2)
    assert await taken(picks) == "p00000"


@in_loop
async def test_an_error_reaches_everyone_and_the_next_try_is_free_of_it(
    own: RedisServer, calls: Calls
) -> None:
    await publish(calls, 10)
    picks = GatheredPicks(calls.fetch)
    own.pause()
    found = await asyncio.gather(*(taken(picks) for _ in range(20)), return_exceptions=True)
    own.resume()
    assert {type(error) for error in found} == {StoreUnavailable}
    assert len({id(error) for error in found}) == 20
    assert len({str(error) for error in found}) == 1
    await asyncio.sleep(PAUSE)
    assert isinstance(await taken(picks), str)


@in_loop
async def test_who_is_cancelled_harms_nobody(calls: Calls) -> None:
    await publish(calls, 10)
    picks = GatheredPicks(calls.fetch)
    tasks = [asyncio.ensure_future(taken(picks)) for _ in range(30)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in found] == [
        n % 3 == 0 for n in range(30)
    ]
    assert calls.asked == [20]  # they were not even asked for


@in_loop
async def test_a_pick_for_somebody_who_left_is_the_next_ones(
    own: RedisServer, calls: Calls
) -> None:
    await publish(calls, 10)
    picks = GatheredPicks(calls.fetch)
    own.pause()
    tasks = [asyncio.ensure_future(taken(picks)) for _ in range(4)]
    await until(lambda: calls.in_flight)
    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.sleep(0.05)
    own.resume()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one for one in found if isinstance(one, str)] == ["p00000", "p00001"]
    # Counted, not lost: the pool's sequence goes on.
    assert [await taken(picks) for _ in range(4)] == ["p00002", "p00003", "p00004", "p00005"]
    assert sum((await calls.pool.counts()).values()) == 6


@in_loop
async def test_a_look_ahead_asks_seldom_and_keeps_the_order(calls: Calls) -> None:
    await publish(calls, 7)
    picks = GatheredPicks(calls.fetch, ahead=20)
    found = []
    for _ in range(140):
        found.append(await taken(picks))
        await asyncio.sleep(0.001)
    assert found == sorted(named(7)) * 20
    assert len(calls.asked) <= 16
    assert calls.most_in_flight == 1
    counts = await calls.pool.counts()
    assert 140 < sum(counts.values()) <= 140 + 21  # what is in hand is counted


@in_loop
async def test_what_is_in_hand_is_dropped_when_its_proxy_goes_out(calls: Calls) -> None:
    await publish(calls, 5)
    picks = GatheredPicks(calls.fetch, ahead=10)
    await taken(picks)
    await until(lambda: len(picks._in_hand) == 10)
    picks.withdraw({"p00003"})
    assert "p00003" not in [picks._in_hand[n] for n in range(len(picks._in_hand))]
    assert len(picks._in_hand) == 8


@in_loop
async def test_a_look_ahead_over_an_empty_or_a_dead_pool_does_not_spin(
    own: RedisServer, calls: Calls
) -> None:
    picks = GatheredPicks(calls.fetch, ahead=10)
    assert await taken(picks) is None
    await asyncio.sleep(0.1)
    assert len(calls.asked) == 1
    await calls.pool.aclose()
    with pytest.raises(StoreUnavailable):
        await taken(picks)
    await asyncio.sleep(0.1)
    assert len(calls.asked) == 2


@pytest.mark.filterwarnings("error")
@in_loop
async def test_a_fetch_that_breaks_reaches_everyone() -> None:
    async def broken(number: int) -> list[str]:
        raise RuntimeError("a fault in the code")

    picks = GatheredPicks(broken)
    found: list[Any] = await asyncio.gather(
        *(taken(picks) for _ in range(3)), return_exceptions=True
    )
    assert {str(error) for error in found} == {"a fault in the code"}
