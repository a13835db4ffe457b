"""Is everything booked as it was, on the proxy it went through, and nothing else?"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from redis import Redis

from crawl import REACTORLESS, Crawl, Running, crawl
from farm import Answer, Close, SiteResponse, TunnelHang, always, every, half
from farm.redis_server import RedisServer

RECORDED = {
    "SPIDER_MODULES": ["accounting_spiders"],
    "EXTENSIONS": {"accounting_spiders.AttemptRecorder": 0},
    "SMOOTHPOOL_STATS_PER_PROXY": True,
    "LOG_LEVEL": "INFO",
}


@pytest.fixture(scope="module")
def redis():
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(redis):
    with Redis(port=redis.port, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def shared(redis, client):
    """Settings of a shared pool of the test's own."""
    return {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": redis.url}


def allocations(client) -> dict[str, int]:
    """Counts of all members, those included that are out."""
    keys = ("smoothpool:{default}:allocations", "smoothpool:{default}:benched")
    return {
        name: int(count)
        for key in keys
        for name, count in client.zrange(key, 0, -1, withscores=True)
    }


def listed(proxies):
    return {"SMOOTHPOOL_PROXIES": [proxy.url for proxy in proxies]}


def run(requests, settings, **options) -> Crawl:
    return crawl(requests, {**RECORDED, **settings}, spider="counted", **options)


def per_proxy(done: Crawl, url: str) -> dict[str, int]:
    names = ("picks", "successes", "failures", "unclear", "ejections")
    return {name: done.stat(f"proxy/{url}/{name}") for name in names}


# What was booked is what the proxies saw.

BOOKED_AS = {200: "success", 302: "success", 403: "banned", 503: "ambiguous", None: "proxy_error"}


def seen_by(proxy) -> dict[str, str]:
    """What the proxy's log says of each attempt that reached it, by the attempt's number.

    A number that comes again is a handler's silent repeat, of a request that it had sent on a
    reused connection and got no answer to; only the last one's end is the download's.
    """
    attempts: dict[str, list] = {}
    for hit in proxy.hits:
        attempts.setdefault(hit.tag, []).append(hit)
    for hits in attempts.values():
        assert all(hit.status is None for hit in hits[:-1])
    return {tag: BOOKED_AS[hits[-1].status] for tag, hits in attempts.items()}


@pytest.mark.parametrize(
    ("strategy", "reactorless"),
    [("smooth_wrr", False), ("smooth_wrr", True), ("least_used", False)],
)
def test_what_is_booked_is_what_the_proxies_saw(farm, request, strategy, reactorless):
    site = farm.site()
    bad = {
        "503": farm.proxy("503", behaviour=every(3, Answer(503))),
        "403": farm.proxy("403", behaviour=every(4, Answer(403))),
        "closes": farm.proxy("closes", behaviour=every(5, Close())),
        "always 503": farm.proxy("always 503", behaviour=always(Answer(503))),
        "always closes": farm.proxy("always closes", behaviour=always(Close())),
        "refuses": farm.proxy("refuses", listening=False),
    }
    proxies = [*bad.values(), *farm.many(5, "good")]
    settings = {**listed(proxies), "CONCURRENT_REQUESTS": 64, "CONCURRENT_REQUESTS_PER_DOMAIN": 64}
    settings |= {"SMOOTHPOOL_STRATEGY": strategy, "SMOOTHPOOL_EJECT_TIME": 600}  # no probes
    if strategy == "least_used":
        settings |= request.getfixturevalue("shared")
    if reactorless:
        settings |= REACTORLESS
    # A redirect and where it leads are two requests.
    urls = [f"{site.url}/page/1?{n}" for n in range(1600)]
    urls += [f"{site.url}/redirect?to=/page/2?{n}" for n in range(200)]
    done = run(urls, settings, timeout=240)
    assert len(done.arrived) + len(done.failed) == 1800
    assert len(done.arrived) >= 1790  # after six bad ones in a row it is given up
    assert site.direct == []

    given: dict[str, set[str]] = {proxy.url: set() for proxy in proxies}
    for tag, url in done.result["given"]:
        given[url].add(tag)
    booked: dict[str, dict[str, str]] = {proxy.url: {} for proxy in proxies}
    for tag, url, outcome in done.result["booked"]:
        assert tag not in booked[url]
        booked[url][tag] = outcome
    assert sum(map(len, booked.values())) >= 2000
    for proxy in proxies:
        found = per_proxy(done, proxy.url)
        said = Counter(booked[proxy.url].values())
        assert set(booked[proxy.url]) == given[proxy.url]
        if proxy is bad["refuses"]:
            assert proxy.hits == []
            assert set(said) == {"proxy_error"}
        else:
            assert booked[proxy.url] == seen_by(proxy)
        assert found["picks"] == len(given[proxy.url])
        assert found["successes"] == said["success"]
        # Which of the ambiguous ones it was blamed for, no log can tell.
        certain = said["proxy_error"] + said["banned"]
        assert found["failures"] + found["unclear"] == certain + said["ambiguous"]
        assert found["failures"] >= certain
    assert {outcome for found in booked.values() for outcome in found.values()} == {
        *BOOKED_AS.values()
    }
    failures = sum(per_proxy(done, proxy.url)["failures"] for proxy in proxies)
    blamed = failures - done.stat("outcome/proxy_error") - done.stat("outcome/banned")
    # One that came after its proxy went out is in the proxy's own counts only.
    assert 0 < done.stat("outcome/blamed") <= blamed
    assert blamed <= done.stat("outcome/blamed") + done.stat("outcome/stale")
    if strategy == "least_used":
        counts = allocations(request.getfixturevalue("client"))
        unused = {url: counts[url] - len(tags) for url, tags in given.items()}
        for url, picks in unused.items():
            # Redis may hand out a proxy that goes out before its answer is here; and the probe
            # of one that is out is no pick from the rotation.
            ejections = per_proxy(done, url)["ejections"]
            assert picks == 0 or (ejections and picks >= -ejections)
        assert sum(unused.values()) < 64


# What says nothing of a proxy changes neither its health nor its count.


def nobodys_fault(done: Crawl) -> None:
    for member in done.result["members"]:
        assert [member[key] for key in ("failures", "unclear", "consecutive_failures")] == [0] * 3
        assert not member["out"]
    assert done.stat("ejections") == done.stat("penalties") == 0


def test_cached_pages_take_one_pick_of_the_shared_pool(farm, shared, client, mode, tmp_path):
    site, proxies = farm.site(), farm.many(2)
    settings = {**shared, **listed(proxies), "CONCURRENT_REQUESTS": 1, **mode}
    settings |= {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path / "cache")}
    urls = [f"{site.url}/page/{n}" for n in range(1, 11)]
    run(urls, settings)
    before = allocations(client)
    assert sum(before.values()) == len(site.hits) == 10
    for proxy in proxies:
        proxy.stop()
    done = run(urls, settings)
    assert [page["flags"] for page in done.arrived] == [["cached"]] * 10
    assert done.result["booked"] == []
    nobodys_fault(done)
    assert sum(allocations(client).values()) - 10 == 1  # the ticket
    assert done.stat("tickets") == 10


