"""What becomes of a crawl when Redis goes away under it, and comes back?"""

from __future__ import annotations

import time

import pytest
from redis import Redis

from crawl import Running, crawl
from farm.redis_server import RedisServer

COUNTS = "smoothpool:{default}:allocations"
AWAY = 20  # seconds


@pytest.fixture
def redis():
    with RedisServer() as server:
        yield server


def shared(redis, proxies, **more):
    return {
        "SMOOTHPOOL_STRATEGY": "least_used",
        "SMOOTHPOOL_REDIS_URL": redis.url,
        "SMOOTHPOOL_PROXIES": [p.url for p in proxies],
        "LOG_LEVEL": "INFO",
        **more,
    }


def pages(site, count, delay):
    """Pages that take about so many seconds with 16 requests at a time."""
    site.respond("/page/1", delay=delay)
    return [{"url": f"{site.url}/page/1?{n}", "headers": {"X-Tag": str(n)}} for n in range(count)]


def counts(redis):
    with Redis(port=redis.port, decode_responses=True) as client:
        return dict(client.zrange(COUNTS, 0, -1, withscores=True))


def all_arrived(done, site, count):
    assert done.exit_code == 0, done.log[-4000:]
    assert done.finish_reason == "finished", done.log[-4000:]
    assert sorted(int(page["tag"]) for page in done.arrived) == list(range(count))
    assert site.direct == []
    assert "Traceback" not in done.log


@pytest.mark.parametrize("away", ["killed", "hung"])
def test_wait(farm, redis, mode, away):
    """Requests wait, and go on where they were, with the counts where they were."""
    site, proxies = farm.site(), farm.many(5)
    settings = shared(redis, proxies, **mode)
    with Running(pages(site, 600, 0.2), settings) as running:
        running.wait_for("Pool 'default'")
        time.sleep(3)
        before = counts(redis)
        redis.kill() if away == "killed" else redis.pause()
        gone = time.monotonic()
        running.wait_for("trying again every")
        hits = sum(len(proxy.hits) for proxy in proxies)
        time.sleep(AWAY / 2)
        waiting = sum(len(proxy.hits) for proxy in proxies)
        assert waiting - hits <= 32  # what had its proxy already
        time.sleep(max(0.0, gone + AWAY - time.monotonic()))
        redis.restart() if away == "killed" else redis.resume()
        done = running.wait(120)
    all_arrived(done, site, 600)
    assert done.log.count("did not answer in time; trying again") <= 1
    assert done.log.count("SMOOTHPOOL_ON_REDIS_DOWN = 'wait'") == 1
    assert "answers again after" in done.log
    after = counts(redis)
    assert set(after) == {proxy.url for proxy in proxies}
    assert min(after.values()) >= min(before.values()) > 20
    assert max(after.values()) - min(after.values()) <= 1


def test_local(farm, redis, mode):
    """The worker carries on by itself, evenly, and the counts hear of it afterwards."""
    site, proxies = farm.site(), farm.many(5)
    settings = shared(redis, proxies, SMOOTHPOOL_ON_REDIS_DOWN="local", **mode)
    with Running(pages(site, 1500, 0.3), settings) as running:
        running.wait_for("Pool 'default'")
        time.sleep(3)
        redis.kill()
        gone = time.monotonic()
        running.wait_for("carries on by itself with the 5 proxies")
        before = [len(proxy.hits) for proxy in proxies]
        time.sleep(max(0.0, gone + AWAY - time.monotonic()))
        meanwhile = [len(p.hits) - was for p, was in zip(proxies, before, strict=True)]
        assert sum(meanwhile) > 200
        assert max(meanwhile) - min(meanwhile) <= 16  # requests under way
        redis.restart()
        running.wait_for("is shared again after")
        done = running.wait(120)
    all_arrived(done, site, 1500)
    assert done.log.count("carries on by itself") == 1
    assert "SMOOTHPOOL_ON_REDIS_DOWN = 'local'" not in done.log  # no request was without a proxy
    after = counts(redis)
    assert max(after.values()) - min(after.values()) <= 1
    # It came back empty. What the worker knew was the least of the counts; what it allocated
    # meanwhile is in them.
    assert abs(sum(after.values()) - 1500) <= 5


def test_close(farm, redis, mode):
    site, proxies = farm.site(), farm.many(5)
    settings = shared(redis, proxies, SMOOTHPOOL_ON_REDIS_DOWN="close", **mode)
    with Running(pages(site, 600, 0.2), settings) as running:
        running.wait_for("Pool 'default'")
        time.sleep(2)
        redis.kill()
        done = running.wait(30)
    assert done.exit_code == 0
    assert done.finish_reason == "smoothpool_redis_down"
    assert 0 < len(done.arrived) < 600
    assert site.direct == []
    assert "Traceback" not in done.log
    assert done.log.count("SMOOTHPOOL_ON_REDIS_DOWN = 'close'") == 1


