"""Does a crawl run at once on the few that work, out of a list of unknown quality?"""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from datetime import datetime

import pytest

from crawl import Running, crawl
from farm import Answer, Hang, always
from farm.redis_server import RedisServer


@pytest.fixture(scope="module")
def redis_url():
    with RedisServer() as server:
        yield server.url


@pytest.fixture(params=["smooth_wrr", "least_used"])
def strategy(request):
    if request.param == "smooth_wrr":
        return {"SMOOTHPOOL_STRATEGY": "smooth_wrr"}
    return {
        "SMOOTHPOOL_STRATEGY": "least_used",
        "SMOOTHPOOL_REDIS_URL": request.getfixturevalue("redis_url"),
        "SMOOTHPOOL_POOL": f"admission-{time.monotonic_ns()}",
    }


@pytest.fixture
def dead():
    """Addresses at which nobody listens, for as long as the test runs."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
    port = held.getsockname()[1]
    yield lambda n: [f"http://127.{1 + i // 250}.{i % 250}.7:{port}" for i in range(n)]
    held.close()


def pages(site, count, tls=False):
    return [site.url_for(f"/page/1?{n}", tls=tls) for n in range(count)]


def spread(good, bad):
    """Mix *good* evenly into *bad*."""
    every = len(bad) // len(good)
    mixed = list(bad)
    for place, one in enumerate(good):
        mixed.insert(place * (every + 1) + every // 2, one)
    return mixed


def at(log, text):
    """Return when a line with *text* was first logged, in seconds."""
    line = next(line for line in log.splitlines() if text in line)
    return datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S").timestamp()


def test_of_a_thousand_with_few_that_work_pages_meet_hardly_a_dead_one(farm, dead, strategy, mode):
    site = farm.site()
    good = farm.many(50, "good")
    hanging = farm.many(30, "hanging", behaviour=Hang())
    listed = spread([p.url for p in good], dead(920) + [p.url for p in hanging])
    settings = {
        **strategy,
        "SMOOTHPOOL_PROXIES": listed,
        "SMOOTHPOOL_ADMISSION": True,
        "SMOOTHPOOL_ADMISSION_TIMEOUT": 2,
        "DOWNLOAD_DELAY": 0.05,
        "RANDOMIZE_DOWNLOAD_DELAY": False,
        **mode,
    }
    done = crawl(pages(site, 300), settings, timeout=200)
    assert len(done.arrived) == 300
    assert site.direct == []
    given = Counter(proxy for ids in done.attempts.values() for proxy in ids)
    working = {p.url for p in good}
    met = sum(count for name, count in given.items() if name not in working)
    assert met <= 0.02 * sum(given.values()), given
    assert done.stat("admitted") == 50
    # Pages come while most of the list is not checked yet.
    first = at(done.log, "Crawled (200)")
    assert first - at(done.log, "Pool 'default'" if "POOL" not in str(strategy) else "Pool ") <= 3
    assert first < at(done.log, "Admission: 50 of 1000")
    found = re.search(r"Admission: 50 of 1000 proxies passed, 950 failed \((.*?)\);", done.log)
    assert "920 refused" in found[1]
    assert "30 timed out" in found[1]
    assert " is out for" not in done.log  # the failed are listed, not told one by one
    # Listed, and not used.
    assert done.stat("proxies") == 1000
    assert done.stat("proxies_out") == 950


def test_one_that_comes_to_life_later_is_admitted_then(farm, dead, strategy, mode):
    site = farm.site()
    late = farm.proxy("late")
    late.stop()
    settings = {
        **strategy,
        "SMOOTHPOOL_PROXIES": [late.url, farm.proxy("good").url, *dead(5)],
        "SMOOTHPOOL_ADMISSION": site.url_for("/page/1"),
        "SMOOTHPOOL_EJECT_TIME": 1,
        "SMOOTHPOOL_EJECT_TIME_MAX": 1,
        "DOWNLOAD_DELAY": 0.05,
        **mode,
    }
    with Running(pages(site, 120), settings) as running:
        running.wait_for("Admission: 1 of 7 proxies passed")
        late.start()
        done = running.wait(120)
    assert len(done.arrived) == 120
    assert done.stat("admitted") == 2
    assert done.counts[late.url] > 10


@pytest.mark.parametrize("on_empty", ["wait", "ignore", "close"])
def test_an_empty_pool_is_not_empty_while_it_is_checked(farm, dead, strategy, on_empty):
    site = farm.site()
    slow = farm.proxy("slow", behaviour=always(Answer(200, delay=1.0)))
    settings = {
        **strategy,
        "SMOOTHPOOL_PROXIES": [*dead(20), slow.url],
        "SMOOTHPOOL_ADMISSION": site.url_for("/page/1"),
        "SMOOTHPOOL_ON_EMPTY": on_empty,
    }
    done = crawl(pages(site, 5), settings)
    assert len(done.arrived) == 5, done.log[-3000:]
    assert done.finish_reason == "finished"
    assert [s for s in done.signals if s[0] == "pool_exhausted"] == []


@pytest.mark.parametrize("on_empty", ["wait", "ignore", "close"])
def test_robots_txt_waits_for_the_checks_too(farm, dead, strategy, on_empty):
    site = farm.site()
    settings = {
        **strategy,
        "SMOOTHPOOL_PROXIES": [*dead(20), farm.proxy("good").url],
        "SMOOTHPOOL_ADMISSION": True,
        "SMOOTHPOOL_ON_EMPTY": on_empty,
        "ROBOTSTXT_OBEY": True,
    }
    done = crawl(pages(site, 5), settings)
    assert len(done.arrived) == 5, done.log[-3000:]
    assert done.finish_reason == "finished"


def test_when_none_passes_the_crawl_closes_if_that_was_chosen(dead, farm, strategy):
    site = farm.site()
    settings = {
        **strategy,
        "SMOOTHPOOL_PROXIES": dead(20),
        "SMOOTHPOOL_ADMISSION": site.url_for("/page/1"),
        "SMOOTHPOOL_ON_EMPTY": "close",
    }
    done = crawl(pages(site, 5), settings)
    assert done.finish_reason == "smoothpool_exhausted"
    assert done.arrived == []
    assert site.hits == []
    assert "Admission: none of 20 proxies passed (20 refused)" in done.log


def test_a_login_that_is_refused_is_not_admitted(farm, strategy, mode):
    site = farm.site(tls=True)
    proxy = farm.proxy("gateway", logins=[("right", "pw1"), ("also", "pw2")])
    lines = [
        proxy.url_for("right", "pw1"),
        proxy.url_for("wrong", "hunter2"),
        proxy.url_for("also", "pw2"),
    ]
    settings = {
        **strategy,
        "SMOOTHPOOL_PROXIES": lines,
        "SMOOTHPOOL_ADMISSION": True,
        **mode,
    }
    done = crawl(pages(site, 40, tls=True), settings)
    assert len(done.arrived) == 40
    assert {hit.login for hit in proxy.hits if hit.status == 407} <= {"wrong"}
    assert len([hit for hit in proxy.hits if hit.status == 407]) == 1
    assert "1 refused the login" in done.log
    assert "hunter2" not in done.log
