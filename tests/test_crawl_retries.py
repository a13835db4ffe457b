"""Does a page that met a bad proxy arrive by another one, and never at any price?"""

from __future__ import annotations

import itertools

import pytest

from crawl import crawl
from farm import Answer, Close, Garbage, Reset, always, first


def settings(proxies, **more):
    return {"SMOOTHPOOL_PROXIES": [p.url for p in proxies], **more}


def pages(site, count):
    return [
        {"url": f"{site.url}/page/{n}", "headers": {"X-Tag": str(n)}} for n in range(1, count + 1)
    ]


def test_five_dead_and_one_good(farm, mode):
    site = farm.site()
    refusing = farm.many(3, "refuse", listening=False)
    closing = farm.many(2, "close", behaviour=Close())
    good = farm.proxy("good")
    proxies = [*refusing, *closing, good]
    done = crawl(pages(site, 50), settings(proxies, RETRY_TIMES=2, **mode))
    assert len(done.arrived) == 50, done.log[-3000:]
    assert done.failed == []
    assert set(done.proxies) == {good.url}
    assert site.direct == []
    for url, ids in done.attempts.items():
        assert len(ids) == len(set(ids)), (url, ids)


def test_five_dead_and_one_good_over_https(farm, mode):
    site = farm.site(tls=True)
    dead = [farm.proxy("refuse", listening=False), farm.proxy("bad", behaviour=Answer(502))]
    dead.append(farm.proxy("busy", behaviour=Answer(503)))
    good = farm.proxy("good")
    urls = [f"{site.tls_url}/page/{n}" for n in range(1, 31)]
    done = crawl(urls, settings([*dead, good], RETRY_TIMES=2, **mode))
    assert len(done.arrived) == 30, done.log[-3000:]
    assert set(done.proxies) == {good.url}
    assert site.direct == []


def test_page_banned_everywhere_costs_a_bounded_number_of_fetches(farm, mode):
    site = farm.site()
    site.respond("/page/1", status=403)
    site.respond("/page/2", status=429)
    proxies = farm.many(12)
    more = {"SMOOTHPOOL_RETRY_TIMES": 3, "RETRY_TIMES": 2, "SMOOTHPOOL_EJECT_AFTER": 0}
    done = crawl(pages(site, 2), settings(proxies, **more, **mode))
    fetches = {n: sum(hit.path == f"/page/{n}" for hit in site.hits) for n in (1, 2)}
    # 403 is not in RETRY_HTTP_CODES, 429 is; each of Scrapy's retries gets one fetch.
    assert fetches == {1: 3 + 1, 2: 3 + 2 + 1}
    for ids in done.attempts.values():
        assert len(ids) == len(set(ids))
    assert done.stat("retries") == 6


def test_default_budget_holds(farm):
    site = farm.site()
    site.respond("/page/1", status=429)
    done = crawl(pages(site, 1), settings(farm.many(20), SMOOTHPOOL_EJECT_AFTER=0))
    assert len(site.hits) == 5 + 2 + 1
    assert done.stat("retries_spent") == 3


def test_dont_retry_is_honoured(farm):
    site = farm.site()
    site.respond("/page/1", status=403)
    request = {"url": f"{site.url}/page/1", "meta": {"dont_retry": True}}
    done = crawl([request], settings(farm.many(3)))
    assert len(site.hits) == 1
    assert done.stat("outcome/banned") == 1


def test_a_pool_of_one_is_tried_again_after_a_pause(farm, mode):
    site = farm.site()
    proxy = farm.proxy("only")
    proxy.behaviour = first(3, Answer(403))
    done = crawl(pages(site, 1), settings([proxy], **mode))
    assert [page["status"] for page in done.arrived] == [200]
    times = [hit.time for hit in proxy.hits]
    assert len(times) == 4
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert all(gap >= least for gap, least in zip(gaps, (0.2, 0.45, 0.9), strict=True)), gaps


def test_with_two_proxies_never_the_same_twice_in_a_row(farm):
    site = farm.site()
    site.respond("/page/1", status=403)
    proxies = farm.many(2)
    done = crawl(pages(site, 1), settings(proxies, SMOOTHPOOL_EJECT_AFTER=0))
    (ids,) = done.attempts.values()
    assert len(ids) == 6
    assert all(a != b for a, b in itertools.pairwise(ids)), ids


def test_budget_is_fresh_after_a_redirect(farm):
    site = farm.site()
    bad = farm.many(3, "bad", behaviour=always(Answer(403)))
    good = farm.proxy("good")
    urls = [f"{site.url}/redirect?to=/page/{n}" for n in range(1, 9)]
    done = crawl(urls, settings([*bad, good], SMOOTHPOOL_RETRY_TIMES=3, SMOOTHPOOL_EJECT_AFTER=0))
    assert len(done.arrived) == 8
    assert done.stat("retries_spent") == 0
    assert all("_smoothpool_tries" not in page["meta"] for page in done.arrived)


@pytest.mark.parametrize("action", [Reset(), Garbage(), Answer(407), Answer(504)], ids=repr)
def test_other_ways_to_fail(farm, mode, action):
    site = farm.site()
    bad, good = farm.proxy("bad", behaviour=action), farm.proxy("good")
    done = crawl(pages(site, 6), settings([bad, good], **mode))
    assert [page["status"] for page in done.arrived] == [200] * 6
    assert set(done.proxies) == {good.url}


def test_bans_are_not_cached(farm, tmp_path):
    """A cached 403 would answer every retry."""
    site = farm.site()
    bad, good = farm.proxy("bad", behaviour=Answer(403)), farm.proxy("good")
    cache = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path / "cache")}
    done = crawl(pages(site, 6), settings([bad, good], **cache))
    assert [page["status"] for page in done.arrived] == [200] * 6
    again = crawl(pages(site, 6), settings([bad, good], **cache))
    assert all("cached" in page["flags"] for page in again.arrived)
    assert all("dont_cache" not in page["meta"] for page in done.arrived)


def test_not_found_is_nobodys_fault(farm, mode):
    site = farm.site()
    urls = [f"{site.url}/nowhere/{n}" for n in range(20)]
    done = crawl(urls, settings(farm.many(2), HTTPERROR_ALLOW_ALL=True, **mode))
    assert [page["status"] for page in done.arrived] == [404] * 20
    assert done.stat("outcome/neutral") == 20
    assert done.stat("penalties") == done.stat("ejections") == 0
    assert len(site.hits) == 20
