"""Does the pool know whose fault it was, ease the sick out and let them back in gently?"""

from __future__ import annotations

import re
import time
from collections import Counter
from itertools import pairwise

import pytest

from crawl import Running, crawl
from farm import Answer, Hang, SiteResponse, TunnelHang, always, every, first, half
from farm.redis_server import RedisServer


@pytest.fixture(scope="module")
def redis_url():
    with RedisServer() as server:
        yield server.url


@pytest.fixture(params=["smooth_wrr", "least_used"])
def strategy(request):
    """Settings of either strategy, with a shared pool of the test's own."""
    if request.param == "smooth_wrr":
        return {"SMOOTHPOOL_STRATEGY": "smooth_wrr"}
    return {
        "SMOOTHPOOL_STRATEGY": "least_used",
        "SMOOTHPOOL_REDIS_URL": request.getfixturevalue("redis_url"),
        "SMOOTHPOOL_POOL": f"health-{time.monotonic_ns()}",
    }


def pages(site, count, tls=False, host="127.0.0.1"):
    return [site.url_for(f"/page/1?{n}", host, tls) for n in range(count)]


def listed(proxies):
    return {"SMOOTHPOOL_PROXIES": [p.url for p in proxies]}


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_two_of_ten_that_never_answer_cost_little(farm, strategy, mode, tls):
    site = farm.site(tls=True)
    hanging = farm.many(2, "hang", behaviour=TunnelHang() if tls else Hang())
    good = farm.many(8, "good")
    settings = {**strategy, **listed([*hanging, *good]), "DOWNLOAD_TIMEOUT": 3, **mode}
    done = crawl(pages(site, 500, tls), settings, timeout=150)
    assert len(done.arrived) == 500
    assert site.direct == []
    given = Counter(proxy for ids in done.attempts.values() for proxy in ids)
    assert all(given[p.url] <= 20 for p in hanging), given
    assert {row[0] for row in done.table() if "out:" in row} == {p.url for p in hanging}


def test_a_tunnel_that_hangs_is_blamed_by_comparison(farm, mode):
    site = farm.site(tls=True)
    bad = farm.proxy("bad", behaviour=TunnelHang())
    proxies = [bad, *farm.many(5)]
    settings = {**listed(proxies), "DOWNLOAD_TIMEOUT": 1, "CONCURRENT_REQUESTS": 4, **mode}
    done = crawl(pages(site, 120, tls=True), settings)
    assert len(done.arrived) == 120
    assert done.stat("outcome/blamed") > 0
    assert [signal for signal in done.signals if signal[0] == "proxy_ejected"] == [
        ["proxy_ejected", bad.url, "ambiguous"]
    ]


def test_one_failure_in_twenty_does_not_eject(farm, strategy):
    site = farm.site()
    flaky = farm.proxy("flaky", behaviour=every(20, Answer(403)))
    good = farm.many(2, "good")
    done = crawl(pages(site, 1000), {**strategy, **listed([flaky, *good])}, timeout=150)
    assert len(done.arrived) == 1000
    assert done.stat("ejections") == 0
    assert 10 < done.stat("outcome/banned") < 25


def test_nine_failures_in_ten_eject_within_twenty(farm, strategy):
    site = farm.site()
    bad = farm.proxy("bad", behaviour=lambda hit: None if len(bad.hits) % 10 == 5 else Answer(403))
    good = farm.many(3, "good")
    settings = {**strategy, **listed([bad, *good]), "CONCURRENT_REQUESTS": 2}
    done = crawl(pages(site, 200), {**settings, "SMOOTHPOOL_EJECT_AFTER": 12}, timeout=150)
    assert len(done.arrived) == 200
    given = Counter(proxy for ids in done.attempts.values() for proxy in ids)
    assert done.stat("ejections") == 1
    assert given[bad.url] <= 20


@pytest.mark.parametrize("how", ["503", "tunnel timeouts"])
def test_a_site_that_is_down_costs_no_proxy_its_place(farm, strategy, mode, how):
    site = farm.site(tls=True)
    tls = how != "503"
    down = SiteResponse(503) if how == "503" else SiteResponse(delay=30)
    site.respond("/page/1", lambda request: down if request.host == "a.test" else None)
    proxies = farm.many(6)
    settings = {**strategy, **listed(proxies), "DOWNLOAD_TIMEOUT": 1, "RETRY_TIMES": 1, **mode}
    urls = pages(site, 20, tls, "a.test") + pages(site, 200, tls, "b.test")
    done = crawl(urls, settings, timeout=150)
    assert sum("b.test" in page["url"] for page in done.arrived) == 200
    assert done.stat("ejections") == 0
    assert done.stat("penalties") == 0
    assert done.stat("outcome/blamed") == 0
    assert done.stat("outcome/ambiguous") > 20


