"""Is everything that cannot be right refused when the crawler is built, with a helpful word?"""

from __future__ import annotations

import json

import pytest
from scrapy.utils.test import get_crawler

from farm.redis_server import RedisServer
from scrapy_smoothpool import SmoothPoolMiddleware
from scrapy_smoothpool.exceptions import SettingsError

MIDDLEWARE = "scrapy_smoothpool.SmoothPoolMiddleware"
GOOD = "http://127.0.0.1:9"  # nobody listens there; it is only ever parsed


HTTP2 = {
    "DOWNLOAD_HANDLERS": {"https": "scrapy.core.downloader.handlers._httpx.HttpxDownloadHandler"},
    "HTTPX_HTTP2_ENABLED": True,
}


@pytest.fixture(scope="module")
def redis_url():
    with RedisServer() as server:
        yield server.url


@pytest.fixture(params=["smooth_wrr", "least_used"])
def strategy(request) -> dict[str, object]:
    if request.param == "smooth_wrr":
        return {"SMOOTHPOOL_STRATEGY": "smooth_wrr"}
    url = request.getfixturevalue("redis_url")
    return {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": url}


def build(settings) -> SmoothPoolMiddleware:
    addon = {"ADDONS": {"scrapy_smoothpool.Addon": 500}}
    return SmoothPoolMiddleware.from_crawler(get_crawler(settings_dict={**addon, **settings}))


def refused(settings, *says):
    with pytest.raises(SettingsError) as caught:
        build(settings)
    for text in says:
        assert text in str(caught.value)


FILES = {
    "missing": None,
    "comments": "# one\n# two\n",
    "blank": "\n\n",
    "bad": "not a proxy\nhttp://:80\n",
    "utf16": "http://192.0.2.1:80\n".encode("utf-16"),
}


@pytest.mark.parametrize("kind", FILES)
def test_bad_file(strategy, tmp_path, kind):
    path = tmp_path / "proxies.txt"
    content = FILES[kind]
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    name = "SMOOTHPOOL_PROXIES_FILE"
    refused({**strategy, name: str(path)}, name, str(path))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "empty"),
        ({}, "empty"),
        ("", "SMOOTHPOOL_PROXIES"),
        ([None], "None"),
        ([GOOD, None, ""], "2"),
        ([GOOD, ""], "2"),
        ([GOOD, 7], "2"),
        (7, "int"),
        ({GOOD: -1}, "weight"),
        ({GOOD: 1.5}, "weight"),
        (["nonsense"], "SMOOTHPOOL_PROXIES"),
    ],
    ids=repr,
)
def test_bad_list(strategy, value, says):
    refused({**strategy, "SMOOTHPOOL_PROXIES": value}, "SMOOTHPOOL_PROXIES", says)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"SMOOTHPOOL_STRATEGY": "fastest"}, ["SMOOTHPOOL_STRATEGY", "'fastest'", '"smooth_wrr"']),
        ({"SMOOTHPOOL_STRATEGY": "json.JSONDecoder"}, ["SMOOTHPOOL_STRATEGY", "pick"]),
        ({"SMOOTHPOOL_STRATEGY": "no.such.Class"}, ["SMOOTHPOOL_STRATEGY", "imported"]),
        ({"SMOOTHPOOL_MAX_FAIL": 3}, ["SMOOTHPOOL_MAX_FAIL", "SMOOTHPOOL_MAX_FAILS"]),
        ({"SMOTHPOOL_STRATEGY": "x"}, ["SMOTHPOOL_STRATEGY", "SMOOTHPOOL_STRATEGY"]),
        ({"SMOOTHPOOL_MAX_FAILS": 0}, ["SMOOTHPOOL_MAX_FAILS", "0", "at least 1"]),
        ({"SMOOTHPOOL_EJECT_AFTER": 3}, ["SMOOTHPOOL_EJECT_AFTER", "SMOOTHPOOL_MAX_FAILS"]),
        ({"SMOOTHPOOL_EJECT_TIME": -1}, ["SMOOTHPOOL_EJECT_TIME", "-1", "seconds"]),
        ({"SMOOTHPOOL_PENALTY": "harsh"}, ["SMOOTHPOOL_PENALTY", "'harsh'", '"nginx"']),
        ({"SMOOTHPOOL_ON_EMPTY": "direct"}, ["SMOOTHPOOL_ON_EMPTY", "'direct'", '"wait"']),
        ({"SMOOTHPOOL_SHUFFLE": "maybe"}, ["SMOOTHPOOL_SHUFFLE", "'maybe'", "True or False"]),
        ({"SMOOTHPOOL_SCOPE": "host"}, ["SMOOTHPOOL_SCOPE", "'host'", '"pool" or "site"']),
        ({"SMOOTHPOOL_CONNECTION_CLOSE": 3}, ["SMOOTHPOOL_CONNECTION_CLOSE", "True or False"]),
        (
            {"SMOOTHPOOL_MAX_IDLE_CONNECTIONS": -1},
            ["SMOOTHPOOL_MAX_IDLE_CONNECTIONS", "-1", "at least 0"],
        ),
        (
            {"SMOOTHPOOL_MAX_IDLE_CONNECTIONS": 5, "SMOOTHPOOL_CONNECTION_CLOSE": True},
            ["SMOOTHPOOL_MAX_IDLE_CONNECTIONS is 5", "SMOOTHPOOL_CONNECTION_CLOSE", "one of"],
        ),
        (
            {"SMOOTHPOOL_MAX_IDLE_CONNECTION": 5},
            ["SMOOTHPOOL_MAX_IDLE_CONNECTION", "SMOOTHPOOL_MAX_IDLE_CONNECTIONS"],
        ),
        ({**HTTP2, "SMOOTHPOOL_CONNECTION_CLOSE": True}, ["HTTPX_HTTP2_ENABLED", "CLOSE"]),
        ({**HTTP2, "SMOOTHPOOL_MAX_IDLE_CONNECTIONS": 5}, ["HTTPX_HTTP2_ENABLED", "MAX_IDLE"]),
        (
            {**HTTP2, "SMOOTHPOOL_PROXIES": [GOOD + " close=yes"]},
            ["HTTPX_HTTP2_ENABLED", "close=yes of http://127.0.0.1:9"],
        ),
        ({"SMOOTHPOOL_REPORT": "x.json"}, ["SMOOTHPOOL_REPORT", "not available"]),
        ({"SMOOTHPOOL_OUTCOME_POLICY": "no.such"}, ["SMOOTHPOOL_OUTCOME_POLICY"]),
        ({"SMOOTHPOOL_PROXIES_FILE": "proxies.txt"}, ["SMOOTHPOOL_PROXIES_FILE", "both"]),
        (
            {"DOWNLOADER_MIDDLEWARES": {MIDDLEWARE: 760}},
            ["760", "before HttpProxyMiddleware (750)", "610"],
        ),
        (
            {"DOWNLOADER_MIDDLEWARES": {MIDDLEWARE: 540}},
            ["540", "after RedirectMiddleware (600)", "610"],
        ),
        (
            {
                "DOWNLOADER_MIDDLEWARES": {
                    "scrapy.downloadermiddlewares.httpproxy.HttpProxyMiddleware": None
                },
                "SMOOTHPOOL_PROXIES": ["http://user:pw@127.0.0.1:9"],
            },
            ["HttpProxyMiddleware", "750"],
        ),
        (
            {"HTTPPROXY_ENABLED": False, "SMOOTHPOOL_PROXIES": ["http://u:pw@127.0.0.1:9"]},
            ["HTTPPROXY_ENABLED"],
        ),
        ({"SMOOTHPOOL_PROXIES": ["socks5://127.0.0.1:9"]}, ["socks5", "HttpxDownloadHandler"]),
        ({"SMOOTHPOOL_PROXIES": ["https://127.0.0.1:9"]}, ["cannot use https proxies"]),
        ({"SMOOTHPOOL_PROXIES": ["http://[::1]:9"]}, ["CachingHostnameResolver"]),
        ({"SMOOTHPOOL_PROXIES": ["http://a_b.example:9"]}, ['"_"', "AiohttpDownloadHandler"]),
        (
            {"SMOOTHPOOL_PROXIES": ["http://ivan:пароль@127.0.0.1:9"]},
            ["HTTPPROXY_AUTH_ENCODING", "utf-8"],
        ),
        (
            {"DOWNLOAD_HANDLERS": {"https": "test_refusals.H2DownloadHandler"}},
            ["H2DownloadHandler"],
        ),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_bad_setting(strategy, settings, says):
    refused({**strategy, "SMOOTHPOOL_PROXIES": [GOOD], **settings}, *says)


