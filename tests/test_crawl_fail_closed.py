"""Is there any way for a request to reach the site from our own address?

Every test asks for a real crawl and looks at what the site saw.
"""

from __future__ import annotations

import pytest

from crawl import DEFAULTS, crawl
from farm import Answer, Hang, always
from farm.redis_server import RedisServer
from test_refusals import FILES, GOOD, MIDDLEWARE

EXTENSION = "scrapy_smoothpool.SmoothPoolExtension"
BY_HAND = {"ADDONS": {}, "DOWNLOADER_MIDDLEWARES": {MIDDLEWARE: 610}}


@pytest.fixture(scope="module")
def redis_url():
    with RedisServer() as server:
        yield server.url


def refused(site, settings, *expected, **options):
    """The crawl ends with exit status 1 and says why; the site saw nothing."""
    done = crawl([f"{site.url}/page/1"], settings, **options)
    assert done.exit_code == 1, done.log[-3000:]
    assert site.hits == []
    assert done.arrived == []
    last = done.log.strip().splitlines()[-1]
    for text in expected:
        assert text in last, last
    return done


def both(redis_url):
    return [
        {"SMOOTHPOOL_STRATEGY": "smooth_wrr"},
        {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": redis_url},
    ]


@pytest.mark.parametrize("strategy", [0, 1], ids=["smooth_wrr", "least_used"])
@pytest.mark.parametrize("kind", ["missing", "comments", "bad"])
def test_bad_file(farm, redis_url, tmp_path, strategy, kind):
    path = tmp_path / "proxies.txt"
    content = FILES[kind]
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    settings = both(redis_url)[strategy]
    refused(
        farm.site(),
        {**settings, "SMOOTHPOOL_PROXIES_FILE": str(path)},
        "SMOOTHPOOL_PROXIES_FILE",
        str(path),
    )


@pytest.mark.parametrize("strategy", [0, 1], ids=["smooth_wrr", "least_used"])
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"SMOOTHPOOL_PROXIES": []}, ["SMOOTHPOOL_PROXIES", "empty"]),
        ({"SMOOTHPOOL_PROXIES": [None, ""]}, ["SMOOTHPOOL_PROXIES", "None"]),
        ({"SMOOTHPOOL_STRATEGY": "fastest"}, ["SMOOTHPOOL_STRATEGY", "'fastest'"]),
        ({"SMOOTHPOOL_MAX_FAIL": 3}, ["SMOOTHPOOL_MAX_FAIL", "SMOOTHPOOL_MAX_FAILS"]),
        ({"SMOOTHPOOL_PROXIES_FILE": "proxies.txt"}, ["SMOOTHPOOL_PROXIES_FILE", "both"]),
        ({"DOWNLOADER_MIDDLEWARES": {MIDDLEWARE: 760}}, ["760", "HttpProxyMiddleware", "610"]),
    ],
    ids=["empty", "none", "strategy", "misspelt", "both", "behind"],
)
def test_bad_setting(farm, redis_url, strategy, settings, says):
    """Many more of them in test_refusals, without a crawl."""
    base = {**both(redis_url)[strategy], "SMOOTHPOOL_PROXIES": [GOOD]}
    refused(farm.site(), {**base, **settings}, *says)


def test_setting_absent(farm):
    refused(farm.site(), {}, "SMOOTHPOOL_PROXIES", "SMOOTHPOOL_PROXIES_FILE")


