"""Do all workers of a shared pool agree on who is out, and who probes?"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count, pairwise
from math import ceil
from typing import Any

import pytest
import redis

from farm.redis_server import RedisServer
from scrapy_smoothpool import shared_judge
from scrapy_smoothpool.exceptions import SettingsError, StoreError, StoreUnavailable
from scrapy_smoothpool.judge import Evidence, Report, Return, Standing
from scrapy_smoothpool.outcome import Outcome
from scrapy_smoothpool.pool import Pool
from scrapy_smoothpool.proxy import Proxy
from scrapy_smoothpool.shared_judge import SharedJudge, health_rules
from scrapy_smoothpool.strategies.base import StrategyOptions
from scrapy_smoothpool.strategies.least_used import LeastUsedStrategy
from store.store_helpers import in_loop, run, stop_loop

SITE = "a.test"
_numbers = count()


@pytest.fixture(scope="module", autouse=True)
def loop():
    yield
    stop_loop()


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        yield server


class Worker:
    """One worker's pool. Its own clock stands still; Redis has its own."""

    def __init__(self, server: RedisServer, pool: str, names: str | None, **options: Any) -> None:
        self.now = 0.0
        self.reports: list[tuple[str, Report]] = []
        self.back: list[Return] = []
        rules: dict[str, Any] = {"eject_after": 3, "eject_time": 60.0, "eject_time_max": 600.0}
        rules |= {name: options.pop(name) for name in list(options) if name in rules}
        self.strategy = LeastUsedStrategy(
            StrategyOptions(
                pool=pool, redis_url=server.url, admission=options.get("admission", False)
            )
        )
        self.judge = SharedJudge(
            self.strategy.verdicts,
            health_rules(max_percent=50, **rules),
            probe_timeout=10.0,
            clock=lambda: self.now,
            on_report=self._report,
            on_return=self.back.append,
            **options,
        )
        listed = names and [Proxy("http", f"{n}.example", 8080, None, None, 1, n) for n in names]
        self.pool = Pool("test", self.strategy, self.judge, listed or None)

    def _report(self, proxy_id: str, evidence: Evidence, report: Report) -> None:
        self.pool.concluded(proxy_id, report)
        self.reports.append((proxy_id, report))

    def returned(self) -> list[Return]:
        return [it._replace(reason="", duration=None) for it in self.back]

    async def picks(self, count: int) -> list[str | None]:
        found = [await self.pool.acquire((), SITE) for _ in range(count)]
        return [it and it.proxy_id for it in found]

    def tell(self, proxy_id: str, outcome: Outcome, times: int = 1, epoch: int = -1) -> None:
        epoch = self.judge.epoch if epoch < 0 else epoch
        evidence = Evidence(outcome, SITE, answered=outcome is Outcome.SUCCESS)
        for _ in range(times):
            self.pool.report(proxy_id, epoch, evidence)

    async def told(self, count: int) -> list[Report]:
        """Wait until *count* outcomes were judged in all."""
        for _ in range(500):
            if len(self.reports) >= count:
                break
            await asyncio.sleep(0.01)
        return [report for _, report in self.reports]

    async def delivered(self) -> None:
        """Wait until nothing is left to be delivered."""
        for _ in range(500):
            if not self.judge._queue and self.judge._delivering is None:
                return
            await asyncio.sleep(0.01)

    async def probe(self, seconds: float = 0.0) -> str | None:
        """Let the worker look for a probe, after some real time."""
        await asyncio.sleep(seconds)
        self.now += shared_judge.LOOK
        found = await self.pool.acquire((), SITE)
        return found.proxy_id if found and found.proxy_id in self.judge._probing else None


@pytest.fixture
def workers(server):
    made: list[Worker] = []
    pool = f"judge{next(_numbers)}"

    async def make(names: str | None, **options: Any) -> Worker:
        worker = Worker(options.pop("server", server), pool, names, **options)
        made.append(worker)
        await worker.pool.open()
        return worker

    yield make
    for worker in made:
        run(worker.pool.close())