def test_good_settings_are_taken_as_text_too(strategy, redis_url):
    """``-s NAME=VALUE`` gives every value as text."""
    more = {
        "SMOOTHPOOL_PROXIES": '["http://127.0.0.1:9", "http://127.0.0.1:10"]',
        "SMOOTHPOOL_MAX_FAILS": "4",
        "SMOOTHPOOL_EJECT_AFTER": "9",
        "SMOOTHPOOL_EJECT_TIME": "1.5",
        "SMOOTHPOOL_SHUFFLE": "false",
        "SMOOTHPOOL_WEIGHT_SCALE": "auto",
        "SMOOTHPOOL_STATS_PER_PROXY": "1",
        "SMOOTHPOOL_MAX_IDLE_CONNECTIONS": "200",
        "SMOOTHPOOL_CONNECTION_CLOSE": "no",
    }
    settings = build({**strategy, **more})._settings
    assert settings.max_fails == 4
    assert settings.eject_after == 9
    assert settings.eject_time == 1.5
    assert settings.shuffle is False
    assert settings.weight_scale is None
    assert settings.stats_per_proxy is True
    assert settings.max_idle_connections == 200
    assert settings.connection_close is False


def test_none_means_unset(strategy):
    refused({**strategy, "SMOOTHPOOL_PROXIES": [GOOD], "SMOOTHPOOL_PROXIES_FILE": "x"}, "both")
    build({**strategy, "SMOOTHPOOL_PROXIES": [GOOD], "SMOOTHPOOL_PROXIES_FILE": None})