def limited_site(farm):
    """A site where a.test lets every proxy fetch once in two seconds; who came too soon."""
    site = farm.site()
    fetched: dict[str, float] = {}
    refused: dict[str, float] = {}
    too_soon: list[str] = []

    def answer(request):
        if request.host != "a.test":
            return None
        via, now = request.via, time.monotonic()
        if now - refused.get(via, -9.0) < 2:
            too_soon.append(via)
        if now - fetched.get(via, -9.0) < 2:
            refused[via] = now
            return SiteResponse(429, headers=(("Retry-After", "2"),))
        fetched[via] = now
        return None

    for n in range(100):
        site.respond(f"/page/1?{n}", answer)
    return site, refused, too_soon


def test_retry_after_rests_the_proxy(farm, strategy, mode):
    site, refused, too_soon = limited_site(farm)
    settings = {
        **strategy,
        **listed(farm.many(3)),
        "SMOOTHPOOL_EJECT_AFTER": 0,
        "SMOOTHPOOL_RETRY_TIMES": 20,
        **mode,
    }
    urls = pages(site, 9, host="a.test")
    done = crawl([{"url": url} for url in urls], settings, spider="chain", timeout=150)
    assert len(done.arrived) == 9, done.failed
    assert refused
    assert too_soon == []


def test_a_rest_is_for_that_site_only(farm, strategy, mode):
    site, refused, _ = limited_site(farm)
    settings = {
        **strategy,
        **listed(farm.many(3)),
        "SMOOTHPOOL_EJECT_AFTER": 0,
        "SMOOTHPOOL_RETRY_TIMES": 50,
        **mode,
    }
    urls = [*pages(site, 9, host="a.test"), *pages(site, 300, host="b.test")]
    done = crawl(urls, settings, timeout=150)
    assert len(done.arrived) == 309, done.failed
    assert refused
    others = [hit for hit in site.hits if hit.host.startswith("b.test")]
    assert {hit.via for hit in others} == {"p0", "p1", "p2"}
    # While a.test rests for 2 s at a time, b.test goes on, however slow the machine.
    assert max(later.time - earlier.time for earlier, later in pairwise(others)) < 1.8
    first_rest = [hit.time for hit in site.hits if hit.host.startswith("a.test")][3]
    assert [hit for hit in others if first_rest < hit.time < first_rest + 1.8]


def test_a_refused_login_is_out_for_long_and_said_once(farm, strategy, mode):
    site = farm.site(tls=True)
    wrong = farm.proxy("wrong", logins=[("a", "b")])
    good = farm.many(3, "good")
    line = wrong.url_for("a", "expired")
    settings = {**strategy, "SMOOTHPOOL_PROXIES": [line, *(p.url for p in good)], **mode}
    done = crawl(
        pages(site, 30) + pages(site, 30, tls=True), {**settings, "CONCURRENT_REQUESTS": 1}
    )
    assert len(done.arrived) == 60
    assert len(wrong.hits) == 1
    # Workers that share a pool draw it out a little, each by another amount.
    said = re.findall(r"refused its login \(407\) and is out for (\d+) s", done.log)
    assert len(said) == 1
    assert 1800 <= int(said[0]) <= 1980
    assert done.stat("logins_refused") == 1


def test_many_late_failures_make_one_ejection(farm, strategy, mode):
    """Concurrency 16, one proxy that starts to hang: what comes back late changes nothing."""
    site = farm.site()
    hanging = farm.proxy("hang", behaviour=Hang())
    good = farm.proxy("good")
    settings = {
        **strategy,
        **listed([hanging, good]),
        "SMOOTHPOOL_MAX_FAILS": 1,
        "SMOOTHPOOL_EJECT_AFTER": 3,
        "DOWNLOAD_TIMEOUT": 2,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        **mode,
    }
    done = crawl(pages(site, 60), settings)
    assert len(done.arrived) == 60
    assert done.stat("ejections") == 1
    assert done.stat("outcome/stale") >= 4
    assert "is out for 30 s" in done.log or "is out for 3" in done.log