@in_loop
async def test_what_one_worker_put_out_none_picks(workers):
    one, two = await workers("abcd"), await workers("abcd")
    one.tell("a", Outcome.PROXY_ERROR, 2)
    two.tell("a", Outcome.PROXY_ERROR, 1)
    await two.told(1)
    await one.told(2)
    reports = [report for worker in (one, two) for _, report in worker.reports]
    assert sorted(report.ejected_for or 0 for report in reports) == [0, 0, 60]
    for worker in (one, two, await workers(None)):
        assert "a" not in await worker.picks(12)


@in_loop
async def test_a_worker_that_joins_knows_who_is_out(workers):
    one = await workers("abcd")
    one.tell("a", Outcome.BANNED, 3)
    await one.told(3)
    two = await workers(None)
    views = {view.id: view for view in two.pool.snapshot()}
    assert (views["a"].out, views["a"].reason, two.pool.out) == (True, "banned", 1)
    assert [view.out for name, view in views.items() if name != "a"] == [False] * 3


@in_loop
async def test_one_probes_and_its_success_is_everyones(workers):
    one, two = await workers("abcd", eject_time=0.1), await workers("abcd")
    one.tell("a", Outcome.PROXY_ERROR, 3)
    await one.told(3)
    probers = [await worker.probe(0.1) for worker in (two, one, two, one)]
    assert probers == ["a", None, None, None]
    assert "a" not in await one.picks(9)
    two.tell("a", Outcome.SUCCESS)
    await two.told(1)
    assert two.returned() == [Return("a")]
    assert "a" in await one.picks(9)


@in_loop
async def test_a_return_says_why_it_was_out(workers):
    one, two = await workers("abcd", eject_time=0.1), await workers("abcd")
    one.tell("a", Outcome.BANNED, 3)
    await one.told(3)
    assert await two.probe(0.11) == "a"
    two.now += 5
    two.tell("a", Outcome.SUCCESS)
    await two.told(1)
    assert two.back == [Return("a", reason="banned", duration=5.0)]


@in_loop
async def test_of_eight_that_look_at_once_one_probes(workers):
    crowd = [await workers("abcd", eject_time=0.1) for _ in range(8)]
    crowd[0].tell("a", Outcome.PROXY_ERROR, 3)
    await crowd[0].told(3)
    await asyncio.sleep(0.12)
    found = await asyncio.gather(*(worker.probe() for worker in crowd))
    assert Counter(found) == {"a": 1, None: 7}


@in_loop
async def test_a_probe_that_fails_lasts_twice_as_long(workers):
    one = await workers("abcd", eject_time=0.2)
    one.tell("a", Outcome.PROXY_ERROR, 3)
    await one.told(3)
    assert await one.probe(0.2) == "a"
    one.tell("a", Outcome.PROXY_ERROR)
    assert (await one.told(4))[-1].ejected_for == 0.4
    assert await one.probe() is None


@in_loop
async def test_a_probe_that_was_not_used_is_the_next_requests(workers):
    one, two = await workers("abcd", eject_time=0.1), await workers("abcd")
    one.tell("a", Outcome.PROXY_ERROR, 3)
    await one.told(3)
    await asyncio.sleep(0.11)
    one.now += 1
    probe = await one.pool.acquire((), SITE)
    assert probe.proxy_id == "a"
    one.pool.give_back(probe.proxy_id, probe.epoch, SITE)
    await one.told(4)
    assert await two.probe() == "a"


@in_loop
async def test_late_failures_make_no_second_ejection(workers):
    one, two = await workers("abcd"), await workers("abcd")
    before = two.judge.epoch
    one.tell("a", Outcome.PROXY_ERROR, 3)
    await one.told(3)
    two.tell("a", Outcome.PROXY_ERROR, 20, epoch=before)
    assert await two.told(20) == [Report(stale=True)] * 20


