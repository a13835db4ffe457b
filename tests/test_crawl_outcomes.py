"""What every failure that Scrapy's handlers can produce says of the proxy, on real sockets.

One crawl per handler and reactor mode holds all kinds of failure, each with a proxy of its own
that only this kind's request goes through; ``CELLS`` is the table it is held against.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from crawl import REACTORLESS, Crawl, crawl
from farm import (
    Answer,
    Close,
    CloseMidBody,
    CloseMidHeaders,
    Farm,
    Garbage,
    Hang,
    Reset,
    TunnelClose,
    TunnelHang,
    TunnelReset,
)
from scrapy_smoothpool import Outcome

SUCCESS, NEUTRAL = Outcome.SUCCESS, Outcome.NEUTRAL
PROXY_ERROR, AMBIGUOUS, BANNED = Outcome.PROXY_ERROR, Outcome.AMBIGUOUS, Outcome.BANNED

_HANDLERS = "scrapy.core.downloader.handlers."
HANDLERS = {
    "http11": _HANDLERS + "http11.HTTP11DownloadHandler",
    "httpx": _HANDLERS + "_httpx.HttpxDownloadHandler",
    "aiohttp": _HANDLERS + "_aiohttp.AiohttpDownloadHandler",
}
#: http11 is built on a reactor; the other two run with and without one.
CRAWLS = [
    ("http11", "reactor"),
    ("httpx", "reactor"),
    ("httpx", "reactorless"),
    ("aiohttp", "reactor"),
    ("aiohttp", "reactorless"),
]

PATIENCE = 10
HASTE = 1.2
"""DOWNLOAD_TIMEOUT where the proxy hangs, or where http11 hangs on what the proxy does."""


@dataclass(frozen=True)
class Cell:
    """One kind of failure over one scheme.

    *hits* is what the proxy noted of each request it read, *origin* how many requests the
    site saw by it.
    """

    kind: str
    scheme: str
    outcome: Outcome
    proxy: dict[str, Any] = field(default_factory=dict)
    hits: tuple[str, ...] = ()
    origin: int = 0
    path: str = "/page/1"
    host: str = "127.0.0.1"
    timeout: float = PATIENCE
    meta: dict[str, Any] = field(default_factory=dict)
    http11: Outcome | None = None
    """What it is with this handler, where that differs."""
    either: Outcome | None = None
    """What it may be as well, where a race decides."""
    repeated: bool = False
    """aiohttp sends it twice of its own accord, on a second connection."""
    racing: bool = False
    """aiohttp may do so, when the reset overtakes the answer's head."""

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.scheme}"

    def expected(self, handler: str) -> set[Outcome]:
        if handler == "http11" and self.http11:
            return {self.http11}
        return {self.outcome, self.either or self.outcome}

    def sent(self, handler: str) -> int:
        return 2 if handler == "aiohttp" and self.repeated else 1


def both(kind: str, http: Outcome, https: Outcome, **more: Any) -> list[Cell]:
    return [Cell(kind, "http", http, **more), Cell(kind, "https", https, **more)]


def behaves(kind: str, action: Any, http: Outcome | None, https: Outcome | None, **more: Any):
    """A proxy that reads the request, does *action* instead of its work, and notes its name."""
    more = {"proxy": {"behaviour": action}, "hits": (type(action).__name__.lower(),), **more}
    pairs = (("http", http), ("https", https))
    return [Cell(kind, scheme, outcome, **more) for scheme, outcome in pairs if outcome]


def tunnel(kind: str, action: Any, **more: Any) -> list[Cell]:
    return behaves(kind, action, None, AMBIGUOUS, timeout=HASTE, **more)


def site_says(kind: str, path: str, outcome: Outcome) -> list[Cell]:
    """The proxy does its work; the same is told over http and inside a tunnel."""
    return both(kind, outcome, outcome, path=path, hits=("forward",), origin=1)


