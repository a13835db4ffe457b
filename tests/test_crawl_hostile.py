"""What was found by people who set out to break it, each under the name of its symptom."""

from __future__ import annotations

import time

import pytest

from crawl import Running, crawl
from farm import Answer, Close, Garbage, SiteResponse, always, chain, first, matching
from farm.redis_server import RedisServer

USER, SECRET = "us3rn4me", "S3CR3T"


@pytest.fixture
def redis():
    with RedisServer() as server:
        yield server


def listed(proxies, **more):
    return {"SMOOTHPOOL_PROXIES": [p.url for p in proxies], **more}


@pytest.mark.parametrize("action", [Answer(407), Answer(502), Garbage(), Close()], ids=repr)
def test_no_login_in_the_error_of_a_refused_tunnel(farm, mode, action):
    """aiohttp puts the proxy's URL, login and all, into its errors."""
    site = farm.site(tls=True)
    proxies = farm.many(2, behaviour=action, login=(USER, SECRET))
    settings = listed(proxies, SMOOTHPOOL_RETRY_TIMES=1, RETRY_TIMES=1, DOWNLOAD_TIMEOUT=1, **mode)
    done = crawl([f"{site.tls_url}/page/{n}" for n in range(1, 4)], settings)
    assert len(done.failed) == 3
    for word in (USER, SECRET):
        assert word not in done.log
        assert word not in str(done.result)


ODD = ["//", "@", "http://", "http:///", "http://@", "https://", "direct://", "socks5://", "\t"]
ODD += [0, 0.0, [], {}, False, 7]


@pytest.mark.parametrize("enabled", [True, False])
def test_an_odd_proxy_of_the_users_is_refused(farm, mode, enabled):
    """Handlers take some of these for "no proxy"."""
    site = farm.site()
    requests = [
        {"url": f"{site.url}/page/1?{n}", "meta": {"proxy": value}} for n, value in enumerate(ODD)
    ]
    settings = listed([farm.proxy("a")], HTTPPROXY_ENABLED=enabled, **mode)
    done = crawl(requests, settings)
    assert site.hits == []
    assert [failure["error"] for failure in done.failed] == ["UnsupportedRequest"] * len(ODD)


def test_closing_ends_waits_without_a_scheduler(farm, redis, mode):
    """``engine.download_async`` would take a returned request straight back, for ever."""
    site = farm.site()
    settings = {
        "SMOOTHPOOL_STRATEGY": "least_used",
        "SMOOTHPOOL_REDIS_URL": redis.url,
        **mode,
    }
    urls = [f"{site.url}/page/{n}" for n in range(1, 20)]
    with Running(urls, settings, spider="download_async") as running:
        running.wait_for("has no proxy for a request")
        asked = time.monotonic()
        running.interrupt()
        done = running.wait(30)
    assert running.started + done.seconds - asked < 4
    assert site.hits == []


ROBOTS = "User-agent: *\nDisallow: /page\n"


def robots_settings(proxies, mode):
    return listed(
        proxies,
        ROBOTSTXT_OBEY=True,
        SMOOTHPOOL_EJECT_AFTER=0,
        SMOOTHPOOL_RETRY_TIMES=0,
        RETRY_ENABLED=False,
        SMOOTHPOOL_WAIT_TIMEOUT=3,
        **mode,
    )


@pytest.mark.parametrize("target", ["/other/robots.txt", "/rules", "/robots.txt?v=1"])
def test_robots_that_redirects_to_where_proxies_fail(farm, mode, target):
    site = farm.site()
    site.respond("/robots.txt", status=301, headers=(("Location", f"http://b.test:80{target}"),))
    failing = matching(lambda hit: "b.test" in hit.target, Answer(407))
    done = crawl([f"{site.url}/page/1"], robots_settings(farm.many(2, behaviour=failing), mode))
    assert [hit.path for hit in site.hits if hit.path.startswith("/page")] == []
    assert done.arrived == []


