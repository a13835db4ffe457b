"""Are proxies that share a gateway told apart, and do logins go where they belong alone?"""

from __future__ import annotations

import base64
from importlib.util import find_spec

import pytest

from crawl import crawl
from farm import Answer, matching

# What the default handler without a reactor sends logins in, whatever is set: aiohttp's latin-1,
# or httpx's UTF-8 where Scrapy has no aiohttp handler yet.
HAS_AIOHTTP = find_spec("scrapy.core.downloader.handlers._aiohttp") is not None
STREAMING = ("latin-1", "utf-8") if HAS_AIOHTTP else ("utf-8", "latin-1")


def pages(site, count):
    return [f"{site.url}/page/{n}" for n in range(1, count + 1)]


def of_login(row_or_id: str, gateway) -> bool:
    return row_or_id.startswith(f"http://127.0.0.1:{gateway.port}#")


def test_three_logins_on_one_gateway_and_one_of_them_banned(farm, mode):
    site = farm.site()
    gateway = farm.proxy("gateway", logins={"one": "pw1", "two": "pw2", "three": "pw3"})
    gateway.behaviour = matching(lambda hit: hit.login == "two", Answer(403))
    done = crawl(
        pages(site, 300),
        {
            "SMOOTHPOOL_PROXIES": gateway.urls,
            "SMOOTHPOOL_STATS_PER_PROXY": True,
            "SMOOTHPOOL_EJECT_AFTER": 0,
            **mode,
        },
    )
    assert len(done.arrived) == 300
    assert site.direct == []
    rows = done.table()
    assert len(rows) == 3
    assert all(of_login(row[0], gateway) for row in rows)
    effective = [float(row[2]) for row in rows]
    assert effective[0] == effective[2] == 1
    assert effective[1] < 1
    failures = [int(row[7]) for row in rows]
    assert failures[0] == failures[2] == 0
    assert failures[1] > 0
    assert all(done.counts[rows[n][0]] >= 0.45 * 300 for n in (0, 2))
    assert len([key for key in done.stats if key.startswith("smoothpool/proxy/")]) == 3 * 5


def test_a_password_alone_tells_two_entries_apart(farm):
    site = farm.site()
    logins = [("one", "pw1"), ("two", "pw2"), ("three", "session-1"), ("three", "session-2")]
    gateway = farm.proxy("gateway", logins=logins)
    done = crawl(pages(site, 40), {"SMOOTHPOOL_PROXIES": gateway.urls})
    rows = done.table()
    assert len({row[0] for row in rows}) == 4
    assert [int(row[3]) for row in rows] == [10] * 4
    used = {(hit.login, hit.password) for hit in gateway.hits}
    assert used == set(logins)


@pytest.mark.parametrize(
    "login",
    [
        ("user", "p@ss"),
        ("us er", "a#b%c:d"),
        ("user%40x", "%25"),
        ("u+1", "p+w=&?;"),
        ("KEY", ""),
        ("jörg", "größe"),
    ],
    ids=lambda login: login[0],
)
def test_the_login_arrives_as_it_was_written(farm, mode, login):
    site = farm.site(tls=True)
    proxy = farm.proxy("a", login=login)
    url = proxy.url
    encoding = STREAMING[0] if mode else "utf-8"
    more = {"HTTPPROXY_AUTH_ENCODING": encoding}
    urls = [f"{site.url}/page/1", f"{site.tls_url}/page/2"]
    done = crawl(urls, {"SMOOTHPOOL_PROXIES": [url], **more, **mode})
    assert [page["status"] for page in done.arrived] == [200, 200], done.log[-2000:]
    header = f"{login[0]}:{login[1]}"
    for hit in proxy.hits:
        sent = {k.lower(): v for k, v in hit.headers}["proxy-authorization"]
        assert base64.b64decode(sent.split()[1]).decode(encoding) == header


def test_slash_in_a_login_works_on_http11_and_is_refused_elsewhere(farm):
    site = farm.site()
    proxy = farm.proxy("a", login=("user", "a/b"))
    settings = {"SMOOTHPOOL_PROXIES": [proxy.url]}
    assert len(crawl(pages(site, 1), settings).arrived) == 1
    done = crawl(pages(site, 1), {**settings, "TWISTED_REACTOR_ENABLED": False})
    assert done.exit_code == 1
    assert 'logins with "/"' in done.log


def test_an_encoding_that_the_handler_ignores_is_refused(farm):
    settings = {
        "SMOOTHPOOL_PROXIES": [farm.proxy("a", login=("jörg", "x")).url],
        "HTTPPROXY_AUTH_ENCODING": STREAMING[1],
        "TWISTED_REACTOR_ENABLED": False,
    }
    done = crawl([farm.site().url], settings)
    assert done.exit_code == 1
    assert "HTTPPROXY_AUTH_ENCODING" in done.log.splitlines()[-1]


def authorizations(hits) -> set[str]:
    return {
        value for hit in hits for name, value in hit.headers if name.lower().startswith("proxy-")
    }


def test_no_login_reaches_another_proxy_or_the_site(farm, mode):
    """Plain, CONNECT, and a redirect from http to https, with retries in between."""
    site = farm.site(tls=True)
    site.respond("/to-tls", status=302, headers=(("Location", f"{site.tls_url}/echo"),))
    first = farm.proxy("first", login=("alice", "wonder"))
    second = farm.proxy("second", login=("bob", "builder"))
    third = farm.proxy("open")
    banning = farm.proxy("banning", login=("carol", "king"), behaviour=Answer(403))
    proxies = [first, second, third, banning]
    urls = [f"{site.url}/echo?{n}" for n in range(12)]
    urls += [f"{site.tls_url}/echo?{n}" for n in range(12)]
    urls += [f"{site.url}/to-tls?{n}" for n in range(12)]
    done = crawl(
        urls,
        {"SMOOTHPOOL_PROXIES": [p.url for p in proxies], "SMOOTHPOOL_EJECT_AFTER": 0, **mode},
    )
    assert len(done.arrived) == 36
    assert site.direct == []
    assert authorizations(site.hits) == set()
    for proxy in proxies:
        mine = {user for user, _ in proxy.logins} or {None}
        assert {hit.login for hit in proxy.hits} == mine
        assert len(authorizations(proxy.hits)) == len(proxy.logins)


def test_a_users_own_proxy_header_is_left_alone(farm):
    """DEFAULT_REQUEST_HEADERS may authenticate a pool without logins."""
    site = farm.site()
    proxy = farm.proxy("a", login=("user", "pw"))
    header = "Basic " + base64.b64encode(b"user:pw").decode()
    done = crawl(
        pages(site, 3),
        {
            "SMOOTHPOOL_PROXIES": [f"http://127.0.0.1:{proxy.port}"],
            "DEFAULT_REQUEST_HEADERS": {"Proxy-Authorization": header},
        },
    )
    assert len(done.arrived) == 3
    assert authorizations(site.hits) == set()
