"""Does no script touch more than a step of members at a time, whatever the pool's size?

Counted, not timed: ``benchmarks/load.py`` has the times.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from store_helpers import fingerprint, named, rules, run

from scrapy_smoothpool.store import publish, scripts
from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.verdicts import Delivery, Happened, Kind

if TYPE_CHECKING:
    import redis

    from scrapy_smoothpool.store.shared_pool import SharedPool

AT_ONCE = rules(eject_after=1, max_percent=100)
SIZE, OUT = 2_000, 1_200


def bring(pool: SharedPool, members: dict[str, str], **options: Any) -> publish.PublishResult:
    return run(pool.publish(members, fingerprint(members), **options))


def put_out(pool: SharedPool, names: list[str], epoch: int = 0) -> None:
    for start in range(0, len(names), 500):
        step = names[start : start + 500]
        events = [Happened(name, epoch, Kind.FAULTY, "why") for name in step]
        epoch = run(pool.report_outcomes(AT_ONCE, events)).epoch


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Script → number of arguments of each call."""
    found: dict[str, list[int]] = defaultdict(list)
    original = RedisConnection.run

    async def noting(self: RedisConnection, script: Any, keys: Any, args: Any = ()) -> Any:
        found[script.name].append(len(args))
        return await original(self, script, keys, args)

    monkeypatch.setattr(RedisConnection, "run", noting)
    return found


def test_publishing_goes_a_step_at_a_time(pool: SharedPool, calls: dict[str, list[int]]) -> None:
    members = named(SIZE)
    bring(pool, members)
    put_out(pool, list(members)[:OUT])
    calls.clear()
    assert bring(pool, named(SIZE // 2, SIZE + SIZE // 2)).changed
    assert max(max(numbers) for numbers in calls.values()) <= 2 * publish.STEP + 10
    assert len(calls["stage_members"]) == SIZE / publish.STEP
    assert len(calls["stir"]) >= OUT / publish.STEP
    assert len(calls["swap_in"]) >= OUT / publish.CARRIED
    assert len(calls["settle_retired"]) >= SIZE / publish.STEP


def test_the_call_that_swaps_moves_at_most_a_step_of_members(
    pool: SharedPool, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = named(SIZE)
    bring(pool, members)
    put_out(pool, list(members)[:OUT])
    left, swap_in = [], scripts.swap_in

    async def looking(conn: Any, keys: Any, token: str, *rest: Any) -> Any:
        found = await swap_in(conn, keys, token, *rest)
        left.append(found)
        return found

    monkeypatch.setattr(scripts, "swap_in", looking)
    assert bring(pool, named(SIZE + 1)).changed
    *between, swapped = left
    assert between == [OUT - publish.CARRIED * (n + 1) for n in range(len(between))]
    assert isinstance(swapped, scripts.Swapped)
    assert not raw.exists(pool.keys.stirred)


def test_who_is_out_stays_out_as_it_was(pool: SharedPool, raw: redis.Redis) -> None:
    members = named(SIZE)
    bring(pool, members)
    run(pool.pick_many(64))
    put_out(pool, list(members)[:OUT])
    stays = list(members)[SIZE // 4 :]
    keys = pool.keys

    def standing() -> list[Any]:
        return [
            {name: score for name, score in raw.zrange(key, 0, -1, withscores=True) if name in kept}
            for key in (keys.benched, keys.wakes, keys.ejections)
        ]

    kept = set(stays)
    before, records = standing(), raw.hmget(keys.health, stays)
    bring(pool, dict.fromkeys(stays, "line") | named(SIZE, SIZE + 50))
    assert standing() == before
    assert raw.hmget(keys.health, stays) == records
    # Who left is forgotten, and parked with its count.
    assert raw.zcard(keys.benched) == OUT - SIZE // 4
    assert raw.hlen(keys.health) == OUT - SIZE // 4
    assert raw.zcard(keys.parked) == SIZE // 4
    assert not raw.exists(keys.retired, keys.retired_out, keys.retired_copied)


@pytest.mark.parametrize("what", ["put out", "back", "probed", "probe failed"])
def test_what_happens_while_the_swap_is_prepared_is_carried_over(
    pool: SharedPool, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    members = named(SIZE)
    bring(pool, members)
    names = list(members)
    put_out(pool, names[:OUT])
    raw.zadd(pool.keys.wakes, {names[0]: 1})  # due
    leased = run(pool.take_probe(60.0)) if what in ("back", "probe failed") else None
    swap_in, called, happened = scripts.swap_in, 0, False

    async def meanwhile(conn: Any, keys: Any, token: str, *rest: Any) -> Any:
        nonlocal called, happened
        called += 1
        found = await swap_in(conn, keys, token, *rest)
        if isinstance(found, int) and found <= publish.CARRIED and not happened:
            happened = True
            # All but the last step are in their places.
            epoch = 10**6
            kinds = {"put out": Kind.FAULTY, "back": Kind.SUCCESS, "probe failed": Kind.FAULTY}
            if what == "probed":
                assert (await pool.take_probe(60.0)).leased == {names[0]: "why"}
            else:
                name = names[OUT] if what == "put out" else names[0]
                delivery = Delivery("worker", 1)
                event = Happened(name, epoch, kinds[what], "late")
                await pool.report_outcomes(AT_ONCE, [event], delivery)
        return found

    monkeypatch.setattr(scripts, "swap_in", meanwhile)
    if leased is not None:
        assert list(leased.leased) == [names[0]]
    assert bring(pool, named(SIZE + 1)).changed
    monkeypatch.undo()
    assert happened
    assert called >= OUT / publish.CARRIED
    out = run(pool.out())
    assert len(out) == OUT + {"put out": 1, "back": -1}.get(what, 0)
    assert (names[OUT] in out) is (what == "put out")
    assert (names[0] in out) is (what != "back")
    if what == "back":
        assert raw.zscore(pool.keys.allocations, names[0]) is not None
        assert raw.zscore(pool.keys.wakes, names[0]) is None
    else:
        # Nobody else is given the probe that is under way, or one before its time.
        expected = {names[0]: "why"} if what == "put out" else {}
        assert run(pool.take_probe(60.0)).leased == expected
    assert raw.zcard(pool.keys.allocations) + len(out) == SIZE + 1


def test_nothing_is_noted_while_nobody_publishes(pool: SharedPool, raw: redis.Redis) -> None:
    bring(pool, named(10))
    put_out(pool, list(named(5)))
    raw.zadd(pool.keys.wakes, dict.fromkeys(named(5), 1))
    run(pool.take_probe(60.0, wanted=3))
    assert not raw.exists(pool.keys.stirred)


def test_records_that_belong_to_nobody_are_forgotten(pool: SharedPool, raw: redis.Redis) -> None:
    bring(pool, named(10))
    put_out(pool, ["p00003"])
    raw.hset(pool.keys.health, mapping=dict.fromkeys(named(100, 700), "active 0 0 - 0 0 -"))
    bring(pool, named(11))
    assert raw.hkeys(pool.keys.health) == ["p00003"]