def test_robots_answered_with_503_by_the_proxies(farm, mode):
    site = farm.site(robots=ROBOTS)
    proxies = farm.many(3, behaviour=first(9, Answer(503)))
    settings = {**robots_settings(proxies, mode), "SMOOTHPOOL_WAIT_TIMEOUT": 60}
    done = crawl([f"{site.url}/page/1"], settings, timeout=120)
    assert [hit.path for hit in site.hits if hit.path.startswith("/page")] == []
    assert [failure["error"] for failure in done.failed] == ["IgnoreRequest"]


def test_robots_that_redirects_and_arrives(farm, mode):
    site = farm.site()
    site.respond("/robots.txt", status=302, headers=(("Location", "/rules"),))
    site.respond("/rules", body=ROBOTS)
    urls = [f"{site.url}/page/1", f"{site.url}/status/200"]
    done = crawl(urls, robots_settings(farm.many(2), mode))
    assert [page["url"] for page in done.arrived] == urls[1:]


def test_a_dead_host_with_robots_obeyed_makes_no_storm(farm, mode):
    site = farm.site(tls=True)
    proxies = farm.many(3)
    settings = {**robots_settings(proxies, mode), "SMOOTHPOOL_WAIT_TIMEOUT": 8}
    urls = [f"https://dead{n}.invalid/" for n in range(2)]
    done = crawl([*urls, f"{site.url}/page/1"], settings, timeout=120)
    assert len(done.arrived) == 1
    assert len(done.failed) == 2
    connects = sum(hit.kind == "connect" for proxy in proxies for hit in proxy.hits)
    assert connects < 2 * 40


@pytest.mark.parametrize(("name", "number"), [("DropsProxy", 700), ("EmptiesProxy", 760)])
def test_a_middleware_that_takes_the_proxy_away(farm, mode, name, number):
    site = farm.site()
    middlewares = {f"spiders.{name}": number}
    settings = listed(farm.many(2), DOWNLOADER_MIDDLEWARES=middlewares, **mode)
    done = crawl([f"{site.url}/page/{n}" for n in range(1, 7)], settings)
    assert site.direct == []
    assert len(done.arrived) == 6
    assert "has lost its proxy" in done.log


def test_failures_that_a_cache_covers_up_are_booked(farm, mode, tmp_path):
    """RFC2616Policy answers from a stale page when the download fails."""
    site = farm.site()
    for n in range(30):
        site.respond(f"/page/1?{n}", body="x", headers=(("Cache-Control", "max-age=0"),))
    proxies = farm.many(3)
    settings = listed(
        proxies,
        HTTPCACHE_ENABLED=True,
        HTTPCACHE_POLICY="scrapy.extensions.httpcache.RFC2616Policy",
        HTTPCACHE_DIR=str(tmp_path / "cache"),
        HTTPCACHE_ALWAYS_STORE=True,
        CONCURRENT_REQUESTS=2,
        **mode,
    )
    urls = [f"{site.url}/page/1?{n}" for n in range(30)]
    assert len(crawl(urls, settings).arrived) == 30
    proxies[0].stop()
    done = crawl(urls, settings)
    assert len(done.arrived) == 30
    assert done.stats["httpcache/errorrecovery"] > 0
    failures = {row[0]: int(row[7]) + int(row[8]) for row in done.table()}
    assert failures[proxies[0].url] > 3
    assert failures[proxies[1].url] == failures[proxies[2].url] == 0


def test_the_limit_of_fetches_holds_when_a_page_varies(farm, mode):
    site = farm.site()
    statuses = iter([403] * 5 + [500] + [403] * 5 + [500] + [403] * 50)
    site.respond("/page/1", lambda request: SiteResponse(next(statuses)))
    done = crawl([f"{site.url}/page/1"], listed(farm.many(10), SMOOTHPOOL_EJECT_AFTER=0, **mode))
    assert len(site.hits) <= 5 + 2 + 1
    assert len(done.arrived) + len(done.failed) <= 1


def test_a_constant_500_goes_round_the_proxies(farm):
    site = farm.site()
    site.respond("/page/1", status=500)
    heavy, *light = farm.many(3)
    weights = {heavy.url: 10, light[0].url: 1, light[1].url: 1}
    done = crawl([f"{site.url}/page/1"], {"SMOOTHPOOL_PROXIES": weights})
    (ids,) = done.attempts.values()
    assert len(set(ids)) == 3