HASTY: dict[str, Any] = {"timeout": HASTE}
BIG = "/bytes?n=200000"
UNREACHABLE: dict[str, Any] = {"hits": ("unreachable",)}

CELLS = [
    # Nothing to fault.
    *site_says("200", "/page/1", SUCCESS),
    *site_says("204", "/status/204", SUCCESS),
    *site_says("an empty 302", "/status/302", SUCCESS),
    *site_says("404", "/status/404", NEUTRAL),
    *site_says("500", "/status/500", NEUTRAL),
    *site_says("403 of the site", "/status/403", BANNED),
    *site_says("429 of the site", "/status/429", BANNED),
    *site_says("502 of the site", "/status/502", AMBIGUOUS),
    *site_says("503 of the site", "/status/503", AMBIGUOUS),
    *both(
        "larger than DOWNLOAD_MAXSIZE",
        NEUTRAL,
        NEUTRAL,
        path=BIG,
        meta={"download_maxsize": 1000},
        hits=("forward",),
        origin=1,
    ),
    # The proxy cannot be reached.
    *both("refuses", PROXY_ERROR, PROXY_ERROR, proxy={"listening": False}),
    *both(
        "its name is unknown", PROXY_ERROR, PROXY_ERROR, proxy={"url": "http://nowhere.invalid:1"}
    ),
    # Dialling and all that follows share one timeout with aiohttp, dialling and the TLS
    # handshake with httpx: inside a tunnel only http11 can tell.
    *both("black hole", PROXY_ERROR, AMBIGUOUS, proxy={"hole": True}, http11=PROXY_ERROR, **HASTY),
    # It is there, but that is all.
    # A reset that arrives while connect() is being waited for is a connection refused.
    *both(
        "resets on accept",
        PROXY_ERROR,
        AMBIGUOUS,
        either=PROXY_ERROR,
        proxy={"on_accept": Reset()},
        **HASTY,
    ),
    *both("closes on accept", PROXY_ERROR, AMBIGUOUS, proxy={"on_accept": Close()}, **HASTY),
    *both("hangs on accept", PROXY_ERROR, AMBIGUOUS, proxy={"on_accept": Hang()}, **HASTY),
    # It reads the request, which over https is CONNECT.
    *behaves("closes after reading", Close(), PROXY_ERROR, AMBIGUOUS, repeated=True, **HASTY),
    *behaves("resets after reading", Reset(), PROXY_ERROR, AMBIGUOUS, repeated=True, **HASTY),
    *behaves("hangs before headers", Hang(), PROXY_ERROR, AMBIGUOUS, **HASTY),
    *behaves(
        "closes within headers", CloseMidHeaders(), PROXY_ERROR, AMBIGUOUS, repeated=True, **HASTY
    ),
    *behaves("garbage", Garbage(), PROXY_ERROR, AMBIGUOUS, **HASTY),
    *behaves("truncated body", CloseMidBody(), PROXY_ERROR, None),
    *behaves("truncated chunks", CloseMidBody(chunked=True), PROXY_ERROR, None),
    Cell("hangs after headers", "http", PROXY_ERROR, proxy={"stalls": True}, **HASTY),
    # It answers itself; a 403 or 429 to CONNECT is no ban, it is a failure of CONNECT.
    *behaves("407", Answer(407), PROXY_ERROR, PROXY_ERROR),
    *behaves("403", Answer(403), BANNED, AMBIGUOUS),
    *behaves("429", Answer(429), BANNED, AMBIGUOUS),
    *behaves("502", Answer(502), AMBIGUOUS, AMBIGUOUS),
    *behaves("503", Answer(503), AMBIGUOUS, AMBIGUOUS),
    *behaves("504", Answer(504), AMBIGUOUS, AMBIGUOUS),
    *behaves("407 and close", Answer(407, close=True), PROXY_ERROR, PROXY_ERROR),
    # The tunnel opens and breaks.
    *tunnel("tunnel closes", TunnelClose()),
    *tunnel("tunnel resets", TunnelReset()),
    *tunnel("tunnel hangs", TunnelHang()),
    *tunnel("tunnel closes within the body", TunnelClose(30_000), path=BIG, origin=1),
    *tunnel("tunnel resets within the body", TunnelReset(30_000), path=BIG, origin=1, racing=True),
    *tunnel("tunnel hangs within the body", TunnelHang(30_000), path=BIG, origin=1),
    # The site. A proxy that cannot reach it says 502 to a plain request, as to CONNECT.
    Cell("site closes", "http", AMBIGUOUS, path="/drop", hits=("unreachable",), origin=1),
    Cell(
        "site closes", "https", AMBIGUOUS, path="/drop", hits=("forward",), origin=1, repeated=True
    ),
    *both(
        "site is slow",
        PROXY_ERROR,
        AMBIGUOUS,
        path="/slow?s=5",
        hits=("forward",),
        origin=1,
        **HASTY,
    ),
    *both("site's name is unknown", AMBIGUOUS, AMBIGUOUS, host="shop.invalid", **UNREACHABLE),
    *both("site's port is closed", AMBIGUOUS, AMBIGUOUS, host="closed", **UNREACHABLE),
    Cell("site speaks no TLS", "https", AMBIGUOUS, host="no tls", hits=("forward",), **HASTY),
]
BY_NAME = {cell.name: cell for cell in CELLS}


