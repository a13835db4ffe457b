from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_helpers import fingerprint, named, run

from scrapy_smoothpool.store import publish as publishing
from scrapy_smoothpool.store import scripts
from scrapy_smoothpool.store.publish import PublishResult

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from scrapy_smoothpool.store.shared_pool import SharedPool


async def publish(pool: SharedPool, members: dict[str, str], start: int = 0) -> PublishResult:
    return await pool.publish(members, fingerprint(members), start)


async def picks(pool: SharedPool, number: int) -> list[str]:
    return [member for _ in range(number) if (member := await pool.pick())]


def keys_of(raw: redis.Redis, pool: SharedPool) -> set[str]:
    prefix = f"smoothpool:{{{pool.keys.pool}}}:"
    return {key.removeprefix(prefix) for key in raw.keys("*") if key.startswith(prefix)}


def test_a_list_becomes_the_pool(pool: SharedPool, raw: redis.Redis) -> None:
    members = named(2500)
    assert run(publish(pool, members, start=7)) == PublishResult(True, 2500, added=2500)
    assert run(pool.load_members()) == members
    assert run(pool.counts()) == dict.fromkeys(members, 7)
    assert run(pool.counts(members)) == dict.fromkeys(members, 7)
    assert run(pool.lines(members)) == members
    assert run(pool.fingerprint()) == fingerprint(members)
    assert keys_of(raw, pool) == {"allocations", "members", "fingerprint", "version"}
    assert {raw.ttl(f"smoothpool:{{{pool.keys.pool}}}:{k}") for k in keys_of(raw, pool)} == {-1}


def test_the_same_list_again_changes_nothing(
    make_pool: Callable[..., SharedPool], raw: redis.Redis
) -> None:
    members = named(10)
    pool = make_pool()
    run(publish(pool, members))
    run(picks(pool, 13))
    before = {key: raw.dump(key) for key in (pool.keys.allocations, pool.keys.members)}
    raw.config_resetstat()
    assert run(publish(make_pool(), members, start=5)) == PublishResult(False, 10)
    assert {key: raw.dump(key) for key in before} == before
    assert "cmdstat_set" not in raw.info("commandstats")


def test_todays_list_replaces_yesterdays(pool: SharedPool) -> None:
    run(publish(pool, named(10)))
    run(picks(pool, 55))
    today = named(10, 15)
    assert run(publish(pool, today)) == PublishResult(True, 5, replaced=10, added=5, removed=10)
    assert Counter(run(picks(pool, 100))) == dict.fromkeys(today, 20)
    assert run(pool.load_members()) == today


def test_those_that_stay_keep_their_count_and_newcomers_start_at_the_minimum(
    pool: SharedPool, raw: redis.Redis
) -> None:
    run(publish(pool, named(10)))
    raw.zadd(pool.keys.allocations, {m: 1000 + n for n, m in enumerate(named(10))})
    result = run(publish(pool, named(5, 15), start=3))
    assert result == PublishResult(True, 10, replaced=10, added=5, removed=5)
    expected = {m: 1000 + n for n, m in enumerate(named(10)) if n >= 5}
    expected |= dict.fromkeys(named(10, 15), 1000)
    assert run(pool.counts()) == expected
    # Nobody is owed a thousand turns.
    assert max(Counter(run(picks(pool, 200))).values()) <= 24


def test_a_new_password_keeps_every_count(pool: SharedPool) -> None:
    run(publish(pool, named(10)))
    run(picks(pool, 33))
    before = run(pool.counts())
    renewed = {m: line.replace("secret", "renewed") for m, line in named(10).items()}
    assert run(publish(pool, renewed)) == PublishResult(True, 10, replaced=10)
    assert run(pool.counts()) == before
    assert run(pool.lines(["p00003"])) == {"p00003": renewed["p00003"]}


