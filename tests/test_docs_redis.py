"""Does docs/redis.md say what the code does? Its user runs a crawl, its tables are fed to it."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
import redis
from scrapy.settings import BaseSettings

from crawl import crawl
from farm import Answer, first
from farm.redis_server import RedisServer
from farm.redis_topologies import ClusterSetup, SentinelSetup
from scrapy_smoothpool import extension, shared_judge
from scrapy_smoothpool.settings import NAMES, OnRedisDown, Settings
from scrapy_smoothpool.store import breaker, clients, connection, options, publish, scripts, url
from scrapy_smoothpool.store.keys import VERSION, Keys
from scrapy_smoothpool.store.shared_pool import COMMANDS
from scrapy_smoothpool.strategies import least_used, published, while_away

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "redis.md").read_text("utf-8")
TEXT = " ".join(PAGE.split())
PREFIX = "smoothpool:{default}:"


def tables() -> dict[str, list[list[str]]]:
    """The page's tables by the title of their first column, without header and rule."""
    found: dict[str, list[list[str]]] = {}
    table: list[list[str]] = []
    for line in [*PAGE.splitlines(), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip("|"))
            table.append([cell.strip().replace(r"\|", "|") for cell in cells])
        elif table:
            found[table[0][0]] = table[2:]
            table = []
    return found


TABLES = tables()


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
    return found


ACL = block("text").split()


# URLs and options.


@pytest.mark.parametrize("given", [quoted(row[1])[0] for row in TABLES["what runs there"]])
def test_every_url_is_accepted(given):
    found = url.parse_url(given)
    assert found.tls == given.startswith("rediss")
    assert found.topology == (re.match(r"\w+\+(\w+)", given) or ["", "single"])[1]
    if "@" in given:
        assert found.secrets == ("password", "user")
    if not given.startswith("unix"):
        assert url.parse_url(given.replace("redis", "valkey", 1)) == found


def test_every_form_has_its_url():
    given = {quoted(row[1])[0].partition(":")[0] for row in TABLES["what runs there"]}
    kinds = ("", "+sentinel", "+cluster")
    assert given == {"unix", *(f"redis{s}{kind}" for s in ("", "s") for kind in kinds)}
    named = set(re.findall(r"`((?:redis|valkey|unix)[\w+]*)://", PAGE))
    assert all(scheme == "unix" or url._SCHEME.fullmatch(scheme) for scheme in named)
    assert f"{url.DEFAULT_PORT} and, of Sentinels, {url.SENTINEL_PORT} unless given" in TEXT


def test_every_option_is_one_and_stands_where_it_says():
    where = {name: row[2] for row in TABLES["option"] for name in quoted(row[0])}
    assert where.pop("credential_provider").endswith("`SMOOTHPOOL_REDIS_PARAMS` only")
    assert set(where) == set(options.known(tls=True, sentinel=True))
    for name, place in where.items():
        kind = place.partition(";")[0]
        assert kind.startswith("TLS") == (name in options.TLS)
        assert kind.startswith("Sentinel") == (name in options.SENTINEL)
    defaults = {quoted(row[0])[0]: quoted(row[1]) for row in TABLES["option"]}
    assert defaults["socket_connect_timeout"] == defaults["timeout"] == [f"{clients.TIMEOUT:g}"]
    assert defaults["max_connections"] == [str(clients.MAX_CONNECTIONS)]
    assert defaults["protocol"] == [str(clients._limits(url.parse_url("redis://h"))["protocol"])]


def test_its_example_is_taken():
    scope: dict[str, object] = {}
    exec(block("python"), scope)
    own = {name: value for name, value in scope.items() if name in NAMES}
    assert len(own) == 2
    found = Settings.from_scrapy(BaseSettings(own))
    params = {k: v for k, v in found.redis_params.items() if not k.startswith("ssl_")}
    address = url.parse_url(found.redis_url, params)
    login = clients._sentinel_login(address)
    assert login == {"username": "watcher", "password": "another"}
    assert clients._sentinel_login(url.parse_url(found.redis_url)) == {}


# What is refused.