class Stalling:
    """A proxy that answers with half a body, then goes silent."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._held: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self._held.append(client)
                client.recv(65536)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")

    def close(self) -> None:
        # accept() in the other thread does not hear of close() alone.
        self._socket.shutdown(socket.SHUT_RDWR)
        for held in (self._socket, *self._held):
            held.close()


class BlackHole:
    """A port whose queue of connections is full: the kernel drops every further SYN."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(0)
        self._queue = [socket.socket() for _ in range(3)]
        for waiting in self._queue:
            waiting.setblocking(False)
            waiting.connect_ex(self._socket.getsockname())
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        for held in (self._socket, *self._queue):
            held.close()


class Bench:
    """A farm, and a proxy of its own for each cell."""

    def __init__(self, farm: Farm, stack: contextlib.ExitStack) -> None:
        self.farm = farm
        self.site = farm.site(tls=True)
        self.site.respond("/drop", drop=True)
        self.closed = farm.proxy("closed port", listening=False).port
        self._stack = stack
        self.urls: dict[str, str] = {}

    def proxy(self, cell: Cell) -> str:
        options = dict(cell.proxy)
        if "url" in options:
            url = options["url"] + str(len(self.urls))
        elif "hole" in options or "stalls" in options:
            made = BlackHole() if "hole" in options else Stalling()
            self._stack.callback(made.close)
            url = made.url
        else:
            by_name = options.pop("by_name", False)
            url = self.farm.proxy(cell.name, **options).url
            url = url.replace("127.0.0.1", "localhost") if by_name else url
        self.urls[cell.name] = url
        return url

    def target(self, cell: Cell) -> str:
        site = self.site
        port = site.tls_url.rpartition(":")[2] if cell.scheme == "https" else str(site.port)
        host, port = {
            "closed": ("127.0.0.1", str(self.closed)),
            "no tls": ("127.0.0.1", str(site.port)),
        }.get(cell.host, (cell.host, port))
        return f"{cell.scheme}://{host}:{port}{cell.path}"

    def request(self, cell: Cell) -> dict[str, Any]:
        meta = {
            "kind": cell.name,
            "via": self.proxy(cell),
            "download_timeout": cell.timeout,
            "handle_httpstatus_all": True,
            **cell.meta,
        }
        return {"url": self.target(cell), "meta": meta, "priority": -len(self.urls)}


