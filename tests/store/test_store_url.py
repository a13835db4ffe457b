from __future__ import annotations

import pytest

from scrapy_smoothpool.exceptions import SettingsError
from scrapy_smoothpool.store.connection import RedisConnection, validate_url
from scrapy_smoothpool.store.url import mask, parse_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "localhost:6379/0"),
        ("redis://localhost:6380/3", "localhost:6380/3"),
        ("redis://localhost/?db=4", "localhost:6379/4"),
        ("redis://localhost/4?db=4", "localhost:6379/4"),
        ("REDIS://Example.com/", "example.com:6379/0"),
        ("redis://[::1]:7000/1", "[::1]:7000/1"),
        ("redis://user:p%40ss@h:1/0", "h:1/0"),
        ("redis://:pw@h", "h:6379/0"),
        ("rediss://h?ssl_cert_reqs=none&ssl_check_hostname=False", "h:6379/0"),
        ("unix:///run/redis.sock?db=2", "/run/redis.sock/2"),
        ("unix://user:pw@/run/redis.sock", "/run/redis.sock/0"),
        ("redis://h?protocol=3&decode_responses=True&max_connections=4", "h:6379/0"),
        ("redis://h?socket_timeout=2.5&timeout=3&client_name=me", "h:6379/0"),
        ("redis://my_redis:6379", "my_redis:6379/0"),
    ],
)
def test_accepted(url: str, shown: str) -> None:
    validate_url(url)
    assert RedisConnection(url).describe() == shown


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("localhost:6379", "scheme"),
        ("localhost", "scheme"),
        ("http://localhost", "scheme"),
        ("valkey://localhost", "scheme"),
        ("redis+sentinel://h/mymaster", "scheme"),
        ("redis://", "host"),
        ("redis:///0", "host"),
        ("redis://:6379", "host"),
        ("redis://a:1,b:2/0", "host or port"),
        ("redis://a,b/0", "host"),
        ("redis://h:abc", "host or port"),
        ("redis://h:70000", "host or port"),
        ("redis://h:0", "port 0"),
        ("redis://[::1", "host or port"),
        ("redis://h/abc", "database must be a number"),
        ("redis://h/-1", "database must be a number"),
        ("redis://h/1/2", "database must be a number"),
        ("redis://h/1?db=2", "two different databases"),
        ("redis://h?db=x", "option db: expected a whole number"),
        ("redis://h?colour=red", "unknown option"),
        ("redis://h?retry_on_timeout=True", "unknown option"),
        ("redis://h?ssl_cert_reqs=none", "needs rediss://"),
        ("redis://h?socket_timeout=0", "expected seconds above 0"),
        ("redis://h?socket_timeout=soon", "socket_timeout: expected a number"),
        ("redis://h?max_connections=0", "above 0"),
        ("redis://h?protocol=4", "expected 2 or 3"),
        ("redis://h?decode_responses=perhaps", "True or False"),
        ("redis://h#x", "%23"),
        ("unix://", "absolute"),
        ("unix://run/redis.sock", "absolute"),
    ],
)
def test_refused_with_the_setting_and_the_accepted_form(url: str, fault: str) -> None:
    with pytest.raises(SettingsError) as caught:
        validate_url(url)
    text = str(caught.value)
    assert fault in text
    assert "SMOOTHPOOL_REDIS_URL" in text
    assert "redis://[[user]:password@]host[:port][/database]" in text


@pytest.mark.parametrize(
    "url",
    [
        "redis://us3r:s3cret@h/abc",
        "redis://:s3cret@h:abc",
        "redis://:s3/s3cret@h/0",
        "redis://:s3#s3cret@h/0",
        "redis://:s3?s3cret@h/0",
        "redis://:s3@s3cret@h/x",
        "redis://:s3cret",
        "redis://us3r:s3cret",
        "us3r:s3cret@h:6379",
        "us3r:s3cret",
        "s3cret",
        "http://us3r:s3cret@h",
        "redis://h/abc?password=s3cret&username=us3r",
        "redis://h?passwort=s3cret",
        "redis://h?s3cret=1",
        "redis://us3r:s3cret[@h",
        "unix://us3r:s3cret@",
        "unix://us3r:s3cret",
        "unix://us3r:s3cret@run/x.sock?password=s3cret",
        "redis://h:s3cret/0",
    ],
)
def test_no_refusal_shows_the_login(url: str) -> None:
    assert "s3" not in mask(url)
    with pytest.raises(SettingsError) as caught:
        validate_url(url)
    assert "s3" not in str(caught.value)
    assert "us3r" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_mask_keeps_what_helps() -> None:
    assert mask("redis://u:p@example.com:6379/0?db=1") == "redis://***@example.com:6379/0?…"
    assert mask("redis://example.com/abc") == "redis://example.com/abc"


def test_a_checked_url_does_not_show_its_login() -> None:
    address = parse_url("redis://us3r:s3cret@h/0?client_name=me")
    assert "s3" not in f"{address} {address!r}"
    assert address.options["password"] == "s3cret"


def test_the_login_is_percent_decoded() -> None:
    options = parse_url("redis://a%3Ab:p%40s%2Fs@h").options
    assert (options["username"], options["password"]) == ("a:b", "p@s/s")