@in_loop
async def test_a_pick_that_was_not_used_is_dropped_when_its_proxy_is_out(workers):
    one, two = await workers("abcd"), await workers("abcd")
    ticket = await two.pool.acquire((), SITE)
    two.pool.give_back(ticket.proxy_id, ticket.epoch, SITE)
    one.tell(ticket.proxy_id, Outcome.PROXY_ERROR, 3)
    await one.told(3)
    two.now += 1  # its next look
    assert ticket.proxy_id not in await two.picks(9)


@in_loop
async def test_successes_between_failures_keep_it_in(workers):
    one, two = await workers("abcd"), await workers("abcd")
    for _ in range(10):
        one.tell("a", Outcome.PROXY_ERROR, 2)
        await one.told(len(one.reports) + 2)
        two.tell("a", Outcome.SUCCESS, 2)
        await two.told(len(two.reports) + 2)
    assert "a" in await one.picks(9)


@in_loop
async def test_what_says_nothing_is_not_sent(workers):
    one = await workers("abcd")
    evidence = Evidence(Outcome.NEUTRAL, SITE, answered=True)
    assert one.pool.report("a", one.judge.epoch, evidence) == Report()
    assert one.pool.report("a", one.judge.epoch, Evidence(Outcome.AMBIGUOUS, SITE)) == Report()
    assert not one.judge._queue


@in_loop
async def test_after_an_ejection_it_gets_its_fair_share_and_the_probe_at_most(workers):
    n = 5
    one = await workers("abcde", eject_time=0.3)
    await one.picks(20)
    one.tell("a", Outcome.PROXY_ERROR, 3)
    await one.told(3)
    found: list[str | None] = []
    while len(found) < 100:
        one.now += 0.2
        found += await one.picks(1)
        if found[-1] == "a":
            one.tell("a", Outcome.SUCCESS)
        await asyncio.sleep(0.01)
    assert one.returned() == [Return("a")]
    assert 1 <= found.count("a") <= ceil(100 / n) + 1


@in_loop
async def test_the_last_is_never_put_out(workers):
    one = await workers("ab")
    for name in "ab":
        one.tell(name, Outcome.PROXY_ERROR, 9)
    await one.told(18)
    assert set(await one.picks(4)) == {"b"}


@in_loop
async def test_a_panic_begins_when_redis_says_that_no_more_may_go(workers):
    one = await workers("ab")
    for _ in range(20):
        for name in "ab":
            one.tell(name, Outcome.BANNED)
    reports = await one.told(40)
    assert [report.panic for report in reports].count(True) == 1
    assert one.pool.panicking(SITE)
    one.tell("b", Outcome.SUCCESS)
    assert not one.pool.panicking(SITE)


@in_loop
async def test_failures_with_successes_between_them_are_no_panic(workers):
    one = await workers("ab", eject_after=1)
    one.tell("a", Outcome.BANNED)
    await one.told(1)
    for _ in range(60):  # all of them in one delivery
        one.tell("b", Outcome.BANNED)
        one.tell("b", Outcome.SUCCESS)
    assert not any(report.panic for report in await one.told(121))
    one.tell("b", Outcome.BANNED, 25)
    assert any(report.panic for report in await one.told(146))
    assert one.pool.panicking(SITE)


@in_loop
async def test_a_late_success_and_a_check_end_no_panic(workers):
    one = await workers("ab", eject_after=1)
    before = one.judge.epoch
    one.tell("a", Outcome.BANNED)
    one.tell("b", Outcome.BANNED, 25)
    await one.told(26)
    assert one.pool.panicking(SITE)
    success = Evidence(Outcome.SUCCESS, SITE, answered=True)
    one.pool.report("b", one.judge.epoch, success._replace(check=True))
    await one.told(27)
    assert one.pool.panicking(SITE)
    one.tell("a", Outcome.SUCCESS, epoch=before)  # something gets through, whoever it was
    assert not one.pool.panicking(SITE)


