"""Is a pool ever called empty because the reason to wait ended while it was asked?

Each of these ends between the pick and the question why there was none.
"""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from clock import Clock
from scrapy_smoothpool import SmoothPoolMiddleware, signals
from scrapy_smoothpool import meta as keys
from scrapy_smoothpool.panic import LEAST_BARREN, PACE, Panic
from store.store_helpers import in_loop, stop_loop

PROXY = "http://10.0.0.1:8080"
URL = "http://site.test/"
SHORTLY = 0.05
"""Seconds."""


@pytest.fixture(scope="module", autouse=True)
def loop():
    yield
    stop_loop()


async def opened(*, settings: dict[str, object]) -> SmoothPoolMiddleware:
    """Return an open middleware whose picks take longer than every reason to wait lasts."""
    crawler = get_crawler(
        Spider,
        {
            "SMOOTHPOOL_PROXIES": [PROXY],
            "DOWNLOADER_MIDDLEWARES": {SmoothPoolMiddleware: 610},
            "DOWNLOAD_TIMEOUT": 15,
            **settings,
        },
    )
    crawler.engine = SimpleNamespace(_slot=None)  # closing: whoever waits goes back at once
    middleware = SmoothPoolMiddleware.from_crawler(crawler)
    pool = middleware._pool
    await pool.open()
    acquire = pool.acquire

    async def slowly(*args):
        found = await acquire(*args)
        await asyncio.sleep(2 * SHORTLY)
        return found

    pool.acquire = slowly
    return middleware


async def outcome(middleware: SmoothPoolMiddleware, request: Request) -> str:
    """Return what became of a request: "empty pool", "waits" or "goes"."""
    dry: list[str] = []

    def exhausted(reason: str) -> None:
        dry.append(reason)

    middleware._crawler.signals.connect(exhausted, signal=signals.pool_exhausted)
    back = await middleware.process_request(request)
    if dry:
        return "empty pool"
    return "goes" if back is None else "waits"


@in_loop
async def test_a_rest_that_ends_meanwhile():
    middleware = await opened(settings={"SMOOTHPOOL_ON_EMPTY": "wait"})
    middleware._pool.rests.rest("site.test", PROXY, SHORTLY)
    assert await outcome(middleware, Request(URL)) == "waits"
    assert await outcome(middleware, Request(URL)) == "goes"


@pytest.mark.parametrize("on_empty", ["wait", "ignore", "close"])
@in_loop
async def test_the_only_proxy_that_may_be_tried_again_meanwhile(on_empty):
    middleware = await opened(settings={"SMOOTHPOOL_ON_EMPTY": on_empty})
    tries = keys.Tries(URL, 1, (PROXY,), 0.0, time.time() + SHORTLY)
    request = Request(URL, meta={keys.TRIES: tuple(tries)})
    assert await outcome(middleware, request) == "waits"
    assert await outcome(middleware, request) == "goes"


@pytest.mark.parametrize("on_empty", ["wait", "ignore", "close"])
@in_loop
async def test_a_turn_of_a_panic_that_comes_meanwhile(on_empty):
    middleware = await opened(settings={"SMOOTHPOOL_ON_EMPTY": on_empty})
    pool = middleware._pool
    panic = pool.judge._whole.panic
    for _ in range(LEAST_BARREN):
        panic.failure(spared=True, size=1)
    assert panic.on
    assert await pool.acquire() is not None  # and now it is not one's turn
    panic._next = panic._clock() + SHORTLY
    assert await outcome(middleware, Request(URL)) == "waits"
    assert await outcome(middleware, Request(URL)) == "goes"


@in_loop
async def test_the_first_checks_that_end_meanwhile(monkeypatch):
    middleware = await opened(
        settings={"SMOOTHPOOL_ON_EMPTY": "close", "SMOOTHPOOL_ADMISSION": True}
    )
    extension = middleware._extension
    end = time.monotonic() + SHORTLY
    checking = property(lambda self: time.monotonic() < end)
    monkeypatch.setattr(type(extension), "checking", checking)
    monkeypatch.setattr(extension, "admit", lambda request: None)
    assert await outcome(middleware, Request(URL)) == "waits"


def test_whoever_came_between_two_turns_did_so_however_late_it_is_asked():
    clock = Clock()
    panic = Panic(clock)
    for _ in range(LEAST_BARREN):
        panic.failure(spared=True, size=1)
    assert panic.may_pick(False)
    assert not panic.may_pick(False)
    clock.now += 2 * PACE
    assert panic.between_turns
    assert panic.may_pick(False)
    panic.give_turn_back()
    assert not panic.between_turns  # it was its turn, and there was none
