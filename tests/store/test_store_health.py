"""Health of a shared pool: the bench, probes, publishing with members out, lost keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_clock import ServerClock
from store_helpers import fingerprint, named, rules, run

from scrapy_smoothpool.health import CANDIDATE, WINDOW
from scrapy_smoothpool.store import scripts
from scrapy_smoothpool.store.publish import PublishResult
from scrapy_smoothpool.store.verdicts import (
    Delivery,
    Happened,
    Judged,
    Judgement,
    Kind,
    MemberOut,
    Record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import redis

    from scrapy_smoothpool.store.shared_pool import SharedPool

AT_ONCE = rules(eject_after=1, max_percent=100)


@pytest.fixture
def clock(pool: SharedPool, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> ServerClock:
    return ServerClock(raw, f"clock:{pool.keys.pool}", monkeypatch)


def publish(pool: SharedPool, members: dict[str, str], candidates: bool = False) -> PublishResult:
    return run(pool.publish(members, fingerprint(members), candidates=candidates))


def report(pool: SharedPool, proxy_id: str, kind: Kind, epoch: int | None = None) -> Judged:
    """Report one outcome of an assignment made now."""
    if epoch is None:
        epoch = run(pool.take_probe(1.0, wanted=0)).epoch
    return run(pool.report_outcomes(AT_ONCE, [Happened(proxy_id, epoch, kind, "why")])).outcomes[0]


def put_out(pool: SharedPool, *proxy_ids: str) -> None:
    epoch = run(pool.take_probe(1.0, wanted=0)).epoch
    for start in range(0, len(proxy_ids), 1000):
        step = proxy_ids[start : start + 1000]
        events = [Happened(proxy_id, epoch, Kind.FAILED, "why") for proxy_id in step]
        outcomes = run(pool.report_outcomes(AT_ONCE, events)).outcomes
        assert all(judged.ejected_for is not None for judged in outcomes)


def probe(pool: SharedPool, excluded: Iterable[str] = (), wanted: int = 1) -> list[str]:
    return list(run(pool.take_probe(100.0, 0, wanted, excluded, unchecked=True)).leased)


def come_back(pool: SharedPool, clock: ServerClock, *proxy_ids: str) -> None:
    clock.pass_(10_000)
    assert set(probe(pool, wanted=100)) >= set(proxy_ids)
    for proxy_id in proxy_ids:
        assert report(pool, proxy_id, Kind.SUCCESS).restored


def picks(pool: SharedPool, number: int) -> list[str | None]:
    async def main() -> list[str | None]:
        return [await pool.pick() for _ in range(number)]

    return run(main())


def scores(raw: redis.Redis, key: str) -> dict[str, int]:
    return {member: int(score) for member, score in raw.zrange(key, 0, -1, withscores=True)}


def check(pool: SharedPool, raw: redis.Redis, members: Iterable[str]) -> None:
    """Assert that every one of *members* is in rotation or out, and nobody else anywhere."""
    keys = pool.keys
    rotation, benched = scores(raw, keys.allocations), scores(raw, keys.benched)
    assert not rotation.keys() & benched.keys()
    assert rotation.keys() | benched.keys() == set(members)
    wakes, unchecked = scores(raw, keys.wakes), scores(raw, keys.unchecked)
    assert not wakes.keys() & unchecked.keys()
    assert wakes.keys() | unchecked.keys() == benched.keys()
    assert scores(raw, keys.ejections).keys() == benched.keys()
    assert len(set(scores(raw, keys.ejections).values())) == len(benched)
    assert set(raw.hkeys(keys.health)) <= set(members)
    assert all(Record.parse(packed) for packed in raw.hvals(keys.health))


# The bench.


def test_who_is_out_is_never_picked_and_keeps_its_count(pool: SharedPool, raw: redis.Redis) -> None:
    publish(pool, named(4))
    picks(pool, 40)
    put_out(pool, "p00001", "p00002")
    assert set(picks(pool, 100)) == {"p00000", "p00003"}
    assert scores(raw, pool.keys.benched) == {"p00001": 10, "p00002": 10}
    assert run(pool.counts()) == {"p00000": 60, "p00001": 10, "p00002": 10, "p00003": 60}
    assert run(pool.counts(["p00001", "p00003", "gone"])) == {"p00001": 10, "p00003": 60}
    assert run(pool.size()) == 4


def test_it_comes_back_at_the_least_in_rotation(pool: SharedPool, clock: ServerClock) -> None:
    publish(pool, named(4))
    picks(pool, 40)
    put_out(pool, "p00001")
    picks(pool, 60)
    come_back(pool, clock, "p00001")
    assert run(pool.counts())["p00001"] == 30
    assert picks(pool, 4) == list(named(4))


def test_it_comes_back_with_its_own_count_if_that_is_greater(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    raw.zadd(pool.keys.allocations, {"p00001": 500})
    put_out(pool, "p00001")
    come_back(pool, clock, "p00001")
    assert run(pool.counts())["p00001"] == 500


def test_a_member_that_an_operator_rests_sets_no_count(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(2))
    raw.zadd(pool.keys.allocations, {"p00000": "inf"})
    put_out(pool, "p00001")
    come_back(pool, clock, "p00001")
    assert picks(pool, 3) == ["p00001"] * 3


@pytest.mark.parametrize("kind", [Kind.FAILED, Kind.FAULTY, Kind.LOGIN])
def test_a_pool_of_one_never_wedges(pool: SharedPool, kind: Kind) -> None:
    publish(pool, named(1))
    for number in range(1, 30):
        judged = report(pool, "p00000", kind)
        assert judged == Judged(False, "active", number, None, spared=True)
    assert picks(pool, 1) == ["p00000"]


def test_all_may_be_out_when_the_user_allows_it(pool: SharedPool, clock: ServerClock) -> None:
    publish(pool, named(3))
    put_out(pool, *named(3))
    assert picks(pool, 1) == [None]
    assert run(pool.size()) == 3
    assert publish(pool, named(3)) == PublishResult(False, 3)
    come_back(pool, clock, *named(3))
    assert None not in picks(pool, 3)


def test_what_a_worker_may_read_of_it(pool: SharedPool, clock: ServerClock) -> None:
    publish(pool, named(4))
    put_out(pool, "p00001")
    clock.pass_(12.5)
    put_out(pool, "p00002")
    report(pool, "p00003", Kind.SUCCESS)
    out = run(pool.out())
    assert out == {
        "p00001": MemberOut("ejected", "why", 17.5),
        "p00002": MemberOut("ejected", "why", 30.0),
    }
    assert run(pool.records(named(4))) == {
        "p00001": Record("ejected", 1, 0, "", 1, 0, "why"),
        "p00002": Record("ejected", 2, 0, "", 1, 0, "why"),
        "p00003": Record("active", 0, 0, "0", 0, 0, ""),
    }


def test_the_time_until_it_wakes_is_in_seconds_by_the_servers_clock(pool: SharedPool) -> None:
    publish(pool, named(4))
    put_out(pool, "p00001")
    assert 29.0 < run(pool.out())["p00001"].wake <= 30.0
    assert 29.0 < (run(pool.take_probe(100.0)).next_wake or 0) <= 30.0


def test_jitter_draws_an_ejection_out_to_whole_milliseconds(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    event = Happened("p00000", 0, Kind.FAILED, "why", 1.10001)
    judgement = run(pool.report_outcomes(AT_ONCE, [event]))
    assert judgement.outcomes[0].ejected_for == 33.0
    assert scores(raw, pool.keys.wakes) == {"p00000": clock.now + 33_000}


def test_an_outcome_never_brings_a_removed_member_back(pool: SharedPool, raw: redis.Redis) -> None:
    publish(pool, named(3))
    publish(pool, named(2))
    for kind in Kind:
        assert report(pool, "p00002", kind, 10**6) == Judged(True, "", 0)
    check(pool, raw, named(2))
    assert raw.hlen(pool.keys.health) == 0


def test_a_thousand_outcomes_are_one_call_and_more_are_refused(pool: SharedPool) -> None:
    publish(pool, named(1500))
    picked = list(named(1500))
    events = [Happened(proxy_id, 0, Kind.FAILED, "why") for proxy_id in picked]
    judgement = run(pool.report_outcomes(AT_ONCE, events[:1000]))
    assert (judgement.out, judgement.members, judgement.epoch) == (1000, 1500, 1000)
    assert {judged.ejected_for for judged in judgement.outcomes} == {30.0}
    with pytest.raises(ValueError, match="1001 outcomes"):
        run(pool.report_outcomes(AT_ONCE, events[:1001]))
    assert run(pool.report_outcomes(AT_ONCE, [])) == (1000, 1000, 1500, [], 0)


def test_outcomes_of_one_batch_are_judged_in_their_order(pool: SharedPool) -> None:
    publish(pool, named(4))
    kinds = [Kind.FAILED, Kind.FAILED, Kind.SUCCESS, Kind.FAILED, Kind.FAILED, Kind.FAILED]
    events = [Happened("p00000", 0, kind) for kind in [*kinds, Kind.SUCCESS]]
    judgement = run(pool.report_outcomes(rules(), events))
    assert [judged.consecutive for judged in judgement.outcomes] == [1, 2, 0, 1, 2, 3, 0]
    assert [judged.state for judged in judgement.outcomes] == ["active"] * 5 + ["ejected"] * 2
    assert judgement.outcomes[-1].stale


def test_a_success_after_a_window_of_them_changes_nothing_and_yet_is_judged(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))

    def told(*events: Happened) -> list[Judged]:
        return run(pool.report_outcomes(rules(), events)).outcomes

    def success(epoch: int) -> Happened:
        return Happened("p00000", epoch, Kind.SUCCESS)

    failure = Happened("p00000", 0, Kind.FAULTY, "why")
    told(*[failure] * 3)  # out, in epoch 1
    clock.pass_(31)
    assert run(pool.take_probe(60)).leased == {"p00000": "why"}
    assert told(success(1))[0].restored
    told(*[success(1)] * WINDOW)
    kept = raw.hget(pool.keys.health, "p00000")
    assert told(success(1)) == [Judged(stale=False, state="active", consecutive=0)]
    assert told(success(0)) == [Judged(stale=True, state="active", consecutive=0)]
    assert run(pool.report_outcomes(rules(), [success(7)])).epoch == 7
    assert raw.hget(pool.keys.health, "p00000") == kept
    # In one batch with what does change something, the order counts as ever.
    again = failure._replace(epoch=1)
    judged = told(success(1), again, again, success(1), again, success(0))
    assert [(one.consecutive, one.stale) for one in judged] == [
        (0, False), (1, False), (2, False), (0, False), (1, False), (1, True),
    ]  # fmt: skip
    assert raw.hget(pool.keys.health, "p00000") != kept
    gone = {id_: line for id_, line in named(4).items() if id_ != "p00000"}
    publish(pool, gone)
    assert told(success(7)) == [Judged(stale=True, state="", consecutive=0)]


def test_a_delivery_that_is_sent_again_is_answered_as_before_and_changes_nothing(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(6))
    publish(pool, named(8), candidates=True)

    def deliver(kinds: list[Kind], delivery: Delivery | None) -> Judgement:
        events = [
            Happened(m, 100, kind, "why", 1.25)
            for kind in kinds
            for m in ["p00001", "p00002", "stranger"]
        ]
        return run(pool.report_outcomes(rules(eject_after=4), events, delivery))

    first = deliver([Kind.FAILED] * 2, Delivery("one", 1))
    kept = {key: raw.dump(key) for key in raw.keys(f"smoothpool:{{{pool.keys.pool}}}:*")}
    clock.pass_(10)
    assert deliver([Kind.FAILED] * 2, Delivery("one", 1)) == first
    assert deliver([Kind.LOGIN], Delivery("one", 1)) == first  # its number is what counts
    assert {key: raw.dump(key) for key in kept} == kept
    assert 0 < raw.pttl(pool.keys.delivered("one")) <= scripts.DELIVERED_TTL
    assert {judged.consecutive for judged in first.outcomes} == {0, 1, 2}

    # Another worker's is another one, and so is the next.
    assert deliver([Kind.FAILED], Delivery("two", 1)).outcomes[0].consecutive == 3
    second = deliver([Kind.FAILED], Delivery("one", 2))
    assert second.outcomes[0].ejected_for == 37.5
    assert deliver([Kind.FAILED], Delivery("one", 2)) == second
    with pytest.raises(ValueError, match="greater number"):
        deliver([Kind.FAILED] * 2, Delivery("one", 1))
    assert deliver([Kind.FAILED], None).outcomes[0].stale


def test_a_thousand_outcomes_are_remembered_in_a_delivery(
    pool: SharedPool, raw: redis.Redis
) -> None:
    publish(pool, named(1500))
    longest = rules(eject_after=1, max_percent=100, eject_time=1e11, eject_time_max=2e12)
    events = [Happened(m, 2**52, Kind.FAILED, "why", 1.5) for m in list(named(1000))]
    first = run(pool.report_outcomes(longest, events, Delivery("one", 2**40)))
    assert first.epoch == 2**52 + 1000
    assert run(pool.report_outcomes(longest, events, Delivery("one", 2**40))) == first
    assert raw.strlen(pool.keys.delivered("one")) < 30_000


# Probes.


def test_one_of_many_takers_gets_the_probe(
    make_pool: Callable[..., SharedPool], clock: ServerClock
) -> None:
    pool = make_pool()
    publish(pool, named(3))
    put_out(pool, "p00001")
    clock.pass_(30)

    async def main() -> list[list[str]]:
        takers = [make_pool() for _ in range(8)]
        probes = await asyncio.gather(*(taker.take_probe(100.0) for taker in takers))
        return [list(taken.leased) for taken in probes]

    assert sorted(run(main())) == [[]] * 7 + [["p00001"]]


def test_a_lease_runs_out_and_another_may_probe(pool: SharedPool, clock: ServerClock) -> None:
    publish(pool, named(3))
    put_out(pool, "p00001")
    clock.pass_(30)
    assert probe(pool) == ["p00001"]
    clock.pass_(99.999)
    assert probe(pool) == []
    clock.pass_(0.001)
    assert probe(pool) == ["p00001"]
    assert report(pool, "p00001", Kind.SUCCESS).restored  # whichever of them it was
    assert not report(pool, "p00001", Kind.SUCCESS).restored


def test_those_excluded_keep_nobody_waiting_however_many(
    pool: SharedPool, clock: ServerClock
) -> None:
    publish(pool, named(300))
    ids = list(named(300))
    put_out(pool, *ids[:250])
    clock.pass_(60)
    assert probe(pool, ids[:200], wanted=2) == ids[200:202]
    assert probe(pool, ids[:250]) == []
    assert probe(pool, ids[1:], wanted=5) == ids[:1]
    assert probe(pool, wanted=500) == ids[1:200] + ids[202:250]


def test_who_was_put_out_since_is_told_a_thousand_at_a_time(pool: SharedPool) -> None:
    publish(pool, named(2500))
    ids = list(named(2500))
    put_out(pool, *ids[:2300])
    seen: list[str] = []
    since, calls = 0, 0
    while True:
        probes = run(pool.take_probe(100.0, since))
        seen += probes.put_out
        since, calls = probes.complete_until, calls + 1
        assert len(probes.put_out) <= 1000
        if since == probes.epoch:
            break
    assert (seen, calls, since) == (ids[:2300], 3, 2300)
    assert run(pool.take_probe(100.0, since)).put_out == []


# Publishing.


def test_the_same_list_changes_nothing_of_who_is_out(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(5))
    picks(pool, 25)
    put_out(pool, "p00001", "p00003")
    before = {key: raw.dump(key) for key in raw.keys(f"smoothpool:{{{pool.keys.pool}}}:*")}
    assert publish(pool, named(5)) == PublishResult(False, 5)
    assert {key: raw.dump(key) for key in before} == before


def test_who_is_out_stays_out_when_the_list_changes(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(5))
    picks(pool, 25)
    put_out(pool, "p00001", "p00003")
    picks(pool, 30)
    before = run(pool.records(named(5)))
    wakes = scores(raw, pool.keys.wakes)
    result = publish(pool, named(2, 8))
    assert result == PublishResult(True, 6, replaced=5, added=3, removed=2)
    check(pool, raw, named(2, 8))
    assert scores(raw, pool.keys.benched) == {"p00003": 5}
    assert scores(raw, pool.keys.wakes) == {"p00003": wakes["p00003"]}
    assert run(pool.records(named(8))) == {"p00003": before["p00003"]}
    # The least of those in rotation, not of those that are out.
    assert run(pool.counts())["p00007"] == 15
    assert scores(raw, pool.keys.parked) == {"p00000": 15, "p00001": 5}
    assert "p00003" not in picks(pool, 100)
    come_back(pool, clock, "p00003")


def test_who_is_put_out_while_a_list_is_staged_is_out_after_the_swap(
    pool: SharedPool, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(pool, named(4))
    picks(pool, 8)
    swap_in = scripts.swap_in

    async def late(*args: object) -> object:
        for _ in range(4):
            assert await pool.pick()
        await pool.report_outcomes(AT_ONCE, [Happened("p00001", 0, Kind.FAILED)])
        return await swap_in(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(scripts, "swap_in", late)
    publish(pool, named(1, 6))
    check(pool, raw, named(1, 6))
    assert scores(raw, pool.keys.benched) == {"p00001": 3}
    assert scores(raw, pool.keys.allocations) == {
        "p00002": 3,
        "p00003": 3,
        "p00004": 2,
        "p00005": 2,
    }


def test_who_comes_back_while_a_list_is_staged_is_in_after_the_swap(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(pool, named(4))
    put_out(pool, "p00001")
    picks(pool, 30)
    clock.pass_(30)
    assert probe(pool) == ["p00001"]
    swap_in = scripts.swap_in

    async def late(*args: object) -> object:
        await pool.report_outcomes(AT_ONCE, [Happened("p00001", 1, Kind.SUCCESS)])
        return await swap_in(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(scripts, "swap_in", late)
    publish(pool, named(1, 6))
    check(pool, raw, named(1, 6))
    assert scores(raw, pool.keys.benched) == {}
    assert run(pool.counts())["p00001"] == 10


def test_a_list_that_shrinks_to_those_out_lets_the_first_back_in(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    picks(pool, 16)
    put_out(pool, "p00002")
    clock.pass_(1)
    put_out(pool, "p00000")
    clock.pass_(1)
    result = publish(pool, {m: line for m, line in named(3).items() if m != "p00001"})
    assert result == PublishResult(True, 2, replaced=4, removed=2, let_in="p00002")
    check(pool, raw, ["p00000", "p00002"])
    assert picks(pool, 3) == ["p00002"] * 3
    assert run(pool.counts()) == {"p00000": 4, "p00002": 7}
    record = run(pool.records(["p00002"]))["p00002"]
    assert record == Record("active", 1, 0, "0", 1, clock.now, "why")
    # An outcome from before it was put out still does not count.
    assert report(pool, "p00002", Kind.FAILED, epoch=0).stale


def test_of_two_that_would_come_back_at_once_the_first_in_byte_order_is_let_in(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    members = dict.fromkeys(["a", "B", "é", "in"], "http://10.0.0.1:1")
    publish(pool, members)
    put_out(pool, "é", "a", "B")
    del members["in"]
    assert publish(pool, members).let_in == "B"


def test_a_probe_runs_while_another_list_is_published(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    put_out(pool, "p00000", "p00001")
    clock.pass_(30)
    assert probe(pool, wanted=2) == ["p00000", "p00001"]
    publish(pool, named(1, 6))
    check(pool, raw, named(1, 6))
    assert run(pool.records(["p00001"]))["p00001"].state == "probing"
    assert report(pool, "p00001", Kind.SUCCESS).restored
    assert report(pool, "p00000", Kind.SUCCESS) == Judged(True, "", 0)
    check(pool, raw, named(1, 6))


def test_removed_while_out_and_listed_again_it_is_in_with_its_count_and_a_clean_record(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    raw.zadd(pool.keys.allocations, {"p00000": 50})
    put_out(pool, "p00000")
    publish(pool, named(1, 4))
    assert scores(raw, pool.keys.parked) == {"p00000": 50}
    check(pool, raw, named(1, 4))
    publish(pool, named(4))
    check(pool, raw, named(4))
    assert scores(raw, pool.keys.benched) == {}
    assert run(pool.counts())["p00000"] == 50
    assert run(pool.records(named(4))) == {}


def test_those_parked_lose_their_record(pool: SharedPool, raw: redis.Redis) -> None:
    publish(pool, named(3000))
    events = [Happened(proxy_id, 0, Kind.SUCCESS) for proxy_id in named(3000)]
    for start in (0, 1000, 2000):
        run(pool.report_outcomes(AT_ONCE, events[start : start + 1000]))
    assert raw.hlen(pool.keys.health) == 3000
    publish(pool, named(2999, 3001))
    assert raw.hkeys(pool.keys.health) == ["p02999"]


def test_newcomers_to_a_pool_that_is_all_out_start_at_the_least_of_it(
    pool: SharedPool, raw: redis.Redis
) -> None:
    publish(pool, named(2))
    raw.zadd(pool.keys.allocations, {"p00000": 70, "p00001": 80})
    put_out(pool, "p00000", "p00001")
    assert publish(pool, named(3)).let_in is None
    assert scores(raw, pool.keys.allocations) == {"p00002": 70}


def test_thousands_out_are_kept_out(pool: SharedPool, raw: redis.Redis) -> None:
    publish(pool, named(3500))
    ids = list(named(3500))
    put_out(pool, *ids[:2100])
    publish(pool, named(50, 4000))
    check(pool, raw, named(50, 4000))
    assert set(scores(raw, pool.keys.benched)) == set(ids[50:2100])


# Candidates.


def test_candidates_begin_outside_and_are_due(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(3))
    picks(pool, 30)
    put_out(pool, "p00000")
    clock.pass_(1)
    members = named(6)
    result = publish(pool, members, candidates=True)
    assert result == PublishResult(True, 6, replaced=3, added=3)
    check(pool, raw, members)
    assert scores(raw, pool.keys.allocations) == {"p00001": 10, "p00002": 10}
    out = run(pool.out())
    assert {m: (o.state, o.reason) for m, o in out.items()} == {
        "p00000": ("ejected", "why"),
        **dict.fromkeys(named(3, 6), ("ejected", CANDIDATE)),
    }
    probes = run(pool.take_probe(100.0, 1, 10, unchecked=True))
    assert probes.leased == dict.fromkeys(named(3, 6), CANDIDATE)
    assert probes.put_out == list(named(3, 6))
    assert report(pool, "p00003", Kind.PASSED).restored
    assert run(pool.counts())["p00003"] == 10
    assert report(pool, "p00004", Kind.FAILED).ejected_for == 30.0
    assert run(pool.out())["p00004"].reason == CANDIDATE  # until it has passed
    clock.pass_(100)
    again = run(pool.take_probe(100.0, 1, 10, unchecked=True)).leased
    assert again == {"p00000": "why", "p00004": CANDIDATE, "p00005": CANDIDATE}


def test_what_was_assigned_before_says_nothing_of_a_candidate(
    pool: SharedPool, clock: ServerClock
) -> None:
    publish(pool, named(2))
    before = run(pool.take_probe(100.0)).epoch
    publish(pool, named(1))
    publish(pool, named(2), candidates=True)
    assert probe(pool) == ["p00001"]
    assert report(pool, "p00001", Kind.SUCCESS, before).stale
    assert report(pool, "p00001", Kind.SUCCESS).restored


def test_a_first_list_of_candidates_lets_nobody_in(pool: SharedPool, raw: redis.Redis) -> None:
    assert publish(pool, named(2500), candidates=True) == PublishResult(True, 2500, added=2500)
    check(pool, raw, named(2500))
    assert picks(pool, 1) == [None]
    assert raw.hlen(pool.keys.health) == 0
    assert publish(pool, named(2500), candidates=True) == PublishResult(False, 2500)
    # Another list of them, some probed, some not: still nobody has been checked.
    assert probe(pool, wanted=2) == ["p00000", "p00001"]
    assert publish(pool, named(1, 2000), candidates=True).let_in is None
    check(pool, raw, named(1, 2000))
    assert picks(pool, 1) == [None]
    assert {raw.ttl(key) for key in raw.keys(f"smoothpool:{{{pool.keys.pool}}}:*")} > {-1}
    for key in (pool.keys.benched, pool.keys.unchecked, pool.keys.ejections):
        assert raw.ttl(key) == -1


def test_candidates_that_return_from_the_parked_keep_their_count(
    pool: SharedPool, raw: redis.Redis
) -> None:
    publish(pool, named(3))
    raw.zadd(pool.keys.allocations, {"p00000": 40})
    publish(pool, named(1, 3))
    publish(pool, named(3), candidates=True)
    check(pool, raw, named(3))
    assert scores(raw, pool.keys.benched) == {"p00000": 40}
    assert raw.exists(pool.keys.parked) == 0


def test_candidates_published_without_the_flag_stay_candidates(
    pool: SharedPool, raw: redis.Redis
) -> None:
    publish(pool, named(3), candidates=True)
    publish(pool, named(1, 5))
    check(pool, raw, named(1, 5))
    assert set(run(pool.out())) == {"p00001", "p00002"}


def unchecked(pool: SharedPool, raw: redis.Redis) -> set[str]:
    assert run(pool.take_probe(1.0, wanted=0)).unchecked == raw.zcard(pool.keys.unchecked)
    return set(scores(raw, pool.keys.unchecked))


def test_candidates_count_neither_as_out_nor_as_members_in_the_limits(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    members = named(24)
    publish(pool, members, candidates=True)
    events = [Happened(m, 100, Kind.FAILED) for m in named(4)]
    judgement = run(pool.report_outcomes(rules(eject_after=1, max_percent=50), events))
    assert [bool(judged.ejected_for) for judged in judgement.outcomes] == [True, True, False, False]
    assert (judgement.out, judgement.members) == (22, 24)
    assert (judgement.unchecked, judgement.checked) == (20, 4)
    events = [Happened(m, 100, Kind.FAULTY) for m in named(4)]
    judgement = run(pool.report_outcomes(rules(eject_after=1), events))
    assert [judged.spared for judged in judgement.outcomes] == [False] * 3 + [True]
    # One more that passed makes room for one more that is put out.
    probes = run(pool.take_probe(100.0, wanted=1, unchecked=True))
    (passed,) = probes.leased
    assert report(pool, passed, Kind.PASSED).restored
    assert not report(pool, "p00003", Kind.FAULTY).spared
    assert unchecked(pool, raw) == set(named(4, 24)) - {passed}
    check(pool, raw, members)


def test_a_check_that_fails_leaves_it_unchecked_and_one_that_passes_ends_that(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4), candidates=True)
    assert probe(pool, wanted=4) == list(named(4))
    report(pool, "p00000", Kind.FAULTY)
    report(pool, "p00001", Kind.PASSED)
    report(pool, "p00003", Kind.SUCCESS)
    assert unchecked(pool, raw) == {"p00000", "p00002"}
    put_out(pool, "p00001")
    assert unchecked(pool, raw) == {"p00000", "p00002"}
    assert scores(raw, pool.keys.wakes).keys() == {"p00001"}
    clock.pass_(1_000)
    assert run(pool.take_probe(100.0, wanted=9, unchecked=True)).leased == {
        "p00000": CANDIDATE,
        "p00001": "why",
        "p00002": CANDIDATE,
    }


def test_without_admission_candidates_are_passed_over_and_keep_nobody_waiting(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    put_out(pool, "p00001")
    members = named(3000)
    publish(pool, members, candidates=True)
    clock.pass_(30)
    found = run(pool.take_probe(100.0, wanted=9))
    assert list(found.leased) == ["p00001"]
    assert found.next_wake == 100.0
    assert run(pool.take_probe(100.0, wanted=9)).leased == {}
    assert len(run(pool.take_probe(7.0, wanted=9, unchecked=True)).leased) == 9
    # That their leases run out concerns the others only.
    assert run(pool.take_probe(100.0, wanted=0)).next_wake == 100.0
    assert run(pool.take_probe(100.0, wanted=0, unchecked=True)).next_wake == 7.0
    check(pool, raw, members)


def test_who_is_due_is_handed_out_in_the_order_of_waking_whether_checked_or_not(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(200))
    ids = list(named(400))
    put_out(pool, *ids[:200:2])
    clock.pass_(30)
    publish(pool, named(400), candidates=True)
    raw.zadd(pool.keys.wakes, {"p00004": clock.now - 5})
    raw.zadd(pool.keys.unchecked, {"p00399": clock.now - 4, "p00201": clock.now - 5})
    assert probe(pool, ids[10:300], wanted=8) == [
        *("p00004", "p00399"),
        *("p00000", "p00002", "p00006", "p00008", "p00300", "p00301"),
    ]


def test_unchecked_ones_that_leave_the_list_are_forgotten(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(5), candidates=True)
    assert probe(pool, wanted=2) == ["p00000", "p00001"]
    assert report(pool, "p00000", Kind.SUCCESS).restored
    report(pool, "p00001", Kind.FAULTY)
    publish(pool, named(1, 4), candidates=True)
    assert unchecked(pool, raw) == {"p00001", "p00002", "p00003"}
    # The one that passed begins anew when it is back.
    publish(pool, named(4), candidates=True)
    assert unchecked(pool, raw) == set(named(4))
    check(pool, raw, named(4))


@pytest.mark.parametrize("admission", [True, False])
@pytest.mark.parametrize("first", ["probe", "report", "publish"])
def test_the_loss_of_who_is_unchecked_narrows_the_limits_and_mends(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock, first: str, admission: bool
) -> None:
    publish(pool, named(4))
    put_out(pool, "p00000")
    members = named(10)
    publish(pool, members, candidates=True)
    assert probe(pool, wanted=1) == ["p00004"]
    report(pool, "p00004", Kind.FAULTY)
    raw.delete(pool.keys.unchecked)
    epoch = 1_000
    if first == "report":
        event = Happened("p00001", epoch, Kind.FAILED)
        judgement = run(pool.report_outcomes(rules(eject_after=1), [event]))
        assert judgement.outcomes[0].spared
        assert (judgement.unchecked, judgement.checked) == (0, 10)
    elif first == "publish":
        members = named(11)
        publish(pool, members, candidates=admission)
    run(pool.take_probe(100.0, wanted=0, unchecked=admission))
    check(pool, raw, members)
    # Of p00004 a check is on record; the others are left to whoever can probe them.
    expected = set(members) - set(named(4)) if admission else {"p00004"}
    assert unchecked(pool, raw) == expected
    clock.pass_(10_000)
    leased = run(pool.take_probe(100.0, wanted=99, unchecked=admission)).leased
    assert set(leased) >= {"p00000", *named(5, 10)}
    if admission:
        assert leased["p00005"] == CANDIDATE


def test_a_check_under_way_when_it_is_lost_stays_one(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(3))
    publish(pool, named(6), candidates=True)
    assert probe(pool, wanted=3) == ["p00003", "p00004", "p00005"]
    raw.delete(pool.keys.unchecked)
    report(pool, "p00003", Kind.FAULTY)
    assert report(pool, "p00004", Kind.PASSED).restored
    run(pool.take_probe(100.0, wanted=0))
    assert unchecked(pool, raw) == {"p00003", "p00005"}
    check(pool, raw, named(6))


def test_one_that_is_in_both_is_unchecked(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(3), candidates=True)
    raw.zadd(pool.keys.wakes, {"p00001": 1, "stranger": 1})
    raw.zadd(pool.keys.unchecked, {"stranger": 1})
    assert run(pool.take_probe(100.0)).leased == {}
    check(pool, raw, named(3))
    assert unchecked(pool, raw) == set(named(3))


def test_candidates_let_nobody_count_as_out_when_the_bench_is_lost(
    pool: SharedPool, raw: redis.Redis
) -> None:
    publish(pool, named(4))
    publish(pool, named(24), candidates=True)
    raw.delete(pool.keys.benched)
    events = [Happened(m, 100, Kind.FAILED) for m in named(4)]
    judgement = run(pool.report_outcomes(rules(eject_after=1), events))
    assert [judged.spared for judged in judgement.outcomes] == [False, False, True, True]
    assert (judgement.members, judgement.checked) == (4, 4)


# Lost keys.

KEYS = [
    "allocations",
    "benched",
    "health",
    "wakes",
    "unchecked",
    "ejections",
    "epoch",
    "members",
    "fingerprint",
    "parked",
    "retired",
    "publisher",
]


@pytest.mark.parametrize("lost", KEYS)
@pytest.mark.parametrize("first", ["probe", "report", "publish", "publish another"])
def test_the_loss_of_any_key_mends(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock, lost: str, first: str
) -> None:
    publish(pool, named(8))
    picks(pool, 80)
    put_out(pool, *named(4))
    clock.pass_(30)
    assert probe(pool, wanted=2) == ["p00000", "p00001"]
    epoch = run(pool.take_probe(100.0, wanted=0)).epoch
    raw.delete(getattr(pool.keys, lost))

    members = named(8)
    if first == "probe":
        assert run(pool.take_probe(100.0, epoch, wanted=0)).whole == (
            lost not in ("allocations", "members")
        )
    elif first == "report":
        events = [Happened(m, epoch, kind) for m in members for kind in (Kind.FAILED, Kind.UNSENT)]
        run(pool.report_outcomes(rules(), events))
    elif first == "publish another":
        members = named(2, 10)
        publish(pool, members)
    publish(pool, members)
    probes = run(pool.take_probe(100.0, epoch, wanted=0))
    assert probes.whole
    assert probes.epoch >= epoch
    check(pool, raw, members)

    # Whoever is out comes back, sooner or later.
    for _ in range(3):
        clock.pass_(10_000)
        probes = run(pool.take_probe(100.0, probes.epoch, 100))
        events = [Happened(m, probes.epoch, Kind.SUCCESS) for m in probes.leased]
        run(pool.report_outcomes(AT_ONCE, events))
    check(pool, raw, members)
    assert set(scores(raw, pool.keys.allocations)) == set(members)
    # And may be put out again.
    put_out(pool, *list(members)[:3])
    check(pool, raw, members)


@pytest.mark.parametrize("lost", ["benched", "wakes", "ejections", "health", "epoch"])
def test_who_is_out_is_still_out_after_the_loss_of_a_key(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock, lost: str
) -> None:
    publish(pool, named(8))
    put_out(pool, *named(4))
    epoch = run(pool.take_probe(100.0)).epoch
    raw.delete(getattr(pool.keys, lost))
    probes = run(pool.take_probe(100.0, epoch, wanted=0))
    assert set(run(pool.out())) == set(named(4))
    check(pool, raw, named(8))
    assert probes.epoch == (epoch + 4 if lost == "ejections" else epoch)
    assert probes.put_out == (list(named(4)) if lost == "ejections" else [])


def test_a_flushed_server_is_published_again(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    put_out(pool, "p00000")
    raw.delete(*raw.keys(f"smoothpool:{{{pool.keys.pool}}}:*"))
    probes = run(pool.take_probe(100.0, 1))
    assert (probes.whole, probes.leased, probes.put_out, probes.epoch) == (False, {}, [], 1)
    assert report(pool, "p00001", Kind.FAILED, 1).stale
    publish(pool, named(4))
    check(pool, raw, named(4))
    assert scores(raw, pool.keys.benched) == {}
    put_out(pool, "p00001")
    assert run(pool.take_probe(100.0, 1)).put_out == ["p00001"]


def test_junk_in_the_health_keys_is_nothing_known(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    put_out(pool, "p00000", "p00001")
    raw.set(pool.keys.epoch, "junk")
    raw.hset(pool.keys.health, mapping=dict.fromkeys(named(4), "junk"))
    come_back(pool, clock, "p00000")
    assert report(pool, "p00002", Kind.SUCCESS).state == "active"
    publish(pool, named(1, 2))
    publish(pool, named(3), candidates=True)
    assert run(pool.take_probe(100.0)).whole


def test_one_that_an_operator_puts_into_rotation_by_hand_is_mended_by_its_probe(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    put_out(pool, "p00000")
    raw.zadd(pool.keys.allocations, {"p00000": 0})
    come_back(pool, clock, "p00000")
    check(pool, raw, named(4))


def test_records_that_belong_to_nobody_go_with_the_next_list(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock
) -> None:
    publish(pool, named(4))
    put_out(pool, "p00000")
    kept = run(pool.records(["p00000"]))
    raw.hset(pool.keys.health, mapping={f"x{n}": "active 0 0 0 0 0 -" for n in range(3000)})
    publish(pool, named(5))
    check(pool, raw, named(5))
    assert run(pool.records(["p00000"])) == kept


# Anything in any order.

few = [f"p{number:05}" for number in range(5)]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sets(st.sampled_from(few), min_size=1), st.booleans()),
        st.tuples(st.just("outcome"), st.sampled_from(few), st.sampled_from(Kind)),
        st.tuples(st.just("probe"), st.integers(1, 3), st.sampled_from([1, 40, 1_000])),
        st.tuples(st.just("pick"), st.integers(1, 8), st.none()),
        st.tuples(st.just("lose"), st.sampled_from(KEYS), st.none()),
    ),
    max_size=20,
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=steps)
def test_whatever_happens_everybody_listed_is_in_or_out_and_nobody_else(
    pool: SharedPool, raw: redis.Redis, clock: ServerClock, steps: list[tuple[str, ...]]
) -> None:
    if leftover := raw.keys(f"smoothpool:{{{pool.keys.pool}}}:*"):
        raw.delete(*leftover)
    listed: set[str] = set()
    epoch = 0
    lost = False
    for what, first, second in steps:
        if what == "publish":
            listed = set(first)
            publish(pool, dict.fromkeys(sorted(listed), "line"), candidates=bool(second))
            if lost:  # of those out only, which changes nothing of the list: a probe mends it
                run(pool.take_probe(100.0, epoch, wanted=0))
            lost = False
        elif what == "outcome":
            run(pool.report_outcomes(AT_ONCE, [Happened(first, epoch, second)]))  # type: ignore[arg-type]
        elif what == "probe":
            clock.pass_(second)  # type: ignore[arg-type]
            found = run(pool.take_probe(100.0, epoch, first, unchecked=second == 40))  # type: ignore[arg-type]
            epoch = found.epoch
        elif what == "pick":
            picked = set(picks(pool, first)) - {None}  # type: ignore[arg-type]
            assert not picked & set(run(pool.out()))
        else:
            raw.delete(getattr(pool.keys, first))
            lost = True
        if not lost:
            check(pool, raw, listed)
    if listed:
        publish(pool, dict.fromkeys(sorted(listed), "line"))
        run(pool.take_probe(100.0, epoch, wanted=0))
        check(pool, raw, listed)
