from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_helpers import fingerprint, model_pick, named, rules, run

from farm.redis_server import RedisServer
from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.scripts import SCRIPTS
from scrapy_smoothpool.store.shared_pool import SharedPool
from scrapy_smoothpool.store.verdicts import Happened, Judged, Kind, MemberOut

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

ROOT = Path(__file__).parents[2]
PICKER = """
import asyncio, sys
from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.shared_pool import SharedPool

async def main(url, name, picks):
    pool = SharedPool(RedisConnection(url), Keys(pool=name))
    for _ in range(int(picks)):
        assert await pool.pick() is not None
    await pool.aclose()

asyncio.run(main(*sys.argv[1:]))
"""

members = st.text("aAzZ019#:é", min_size=1, max_size=4)


def test_an_empty_pool_gives_nothing_and_is_not_created(pool: SharedPool, raw: redis.Redis) -> None:
    assert run(pool.pick()) is None
    assert run(pool.pick_excluding(["a"])) is None
    assert run(pool.size()) == 0
    assert raw.exists(pool.keys.allocations) == 0


def test_least_used_first_and_ties_by_member_order(pool: SharedPool, raw: redis.Redis) -> None:
    raw.zadd(pool.keys.allocations, {"p2": 0, "p10": 0, "P3": 0, "é": 0, "z": 2})

    async def picks() -> list[str | None]:
        return [await pool.pick() for _ in range(9)]

    assert run(picks()) == ["P3", "p10", "p2", "é", "P3", "p10", "p2", "é", "P3"]
    assert run(pool.counts()) == {"P3": 3, "p10": 2, "p2": 2, "é": 2, "z": 2}


def test_a_sole_member_is_picked_again_and_again(pool: SharedPool, raw: redis.Redis) -> None:
    raw.zadd(pool.keys.allocations, {"a": 0})

    async def picks() -> list[str | None]:
        return [await pool.pick() for _ in range(4)]

    assert run(picks()) == ["a"] * 4


def test_excluding_everyone_gives_nothing(pool: SharedPool, raw: redis.Redis) -> None:
    ids = [f"p{n:03}" for n in range(200)]
    raw.zadd(pool.keys.allocations, dict.fromkeys(ids, 0))
    assert run(pool.pick_excluding(ids)) is None
    assert run(pool.pick_excluding(ids[:-1])) == ids[-1]
    assert run(pool.pick_excluding([])) == ids[0]
    assert run(pool.pick_excluding(["unknown"])) == ids[1]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    counts=st.dictionaries(members, st.integers(0, 4), max_size=8),
    exclusions=st.lists(st.sets(members, max_size=6), max_size=12),
)
def test_picks_equal_a_plain_model(
    pool: SharedPool, raw: redis.Redis, counts: dict[str, int], exclusions: list[set[str]]
) -> None:
    raw.delete(pool.keys.allocations)
    if counts:
        raw.zadd(pool.keys.allocations, counts)

    async def picks() -> list[str | None]:
        got = []
        for excluded in exclusions:
            got.append(await pool.pick_excluding(sorted(excluded)))
            got.append(await pool.pick())
        return got

    expected = []
    for excluded in exclusions:
        expected.append(model_pick(counts, excluded))
        expected.append(model_pick(counts))
    assert run(picks()) == expected
    assert run(pool.counts()) == counts


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    counts=st.dictionaries(members, st.integers(0, 9), max_size=8),
    member=members,
    out=st.sets(members, max_size=6),
)
def test_a_member_comes_back_at_the_minimum_of_those_that_are_in(
    pool: SharedPool, raw: redis.Redis, counts: dict[str, int], member: str, out: set[str]
) -> None:
    raw.delete(pool.keys.allocations)
    if counts:
        raw.zadd(pool.keys.allocations, counts)
    got = run(pool.raise_to_minimum(member, sorted(out)))
    if member not in counts:
        assert got is None
    else:
        others = [n for m, n in counts.items() if m != member and m not in out]
        counts[member] = max(counts[member], min(others, default=0))
        assert got == counts[member]
    assert run(pool.counts()) == counts


def test_raise_to_minimum_looks_past_many_that_are_out(pool: SharedPool, raw: redis.Redis) -> None:
    out = [f"o{n}" for n in range(300)]
    raw.zadd(pool.keys.allocations, dict.fromkeys(out, 1) | {"a": 3, "b": 70})
    assert run(pool.raise_to_minimum("a", out)) == 70