def test_a_removed_member_is_parked_and_returns_with_its_count(
    pool: SharedPool, raw: redis.Redis
) -> None:
    run(publish(pool, named(4)))
    raw.zadd(pool.keys.allocations, {"p00000": 9, "p00001": 40, "p00002": 12, "p00003": 20})
    run(publish(pool, named(2, 4)))
    assert raw.zrange(pool.keys.parked, 0, -1, withscores=True) == [("p00000", 9), ("p00001", 40)]
    now = raw.time()[0]
    assert all(now - 5 <= at <= now for at in raw.zmscore(pool.keys.parked_at, ["p00000"]))
    assert 0 < raw.ttl(pool.keys.parked) <= 7 * 86_400
    run(publish(pool, named(4)))
    # The greater of their own count and the pool's minimum, which is 12.
    assert run(pool.counts()) == {"p00000": 12, "p00001": 40, "p00002": 12, "p00003": 20}
    assert keys_of(raw, pool) == {"allocations", "members", "fingerprint", "version"}


def test_parked_are_bounded_in_number(
    pool: SharedPool, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "MAX_PARKED", 1500)
    run(publish(pool, named(4000)))
    run(publish(pool, named(4000, 4001)))
    assert raw.zcard(pool.keys.parked) == raw.zcard(pool.keys.parked_at) == 1500


def test_parked_are_bounded_in_age(pool: SharedPool, raw: redis.Redis) -> None:
    run(publish(pool, named(1200)))
    run(publish(pool, named(2)))
    old = raw.time()[0] - 7 * 86_400 - 1
    raw.zadd(pool.keys.parked_at, dict.fromkeys(named(3, 1200), old))
    run(publish(pool, named(3)))
    assert raw.exists(pool.keys.parked, pool.keys.parked_at) == 0  # p00002 is back
    run(publish(pool, named(1)))
    assert raw.zrange(pool.keys.parked, 0, -1) == ["p00001", "p00002"]


def test_a_missing_pool_is_published_again(pool: SharedPool, raw: redis.Redis) -> None:
    run(publish(pool, named(10)))
    raw.delete(pool.keys.allocations)
    assert run(publish(pool, named(10), start=2)) == PublishResult(True, 10, added=10)
    assert run(pool.counts()) == dict.fromkeys(named(10), 2)


def test_missing_lines_are_published_again_and_counts_stay(
    pool: SharedPool, raw: redis.Redis
) -> None:
    run(publish(pool, named(10)))
    run(picks(pool, 15))
    before = run(pool.counts())
    raw.delete(pool.keys.members)
    assert run(publish(pool, named(10))) == PublishResult(True, 10)
    assert run(pool.counts()) == before
    assert run(pool.load_members()) == named(10)


def test_what_makes_no_list_is_refused(pool: SharedPool) -> None:
    with pytest.raises(ValueError):
        run(pool.publish({}, "f"))
    with pytest.raises(ValueError):
        run(pool.publish(named(1), ""))


def test_many_workers_with_one_list_publish_it_once(
    make_pool: Callable[..., SharedPool],
) -> None:
    async def main() -> list[PublishResult]:
        return await asyncio.gather(*(publish(make_pool(), named(3000)) for _ in range(12)))

    assert sum(result.changed for result in run(main())) == 1


def test_two_lists_at_once_end_as_one_whole_list(make_pool: Callable[..., SharedPool]) -> None:
    pool = make_pool()
    lists = [named(2500), named(1500, 4500), named(2000, 2600)]
    run(publish(pool, named(1500, 2200)))
    run(picks(pool, 1000))

    async def main() -> list[PublishResult]:
        return await asyncio.gather(*(publish(make_pool(), members) for members in lists * 2))

    results = run(main())
    assert sum(result.changed for result in results) >= 3
    live = run(pool.load_members())
    assert live in lists
    assert run(pool.fingerprint()) == fingerprint(live)
    assert set(run(pool.counts())) == set(live)