def test_what_middlewares_raise_takes_one_pick_of_the_shared_pool(farm, shared, client, mode):
    site, proxies = farm.site(), farm.many(2)
    settings = {**shared, **listed(proxies), "CONCURRENT_REQUESTS": 1, **mode}
    settings["DOWNLOADER_MIDDLEWARES"] = {
        "outcome_spiders.Raise": 606,
        "outcome_spiders.RaiseAfter": 900,
    }
    wishes = list(itertools.product(("before", "after"), ("IgnoreRequest", "ValueError")))
    raised = [
        {"url": f"{site.url}/page/{n}", "meta": {"raise": {where: error}}}
        for n, (where, error) in enumerate(wishes * 3, 1)
    ]
    done = run(raised, settings)
    assert Counter(page["error"].rpartition(".")[2] for page in done.failed) == {
        "IgnoreRequest": 6,
        "ValueError": 6,
    }
    assert done.result["booked"] == []
    assert site.hits == []
    nobodys_fault(done)
    assert sum(allocations(client).values()) == 1  # the ticket of those raised after ours


def test_a_ticket_is_used_before_a_new_pick_is_taken(farm, shared, client, mode):
    site, proxies = farm.site(), farm.many(3)
    settings = {**shared, **listed(proxies), "CONCURRENT_REQUESTS": 1, **mode}
    settings["DOWNLOADER_MIDDLEWARES"] = {"outcome_spiders.RaiseAfter": 900}
    raised = {"meta": {"raise": {"after": "IgnoreRequest"}}}
    requests = [{"url": f"{site.url}/page/1?{n}", **(raised if n % 2 else {})} for n in range(20)]
    done = run(requests, settings)
    assert len(done.arrived) == len(done.failed) == len(site.hits) == 10
    nobodys_fault(done)
    counts = allocations(client)
    assert sum(counts.values()) - len(site.hits) in (0, 1)
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("strategy", ["smooth_wrr", "least_used"])
def test_running_out_of_descriptors_is_told_once_and_blames_nobody(
    farm, shared, client, mode, strategy
):
    site, proxies = farm.site(), farm.many(100)
    site.respond("/page/1", delay=0.2)
    settings = {**(shared if strategy == "least_used" else {}), **listed(proxies), **mode}
    settings |= {
        "CONCURRENT_REQUESTS": 32,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 32,
        "DOWNLOADER_MIDDLEWARES": {"accounting_spiders.FewDescriptors": 900},
        "DOWNLOAD_TIMEOUT": 30,
    }
    done = run([f"{site.url}/page/1?{n}" for n in range(200)], settings)
    assert len(done.arrived) + len(done.failed) == 200
    outcomes = Counter(outcome for _, _, outcome in done.result["booked"])
    assert set(outcomes) == {"success", "neutral"}
    assert outcomes["neutral"] > 20
    assert all(o["exhausted"] for o in done.result["outcomes"] if o["outcome"] == "neutral")
    nobodys_fault(done)
    warnings = [line for line in done.log.splitlines() if "file descriptors" in line]
    assert len(warnings) == 1
    assert all(word in warnings[0] for word in ("WARNING", "ulimit -n", "CONCURRENT_REQUESTS"))
    assert site.direct == []
    if strategy == "least_used":
        given = Counter(url for _, url in done.result["given"])
        assert {url: n for url, n in allocations(client).items() if n} == given
        assert given.total() == len(done.result["booked"])


