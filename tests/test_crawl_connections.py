"""Are connections closed where that was asked for, kept where not, and is no trace left of it?"""

from __future__ import annotations

import pytest
import scrapy

from crawl import REACTORLESS, crawl
from farm import Answer, first
from farm.redis_server import RedisServer

_HANDLERS = "scrapy.core.downloader.handlers."
HANDLERS = {
    "http11": _HANDLERS + "http11.HTTP11DownloadHandler",
    "httpx": _HANDLERS + "_httpx.HttpxDownloadHandler",
    "aiohttp": _HANDLERS + "_aiohttp.AiohttpDownloadHandler",
}
# By Scrapy's version, not by what is installed: a library that is missing has to fail.
COMBINATIONS = [("http11", "reactor"), ("httpx", "reactor")]
if scrapy.version_info >= (2, 19):
    COMBINATIONS += [("aiohttp", "reactorless")]

CLOSE = {"SMOOTHPOOL_CONNECTION_CLOSE": True}


@pytest.fixture(params=COMBINATIONS, ids="-".join)
def handler(request) -> dict[str, object]:
    """Settings of each download handler, and of each way of running Scrapy."""
    name, mode = request.param
    settings = {"DOWNLOAD_HANDLERS": dict.fromkeys(("http", "https"), HANDLERS[name])}
    return {**settings, **(REACTORLESS if mode == "reactorless" else {})}


def run(requests, settings, spider="headers", **options):
    own = {"SPIDER_MODULES": ["connection_spiders"]}
    done = crawl(requests, {**own, **settings}, spider=spider, **options)
    assert done.exit_code == 0, done.log[-4000:]
    return done


def both(site, count):
    """As many plain pages as pages by TLS."""
    urls = [f"{url}/page/{n}" for n in range(1, count + 1) for url in (site.url, site.tls_url)]
    return sorted(urls, key=lambda url: url.startswith("https"))


def sent_close(hits):
    """For each hit whether its ``Connection`` header says close."""
    return [
        any(
            name.lower() == "connection" and "close" in value.lower() for name, value in hit.headers
        )
        for hit in hits
    ]


# Gateways


@pytest.mark.parametrize("how", ["setting", "line"])
def test_a_gateway_gives_as_many_exits_as_requests(farm, handler, how):
    site = farm.site(tls=True)
    gateway = farm.proxy("gateway", rotating=True)
    line = gateway.line + (" close=yes" if how == "line" else "")
    settings = {"SMOOTHPOOL_PROXIES": [line], **handler, **(CLOSE if how == "setting" else {})}
    done = run(both(site, 8), settings)
    assert len(done.arrived) == 16
    exits = [hit.via for hit in site.hits]
    assert len(exits) == len(set(exits)) == 16
    assert site.direct == []


def test_without_it_requests_share_exits(farm, handler):
    site = farm.site(tls=True)
    gateway = farm.proxy("gateway", rotating=True)
    settings = {"SMOOTHPOOL_PROXIES": [gateway.line], **handler}
    done = run(both(site, 8), settings, spider="headers_chain")
    assert len(done.arrived) == 16
    assert len({hit.via for hit in site.hits}) == 2  # one plain, one tunnel


def test_a_list_may_mix_gateways_with_proxies_that_keep_their_connection(farm, handler):
    site = farm.site(tls=True)
    gateway, plain = farm.proxy("gateway", rotating=True), farm.proxy("plain")
    lines = [f"{gateway.line} close=yes", plain.line]
    done = run(both(site, 16), {"SMOOTHPOOL_PROXIES": lines, **handler}, spider="headers_chain")
    assert len(done.arrived) == 32
    assert done.counts == {gateway.line: 16, plain.line: 16}
    exits = [hit.via for hit in site.hits if hit.via != "plain"]
    assert len(exits) == len(set(exits)) == 16
    assert plain.connections_total == 2


