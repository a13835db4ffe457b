"""health.py and its counterpart in Lua, side by side on a real server, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from server_clock import START, ServerClock
from store_helpers import rules, run

from scrapy_smoothpool.health import CANDIDATE, WINDOW, Health, State
from scrapy_smoothpool.store import verdicts
from scrapy_smoothpool.store.verdicts import Happened, Judged, Kind, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from scrapy_smoothpool.store.shared_pool import SharedPool

IDS = [f"p{number}" for number in range(8)]
FAILURES = {
    Kind.FAILED: {"certain": False},
    Kind.FAULTY: {"certain": True},
    Kind.LOGIN: {"certain": True, "login": True},
}
# Their products with the times below are whole, so nothing is rounded.
JITTER = [1.0, 1.25, 1.5]


def test_both_use_the_same_words() -> None:
    assert tuple(State) == (verdicts.ACTIVE, verdicts.EJECTED, verdicts.PROBING)
    assert verdicts.UNCHECKED == CANDIDATE


class Side(RuleBasedStateMachine):
    """Both state machines; times in whole milliseconds."""

    def __init__(self, pool: SharedPool, raw: redis.Redis, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.pool, self.raw = pool, raw
        self.clock = ServerClock(raw, f"clock:{pool.keys.pool}", patch)

    @initialize(
        eject_after=st.sampled_from([0, 1, 3, 8, 50]),
        eject_time=st.sampled_from([1_000, 5_000, 30_000]),
        ceiling=st.sampled_from([1_000, 60_000, 1_800_000]),
        max_percent=st.sampled_from([0, 34, 50, 100, 100]),
        number=st.sampled_from([1, 1, 2, 3, len(IDS)]),
        candidates=st.sampled_from([0, 1, 2, 5]),
        probe_timeout=st.sampled_from([2_000, 100_000]),
    )
    def start(
        self,
        eject_after: int,
        eject_time: int,
        ceiling: int,
        max_percent: int,
        number: int,
        candidates: int,
        probe_timeout: int,
    ) -> None:
        keys = self.pool.keys
        if leftover := self.raw.keys(f"smoothpool:{{{keys.pool}}}:*"):
            self.raw.delete(*leftover)
        self.clock.set(START)
        self.jitter, self.probe_timeout = 1.0, probe_timeout
        self.rules = rules(
            eject_after=eject_after,
            eject_time=eject_time / 1000,
            eject_time_max=ceiling / 1000,
            max_percent=max_percent,
        )
        self.health = Health(
            eject_after=eject_after,
            eject_time=eject_time,
            eject_time_max=ceiling,
            max_percent=max_percent,
            probe_timeout=probe_timeout,
            clock=lambda: self.clock.now,
            jitter=lambda: self.jitter,
        )
        self.ids = IDS[:number]
        for place, proxy_id in enumerate(self.ids):
            # Listed proxies are epoch 0 when shared; candidates get one each, as when published.
            candidate = place >= number - candidates
            record = self.health.add(proxy_id, candidate=candidate)
            record._active_since = 0
            self.health.epochs.now -= not candidate
            record.epoch = self.health.epochs.now if candidate else 0
            if candidate:
                self.raw.zadd(keys.benched, {proxy_id: place})
                self.raw.zadd(keys.unchecked, {proxy_id: self.clock.now})
                self.raw.zadd(keys.ejections, {proxy_id: record.epoch})
            else:
                self.raw.zadd(keys.allocations, {proxy_id: place})
        if self.health.epochs.now:
            self.raw.set(keys.epoch, self.health.epochs.now)

    def judge(self, event: Happened) -> Judged:
        """Let health.py judge as the pool does, and return what the script should say."""
        health, proxy_id = self.health, event.proxy_id
        if proxy_id not in self.ids:
            return Judged(True, "", 0)
        record = health[proxy_id]
        if not health.is_current(proxy_id, event.epoch):
            return Judged(True, record.state.value, record.consecutive)
        self.jitter = event.jitter
        if event.kind in FAILURES:
            verdict = health.failed(proxy_id, reason=event.reason, **FAILURES[event.kind])
            seconds = None if verdict.ejected_for is None else verdict.ejected_for / 1000
            return Judged(False, record.state.value, verdict.consecutive, seconds, verdict.spared)
        restored = False
        if event.kind is Kind.SUCCESS or (event.kind is Kind.PASSED and record.out):
            restored = health.succeeded(proxy_id)
        elif event.kind is Kind.UNCLEAR:
            health.inconclusive(proxy_id)
        elif event.kind is Kind.UNSENT:
            health.unsent(proxy_id)
        return Judged(False, record.state.value, record.consecutive, restored=restored)

    def report(self, events: list[Happened]) -> None:
        expected = [self.judge(event) for event in events]
        got = run(self.pool.report_outcomes(self.rules, events))
        assert got.outcomes == expected
        assert (got.epoch, got.out, got.members, got.checked) == (
            self.health.epochs.now,
            self.health.out,
            self.health.eligible,
            self.health.checked,
        )

    def any_epoch(self, data: st.DataObject) -> int:
        now = self.health.epochs.now
        return max(0, now - data.draw(st.sampled_from([0, 0, 0, 1, 2, 7]), "age"))

    @rule(data=st.data(), size=st.integers(1, 5))
    def outcomes(self, data: st.DataObject, size: int) -> None:
        self.report(
            [
                Happened(
                    data.draw(st.sampled_from([*self.ids, *self.ids, "stranger"])),
                    self.any_epoch(data),
                    data.draw(st.sampled_from(list(Kind))),
                    data.draw(st.sampled_from(["", "banned", "proxy_error"])),
                    data.draw(st.sampled_from(JITTER)),
                )
                for _ in range(size)
            ]
        )

    @rule(
        data=st.data(),
        pattern=st.one_of(
            st.text("10", min_size=1, max_size=25),
            # Seven failures in ten, the last one making it so; nine outcomes; a full window.
            st.sampled_from(["0001111111", "001111111", "1111110001", "0" * 20 + "01111111" * 3]),
        ),
        kind=st.sampled_from(Kind),
    )
    def many_of_one(self, data: st.DataObject, pattern: str, kind: Kind) -> None:
        proxy_id = data.draw(st.sampled_from(self.ids))
        failure = kind if kind in (Kind.FAILED, Kind.FAULTY) else Kind.FAILED
        now = self.health.epochs.now
        self.report(
            [
                Happened(proxy_id, now, failure if bit == "1" else Kind.SUCCESS, "why")
                for bit in pattern
            ]
        )

    @precondition(lambda self: self.health.out)
    @rule(data=st.data(), times=st.integers(2, 7))
    def probes_that_fail(self, data: st.DataObject, times: int) -> None:
        proxy_id = data.draw(st.sampled_from([i for i in self.ids if self.health[i].out]))
        for _ in range(times):
            self.clock.set(max(self.clock.now, int(self.health[proxy_id].wake)))
            self.probe(data, set(IDS) - {proxy_id}, 1)
            self.report([Happened(proxy_id, self.health.epochs.now, Kind.FAULTY, "again")])

    @precondition(lambda self: self.health.out)
    @rule(data=st.data(), kind=st.sampled_from(Kind), jitter=st.sampled_from(JITTER))
    def a_probe_and_its_outcome(self, data: st.DataObject, kind: Kind, jitter: float) -> None:
        self.to_a_wake(data, 0)
        self.probe(data, set(), 1)
        probed = [i for i in self.ids if self.health[i].state is State.PROBING]
        if probed:
            proxy_id = data.draw(st.sampled_from(probed))
            self.report([Happened(proxy_id, self.health.epochs.now, kind, "probe", jitter)])

    @rule(ms=st.sampled_from([1, 400, 1_000, 30_000, 100_000, 400_000, 10_000_000]))
    def time_passes(self, ms: int) -> None:
        self.clock.set(self.clock.now + ms)

    @precondition(lambda self: self.health.out)
    @rule(data=st.data(), offset=st.sampled_from([-1, 0, 1]))
    def to_a_wake(self, data: st.DataObject, offset: int) -> None:
        wakes = sorted({int(self.health[i].wake) for i in self.ids if self.health[i].out})
        self.clock.set(max(self.clock.now, data.draw(st.sampled_from(wakes)) + offset))

    @precondition(lambda self: self.health.checked < self.health.eligible)
    @rule(data=st.data())
    def a_check_that_passes(self, data: st.DataObject) -> None:
        candidates = [i for i in self.ids if self.health[i].candidate]
        proxy_id = data.draw(st.sampled_from(candidates))
        self.clock.set(max(self.clock.now, int(self.health[proxy_id].wake)))
        self.probe(data, set(IDS) - {proxy_id}, 1)
        self.report([Happened(proxy_id, self.health.epochs.now, Kind.PASSED)])

    @rule(
        data=st.data(),
        exclude=st.sets(st.sampled_from(IDS), max_size=4),
        wanted=st.integers(0, 3),
        unchecked=st.booleans(),
    )
    def probe(
        self, data: st.DataObject, exclude: set[str], wanted: int, unchecked: bool = True
    ) -> None:
        since = self.any_epoch(data)
        seconds = self.probe_timeout / 1000
        got = run(
            self.pool.take_probe(seconds, since, wanted, sorted(exclude), unchecked=unchecked)
        )
        left_out = set() if unchecked else {i for i in self.ids if self.health[i].candidate}
        expected = []
        while len(expected) < wanted:
            found = self.health.probe(exclude | left_out)
            if found is None:
                break
            expected.append(found)
        assert list(got.leased) == expected
        assert got.leased == {proxy_id: self.health[proxy_id].reason for proxy_id in expected}
        records = {proxy_id: self.health[proxy_id] for proxy_id in self.ids}
        out = {i: r for i, r in records.items() if r.out}
        wakes = [r.wake - self.clock.now for i, r in out.items() if i not in left_out]
        later = [wake for wake in wakes if wake > 0]
        assert got.next_wake == (min(later) / 1000 if later else None)
        gone = [i for i in out if out[i].epoch > since]
        assert got.put_out == sorted(gone, key=lambda i: out[i].epoch)
        assert got.epoch == got.complete_until == self.health.epochs.now
        assert (got.members, got.checked) == (self.health.eligible, self.health.checked)

    @invariant()
    def both_agree(self) -> None:
        if not hasattr(self, "health"):
            return
        keys = self.pool.keys
        with self.raw.pipeline() as pipe:
            pipe.hgetall(keys.health)
            for key in (
                keys.wakes,
                keys.unchecked,
                keys.ejections,
                keys.allocations,
                keys.benched,
            ):
                pipe.zrange(key, 0, -1, withscores=True)
            pipe.get(keys.epoch)
            packed, *sets, epoch = pipe.execute()
        wakes, unchecked, epochs, rotation, benched = map(dict, sets)
        records = {proxy_id: self.health[proxy_id] for proxy_id in self.ids}
        assert benched.keys() == {i for i, r in records.items() if r.out}
        assert rotation.keys() == set(self.ids) - benched.keys()
        assert wakes == {i: r.wake for i, r in records.items() if r.out and not r.candidate}
        assert unchecked == {i: r.wake for i, r in records.items() if r.candidate}
        assert epochs == {i: r.epoch for i, r in records.items() if r.out}
        assert int(epoch or 0) == self.health.epochs.now
        assert packed.keys() <= set(self.ids)
        for proxy_id, record in records.items():
            assert (Record.parse(packed.get(proxy_id)) or unseen(epochs.get(proxy_id))) == Record(
                record.state.value,
                record.epoch,
                record.consecutive,
                f"{record._history:0{WINDOW}b}"[WINDOW - record._seen :],
                record._doublings,
                int(record._active_since),
                record.reason,
            )


def unseen(epoch: float | None) -> Record:
    """Return what a member without a record counts as."""
    if epoch is None:
        return Record()
    return Record(verdicts.EJECTED, int(epoch), reason=verdicts.UNCHECKED)


def play(machine: Callable[..., RuleBasedStateMachine], *args: Any, examples: int) -> None:
    run_state_machine_as_test(
        lambda: machine(*args),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_python_and_lua_agree_after_every_step(
    pool: SharedPool, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(Side, pool, raw, monkeypatch, examples=120)