# A panic costs little.


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far; it does not grow by waiting for a core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("on_panic", ["use", "wait"])
def test_a_panic_is_told_once_and_leaves_the_processor_alone(farm, mode, on_panic):
    site = farm.site()
    proxies = farm.many(10, behaviour=always(Answer(403)))
    settings = {
        **listed(proxies),
        "SMOOTHPOOL_ON_PANIC": on_panic,
        "SMOOTHPOOL_EJECT_TIME": 300,
        "LOG_LEVEL": "INFO",
        **mode,
    }
    urls = [f"{site.url}/page/1?{n}" for n in range(3000)]
    with Running(urls, settings) as running:
        running.wait_for("hardly anything gets through")
        time.sleep(1)
        hits = sum(len(proxy.hits) for proxy in proxies)
        pid, began = running.process.pid, time.monotonic()
        used = cpu_seconds(pid)
        time.sleep(10)
        share = (cpu_seconds(pid) - used) / (time.monotonic() - began)
        hits = sum(len(proxy.hits) for proxy in proxies) - hits
        running.interrupt()
        done = running.wait()
    assert share <= 0.2
    assert 1 <= hits <= (220 if on_panic == "use" else 4)
    assert done.log.count("hardly anything gets through, and no more") == 1
    assert done.stat("panics") == 1
    assert f"SMOOTHPOOL_ON_PANIC = '{on_panic}'" in done.log


# An empty pool.