@in_loop
async def test_whoever_is_told_may_raise(workers, caplog):
    one = await workers("abcd", eject_time=0.1)
    told = one.judge._on_report

    def raises(proxy_id: str, evidence: Evidence, report: Report) -> None:
        told(proxy_id, evidence, report)
        raise RuntimeError("a spider's handler")

    one.judge._on_report = raises
    one.tell("a", Outcome.PROXY_ERROR, 3)
    assert [report.ejected_for for report in await one.told(3)] == [None, None, 0.1]
    assert caplog.text.count("RuntimeError: a spider's handler") == 3
    one.judge._on_return = raises  # type: ignore[assignment]
    assert await one.probe(0.11) == "a"
    one.tell("a", Outcome.SUCCESS)
    one.tell("b", Outcome.SUCCESS)
    await one.told(4)  # that of b; what a's return led to was not told
    assert one.reports[-1][0] == "b"
    assert not one.pool.snapshot()[0].out


@in_loop
async def test_put_out_anew_by_another_worker_it_is_out_since_then(workers):
    one, two = await workers("abcd", eject_time=0.1), await workers("abcd", eject_time=0.1)
    one.tell("a", Outcome.BANNED, 3)
    await one.told(3)
    one.now += 7
    assert await one.probe() is None  # its own ejection, which it knows
    assert one.judge.standing("a").reason == "banned"
    assert await two.probe(0.11) == "a"
    two.tell("a", Outcome.PROXY_ERROR)
    await two.told(1)
    assert await one.probe() is None
    assert one.judge.standing("a") == Standing(True, "", 0)
    one.now += 5
    assert await one.probe(0.21) == "a"
    one.tell("a", Outcome.SUCCESS)
    await one.told(4)
    assert one.back == [Return("a", reason="proxy_error", duration=6.0)]


@in_loop
async def test_an_ejection_that_a_look_told_first_is_known_as_its_own_no_longer(workers):
    one = await workers("abcd")
    one.judge._known_until = 100
    one.tell("a", Outcome.BANNED, 3)
    await one.told(3)
    assert one.judge._own == {}
    one.judge._known_until = 0
    one.tell("b", Outcome.BANNED, 3)
    await one.told(6)
    assert one.judge._own == {"b": 2}
    await one.probe()
    assert one.judge._own == {}


@in_loop
async def test_candidates_are_checked_by_one_worker_each(workers):
    one = await workers("abcdef", admission=True)
    two = await workers("abcdef", admission=True)
    assert await one.picks(3) == [None] * 3
    first, second = await one.pool.take_probes(4), await two.pool.take_probes(4)
    assert sorted(it.proxy_id for it in (*first, *second)) == list("abcdef")
    assert len(first) == 4
    for it in first:
        one.pool.checked(it.proxy_id, it.epoch, Evidence(Outcome.SUCCESS, SITE, answered=True))
    for it in second:
        two.pool.checked(it.proxy_id, it.epoch, Evidence(Outcome.AMBIGUOUS, SITE, why="gone"))
    await one.told(4)
    await two.told(2)
    assert {back.admitted for back in one.back} == {True}
    assert set(await two.picks(12)) == {it.proxy_id for it in first}


@in_loop
async def test_a_worker_without_admission_leaves_candidates_to_the_others(workers):
    one = await workers("abcdef", admission=True)
    two = await workers(None)
    assert await two.probe() is None
    assert two.judge.next_due is None
    assert await two.pool.take_probes(9) == []
    first = await one.pool.take_probes(9)
    assert len(first) == 6
    for it in first[:2]:
        one.pool.checked(it.proxy_id, it.epoch, Evidence(Outcome.SUCCESS, SITE, answered=True))
    await one.told(2)
    assert set(await two.picks(6)) == {it.proxy_id for it in first[:2]}


@in_loop
async def test_candidates_are_no_part_of_the_pool_for_limits_and_panic(workers):
    crowd = "abcdefghijklmnopqrstuvwxyz0123456789"
    one = await workers(crowd, admission=True)
    assert (one.judge.out, one.judge.eligible, one.judge.checked) == (36, 36, 0)
    for it in await one.pool.take_probes(4):
        one.pool.checked(it.proxy_id, it.epoch, Evidence(Outcome.SUCCESS, SITE, answered=True))
    await one.told(4)
    assert (one.judge.out, one.judge.eligible, one.judge.checked) == (32, 36, 4)
    passed = sorted({name for name in await one.picks(8) if name})
    for _ in range(5):
        for name in passed:
            one.tell(name, Outcome.BANNED)
    reports = await one.told(24)
    assert [report.ejected_for for report in reports].count(60.0) == 2
    # Twenty failures, not two for each of 36.
    for name in passed:
        one.tell(name, Outcome.BANNED, 4)
    await one.told(40)
    assert one.pool.panicking(SITE)


