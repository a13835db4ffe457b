"""Does a worker leave nothing behind: no open connection, nothing that grows in Redis?"""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
from redis import Redis

from crawl import Running
from farm.redis_server import RedisServer
from redis_setups import SETUPS
from scrapy_smoothpool.store.keys import Keys

# An object that is thrown away unclosed is told as an exception that was ignored.
DEVELOPMENT = ["-X", "dev", "-W", "error"]
KEYS = Keys()


def settings_of(setup, proxies, **more):
    return {
        "SMOOTHPOOL_STRATEGY": "least_used",
        "SMOOTHPOOL_REDIS_URL": setup.url,
        "SMOOTHPOOL_PROXIES": [proxy.url for proxy in proxies],
        "LOG_LEVEL": "INFO",
        **setup.settings,
        **more,
    }


def pages(site, count, delay=0.0, start=0):
    site.respond("/page/1", delay=delay)
    return [
        {"url": f"{site.url}/page/1?{n}", "headers": {"X-Tag": str(n)}}
        for n in range(start, start + count)
    ]


def clean(done):
    assert done.exit_code == 0
    ours = [
        line
        for line in done.log.splitlines()
        if "Warning" in line and ("redis" in line.lower() or "unclosed" in line)
    ]
    assert ours == []
    assert "Task was destroyed" not in done.log
    assert "never retrieved" not in done.log
    assert "Traceback" not in done.log


@pytest.mark.parametrize("kind", ["single", "tls", "sentinel", "cluster"])
def test_nothing_stays_open(farm, mode, kind):
    site, proxies = farm.site(), farm.many(3)
    with SETUPS[kind]() as setup:
        settings = settings_of(setup, proxies, **mode)
        with Running(pages(site, 30), settings, python=DEVELOPMENT) as running:
            done = running.wait()
    clean(done)
    assert len(done.arrived) == 30


@pytest.mark.parametrize("policy", ["wait", "local"])
@pytest.mark.parametrize("away", ["killed", "hung"])
def test_nothing_stays_open_when_redis_is_away_at_the_end(farm, mode, away, policy):
    site, proxies = farm.site(), farm.many(3)
    with ExitStack() as stack:
        setup = stack.enter_context(SETUPS["single"]())
        settings = settings_of(setup, proxies, SMOOTHPOOL_ON_REDIS_DOWN=policy, **mode)
        requests = pages(site, 200, 0.3)
        running = stack.enter_context(Running(requests, settings, python=DEVELOPMENT))
        running.wait_for("Pool 'default'")
        time.sleep(1)
        server = setup.server()
        server.kill() if away == "killed" else server.pause()
        running.wait_for("trying again every")
        time.sleep(1)
        running.interrupt()
        begun = time.monotonic()
        done = running.wait(30)
        assert time.monotonic() - begun < 12
        if away == "hung":
            server.resume()
    clean(done)
    assert site.direct == []


def test_a_start_that_fails_leaves_nothing_open(farm, mode):
    site, proxies = farm.site(), farm.many(3)
    with SETUPS["single"]() as setup:
        with Redis(port=setup.server().port) as client:
            client.set(KEYS.allocations, "x")
        settings = settings_of(setup, proxies, **mode)
        with Running(pages(site, 3), settings, python=DEVELOPMENT) as running:
            done = running.wait()
    assert "holds something else" in done.log
    clean(done)


def test_a_killed_worker_leaves_the_pool_to_the_others(farm, mode):
    """At any moment, while it publishes among others; and nothing of it stays that has no end."""
    site, proxies = farm.site(), farm.many(10)
    with RedisServer() as server, Redis(port=server.port, decode_responses=True) as client:
        settings = {
            "SMOOTHPOOL_STRATEGY": "least_used",
            "SMOOTHPOOL_REDIS_URL": server.url,
            "SMOOTHPOOL_PROXIES": [proxy.url for proxy in proxies],
            **mode,
        }
        with Running(pages(site, 400, 0.2), settings) as survivor:
            survivor.wait_for("Pool 'default'")
            for number in range(3):
                with Running(pages(site, 400, 0.2, 1_000), settings) as doomed:
                    doomed.wait_for("Pool 'default'" if number else "Spider opened")
                    time.sleep(0.3 * number)
                    doomed.kill()
            done = survivor.wait(90)
        assert sorted(int(page["tag"]) for page in done.arrived) == list(range(400))
        assert site.direct == []
        counts = dict(client.zrange(KEYS.allocations, 0, -1, withscores=True))
        assert set(counts) == {proxy.url for proxy in proxies}
        assert max(counts.values()) - min(counts.values()) <= 1
        # What stays for good is the pool itself; the rest of it has a time to live.
        bounded = {KEYS.allocations, KEYS.members, KEYS.fingerprint, KEYS.version, KEYS.health}
        bounded |= {KEYS.epoch}
        for key in client.scan_iter():
            assert key in bounded or client.ttl(key) >= 0, key
