"""Do the workers of a shared pool agree whose fault it was, and who lets it back in?"""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from redis import Redis

from crawl import Running, crawl
from farm import Answer, always, first
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
        settings["SMOOTHPOOL_PROXIES"] = [p.url for p in proxies]
    return settings


def pages(site, count, start=0):
    return [f"{site.url}/page/1?{start + n}" for n in range(count)]


def four(site, settings, count):
    """Let four workers crawl at once and return their crawls."""
    workers = [Running(pages(site, count, n * count), settings) for n in range(4)]
    try:
        return [worker.wait(200) for worker in workers]
    finally:
        for worker in workers:
            worker.__exit__()


def test_what_four_workers_saw_together_puts_a_proxy_out_once(farm, redis, client):
    site = farm.site()
    bad = farm.proxy("bad", behaviour=always(Answer(403)))
    good = farm.many(4, "good")
    settings = shared(redis, [bad, *good], SMOOTHPOOL_EJECT_TIME=600, CONCURRENT_REQUESTS=4)
    done = four(site, settings, 150)
    assert [len(one.arrived) for one in done] == [150] * 4
    ejections = [s for one in done for s in one.signals if s[0] == "proxy_ejected"]
    assert ejections == [["proxy_ejected", bad.url, "banned"]]
    # Eight failures of all workers together, and what was under way.
    assert 8 <= len(bad.hits) <= 8 + 4 * 4
    assert re.search("is out for 6", "".join(one.log for one in done))
    # Counts are kept while it is out; and it is out for one who comes later.
    assert client.zscore(COUNTS, bad.url) is None
    assert int(client.zscore("smoothpool:{default}:benched", bad.url)) == len(bad.hits)
    before = len(bad.hits)
    late = crawl(pages(site, 40), shared(redis))
    assert len(late.arrived) == 40
    assert len(bad.hits) == before
    assert [row[0] for row in late.table() if "out:" in row] == [bad.url]


def test_four_workers_never_probe_a_proxy_twice_at_once(farm, redis):
    site = farm.site()
    bad = farm.proxy("bad", behaviour=always(Answer(403, delay=0.2)))
    good = farm.many(4, "good")
    settings = shared(
        redis,
        [bad, *good],
        SMOOTHPOOL_EJECT_TIME=1,
        SMOOTHPOOL_EJECT_TIME_MAX=1,
        CONCURRENT_REQUESTS=4,
        DOWNLOAD_DELAY=0.04,
    )
    done = four(site, settings, 200)
    assert [len(one.arrived) for one in done] == [200] * 4
    times = [hit.time for hit in bad.hits]
    out = next(n for n, (a, b) in enumerate(pairwise(times)) if b - a >= 1)
    assert 8 <= out + 1 <= 8 + 4 * 4
    # From then on one probe, its answer, and a second outside before the next.
    gaps = [later - earlier for earlier, later in pairwise(times[out:])]
    assert len(gaps) >= 3
    assert min(gaps) >= 1, gaps
    ejections = sum(one.stat("ejections") for one in done)
    assert abs(ejections - len(gaps) - 1) <= 1  # the last probe may be still out


def test_it_comes_back_for_all_without_a_rush(farm, redis, client):
    site = farm.site()
    bad = farm.proxy("bad", behaviour=first(10, Answer(403)))
    good = farm.many(4, "good")
    settings = shared(
        redis, [bad, *good], SMOOTHPOOL_EJECT_TIME=1, CONCURRENT_REQUESTS=4, DOWNLOAD_DELAY=0.02
    )
    done = four(site, settings, 150)
    assert [len(one.arrived) for one in done] == [150] * 4
    restored = [s for one in done for s in one.signals if s[0] == "proxy_restored"]
    assert restored == [["proxy_restored", bad.url, "banned"]]
    counts = client.zrange(COUNTS, 0, -1, withscores=True)
    assert len(counts) == 5
    others = [score for name, score in counts if name != bad.url]
    # Back at the pool's minimum, from where it took its turns like the others; the page that
    # met it last went elsewhere.
    assert max(others) - min(others) <= 1
    assert abs(client.zscore(COUNTS, bad.url) - min(others)) <= 1


def test_a_worker_that_is_killed_takes_no_verdict_with_it(farm, redis):
    site = farm.site()
    bad = farm.proxy("bad", behaviour=always(Answer(403)))
    settings = shared(redis, [bad, *farm.many(4, "good")], CONCURRENT_REQUESTS=4)
    with Running(pages(site, 5000), settings) as doomed:
        doomed.wait_for("is out for")
        doomed.kill()
    before = len(bad.hits)
    done = crawl(pages(site, 60), settings)
    assert len(done.arrived) == 60
    assert len(bad.hits) == before
