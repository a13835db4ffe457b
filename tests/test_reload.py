"""Is a list reloaded by difference, whole or not at all, and while requests go on?"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from clock import Clock
from farm.redis_server import RedisServer
from scrapy_smoothpool.exceptions import (
    PoolNotReady,
    ProxyListError,
    SettingsError,
    StoreUnavailable,
)
from scrapy_smoothpool.health import Health
from scrapy_smoothpool.judge import Evidence, Judge
from scrapy_smoothpool.local_judge import LocalJudge
from scrapy_smoothpool.outcome import Outcome
from scrapy_smoothpool.pool import Pool
from scrapy_smoothpool.proxy import Proxy
from scrapy_smoothpool.shared_judge import SharedJudge, health_rules
from scrapy_smoothpool.strategies import in_process
from scrapy_smoothpool.strategies.base import Strategy, StrategyOptions
from scrapy_smoothpool.strategies.registry import find_strategy
from scrapy_smoothpool.turns import Turns
from store.store_helpers import in_loop, stop_loop

SITES = ["a.test", "b.test"]
_numbers = count()


@pytest.fixture(scope="module", autouse=True)
def loop():
    yield
    stop_loop()


@pytest.fixture(scope="module")
def redis_url():
    with RedisServer() as server:
        yield server.url


def proxy(number: int, weight: int = 1, password: str = "pw") -> Proxy:
    return Proxy("http", f"10.0.{number >> 8}.{number & 255}", 8080, "u", password, weight)


def proxies(start: int, stop: int) -> list[Proxy]:
    return [proxy(number) for number in range(start, stop)]


def ids(listed: list[Proxy]) -> set[str]:
    return {each.id for each in listed}


class Made:
    """A pool whose work in steps pauses at every step, so that all may happen between."""

    def __init__(self, kind: str, listed: list[Proxy], redis_url: str) -> None:
        self.paused = 0
        self._waited_for: tuple[int, asyncio.Event] | None = None
        turns = Turns(self._pause, clock=count().__next__)  # every look finds the time used up
        name, shared = f"reload{next(_numbers)}", kind == "least_used"
        self.strategy: Strategy = find_strategy(kind.split(maxsplit=1)[0]).from_options(
            StrategyOptions(pool=name, redis_url=redis_url if shared else None, turns=turns)
        )
        clock = Clock()
        judge: Judge
        if shared:
            rules = health_rules(
                eject_after=3, eject_time=30.0, eject_time_max=60.0, max_percent=50
            )
            judge = SharedJudge(self.strategy.verdicts, rules, probe_timeout=30.0, clock=clock)
        else:
            make = partial(Health, eject_after=3, eject_time=30.0, max_percent=50, clock=clock)
            judge = LocalJudge(self.strategy, make, clock, by_site="site" in kind)
        self.pool = Pool(name, self.strategy, judge, listed, clock=clock, turns=turns)

    async def _pause(self, seconds: float) -> None:
        self.paused += 1
        if self._waited_for is not None and self.paused >= self._waited_for[0]:
            self._waited_for[1].set()
        await asyncio.sleep(0)

    async def pauses(self, more: int) -> None:
        """Wait until so much more has been done in steps."""
        self._waited_for = self.paused + more, asyncio.Event()
        await self._waited_for[1].wait()

    async def picked(self, site: str = SITES[0], outcome: Outcome = Outcome.SUCCESS) -> str | None:
        found = await self.pool.acquire(site=site)
        if found is None:
            return None
        answered = outcome is not Outcome.PROXY_ERROR
        self.pool.report(found.proxy_id, found.epoch, Evidence(outcome, site, answered=answered))
        return found.proxy_id


@pytest.fixture(params=["smooth_wrr", "smooth_wrr by site", "least_used"])
def kind(request, monkeypatch) -> str:
    monkeypatch.setattr(in_process, "_AT_ONCE", 0)  # in steps however short
    return request.param


def test_a_list_is_taken_over_while_requests_go_on(kind, redis_url):
    @in_loop
    async def check():
        before, after = proxies(0, 600), proxies(300, 900)
        made = Made(kind, before, redis_url)
        await made.pool.open()
        going, found = True, []

        async def requests(seed: int) -> None:
            rng = random.Random(seed)
            while going:
                outcome = rng.choice([Outcome.SUCCESS] * 9 + [Outcome.PROXY_ERROR])
                found.append(await made.picked(rng.choice(SITES), outcome))
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(requests(seed)) for seed in range(3)]
        paused = made.paused
        await made.pool.reload(after)
        assert made.paused > paused + 10
        going = False
        await asyncio.gather(*tasks)
        assert None not in found
        assert set(found) <= ids(before) | ids(after)
        assert {view.id for view in made.pool.snapshot()} == ids(after)
        rest = {await made.picked(site) for _ in range(1300) for site in SITES}
        assert rest <= ids(after)
        assert len(rest) > 550
        await made.pool.close()

    check()


def test_no_step_looks_at_the_whole_list(kind, redis_url, monkeypatch):
    @in_loop
    async def check():
        made = Made(kind, proxies(0, 10), redis_url)
        await made.pool.open()
        looked_at = []
        look = made.strategy.check
        monkeypatch.setattr(
            made.strategy, "check", lambda piece: looked_at.append(len(piece)) or look(piece)
        )
        await made.pool.reload(proxies(0, 5_000))
        assert max(looked_at) < 1_000
        assert sum(looked_at) >= 5_000
        await made.pool.close()

    check()


def test_one_odd_weight_at_the_end_of_a_long_list_is_seen(redis_url):
    @in_loop
    async def check():
        made = Made("least_used", proxies(0, 10), redis_url)
        await made.pool.open()
        with pytest.raises(SettingsError, match="unequal weights"):
            await made.pool.reload([*proxies(0, 3_000), proxy(3_000, weight=2)])
        assert len(made.pool) == 10
        await made.pool.close()

    check()


def test_a_reload_is_no_clash_of_lists(redis_url, caplog):
    @in_loop
    async def check():
        made = Made("least_used", proxies(0, 10), redis_url)
        await made.pool.open()
        with caplog.at_level("INFO"):
            await made.pool.reload(proxies(5, 12))
        await made.pool.close()

    check()
    assert "a list of 7 proxies takes the place of one of 10" in caplog.text
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_who_stays_keeps_counts_and_health(kind, redis_url):
    @in_loop
    async def check():
        made = Made(kind, proxies(0, 300), redis_url)
        await made.pool.open()
        for _ in range(150):
            await made.picked()
        before = {view.id: view for view in made.pool.snapshot()}
        await made.pool.reload(proxies(100, 400))
        after = {view.id: view for view in made.pool.snapshot()}
        assert after.keys() == ids(proxies(100, 400))
        for proxy_id in after.keys() & before.keys():
            assert after[proxy_id][:4] == before[proxy_id][:4]
        assert all(not after[it].picks for it in after.keys() - before.keys())
        await made.pool.close()

    check()


def test_a_new_login_is_used_from_then_on(kind, redis_url):
    @in_loop
    async def check():
        made = Made(kind, proxies(0, 3), redis_url)
        await made.pool.open()
        await made.pool.reload([proxy(0), proxy(1, password="new"), proxy(2)])
        urls = {(await made.pool.acquire()).url for _ in range(3)}
        assert sum(":new@" in url for url in urls) == 1
        await made.pool.close()

    check()


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ([], "is empty"),
        ([proxy(1), proxy(2), proxy(1)], "share the id"),
        ([proxy(1, weight=0), proxy(2, weight=0)], "weight 0"),
    ],
    ids=["empty", "an id twice", "all drained"],
)
def test_a_list_to_be_refused_leaves_the_old_one(kind, redis_url, listed, why):
    @in_loop
    async def check():
        made = Made(kind, proxies(0, 5), redis_url)
        await made.pool.open()
        with pytest.raises(SettingsError, match=why):
            await made.pool.reload(listed)
        assert {await made.picked() for _ in range(5)} == ids(proxies(0, 5))
        await made.pool.close()

    check()


def test_a_store_that_fails_leaves_the_old_list_whole(redis_url, monkeypatch):
    @in_loop
    async def check():
        made = Made("least_used", proxies(0, 20), redis_url)
        await made.pool.open()

        async def fail(*args: object) -> None:
            raise StoreUnavailable("gone for a moment")

        with monkeypatch.context() as patched:
            patched.setattr("scrapy_smoothpool.store.scripts.swap_in", fail)
            with pytest.raises(StoreUnavailable):
                await made.pool.reload(proxies(10, 30))
        assert {view.id for view in made.pool.snapshot()} == ids(proxies(0, 20))
        assert {await made.picked() for _ in range(20)} == ids(proxies(0, 20))
        await made.pool.reload(proxies(10, 30))
        assert {view.id for view in made.pool.snapshot()} == ids(proxies(10, 30))
        await made.pool.close()

    check()


@pytest.mark.parametrize("when", [2, 6, 10, 14])
def test_a_cancelled_reload_leaves_the_old_list_whole(kind, redis_url, when):
    @in_loop
    async def check():
        made = Made(kind, proxies(0, 400), redis_url)
        await made.pool.open()
        for _ in range(20):
            await made.picked()
        task = asyncio.create_task(made.pool.reload(proxies(200, 600)))
        await made.pauses(when)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {view.id for view in made.pool.snapshot()} == ids(proxies(0, 400))
        assert {await made.picked() for _ in range(420)} <= ids(proxies(0, 400))
        await made.pool.reload(proxies(200, 600))
        assert {view.id for view in made.pool.snapshot()} == ids(proxies(200, 600))
        await made.pool.close()

    check()


def test_one_cancelled_when_the_new_list_is_in_force_leaves_the_new_one_whole(kind, redis_url):
    @in_loop
    async def check():
        made = Made(kind, proxies(0, 400), redis_url)
        await made.pool.open()
        reload, strategy = made.strategy.reload, made.strategy
        loaded = asyncio.Event()

        async def reported(listed: list[Proxy]) -> list[Proxy]:
            found = await reload(listed)
            loaded.set()
            return list(found)

        strategy.reload = reported
        task = asyncio.create_task(made.pool.reload(proxies(200, 600)))
        await loaded.wait()
        await made.pauses(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {view.id for view in made.pool.snapshot()} == ids(proxies(200, 600))
        assert {await made.picked() for _ in range(420)} <= ids(proxies(200, 600))
        await made.pool.close()

    check()


def test_reloads_follow_one_another(kind, redis_url):
    @in_loop
    async def check():
        made = Made(kind, proxies(0, 300), redis_url)
        await made.pool.open()
        wanted = [proxies(start, start + 300) for start in (100, 200, 300, 50)]
        await asyncio.gather(*(made.pool.reload(listed) for listed in wanted))
        assert {view.id for view in made.pool.snapshot()} == ids(wanted[-1])
        assert {await made.picked() for _ in range(300)} == ids(wanted[-1])
        await made.pool.close()

    check()


def test_closing_breaks_a_reload_off(kind, redis_url):
    @in_loop
    async def check():
        made = Made(kind, proxies(0, 400), redis_url)
        await made.pool.open()
        first, second = (asyncio.create_task(made.pool.reload(proxies(n, 600))) for n in (1, 2))
        await made.pauses(8)
        await made.pool.close()
        for task in (first, second):
            with pytest.raises(PoolNotReady, match="closed"):
                await task
        with pytest.raises(PoolNotReady):
            await made.pool.acquire()

    check()


@in_loop
async def test_a_pool_that_is_not_open_is_not_reloaded():
    made = Made("smooth_wrr", proxies(0, 3), "")
    with pytest.raises(PoolNotReady, match="new"):
        await made.pool.reload(proxies(0, 4))


@pytest.mark.parametrize("during", [False, True])
def test_a_site_that_begins_with_a_long_list_has_that_list(monkeypatch, during):
    monkeypatch.setattr(in_process, "_AT_ONCE", 0)

    @in_loop
    async def check():
        made = Made("smooth_wrr by site", proxies(0, 300), "")
        await made.pool.open()
        await made.picked("")
        made.strategy.eject(proxy(7).id)  # everywhere
        made.strategy.eject(proxy(8).id, "")  # where there is no site
        task = asyncio.create_task(made.pool.reload(proxies(5, 400)))
        if during:
            await made.pauses(5)
        else:
            await task
        first = {await made.picked(site) for site in ("a.test", "b.test", "c.test")}
        assert len(first) == 3
        await task
        for site in ("a.test", "b.test"):
            found = {await made.picked(site) for _ in range(900)}
            assert found == ids(proxies(5, 400)) - {proxy(7).id}
        await made.pool.close()

    check()


# What is read.


@in_loop
async def test_a_list_of_lines_a_dict_and_a_text_are_read():
    made = Made("smooth_wrr", proxies(0, 3), "")
    await made.pool.open()
    for value in (["h1.test:80", "h2.test:80"], {"h1.test:80": 3}, "h1.test:80\nh3.test:80"):
        await made.pool.reload_list(value)
        assert "http://h1.test:80" in {view.id for view in made.pool.snapshot()}
    assert len(made.pool) == 2


@in_loop
async def test_bad_lines_are_all_told_and_the_old_list_stays():
    made = Made("smooth_wrr", proxies(0, 3), "")
    await made.pool.open()
    with pytest.raises(ProxyListError) as caught:
        await made.pool.reload_list(["h1.test:80", "bad", "h2.test:99999"])
    assert [number for number, _ in caught.value.errors] == [2, 3]
    assert "the new list" in str(caught.value)
    assert {view.id for view in made.pool.snapshot()} == ids(proxies(0, 3))


def test_a_file_is_read(tmp_path: Path):
    @in_loop
    async def check():
        made = Made("smooth_wrr", proxies(0, 3), "")
        await made.pool.open()
        path = tmp_path / "proxies.txt"
        path.write_text("h1.test:80 weight=2\n# none\n", encoding="utf-8")
        await made.pool.reload_file(path)
        assert [(view.id, view.weight) for view in made.pool.snapshot()] == [
            ("http://h1.test:80", 2)
        ]
        path.write_text("", encoding="utf-8")
        with pytest.raises(ProxyListError, match="no proxy in it"):
            await made.pool.reload_file(str(path))
        with pytest.raises(SettingsError, match="cannot be read"):
            await made.pool.reload_file(tmp_path / "nowhere.txt")
        assert len(made.pool) == 1

    check()


# The scale of weights.


def scale_of(made: Made) -> str:
    return made.strategy.describe().rpartition(" ")[2]


@pytest.mark.parametrize("size", [100, 51, 199, 150])
def test_a_list_of_about_the_same_size_keeps_the_scale(size):
    @in_loop
    async def check():
        made = Made("smooth_wrr", proxies(0, 100), "")
        await made.pool.open()
        assert scale_of(made) == "3000"
        await made.pool.reload(proxies(0, size))
        assert scale_of(made) == "3000"

    check()


@pytest.mark.parametrize(("size", "scale"), [(50, "1500"), (200, "6000"), (10, "300")])
def test_one_of_half_or_twice_the_size_has_another(size, scale):
    @in_loop
    async def check():
        made = Made("smooth_wrr", proxies(0, 100), "")
        await made.pool.open()
        await made.pool.reload(proxies(0, size))
        assert scale_of(made) == scale
        weights = made.strategy.weights()
        assert set(weights.values()) == {(1, 1)}

    check()


def test_changing_one_proxy_leaves_the_weights_of_all_others_alone(monkeypatch):
    @in_loop
    async def check():
        made = Made("smooth_wrr", proxies(0, 100), "")
        await made.pool.open()
        rewritten = []
        selector = made.strategy._sequences[""].selector
        reweight = selector._reweight
        monkeypatch.setattr(selector, "_reweight", lambda *a: (rewritten.append(a), reweight(*a)))
        monkeypatch.setattr(in_process, "_AT_ONCE", 0)
        await made.pool.reload(proxies(1, 102))
        assert rewritten == []
        await made.pool.reload([proxy(1, weight=2), *proxies(2, 102)])
        assert [name for name, _ in rewritten] == [proxy(1).id]

    check()


@pytest.mark.parametrize("at_once", [0, 10_000])
def test_a_penalty_lasts_in_proportion_over_another_scale(monkeypatch, at_once):
    monkeypatch.setattr(in_process, "_AT_ONCE", at_once)

    @in_loop
    async def check():
        made = Made("smooth_wrr", proxies(0, 40), "")
        await made.pool.open()
        bad = proxy(0).id
        for consecutive in range(1, 6):
            made.strategy.penalize(bad, consecutive)
        before = made.strategy.weights()[bad].effective_weight
        assert 0 < before < 0.5
        await made.pool.reload(proxies(0, 400))
        assert made.strategy.weights()[bad].effective_weight == pytest.approx(before, abs=0.001)

    check()