@pytest.mark.parametrize("policy", ["ignore", "close"])
def test_an_outage_is_no_empty_pool(farm, redis, policy):
    """SMOOTHPOOL_ON_EMPTY says nothing of a Redis that is away."""
    site, proxies = farm.site(), farm.many(3)
    settings = shared(redis, proxies, SMOOTHPOOL_ON_EMPTY=policy)
    with Running(pages(site, 100, 0.1), settings) as running:
        running.wait_for("Pool 'default'")
        time.sleep(0.5)
        redis.pause()
        time.sleep(4)
        redis.resume()
        done = running.wait(60)
    all_arrived(done, site, 100)


def test_a_flush_is_mended_and_no_count_is_lost(farm, redis, mode):
    """Two workers; each knows a least count, and neither lets the pool fall below."""
    site, proxies = farm.site(), farm.many(5)
    requests = pages(site, 400, 0.2)
    settings = shared(redis, proxies, **mode)
    with (
        Running(requests[:200], settings) as one,
        Running(requests[200:], settings) as two,
        Redis(port=redis.port, decode_responses=True) as client,
    ):
        for running in (one, two):
            running.wait_for("Pool 'default'")
        time.sleep(1.5)
        client.script_flush()
        time.sleep(0.5)
        before = counts(redis)
        client.flushall()
        flushed = time.monotonic()
        while client.zcard(COUNTS) < 5:
            assert time.monotonic() < flushed + 1
            time.sleep(0.01)
        done = [running.wait(60) for running in (one, two)]
    assert sorted(int(p["tag"]) for each in done for p in each.arrived) == list(range(400))
    assert site.direct == []
    for each in done:
        assert "NOSCRIPT" not in each.log
        assert "has no proxy" not in each.log
    after = counts(redis)
    assert min(after.values()) >= min(before.values()) > 5
    assert max(after.values()) - min(after.values()) <= 2


def test_workers_that_joined_bring_back_what_nobody_else_can(farm, redis):
    site, proxies = farm.site(), farm.many(4)
    crawl([], shared(redis, proxies))  # the one with the list is gone
    settings = {k: v for k, v in shared(redis, []).items() if k != "SMOOTHPOOL_PROXIES"}
    with (
        Running(pages(site, 100, 0.2), settings) as running,
        Redis(port=redis.port, decode_responses=True) as client,
    ):
        running.wait_for("Pool 'default'")
        time.sleep(0.5)
        client.flushall()
        done = running.wait(60)
    all_arrived(done, site, 100)
    assert "is missing in Redis; publishing it again" in done.log
    assert set(counts(redis)) == {proxy.url for proxy in proxies}


def test_a_start_may_wait_for_redis(farm, redis, mode):
    site, proxies = farm.site(), farm.many(3)
    redis.kill()
    settings = shared(redis, proxies, SMOOTHPOOL_REDIS_START_TIMEOUT=30, **mode)
    with Running(pages(site, 20, 0), settings) as running:
        running.wait_for("waiting for it for up to 30 s (SMOOTHPOOL_REDIS_START_TIMEOUT)")
        time.sleep(2)
        redis.restart()
        done = running.wait(60)
    all_arrived(done, site, 20)


def test_a_start_that_waited_in_vain_ends(farm, redis, mode):
    site, proxies = farm.site(), farm.many(3)
    redis.kill()
    settings = shared(redis, proxies, SMOOTHPOOL_REDIS_START_TIMEOUT=2, **mode)
    done = crawl(pages(site, 20, 0), settings)
    assert "Spider closed (smoothpool_failed)" in done.log
    assert "could not be opened, so no request may go out: Redis at 127.0.0.1" in done.log
    assert site.hits == []
    assert 2 <= done.seconds < 15


def test_ctrl_c_ends_a_start_that_waits(farm, redis, mode):
    site, proxies = farm.site(), farm.many(3)
    redis.kill()
    settings = shared(redis, proxies, SMOOTHPOOL_REDIS_START_TIMEOUT=600, **mode)
    with Running(pages(site, 20, 0), settings) as running:
        running.wait_for("waiting for it")
        running.interrupt()
        begun = time.monotonic()
        done = running.wait(20)
        assert time.monotonic() - begun < 10
    assert site.hits == []
    assert "Traceback" not in done.log
