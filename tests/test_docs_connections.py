"""Does docs/connections.md say what the code, the handlers and the benchmark do?"""

from __future__ import annotations

import asyncio
import importlib.util
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
import scrapy
from scrapy.utils.test import get_crawler
from twisted.web.client import HTTPConnectionPool

from scrapy_smoothpool import SmoothPoolMiddleware, parse_proxies
from scrapy_smoothpool.connections import LIFE
from scrapy_smoothpool.parsing import parse_weighted
from scrapy_smoothpool.settings import NAMES, Settings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "connections.md").read_text("utf-8")
TEXT = " ".join(PAGE.split())


def test_every_setting_it_names_is_one():
    named = set(re.findall(r"SMOOTHPOOL_[A-Z_]+", PAGE))
    assert named == {"SMOOTHPOOL_CONNECTION_CLOSE", "SMOOTHPOOL_MAX_IDLE_CONNECTIONS"}
    assert named <= set(NAMES)
    assert (Settings().connection_close, Settings().max_idle_connections) == (False, 0)


def test_its_lists_are_read_as_it_says():
    (block,) = re.findall(r"```text\n(.*?)```", PAGE, re.S)
    assert [proxy.close for proxy in parse_proxies(block)] == [True, False]
    (weights,) = re.findall(r"`(\{.*?\})`", PAGE)
    ((proxy, weight),) = eval(weights).items()
    (gateway,) = parse_weighted({proxy: weight})
    assert (gateway.close, gateway.weight) == (True, 5)


@pytest.mark.parametrize(
    ("settings", "chooses"),
    [
        ({"SMOOTHPOOL_MAX_IDLE_CONNECTIONS": 200}, True),
        ({"SMOOTHPOOL_MAX_IDLE_CONNECTIONS": 0}, False),
        ({"SMOOTHPOOL_CONNECTION_CLOSE": True}, True),
    ],
)
def test_the_settings_are_taken_as_it_writes_them(settings, chooses):
    ((name, value),) = settings.items()
    assert f"{name} = {value}" in PAGE or "the default 0 is no bound" in PAGE
    own = {"SMOOTHPOOL_PROXIES": ["http://127.0.0.1:9"], **settings}
    crawler = get_crawler(settings_dict={"ADDONS": {"scrapy_smoothpool.Addon": 500}, **own})
    assert SmoothPoolMiddleware.from_crawler(crawler)._some_close is chooses


def test_the_handlers_keep_connections_as_long_as_it_says():
    assert HTTPConnectionPool.cachedConnectionTimeout == LIFE
    assert f"after {LIFE:g} s" in TEXT
    assert f"not used for {LIFE:g} s" in TEXT
    assert httpx2.Limits().keepalive_expiry == 5
    assert "idle for 5 s" in TEXT


@pytest.mark.skipif(scrapy.version_info < (2, 19), reason="Scrapy has no aiohttp handler yet")
def test_aiohttp_looks_for_idle_connections_as_often_as_it_says():
    import aiohttp

    async def default() -> float | None:
        async with aiohttp.TCPConnector() as connector:
            return connector._keepalive_timeout

    with ThreadPoolExecutor(1) as thread:  # this one has the reactor's loop
        seconds = thread.submit(lambda: asyncio.run(default())).result()
    # Looked for at intervals of that length, so one may stay for twice as long.
    assert seconds == 15
    assert "after 15 to 30 s" in TEXT


def test_its_figures_are_what_the_benchmark_prints():
    spec = importlib.util.spec_from_file_location("bench", ROOT / "benchmarks" / "connections.py")
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    lines = PAGE.splitlines()
    one = {"opened": 1, "peak": 1, "left": 1, "memory": 1, "cpu": 1, "requests": 1}
    header, *_ = bench.table({("http11", "http", "close"): [one]})[0].splitlines()
    begin = lines.index(header.removesuffix(" cpu, ms |"))
    rows = [tuple(line.strip("| ").split(" | ")) for line in lines[begin + 2 : begin + 20]]
    variants = ("keep", "close", "bound")
    expected = [(h, s, v) for h in bench.HANDLERS for s in ("http", "https") for v in variants]
    assert [row[:3] for row in rows] == expected
    # What it says of itself and of the variants holds of its figures.
    for handler, scheme, variant, *figures in rows:
        opened, peak, left, memory = (int(figure.replace(",", "")) for figure in figures)
        assert 1_500 <= opened <= 1_650
        assert peak >= left
        if variant == "keep":
            assert peak >= 1_500
            kept = (handler, scheme, peak, memory)
        else:
            assert left == {"close": 0, "bound": 150}[variant]
            assert peak <= left + 16
        if variant == "close":
            size = 1e3 * (kept[3] - memory) / (kept[2] - peak)
            (said,) = (line for line in lines if re.match(rf"\| {handler} \|.* kB \|", line))
            cells = said.strip("| ").split(" | ")
            assert abs(int(cells[1 + (scheme == "https")].removesuffix(" kB")) - size) < 2


def test_the_readme_leads_to_it():
    assert "docs/connections.md" in (ROOT / "README.md").read_text("utf-8")
