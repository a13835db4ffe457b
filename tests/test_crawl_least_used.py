"""Do workers that share a pool through Redis use it as one?"""

from __future__ import annotations

from collections import Counter

import pytest
from redis import Redis

from crawl import Running, crawl
from farm.redis_server import RedisServer

COUNTS = "smoothpool:{default}:allocations"


@pytest.fixture
def redis():
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(redis):
    with Redis(port=redis.port, decode_responses=True) as client:
        yield client


def shared(redis, proxies=None, **more):
    settings = {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": redis.url, **more}
    if proxies is not None:
        settings["SMOOTHPOOL_PROXIES"] = [p if isinstance(p, str) else p.url for p in proxies]
    return settings


def pages(site, count, start=0):
    return [
        {"url": f"{site.url}/page/1?{start + n}", "headers": {"X-Tag": str(start + n)}}
        for n in range(count)
    ]


def test_eight_workers_use_ten_proxies_evenly(farm, redis, client):
    site, proxies = farm.site(), farm.many(10)
    settings = shared(redis, proxies, LOG_LEVEL="INFO")
    workers = [Running(pages(site, 300, n * 300), settings) for n in range(8)]
    try:
        done = [worker.wait(180) for worker in workers]
    finally:
        for worker in workers:
            worker.__exit__()
    assert [len(crawl.arrived) for crawl in done] == [300] * 8
    assert site.direct == []
    assert client.zrange(COUNTS, 0, -1, withscores=True) == [
        (p.url, 240.0) for p in sorted(proxies, key=lambda p: p.url)
    ]
    for proxy in proxies:
        # A handler may repeat a GET on a reused connection: count requests, not repeats.
        assert len({hit.tag for hit in proxy.hits}) == 240


def test_ties_go_by_member_order(farm, redis, mode):
    site, proxies = farm.site(), farm.many(5)
    done = crawl(pages(site, 10), shared(redis, proxies, CONCURRENT_REQUESTS=1, **mode))
    assert done.proxies == sorted(p.url for p in proxies) * 2


def test_a_worker_that_starts_resets_no_count(farm, redis, client):
    site, proxies = farm.site(), farm.many(4)
    settings = shared(redis, proxies)
    crawl(pages(site, 40), settings)
    assert {client.zscore(COUNTS, p.url) for p in proxies} == {10.0}
    done = crawl(pages(site, 4), settings)
    assert "replaces" not in done.log
    assert {client.zscore(COUNTS, p.url) for p in proxies} == {11.0}


def test_a_newcomer_takes_no_rush(farm, redis, client):
    site, proxies = farm.site(), farm.many(10)
    crawl([], shared(redis, proxies[:9]))
    for proxy in proxies[:9]:
        client.zincrby(COUNTS, 1000, proxy.url)
    done = crawl(pages(site, 100), shared(redis, proxies))
    assert len(done.arrived) == 100
    assert 0 < done.counts[proxies[9].url] <= 20


def test_todays_list_replaces_yesterdays(farm, redis, client):
    site = farm.site()
    yesterday, today = farm.many(10, "old"), farm.many(5, "new")
    crawl(pages(site, 20), shared(redis, yesterday))
    done = crawl(pages(site, 100), shared(redis, today))
    assert set(done.proxies) == {p.url for p in today}
    assert len(done.proxies) == 100
    assert "'default' held another list of 10 proxies" in done.log
    assert "list of 5" in done.log
    assert "SMOOTHPOOL_POOL" in done.log
    assert set(client.zrange(COUNTS, 0, -1)) == {p.url for p in today}


def test_a_worker_without_a_list_joins_with_logins(farm, redis):
    site = farm.site()
    gateway = farm.proxy("gateway", logins=[("a", "pw-a"), ("b", "pw-1"), ("b", "pw-2")])
    open_proxy = farm.proxy("open")
    crawl([], shared(redis, [*gateway.urls, open_proxy.url]))
    done = crawl(pages(site, 40), shared(redis))
    assert len(done.arrived) == 40
    assert Counter(done.proxies).most_common()[-1][1] == 10
    used = Counter((hit.login, hit.password) for hit in gateway.hits)
    assert used == {("a", "pw-a"): 10, ("b", "pw-1"): 10, ("b", "pw-2"): 10}
    assert site.direct == []


def test_a_list_that_changes_under_a_running_worker(farm, redis, client, mode):
    """It is handed ids it does not know; what left does not come back with its outcome."""
    site = farm.site()
    old, new = farm.many(2, "old"), farm.many(2, "new")
    site.respond("/hold", delay=2)
    settings = shared(redis, old, CONCURRENT_REQUESTS=2, **mode)
    requests = [*pages(site, 20), {"url": f"{site.url}/hold"}, *pages(site, 200, 20)]
    site.respond("/page/1", delay=0.08)
    with Running(requests, settings) as running:
        farm.wait_until(lambda: any(hit.path == "/hold" for hit in site.hits), 60)
        crawl([], shared(redis, new))
        done = running.wait()
    assert len(done.arrived) == 221
    assert done.failed == []
    assert set(done.proxies) == {p.url for p in (*old, *new)}
    assert set(client.zrange(COUNTS, 0, -1)) == {p.url for p in new}
    assert site.direct == []


def test_a_key_that_vanished_is_published_again(farm, redis, client, mode):
    site, proxies = farm.site(), farm.many(3)
    site.respond("/page/1", delay=0.03)
    with Running(pages(site, 200), shared(redis, proxies, **mode)) as running:
        farm.wait_until(lambda: len(site.hits) > 60, 60)
        client.flushall()
        client.script_flush()
        done = running.wait()
    assert len(done.arrived) == 200
    assert done.failed == []
    assert client.zcard(COUNTS) == 3
    assert "publishing it again" in done.log


def test_a_member_put_in_by_hand_is_skipped(farm, redis, client):
    site, proxies = farm.site(), farm.many(2)
    crawl([], shared(redis, proxies))
    client.zadd(COUNTS, {"http://192.0.2.1:80": 0, "nonsense": 0})
    done = crawl(pages(site, 20), shared(redis))
    assert len(done.arrived) == 20
    assert set(done.proxies) == {p.url for p in proxies}
    assert "nobody knows how to reach it" in done.log


def test_ejected_members_are_skipped_by_the_worker_that_saw_them_fail(farm, redis, mode):
    site = farm.site()
    dead = farm.proxy("dead", listening=False)
    good = farm.many(3, "good")
    settings = shared(redis, [dead, *good], SMOOTHPOOL_EJECT_TIME=60, CONCURRENT_REQUESTS=1)
    done = crawl(pages(site, 100), {**settings, **mode})
    assert len(done.arrived) == 100
    assert done.stat("ejections") == 1
    assert sum(ids.count(dead.url) for ids in done.attempts.values()) == 8
    assert ["proxy_ejected", dead.url, "proxy_error"] in done.signals


def test_two_pools_share_nothing(farm, redis, client):
    site, proxies = farm.site(), farm.many(4)
    crawl(pages(site, 10), shared(redis, proxies[:2], SMOOTHPOOL_POOL="one"))
    crawl(pages(site, 20), shared(redis, proxies[2:], SMOOTHPOOL_POOL="two"))
    assert set(client.zrange("smoothpool:{one}:allocations", 0, -1)) == {p.url for p in proxies[:2]}
    assert client.zscore("smoothpool:{two}:allocations", proxies[2].url) == 10
    assert {key.partition("}")[0] for key in client.keys("*")} == {
        "smoothpool:{one",
        "smoothpool:{two",
    }
