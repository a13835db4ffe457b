"""What happens to requests while no proxy is free, and to everybody else meanwhile?"""

from __future__ import annotations

import time

import pytest

from crawl import Running, crawl
from farm import Answer
from farm.redis_server import RedisServer

WAITERS = 40


@pytest.fixture
def redis():
    with RedisServer() as server:
        yield server


def empty_pool(server) -> dict[str, object]:
    """A shared pool that nobody has published yet."""
    return {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": server.url}


def out_pool(farm) -> dict[str, object]:
    """A pool whose proxies go out one after the other, all of them."""
    proxies = farm.many(2, "bad", behaviour=Answer(403))
    return {
        "SMOOTHPOOL_PROXIES": [p.url for p in proxies],
        "SMOOTHPOOL_MAX_FAILS": 1,
        "SMOOTHPOOL_EJECT_AFTER": 2,
        "SMOOTHPOOL_EJECT_MAX_PERCENT": 100,
        "SMOOTHPOOL_EJECT_TIME": 300,
        "SMOOTHPOOL_RETRY_TIMES": 50,
    }


def waiters(site, count=WAITERS):
    return [f"{site.url}/page/{n}?waits" for n in range(1, count + 1)]


def direct(site, count, host="127.0.0.1"):
    return [
        {"url": f"http://{host}:{site.port}/page/{n}", "meta": {"smoothpool": False}}
        for n in range(1, count + 1)
    ]


def pace(site) -> float:
    """Seconds from the first to the last direct request, as the site saw them."""
    times = [hit.time for hit in site.direct]
    return times[-1] - times[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same host", "other host"])
@pytest.mark.parametrize("spider", ["list", "chain"])
def test_requests_without_the_pool_keep_their_pace(farm, redis, mode, host, spider):
    site = farm.site()
    settings = {**empty_pool(redis), "SMOOTHPOOL_WAIT_TIMEOUT": 600, **mode}
    count = 150
    paces = []
    for _ in range(3):  # a busy machine may slow one of the two runs down, not every time
        control = crawl(direct(site, count, host), settings, spider=spider)
        assert len(control.arrived) == count
        normal = pace(site)
        site.clear()
        slowed = pace_among_waiters(site, count, host, spider, settings)
        site.clear()
        paces.append((normal, slowed))
        # Starved requests take many times as long; the turns of the waiters cost some CPU.
        if slowed < 2.5 * normal + 0.5:
            return
    pytest.fail(f"seconds without and with waiters: {paces}")


def pace_among_waiters(site, count, host, spider, settings) -> float:
    extra = {"first": waiters(site)}
    job = direct(site, count, host)
    with Running(job, settings, spider=f"waiting_{spider}", extra=extra) as running:
        end = time.monotonic() + 60
        while len(site.direct) < count:
            assert time.monotonic() < end, f"{len(site.direct)} arrived:\n{running.tail()}"
            time.sleep(0.05)
        slowed = pace(site)
        running.interrupt()
        done = running.wait()
    assert len(done.arrived) == count
    assert done.stat("waits") == WAITERS
    return slowed


@pytest.mark.parametrize("how", ["interrupt", "close"])
@pytest.mark.parametrize("pool", ["empty", "out", "redis gone"])
def test_closing_does_not_wait_for_waiters(farm, redis, mode, how, pool):
    site = farm.site()
    settings = {"SMOOTHPOOL_WAIT_TIMEOUT": 600, **mode}
    settings |= out_pool(farm) if pool == "out" else empty_pool(redis)
    requests = [{"url": url} for url in waiters(site)]
    closer = {"url": f"{site.url}/slow?s=1.5&close", "meta": {"smoothpool": False}}
    requests.append(closer if how == "close" else {**closer, "url": f"{site.url}/slow?s=1.5"})
    with Running(requests, settings, spider="closing") as running:
        running.wait_for("has no proxy for a request")
        if pool == "redis gone":
            redis.pause()
        if how == "interrupt":
            time.sleep(1)
            running.interrupt()
        done = running.wait()
    if pool == "redis gone":
        redis.resume()
    assert len(done.arrived) == 1
    last = next(hit.time for hit in site.direct) + 1.5
    closed = done.result["stopped"]
    assert done.finish_reason == ("asked" if how == "close" else "shutdown")
    assert closed - last < 2.0
    assert len(site.hits) - len(site.direct) == (0 if pool != "out" else len(site.hits) - 1)


def test_waiting_requests_are_fetched_on_resume(farm, redis, mode, tmp_path):
    site, proxies = farm.site(), farm.many(3)
    settings = {**empty_pool(redis), "JOBDIR": str(tmp_path / "job"), **mode}
    with Running([{"url": u, "priority": 7} for u in waiters(site)], settings) as running:
        running.wait_for("has no proxy for a request")
        time.sleep(1)
        running.interrupt()
        first = running.wait()
    assert first.arrived == []
    assert first.finish_reason == "shutdown"
    assert site.hits == []
    done = crawl([], {**settings, "SMOOTHPOOL_PROXIES": [p.url for p in proxies]})
    assert sorted(page["url"] for page in done.arrived) == sorted(waiters(site))
    assert site.direct == []
    assert done.failed == []
    assert all("_smoothpool_wait" not in page["meta"] for page in done.arrived)


def test_waiting_requests_go_on_when_the_pool_is_published(farm, redis, mode):
    site, proxies = farm.site(), farm.many(4)
    settings = {**empty_pool(redis), **mode}
    with Running(waiters(site), settings) as running:
        running.wait_for("has no proxy for a request")
        other = crawl(
            [f"{site.url}/page/1"], {**settings, "SMOOTHPOOL_PROXIES": [p.url for p in proxies]}
        )
        assert len(other.arrived) == 1
        done = running.wait()
    assert len(done.arrived) == WAITERS
    assert set(done.counts) == {p.url for p in proxies}
    assert "has a proxy again" in done.log
    assert site.direct == []


def test_waiting_requests_go_on_when_redis_is_back(farm, redis, mode):
    site, proxies = farm.site(), farm.many(3)
    settings = {**empty_pool(redis), "SMOOTHPOOL_PROXIES": [p.url for p in proxies], **mode}
    site.respond("/page/1", delay=0.02)
    urls = [f"{site.url}/page/1?{n}" for n in range(300)]
    with Running(urls, settings) as running:
        farm.wait_until(lambda: len(site.hits) > 50, 30)
        redis.kill()
        running.wait_for("has no proxy for a request")
        time.sleep(1)
        redis.start()
        done = running.wait()
    assert len(done.arrived) == 300
    assert done.failed == []
    assert site.direct == []
    assert done.stat("store_errors") > 0


def test_an_outage_that_lasts_ends_with_a_named_error(farm, redis, mode):
    site, proxies = farm.site(), farm.many(3)
    settings = {**empty_pool(redis), "SMOOTHPOOL_PROXIES": [p.url for p in proxies], **mode}
    settings["SMOOTHPOOL_WAIT_TIMEOUT"] = 2
    site.respond("/page/1", delay=0.05)
    urls = [f"{site.url}/page/1?{n}" for n in range(100)]
    with Running(urls, settings) as running:
        farm.wait_until(lambda: len(site.hits) > 20, 30)
        redis.kill()
        done = running.wait()
    assert len(done.arrived) + len(done.failed) == 100
    assert {failure["error"] for failure in done.failed} == {"PoolExhausted"}
    assert "Redis" in done.failed[0]["message"]
    assert site.direct == []


@pytest.mark.parametrize("policy", ["ignore", "close"])
def test_other_answers_to_an_empty_pool(farm, mode, policy):
    site = farm.site()
    settings = {**out_pool(farm), "SMOOTHPOOL_ON_EMPTY": policy, **mode}
    done = crawl(waiters(site), settings)
    assert {failure["error"] for failure in done.failed} == {"PoolExhausted"}
    assert done.arrived == []
    assert done.finish_reason == ("smoothpool_exhausted" if policy == "close" else "finished")
    assert done.seconds < 15
    assert done.signals[-1][0] == "pool_exhausted"
    assert site.direct == []


def test_a_proxy_that_comes_back_serves_the_waiters(farm, mode):
    site = farm.site()
    settings = {**out_pool(farm), "SMOOTHPOOL_EJECT_TIME": 2, **mode}
    with Running(waiters(site), settings) as running:
        running.wait_for("has no proxy for a request")
        for proxy in farm.proxies.values():
            proxy.behaviour = None
        done = running.wait()
    assert len(done.arrived) == WAITERS
    assert done.stat("ejections") >= 2
    assert done.stat("restorations") >= 1
    kinds = [kind for kind, _, _ in done.signals]
    assert kinds.count("pool_exhausted") >= 1
    assert "proxy_restored" in kinds


def test_a_wait_changes_nothing_about_the_request(farm, redis):
    """Priority and dont_filter are the user's again once the proxy is there."""
    site, proxies = farm.site(), farm.many(2)
    request = {"url": f"{site.url}/page/1", "priority": 5, "dont_filter": False}
    with Running([request], empty_pool(redis), spider="priority") as running:
        running.wait_for("has no proxy for a request")
        crawl(
            [f"{site.url}/page/2"],
            {**empty_pool(redis), "SMOOTHPOOL_PROXIES": [p.url for p in proxies]},
        )
        done = running.wait()
    assert done.arrived == [{"url": request["url"], "priority": 5, "dont_filter": False}]