def test_the_way_back_is_one_probe_and_a_climb(farm, strategy, mode):
    site = farm.site()
    site.respond("/page/1", delay=0.02)
    sick = farm.proxy("sick", behaviour=first(4, Answer(403)))
    good = farm.many(3, "good")
    settings = {
        **strategy,
        **listed([sick, *good]),
        "SMOOTHPOOL_MAX_FAILS": 1,
        "SMOOTHPOOL_EJECT_AFTER": 3,
        "SMOOTHPOOL_EJECT_TIME": 1,
        "CONCURRENT_REQUESTS": 4,
        **mode,
    }
    done = crawl(pages(site, 900), settings, timeout=150)
    assert len(done.arrived) == 900
    # Three failures, one second out, the first probe fails, two seconds out, the next succeeds.
    kinds = [kind for kind, proxy, _ in done.signals if proxy == sick.url]
    assert kinds == ["proxy_ejected", "proxy_ejected", "proxy_restored"]
    assert re.search(r"out for 1(\.0\d?|\.1)? s", done.log)  # a shared pool's, up to 1.1 s
    times = [hit.time for hit in sick.hits]
    assert times[3] - times[2] >= 1.0
    assert times[4] - times[3] >= 2.0
    assert len(times) > 10


def test_everything_is_a_ban(farm, strategy, mode):
    """A rule that is always true: one warning, a walking pace, no empty pool."""
    site = farm.site()
    proxies = farm.many(10, behaviour=always(Answer(403)))
    settings = {**strategy, **listed(proxies), "SMOOTHPOOL_EJECT_TIME": 300, **mode}
    with Running(pages(site, 5000), settings) as running:
        running.wait_for("hardly anything gets through")
        time.sleep(1)
        seen = sum(len(p.hits) for p in proxies)
        time.sleep(4)
        more = sum(len(p.hits) for p in proxies) - seen
        running.interrupt()
        done = running.wait()
    assert done.log.count("hardly anything gets through, and no more") == 1
    assert 1 <= more <= 4 * 20 + 20
    assert done.stat("ejections") <= 5
    assert done.stat("panics") == 1


@pytest.mark.parametrize("on_empty", ["wait", "ignore", "close"])
def test_a_walking_pace_is_no_empty_pool(farm, strategy, on_empty):
    """Every page gets its tries and the site's own answer, however long it takes."""
    site = farm.site()
    proxies = farm.many(2, behaviour=always(Answer(403)))
    settings = {
        **strategy,
        **listed(proxies),
        "SMOOTHPOOL_ON_EMPTY": on_empty,
        "SMOOTHPOOL_EJECT_TIME": 300,
        "SMOOTHPOOL_RETRY_TIMES": 1,
        "RETRY_ENABLED": False,
    }
    done = crawl(pages(site, 40), settings, timeout=120)
    assert done.stat("panics") == 1
    assert done.finish_reason == "finished"
    errors = Counter(failure["error"] for failure in done.failed)
    assert errors == {"HttpError": 40}, done.failed
    assert [s for s in done.signals if s[0] == "pool_exhausted"] == []
    assert 40 < sum(len(p.hits) for p in proxies) <= 80


def test_a_ban_that_repeats_is_not_answered_at_once(farm, mode):
    site = farm.site()
    site.respond("/page/1", status=429)
    done = crawl(pages(site, 1), {**listed(farm.many(12)), "SMOOTHPOOL_EJECT_AFTER": 0, **mode})
    times = [hit.time for hit in site.hits]
    assert len(times) == 5 + 2 + 1
    assert times[-1] - times[0] > 3
    assert done.stat("retries") == 5


@pytest.mark.parametrize("answer", ["robots", 404, 204, 302])
def test_what_says_nothing_of_a_proxy(farm, strategy, mode, answer):
    site = farm.site()
    if answer == 302:
        site.respond("/page/1", status=302)
    elif answer != "robots":
        site.respond("/page/1", status=answer)
    settings = {**strategy, **listed(farm.many(2)), "HTTPERROR_ALLOW_ALL": True, **mode}
    settings["ROBOTSTXT_OBEY"] = answer == "robots"
    done = crawl(pages(site, 20), settings)
    assert len(done.arrived) == 20
    for name in ("ejections", "penalties", "retries", "outcome/banned", "outcome/ambiguous"):
        assert done.stat(name) == 0
    assert all(row[1:3] == ["1", "1"] and row[7:10] == ["0", "0", "0"] for row in done.table())


def test_half_of_the_answers_are_bans(farm, strategy):
    site = farm.site()
    proxies = [farm.proxy("half", behaviour=half(Answer(403))), *farm.many(3)]
    done = crawl(pages(site, 200), {**strategy, **listed(proxies)})
    assert len(done.arrived) == 200
    assert done.stat("ejections") == 0