@in_loop
async def test_a_worker_that_closes_gives_its_probe_back(workers):
    one, two = await workers("abcd", eject_time=0.1), await workers("abcd")
    one.tell("a", Outcome.PROXY_ERROR, 3)
    await one.told(3)
    assert await one.probe(0.11) == "a"
    await one.pool.close()
    assert await two.probe() == "a"


@in_loop
async def test_a_probe_of_one_that_another_worker_brought(workers):
    one = await workers("ab")
    two = await workers("abcd", eject_time=0.1)
    two.tell("c", Outcome.PROXY_ERROR, 3)
    await two.told(3)
    assert await one.probe(0.3) == "c"
    one.tell("c", Outcome.SUCCESS)
    await one.told(1)
    assert one.reports[-1][1] == Report()


@in_loop
async def test_a_probe_that_this_worker_cannot_use_is_anothers(workers):
    def accept(proxies: Any) -> None:
        if any(proxy.id == "c" for proxy in proxies):
            raise SettingsError("no such scheme here")

    one = await workers("ab")
    one.pool._accept = accept
    two = await workers("abcd", eject_time=0.1)
    two.tell("c", Outcome.PROXY_ERROR, 3)
    await two.told(3)
    assert await one.probe(0.3) is None
    assert await one.probe() is None
    await one.delivered()
    assert await two.probe() == "c"


@in_loop
async def test_a_check_that_is_awaited_has_been_judged(workers, monkeypatch):
    monkeypatch.setattr(shared_judge, "GATHER", 60.0)
    one = await workers("abcd", admission=True)
    assert await one.picks(1) == [None]
    (probe,) = await one.pool.take_probes(1)
    booked = one.pool.checked(probe.proxy_id, probe.epoch, Evidence(Outcome.SUCCESS, answered=True))
    assert booked is not None
    await booked
    assert await one.picks(1) == [probe.proxy_id]


@in_loop
async def test_a_probe_that_got_through_waits_for_no_others(workers, monkeypatch):
    monkeypatch.setattr(shared_judge, "GATHER", 60.0)
    one = await workers("abcd", eject_time=0.1)
    one.tell("b", Outcome.SUCCESS)
    one.tell("a", Outcome.PROXY_ERROR, 3)
    await one.told(4)
    assert await one.probe(0.11) == "a"
    one.tell("c", Outcome.SUCCESS)  # alone it would wait
    one.tell("a", Outcome.SUCCESS)
    await one.told(6)
    assert one.returned() == [Return("a")]


@in_loop
async def test_checks_of_a_new_list_are_not_late(workers):
    one = await workers("ab", admission=True)
    await one.pool.take_probes(9)
    await one.pool.reload([Proxy("http", f"{n}.example", 8080, None, None, 1, n) for n in "axyz"])
    for probe in await one.pool.take_probes(9):
        passed = Evidence(Outcome.SUCCESS, SITE, answered=True)
        one.pool.checked(probe.proxy_id, probe.epoch, passed)
    await one.told(3)
    assert sorted(back.proxy_id for back in one.back) == ["x", "y", "z"]


@in_loop
async def test_leases_are_given_back_when_their_lines_cannot_be_read(workers, monkeypatch):
    one = await workers("ab", admission=True)
    two = await workers("abcd", admission=True)

    async def lost(proxy_id: str) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(one.strategy, "lookup", lost)
    with pytest.raises(StoreUnavailable):
        await one.pool.take_probes(9)
    await one.delivered()
    assert sorted(it.proxy_id for it in await two.pool.take_probes(9)) == list("abcd")


# Redis away.


@pytest.fixture
def own():
    """A server that the test may break."""
    with RedisServer() as server:
        yield server