def test_redis_url_beside_an_in_process_strategy_is_pointed_out(caplog):
    build({"SMOOTHPOOL_PROXIES": [GOOD], "SMOOTHPOOL_REDIS_URL": "redis://127.0.0.1:1"})
    assert "SMOOTHPOOL_REDIS_URL is set, but" in caplog.text


@pytest.mark.parametrize(("timeout", "warned"), [(61, True), (60, False), (180, True)])
def test_long_timeouts_are_pointed_out(caplog, timeout, warned):
    build({"SMOOTHPOOL_PROXIES": [GOOD], "DOWNLOAD_TIMEOUT": timeout})
    assert ("DOWNLOAD_TIMEOUT is" in caplog.text) is warned


def test_unknown_handler_is_pointed_out(caplog):
    handlers = {"http": "test_refusals.OtherHandler"}
    build({"SMOOTHPOOL_PROXIES": [GOOD], "DOWNLOAD_HANDLERS": handlers})
    assert "OtherHandler for http" in caplog.text


class OtherHandler:
    lazy = True


class H2DownloadHandler:
    """Named as Scrapy's own, which needs a further package to be imported."""

    lazy = True


def test_handler_that_cannot_be_loaded():
    handlers = {"http": "no.such.Handler"}
    refused({"SMOOTHPOOL_PROXIES": [GOOD], "DOWNLOAD_HANDLERS": handlers}, "no.such.Handler")