def test_picks_during_a_publish_are_all_counted(
    make_pool: Callable[..., SharedPool],
) -> None:
    pool, other = make_pool(), make_pool()
    members = named(20_000)
    renewed = {m: line + "?" for m, line in members.items()}

    async def main() -> tuple[int, PublishResult]:
        await publish(pool, members)
        done = asyncio.Event()

        async def pick() -> int:
            number = 0
            while not done.is_set():
                assert await other.pick() is not None
                number += 1
            return number

        pickers = [asyncio.ensure_future(pick()) for _ in range(4)]
        result = await publish(pool, renewed)
        done.set()
        return sum(await asyncio.gather(*pickers)), result

    number, result = run(main())
    assert result == PublishResult(True, 20_000, replaced=20_000)
    assert number > 50
    assert sum(run(pool.counts()).values()) == number


def test_a_member_taken_off_the_list_stays_off_while_picks_go_on(
    make_pool: Callable[..., SharedPool], raw: redis.Redis
) -> None:
    pool, other = make_pool(), make_pool()
    members, fewer = named(3000), named(1000, 3000)

    async def main() -> Counter[str]:
        await publish(pool, members)
        done = asyncio.Event()

        async def pick() -> list[str]:
            got = []
            while not done.is_set():
                got.append(await other.pick() or "")
            return got

        picker = asyncio.ensure_future(pick())
        await publish(pool, fewer)
        done.set()
        return Counter(await picker)

    picked = run(main())
    counts = run(pool.counts())
    assert set(counts) == set(fewer)
    parked = {m: int(n) for m, n in raw.zrange(pool.keys.parked, 0, -1, withscores=True)}
    assert set(parked) == set(named(1000))
    assert counts | parked == {m: picked[m] for m in members}