def test_redis_url_missing(farm):
    settings = {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_PROXIES": [GOOD]}
    refused(farm.site(), settings, "SMOOTHPOOL_REDIS_URL", "redis://")


def test_redis_down_at_start(farm):
    with RedisServer() as server:
        url = server.url
    for proxies in ({"SMOOTHPOOL_PROXIES": [GOOD]}, {}):
        settings = {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": url, **proxies}
        refused(farm.site(), settings, "SMOOTHPOOL_REDIS_URL")


def test_redis_that_does_not_answer_at_start(farm):
    with RedisServer() as server:
        server.pause()
        settings = {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": server.url}
        done = refused(farm.site(), settings, "SMOOTHPOOL_REDIS_URL")
        server.resume()
    assert done.seconds < 15


def test_least_used_refuses_unequal_weights(farm, redis_url):
    settings = both(redis_url)[1]
    weights = {GOOD: 2, "http://127.0.0.1:10": 1}
    refused(
        farm.site(), {**settings, "SMOOTHPOOL_PROXIES": weights}, "unequal weights", "least_used"
    )


def test_least_used_needs_asyncio(farm, redis_url):
    settings = {
        **both(redis_url)[1],
        "TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor",
    }
    refused(farm.site(), {**settings, "SMOOTHPOOL_PROXIES": [GOOD]}, "asyncio", "TWISTED_REACTOR")


def test_smooth_wrr_works_without_asyncio(farm):
    site, proxy = farm.site(), farm.proxy("a")
    settings = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
    done = crawl([f"{site.url}/page/1"], {**settings, "SMOOTHPOOL_PROXIES": [proxy.url]})
    assert done.proxies == [proxy.url]
    assert site.direct == []


@pytest.mark.parametrize("policy", ["wait", "ignore", "close"])
def test_empty_shared_pool_and_no_list(farm, redis_url, mode, policy):
    site = farm.site()
    settings = {
        **both(redis_url)[1],
        "SMOOTHPOOL_POOL": f"nobody-{policy}",
        "SMOOTHPOOL_ON_EMPTY": policy,
        "SMOOTHPOOL_WAIT_TIMEOUT": 2,
    }
    done = crawl([f"{site.url}/page/{n}" for n in range(5)], {**settings, **mode})
    assert site.hits == []
    assert done.arrived == []
    assert "the pool is empty" in done.log
    assert {failure["error"] for failure in done.failed} <= {"PoolExhausted"}
    if policy == "close":
        assert done.finish_reason == "smoothpool_exhausted"
        assert done.seconds < 10
    else:
        assert len(done.failed) == 5
        assert done.finish_reason == "finished"
    ((kind, _, reason),) = done.signals
    assert kind == "pool_exhausted"
    assert reason.startswith("the pool is empty: no worker has published a list")
    assert done.log.count("has no proxy for a request") == 1


def test_extension_without_its_middleware(farm):
    settings = {
        "ADDONS": {},
        "EXTENSIONS": {**DEFAULTS["EXTENSIONS"], EXTENSION: 0},
        "SMOOTHPOOL_PROXIES": [GOOD],
    }
    refused(farm.site(), settings, "SmoothPoolExtension", "SmoothPoolMiddleware", "610")


def test_custom_settings_do_not_drop_the_addon(farm):
    site, proxy = farm.site(), farm.proxy("a")
    done = crawl([f"{site.url}/page/1"], {"SMOOTHPOOL_PROXIES": [proxy.url]}, spider="custom")
    assert done.proxies == [proxy.url]
    assert site.direct == []


def test_custom_settings_that_drop_the_middleware_stop_the_crawl_where_the_extension_stands(farm):
    settings = {**BY_HAND, "EXTENSIONS": {**DEFAULTS["EXTENSIONS"], EXTENSION: 0}}
    settings["SMOOTHPOOL_PROXIES"] = [GOOD]
    refused(farm.site(), settings, "custom_settings", spider="custom")


def test_middleware_alone_brings_its_companion(farm, mode):
    site, proxy = farm.site(), farm.proxy("a")
    done = crawl([f"{site.url}/page/1"], {**BY_HAND, "SMOOTHPOOL_PROXIES": [proxy.url], **mode})
    assert done.proxies == [proxy.url]
    assert site.direct == []
    assert len(done.table()) == 1


def test_the_users_own_order_wins_over_the_addon(farm):
    settings = {"DOWNLOADER_MIDDLEWARES": {MIDDLEWARE: 742}, "SMOOTHPOOL_PROXIES": [GOOD]}
    site = farm.site()
    done = crawl(
        [f"{site.url}/page/1"], {**settings, "SMOOTHPOOL_RETRY_TIMES": 1, "RETRY_TIMES": 0}
    )
    assert done.exit_code == 0
    assert site.hits == []
    assert done.stat("retries") == 1


def test_switched_off_on_request(farm):
    site = farm.site()
    done = crawl([f"{site.url}/page/1"], {"SMOOTHPOOL_ENABLED": False})
    assert len(done.arrived) == len(site.direct) == 1
    assert "SMOOTHPOOL_ENABLED is False" in done.log


@pytest.mark.parametrize("strategy", [0, 1], ids=["smooth_wrr", "least_used"])
def test_single_requests_that_may_not_go_out(farm, redis_url, mode, strategy):
    site, proxy = farm.site(), farm.proxy("a")
    other = farm.proxy("pinned")
    url = f"{site.url}/page/1"
    requests = [
        {"url": url, "meta": {"proxy": ""}},
        {"url": url, "meta": {"proxy": "  "}},
        {"url": "ftp://127.0.0.1/file"},
        {"url": "s3://bucket/key"},
        {"url": f"{site.url}/page/2", "meta": {"smoothpool": False}},
        {"url": f"{site.url}/page/3", "meta": {"proxy": None}},
        {"url": f"{site.url}/page/4", "meta": {"proxy": other.url}},
        {"url": "data:,hello"},
        {"url": f"{site.url}/page/5"},
    ]
    done = crawl(
        requests,
        {**both(redis_url)[strategy], "SMOOTHPOOL_PROXIES": [proxy.url], **mode},
    )
    assert sorted(failure["error"] for failure in done.failed) == ["UnsupportedRequest"] * 4
    assert all("smoothpool" in failure["message"] for failure in done.failed)
    assert sorted(hit.path for hit in site.direct) == ["/page/2", "/page/3"]
    assert [hit.path for hit in site.hits if hit.via == "pinned"] == ["/page/4"]
    assert [hit.path for hit in site.hits if hit.via == "a"] == ["/page/5"]
    assert done.stat("bypassed") == 1
    assert done.stat("pinned") == 2
    assert done.stat("refused") == 4
    assert done.stat("assigned") == 1


def test_environment_proxies_do_not_replace_the_pool(farm):
    site, proxy = farm.site(), farm.proxy("a")
    other = farm.proxy("environment")
    environment = {"http_proxy": other.url, "no_proxy": "127.0.0.1"}
    done = crawl(
        [f"{site.url}/page/1"], {"SMOOTHPOOL_PROXIES": [proxy.url]}, environment=environment
    )
    assert done.proxies == [proxy.url]
    assert [hit.via for hit in site.hits] == ["a"]


def test_meta_copied_from_a_response_pins_nothing(farm):
    site = farm.site()
    proxies = farm.many(3)
    urls = [f"{site.url}/page/{n}" for n in range(1, 10)]
    done = crawl(
        urls[:1],
        {"SMOOTHPOOL_PROXIES": [p.url for p in proxies], "METACOPY_DETECTION_ENABLED": False},
        spider="copymeta",
        extra={"next": urls[1:]},
    )
    assert len(done.arrived) == 9
    assert set(done.counts.values()) == {3}
    assert done.stat("pinned") == 0


ROBOTS = "User-agent: *\nDisallow: /page/1\n"


def test_robots_goes_through_the_pool(farm, mode):
    site, proxy = farm.site(robots=ROBOTS), farm.proxy("a")
    urls = [f"{site.url}/page/{n}" for n in (1, 2, 10, 20)]
    done = crawl(urls, {"ROBOTSTXT_OBEY": True, "SMOOTHPOOL_PROXIES": [proxy.url], **mode})
    # All four wait for the same robots.txt, of which Scrapy itself heeds it for the first alone.
    assert sorted(page["url"] for page in done.arrived) == sorted([urls[1], urls[3]])
    assert site.direct == []
    assert [failure["error"] for failure in done.failed] == ["IgnoreRequest"] * 2


@pytest.mark.parametrize(
    "bad",
    [Answer(403), Answer(407), Hang(), Answer(429), Answer(503)],
    ids=["403", "407", "nothing", "429", "503"],
)
def test_disallowed_page_stays_uncrawled_when_first_proxies_fail(farm, mode, bad):
    site = farm.site(robots=ROBOTS)
    proxies = [*farm.many(3, "bad", behaviour=always(bad)), farm.proxy("good")]
    urls = [f"{site.url}/page/1", f"{site.url}/page/2"]
    settings = {
        "ROBOTSTXT_OBEY": True,
        "SMOOTHPOOL_PROXIES": [p.url for p in proxies],
        "SMOOTHPOOL_RETRY_TIMES": 4,
        "DOWNLOAD_TIMEOUT": 1,
    }
    done = crawl(urls, {**settings, **mode})
    assert [page["url"] for page in done.arrived] == urls[1:]
    assert [hit.path for hit in site.hits if hit.path == "/page/1"] == []
    assert done.stats["robotstxt/forbidden"] == 1
    assert site.direct == []


@pytest.mark.parametrize("bad", [Answer(407), None], ids=["407", "refused"])
def test_no_robots_to_be_had_means_that_the_page_waits(farm, mode, bad):
    """Scrapy takes a robots.txt that could not be had for "no rules"."""
    site = farm.site(robots=ROBOTS)
    proxies = [farm.proxy(f"bad{n}", behaviour=bad, listening=bad is not None) for n in range(2)]
    urls = [f"{site.url}/page/1", f"{site.url}/page/2"]
    settings = {
        "ROBOTSTXT_OBEY": True,
        "SMOOTHPOOL_PROXIES": [p.url for p in proxies],
        "SMOOTHPOOL_EJECT_TIME": 60,
        "SMOOTHPOOL_RETRY_TIMES": 0,
        "RETRY_ENABLED": False,
        "SMOOTHPOOL_WAIT_TIMEOUT": 3,
    }
    done = crawl(urls, {**settings, **mode}, timeout=200)
    assert done.arrived == []
    assert [failure["error"] for failure in done.failed] == ["PoolExhausted"] * 2, done.failed
    assert "robots.txt" in done.failed[0]["message"]
    assert site.hits == []
    assert done.stat("robots_waits") > 0


def test_media_requests_go_through_the_pool(farm, mode, tmp_path):
    site, proxy = farm.site(), farm.proxy("a")
    settings = {
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "FILES_STORE": str(tmp_path / "files"),
        "SMOOTHPOOL_PROXIES": [proxy.url],
    }
    done = crawl(
        [f"{site.url}/page/{n}" for n in range(1, 4)], {**settings, **mode}, spider="files"
    )
    assert done.stats["file_count"] == 3
    assert {hit.via for hit in site.hits} == {"a"}


def test_media_and_download_async_get_no_direct_request_from_an_empty_pool(
    farm, mode, redis_url, tmp_path
):
    site = farm.site()
    urls = [f"{site.url}/page/{n}" for n in range(1, 4)]
    settings = {
        **both(redis_url)[1],
        "SMOOTHPOOL_POOL": "nobody",
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "FILES_STORE": str(tmp_path / "files"),
    }
    done = crawl(urls, {**settings, **mode}, spider="files")
    assert site.hits == []
    assert "PoolExhausted" in done.log
    done = crawl(urls, {**settings, **mode}, spider="download_async")
    assert site.hits == []
    assert [failure["error"] for failure in done.failed] == ["PoolExhausted"] * 3
    assert "download_async" in done.failed[0]["message"]


def test_download_async_goes_through_the_pool(farm, mode):
    site = farm.site()
    bad, good = farm.proxy("bad", behaviour=Answer(403)), farm.proxy("good")
    urls = [f"{site.url}/page/{n}" for n in range(1, 6)]
    settings = {"SMOOTHPOOL_PROXIES": [bad.url, good.url]}
    done = crawl(urls, {**settings, **mode}, spider="download_async")
    assert [page["status"] for page in done.arrived] == [200] * 5
    assert {hit.via for hit in site.hits} == {"good"}


def test_crawls_that_end_leave_no_pool_behind(farm):
    """Pool not open: whatever asks gets an error, never a direct request."""
    site, proxy = farm.site(), farm.proxy("a")
    done = crawl([f"{site.url}/page/1"], {"SMOOTHPOOL_PROXIES": [proxy.url]}, python=["-X", "dev"])
    assert done.exit_code == 0
    for word in ("ResourceWarning", "never awaited", "Traceback"):
        assert word not in done.log