def test_each_login_of_a_gateway_is_asked_with_its_own_line(farm, handler):
    site = farm.site(tls=True)
    gateway = farm.proxy("gateway", rotating=True, logins={"sticky": "a", "rotating": "b"})
    sticky, rotating = gateway.urls
    lines = [sticky, f"{rotating} close=yes"]
    urls = [url for url in both(site, 8) if url.startswith("https")] * 2
    done = run(urls, {"SMOOTHPOOL_PROXIES": lines, **handler}, spider="headers_chain")
    assert len(done.arrived) == 16
    exits = [{h.via for h in site.hits if h.login == login} for login in ("sticky", "rotating")]
    assert [len(found) for found in exits] == [1, 8]


def test_a_worker_that_joins_without_a_list_knows_which_proxies_are_gateways(farm):
    site = farm.site(tls=True)
    gateway = farm.proxy("gateway", rotating=True)
    with RedisServer() as server:
        shared = {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": server.url}
        run([site.url], {**shared, "SMOOTHPOOL_PROXIES": [f"{gateway.line} close=yes"]})
        done = run(both(site, 4), shared, spider="headers_chain")
    assert len(done.arrived) == 8
    exits = [hit.via for hit in site.hits]
    assert len(exits) == len(set(exits)) == 9


# Idle connections


class Watched:
    """A site that counts, at each request, the connections open at all proxies."""

    def __init__(self, farm, count):
        self.most = 0
        self.proxies = [farm.proxy() for _ in range(count)]
        self.site = farm.site(self.count, tls=True)

    @property
    def lines(self):
        return [proxy.line for proxy in self.proxies]

    def count(self, request):
        self.most = max(self.most, sum(proxy.connections for proxy in self.proxies))


@pytest.mark.parametrize("bound", [0, 5, None], ids=["close", "bound", "free"])
def test_idle_connections_are_bounded(farm, handler, bound):
    watched = Watched(farm, 12)
    own = {5: {"SMOOTHPOOL_MAX_IDLE_CONNECTIONS": 5}, 0: CLOSE, None: {}}[bound]
    settings = {"SMOOTHPOOL_PROXIES": watched.lines, **own, **handler}
    done = run(both(watched.site, 36), settings, spider="headers_chain")
    assert len(done.arrived) == 72
    assert set(done.counts.values()) == {6}
    total = sum(proxy.connections_total for proxy in watched.proxies)
    if bound is None:
        assert watched.most == total == 24
    else:
        # One is under way; the one before may still be closing.
        assert bound < watched.most <= bound + 3
        assert total == 72 - 2 * bound  # and those that are kept are used again


@pytest.mark.parametrize(
    ("line", "more", "warned"),
    [
        ("", {}, True),
        ("", CLOSE, False),
        ("", {"SMOOTHPOOL_MAX_IDLE_CONNECTIONS": 50}, False),
        (" close=yes", {}, False),
    ],
)
def test_more_connections_than_files_are_pointed_out_at_start(line, more, warned):
    lines = [f"http://127.0.0.1:{port}{line}" for port in range(1, 201)]
    done = run([], {"SMOOTHPOOL_PROXIES": lines, **more}, spider="few_files")
    assert ("only 200 files" in done.log) is warned


# Nothing stays behind


def test_the_header_is_gone_when_the_outcome_is_there(farm, handler):
    site = farm.site(tls=True)
    proxy = farm.proxy("p")
    urls = both(site, 2)
    done = run(urls, {"SMOOTHPOOL_PROXIES": [proxy.line], **CLOSE, **handler})
    assert [page["connection"] for page in done.arrived] == [""] * 4
    assert not any("_smoothpool" in key for page in done.arrived for key in page["meta"])
    assert all(sent_close(hit for hit in proxy.hits if hit.kind == "plain"))
    assert sent_close(hit for hit in site.hits if hit.tls) == [True, True]


@pytest.mark.parametrize("fault", [Answer(403), Answer(503), None], ids=["ban", "503", "refused"])
def test_a_retry_through_another_proxy_does_not_carry_it(farm, fault):
    site = farm.site()
    gateway, plain = farm.proxy("gateway", behaviour=fault), farm.proxy("plain")
    if fault is None:
        gateway.stop()
    lines = [f"{gateway.line} close=yes", plain.line]
    done = run([f"{site.url}/page/1"], {"SMOOTHPOOL_PROXIES": lines})
    assert done.attempts == {f"{site.url}/page/1": [gateway.line, plain.line]}
    assert all(sent_close(gateway.hits))
    assert sent_close(plain.hits) == [False]
    assert done.arrived[0]["connection"] == ""


def test_a_redirect_through_another_proxy_does_not_carry_it(farm):
    site = farm.site()
    gateway, plain = farm.proxy("gateway"), farm.proxy("plain")
    lines = [f"{gateway.line} close=yes", plain.line]
    done = run([f"{site.url}/redirect?to=/page/1"], {"SMOOTHPOOL_PROXIES": lines})
    assert [page["url"] for page in done.arrived] == [f"{site.url}/page/1"]
    assert sent_close(gateway.hits) == [True]
    assert sent_close(plain.hits) == [False]


def test_direct_and_pinned_requests_are_left_alone(farm, handler):
    site = farm.site()
    pool, own = farm.proxy("pool"), farm.proxy("own")
    requests = [
        f"{site.url}/page/1",
        {"url": f"{site.url}/page/2", "meta": {"proxy": None}},
        {"url": f"{site.url}/page/3", "meta": {"smoothpool": False}},
        {"url": f"{site.url}/page/4", "meta": {"proxy": own.url}},
    ]
    done = run(requests, {"SMOOTHPOOL_PROXIES": [pool.line], **CLOSE, **handler})
    assert len(done.arrived) == 4
    assert sent_close(pool.hits) == [True]
    assert sent_close(own.hits) == [False]
    assert len(site.direct) == 2
    assert sent_close(site.direct) == [False, False]


def test_the_http_cache_stores_no_trace_of_it(farm, tmp_path):
    site = farm.site()
    proxy = farm.proxy("p")
    settings = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path)}
    url = f"{site.url}/page/1"
    settings |= {"SMOOTHPOOL_PROXIES": [proxy.line], **CLOSE}
    done = run([url, url], settings, spider="headers_chain")
    stored = [path.read_bytes() for path in tmp_path.rglob("request_headers")]
    assert sorted(page["flags"] for page in done.arrived) == [[], ["cached"]]
    assert len(stored) == 1
    assert b"User-Agent" in stored[0]
    assert b"Connection" not in stored[0]
    assert sent_close(proxy.hits) == [True]