def settings_for(handler: str, mode: str, urls: Iterable[str], **more: Any) -> dict[str, Any]:
    return {
        "SMOOTHPOOL_PROXIES": list(urls),
        "SMOOTHPOOL_STRATEGY": "outcome_spiders.PinnedStrategy",
        "SMOOTHPOOL_RETRY_TIMES": 0,
        "SMOOTHPOOL_EJECT_AFTER": 0,
        "RETRY_ENABLED": False,
        "CONCURRENT_REQUESTS": 32,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 32,
        "DOWNLOAD_HANDLERS": dict.fromkeys(("http", "https"), HANDLERS[handler]),
        "DOWNLOADER_MIDDLEWARES": {
            "outcome_spiders.Choose": 605,
            "outcome_spiders.Raise": 606,
            "outcome_spiders.RaiseAfter": 900,
        },
        "EXTENSIONS": {"outcome_spiders.OutcomeRecorder": 0},
        **(REACTORLESS if mode == "reactorless" else {}),
        **more,
    }


@dataclass(frozen=True)
class Measured:
    """What one crawl showed of its cells, by their names."""

    outcomes: dict[str, list[dict[str, Any]]]
    members: dict[str, dict[str, Any]]
    hits: dict[str, tuple[str, ...]]
    origin: dict[str, int]
    direct: int
    log: str


def measure(handler: str, mode: str, cells: Sequence[Cell], **more: Any) -> Measured:
    with contextlib.ExitStack() as stack:
        bench = Bench(stack.enter_context(Farm()), stack)
        requests = [bench.request(cell) for cell in cells]
        done = crawl(requests, settings_for(handler, mode, bench.urls.values(), **more))
        assert done.exit_code == 0, done.log[-4000:]
        assert done.finish_reason == "finished", done.log[-4000:]
        outcomes: dict[str, list[dict[str, Any]]] = {cell.name: [] for cell in cells}
        for found in done.result["outcomes"]:
            outcomes[found["kind"]].append(found)
        members = {member["id"]: member for member in done.result["members"]}
        proxies = bench.farm.proxies
        via = Counter(hit.via for hit in bench.site.hits)
        return Measured(
            outcomes,
            {name: members[url] for name, url in bench.urls.items()},
            {
                cell.name: tuple(hit.done for hit in proxies[cell.name].hits)
                for cell in cells
                if cell.name in proxies
            },
            {cell.name: via[cell.name] for cell in cells},
            via[None],
            done.log,
        )


@functools.cache
def measured(handler: str, mode: str) -> Measured:
    return measure(handler, mode, CELLS)


everywhere = pytest.mark.parametrize(
    ("handler", "mode"), CRAWLS, ids=["-".join(pair) for pair in CRAWLS]
)


@everywhere
@pytest.mark.parametrize("name", BY_NAME)
def test_outcome_of(name, handler, mode):
    cell, found = BY_NAME[name], measured(handler, mode)
    check(cell, found, handler)


def check(cell: Cell, found: Measured, handler: str) -> None:
    (told,) = found.outcomes[cell.name]
    expected = Outcome(told["outcome"])
    assert expected in cell.expected(handler), told
    assert told["login"] == cell.kind.startswith("407")
    assert told["exhausted"] == ("starve" in cell.meta)
    # The proxy's state.
    member = found.members[cell.name]
    assert told["proxy"] == member["id"]
    assert member["picks"] == 1
    booked = [member[key] for key in ("successes", "failures", "unclear")]
    assert booked == [expected is SUCCESS, expected.is_failure, expected is AMBIGUOUS]
    assert not member["out"]
    # What proxy and origin saw.
    times = cell.sent(handler)
    if cell.racing and handler == "aiohttp":
        times = len(found.hits[cell.name])
        assert times in (1, 2)
    assert found.hits.get(cell.name, ()) == cell.hits * times
    assert found.origin[cell.name] == cell.origin * times
    assert found.direct == 0


