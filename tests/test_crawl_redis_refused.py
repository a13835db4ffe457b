"""Is a Redis that cannot be used told in one line, at once, with what to do?"""

from __future__ import annotations

import time

import pytest
from redis import Redis

from crawl import Running
from farm.redis_server import RedisServer
from farm.redis_topologies import SentinelSetup

GOOD = "http://127.0.0.1:9"
LOGIN = "w0rker:s3cret@"


def refused(site, url, *says, settings=None, proxies=(GOOD,)):
    """Crawl, and expect that nothing goes out and one line of the log says why."""
    given = {
        "SMOOTHPOOL_STRATEGY": "least_used",
        "SMOOTHPOOL_REDIS_URL": url,
        **({"SMOOTHPOOL_PROXIES": list(proxies)} if proxies else {}),
        "LOG_LEVEL": "INFO",
        **(settings or {}),
    }
    with Running([f"{site.url}/page/1"], given) as running:
        begun = None
        while running.process.poll() is None:
            if begun is None and running.log_has("Scrapy 2"):
                begun = time.monotonic()
            if running.log_has(says[0]):
                break
            time.sleep(0.02)
        took = time.monotonic() - (begun or running.started)
        done = running.wait(60)
    lines = [line for line in done.log.splitlines() if all(word in line for word in says)]
    assert lines, done.log
    assert len([line for line in lines if "Error: " in line or "ERROR: " in line]) == 1
    assert "SMOOTHPOOL_REDIS_URL" in lines[0] or "SMOOTHPOOL_POOL" in lines[0]
    if took >= 3:  # a busy machine: then what any start takes is taken off
        took -= start_without_redis()
    assert took < 3
    assert done.exit_code == 1 or "Spider closed (smoothpool_failed)" in done.log
    assert "s3cret" not in done.log
    assert "w0rker" not in done.log
    assert site.hits == []
    assert site.direct == []


def start_without_redis():
    """Return the seconds in which a crawl starts that needs no Redis."""
    with Running([], {"SMOOTHPOOL_PROXIES": [GOOD]}) as running:
        running.wait_for("Scrapy 2")
        begun = time.monotonic()
        running.wait_for("Pool 'default'")
        return time.monotonic() - begun


@pytest.fixture
def server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server):
    with Redis(port=server.port, decode_responses=True) as client:
        yield client


def test_a_wrong_password(farm, server, client):
    client.execute_command("ACL", "SETUSER", "w0rker", "on", ">another", "~*", "+@all")
    url = server.url.replace("//", f"//{LOGIN}")
    refused(farm.site(), url, "the login was refused: check user and password")


@pytest.mark.parametrize("host", ["nowhere.invalid", "127.0.0.1:1", "[::1]:1"])
def test_an_unreachable_host(farm, host):
    refused(farm.site(), f"redis://{LOGIN}{host}", "SMOOTHPOOL_REDIS_URL cannot be used")


def test_a_server_that_hangs(farm, server):
    server.pause()
    try:
        refused(farm.site(), server.url, "did not answer")
    finally:
        server.resume()


def test_a_key_of_another_kind(farm, server, client):
    client.set("smoothpool:{default}:allocations", "x")
    refused(farm.site(), server.url, "holds something else", "SMOOTHPOOL_POOL")


def test_a_replica_in_a_primarys_place(farm, server, client):
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    refused(farm.site(), server.url, "read-only replica", "at the primary")


@pytest.mark.parametrize("proxies", [(GOOD,), ()], ids=["with a list", "joining"])
def test_a_full_server(farm, server, client, proxies):
    client.config_set("maxmemory", 1)
    refused(farm.site(), server.url, "out of memory (maxmemory)", proxies=proxies)


def test_a_database_that_does_not_exist(farm, server):
    refused(farm.site(), server.url.replace("/0", "/99"), "there is no database 99")


def test_a_missing_permission(farm, server, client):
    client.execute_command(
        "ACL", "SETUSER", "w0rker", "on", ">s3cret", "~smoothpool:*", "+@all", "-spop"
    )
    url = server.url.replace("//", f"//{LOGIN}")
    refused(farm.site(), url, "refuses SPOP: allow the user")


def test_tls_to_a_server_without_it(farm, server):
    url = server.url.replace("redis:", "rediss:")
    refused(farm.site(), url, "SMOOTHPOOL_REDIS_URL cannot be used")


def test_something_else_that_listens(farm, server):
    site = farm.site()
    refused(site, site.url.replace("http:", "redis:"), "SMOOTHPOOL_REDIS_URL cannot be used")


def test_a_cluster_that_is_none(farm, server):
    url = server.url.replace("redis:", "redis+cluster:").replace("/0", "")
    refused(farm.site(), url, "the server is no cluster")


def test_sentinels_that_are_none(farm, server):
    url = server.url.replace("redis:", "redis+sentinel:").replace("/0", "/shop")
    refused(farm.site(), url, f"127.0.0.1:{server.port} is no Sentinel")


def test_a_sentinel_in_a_servers_place(farm):
    with SentinelSetup() as shop:
        url = f"redis://127.0.0.1:{shop.sentinels[0].port}"
        refused(farm.site(), url, "Then begin it with redis+sentinel://")


def test_another_version_of_the_pool(farm, server, client):
    client.set("smoothpool:{default}:version", "7")
    refused(farm.site(), server.url, "is kept in form 7", "SMOOTHPOOL_POOL")


def test_the_name_that_scrapy_redis_uses(farm, server):
    """REDIS_URL is taken where SMOOTHPOOL_REDIS_URL is not set, and named in what is refused."""
    site = farm.site()
    settings = {"SMOOTHPOOL_REDIS_URL": None, "REDIS_URL": f"redis://{LOGIN}127.0.0.1:1"}
    given = {"SMOOTHPOOL_STRATEGY": "least_used", "SMOOTHPOOL_PROXIES": [GOOD], **settings}
    with Running([f"{site.url}/page/1"], given) as running:
        done = running.wait()
    assert done.exit_code == 1
    assert "SettingsError: REDIS_URL cannot be used: Redis at 127.0.0.1:1/0" in done.log
    assert "s3cret" not in done.log