EXHAUSTED = "scrapy_smoothpool.exceptions.PoolExhausted"
DRY = {
    # Every proxy bans, and goes out for it.
    "SMOOTHPOOL_EJECT_AFTER": 1,
    "SMOOTHPOOL_PENALTY": "off",
    "SMOOTHPOOL_EJECT_MAX_PERCENT": 100,
    "SMOOTHPOOL_EJECT_TIME": 300,
}


@pytest.mark.parametrize("strategy", ["smooth_wrr", "least_used"])
def test_when_the_pool_is_empty_each_request_is_told(farm, shared, mode, strategy):
    site = farm.site()
    proxies = farm.many(4, behaviour=always(Answer(403)))
    settings = {**(shared if strategy == "least_used" else {}), **listed(proxies), **DRY, **mode}
    urls = [f"{site.url}/page/1?{n}" for n in range(200)]
    done = run(urls, {**settings, "SMOOTHPOOL_ON_EMPTY": "ignore"})
    assert Counter(page["error"] for page in done.failed) == {EXHAUSTED: 200}
    assert sorted(page["url"] for page in done.failed) == sorted(urls)
    assert done.arrived == site.hits == []
    assert done.finish_reason == "finished"
    # Nothing is booked but what the proxies answered before.
    bans = sum(len(proxy.hits) for proxy in proxies)
    assert [outcome for _, _, outcome in done.result["booked"]] == ["banned"] * bans
    for proxy in proxies:
        assert per_proxy(done, proxy.url)["failures"] == len(proxy.hits)
        assert per_proxy(done, proxy.url)["ejections"] == 1


def test_a_shared_pool_that_nobody_filled_tells_each_request(farm, shared, mode):
    site = farm.site()
    urls = [f"{site.url}/page/1?{n}" for n in range(50)]
    done = run(urls, {**shared, "SMOOTHPOOL_ON_EMPTY": "ignore", **mode})
    assert Counter(page["error"] for page in done.failed) == {EXHAUSTED: 50}
    assert done.result["booked"] == site.hits == []


@pytest.mark.parametrize("strategy", ["smooth_wrr", "least_used"])
def test_close_ends_the_crawl_soon_after_the_pool_ran_dry(farm, shared, mode, strategy):
    site = farm.site()
    proxies = farm.many(4, behaviour=always(Answer(403)))
    settings = {**(shared if strategy == "least_used" else {}), **listed(proxies), **DRY, **mode}
    urls = [f"{site.url}/page/1?{n}" for n in range(2000)]
    done = run(urls, {**settings, "SMOOTHPOOL_ON_EMPTY": "close"})
    assert done.finish_reason == "smoothpool_exhausted"
    times = done.result["times"]
    assert 0 <= times["closed"] - times["exhausted"] < 5
    assert {page["error"] for page in done.failed} <= {EXHAUSTED}
    bans = sum(len(proxy.hits) for proxy in proxies)
    assert len(done.result["booked"]) == bans
    assert sum(per_proxy(done, proxy.url)["failures"] for proxy in proxies) == bans
    assert site.direct == []


# Comparison, end to end.


def test_one_that_hangs_in_every_second_tunnel_is_blamed(farm, mode):
    site = farm.site(tls=True)
    # Each request in a tunnel of its own: a good one would be kept and used again.
    site.respond("/page/1", lambda request: SiteResponse(close=True))
    bad = farm.proxy("bad", behaviour=half(TunnelHang()))
    good = farm.many(4, "good")
    settings = {**listed([bad, *good]), "DOWNLOAD_TIMEOUT": 3, "CONCURRENT_REQUESTS": 8, **mode}
    urls = [site.url_for(f"/page/1?{n}", tls=True) for n in range(200)]
    done = run(urls, settings, timeout=150)
    assert len(done.arrived) == 200
    found = per_proxy(done, bad.url)
    hung = [hit for hit in bad.hits if hit.done == "tunnelhang"]
    assert found["failures"] + found["unclear"] == len(hung) > 10
    assert found["failures"] >= len(hung) - 6  # those before its rate stood out
    assert done.stat("outcome/blamed") > 0
    for proxy in good:
        others = per_proxy(done, proxy.url)
        assert others["failures"] == others["unclear"] == 0