@everywhere
def test_a_certificate_that_nobody_vouches_for(handler, mode):
    """The site's doing, or that of a proxy that looks into its tunnels."""
    cells = [
        Cell("self-signed", "https", AMBIGUOUS, hits=("forward",)),
        Cell("another's name", "https", AMBIGUOUS, host="shop.example.test", hits=("forward",)),
        Cell("no certificate", "http", SUCCESS, hits=("forward",), origin=1),
    ]
    found = measure(handler, mode, cells, DOWNLOAD_VERIFY_CERTIFICATES=True)
    for cell in cells:
        check(cell, found, handler)


@everywhere
def test_no_descriptors_left(handler, mode):
    well: dict[str, Any] = {"hits": ("forward",), "origin": 1}
    cells = [
        # All that has to be imported is imported by then.
        *both("before", SUCCESS, SUCCESS, **well),
        *both("starved", NEUTRAL, NEUTRAL, meta={"starve": True}),
        *both(
            "starved at look-up", NEUTRAL, NEUTRAL, proxy={"by_name": True}, meta={"starve": True}
        ),
        *both("after", SUCCESS, SUCCESS, **well),
    ]
    found = measure(handler, mode, cells, CONCURRENT_REQUESTS=1)
    for cell in cells:
        check(cell, found, handler)


def nobodys_fault(done: Crawl) -> None:
    for member in done.result["members"]:
        assert [member[key] for key in ("failures", "unclear", "consecutive_failures")] == [0] * 3
        assert member["effective_weight"] == member["weight"]
        assert not member["out"]
    assert done.stat("penalties") == done.stat("ejections") == 0


def test_what_middlewares_raise_and_a_site_means_changes_nobodys_health(farm, mode):
    site = farm.site(robots=None)
    proxies = farm.many(2)
    settings = settings_for("http11", "", [p.url for p in proxies], ROBOTSTXT_OBEY=True, **mode)
    del (
        settings["SMOOTHPOOL_STRATEGY"],
        settings["DOWNLOADER_MIDDLEWARES"]["outcome_spiders.Choose"],
    )
    if mode:
        del settings["DOWNLOAD_HANDLERS"]
    raised = [
        {"url": f"{site.url}/page/{number}", "meta": {"raise": {where: error}}}
        for number, (where, error) in enumerate(
            itertools.product(("before", "after"), ("IgnoreRequest", "ValueError")), 1
        )
    ]
    meant = [
        {"url": f"{site.url}{path}", "meta": {"handle_httpstatus_all": True}}
        for path in ("/nowhere", "/status/204", "/status/302")
    ]
    done = crawl([*raised, *meant], settings)
    assert sorted(page["status"] for page in done.arrived) == [204, 302, 404]
    errors = Counter(page["error"] for page in done.failed)
    assert errors == {"IgnoreRequest": 2, "ValueError": 2}
    nobodys_fault(done)
    # robots.txt, 404, 204 and 302; what was raised had no outcome, its picks went to others.
    outcomes = Counter(found["outcome"] for found in done.result["outcomes"])
    assert outcomes == {"neutral": 2, "success": 2}
    assert len(site.hits) == 4
    assert site.direct == []


def test_a_cached_page_says_nothing_of_a_dead_proxy(farm, mode, tmp_path):
    site = farm.site()
    proxy = farm.proxy("only")
    settings = settings_for("http11", "", [proxy.url], **mode)
    settings |= {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path / "cache")}
    del settings["SMOOTHPOOL_STRATEGY"], settings["DOWNLOADER_MIDDLEWARES"]
    if mode:
        del settings["DOWNLOAD_HANDLERS"]
    urls = [f"{site.url}/page/{number}" for number in range(1, 6)]
    crawl(urls, settings)
    proxy.stop()
    done = crawl(urls, settings)
    assert [page["flags"] for page in done.arrived] == [["cached"]] * 5
    assert done.result["outcomes"] == []
    nobodys_fault(done)
