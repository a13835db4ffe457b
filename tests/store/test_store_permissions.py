from __future__ import annotations

import re
import time
from importlib.resources import files
from typing import TYPE_CHECKING

import redis
from store_helpers import named, rules, run

from farm.redis_server import RedisServer
from scrapy_smoothpool.store import scripts
from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.shared_pool import COMMANDS, SharedPool
from scrapy_smoothpool.store.verdicts import Delivery, Happened, Kind

if TYPE_CHECKING:
    from collections.abc import Callable


async def everything(pool: SharedPool) -> None:
    """Use every function of the store, every branch that writes."""
    await pool.publish(named(30), "one")
    await pool.pick()
    await pool.publish(named(10, 40), "two")
    await pool.publish(named(30), "three")
    await pool.publish(named(30), "three")
    await health(pool)
    await scripts.trim_parked(pool.connection, pool.keys, 3, 1000, 1000)
    assert await pool.pick_excluding(["p00001"]) is not None
    assert await pool.raise_to_minimum("p00020", ["p00001"]) is not None
    assert len(await pool.load_members()) == 30
    assert len(await pool.lines(named(5))) == 5
    assert len(await pool.counts()) == 30
    assert len(await pool.counts(["p00001"])) == 1
    assert await pool.size() == 30
    assert await pool.fingerprint() == "three"


async def health(pool: SharedPool) -> None:
    """Put members out, lose a key of theirs, bring one back, publish what lets one in."""
    at_once = rules(eject_after=1, max_percent=100)
    ids = list(named(30))
    failures = [Happened(proxy_id, 10**6, Kind.FAILED) for proxy_id in ids]
    judgement = await pool.report_outcomes(at_once, failures, Delivery("me", 1))
    assert judgement.out == 30
    assert await pool.report_outcomes(at_once, failures, Delivery("me", 1)) == judgement
    await pool.connection.call(lambda client: client.unlink(pool.keys.wakes))
    await pool.connection.call(lambda client: client.unlink(pool.keys.benched))
    probes = await pool.take_probe(100.0)
    assert len(await pool.out()) == 30
    assert len(await pool.records(ids)) == 30
    (probed,) = probes.leased
    success = Happened(probed, probes.epoch, Kind.SUCCESS)
    assert (await pool.report_outcomes(at_once, [success])).outcomes[0].restored
    left = {proxy_id: line for proxy_id, line in named(30).items() if proxy_id != probed}
    assert (await pool.publish(left, "four")).let_in is not None
    await pool.publish(named(30, 33), "five", candidates=True)
    await pool.publish(named(30), "three")


def test_the_listed_commands_and_the_pools_keys_are_all_it_needs(
    server: RedisServer, raw: redis.Redis, make_pool: Callable[..., SharedPool]
) -> None:
    pool = make_pool()
    allowed = [f"+{command.lower()}" for command in COMMANDS]
    pattern = f"~smoothpool:{{{pool.keys.pool}}}:*"
    raw.execute_command("ACL", "SETUSER", "worker", "on", ">pw", "-@all", pattern, *allowed)
    try:
        run(everything(make_pool(server.url.replace("//", "//worker:pw@"))))
    finally:
        raw.execute_command("ACL", "DELUSER", "worker")


def test_the_list_of_commands_is_what_the_scripts_call() -> None:
    folder = files("scrapy_smoothpool.store") / "lua"
    found = {
        path.name.removesuffix(".lua"): set(re.findall(r"redis\.call\('(\w+)'", path.read_text()))
        for path in folder.iterdir()
    }
    assert found == {name: set(commands) for name, commands in scripts.COMMANDS.items()}


def test_scripts_are_short_and_say_what_they_do() -> None:
    for script in scripts.SCRIPTS.values():
        # The state machine of health.py is one piece, with a short way for what is usual.
        most = 188 if script.name == "report_outcomes" else 110
        code = [line for line in script.text.splitlines() if line and line[:2] != "--"]
        assert len(code) <= most, script.name
        # So that a test can put a clock of its own in its place.
        if script.name != "check_access":
            assert script.text.count("TIME'") == script.text.count("redis.call('TIME')") <= 1
        header = script.text.partition("\n\n")[0] + script.text
        assert re.search(r"^-- KEYS\[1\]", header, re.M), script.name
        assert re.search(r"^-- Returns", header, re.M), script.name
        assert re.search(r"^-- Cost", header, re.M), script.name
        # Every key comes in by KEYS, and none is built from another.
        assert "..'" not in script.text.replace(" ", ""), script.name


def test_every_key_has_the_pools_hash_tag(
    pool: SharedPool, raw: redis.Redis, server: RedisServer
) -> None:
    seen: list[str] = []
    with redis.Redis.from_url(server.url) as watcher, watcher.monitor() as monitor:
        run(everything(pool))
        raw.echo("done")
        for event in monitor.listen():
            if event["command"] == "ECHO done":
                break
            seen += re.findall(r"smoothpool:\S+", event["command"])
    assert len(seen) > 50
    assert {key.partition("}")[0] for key in seen} == {f"smoothpool:{{{pool.keys.pool}"}


def test_on_a_cluster_node_every_script_works() -> None:
    args = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
    with RedisServer(args=args) as server, redis.Redis.from_url(server.url) as raw:
        raw.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        deadline = time.monotonic() + 20
        while raw.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.05)

        async def main() -> None:
            pool = SharedPool(RedisConnection(server.url), Keys(pool="shop"))
            await everything(pool)
            await pool.aclose()

        run(main())