def test_eight_processes_share_evenly(
    server: RedisServer, pool: SharedPool, raw: redis.Redis
) -> None:
    raw.zadd(pool.keys.allocations, {f"p{n}": 0 for n in range(10)})
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", PICKER, server.url, pool.keys.pool, "300"], cwd=ROOT
        )
        for _ in range(8)
    ]
    assert [worker.wait(60) for worker in workers] == [0] * 8
    assert run(pool.counts()) == {f"p{n}": 240 for n in range(10)}


def test_a_removed_member_is_never_brought_back_by_a_pick(
    pool: SharedPool, raw: redis.Redis
) -> None:
    ids = [f"p{n:03}" for n in range(100)]
    raw.zadd(pool.keys.allocations, dict.fromkeys(ids, 0))

    async def main() -> Counter[str | None]:
        import asyncio

        async def pick(times: int) -> list[str | None]:
            return [await pool.pick() for _ in range(times)]

        async def remove() -> None:
            for member in ids[:95]:
                await pool.connection.call(lambda c, m=member: c.zrem(pool.keys.allocations, m))

        lists = await asyncio.gather(remove(), *(pick(100) for _ in range(8)))
        return Counter(member for got in lists[1:] for member in got or ())

    assert sum(run(main()).values()) == 800
    assert sorted(run(pool.counts())) == ids[95:]


def test_script_flush_between_picks_is_not_noticed(pool: SharedPool, raw: redis.Redis) -> None:
    raw.zadd(pool.keys.allocations, {"a": 0, "b": 0})
    assert run(pool.pick()) == "a"
    raw.script_flush()
    assert raw.script_exists(SCRIPTS["least_used"].sha) == [False]
    assert run(pool.pick()) == "b"
    assert raw.script_exists(SCRIPTS["least_used"].sha) == [True]
    assert run(pool.pick()) == "a"


def test_pick_after_pick_uses_evalsha(pool: SharedPool, raw: redis.Redis) -> None:
    raw.zadd(pool.keys.allocations, {"a": 0})
    run(pool.pick())
    raw.config_resetstat()

    async def picks() -> None:
        for _ in range(20):
            await pool.pick()

    run(picks())
    stats = raw.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 20
    assert "cmdstat_eval" not in stats


@pytest.mark.parametrize("options", ["", "?decode_responses=True", "?protocol=3", "?protocol=2"])
def test_reply_options_of_the_url_change_nothing(
    server: RedisServer, make_pool: Callable[..., SharedPool], options: str
) -> None:
    pool = make_pool(server.url + options)
    members = named(5)

    async def main() -> None:
        await pool.publish(members, fingerprint(members))
        assert await pool.pick() == "p00000"
        assert await pool.pick_excluding(["p00001"]) == "p00002"
        assert await pool.lines(["p00003", "gone"]) == {"p00003": members["p00003"]}
        assert await pool.load_members() == members
        assert await pool.counts(["p00000", "gone"]) == {"p00000": 1}
        assert (await pool.counts())["p00002"] == 1
        assert await pool.raise_to_minimum("p00001") == 0
        assert await pool.fingerprint() == fingerprint(members)
        assert await pool.size() == 5
        failure = Happened("p00000", 0, Kind.FAILED, "banned")
        judgement = await pool.report_outcomes(rules(eject_after=1), [failure])
        assert judgement == (1, 1, 5, [Judged(False, "ejected", 1, 30.0)], 0)
        await pool.connection.call(lambda c: c.zadd(pool.keys.wakes, {"p00000": 1}))
        assert await pool.out() == {"p00000": MemberOut("ejected", "banned", 0.0)}
        probes = await pool.take_probe(100.0)
        assert probes == (1, {"p00000": "banned"}, 100.0, ["p00000"], 1, True, 5, 0)
        assert (await pool.records(members))["p00000"].state == "probing"
        assert (await pool.counts())["p00000"] == 1
        assert await pool.size() == 5

    run(main())


def test_over_a_unix_socket(tmp_path: Path) -> None:
    with RedisServer(unix=True) as server:
        pool = SharedPool(RedisConnection(server.url), Keys())

        async def main() -> str | None:
            await pool.publish(named(2), "f")
            got = await pool.pick()
            await pool.aclose()
            return got

        assert run(main()) == "p00000"