# The user's own


def test_a_header_of_the_users_is_honoured_and_said_once(farm):
    site = farm.site()
    proxy = farm.proxy("p")
    kept, closed = {"Connection": "keep-alive"}, {"Connection": "close"}
    headers = [kept, kept, closed, {}]
    requests = [{"url": f"{site.url}/page/{n}", "headers": own} for n, own in enumerate(headers, 1)]
    settings = {"SMOOTHPOOL_PROXIES": [proxy.line], **CLOSE}
    done = run(requests, settings, spider="headers_chain")
    assert sent_close(proxy.hits) == [False, False, True, True]
    assert [page["connection"] for page in done.arrived] == ["keep-alive"] * 2 + ["close", ""]
    assert done.log.count("a Connection header of its own") == 1


def test_one_request_can_ask_by_itself(farm):
    site = farm.site(tls=True)
    gateway = farm.proxy("gateway", rotating=True)
    own = {"Connection": "close"}
    requests = [{"url": url, "headers": own} for url in both(site, 4)]
    done = run(requests, {"SMOOTHPOOL_PROXIES": [gateway.line]})
    assert len(done.arrived) == 8
    assert "a Connection header of its own" not in done.log
    assert len({hit.via for hit in site.hits}) == 8


def test_failures_give_their_place_back(farm):
    """A bound that counted failed connections for ever would end in closing every one."""
    site = farm.site()
    proxy = farm.proxy("p", behaviour=first(4, Answer(503)))
    settings = {
        "SMOOTHPOOL_PROXIES": [proxy.line],
        "SMOOTHPOOL_MAX_IDLE_CONNECTIONS": 1,
        "SMOOTHPOOL_EJECT_AFTER": 0,
        "RETRY_ENABLED": False,
        "SMOOTHPOOL_RETRY_TIMES": 0,
    }
    urls = [f"{site.url}/page/{n}" for n in range(1, 11)]
    run(urls, settings, spider="headers_chain")
    assert len(proxy.hits) == 10
    assert sent_close(proxy.hits) == [False] * 10
