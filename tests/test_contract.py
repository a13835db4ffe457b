"""What every strategy owes the pool, whatever its way of choosing.

A strategy that is registered is tested here without further ado.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from farm.redis_server import RedisServer
from scrapy_smoothpool.exceptions import SettingsError
from scrapy_smoothpool.penalties import PenaltyRule
from scrapy_smoothpool.proxy import Proxy
from scrapy_smoothpool.strategies.base import Strategy, StrategyOptions
from scrapy_smoothpool.strategies.registry import STRATEGIES, find_strategy
from store.store_helpers import in_loop, run, stop_loop

_numbers = count()


@pytest.fixture(scope="module")
def redis_url():
    with RedisServer() as server:
        yield server.url
    stop_loop()


@pytest.fixture(params=sorted(STRATEGIES))
def build(request, redis_url):
    """Return strategies of one kind that share one pool, where they share anything."""
    built: list[Strategy] = []
    pool = f"contract{next(_numbers)}"

    def build(**options: Any) -> Strategy:
        given = {"pool": pool, "redis_url": redis_url} | options
        built.append(find_strategy(request.param).from_options(StrategyOptions(**given)))
        return built[-1]

    yield build
    for strategy in built:
        run(strategy.close())


@pytest.fixture
def opened(build):
    """Return a strategy that has been opened as the pool opens it."""

    async def opened(listed: Sequence[Proxy], **options: Any) -> Strategy:
        strategy = build(**options)
        strategy.check(listed)
        assert ids(await strategy.open(listed)) == ids(listed)
        return strategy

    return opened


def proxies(n: int, start: int = 0) -> list[Proxy]:
    return [Proxy("http", f"10.0.0.{number + 1}", 8080) for number in range(start, start + n)]


def ids(listed: Sequence[Proxy]) -> list[str]:
    return [proxy.id for proxy in listed]


async def value(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


async def picks(strategy: Strategy, times: int, exclude: Sequence[str] = ()) -> list[str | None]:
    return [await value(strategy.pick(exclude)) for _ in range(times)]


def refused(strategy: Strategy, listed: Sequence[Proxy]) -> str | None:
    """Return why a strategy will not work with a list, None if it will."""
    try:
        strategy.check(listed)
    except SettingsError as error:
        return str(error)
    return None


# Starting.


def test_it_has_the_whole_interface(build):
    assert isinstance(build(), Strategy)


@in_loop
async def test_opening_gives_the_list_back_in_its_order(build):
    listed = proxies(12)[::-1]
    assert list(await build().open(listed)) == listed


@in_loop
async def test_without_proxies_there_is_no_pick(build):
    strategy = build()
    strategy.check([])
    assert list(await strategy.open([])) == []
    assert list(await strategy.members()) == []
    assert await picks(strategy, 3) == [None] * 3


@in_loop
async def test_members_are_those_it_was_opened_with(opened):
    listed = proxies(5)
    strategy = await opened(listed)
    assert sorted(ids(await strategy.members())) == sorted(ids(listed))


@in_loop
async def test_nobody_knows_an_id_that_is_in_no_list(opened):
    strategy = await opened(proxies(2))
    assert await value(strategy.lookup("http://192.0.2.1:1")) is None
    assert set(await picks(strategy, 4)) == set(ids(proxies(2)))


@in_loop
async def test_unequal_weights_are_honoured_or_refused(build):
    listed = [Proxy("http", f"10.0.0.{weight}", 8080, weight=weight) for weight in (1, 2, 3)]
    strategy = build()
    if (refusal := refused(strategy, listed)) is not None:
        assert "unequal weights" in refusal
        assert "SMOOTHPOOL_STRATEGY" in refusal
        return
    await strategy.open(listed)
    given = Counter(await picks(strategy, 60))
    assert [given[proxy.id] for proxy in listed] == [10, 20, 30]


@in_loop
async def test_a_drained_proxy_is_never_picked_or_refused_from_the_start(build):
    drained = Proxy("http", "10.0.0.9", 8080, weight=0)
    strategy = build()
    if (refusal := refused(strategy, [*proxies(2), drained])) is not None:
        assert "SMOOTHPOOL_STRATEGY" in refusal
        return
    await strategy.open([*proxies(2), drained])
    assert set(await picks(strategy, 50)) == set(ids(proxies(2)))
    assert await picks(strategy, 3, ids(proxies(2))) == [None] * 3
    assert strategy.weights()[drained.id] == (0, 0)


# Picking.


@pytest.mark.parametrize("n", [1, 2, 7, 100])
@in_loop
async def test_equal_proxies_are_used_equally(opened, n):
    strategy = await opened(proxies(n))
    for rounds in range(1, 6):
        assert Counter(await picks(strategy, n)) == dict.fromkeys(ids(proxies(n)), 1), rounds


@in_loop
async def test_what_is_excluded_is_not_picked(opened):
    strategy = await opened(proxies(6))
    excluded = ids(proxies(3))
    assert set(await picks(strategy, 30, excluded)) == set(ids(proxies(3, start=3)))
    assert set(await picks(strategy, 30, set(excluded))) == set(ids(proxies(3, start=3)))


@in_loop
async def test_an_exclusion_is_for_one_pick_only(opened):
    strategy = await opened(proxies(4))
    first, *_ = ids(proxies(4))
    assert first not in await picks(strategy, 8, [first])
    assert first in await picks(strategy, 4)


@in_loop
async def test_with_all_excluded_there_is_no_pick_and_none_is_lost_by_it(opened):
    strategy = await opened(proxies(3))
    assert await picks(strategy, 5, ids(proxies(3))) == [None] * 5
    assert Counter(await picks(strategy, 30)) == dict.fromkeys(ids(proxies(3)), 10)


@in_loop
async def test_ids_that_are_in_no_list_may_be_excluded(opened):
    strategy = await opened(proxies(2))
    assert set(await picks(strategy, 6, ["gone", "http://192.0.2.1:1"])) == set(ids(proxies(2)))


@in_loop
async def test_what_was_passed_over_does_not_take_every_pick_afterwards(opened):
    """It may catch up, but the others are not shut out for as long as it was excluded."""
    strategy = await opened(proxies(5))
    first, *others = ids(proxies(5))
    await picks(strategy, 5, [first])
    after = await picks(strategy, 10, [])
    assert set(after) == {first, *others}


@in_loop
async def test_concurrent_picks_are_all_valid_and_spread(opened):
    strategy = await opened(proxies(5))
    excluded = ids(proxies(1))
    found = await asyncio.gather(*(value(strategy.pick()) for _ in range(100)))
    assert Counter(found) == dict.fromkeys(ids(proxies(5)), 20)
    mixed = await asyncio.gather(
        *(value(strategy.pick(excluded if number % 2 else ())) for number in range(200))
    )
    assert set(mixed) == set(ids(proxies(5)))
    assert not set(mixed[1::2]) & set(excluded)


# Penalties.


@pytest.mark.parametrize("rule", PenaltyRule)
@in_loop
async def test_a_penalty_shuts_nobody_out_and_gains_nobody_more(opened, rule):
    strategy = await opened(proxies(4), penalty=rule)
    first, *others = ids(proxies(4))
    given: Counter[str | None] = Counter()
    consecutive = 0
    for _ in range(400):
        (found,) = await picks(strategy, 1)
        given[found] += 1
        if found == first:
            consecutive += 1
            assert strategy.penalize(first, consecutive) >= 0
    assert set(given) == {first, *others}
    assert given[first] <= 100
    assert max(given[other] for other in others) - min(given[other] for other in others) <= 1


@in_loop
async def test_the_only_proxy_is_picked_however_often_it_failed(opened):
    strategy = await opened(proxies(1))
    for consecutive in range(1, 30):
        strategy.penalize(proxies(1)[0].id, consecutive)
        assert await picks(strategy, 1) == ids(proxies(1))


@in_loop
async def test_an_effective_weight_stays_within_0_and_the_weight(opened):
    strategy = await opened(proxies(3))
    for consecutive in range(1, 30):
        strategy.penalize(proxies(3)[1].id, consecutive)
        await picks(strategy, 1)
        for weight, effective in strategy.weights().values():
            assert 0 <= effective <= weight == 1


# Ejection and return.


@in_loop
async def test_the_ejected_are_not_picked_until_they_are_restored(opened):
    strategy = await opened(proxies(4))
    first, second, *others = ids(proxies(4))
    strategy.eject(first)
    strategy.eject(second)
    assert Counter(await picks(strategy, 20)) == dict.fromkeys(others, 10)
    assert set(await picks(strategy, 5, others[:1])) == set(others[1:])
    assert await picks(strategy, 3, others) == [None] * 3
    await value(strategy.restore(first))
    seen = set(await picks(strategy, 400))
    assert seen == {first, *others}


@in_loop
async def test_with_all_ejected_there_is_no_pick(opened):
    strategy = await opened(proxies(2))
    for proxy_id in ids(proxies(2)):
        strategy.eject(proxy_id)
    assert await picks(strategy, 3) == [None] * 3
    for proxy_id in ids(proxies(2)):
        await value(strategy.restore(proxy_id))
    assert set(await picks(strategy, 50)) == set(ids(proxies(2)))


@in_loop
async def test_one_restore_undoes_any_number_of_ejections(opened):
    strategy = await opened(proxies(2))
    first, second = ids(proxies(2))
    strategy.eject(first)
    strategy.eject(first)
    await value(strategy.restore(first))
    strategy.eject(second)
    assert await picks(strategy, 3) == [first] * 3


@pytest.mark.parametrize("n", [2, 10, 50])
@pytest.mark.parametrize("missed", [3, 1_000])
@in_loop
async def test_a_restored_proxy_takes_no_rush(opened, n, missed):
    strategy = await opened(proxies(n))
    first = proxies(1)[0].id
    await picks(strategy, n // 2)
    strategy.eject(first)
    await picks(strategy, missed)
    await value(strategy.restore(first))
    # Its fair share of n picks is 1.
    assert (await picks(strategy, n)).count(first) <= 1 + 1


@in_loop
async def test_a_restored_proxy_is_back_at_its_fair_share_in_the_end(opened):
    n = 5
    strategy = await opened(proxies(n))
    first = proxies(1)[0].id
    strategy.eject(first)
    await picks(strategy, 100)
    await value(strategy.restore(first))
    await picks(strategy, 300)
    assert 99 <= (await picks(strategy, 100 * n)).count(first) <= 101


@in_loop
async def test_two_restored_at_once_come_back_both(opened):
    strategy = await opened(proxies(6))
    back = ids(proxies(2))
    for proxy_id in back:
        strategy.eject(proxy_id)
    await picks(strategy, 500)
    for proxy_id in back:
        await value(strategy.restore(proxy_id))
    soon = Counter(await picks(strategy, 6))
    assert max(soon[proxy_id] for proxy_id in back) <= 2
    assert set(back) <= set(await picks(strategy, 600))


# Another list.


@in_loop
async def test_the_removed_are_not_picked_any_more(opened):
    strategy = await opened(proxies(6))
    await picks(strategy, 9)
    rest = proxies(3, start=3)
    assert sorted(ids(await strategy.reload(rest))) == sorted(ids(rest))
    assert set(await picks(strategy, 60)) == set(ids(rest))
    assert sorted(ids(await strategy.members())) == sorted(ids(rest))


@in_loop
async def test_a_list_of_others_only_takes_over_at_once(opened):
    strategy = await opened(proxies(10))
    await picks(strategy, 25)
    others = proxies(5, start=10)
    await strategy.reload(others)
    assert set(await picks(strategy, 100)) == set(ids(others))


@in_loop
async def test_a_newcomer_gets_about_its_fair_share(opened):
    strategy = await opened(proxies(9))
    await picks(strategy, 9_000 // 9)
    await strategy.reload(proxies(10))
    newcomer = proxies(1, start=9)[0].id
    assert 5 <= (await picks(strategy, 100)).count(newcomer) <= 20


@in_loop
async def test_the_same_list_again_changes_nothing(opened):
    strategy = await opened(proxies(5))
    before = await picks(strategy, 3)
    await strategy.reload(proxies(5))
    assert sorted([*before, *await picks(strategy, 2)]) == sorted(ids(proxies(5)))


@in_loop
async def test_the_ejected_stay_out_over_a_reload(opened):
    strategy = await opened(proxies(4))
    first = proxies(1)[0].id
    strategy.eject(first)
    await strategy.reload(proxies(5))
    assert first not in await picks(strategy, 40)
    await value(strategy.restore(first))
    assert first in await picks(strategy, 400)


@in_loop
async def test_one_ejected_before_the_reload_that_lists_it_begins_out(opened):
    strategy = await opened(proxies(3))
    newcomer = proxies(4)[3].id
    strategy.eject(newcomer)
    await strategy.reload(proxies(4))
    assert newcomer not in await picks(strategy, 30)
    await value(strategy.restore(newcomer))
    assert newcomer in await picks(strategy, 300)


@in_loop
async def test_one_removed_while_ejected_and_listed_again_takes_part(opened):
    strategy = await opened(proxies(3))
    first = proxies(1)[0].id
    strategy.eject(first)
    await strategy.reload(proxies(2, start=1))
    await strategy.reload(proxies(3))
    assert first in await picks(strategy, 30)


@in_loop
async def test_reloading_amid_picks_gives_no_pick_of_either_lists_outside(opened):
    strategy = await opened(proxies(6))
    listed = set(ids(proxies(9)))

    async def some() -> list[str | None]:
        return await picks(strategy, 40)

    *found, _ = await asyncio.gather(some(), some(), strategy.reload(proxies(6, start=3)))
    assert {one for each in found for one in each} <= listed
    assert set(await picks(strategy, 30)) == set(ids(proxies(6, start=3)))


# Looking at it.


@in_loop
async def test_weights_are_of_the_members(opened):
    strategy = await opened(proxies(5))
    assert strategy.weights() == dict.fromkeys(ids(proxies(5)), (1, 1))
    strategy.eject(proxies(1)[0].id)
    await picks(strategy, 7)
    assert strategy.weights().keys() == set(ids(proxies(5)))
    await strategy.reload(proxies(5, start=2))
    assert strategy.weights().keys() == set(ids(await strategy.members()))
    assert strategy.weights() == dict.fromkeys(ids(proxies(5, start=2)), (1, 1))


@in_loop
async def test_neither_its_description_nor_its_repr_shows_a_login(opened):
    strategy = await opened([Proxy("http", "gate.example", 1, "US3R", "S3CR3T")])
    await picks(strategy, 1)
    shown = f"{strategy.describe()} {strategy!r} {strategy} {strategy.weights()}"
    assert strategy.describe()
    assert "S3CR3T" not in shown
    assert "US3R" not in shown


def test_neither_its_description_nor_its_repr_shows_the_login_of_redis(build):
    strategy = build(redis_url="redis://us3r:S3CR3T@redis.example:6379/0")
    options = StrategyOptions(redis_url="redis://us3r:S3CR3T@redis.example:6379/0")
    shown = f"{strategy.describe()} {strategy!r} {strategy} {options!r} {options}"
    assert "S3CR3T" not in shown
    assert "us3r" not in shown


# Ending.


@in_loop
async def test_closing_twice_or_before_opening_is_silent(build, caplog):
    never_opened = build()
    await never_opened.close()
    await never_opened.close()
    strategy = build()
    await strategy.open(proxies(3))
    await picks(strategy, 3)
    await strategy.close()
    await strategy.close()
    assert caplog.text == ""


@in_loop
async def test_one_spiders_closing_leaves_anothers_running(build):
    one, other = build(), build()
    await one.open(proxies(3))
    await other.open(proxies(3))
    await one.close()
    assert set(await picks(other, 6)) == set(ids(proxies(3)))


@in_loop
async def test_ejections_are_not_seen_by_another_spider(build):
    # Each judges for itself until shared verdicts come with the health issue.
    one, other = build(), build()
    await one.open(proxies(3))
    await other.open(proxies(3))
    first = proxies(1)[0].id
    one.eject(first)
    assert first in await picks(other, 6)
    assert first not in await picks(one, 6)
