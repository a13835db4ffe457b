"""Are places for idle connections never more than asked for, used again, and given back?"""

from __future__ import annotations

import gc
import random
import resource

import pytest
from scrapy import Request
from scrapy.settings import Settings

from scrapy_smoothpool import checks
from scrapy_smoothpool.connections import LIFE, Connections

PAGE = "http://site.test/page"


def bounded(clock, most, *, gives_up=True):
    return Connections(close=False, most=most, gives_up=gives_up, clock=clock)


def send(connections, proxy_id, url=PAGE, *, rotates=False):
    """The request as it goes out, and whether it may keep its connection."""
    request = Request(url)
    closes = connections.sent(request, proxy_id, rotates=rotates)
    assert (request.headers.get("Connection") == b"close") == closes
    return request, not closes


def arrive(connections, request):
    connections._downloaded(request)
    connections._left(request)


def fetch(connections, proxy_id, url=PAGE):
    request, kept = send(connections, proxy_id, url)
    arrive(connections, request)
    return kept


def test_the_first_keep_their_places_and_the_others_get_none(clock):
    connections = bounded(clock, 2)
    rounds = [[fetch(connections, proxy) for proxy in "abcd"] for _ in range(3)]
    assert rounds == [[True, True, False, False]] * 3


@pytest.mark.parametrize("other", ["https://site.test/page", "http://site.test:81/", "http://b/"])
def test_a_place_is_of_one_proxy_scheme_and_site(clock, other):
    connections = bounded(clock, 1)
    assert fetch(connections, "a")
    assert not fetch(connections, "a", other)
    assert not fetch(connections, "b")
    assert fetch(connections, "a")


def test_two_at_a_time_through_one_proxy_need_two_places(clock):
    connections = bounded(clock, 1)
    first, kept = send(connections, "a")
    assert kept
    second, kept = send(connections, "a")
    assert not kept
    for request in (first, second):
        arrive(connections, request)
    assert fetch(connections, "a")


def test_places_that_were_idle_for_long_are_free(clock):
    connections = bounded(clock, 2)
    fetch(connections, "a")
    clock.now += LIFE / 2
    fetch(connections, "b")
    clock.now += LIFE / 2
    assert fetch(connections, "c")
    assert not fetch(connections, "a")
    assert fetch(connections, "b")


def test_where_connections_stay_for_good_places_do_too(clock):
    connections = bounded(clock, 1, gives_up=False)
    fetch(connections, "a")
    clock.now += 1000 * LIFE
    assert not fetch(connections, "b")


def test_a_failed_download_gives_its_place_back(clock):
    connections = bounded(clock, 1)
    request, _ = send(connections, "a")
    connections._left(request)
    assert fetch(connections, "b")


def test_a_request_that_vanishes_gives_its_place_back(clock):
    connections = bounded(clock, 1)
    request, _ = send(connections, "a")
    assert not fetch(connections, "b")
    del request
    gc.collect()
    assert fetch(connections, "b")


def test_a_gateway_takes_no_place(clock):
    connections = bounded(clock, 1)
    _, kept = send(connections, "gateway", rotates=True)
    assert not kept
    assert fetch(connections, "a")


def test_a_header_of_the_users_takes_no_place_and_is_left_alone(clock):
    connections = bounded(clock, 1)
    request = Request(PAGE, headers={"Connection": "keep-alive"})
    assert not connections.sent(request, "a", rotates=True)
    assert request.headers.getlist("Connection") == [b"keep-alive"]
    assert fetch(connections, "b")


def test_all_close_where_all_are_to(clock):
    connections = Connections(close=True, most=0, gives_up=True, clock=clock)
    assert connections.chooses
    assert not fetch(connections, "a")
    assert not Connections(close=False, most=0, gives_up=True, clock=clock).chooses


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_a_handler_never_keeps_more(clock, seed):
    """Against a handler that keeps what was not asked to be closed, until LIFE is over."""
    rng = random.Random(seed)
    most = rng.randint(1, 6)
    connections = bounded(clock, most)
    idle: dict[str, list[float]] = {}
    under_way: list[tuple[Request, str, bool]] = []
    opened = used_again = 0
    for _ in range(2000):
        clock.now += rng.choice([0, 1, LIFE / 10])
        idle = {k: [t for t in times if t > clock.now - LIFE] for k, times in idle.items()}
        if rng.random() < 0.55 and len(under_way) < 8:
            proxy = rng.choice("abcdefghij")
            request, kept = send(connections, proxy)
            if idle.get(proxy):
                idle[proxy].pop(0)
                used_again += 1
            else:
                opened += 1
            under_way.append((request, proxy, kept))
        elif under_way:
            request, proxy, kept = under_way.pop(rng.randrange(len(under_way)))
            if rng.random() < 0.2:
                connections._left(request)
                continue
            arrive(connections, request)
            if kept:
                idle.setdefault(proxy, []).append(clock.now)
        assert sum(map(len, idle.values())) <= most
    assert opened > used_again > 0
    assert len(connections._idle) <= most


# Descriptors


@pytest.mark.parametrize(("kept", "warned"), [(184, False), (185, True)])
def test_more_connections_than_files_are_pointed_out(monkeypatch, caplog, kept, warned):
    monkeypatch.setattr(checks, "open_files", lambda: 300)
    checks.warn_descriptors(Settings({"CONCURRENT_REQUESTS": 16}), kept)
    assert ("only 300 files" in caplog.text) is warned
    assert ("SMOOTHPOOL_MAX_IDLE_CONNECTIONS to 150 or less" in caplog.text) is warned


def test_no_limit_is_no_fault(monkeypatch, caplog):
    monkeypatch.setattr(checks, "open_files", lambda: None)
    checks.warn_descriptors(Settings(), 1_000_000)
    assert caplog.text == ""
    monkeypatch.undo()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert checks.open_files() == (None if soft == resource.RLIM_INFINITY else soft)
