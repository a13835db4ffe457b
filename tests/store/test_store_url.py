from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scrapy_smoothpool.exceptions import SettingsError
from scrapy_smoothpool.store.connection import RedisConnection, validate_url
from scrapy_smoothpool.store.url import mask, parse_url

if TYPE_CHECKING:
    from pathlib import Path


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
        ("valkey://h/2", "h:6379/2"),
        ("valkeys://h", "h:6379/0"),
        ("redis+sentinel://a,b:1/shop", "shop/0 (Sentinel a:26379,b:1)"),
        ("redis+sentinel://u:p@a/shop?db=2&sentinel_password=s", "shop/2 (Sentinel a:26379)"),
        ("rediss+sentinel://a/shop/3?ssl_cert_reqs=none", "shop/3 (Sentinel a:26379)"),
        ("redis+cluster://a:7000,[::1]:7001", "cluster a:7000,[::1]:7001"),
        ("valkeys+cluster://u:p@a", "cluster a:6379"),
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
        ("valkey+unix:///run/redis.sock", "scheme"),
        ("redis+sentinel:/h/mymaster", "host"),
        ("redis+sentinel://h", "name by which the Sentinels know"),
        ("redis+sentinel://h/?db=1", "name by which the Sentinels know"),
        ("redis+sentinel://h/shop/x", "database must be a number"),
        ("redis+sentinel://h:1,:2/shop", "a host is missing"),
        ("redis+sentinel://h:1,,h:2/shop", "a host is missing"),
        ("redis+sentinel://h:x,h:2/shop", "host or port"),
        ("redis+sentinel://u:p@h,u:p@i/shop", "the login stands once"),
        ("redis+cluster://u:p@h,u:p@i", "the login stands once"),
        ("redis+cluster://h/1", "no database but 0"),
        ("redis+cluster://h?db=3", "no database but 0"),
        ("redis+cluster://h?sentinel_password=x", "unknown option"),
        ("redis+sentinel://h/shop?ssl_cert_reqs=none", "needs rediss://"),
        ("redis://", "host"),
        ("redis:///0", "host"),
        ("redis://:6379", "host"),
        ("redis://a:1,b:2/0", "several hosts make sense with redis+sentinel://"),
        ("redis://a,b/0", "several hosts"),
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
        ("unix:///run/redis.sock?socket_keepalive=yes", "unknown option"),
        ("redis://a:b@h?password=c", "the password is given twice"),
        ("redis://a@h?username=c", "the username is given twice"),
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
        "redis+sentinel://us3r:s3cret@a:1,b:x/shop",
        "redis+sentinel://a,us3r:s3cret@b",
        "redis+sentinel://a/shop?sentinel_password=s3cret&colour=s3cret",
        "redis+cluster://us3r:s3cret@a,b/1",
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


def test_what_the_parts_of_a_url_become() -> None:
    found = parse_url("rediss+sentinel://u:p@a,b:1/shop?db=2&sentinel_username=w")
    assert (found.topology, found.tls, found.service, found.db) == ("sentinel", True, "shop", 2)
    assert found.nodes == (("a", 26379), ("b", 1))
    assert found.options == {"username": "u", "password": "p", "db": 2, "sentinel_username": "w"}
    assert parse_url("unix://:p@/run/r.sock").path == "/run/r.sock"


class Provider:
    def get_credentials(self) -> tuple[str, str]:
        return "u", "p"


def test_options_may_stand_in_a_setting_of_their_own() -> None:
    params = {"client_name": "me", "socket_timeout": 2, "ssl_cert_reqs": "none", "db": "3"}
    found = parse_url("rediss://h", params)
    assert (found.options["socket_timeout"], found.options["client_name"]) == (2.0, "me")
    assert (found.db, str(found)) == (3, "h:6379/3")

    provider = Provider()
    given = parse_url("redis://h", {"credential_provider": provider}).options
    assert given["credential_provider"] is provider


@pytest.mark.parametrize(
    ("url", "params", "fault"),
    [
        ("redis://h", {"colour": "s3cret"}, "option 'colour' is unknown; accepted: client_name"),
        ("redis://h", {"ssl_ca_certs": "/s3cret"}, "'ssl_ca_certs' needs rediss://"),
        ("redis://h", {"socket_timeout": "soon"}, "socket_timeout: expected a number"),
        ("redis://h", {"password": ["s3cret"]}, "password: expected a text or a number"),
        ("redis://:x@h", {"password": "s3cret"}, "has password, which SMOOTHPOOL_REDIS_URL gives"),
        ("redis://h", {"credential_provider": "s3cret"}, "accepted: an object with redis-py's"),
        ("redis://:s3cret@h", {"credential_provider": Provider()}, "accepted: one of the two"),
        ("rediss://h", {"ssl_ca_certs": "/nowhere.pem"}, "ssl_ca_certs cannot be used: No such"),
        ("rediss://h", {"ssl_certfile": "/nowhere.pem"}, "ssl_certfile cannot be used: No such"),
        ("rediss://h", {"ssl_keyfile": "/nowhere.pem"}, "needs ssl_certfile"),
        ("rediss://h", {"ssl_ca_data": "s3cret"}, "ssl_ca_data cannot be used: expected cert"),
        ("rediss://h", {"ssl_ciphers": "s3cret"}, "ssl_ciphers cannot be used"),
        ("rediss://h", {"ssl_cert_reqs": "maybe"}, "expected none, optional or required"),
        ("rediss://h", {"ssl_min_version": "1.1"}, "expected 1.2 or 1.3"),
    ],
)
def test_a_bad_option_is_refused_by_name(url: str, params: dict[str, object], fault: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_url(url, params)
    assert "SMOOTHPOOL_REDIS_PARAMS" in str(caught.value)
    assert fault in str(caught.value)
    assert "s3cret" not in str(caught.value).replace("'/s3cret'", "")


def test_a_certificate_named_in_the_url_is_looked_for_at_once(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for path in (tmp_path / "ca.pem", tmp_path / "none.pem", tmp_path):
        with pytest.raises(SettingsError, match="SMOOTHPOOL_REDIS_URL: option ssl_ca_certs"):
            parse_url(f"rediss://h?ssl_ca_certs={path}")


def test_a_url_from_elsewhere_is_refused_under_its_own_name() -> None:
    with pytest.raises(SettingsError, match=r"^REDIS_URL = 'http://h'"):
        parse_url("http://h", setting="REDIS_URL")