@in_loop
async def test_outcomes_wait_for_redis(own, workers, monkeypatch):
    monkeypatch.setattr(shared_judge, "PAUSE", 0.05)
    one = await workers("abcd", server=own)
    own.pause()
    one.tell("a", Outcome.PROXY_ERROR, 3)
    with pytest.raises(StoreUnavailable):
        await one.picks(1)
    assert one.reports == []
    own.resume()
    reports = await one.told(3)
    assert [report.ejected_for for report in reports] == [None, None, 60.0]


@in_loop
async def test_what_was_judged_unheard_counts_once(own, workers, monkeypatch):
    monkeypatch.setattr(shared_judge, "PAUSE", 0.05)
    one = await workers("abcd", server=own)
    one.tell("b", Outcome.SUCCESS)  # so that the server knows the script
    await one.told(1)
    own.pause()
    one.tell("a", Outcome.PROXY_ERROR, 2)
    await asyncio.sleep(1.5)  # the call times out; the server finds it when it resumes
    own.resume()
    assert [report.ejected_for for report in await one.told(3)] == [None] * 3
    await asyncio.sleep(0.2)
    (record,) = (await one.strategy._pool.records("a")).values()
    assert (record.consecutive, record.history) == (2, "11")
    one.tell("a", Outcome.PROXY_ERROR)
    assert (await one.told(4))[-1].ejected_for == 60.0


@in_loop
async def test_a_connection_that_breaks_after_the_call_counts_once(own, workers, monkeypatch):
    monkeypatch.setattr(shared_judge, "PAUSE", 0.05)
    one = await workers("abcd", server=own)
    one.tell("b", Outcome.SUCCESS)  # so that the server knows the script
    await one.told(1)
    own.pause()
    one.tell("a", Outcome.PROXY_ERROR, 2)
    await asyncio.sleep(0.2)
    # As if the line went down: redis-py sends the call again by itself.
    client = one.strategy._pool.connection._client
    for connection in list(client.connection_pool._in_use_connections):
        connection._writer.transport.abort()
    await asyncio.sleep(0.2)
    own.resume()
    await one.told(3)
    (record,) = (await one.strategy._pool.records("a")).values()
    assert (record.consecutive, record.history) == (2, "11")


@in_loop
async def test_a_batch_in_doubt_is_sent_again_as_it_was(workers, monkeypatch):
    monkeypatch.setattr(shared_judge, "PAUSE", 0.01)
    one = await workers("abcd")
    sent: list[tuple[Any, int]] = []
    report_outcomes = one.strategy.report_outcomes

    async def lossy(rules: Any, outcomes: Any, delivery: Any) -> Any:
        sent.append((delivery, len(outcomes)))
        judgement = await report_outcomes(rules, outcomes, delivery)
        if len(sent) < 3:
            one.tell("b", Outcome.PROXY_ERROR)
            raise StoreUnavailable("the reply is lost")
        return judgement

    monkeypatch.setattr(one.strategy, "report_outcomes", lossy)
    one.tell("a", Outcome.PROXY_ERROR, 2)
    await one.told(4)
    assert [size for _, size in sent] == [2, 2, 2, 2]
    assert [delivery.number for delivery, _ in sent] == [1, 1, 1, 2]
    assert len({delivery.worker for delivery, _ in sent}) == 1
    assert [name for name, _ in one.reports] == list("aabb")
    records = await one.strategy._pool.records("ab")
    assert [record.consecutive for record in records.values()] == [2, 2]


@in_loop
async def test_what_comes_in_during_a_delivery_is_gathered_for_another(workers, monkeypatch):
    monkeypatch.setattr(shared_judge, "GATHER", 60.0)
    one = await workers("abcd")
    sent: list[int] = []
    report_outcomes = one.strategy.report_outcomes

    async def counted(rules: Any, outcomes: Any, delivery: Any) -> Any:
        sent.append(len(outcomes))
        one.tell("b", Outcome.SUCCESS, 2)
        return await report_outcomes(rules, outcomes, delivery)

    monkeypatch.setattr(one.strategy, "report_outcomes", counted)
    one.tell("a", Outcome.PROXY_ERROR)  # which is delivered at once
    await one.told(1)
    await asyncio.sleep(0.05)
    assert (sent, len(one.judge._queue)) == ([1], 2)
    one.tell("a", Outcome.PROXY_ERROR)
    await one.told(4)
    assert sent == [1, 3]