def test_the_secret_is_in_no_refusal(redis_url):
    for settings in (
        {"SMOOTHPOOL_PROXIES": ["http://bob:S3CR3T@127.0.0.1:99999"]},
        {"SMOOTHPOOL_PROXIES": ["http://bob:S3CR3T@[::1]:9"]},
        {"SMOOTHPOOL_PROXIES": "bob:S3CR3T"},
        {"SMOOTHPOOL_PROXIES": {"http://bob:S3CR3T@127.0.0.1:9": "x"}},
        {"SMOOTHPOOL_PROXIES": [GOOD], "HTTPPROXY_ENABLED": False, "SMOOTHPOOL_REDIS_URL": 5},
        {
            "SMOOTHPOOL_PROXIES": [GOOD],
            "SMOOTHPOOL_STRATEGY": "least_used",
            "SMOOTHPOOL_REDIS_URL": "redis://bob:S3CR3T@127.0.0.1:1/0",
        },
        {
            "SMOOTHPOOL_PROXIES": [GOOD],
            "SMOOTHPOOL_STRATEGY": "least_used",
            "SMOOTHPOOL_REDIS_URL": "http://bob:S3CR3T@127.0.0.1:1/0",
        },
    ):
        with pytest.raises(SettingsError) as caught:
            build(settings)
        assert "S3CR3T" not in str(caught.value)
        assert "S3CR3T" not in repr(caught.value.__cause__ or "")
        assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"SMOOTHPOOL_ON_REDIS_DOWN": "direct"}, '"wait" or "local" or "close"'),
        ({"SMOOTHPOOL_ON_REDIS_DOWN": ""}, '"wait" or "local" or "close"'),
        ({"SMOOTHPOOL_REDIS_START_TIMEOUT": -1}, "seconds, 0 or more"),
        ({"SMOOTHPOOL_REDIS_START_TIMEOUT": "soon"}, "seconds, 0 or more"),
        ({"SMOOTHPOOL_REDIS_PARAMS": "S3CR3T"}, "a dict such as"),
        ({"SMOOTHPOOL_REDIS_PARAMS": ["S3CR3T"]}, "a dict such as"),
        ({"SMOOTHPOOL_REDIS_PARAMS": '["S3CR3T"]'}, "a dict such as"),
        ({"SMOOTHPOOL_REDIS_PARAMS": {"pasword": "S3CR3T"}}, "option 'pasword' is unknown"),
        ({"SMOOTHPOOL_REDIS_PARAMS": {"db": "S3CR3T"}}, "option db: expected a whole number"),
    ],
)
def test_a_bad_setting_for_redis_names_itself(redis_url, settings, says):
    base = {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_REDIS_URL": redis_url}
    with pytest.raises(SettingsError) as caught:
        build({**base, "SMOOTHPOOL_PROXIES": [GOOD], **settings})
    assert next(iter(settings)) in str(caught.value)
    assert says in str(caught.value)
    assert "S3CR3T" not in str(caught.value)


def test_options_for_redis_may_be_json(redis_url):
    build(
        {
            "SMOOTHPOOL_STRATEGY": "least_used",
            "SMOOTHPOOL_REDIS_URL": redis_url,
            "SMOOTHPOOL_PROXIES": [GOOD],
            "SMOOTHPOOL_REDIS_PARAMS": json.dumps({"client_name": "me", "socket_timeout": 2}),
        }
    )


def test_the_redis_of_scrapy_redis_is_a_fallback(redis_url, caplog):
    base = {"SMOOTHPOOL_PROXIES": [GOOD], "REDIS_URL": redis_url}
    build({**base, "SMOOTHPOOL_STRATEGY": "least_used"})
    # Beside an in-process strategy it is somebody else's, and nobody is told.
    build(base)
    assert "REDIS_URL" not in caplog.text
    own = {**base, "SMOOTHPOOL_STRATEGY": "least_used", "REDIS_URL": "redis://127.0.0.1:1"}
    build({**own, "SMOOTHPOOL_REDIS_URL": redis_url})
    refused(own, "REDIS_URL cannot be used")


def test_a_start_that_may_wait_is_not_refused_for_a_redis_that_is_away():
    settings = {
        "SMOOTHPOOL_STRATEGY": "least_used",
        "SMOOTHPOOL_REDIS_URL": "redis://127.0.0.1:1",
        "SMOOTHPOOL_PROXIES": [GOOD],
    }
    refused(settings, "SMOOTHPOOL_REDIS_START_TIMEOUT = seconds")
    build({**settings, "SMOOTHPOOL_REDIS_START_TIMEOUT": 5})
