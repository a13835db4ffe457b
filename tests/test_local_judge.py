"""Where does an outcome count: everywhere, or on one site?"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from scrapy_smoothpool import local_judge
from scrapy_smoothpool.health import Health
from scrapy_smoothpool.judge import Evidence, Report, Return
from scrapy_smoothpool.local_judge import LocalJudge
from scrapy_smoothpool.outcome import Outcome
from scrapy_smoothpool.pool import Pool
from scrapy_smoothpool.proxy import Proxy
from scrapy_smoothpool.strategies.base import StrategyOptions
from scrapy_smoothpool.strategies.in_process import SmoothWRRStrategy
from store.store_helpers import in_loop, stop_loop

A, B = "a.test", "b.test"


@pytest.fixture(scope="module", autouse=True)
def loop():
    yield
    stop_loop()


class Made:
    """A pool of smooth_wrr, judged by site."""

    def __init__(self, names: str, clock: Any, **options: Any) -> None:
        self.clock = clock
        self.back: list[Return] = []
        self.strategy = SmoothWRRStrategy.from_options(StrategyOptions())
        make_health = partial(Health, eject_after=3, eject_time=30.0, max_percent=50, clock=clock)
        given: dict[str, Any] = {"by_site": True} | options
        self.judge = LocalJudge(
            self.strategy, make_health, clock, on_return=self.back.append, **given
        )
        listed = [Proxy("http", f"{n}.example", 8080, None, None, 1, n) for n in names]
        self.pool = Pool("test", self.strategy, self.judge, listed, clock=clock)

    def returned(self) -> list[Return]:
        return [it._replace(reason="", duration=None) for it in self.back]

    async def picks(self, site: str, count: int) -> list[str | None]:
        found = [await self.pool.acquire((), site) for _ in range(count)]
        return [it and it.proxy_id for it in found]

    def report(self, proxy_id: str, outcome: Outcome, site: str, times: int = 1) -> list[Report]:
        epoch = self.judge.epoch
        evidence = Evidence(
            outcome,
            site,
            answered=outcome is Outcome.SUCCESS,
            turned_away=outcome is Outcome.BANNED,
        )
        reports = [self.pool.report(proxy_id, epoch, evidence) for _ in range(times)]
        return [report for report in reports if report is not None]


@pytest.fixture
def by_site(clock):
    async def make(names: str, **options: Any) -> Made:
        made = Made(names, clock, **options)
        await made.pool.open()
        return made

    return make


@in_loop
async def test_a_ban_puts_a_proxy_out_on_its_site_only(by_site):
    made = await by_site("abcd")
    reports = made.report("a", Outcome.BANNED, A, 3)
    assert (reports[-1].ejected_for, reports[-1].site) == (30.0, A)
    assert Counter(await made.picks(A, 12)) == {"b": 4, "c": 4, "d": 4}
    assert Counter(await made.picks(B, 12)) == {"a": 3, "b": 3, "c": 3, "d": 3}
    assert made.pool.out == 0


@in_loop
async def test_a_fault_of_its_own_puts_it_out_everywhere(by_site):
    made = await by_site("abcd")
    await made.picks(B, 1)  # a sequence that exists, beside those that come later
    reports = [*made.report("a", Outcome.PROXY_ERROR, A, 2)]
    reports += made.report("a", Outcome.PROXY_ERROR, B)
    assert (reports[-1].ejected_for, reports[-1].site) == (30.0, "")
    for site in (A, B, "c.test"):
        assert "a" not in await made.picks(site, 12)
    assert made.pool.out == 1


@in_loop
async def test_it_is_probed_on_its_site_and_comes_back_there(by_site, clock):
    made = await by_site("abcd")
    made.report("a", Outcome.BANNED, A, 3)
    clock.now += 30
    assert "a" in await made.picks(B, 4)  # there it is in use, and no probe
    assert made.judge.is_out("a", A)
    assert await made.picks(A, 1) == ["a"]
    assert "a" not in await made.picks(A, 9)  # one probe
    made.report("a", Outcome.SUCCESS, B)
    assert made.judge.is_out("a", A)  # success elsewhere is none there
    made.report("a", Outcome.SUCCESS, A)
    assert "a" in await made.picks(A, 30)
    assert made.returned() == [Return("a", A)]


@in_loop
async def test_a_probe_that_is_banned_again_stays_out_longer(by_site, clock):
    made = await by_site("abcd")
    made.report("a", Outcome.BANNED, A, 3)
    clock.now += 30
    assert await made.picks(A, 1) == ["a"]
    assert made.report("a", Outcome.BANNED, A)[0].ejected_for == 60.0


@in_loop
async def test_a_ban_elsewhere_ends_an_ejection_for_faults(by_site, clock):
    # The proxy carried the request, whatever the site thought of it.
    made = await by_site("abcd")
    made.report("a", Outcome.PROXY_ERROR, A, 3)
    clock.now += 30
    assert await made.picks(B, 1) == ["a"]
    made.report("a", Outcome.BANNED, B)
    await made.picks(A, 1)
    assert made.pool.out == 0
    assert made.returned() == [Return("a")]


@in_loop
async def test_out_in_both_ways_it_needs_both_to_end(by_site, clock):
    made = await by_site("abcd")
    made.report("a", Outcome.BANNED, A, 3)
    clock.now += 20
    made.report("a", Outcome.PROXY_ERROR, B, 3)
    clock.now += 15  # due on A, but out everywhere
    assert "a" not in await made.picks(A, 8)
    clock.now += 15
    assert await made.picks(B, 1) == ["a"]
    made.report("a", Outcome.SUCCESS, B)
    assert await made.picks(A, 1) == ["a"]  # now its probe there
    assert made.returned() == [Return("a")]
    assert "a" not in await made.picks(A, 8)
    made.report("a", Outcome.SUCCESS, A)
    assert "a" in await made.picks(A, 40)
    assert made.returned() == [Return("a"), Return("a", A)]


@in_loop
async def test_a_site_never_bans_more_than_its_share_of_the_pool(by_site):
    made = await by_site("abcd")
    for name in "abcd":
        made.report(name, Outcome.BANNED, A, 5)
    assert len(set(await made.picks(A, 12))) == 2
    for name in "abcd":
        made.report(name, Outcome.BANNED, B, 5)
    assert len(set(await made.picks(B, 12))) == 2  # each site has its own limit


@in_loop
async def test_a_panic_is_for_its_site_only(by_site, clock):
    made = await by_site("abcd")
    for _ in range(10):
        for name in "abcd":
            made.report(name, Outcome.BANNED, A)
    assert made.pool.panicking(A)
    assert not made.pool.panicking(B)
    assert len([p for p in await made.picks(A, 20) if p]) == 1
    assert None not in await made.picks(B, 20)


@in_loop
async def test_each_site_begins_with_another_proxy(by_site):
    made = await by_site("abcd")
    first = [(await made.picks(f"s{n}.test", 1))[0] for n in range(8)]
    assert first == list("abcdabcd")


@in_loop
async def test_a_pick_that_was_not_used_stays_with_its_site(by_site):
    made = await by_site("abcd")
    ticket = await made.pool.acquire((), A)
    made.pool.give_back(ticket.proxy_id, ticket.epoch, A)
    assert await made.picks(B, 4) == ["b", "c", "d", "a"]
    assert await made.picks(A, 4) == ["a", "b", "c", "d"]


@in_loop
async def test_a_probe_that_was_not_used_is_sent_by_the_next_request(by_site, clock):
    made = await by_site("abcd")
    made.report("a", Outcome.BANNED, A, 3)
    clock.now += 30
    probe = await made.pool.acquire((), A)
    made.pool.give_back(probe.proxy_id, probe.epoch, A)
    assert await made.picks(A, 2) == ["a", "b"]


@in_loop
async def test_outcomes_from_before_a_ban_change_nothing_on_its_site(by_site, clock):
    made = await by_site("abcd")
    early = made.judge.epoch
    made.report("a", Outcome.BANNED, A, 3)
    late = Evidence(Outcome.BANNED, A, turned_away=True)
    assert made.pool.report("a", early, late) == Report(stale=True, site="")
    clock.now += 30
    assert await made.picks(A, 1) == ["a"]  # with the first duration


@in_loop
async def test_the_sites_are_bounded(by_site, monkeypatch):
    monkeypatch.setattr(local_judge, "MAX_SITES", 3)
    made = await by_site("abcd")
    for site in (A, "b", "c", A, "d", "e"):
        await made.picks(site, 1)
    made.report("a", Outcome.BANNED, A, 3)
    kept = made.strategy._sequences.keys() - {""}
    assert kept == {A, "d", "e"}  # the least recently used went
    assert made.judge._sites.keys() == kept
    for number in range(50):
        await made.picks(f"x{number}", 1)
    assert len(made.judge._sites) == 3
    assert "a" in await made.picks(A, 4)  # its ban went with it


@in_loop
async def test_with_many_proxies_fewer_sites_are_kept(by_site, monkeypatch):
    monkeypatch.setattr(local_judge, "MAX_SEATS", 12)
    made = await by_site("abcd")
    for number in range(9):
        await made.picks(f"x{number}", 1)
    assert len(made.judge._sites) == 3


@in_loop
async def test_a_reload_reaches_every_site(by_site):
    made = await by_site("abcd")
    made.report("a", Outcome.BANNED, A, 3)
    await made.picks(B, 2)
    listed = [Proxy("http", f"{n}.example", 8080, None, None, 1, n) for n in "abx"]
    await made.pool.reload(listed)
    assert set(await made.picks(A, 12)) == {"b", "x"}
    assert set(await made.picks(B, 12)) == {"a", "b", "x"}


@in_loop
async def test_penalties_of_a_ban_stay_on_its_site(clock):
    made = Made("abcd", clock)
    made.judge = LocalJudge(
        made.strategy,
        partial(Health, eject_after=0, eject_time=30.0, max_percent=50, clock=clock),
        clock,
        by_site=True,
    )
    made.pool = Pool("test", made.strategy, made.judge, made.pool._list, clock=clock)
    await made.pool.open()
    made.report("a", Outcome.BANNED, A, 30)
    assert (await made.picks(A, 40)).count("a") < 3
    assert (await made.picks(B, 40)).count("a") == 10


@in_loop
async def test_a_probe_that_hangs_in_a_tunnel_is_blamed_where_others_fare_well(by_site, clock):
    made = await by_site("abcd", by_site=False)
    made.report("a", Outcome.PROXY_ERROR, A, 3)
    for wait, others in ((60.0, Outcome.SUCCESS), (None, Outcome.AMBIGUOUS)):
        clock.now += 30 if wait else 60
        probe = await made.pool.acquire((), A)
        assert probe.proxy_id == "a"
        for _ in range(4):
            for name in "bcd":
                made.report(name, others, A)
        hung = Evidence(Outcome.AMBIGUOUS, A, why="timeout")
        report = made.pool.report(probe.proxy_id, probe.epoch, hung)
        assert report.ejected_for == wait  # None: maybe it is the site; the probe is repeated


@in_loop
async def test_a_return_says_why_and_how_long_it_was_out(by_site, clock):
    made = await by_site("abcd")
    made.report("a", Outcome.BANNED, A, 3)
    clock.now += 30
    assert await made.picks(A, 1) == ["a"]
    made.report("a", Outcome.BANNED, A)
    clock.now += 60
    assert made.judge.next_due is None  # everywhere
    assert await made.picks(A, 1) == ["a"]
    clock.now += 1
    made.report("a", Outcome.SUCCESS, A)
    await made.picks(A, 1)
    assert made.back == [Return("a", A, reason="banned", duration=91.0)]


@in_loop
async def test_it_is_known_when_the_next_is_due(by_site, clock):
    made = await by_site("abcd")
    assert made.judge.next_due is None
    made.report("a", Outcome.PROXY_ERROR, A, 3)
    clock.now += 10
    made.report("b", Outcome.PROXY_ERROR, A, 3)
    assert made.judge.next_due == 20.0
    clock.now += 25
    assert made.judge.next_due == 0.0


@in_loop
async def test_out_in_both_ways_it_comes_back_where_there_is_but_one_site(by_site, clock):
    made = await by_site("abcd")
    made.report("a", Outcome.BANNED, A, 3)
    made.report("a", Outcome.PROXY_ERROR, A, 3)
    assert made.pool.out == 1
    clock.now += 30
    assert await made.picks(A, 1) == ["a"]  # one request probes both
    assert "a" not in await made.picks(A, 9)
    made.report("a", Outcome.SUCCESS, A)
    assert "a" in await made.picks(A, 40)
    assert made.returned() == [Return("a"), Return("a", A)]


@in_loop
async def test_a_request_that_has_failed_does_not_probe_unless_there_is_no_other(by_site, clock):
    made = await by_site("abc", by_site=False)
    made.report("a", Outcome.PROXY_ERROR, A, 3)
    clock.now += 30
    tried = await made.pool.acquire(("b",), A)
    assert tried.proxy_id == "c"
    assert (await made.pool.acquire(("b", "c"), A)).proxy_id == "b"  # any but the last comes first
    made.report("b", Outcome.PROXY_ERROR, A, 3)
    assert (await made.pool.acquire(("c",), A)).proxy_id == "a"  # nobody else is left


@in_loop
async def test_picks_kept_for_sites_are_bounded(by_site):
    made = await by_site("abcd")
    for number in range(1_500):
        site = f"s{number}"
        ticket = await made.pool.acquire((), site)
        made.pool.give_back(ticket.proxy_id, ticket.epoch, site)
    assert len(made.pool._tickets) <= 1_000
    assert made.pool._tickets[f"s{number}"]


@in_loop
async def test_a_longer_list_leaves_room_for_fewer_sites(by_site, monkeypatch):
    monkeypatch.setattr(local_judge, "MAX_SEATS", 40)
    made = await by_site("abcd")
    for number in range(12):
        await made.picks(f"s{number}", 1)
    assert len(made.judge._sites) == 10
    names = "abcdefghij"
    listed = [Proxy("http", f"{n}.example", 8080, None, None, 1, n) for n in names]
    await made.pool.reload(listed)
    assert list(made.judge._sites) == ["s8", "s9", "s10", "s11"]
    assert made.strategy._sequences.keys() == {"", "s8", "s9", "s10", "s11"}


@in_loop
async def test_a_turn_that_found_nobody_is_the_next_ones(by_site, clock):
    # Else requests that have tried the only proxy would never get it.
    made = await by_site("ab", by_site=False)
    made.report("a", Outcome.BANNED, A, 3)
    for _ in range(60):
        made.report("b", Outcome.BANNED, A)
    assert made.pool.panicking(A)
    clock.now += 1
    assert await made.pool.acquire(("b",), A) is None
    assert not made.pool.paced(A)
    assert (await made.pool.acquire((), A)).proxy_id == "b"
    assert made.pool.paced(A)
    assert await made.pool.acquire((), A) is None  # in its turn
    clock.now += 1
    assert await made.pool.acquire((), A) is not None


# Candidates.


@in_loop
async def test_requests_never_go_by_a_candidate_nor_probe_one(by_site):
    made = await by_site("abc", by_site=False, admission=True)
    assert await made.picks("", 3) == [None] * 3
    probes = await made.pool.take_probes(2)
    assert [it.proxy_id for it in probes] == ["a", "b"]
    made.pool.checked("a", probes[0].epoch, Evidence(Outcome.SUCCESS, answered=True))
    assert await made.picks("", 3) == ["a"] * 3
    assert made.returned() == [Return("a", admitted=True)]
    made.pool.checked("b", probes[1].epoch, Evidence(Outcome.PROXY_ERROR, why="refused"))
    assert [it.proxy_id for it in await made.pool.take_probes(9)] == ["c"]
    views = {view.id: view for view in made.pool.snapshot()}
    assert (views["b"].out, views["b"].last_fault) == (True, "refused")
    assert (views["b"].picks, views["b"].failures) == (0, 0)  # a check is no request


@in_loop
async def test_one_that_is_admitted_starts_with_its_full_weight(by_site):
    made = await by_site("ab", by_site=False, admission=True)
    for probe in await made.pool.take_probes(2):
        made.pool.checked(probe.proxy_id, probe.epoch, Evidence(Outcome.SUCCESS, answered=True))
    assert await made.picks("", 4) == ["a", "b", "a", "b"]


@in_loop
async def test_one_that_failed_its_check_is_checked_again(by_site, clock):
    made = await by_site("ab", by_site=False, admission=True)
    for wait in (30, 60, 120):
        for probe in await made.pool.take_probes(9):
            made.pool.checked(probe.proxy_id, probe.epoch, Evidence(Outcome.BANNED))
        clock.now += wait - 1
        assert await made.pool.take_probes(9) == []
        clock.now += 1
    assert len(await made.pool.take_probes(9)) == 2
    assert not made.pool.panicking("")  # checks are no requests


@in_loop
async def test_a_ban_of_the_check_does_not_admit_by_site_either(by_site):
    made = await by_site("ab", admission=True)
    (probe,) = await made.pool.take_probes(1)
    banned = Evidence(Outcome.BANNED, A, turned_away=True, why="status 403")
    made.pool.checked(probe.proxy_id, probe.epoch, banned)
    assert await made.picks(A, 2) == [None, None]
    assert made.back == []


@in_loop
async def test_a_check_that_passes_ends_no_panic(by_site, clock):
    made = await by_site("abcd", by_site=False, admission=True)
    for probe in await made.pool.take_probes(4):
        made.pool.checked(probe.proxy_id, probe.epoch, Evidence(Outcome.SUCCESS, answered=True))
    await made.picks("", 1)
    for _ in range(40):
        for name in "abcd":
            made.report(name, Outcome.BANNED, "")
    assert made.pool.panicking("")
    clock.now += 60
    for probe in await made.pool.take_probes(4):
        made.pool.checked(probe.proxy_id, probe.epoch, Evidence(Outcome.SUCCESS, answered=True))
    assert made.pool.panicking("")


@in_loop
async def test_one_that_is_put_out_later_is_checked_not_probed_by_requests(by_site, clock):
    made = await by_site("abcd", by_site=False, admission=True)
    for probe in await made.pool.take_probes(4):
        made.pool.checked(probe.proxy_id, probe.epoch, Evidence(Outcome.SUCCESS, answered=True))
    await made.picks("", 1)
    made.report("b", Outcome.PROXY_ERROR, "", 3)
    clock.now += 30
    assert "b" not in await made.picks("", 9)
    (probe,) = await made.pool.take_probes(9)
    assert probe.proxy_id == "b"
    made.pool.checked("b", probe.epoch, Evidence(Outcome.SUCCESS, answered=True))
    await made.picks("", 1)
    assert made.returned()[-1] == Return("b", admitted=False)


@in_loop
async def test_candidates_neither_use_up_the_limit_nor_put_off_a_panic(by_site):
    made = await by_site("abcdefghijklmnopqrst", by_site=False, admission=True)
    for number, probe in enumerate(await made.pool.take_probes(20)):
        outcome = Outcome.SUCCESS if number < 4 else Outcome.PROXY_ERROR
        evidence = Evidence(outcome, answered=number < 4)
        made.pool.checked(probe.proxy_id, probe.epoch, evidence)
    await made.picks("", 1)
    reports = made.report("a", Outcome.BANNED, "", 3) + made.report("b", Outcome.BANNED, "", 3)
    assert [report.ejected_for for report in reports if report.ejected_for] == [30.0, 30.0]
    for _ in range(10):
        for name in "cd":
            made.report(name, Outcome.BANNED, "")
    assert made.pool.panicking("")