@in_loop
async def test_outcomes_outlive_a_failover(own, workers, monkeypatch, caplog):
    monkeypatch.setattr(shared_judge, "LONG_PAUSE", 0.1)
    one = await workers("abcd", server=own)

    def replicate(*primary: object) -> None:
        with redis.Redis.from_url(own.url) as raw:
            raw.execute_command("REPLICAOF", *primary)

    # Nobody is there to copy from, so it keeps what it has, and takes no writes.
    replicate("127.0.0.1", 1)
    one.tell("a", Outcome.PROXY_ERROR, 2)
    await asyncio.sleep(0.35)
    one.tell("a", Outcome.PROXY_ERROR)
    assert one.reports == []
    (told,) = [it for it in caplog.records if "is a replica now" in it.getMessage()]
    assert told.levelname == "WARNING"
    replicate("NO", "ONE")
    assert [report.ejected_for for report in await one.told(3)] == [None, None, 60.0]


@in_loop
async def test_outcomes_outlive_a_redis_that_refuses_them(workers, monkeypatch, caplog):
    one = await workers("abcd")
    calls: list[float] = []
    report_outcomes = one.strategy.report_outcomes

    async def refuse(*args: Any) -> Any:
        calls.append(asyncio.get_running_loop().time())
        if len(calls) < 3:
            raise StoreError("no permission")
        return await report_outcomes(*args)

    monkeypatch.setattr(shared_judge, "PAUSE", 60.0)
    monkeypatch.setattr(shared_judge, "LONG_PAUSE", 0.2)
    monkeypatch.setattr(one.strategy, "report_outcomes", refuse)
    one.tell("a", Outcome.PROXY_ERROR, 3)
    assert (await one.told(3))[-1].ejected_for == 60.0
    assert [later - earlier >= 0.19 for earlier, later in pairwise(calls)] == [True, True]
    assert caplog.text.count("no permission") == 1
    # Once it went well, the next refusal is told again.
    calls.clear()
    one.tell("b", Outcome.PROXY_ERROR)
    await one.told(4)
    assert caplog.text.count("no permission") == 2


@in_loop
async def test_kept_outcomes_are_bounded_the_oldest_go(own, workers, monkeypatch):
    monkeypatch.setattr(shared_judge, "KEPT", 10)
    monkeypatch.setattr(shared_judge, "FAREWELL", 0.2)
    one = await workers("abcd", server=own)
    own.pause()
    one.tell("a", Outcome.SUCCESS, 50)
    await asyncio.sleep(0.05)
    assert len(one.judge._queue) <= 10
    one.tell("b", Outcome.SUCCESS, 9)
    assert [it.happened.proxy_id for it in one.judge._queue].count("b") == 9
    await one.pool.close()  # and closing does not wait for long
    own.resume()


@in_loop
async def test_the_last_outcomes_are_delivered_at_close(workers):
    one, two = await workers("abcd"), await workers("abcd")
    one.tell("a", Outcome.PROXY_ERROR, 3)
    await one.pool.close()
    assert "a" not in await two.picks(12)


@in_loop
async def test_a_redis_that_lost_everything_is_told_again(own, workers):
    one = await workers("abcd", server=own)
    one.tell("a", Outcome.PROXY_ERROR, 3)
    await one.told(3)

    async def flush(client: Any) -> None:
        await client.flushall()

    await one.strategy._pool.connection.call(flush)
    assert set(await one.picks(8)) == set("abcd")  # nothing is known of anybody
    one.tell("b", Outcome.PROXY_ERROR, 3)
    assert (await one.told(6))[-1].ejected_for == 60.0
    assert "b" not in await one.picks(8)
