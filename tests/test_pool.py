"""One request's way through the pool: acquired, given back or reported; and the pool's life."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, ClassVar, Self

import pytest

from clock import Clock
from farm.redis_server import RedisServer
from scrapy_smoothpool.exceptions import (
    PoolNotReady,
    SettingsError,
    StoreError,
    StoreUnavailable,
)
from scrapy_smoothpool.health import Health
from scrapy_smoothpool.judge import Evidence, Report
from scrapy_smoothpool.local_judge import LocalJudge
from scrapy_smoothpool.outcome import Outcome
from scrapy_smoothpool.panic import LEAST_BARREN, PACE, PAUSE
from scrapy_smoothpool.pool import Assignment, MemberView, Pool
from scrapy_smoothpool.proxy import Proxy
from scrapy_smoothpool.strategies.base import Strategy, StrategyOptions, WeightView
from scrapy_smoothpool.strategies.registry import find_strategy
from store.store_helpers import in_loop, run, stop_loop

SITE = "a.test"
SUCCESS, NEUTRAL = Outcome.SUCCESS, Outcome.NEUTRAL
PROXY_ERROR, AMBIGUOUS, BANNED = Outcome.PROXY_ERROR, Outcome.AMBIGUOUS, Outcome.BANNED

NOW = None

_numbers = count()


@pytest.fixture(scope="module", autouse=True)
def loop():
    yield
    stop_loop()


@pytest.fixture(scope="module")
def redis_url():
    with RedisServer() as server:
        yield server.url


def proxy(name: str, weight: int = 1, password: str | None = None) -> Proxy:
    username = None if password is None else "user"
    return Proxy("http", f"{name}.example", 8080, username, password, weight, name)


def proxies(names: str) -> list[Proxy]:
    return [proxy(name) for name in names]


class FakeStrategy:
    """A shared pool that says what it is told to say, in turn when it is told nothing."""

    shared: ClassVar[bool] = True
    by_site: ClassVar[bool] = False

    def __init__(self) -> None:
        self.listed: list[Proxy] = []
        self.script: deque[str | None] = deque()
        self.strangers: dict[str, Proxy] = {}
        self.out: set[str] = set()
        self.calls: list[tuple[object, ...]] = []
        self.opening: Exception | None = None
        self.refusing: Exception | None = None
        self.restoring: dict[str, Exception] = {}
        self._turn = 0

    @classmethod
    def from_options(cls, options: StrategyOptions) -> Self:
        return cls()

    def check(self, proxies: Sequence[Proxy]) -> None:
        if self.refusing is not None:
            raise self.refusing

    def reach(self) -> None:
        pass

    def describe(self) -> str:
        return "fake"

    async def open(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        if self.opening is not None:
            raise self.opening
        if proxies:
            self.listed = list(proxies)
        return self.listed

    async def pick(self, exclude: Collection[str] = (), site: str = "") -> str | None:
        if self.script:
            return self.script.popleft()
        for _ in self.listed:
            self._turn += 1
            found = self.listed[self._turn % len(self.listed)].id
            if found not in exclude and found not in self.out:
                return found
        return None

    async def lookup(self, proxy_id: str) -> Proxy | None:
        self.calls.append(("lookup", proxy_id))
        return self.strangers.get(proxy_id)

    async def members(self) -> Sequence[Proxy]:
        return self.listed

    def penalize(self, proxy_id: str, consecutive: int, site: str | None = None) -> int:
        self.calls.append(("penalize", proxy_id, consecutive))
        return 10 * consecutive

    def eject(self, proxy_id: str, site: str | None = None) -> None:
        self.calls.append(("eject", proxy_id))
        self.out.add(proxy_id)

    def forget(self, site: str) -> None:
        pass

    verdicts = None

    async def restore(self, proxy_id: str, site: str | None = None, *, gently: bool = True) -> None:
        self.calls.append(("restore", proxy_id))
        self.out.discard(proxy_id)
        if proxy_id in self.restoring:
            raise self.restoring[proxy_id]

    async def reload(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        self.listed = list(proxies)
        return self.listed

    def weights(self) -> Mapping[str, WeightView]:
        return {}

    async def close(self) -> None:
        self.calls.append(("close",))


def test_the_fake_is_a_strategy():
    assert isinstance(FakeStrategy(), Strategy)
    assert find_strategy(FakeStrategy) is FakeStrategy


class Made:
    """A pool and all that a test wants to look at."""

    def __init__(
        self,
        strategy: Strategy,
        clock: Clock,
        listed: Sequence[Proxy] | None,
        accept: Callable[[Sequence[Proxy]], object] = lambda proxies: None,
        eject_after: int = 3,
        wait_in_panic: bool = False,
    ) -> None:
        self.strategy = strategy
        self.clock = clock
        self.restored: list[str] = []
        make_health = partial(
            Health, eject_after=eject_after, eject_time=30.0, max_percent=50, clock=clock
        )
        judge = LocalJudge(
            strategy,
            make_health,
            clock,
            wait_in_panic=wait_in_panic,
            on_return=lambda back: self.restored.append(back.proxy_id),
        )
        self.health = judge.health
        self.pool = Pool("test", strategy, judge, listed, accept, clock)

    async def acquire(self, *tried: str, site: str = SITE) -> str | None:
        assignment = await self.pool.acquire(tried, site)
        return None if assignment is None else assignment.proxy_id

    async def assignment(self, *tried: str) -> Assignment:
        assignment = await self.pool.acquire(tried)
        assert assignment is not None
        return assignment

    def view(self, proxy_id: str) -> MemberView:
        return {view.id: view for view in self.pool.snapshot()}[proxy_id]

    def put_out(self, proxy_id: str, outcome: Outcome = PROXY_ERROR) -> Report:
        """Let a proxy fail as often as needed, in the epoch it is in now."""
        epoch = self.epoch(proxy_id)
        reports = [self.report(proxy_id, epoch, outcome) for _ in range(3)]
        assert reports[-1].ejected_for is not None, "the limit spared it"
        return reports[-1]

    def epoch(self, proxy_id: str) -> int:
        return self.health[proxy_id].epoch

    def report(self, proxy_id: str, epoch: int | None, outcome: Outcome, **known: Any) -> Report:
        """Book an outcome on SITE, in the epoch of now if that is NOW.

        Only a success is an answer unless said otherwise.
        """
        given = {"site": SITE, "answered": outcome is SUCCESS} | known
        epoch = self.epoch(proxy_id) if epoch is NOW else epoch
        return self.pool.report(proxy_id, epoch, Evidence(outcome, **given))

    async def probe(self, proxy_id: str) -> Assignment:
        """Wait until a proxy is due and get the request that probes it."""
        self.clock.now += 30
        assignment = await self.assignment()
        assert assignment.proxy_id == proxy_id
        return assignment

    async def bring_back(self, proxy_id: str) -> None:
        """Wait until a proxy is due and let its probe get through."""
        probe = await self.probe(proxy_id)
        assert self.report(*probe[:2], SUCCESS) == Report()


@pytest.fixture
def fake(clock):
    """Return open pools over a FakeStrategy."""

    async def make(listed: Sequence[Proxy] | None, **options: Any) -> Made:
        made = Made(FakeStrategy(), clock, listed, **options)
        await made.pool.open()
        return made

    return make


@pytest.fixture
def smooth(clock):
    """Return open pools over smooth_wrr."""

    async def make(listed: Sequence[Proxy], **options: Any) -> Made:
        strategy = find_strategy("smooth_wrr").from_options(StrategyOptions())
        made = Made(strategy, clock, listed, **options)
        await made.pool.open()
        return made

    return make


@pytest.fixture(params=["smooth_wrr", "least_used"])
def either(request, clock):
    """Return open pools over each of the two strategies."""
    made: list[Made] = []
    url = request.getfixturevalue("redis_url") if request.param == "least_used" else None

    async def make(listed: Sequence[Proxy]) -> Made:
        options = StrategyOptions(pool=f"pool{next(_numbers)}", redis_url=url)
        made.append(Made(find_strategy(request.param).from_options(options), clock, listed))
        await made[-1].pool.open()
        return made[-1]

    yield make
    for one in made:
        run(one.pool.close())


# Which proxy a request is given.


@in_loop
async def test_an_assignment_names_the_proxy_and_holds_its_login(either):
    made = await either([proxy("a", password="s/e:c")])
    assert await made.pool.acquire() == (
        "a",
        made.epoch("a"),
        "http://user:s%2Fe%3Ac@a.example:8080",
    )


@in_loop
async def test_an_untried_proxy_comes_first(either):
    made = await either(proxies("abcd"))
    for _ in range(10):
        assert await made.acquire("a", "b", "d") == "c"


@in_loop
async def test_all_proxies_are_tried_before_one_comes_again(either):
    made = await either(proxies("abcde"))
    for _ in range(5):
        tried: list[str] = []
        for _ in range(5):
            tried.append(await made.acquire(*tried))
        assert sorted(tried) == list("abcde")


@in_loop
async def test_when_all_were_tried_any_but_the_last_comes(either):
    made = await either(proxies("abc"))
    seen = {await made.acquire("a", "b", "c") for _ in range(10)}
    assert seen == {"a", "b"}


@in_loop
async def test_one_that_is_out_is_not_given_even_if_the_others_were_tried(either):
    made = await either(proxies("abc"))
    made.put_out("c")
    assert {await made.acquire("a", "b") for _ in range(5)} == {"a"}


@in_loop
async def test_the_last_one_itself_is_given_only_to_a_request_that_asks_anew(either):
    made = await either(proxies("a"))
    assert await made.acquire() == "a"
    assert await made.acquire("a") is None
    assert await made.acquire("a", "a") is None
    assert await made.acquire() == "a"


@in_loop
async def test_proxies_tried_and_gone_from_the_list_do_not_matter(either):
    made = await either(proxies("ab"))
    assert await made.acquire("gone", "a") == "b"


@in_loop
async def test_an_empty_pool_has_nothing_to_give(fake):
    made = await fake(None)
    assert len(made.pool) == 0
    assert await made.acquire() is None


@in_loop
async def test_picks_are_counted_for_each_proxy(either):
    made = await either(proxies("abc"))
    given = Counter([await made.acquire() for _ in range(30)])
    assert given == {"a": 10, "b": 10, "c": 10}
    assert {view.id: view.picks for view in made.pool.snapshot()} == given


# Picks that were not used.


@in_loop
async def test_a_pick_given_back_goes_to_the_next_request_in_the_same_sequence(smooth):
    listed = [proxy("a", 5), proxy("b"), proxy("c")]
    untouched, made = await smooth(listed), await smooth(listed)
    expected = [await untouched.acquire() for _ in range(14)]
    used = []
    for number in range(28):
        assignment = await made.assignment()
        if number % 2:
            used.append(assignment.proxy_id)
        else:
            made.pool.give_back(assignment.proxy_id, assignment.epoch)
    assert used == expected


@in_loop
async def test_a_ticket_is_used_once(either):
    made = await either(proxies("abc"))
    first = await made.assignment()
    made.pool.give_back(first.proxy_id, first.epoch)
    assert await made.assignment() == first
    assert await made.acquire() != first.proxy_id


@in_loop
async def test_the_oldest_ticket_goes_first(either):
    made = await either(proxies("abc"))
    given = [await made.assignment() for _ in range(3)]
    for assignment in given:
        made.pool.give_back(assignment.proxy_id, assignment.epoch)
    assert [await made.assignment() for _ in range(3)] == given


@in_loop
async def test_a_ticket_is_passed_over_by_a_request_that_tried_its_proxy(either):
    made = await either(proxies("abc"))
    first = await made.assignment()
    made.pool.give_back(first.proxy_id, first.epoch)
    assert await made.acquire(first.proxy_id) != first.proxy_id
    assert await made.assignment() == first  # it was kept for one that may


@in_loop
async def test_a_pick_counts_when_its_request_goes_out(either):
    made = await either(proxies("ab"))
    assignment = await made.assignment()
    assert made.view(assignment.proxy_id).picks == 1
    for _ in range(3):
        made.pool.give_back(assignment.proxy_id, assignment.epoch)
        assert made.view(assignment.proxy_id).picks == 0
        assert await made.assignment() == assignment
        assert made.view(assignment.proxy_id).picks == 1


@in_loop
async def test_a_ticket_from_before_an_ejection_is_dropped(either, clock):
    made = await either(proxies("abc"))
    assignment = await made.assignment()
    made.pool.give_back(assignment.proxy_id, assignment.epoch)
    made.put_out(assignment.proxy_id)
    for _ in range(4):
        assert await made.acquire() != assignment.proxy_id
    await made.bring_back(assignment.proxy_id)
    assert assignment not in await several(made, 6)  # of it there are new picks only
    assert made.restored == [assignment.proxy_id]


@in_loop
async def test_a_pick_given_back_after_its_proxy_was_put_out_is_no_ticket(either):
    made = await either(proxies("abc"))
    assignment = await made.assignment()
    made.put_out(assignment.proxy_id)
    made.pool.give_back(assignment.proxy_id, assignment.epoch)
    for _ in range(4):
        assert await made.acquire() != assignment.proxy_id


@in_loop
async def test_a_ticket_of_a_removed_proxy_is_dropped(either):
    made = await either(proxies("abc"))
    before, after = await made.assignment(), await made.assignment()
    rest = [p for p in proxies("abc") if p.id not in (before.proxy_id, after.proxy_id)]
    made.pool.give_back(before.proxy_id, before.epoch)
    await made.pool.reload(rest)
    made.pool.give_back(after.proxy_id, after.epoch)
    assert {await made.acquire() for _ in range(4)} == {rest[0].id}


@in_loop
async def test_a_ticket_of_a_proxy_drained_meanwhile_is_dropped(smooth):
    made = await smooth(proxies("ab"))
    assignment = await made.assignment()
    made.pool.give_back(assignment.proxy_id, assignment.epoch)
    await made.pool.reload([proxy("a", weight=0), proxy("b")])
    assert assignment.proxy_id == "a"
    assert {await made.acquire() for _ in range(4)} == {"b"}


@in_loop
async def test_a_ticket_carries_the_login_that_is_valid_when_it_is_used(smooth):
    made = await smooth([proxy("a", password="old")])
    assignment = await made.assignment()
    made.pool.give_back(assignment.proxy_id, assignment.epoch)
    await made.pool.reload([proxy("a", password="new")])
    assert (await made.assignment()).url == "http://user:new@a.example:8080"


# Outcomes.


@in_loop
async def test_each_outcome_is_booked_where_it_belongs(fake):
    made = await fake(proxies("abcd"))
    for outcome, times in {SUCCESS: 5, NEUTRAL: 4, AMBIGUOUS: 3, BANNED: 2}.items():
        for _ in range(times):
            made.report("a", NOW, outcome)
    made.report("b", NOW, PROXY_ERROR)
    view = made.view("a")
    assert (view.successes, view.unclear, view.failures) == (5, 3, 2)
    assert view.consecutive_failures == 2
    assert (made.view("b").failures, made.view("c").failures) == (1, 0)


@in_loop
async def test_failures_in_a_row_are_penalised_until_the_last_one_ejects(fake):
    made = await fake(proxies("abcd"))
    reports = [made.report("a", NOW, BANNED) for _ in range(3)]
    assert reports == [
        Report(blamed=True, penalty=10),
        Report(blamed=True, penalty=20),
        Report(blamed=True, ejected_for=30.0, consecutive=3),
    ]
    assert made.strategy.calls == [("penalize", "a", 1), ("penalize", "a", 2), ("eject", "a")]
    assert made.view("a").ejections == 1


@in_loop
async def test_only_success_starts_the_count_of_failures_anew(fake):
    made = await fake(proxies("abcd"))
    for outcome in (BANNED, NEUTRAL, AMBIGUOUS):
        assert made.report("a", NOW, outcome).ejected_for is None
    assert made.view("a").consecutive_failures == 1
    made.report("a", NOW, SUCCESS)
    assert made.view("a").consecutive_failures == 0


@pytest.mark.parametrize("outcome", [SUCCESS, NEUTRAL, AMBIGUOUS])
@in_loop
async def test_what_is_no_failure_changes_nothing_in_the_strategy(fake, outcome):
    made = await fake(proxies("abcd"))
    for _ in range(20):
        assert made.report("a", NOW, outcome) == Report()
    assert made.strategy.calls == []
    assert made.pool.out == 0


@in_loop
async def test_an_outcome_from_before_the_ejection_is_counted_and_changes_nothing(fake, clock):
    made = await fake(proxies("abcd"))
    before = made.epoch("a")
    made.put_out("a")
    calls = list(made.strategy.calls)
    assert made.report("a", before, BANNED) == Report(stale=True)
    await made.bring_back("a")
    await made.acquire()
    for _ in range(10):
        assert made.report("a", before, PROXY_ERROR) == Report(stale=True)
    view = made.view("a")
    assert (view.failures, view.consecutive_failures, view.out) == (14, 0, False)
    assert made.strategy.calls == [*calls, ("restore", "a")]


@in_loop
async def test_a_late_success_does_not_excuse_failures_since_the_return(fake, clock):
    made = await fake(proxies("abcd"))
    before = made.epoch("a")
    made.put_out("a")
    await made.bring_back("a")
    await made.acquire()
    made.report("a", NOW, BANNED)
    assert made.report("a", before, SUCCESS) == Report(stale=True)
    assert made.view("a").consecutive_failures == 1
    assert made.view("a").successes == 2  # this one and the probe


@in_loop
async def test_a_late_outcome_decides_no_probe(fake):
    made = await fake(proxies("abcd"))
    before = made.epoch("a")
    made.put_out("a")
    await made.probe("a")
    for outcome in (SUCCESS, BANNED, PROXY_ERROR, NEUTRAL, AMBIGUOUS):
        assert made.report("a", before, outcome) == Report(stale=True)
    assert made.view("a").out
    assert await made.acquire() != "a"  # the probe is still on its way


@in_loop
async def test_an_outcome_of_a_proxy_nobody_knows_is_stale(fake):
    made = await fake(proxies("ab"))
    assert made.report("never", 0, SUCCESS) == Report(stale=True)
    assert len(made.pool) == 2


# Ejection and return.


@pytest.mark.parametrize("outcome", [PROXY_ERROR, BANNED])
@in_loop
async def test_an_ejected_proxy_is_not_given_until_its_time_is_over(either, clock, outcome):
    made = await either(proxies("abcd"))
    expected = Report(blamed=True, ejected_for=30.0, consecutive=3)
    assert made.put_out("b", outcome) == expected
    assert made.pool.out == 1
    assert (made.view("b").out, made.view("b").reason) == (True, outcome.value)
    clock.now += 29.9
    assert {await made.acquire() for _ in range(12)} == set("acd")
    clock.now += 0.1
    assert await made.acquire() == "b"  # the probe
    assert {await made.acquire() for _ in range(12)} == set("acd")  # there is only one
    assert made.restored == []
    assert made.pool.out == 1
    assert made.report("b", NOW, SUCCESS) == Report()
    assert made.pool.out == 0
    await made.acquire()
    assert made.restored == ["b"]
    assert (made.view("b").out, made.view("b").reason) == (False, "")


@in_loop
async def test_a_proxy_that_is_back_is_used_again_without_a_rush(either, clock):
    made = await either(proxies("abcd"))
    before = made.epoch("b")
    made.put_out("b")
    for _ in range(100):
        await made.acquire()
    await made.bring_back("b")
    first = [await made.acquire() for _ in range(8)]
    assert first.count("b") <= 3
    later = [await made.acquire() for _ in range(400)]
    assert later.count("b") >= 20
    epochs = {assignment.epoch for assignment in await several(made, 40) if assignment[0] == "b"}
    assert epochs == {made.epoch("b")} != {before}


@in_loop
async def test_in_smooth_wrr_a_proxy_that_is_back_climbs_from_nothing(smooth, clock):
    made = await smooth(proxies("abcd"))
    made.put_out("b")
    await made.bring_back("b")
    seen = []
    for _ in range(120):  # 10 × max_fails × n selections until it is healed
        assert await made.acquire() is not None
        seen.append(made.view("b").effective_weight)
    assert seen == pytest.approx([number / 120 for number in range(1, 121)])


async def several(made: Made, times: int) -> list[Assignment]:
    return [await made.assignment() for _ in range(times)]


@in_loop
async def test_bans_leave_half_of_the_pool_and_certain_faults_one(either, clock):
    made = await either(proxies("abcd"))
    for name in "abcd":
        for _ in range(5):
            made.report(name, NOW, BANNED)
    assert made.pool.out == 2
    for name in "abcd":
        for _ in range(5):
            made.report(name, NOW, PROXY_ERROR)
    assert made.pool.out == 3
    made.report("d", NOW, SUCCESS)  # no panic
    assert len({await made.acquire() for _ in range(5)}) == 1


@pytest.mark.parametrize("outcome", [BANNED, PROXY_ERROR])
@in_loop
async def test_a_pool_of_one_never_wedges_and_does_not_hammer(either, clock, outcome):
    made = await either(proxies("a"))
    for number in range(60):
        assert made.report("a", NOW, outcome, login=number == 30).ejected_for is None
        assert await made.acquire() == "a"
        paced = await made.acquire() is None
        assert paced == made.pool.panicking(SITE) == (number + 1 >= LEAST_BARREN)
        clock.now += PACE


@in_loop
async def test_a_store_that_fails_at_a_return_loses_no_other_return(fake, clock, caplog):
    made = await fake(proxies("abcd"))
    made.strategy.restoring = {"a": StoreUnavailable("gone"), "b": StoreError("denied")}
    for name in "abc":
        made.put_out(name)
    clock.now += 30
    probes = await several(made, 3)
    assert [probe.proxy_id for probe in probes] == ["a", "b", "c"]
    for probe in probes:
        made.report(*probe[:2], SUCCESS)
    assert await made.acquire() is not None
    assert made.restored == ["a", "b", "c"]
    assert [call for call in made.strategy.calls if call[0] == "restore"] == [
        ("restore", "a"),
        ("restore", "b"),
        ("restore", "c"),
    ]
    assert made.pool.out == 0
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert {await made.acquire() for _ in range(8)} == set("abcd")


@in_loop
async def test_a_store_that_fails_at_a_pick_is_heard(fake):
    made = await fake(proxies("ab"))

    async def pick(exclude: Collection[str] = (), site: str = "") -> str | None:
        raise StoreUnavailable("gone")

    made.strategy.pick = pick
    with pytest.raises(StoreUnavailable):
        await made.acquire()


@in_loop
async def test_a_proxy_put_out_again_before_it_was_put_back_stays_out(smooth, clock):
    made = await smooth(proxies("abcd"))
    made.put_out("b")
    await made.bring_back("b")
    assert made.report("b", NOW, PROXY_ERROR, login=True).ejected_for == 1_800.0
    assert "b" not in {await made.acquire() for _ in range(200)}
    assert made.restored == []


@in_loop
async def test_a_proxy_removed_before_it_was_put_back_does_no_harm(either):
    made = await either(proxies("abc"))
    made.put_out("b")
    await made.bring_back("b")
    await made.pool.reload(proxies("ac"))
    assert {await made.acquire() for _ in range(6)} == set("ac")
    assert made.restored == []


# Probes.


@in_loop
async def test_probes_come_before_picks_and_tickets(either, clock):
    made = await either(proxies("abcdef"))
    given_back = await made.assignment()
    rest = [name for name in "abcdef" if name != given_back.proxy_id]
    made.put_out(rest[0])
    clock.now += 1
    made.put_out(rest[1])
    made.pool.give_back(*given_back[:2])
    clock.now += 30
    found = [await made.acquire() for _ in range(3)]
    assert found == [rest[0], rest[1], given_back.proxy_id]


@in_loop
async def test_a_probe_is_an_assignment_like_any_other(either, clock):
    made = await either([proxy(name, password="pw") for name in "abc"])
    made.put_out("b")
    epoch = made.epoch("b")
    assert await made.probe("b") == ("b", epoch, "http://user:pw@b.example:8080")
    assert made.view("b").picks == 1


@in_loop
async def test_a_probe_is_left_to_a_request_that_has_not_tried_the_proxy(either, clock):
    made = await either(proxies("abcd"))
    made.put_out("b")
    clock.now += 30
    for _ in range(4):
        assert await made.acquire("b") in ("a", "c", "d")
    assert await made.acquire() == "b"


@in_loop
async def test_a_request_that_has_failed_is_no_probe_while_there_are_others(either, clock):
    made = await either(proxies("abc"))
    made.put_out("b")
    clock.now += 30
    for tried in ("a", "c", "a"):
        assert await made.acquire(tried) in {"a", "c"} - {tried}
    made.put_out("c")
    assert await made.acquire("a") == "b"


@in_loop
async def test_a_probe_that_one_request_cannot_be_keeps_no_other_waiting(either, clock):
    made = await either(proxies("abcdef"))
    made.put_out("b")
    clock.now += 1
    made.put_out("c")
    clock.now += 30
    made.report("b", made.pool.judge.epoch, AMBIGUOUS, site="rests.test", rest=60.0)
    assert await made.acquire(site="rests.test") == "c"
    assert await made.acquire() == "b"


@in_loop
async def test_a_probe_given_back_is_the_next_requests(either, clock):
    made = await either(proxies("abcd"))
    made.put_out("b")
    probe = await made.probe("b")
    for _ in range(3):
        made.pool.give_back(*probe[:2])
        assert made.view("b").picks == 0
        assert await made.assignment() == probe
    assert made.view("b").picks == 1
    assert "b" not in {await made.acquire() for _ in range(8)}  # nor is it a ticket
    assert made.report(*probe[:2], SUCCESS) == Report()
    assert made.pool.out == 0


@in_loop
async def test_a_probe_given_back_comes_before_older_tickets(either, clock):
    made = await either(proxies("abcd"))
    ticket = await made.assignment()
    bad = next(name for name in "abcd" if name != ticket.proxy_id)
    made.put_out(bad)
    probe = await made.probe(bad)
    made.pool.give_back(*ticket[:2])
    made.pool.give_back(*probe[:2])
    found = await several(made, 2)
    assert [it.proxy_id for it in found] == [probe.proxy_id, ticket.proxy_id]


@in_loop
async def test_a_probe_that_fails_waits_twice_as_long(either, clock):
    made = await either(proxies("abcd"))
    made.put_out("b")
    probe = await made.probe("b")
    assert made.report(*probe[:2], PROXY_ERROR).ejected_for == 60.0
    assert made.view("b").ejections == 2
    clock.now += 59.9
    assert "b" not in {await made.acquire() for _ in range(8)}
    clock.now += 0.1
    assert (await made.assignment())[:2] == ("b", made.epoch("b"))
    assert made.epoch("b") > probe.epoch
    assert made.restored == []


@pytest.mark.parametrize(
    ("outcome", "answered", "back"),
    [
        (SUCCESS, True, True),
        (NEUTRAL, True, True),  # a 404 came through it
        (NEUTRAL, False, False),  # a middleware's error says nothing
        (AMBIGUOUS, False, False),
    ],
)
@in_loop
async def test_what_a_probe_says(either, clock, outcome, answered, back):
    made = await either(proxies("abcd"))
    made.put_out("b")
    probe = await made.probe("b")
    assert made.report(*probe[:2], outcome, answered=answered) == Report()
    await made.acquire()
    assert made.restored == (["b"] if back else [])
    assert made.pool.out == (not back)
    if not back:
        assert await made.probe("b") == probe  # once more, after the same time


@in_loop
async def test_a_neutral_answer_changes_nothing_of_a_proxy_in_use(fake):
    made = await fake(proxies("abcd"))
    made.report("a", NOW, BANNED)
    assert made.report("a", NOW, NEUTRAL, answered=True) == Report()
    assert made.view("a").consecutive_failures == 1


@in_loop
async def test_a_proxy_is_put_back_before_the_next_pick(fake):
    made = await fake(proxies("abc"))
    made.put_out("b")
    await made.bring_back("b")
    assert ("restore", "b") not in made.strategy.calls
    made.strategy.script.append("a")
    await made.acquire()
    assert made.strategy.calls[-1] == ("restore", "b")
    assert made.restored == ["b"]
    await made.acquire()
    assert made.strategy.calls.count(("restore", "b")) == 1


@in_loop
async def test_a_drained_proxy_is_not_probed(smooth, clock):
    made = await smooth(proxies("abcd"))
    made.put_out("b")
    await made.pool.reload([proxy("a"), proxy("b", weight=0), proxy("c"), proxy("d")])
    clock.now += 60
    assert {await made.acquire() for _ in range(9)} == set("acd")
    await made.pool.reload(proxies("abcd"))
    assert await made.acquire() == "b"


@pytest.mark.parametrize("n", [2, 3, 10, 50, 100])
@pytest.mark.parametrize("pace", [0.0, 0.3, 1.0, 30.0])
@in_loop
async def test_after_an_ejection_it_is_its_fair_share_and_the_probe_at_most(smooth, clock, n, pace):
    names = [f"p{number}" for number in range(n)]
    made = await smooth([proxy(name) for name in names])
    bad = names[n // 2]
    for _ in range(3 * n + 1):
        await made.assignment()
    made.put_out(bad)
    fair = -(-100 // n)
    for _ in range(3):  # whether or not it comes back meanwhile, it fails or answers
        for outcome in (SUCCESS, PROXY_ERROR):
            count = 0
            for _ in range(100):
                assignment = await made.assignment()
                count += assignment.proxy_id == bad
                good = assignment.proxy_id != bad
                made.report(*assignment[:2], SUCCESS if good else outcome)
                clock.now += pace
            assert count <= fair + 1


@in_loop
async def test_the_first_hundred_picks_after_a_return_are_few(smooth, clock):
    made = await smooth(proxies("abcdefghij"))
    made.put_out("b")
    await made.bring_back("b")
    found = Counter([await made.acquire() for _ in range(100)])
    assert 1 <= found["b"] <= 10
    assert max(found.values()) - min(found[name] for name in "acdefghij") <= 1


# Whose fault it was.


async def tunnel(made: Made, times: int, bad: str) -> list[Report]:
    """Send requests; those through *bad* end ambiguously. Return what each of these changed."""
    found = []
    for _ in range(times):
        assignment = await made.assignment()
        failed = assignment.proxy_id == bad
        report = made.report(*assignment[:2], AMBIGUOUS if failed else SUCCESS)
        found += [report] * failed
    return found


@in_loop
async def test_an_ambiguous_failure_is_blamed_on_the_one_that_stands_out(either):
    made = await either(proxies("abcdefghij"))
    reports = await tunnel(made, 100, "d")
    assert [report.blamed for report in reports] == [False, False, True, True, True]
    assert reports[-1].ejected_for == 30.0
    view = made.view("d")
    assert (view.unclear, view.failures, view.ejections) == (2, 3, 1)
    assert (view.out, view.reason) == (True, "ambiguous")
    assert made.pool.out == 1


@in_loop
async def test_a_site_that_goes_down_costs_no_proxy_anything(either, clock):
    made = await either(proxies("abcdefghij"))
    for _ in range(300):
        made.report(*(await made.assignment())[:2], SUCCESS)
        clock.now += 0.02
    for _ in range(300):
        assert made.report(*(await made.assignment())[:2], AMBIGUOUS) == Report()
        clock.now += 0.02
    assert made.pool.out == 0
    assert {view.unclear for view in made.pool.snapshot()} == {30}
    assert {view.consecutive_failures for view in made.pool.snapshot()} == {0}


@in_loop
async def test_blame_by_comparison_puts_out_a_share_of_the_pool_at_most(fake):
    made = await fake(proxies("abcd"))
    for _ in range(20):
        for name in "ab":
            made.report(name, NOW, SUCCESS, site="b.test")
    for name in "cd":  # each on its own site, where the others do well
        for _ in range(3):
            for other in "ab":
                for _ in range(10):
                    made.report(other, NOW, SUCCESS, site=f"{name}.test")
            for _ in range(3):
                made.report(name, NOW, AMBIGUOUS, site=f"{name}.test")
    assert made.pool.out == 2
    for _ in range(10):
        for _ in range(20):
            made.report("b", NOW, SUCCESS, site="e.test")
        assert made.report("a", NOW, AMBIGUOUS, site="e.test").ejected_for is None
    assert made.pool.out == 2


@in_loop
async def test_outcomes_that_came_too_late_still_say_how_a_site_does(fake):
    made = await fake(proxies("abcd"))
    before = made.epoch("a")
    made.put_out("a")
    for _ in range(20):
        assert made.report("a", before, SUCCESS) == Report(stale=True)
        assert made.report("gone", 0, SUCCESS) == Report(stale=True)
    assert [made.report("b", NOW, AMBIGUOUS).blamed for _ in range(3)] == [False, False, True]


@in_loop
async def test_a_refused_login_puts_out_at_once(either):
    made = await either(proxies("abcd"))
    report = made.report("a", NOW, PROXY_ERROR, login=True)
    assert report == Report(blamed=True, ejected_for=1_800.0, consecutive=1)
    assert "a" not in {await made.acquire() for _ in range(9)}


# Rests.


@in_loop
async def test_a_resting_proxy_is_passed_over_on_its_site_only(either, clock):
    made = await either(proxies("abcd"))
    made.report("b", NOW, BANNED, rest=2.0)
    assert set(made.pool.resting(SITE)) == {"b"}
    assert set(made.pool.resting("b.test")) == set()
    for _ in range(8):
        assert await made.acquire() in ("a", "c", "d")
    assert "b" in {await made.acquire(site="b.test") for _ in range(4)}
    assert "b" in {await made.acquire(site="") for _ in range(8)}
    clock.now += 1.9
    assert "b" not in {await made.acquire() for _ in range(8)}
    clock.now += 0.1
    assert "b" in {await made.acquire() for _ in range(8)}


@in_loop
async def test_a_proxy_rests_for_a_request_that_has_tried_all_others_too(either):
    made = await either(proxies("abc"))
    made.report("b", NOW, BANNED, rest=2.0)
    assert {await made.acquire("b", "a", "c") for _ in range(4)} == {"a"}
    made.report("a", NOW, BANNED, rest=2.0)
    assert await made.acquire("b", "a", "c") is None
    assert await made.acquire("b", "a", "c", site="b.test") in ("a", "b")


@in_loop
async def test_with_all_at_rest_there_is_nothing_to_give_on_that_site(either, clock):
    made = await either(proxies("ab"))
    for name in "ab":
        made.report(name, NOW, BANNED, rest=2.0)
    assert await made.acquire() is None
    assert await made.acquire(site="b.test") in ("a", "b")
    clock.now += 2
    assert await made.acquire() in ("a", "b")


@in_loop
async def test_a_ticket_of_a_resting_proxy_waits_for_another_site(either):
    made = await either(proxies("abc"))
    assignment = await made.assignment()
    made.pool.give_back(*assignment[:2])
    made.report(assignment.proxy_id, NOW, BANNED, rest=2.0)
    assert await made.acquire() != assignment.proxy_id
    assert await made.acquire(site="b.test") == assignment.proxy_id


@in_loop
async def test_a_resting_proxy_is_probed_on_another_site_and_holds_up_no_other(either, clock):
    made = await either(proxies("abcdef"))
    before = made.epoch("b")
    made.put_out("b")
    made.report("b", before, BANNED, rest=86_400.0)
    clock.now += 1
    made.put_out("c")
    clock.now += 30
    assert await made.acquire() == "c"
    assert "b" not in {await made.acquire() for _ in range(8)}
    assert await made.acquire(site="b.test") == "b"


@in_loop
async def test_a_rest_asked_for_by_a_late_outcome_is_kept_too(either):
    made = await either(proxies("abcd"))
    before = made.epoch("b")
    made.put_out("b")
    await made.bring_back("b")
    assert made.report("b", before, BANNED, rest=2.0) == Report(stale=True)
    assert set(made.pool.resting(SITE)) == {"b"}


# Panic.


async def until_panic(made: Made) -> int:
    """Let every request be banned until the pool panics; return how many it took."""
    for number in range(1, 1_000):
        assignment = await made.assignment()
        if made.report(*assignment[:2], BANNED).panic:
            return number
    raise AssertionError("no panic")


@pytest.mark.parametrize(("wait", "seconds"), [(False, PACE), (True, PAUSE)])
@in_loop
async def test_a_panic_paces_picks_and_ends_with_a_success(smooth, clock, wait, seconds):
    made = await smooth(proxies("abcd"), wait_in_panic=wait)
    assert not made.pool.panicking(SITE)
    assert await until_panic(made) == LEAST_BARREN
    assert made.pool.panicking(SITE)
    assert made.pool.out == 2
    for _ in range(10):
        assignment = await made.assignment()
        assert [await made.acquire() for _ in range(5)] == [None] * 5
        clock.now += seconds / 2
        assert await made.acquire() is None
        clock.now += seconds / 2
        assert not made.report(*assignment[:2], BANNED).panic  # told once
    assignment = await made.assignment()
    made.report(*assignment[:2], SUCCESS)
    assert not made.pool.panicking(SITE)
    assert None not in [await made.acquire() for _ in range(50)]


@in_loop
async def test_when_it_begins_again_it_is_told_again(smooth):
    made = await smooth(proxies("abcd"))
    await until_panic(made)
    made.report("c", NOW, SUCCESS)
    made.report("d", NOW, SUCCESS)
    assert await until_panic(made) >= LEAST_BARREN


@in_loop
async def test_a_probe_that_gets_through_ends_a_panic(smooth, clock):
    made = await smooth(proxies("abcd"))
    await until_panic(made)
    clock.now += 30
    probe = await made.assignment()
    assert made.view(probe.proxy_id).out
    made.report(*probe[:2], SUCCESS)
    assert not made.pool.panicking(SITE)


@in_loop
async def test_failures_blamed_on_nobody_are_no_reason_to_panic(smooth):
    made = await smooth(proxies("abcd"))
    for _ in range(200):
        assignment = await made.assignment()
        made.report(*assignment[:2], AMBIGUOUS)
        made.report(*assignment[:2], NEUTRAL)
    assert not made.pool.panicking(SITE)


@in_loop
async def test_without_ejections_there_is_no_panic(smooth):
    made = await smooth(proxies("abcd"), eject_after=0)
    for _ in range(200):
        assert not made.report(*(await made.assignment())[:2], BANNED).panic


@in_loop
async def test_a_few_bad_proxies_are_no_reason_to_panic(smooth):
    made = await smooth(proxies("abcdefghij"))
    for _ in range(500):
        assignment = await made.assignment()
        bad = assignment.proxy_id in "abc"
        assert not made.report(*assignment[:2], BANNED if bad else SUCCESS).panic
    assert made.pool.out == 3


# Another list.


@in_loop
async def test_who_stays_keeps_counts_and_health(either):
    made = await either(proxies("abcd"))
    given = Counter([await made.acquire() for _ in range(8)])
    made.report("a", NOW, BANNED)
    made.report("b", NOW, SUCCESS)
    made.put_out("c")
    await made.pool.reload(proxies("abce"))
    assert [view.id for view in made.pool.snapshot()] == list("abce")
    assert {view.id: view.picks for view in made.pool.snapshot()} == {
        name: given[name] if name != "e" else 0 for name in "abce"
    }
    assert made.view("a").consecutive_failures == 1
    assert made.view("b").successes == 1
    assert made.view("c").out
    assert {await made.acquire() for _ in range(9)} == set("abe")


@in_loop
async def test_a_removed_proxy_is_not_brought_back_by_its_outcome(either):
    made = await either(proxies("abc"))
    in_flight = await made.assignment()
    rest = [p for p in proxies("abc") if p.id != in_flight.proxy_id]
    await made.pool.reload(rest)
    for outcome in (SUCCESS, PROXY_ERROR, PROXY_ERROR, PROXY_ERROR, BANNED):
        report = made.report(in_flight.proxy_id, in_flight.epoch, outcome)
        assert report == Report(stale=True)
    made.pool.give_back(in_flight.proxy_id, in_flight.epoch)
    assert sorted(view.id for view in made.pool.snapshot()) == sorted(p.id for p in rest)
    assert in_flight.proxy_id not in {await made.acquire() for _ in range(9)}


@in_loop
async def test_a_proxy_removed_while_out_does_not_return(either, clock):
    made = await either(proxies("abc"))
    made.put_out("a")
    await made.pool.reload(proxies("bc"))
    assert made.pool.out == 0
    clock.now += 60
    assert {await made.acquire() for _ in range(6)} == set("bc")
    assert made.restored == []


@in_loop
async def test_a_proxy_that_comes_back_with_a_list_starts_anew(either):
    made = await either(proxies("abc"))
    made.put_out("a")
    await made.pool.reload(proxies("bc"))
    await made.pool.reload(proxies("abc"))
    assert made.view("a")[3:] == (0, 0, 0, 0, 0, 0, False, "", "")
    assert {await made.acquire() for _ in range(9)} == set("abc")


@in_loop
async def test_a_new_password_is_used_from_then_on(either):
    made = await either([proxy("a", password="old")])
    await made.assignment()
    await made.pool.reload([proxy("a", password="new")])
    assert await made.assignment() == (
        "a",
        made.epoch("a"),
        "http://user:new@a.example:8080",
    )
    assert made.view("a").picks == 2


@in_loop
async def test_a_drained_proxy_is_listed_and_not_given(smooth):
    made = await smooth([proxy("a"), proxy("b"), proxy("c")])
    await made.pool.reload([proxy("a"), proxy("b", weight=0), proxy("c")])
    assert {await made.acquire() for _ in range(6)} == {"a", "c"}
    assert made.view("b").weight == 0
    assert len(made.pool) == 3
    made.put_out("a")  # of two that take part one may go…
    with pytest.raises(AssertionError, match="the limit spared it"):
        made.put_out("c")  # …and the drained one does not take over


@in_loop
async def test_an_empty_list_is_refused_and_the_old_one_stays(either):
    made = await either(proxies("ab"))
    with pytest.raises(SettingsError, match="empty"):
        await made.pool.reload([])
    assert {await made.acquire() for _ in range(4)} == {"a", "b"}


@in_loop
async def test_a_list_that_could_not_have_been_started_with_is_refused(fake):
    made = await fake(proxies("ab"), accept=refuse_x)
    with pytest.raises(SettingsError, match="cannot speak to x"):
        await made.pool.reload(proxies("abx"))
    made.strategy.refusing = SettingsError("unequal weights")
    with pytest.raises(SettingsError, match="unequal"):
        await made.pool.reload(proxies("c"))
    assert {await made.acquire() for _ in range(4)} == {"a", "b"}


@in_loop
async def test_a_list_of_proxies_that_are_all_out_does_not_wedge(either, clock):
    made = await either(proxies("abcd"))
    for name in "cab":
        made.put_out(name)
        clock.now += 1
    await made.pool.reload(proxies("abc"))
    assert {await made.acquire() for _ in range(4)} == {"c"}  # the first one out
    assert made.restored == ["c"]
    assert made.pool.out == 2


@in_loop
async def test_an_outcome_from_before_a_removal_does_not_count_after_the_return(either):
    made = await either(proxies("abc"))
    before = made.epoch("a")
    await made.pool.reload(proxies("bc"))
    await made.pool.reload(proxies("abc"))
    for _ in range(3):
        assert made.report("a", before, PROXY_ERROR) == Report(stale=True)
    assert not made.view("a").out


@in_loop
async def test_an_address_holds_no_login_and_is_forgotten_with_its_proxy(either):
    made = await either([proxy("a", password="pw"), proxy("b", password="pw")])
    found = made.pool.proxy("a")
    assert found is not None
    assert found.address == "http://a.example:8080"
    await made.pool.reload([proxy("b", password="pw")])
    assert made.pool.proxy("a") is None


@in_loop
async def test_the_last_fault_is_that_of_the_last_failure_clear_or_not(fake):
    made = await fake(proxies("abcd"))
    seen = []
    for outcome, why in [(BANNED, "403"), (SUCCESS, "200"), (AMBIGUOUS, "503"), (NEUTRAL, "404")]:
        made.report("a", NOW, outcome, why=why)
        seen.append(made.view("a").last_fault)
    assert seen == ["403", "403", "503", "503"]


# Members that others brought in.


@in_loop
async def test_a_pool_without_a_list_of_its_own_has_what_the_strategy_found(clock):
    strategy = FakeStrategy()
    strategy.listed = proxies("ab")
    accepted: list[Sequence[Proxy]] = []
    made = Made(strategy, clock, None, accept=accepted.append)
    await made.pool.open()
    assert accepted == [proxies("ab")]
    assert {await made.acquire() for _ in range(4)} == {"a", "b"}


@in_loop
async def test_a_list_of_its_own_was_checked_before(clock):
    accepted: list[Sequence[Proxy]] = []
    made = Made(FakeStrategy(), clock, proxies("ab"), accept=accepted.append)
    await made.pool.open()
    assert accepted == []


@in_loop
async def test_a_member_another_worker_brought_is_looked_up_once_and_used(fake):
    made = await fake(proxies("ab"))
    made.strategy.strangers["x"] = proxy("x", password="pw")
    made.strategy.listed = [*proxies("ab"), made.strategy.strangers["x"]]
    made.strategy.script.extend(["x", "x"])
    assert await made.assignment() == ("x", made.epoch("x"), "http://user:pw@x.example:8080")
    assert await made.acquire() == "x"
    assert made.strategy.calls == [("lookup", "x")]
    assert made.view("x").picks == 2
    assert made.put_out("x").ejected_for == 30.0


@in_loop
async def test_a_member_nobody_knows_is_skipped_with_a_warning(fake, caplog):
    made = await fake(proxies("ab"))
    made.strategy.script.append("by-hand")
    assert await made.acquire() in ("a", "b")
    assert "by-hand" in caplog.text
    assert len(made.pool) == 2


@in_loop
async def test_a_pool_of_members_nobody_knows_gives_nothing(fake):
    made = await fake(proxies("ab"))
    made.strategy.script.extend(f"by-hand-{number}" for number in range(1_000))
    assert await made.acquire() is None
    assert 900 < len(made.strategy.script) < 1_000  # it tried, and stopped trying


def refuse_x(found: Sequence[Proxy]) -> None:
    if any(one.id == "x" for one in found):
        raise SettingsError("cannot speak to x")


@in_loop
async def test_a_member_this_worker_cannot_use_is_put_aside(fake, caplog):
    made = await fake(proxies("ab"), accept=refuse_x)
    made.strategy.strangers["x"] = proxy("x", password="S3CR3T")
    made.strategy.script.append("x")
    assert await made.acquire() in ("a", "b")
    assert ("eject", "x") in made.strategy.calls
    assert "cannot speak to x" in caplog.text
    assert "S3CR3T" not in caplog.text
    assert len(made.pool) == 2


@in_loop
async def test_a_member_this_worker_cannot_use_is_not_given_after_a_tidying_either(fake):
    made = await fake(proxies("ab"), accept=refuse_x)
    strangers = [proxy(f"s{number}") for number in range(150)]
    made.strategy.strangers = {one.id: one for one in strangers}
    made.strategy.script.extend(made.strategy.strangers)
    made.strategy.listed = [*proxies("ab"), proxy("x"), *strangers[-5:]]
    for _ in range(150):
        await made.acquire()
    made.strategy.script.extend(["x"] * 5)
    assert "x" not in {await made.acquire() for _ in range(5)}


@in_loop
async def test_memory_stays_bounded_while_a_shared_list_keeps_changing(fake, clock):
    made = await fake(proxies("abcdefghij"))
    longest = 0
    for number in range(5_000):
        clock.now += 0.01
        newcomer = proxy(f"n{number}")
        made.strategy.strangers = {newcomer.id: newcomer}
        made.strategy.listed = [*made.strategy.listed[1:], newcomer]  # ten, never the same
        made.strategy.script.append(newcomer.id)
        assert await made.acquire() == newcomer.id
        longest = max(longest, len(made.pool), len(made.pool.snapshot()))
    assert longest <= 200
    assert made.view("n4999").picks == 1


# The pool's life.


@in_loop
async def test_nothing_is_given_before_the_pool_is_open(clock):
    made = Made(FakeStrategy(), clock, proxies("ab"))
    with pytest.raises(PoolNotReady, match="new"):
        await made.acquire()


@in_loop
async def test_nothing_is_given_after_the_pool_was_closed(either):
    made = await either(proxies("ab"))
    assignment = await made.assignment()
    made.pool.give_back(assignment.proxy_id, assignment.epoch)
    await made.pool.close()
    with pytest.raises(PoolNotReady, match="closed"):
        await made.acquire()
    await made.pool.close()  # twice does no harm


@in_loop
async def test_closing_closes_the_strategy(fake):
    made = await fake(proxies("ab"))
    await made.pool.close()
    assert made.strategy.calls == [("close",)]


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), SettingsError("bad"), OSError()])
@in_loop
async def test_a_pool_that_could_not_be_opened_gives_nothing(clock, error):
    made = Made(FakeStrategy(), clock, proxies("ab"))
    made.strategy.opening = error
    with pytest.raises(type(error)):
        await made.pool.open()
    with pytest.raises(PoolNotReady, match="failed"):
        await made.acquire()


@in_loop
async def test_a_found_list_this_worker_cannot_use_fails_the_opening(clock):
    strategy = FakeStrategy()
    strategy.listed = proxies("ax")
    made = Made(strategy, clock, None, accept=refuse_x)
    with pytest.raises(SettingsError):
        await made.pool.open()
    with pytest.raises(PoolNotReady, match="failed"):
        await made.acquire()


@in_loop
async def test_outcomes_may_still_arrive_after_closing(either):
    made = await either(proxies("ab"))
    assignment = await made.assignment()
    await made.pool.close()
    made.report(assignment.proxy_id, assignment.epoch, SUCCESS)
    assert made.view(assignment.proxy_id).successes == 1


# What is shown.


@in_loop
async def test_a_snapshot_shows_every_proxy_and_no_login(either):
    listed = [
        Proxy("http", "gate.example", 10_000, f"US3R{number}", "S3CR3T") for number in range(3)
    ]
    made = await either(listed)
    assignment = await made.assignment()
    made.report(assignment.proxy_id, NOW, BANNED, why="403")
    shown = made.pool.snapshot()
    assert [view.id for view in shown] == [one.id for one in listed]
    assert "S3CR3T" not in repr(shown)
    assert "US3R" not in repr(shown)
    name = assignment.proxy_id
    assert made.view(name) == (name, 1, 1.0, 1, 0, 1, 0, 0, 1, False, "", "403")


@in_loop
async def test_a_snapshot_shows_weights_as_the_user_wrote_them(smooth):
    made = await smooth([proxy("a", 5), proxy("b", 1), proxy("c", 0)])
    assert [view[:3] for view in made.pool.snapshot()] == [("a", 5, 5), ("b", 1, 1), ("c", 0, 0)]
    for _ in range(5):
        made.report("b", NOW, BANNED)  # more than max_fails, and its half of two is one
    assert made.view("b").out