def test_proxies_that_left_the_list_do_not_count(farm, redis, mode):
    """Worker 1 lists four; another publishes two, which then refuse for a while."""
    site = farm.site()
    site.respond("/page/1", delay=0.1)
    old, new = farm.many(4, "old"), farm.many(2, "new")
    shared = {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": redis.url, **mode}
    urls = [f"{site.url}/page/1?{n}" for n in range(400)]
    settings = {**shared, **listed(old), "CONCURRENT_REQUESTS": 4, "SMOOTHPOOL_EJECT_TIME": 60}
    with Running(urls, settings) as running:
        farm.wait_until(lambda: len(site.hits) > 20, 30)
        crawl([], {**shared, **listed(new)})
        farm.wait_until(lambda: any(hit.via in ("new0", "new1") for hit in site.hits), 30)
        for proxy in new:
            proxy.stop()
        time.sleep(2)
        for proxy in new:
            proxy.start()
        done = running.wait(60)
    assert len(done.arrived) == 400
    assert done.stat("ejections") <= 1


def test_a_file_waits_out_a_pause_before_its_next_try(farm, mode, tmp_path):
    """Requests without a scheduler may not wait long for a proxy; a backoff is not such a wait."""
    site, proxy = farm.site(), farm.proxy("only", behaviour=first(4, Answer(403)))
    settings = listed(
        [proxy],
        ITEM_PIPELINES={"scrapy.pipelines.files.FilesPipeline": 1},
        FILES_STORE=str(tmp_path / "files"),
        **mode,
    )
    done = crawl([f"{site.url}/page/1"], settings, spider="files")
    assert done.stats.get("file_status_count/downloaded") == 1


@pytest.mark.parametrize("where", ["EXTENSIONS", "DOWNLOADER_MIDDLEWARES"])
def test_the_addon_in_the_wrong_setting(farm, where):
    site = farm.site()
    settings = {"ADDONS": {}, where: {"scrapy_smoothpool.Addon": 500}}
    done = crawl([f"{site.url}/page/1"], {**settings, **listed([farm.proxy("a")])})
    assert done.exit_code == 1
    assert "ADDONS" in done.log.strip().splitlines()[-1]
    assert site.hits == []


def test_a_policy_that_fails_is_said_once(farm):
    site = farm.site()
    settings = listed([farm.proxy("a")], SMOOTHPOOL_OUTCOME_POLICY="spiders.ForgetfulPolicy")
    done = crawl([f"{site.url}/page/{n}" for n in range(1, 10)], settings)
    assert len(done.arrived) == 9
    assert done.log.count("Traceback") == 1
    assert done.stat("policy_errors") == 9


def test_the_command_line_replaces_the_projects_list(farm):
    site, proxy = farm.site(), farm.proxy("a")
    listed_elsewhere = {"SMOOTHPOOL_PROXIES_FILE": "/nowhere/list.txt"}
    arguments = ["-s", f'SMOOTHPOOL_PROXIES={{"127.0.0.1:{proxy.port}": 3}}']
    done = crawl([f"{site.url}/page/1"], listed_elsewhere, arguments=arguments)
    assert done.proxies == [proxy.url]
    assert done.table()[0][1] == "3"


def test_what_failed_is_in_the_log_and_the_table(farm, mode):
    site = farm.site()
    dead = farm.proxy("dead", listening=False)
    banned = farm.proxy("banned", behaviour=chain(always(Answer(403))))
    proxies = [dead, banned, *farm.many(2)]
    done = crawl([f"{site.url}/page/1?{n}" for n in range(60)], listed(proxies, **mode))
    assert len(done.arrived) == 60
    rows = {row[0]: " ".join(row[10:]) for row in done.table()}
    assert "ConnectionRefused" in rows[dead.url]
    assert rows[banned.url] == "out: status 403"
    assert "the last a banned: status 403" in done.log