def sentences_of(module: object) -> set[str]:
    """Every text in a module's source, with a 1 for whatever is put into it."""
    found = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "1" for v in node.values)
            found.add("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_every_message_is_one_of_the_code():
    from scrapy_smoothpool.store import errors, shared_pool

    said = set()
    for module in (clients, connection, errors, publish, shared_pool, url):
        said |= sentences_of(module)
    for row in TABLES["message"]:
        for message in quoted(row[0]):
            assert any(message in text for text in said), message
    told = " ".join(row[0] for row in TABLES["message"])
    for name, remedy in errors._REMEDIES.items():
        if name != "CROSSSLOT":  # nothing that calls itself a cluster does that
            start = re.split(r"[:{,]", remedy)[0].strip()
            assert start in told or remedy.partition(":")[0] in told, name
    assert extension.FINISH_FAILED in TEXT


# The user.


def test_the_line_has_the_commands_of_the_pool_and_no_others():
    allowed = [f"+{command.lower()}" for command in COMMANDS]
    begin = "ACL SETUSER scraper on >password resetkeys"
    assert [*begin.split(), f"~{PREFIX}*", "-@all", *allowed] == ACL


def without_login(address: str) -> str:
    return address.replace("//", "//scraper:password@")


def test_that_user_runs_a_crawl_and_leaves_the_keys_of_the_table(farm):
    site = farm.site()
    bad = farm.proxy("bad", behaviour=first(9, Answer(403)))
    good = farm.many(4, "good")
    with RedisServer() as server, redis.Redis(port=server.port, decode_responses=True) as client:
        client.execute_command(*ACL)
        settings = {
            "SMOOTHPOOL_STRATEGY": "least_used",
            "SMOOTHPOOL_REDIS_URL": without_login(server.url),
            "SMOOTHPOOL_PROXIES": [proxy.url for proxy in (bad, *good)],
            "SMOOTHPOOL_EJECT_TIME": 1,
            "CONCURRENT_REQUESTS": 4,
            "DOWNLOAD_DELAY": 0.02,
        }
        done = crawl([f"{site.url}/page/1?{n}" for n in range(250)], settings)
        assert len(done.arrived) == 250, done.log[-3000:]
        told = [signal[0] for signal in done.signals]
        assert told.count("proxy_ejected") >= 1
        assert told.count("proxy_restored") == 1
        refused = {entry["object"] for entry in client.acl_log()}
        assert refused <= {"ping", "client|setinfo"}
        # Another list, so that somebody is parked; and out for good.
        out = farm.proxy("out", listening=False)
        settings["SMOOTHPOOL_PROXIES"] = [proxy.url for proxy in (out, *good[1:])]
        done = crawl([f"{site.url}/page/1?{n}" for n in range(60)], settings)
        assert len(done.arrived) == 60, done.log[-3000:]
        rows = {name: row for row in TABLES["key"] for name in quoted(row[0])}
        found = {key.removeprefix(PREFIX): key for key in client.keys("*")}
        assert {"allocations", "members", "version", "parked", "health", "epoch"} <= set(found)
        assert client.zrange(found["benched"], 0, -1) == [out.url]
        for name, key in found.items():
            row = rows[re.sub(r"(delivered|added):.*", r"\1:<worker>", name)]
            assert client.type(key) == row[1]
            assert_lives(client.ttl(key), row[3])


def assert_lives(ttl: int, said: str) -> None:
    if said == "on":
        assert ttl == -1
        return
    number, unit = said.split()[:2]
    most = int(number) * {"s": 1, "h": 3600, "days": 86_400}[unit]
    assert 0.9 * most - 60 < ttl <= most


ON_TOP = {row[0]: [w for cell in quoted(row[1]) for w in cell.split()] for row in TABLES["where"]}


async def use(address: str) -> None:
    from scrapy_smoothpool.store.shared_pool import SharedPool

    pool = SharedPool(connection.RedisConnection(address), Keys())
    try:
        connection.ping_once(address)
        await pool.check()
        await pool.publish({"a": "http://127.0.0.1:9"}, "f")
        assert await pool.pick() == "a"
        assert await pool.load_members() == {"a": "http://127.0.0.1:9"}
    finally:
        await pool.aclose()


def works(address: str) -> bool:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from scrapy_smoothpool.exceptions import StoreError

    with ThreadPoolExecutor(1) as thread:  # this one has the reactor's loop
        try:
            thread.submit(lambda: asyncio.run(use(address))).result()
        except StoreError:
            return False
    return True


def allow(servers, *rules: str) -> None:
    for server in servers:
        with redis.Redis(port=server.port) as client:
            client.execute_command(*rules)


@pytest.mark.parametrize(
    ("where", "part"),
    [("a database other than 0", "/1"), ("the option `client_name`", "/0?client_name=shop")],
)
def test_what_a_server_needs_besides(where, part):
    with RedisServer() as server:
        address = without_login(server.url.removesuffix("/0") + part)
        allow([server], *ACL)
        assert not works(address)
        allow([server], *ACL[:3], *ON_TOP[where])
        assert works(address)


def test_what_a_cluster_needs_besides():
    *most, asking = ON_TOP["a cluster, on every node"]
    assert asking == "+asking"
    with ClusterSetup() as shop:
        for count in range(len(most) + 1):
            allow(shop.nodes, *ACL, *most[:count])
            assert works(without_login(shop.url)) is (count == len(most))
        seen = set()
        allow(shop.nodes, "ACL", "LOG", "RESET")
        shop.begin_move(f"{PREFIX}allocations", shop.other(f"{PREFIX}allocations"))
        for node in shop.nodes:
            with redis.Redis(port=node.port, decode_responses=True) as client:
                client.flushall()
        works(without_login(shop.url))
        for node in shop.nodes:
            with redis.Redis(port=node.port, decode_responses=True) as client:
                seen |= {entry["object"] for entry in client.acl_log()}
        assert "asking" in seen


def test_what_sentinels_need_besides():
    needed = ON_TOP["the user on the Sentinels themselves"]
    assert ON_TOP["the primary behind Sentinels"] == []
    with SentinelSetup() as shop:
        allow(shop.servers, *ACL)
        assert works(without_login(shop.url))
        login = "?sentinel_username=watcher&sentinel_password=another"
        rules = ["ACL", "SETUSER", "watcher", "on", ">another", "-@all"]
        for count in range(len(needed) + 1):
            allow(shop.sentinels, *rules, *needed[:count])
            assert works(without_login(shop.url) + login) is (count == len(needed))


# The keys.


def test_the_table_of_keys_is_all_that_there_are():
    keys = Keys()
    every: set[str] = {*keys.checked, *keys.staging("<token>")}
    every |= {keys.delivered("<worker>"), keys.added("<worker>")}
    for name, member in vars(Keys).items():
        if isinstance(member, property) and name != "checked":
            every.add(getattr(keys, name))
    methods = {n for n, m in vars(Keys).items() if callable(m) and not n.startswith("_")}
    assert methods == {"added", "delivered", "staging"}
    assert {field.name for field in fields(Keys)} == {"prefix", "pool"}
    told = [name for row in TABLES["key"] for name in quoted(row[0])]
    assert len(told) == len(set(told))
    assert {PREFIX + name for name in told} == every


def test_what_runs_out_does_so_as_it_says():
    lives = {name: row[3] for row in TABLES["key"] for name in quoted(row[0])}
    assert lives["publisher"] == f"{publish.LEASE // 1000} s"
    assert lives["staging:<token>:members"] == f"{publish.STAGING_TTL // 1000} s"
    assert lives["parked"] == f"{publish.MAX_PARKED_AGE // 86_400} days from the last"
    assert lives["delivered:<worker>"] == f"{scripts.DELIVERED_TTL // 1000} s"
    assert lives["added:<worker>"] == f"{scripts.ADDED_TTL // 3_600_000} h"
    holds = {name: row[2] for row in TABLES["key"] for name in quoted(row[0])}
    assert f"{publish.MAX_PARKED} at most" in holds["parked"]
    assert VERSION == "1"


# Outages.


def test_its_numbers_are_those_of_the_code():
    assert connection._ALTOGETHER == 3 * clients.TIMEOUT
    for sentence in (
        f"A call may take {clients.TIMEOUT:g} s.",
        f"but for one try every {breaker.PAUSE:g} s",
        f"(Sentinel, at {clients.SENTINEL_TIMEOUT:g} s each, and cluster) a call may take "
        f"{connection._ALTOGETHER:g} s in all",
        f"without a list after {published._GRACE:g} s",
        f"keep up to {shared_judge.KEPT} outcomes",
        f"it tries for {least_used._FAREWELL:g} s",
        f"after {publish.LEASE // 1000} s another may publish, after "
        f"{publish.STAGING_TTL // 1000} s what was laid out is gone",
        f"when {scripts.DELIVERED_TTL // 1000} s or more lie between",
        f"({shared_judge.MOST} at most) count twice",
        f"with {scripts.ADDED_TTL // 3_600_000} h and {while_away._HANDED_OVER} proxies",
        f"finish reason `{extension.FINISH_REDIS_DOWN}`",
        f"finish reason `{extension.FINISH_FAILED}`",
        f"did not answer within {clients.TIMEOUT:g} s",
    ):
        assert sentence in TEXT, sentence


def test_its_values_are_those_of_the_setting():
    given = [quoted(row[0])[0].strip('"') for row in TABLES["value"]]
    assert given == [value.value for value in OnRedisDown]
    (default,) = (row[0] for row in TABLES["value"] if "the default" in row[0])
    assert Settings().on_redis_down == quoted(default)[0].strip('"')
    assert Settings().redis_start_timeout == 0  # "ends the crawl at once"


def test_every_setting_it_names_is_one():
    named = set(re.findall(r"SMOOTHPOOL_[A-Z_]+", PAGE))
    assert named
    assert named <= set(NAMES)


def test_the_readme_leads_to_it_and_has_its_settings():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "docs/redis.md" in readme
    for name in NAMES:
        if "REDIS" in name:
            assert f"| `{name}` |" in readme, name