def test_a_crash_while_staging_leaves_only_what_expires(
    pool: SharedPool, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(publish(pool, named(10)))
    live = keys_of(raw, pool)

    async def crash() -> None:
        await scripts.begin_publish(pool.connection, pool.keys, "f", "tok", 10_000)
        await scripts.stage_members(
            pool.connection,
            pool.keys,
            "tok",
            list(named(5, 900).items()),
            lease=10_000,
            ttl=60_000,
            start_count=0,
        )

    run(crash())
    left = keys_of(raw, pool) - live
    assert left == {f"staging:tok:{k}" for k in ("allocations", "members", "copied")} | {
        "publisher"
    }
    for key in left:
        assert 0 < raw.pttl(f"smoothpool:{{{pool.keys.pool}}}:{key}") <= 60_000
    assert run(pool.load_members()) == named(10)
    # Another worker waits for the lease to run out, then has its turn.
    raw.pexpire(pool.keys.publisher, 200)
    assert run(publish(pool, named(3))).changed


def test_a_publisher_that_lost_its_turn_changes_nothing(pool: SharedPool, raw: redis.Redis) -> None:
    run(publish(pool, named(10)))

    async def stale() -> tuple[object, object]:
        await scripts.begin_publish(pool.connection, pool.keys, "f", "old", 10_000)
        await scripts.stage_members(
            pool.connection,
            pool.keys,
            "old",
            list(named(5).items()),
            lease=10_000,
            ttl=60_000,
            start_count=0,
        )
        raw.set(pool.keys.publisher, "another")
        late = await scripts.stage_members(
            pool.connection,
            pool.keys,
            "old",
            list(named(7).items()),
            lease=10_000,
            ttl=60_000,
            start_count=0,
        )
        return late, await scripts.swap_in(pool.connection, pool.keys, "old", "f", 5)

    assert run(stale()) == (None, None)
    assert run(pool.load_members()) == named(10)
    run(scripts.end_publish(pool.connection, pool.keys, "old"))
    assert raw.get(pool.keys.publisher) == "another"
    assert keys_of(raw, pool) == {"allocations", "members", "fingerprint", "publisher", "version"}


def test_staging_keys_that_vanished_are_staged_again(
    pool: SharedPool, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(publish(pool, named(10)))
    swap_in, tries = scripts.swap_in, []

    async def evicting(conn, keys, token, *rest):  # type: ignore[no-untyped-def]
        tries.append(token)
        if len(tries) == 1:
            raw.delete(keys.staging(token)[1])
        return await swap_in(conn, keys, token, *rest)

    monkeypatch.setattr(scripts, "swap_in", evicting)
    assert run(publish(pool, named(3))).changed
    assert len(set(tries)) == 2
    assert run(pool.load_members()) == named(3)


@pytest.mark.parametrize("next_list", [named(1000, 3000), named(500, 2500)], ids=["same", "other"])
def test_a_crash_after_the_swap_is_made_up_for_by_the_next_publisher(
    make_pool: Callable[..., SharedPool],
    raw: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    next_list: dict[str, str],
) -> None:
    pool = make_pool()
    run(publish(pool, named(3000)))
    raw.zadd(pool.keys.allocations, dict.fromkeys(named(3000), 50))
    swap_in = scripts.swap_in

    async def crashing(conn, keys, *rest):  # type: ignore[no-untyped-def]
        await conn.call(lambda c: c.zincrby(keys.allocations, 3, "p01500"))  # a pick just before
        await swap_in(conn, keys, *rest)
        raise RuntimeError("killed")

    monkeypatch.setattr(scripts, "swap_in", crashing)
    with pytest.raises(RuntimeError, match="killed"):
        run(publish(pool, named(1000, 3000)))
    monkeypatch.undo()
    assert run(pool.counts())["p01500"] == 50
    assert raw.zcard(pool.keys.retired) == 3000

    run(publish(make_pool(), next_list))
    counts = run(pool.counts())
    parked = dict(raw.zrange(pool.keys.parked, 0, -1, withscores=True))
    assert set(counts) == set(next_list)
    assert counts | parked == dict.fromkeys(named(3000), 50) | {"p01500": 53}
    assert not raw.exists(pool.keys.retired, pool.keys.retired_copied)


def test_a_list_replaced_while_it_is_read_is_read_again(
    make_pool: Callable[..., SharedPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, other = make_pool(), make_pool()
    run(publish(pool, named(5000)))
    call, calls = pool.connection.call, []

    async def meddling(command):  # type: ignore[no-untyped-def]
        calls.append(command)
        if len(calls) == 4:
            await publish(other, named(3000, 7000))
        return await call(command)

    monkeypatch.setattr(pool.connection, "call", meddling)
    assert run(pool.load_members()) == named(3000, 7000)


names = st.sets(st.sampled_from([f"m{n}" for n in range(8)]), min_size=1)
steps = st.lists(st.one_of(names, st.integers(1, 20)), max_size=12)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=steps)
def test_lists_and_picks_in_any_order_equal_a_plain_model(
    pool: SharedPool, raw: redis.Redis, steps: list[set[str] | int]
) -> None:
    leftover = raw.keys(f"smoothpool:{{{pool.keys.pool}}}:*")
    if leftover:
        raw.delete(*leftover)
    live: dict[str, int] = {}
    parked: dict[str, int] = {}
    for step in steps:
        if isinstance(step, int):
            assert len(run(picks(pool, step))) == (step if live else 0)
            for _ in range(step if live else 0):
                live[min(live, key=lambda m: (live[m], m))] += 1
            continue
        run(publish(pool, dict.fromkeys(step, "line"), start=4))
        minimum = min(live.values(), default=4)
        parked |= {m: n for m, n in live.items() if m not in step}
        live = {m: live.get(m, max(minimum, parked.get(m, 0))) for m in step}
        parked = {m: n for m, n in parked.items() if m not in live}
        assert run(pool.counts()) == live
        assert dict(raw.zrange(pool.keys.parked, 0, -1, withscores=True)) == parked


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_publishing_that_is_no_longer_wanted_changes_nothing(
    pool: SharedPool, raw: redis.Redis, steps: int
) -> None:
    run(pool.publish(named(3), "one"))
    left = [steps]

    def go_on() -> None:
        if not left[0]:
            raise LookupError("not wanted")
        left[0] -= 1

    with pytest.raises(LookupError):
        run(pool.publish(named(1_000), "two", go_on=go_on))
    assert run(pool.load_members()) == named(3)
    assert raw.get(pool.keys.publisher) is None
    assert [key for key in raw.keys(f"smoothpool:{{{pool.keys.pool}}}:*") if "staging" in key] == []
