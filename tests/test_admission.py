"""Does the admission check say of a proxy what the crawl would, cheaply and beside the crawl?"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import threading
import time

import pytest
import scrapy
from scrapy.utils.test import get_crawler

from admission_spiders import ListPool
from crawl import REACTORLESS, Running
from farm import Answer, Close, Farm, Garbage, Hang, TunnelHang
from scrapy_smoothpool import Outcome, parse_proxies
from scrapy_smoothpool.admission import STOP_TIME, Admission, check_url
from scrapy_smoothpool.checker import Checker
from scrapy_smoothpool.exceptions import SettingsError
from scrapy_smoothpool.judge import Evidence
from scrapy_smoothpool.policies import build_policy
from scrapy_smoothpool.settings import Settings

SECRET = "S3CR3T"
USER = "us3rn4me"
AGENT = "the-project's-agent/1.0"
TIMEOUT = 1.5

SUCCESS, NEUTRAL = Outcome.SUCCESS, Outcome.NEUTRAL
PROXY_ERROR, AMBIGUOUS, BANNED = Outcome.PROXY_ERROR, Outcome.AMBIGUOUS, Outcome.BANNED

_HANDLERS = "scrapy.core.downloader.handlers."
HANDLERS = {
    "http11": _HANDLERS + "http11.HTTP11DownloadHandler",
    "httpx": _HANDLERS + "_httpx.HttpxDownloadHandler",
    "aiohttp": _HANDLERS + "_aiohttp.AiohttpDownloadHandler",
}
SELECT = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
MODES = {"reactor": {}, "reactorless": REACTORLESS, "select": SELECT}
COMBINATIONS = [
    ("http11", "reactor"),
    ("http11", "select"),
    ("httpx", "reactor"),
    ("httpx", "reactorless"),
    ("aiohttp", "reactor"),
    ("aiohttp", "reactorless"),
]
# By Scrapy's version, not by what is installed: a library that is missing has to fail.
HAS = {"http11": True, "httpx": True, "aiohttp": scrapy.version_info >= (2, 19)}
NOISE = ("never retrieved", "Unhandled error", "was destroyed", "never awaited", "Traceback")


def start(job, settings, spider):
    """Start one of the spiders that check proxies, without a pool."""
    own = {
        "SPIDER_MODULES": ["admission_spiders"],
        "ADDONS": {},
        "EXTENSIONS": {},
        "USER_AGENT": AGENT,
        "ROBOTSTXT_OBEY": False,
    }
    return Running([], {**own, **settings}, spider=spider, extra=job)


def run(job, settings, spider):
    """Run one to its end."""
    with start(job, settings, spider) as running:
        done = running.wait(60)
    assert done.exit_code == 0, done.log[-4000:]
    assert done.result, done.log[-4000:]
    for word in NOISE:
        assert word not in done.log, done.log[-6000:]
    return done


def handler_settings(handler):
    return {"DOWNLOAD_HANDLERS": dict.fromkeys(("http", "https"), HANDLERS[handler])}


class Flood:
    """A port that answers with *head* and then without end."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            client.recv(65536)
            client.sendall(self.head)
            while True:
                # Slow enough for two cores, fast enough to be noticed.
                client.sendall(b"x" * 65536)
                time.sleep(0.005)

    def __enter__(self):
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()


# kind: (proxy's options, outcome by http, outcome by https)
WELL, ILL = (SUCCESS, SUCCESS), (PROXY_ERROR, AMBIGUOUS)
KINDS = {
    "good": ({}, WELL),
    "login": ({"login": (USER, SECRET)}, WELL),
    "odd login": ({"login": ("us er", f"a#b%c:d@{SECRET}")}, WELL),
    "refusing": ({"listening": False}, (PROXY_ERROR, PROXY_ERROR)),
    "hanging": ({"on_accept": Hang()}, ILL),
    "silent": ({"behaviour": Hang()}, ILL),
    "tunnel": ({"behaviour": TunnelHang()}, (SUCCESS, AMBIGUOUS)),
    "no login": ({"logins": [("a", "b")]}, (PROXY_ERROR, PROXY_ERROR)),
    "wrong login": ({"logins": [("a", "b")]}, (PROXY_ERROR, PROXY_ERROR)),
    "502": ({"behaviour": Answer(502)}, (AMBIGUOUS, AMBIGUOUS)),
    "garbage": ({"on_accept": Garbage()}, ILL),
    "closing": ({"behaviour": Close()}, ILL),
    "403": ({"behaviour": Answer(403)}, (BANNED, AMBIGUOUS)),
}


def line_of(kind, proxy):
    if kind == "no login":
        return proxy.url_for()
    return proxy.url_for(USER, f"{SECRET}-wrong") if kind == "wrong login" else proxy.url


@functools.cache
def checked(handler, mode):
    """All kinds of proxies, in one crawl for each handler and mode."""
    with Farm() as farm, Flood(b"HTTP/1.1 200 OK\r\n\r\n") as body, Flood(b"HTTP/1.1 2") as head:
        site = farm.site(tls=True, robots="User-agent: *\n")
        site.respond("/moved", status=302, headers=(("Location", f"{site.url}/robots.txt"),))
        site.respond("/big", body=b"x" * 2_000_000)
        lines = {kind: line_of(kind, farm.proxy(kind, **o)) for kind, (o, _) in KINDS.items()}
        urls = {"http": f"{site.url}/robots.txt", "https": f"{site.tls_url}/robots.txt"}
        checks = {(kind, tls): (lines[kind], urls[tls]) for kind in KINDS for tls in urls}
        for path in ("/missing", "/moved", "/big"):
            checks[path, "http"] = (lines["good"], site.url_for(path))
        checks["flood of body", "http"] = (body.url, urls["http"])
        checks["flood of head", "http"] = (head.url, urls["http"])
        checks["flood of head", "https"] = (head.url, urls["https"])
        settings = {
            **handler_settings(handler),
            **MODES[mode],
            "CONCURRENT_REQUESTS": 1,
            "DOWNLOAD_DELAY": 60,
            "DOWNLOAD_TIMEOUT": 60,
            "DOWNLOAD_MAXSIZE": 1000,
        }
        job = {"checks": list(checks.values()), "timeout": TIMEOUT}
        done = run(job, settings, "checking")
        found = {(row["proxy"], row["url"]): row for row in done.result["found"]}
        return (
            done,
            {name: found[tuple(check)] for name, check in checks.items()},
            {name: proxy.hits for name, proxy in farm.proxies.items()},
            site.hits,
        )


everywhere = pytest.mark.parametrize(
    ("handler", "mode"),
    [pair for pair in COMBINATIONS if HAS[pair[0]]],
    ids=["-".join(pair) for pair in COMBINATIONS if HAS[pair[0]]],
)


@everywhere
def test_what_a_check_says(handler, mode):
    _, found, _, _ = checked(handler, mode)
    for kind, (_, outcomes) in KINDS.items():
        for tls, outcome in zip(("http", "https"), outcomes, strict=True):
            told = found[kind, tls]
            assert told["outcome"] == outcome, (kind, tls, told)
            assert told["answered"] == (outcome is SUCCESS), (kind, tls, told)
            assert told["login"] == (kind in ("no login", "wrong login")), (kind, tls, told)
            assert told["site"] == "127.0.0.1"
            assert bool(told["why"]) == (outcome is not SUCCESS)
    assert found["/missing", "http"]["outcome"] == NEUTRAL
    assert found["/missing", "http"]["answered"]
    assert found["/moved", "http"]["outcome"] == SUCCESS
    assert found["/big", "http"]["outcome"] == SUCCESS
    assert not found["flood of head", "http"]["answered"]
    assert not found["flood of head", "https"]["answered"]


@everywhere
def test_no_check_takes_longer_than_it_may(handler, mode):
    done, found, _, _ = checked(handler, mode)
    slow = {name: row["seconds"] for name, row in found.items() if row["seconds"] > TIMEOUT + 0.75}
    assert slow == {}
    assert done.seconds < 20


@everywhere
def test_a_check_is_one_head_request_and_nothing_else_hears_of_it(handler, mode):
    done, _, hits, site_hits = checked(handler, mode)
    assert {hit.method for hit in site_hits} == {"HEAD"}
    assert all(hit.via is not None for hit in site_hits)
    agents = {{k.lower(): v for k, v in hit.headers}["user-agent"] for hit in site_hits}
    assert agents == {AGENT}
    assert [hit.path for hit in site_hits if hit.via == "login"] == ["/robots.txt"] * 2
    assert not any(
        name.lower().startswith("proxy-") for hit in site_hits for name, _ in hit.headers
    )
    assert {(hit.login, hit.password) for hit in hits["login"]} == {(USER, SECRET)}
    odd = {(hit.login, hit.password) for hit in hits["odd login"]}
    assert odd == {("us er", f"a#b%c:d@{SECRET}")}
    assert {hit.login for hit in hits["good"]} == {None}
    assert done.result["stats"] == []


@everywhere
def test_no_login_is_logged(handler, mode):
    done, found, _, _ = checked(handler, mode)
    for secret in (SECRET, USER, "b%25c"):
        assert secret not in done.log
        assert not any(secret in row["why"] for row in found.values())


@pytest.mark.parametrize("handler", [h for h in HANDLERS if HAS[h]])
def test_no_connection_outlives_its_check_by_long(farm, handler):
    """Scrapy's http11 forgets those on which CONNECT was refused or not answered."""
    site = farm.site(tls=True)
    hanging = farm.many(10, "hang", behaviour=Hang())
    refusing = farm.many(10, "refuse", behaviour=Answer(407))
    proxies = [*hanging, *refusing, *farm.many(10, "good")]
    lines = [p.url for p in proxies]
    job = {"lines": lines, "url": site.tls_url, "concurrency": 30, "timeout": 0.5, "linger": 4}
    with start(job, handler_settings(handler), "admission") as running:
        farm.wait_until(lambda: sum(len(p.hits) for p in proxies) >= 30, 20)
        farm.wait_until(lambda: sum(p.connections for p in proxies) == 0, 2.5)
        running.wait_for("Admission: 10 of 30 proxies passed")
        assert "all is checked" not in running.tail()


def test_a_handler_that_takes_no_notice_holds_nobody_up():
    stubborn = {"http": "admission_spiders.StubbornHandler"}
    job = {"checks": [["http://127.0.0.1:9", "http://a.test/"]], "timeout": 0.5}
    done = run(job, {"DOWNLOAD_HANDLERS": stubborn}, "checking")
    (told,) = done.result["found"]
    assert told["seconds"] < 1.0
    assert told["outcome"] == PROXY_ERROR
    assert "secret" not in done.log


@pytest.mark.parametrize("mode", MODES)
def test_a_list_of_which_nearly_all_are_dead(farm, mode):
    site = farm.site()
    good = farm.many(50, "good")
    dead = farm.many(900, "dead", listening=False)
    hanging = farm.many(50, "hang", on_accept=Hang())
    ill = [proxy.url for pair in zip(hanging, good, strict=True) for proxy in pair]
    lines = [url for n in range(50) for url in (*(p.url for p in dead[n::50]), *ill[2 * n :][:2])]
    job = {
        "lines": lines,
        "url": f"{site.url}/robots.txt",
        "concurrency": 100,
        "timeout": 2,
        "page": f"{site.url}/page/1",
    }
    settings = {**MODES[mode], "CONCURRENT_REQUESTS": 1}
    done = run(job, settings, "admission")
    reports = done.result["reports"]
    assert len(reports) == len({r[0] for r in reports}) == 1000
    assert {r[0] for r in reports if r[2]} == {p.url for p in good}
    assert done.result["most"] <= 100
    assert min(report[4] for report in reports if report[2]) < 1.0
    assert done.result["seconds"] < 15
    summary = [line for line in done.log.splitlines() if "Admission: 50 of" in line]
    assert len(summary) == 1, done.log[-3000:]
    assert "INFO" in summary[0]
    assert (
        "Admission: 50 of 1000 proxies passed, 950 failed (900 refused, 50 timed out); "
        "the failed are tried again"
    ) in summary[0]
    assert done.log.count("Admission: http://") == 950
    assert f"Admission: {dead[0].url} failed: " in done.log
    # The crawl went on beside it.
    assert 0 < done.result["page"] < done.result["seconds"]
    assert sum(p.connections_max for p in hanging) <= 100


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("handler", ["default", "stubborn"])
def test_stop_while_checks_hang(farm, mode, handler):
    site = farm.site()
    hanging = farm.many(20, "hang", on_accept=Hang(), login=(USER, SECRET))
    job = {"url": site.url, "concurrency": 20, "timeout": 30, "seconds": 0.7}
    settings = dict(MODES[mode])
    if handler == "stubborn":
        settings["DOWNLOAD_HANDLERS"] = {"http": "admission_spiders.StubbornHandler"}
    done = run({**job, "lines": [p.url for p in hanging]}, settings, "admission")
    assert done.result["stop_seconds"] < 0.5
    assert done.result["reports"] == []
    if handler == "default":
        assert done.result["tasks"] == []
    assert done.seconds < 10
    assert SECRET not in done.log


# In this process, with checks that are none


def proxies(count):
    return [parse_proxies(f"10.0.{n // 250}.{n % 250 + 1}:3128")[0] for n in range(count)]


ANSWERED = Evidence(SUCCESS, answered=True)
REFUSED = Evidence(PROXY_ERROR, why="DownloadConnectionRefusedError (ConnectionRefusedError)")


def in_loop(test):
    """Run an async test in a loop of its own, beside the reactor's, which cannot wait."""

    @functools.wraps(test)
    def wrapper(*arguments, **named):
        failures = []

        def target():
            try:
                asyncio.run(test(*arguments, **named))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=target)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        if failures:
            raise failures[0]

    return wrapper


async def until(predicate, seconds=5.0):
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def admission(pool, check, concurrency=10):
    made = pool.admission = Admission(pool, check, concurrency=concurrency)
    return made


def messages(caplog, level):
    return [r.getMessage() for r in caplog.records if r.levelno == level]


@in_loop
async def test_never_more_at_once_than_the_bound():
    pool, now, most, asked = ListPool(proxies(300)), 0, 0, []

    async def check(proxy, url):
        nonlocal now, most
        now += 1
        most = max(most, now)
        asked.append((proxy.id, url))
        await asyncio.sleep(0.001 * (len(asked) % 7))
        now -= 1
        return ANSWERED

    running = admission(pool, check, concurrency=7)
    running.start("http://a.test/")
    running.start("http://b.test/")
    await until(lambda: len(pool.reports) == 300)
    assert most == 7
    assert {url for _, url in asked} == {"http://a.test/"}
    assert len({proxy_id for proxy_id, _ in asked}) == 300
    assert {epoch_evidence[1] for epoch_evidence in pool.reports} == {ANSWERED}
    await running.stop()


@in_loop
async def test_an_idle_pool_is_asked_about_once_a_second():
    pool = ListPool(proxies(5))

    async def check(proxy, url):
        return ANSWERED

    running = admission(pool, check)
    running.start("http://a.test/")
    await until(lambda: len(pool.reports) == 5)
    asked = pool.asked
    await asyncio.sleep(2.3)
    assert 1 <= pool.asked - asked <= 3
    pool.due = list(pool.proxies)[:2]
    await until(lambda: len(pool.reports) == 7, 1.5)
    await running.stop()
    asked = pool.asked
    await asyncio.sleep(1.2)
    assert pool.asked == asked


@in_loop
async def test_faults_do_not_end_the_checks(caplog):
    caplog.set_level(logging.DEBUG)

    class Faulty(ListPool):
        def take_probes(self, most):
            self.asked += 1
            if self.asked == 1:
                raise OSError("no pool")
            return [*super().take_probes(most)]

        async def checked(self, proxy_id, epoch, evidence):
            super().checked(proxy_id, epoch, evidence)
            raise KeyError(proxy_id)

        def proxy(self, proxy_id):
            return None if proxy_id == gone.id else super().proxy(proxy_id)

    many = proxies(30)
    gone = many[3]
    pool = Faulty(many)

    async def check(proxy, url):
        if proxy.id == many[0].id:
            raise RuntimeError(f"http://{USER}:{SECRET}@a.test")
        return ANSWERED

    running = admission(pool, check)
    running.start("http://a.test/")
    await until(lambda: len(pool.reports) == 30)
    await running.stop()
    found = {proxy_id: evidence for proxy_id, evidence, _ in pool.reports}
    assert found[many[0].id] == Evidence(NEUTRAL, why="RuntimeError")
    assert found[gone.id] == Evidence(NEUTRAL, why="it has left the pool")
    assert sum(evidence is ANSWERED for evidence in found.values()) == 28
    assert SECRET not in caplog.text
    errors = messages(caplog, logging.ERROR)
    assert len([e for e in errors if e.startswith("The pool did not book a check")]) == 1
    assert len([e for e in errors if e.startswith("The pool gave no proxies")]) == 1


@in_loop
async def test_leases_may_be_awaited_and_stopping_waits_for_them_a_moment_only():
    # What is leased just then must reach the pool, which gives it back.
    class Shared(ListPool):
        async def take_probes(self, most):
            await asyncio.sleep(0.01 if self.due else 30)
            return super().take_probes(most)

    pool = Shared(proxies(20))

    async def check(proxy, url):
        return ANSWERED

    running = admission(pool, check)
    running.start("http://a.test/")
    await until(lambda: len(pool.reports) == 20)
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await running.stop()
    assert time.monotonic() - began < STOP_TIME + 0.2
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(left) <= 1  # the lease that never comes
    for task in left:
        task.cancel()
    await running.stop()
    running.start("http://a.test/")
    assert not running.running


@in_loop
async def test_stop_does_not_wait_for_checks_that_take_no_notice():
    pool = ListPool(proxies(3))

    async def check(proxy, url):
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1.0)
        return ANSWERED

    running = admission(pool, check)
    running.start("http://a.test/")
    await until(lambda: running.running == 3)
    began = time.monotonic()
    await running.stop()
    assert time.monotonic() - began < 0.5
    await until(lambda: running.running == 0)
    assert pool.reports == []


@in_loop
async def test_one_summary_and_a_warning_when_none_passed(caplog):
    caplog.set_level(logging.DEBUG)
    whys = [
        REFUSED,
        Evidence(PROXY_ERROR, login=True, why="status 407"),
        Evidence(BANNED, why="status 403"),
        Evidence(AMBIGUOUS, why="TunnelError, status 502"),
        Evidence(PROXY_ERROR, why="CannotResolveHostError (gaierror)"),
        Evidence(PROXY_ERROR, why="DownloadTimeoutError"),
        Evidence(PROXY_ERROR, why="DownloadFailedError (ParseError)"),
        Evidence(NEUTRAL, why="ConnectBindError"),
    ]
    many = proxies(40)
    pool = ListPool(many)

    async def check(proxy, url):
        return whys[min(many.index(proxy) // 3, 7)]

    running = admission(pool, check)
    running.start("http://site.test:81/robots.txt")
    await until(lambda: len(pool.reports) == 40)
    pool.due = list(pool.proxies)
    await until(lambda: len(pool.reports) == 80, 3)
    await running.stop()
    assert messages(caplog, logging.INFO) == []
    (warning,) = messages(caplog, logging.WARNING)
    assert warning == (
        "Admission: none of 40 proxies passed (19 ended in ConnectBindError, 3 refused, "
        "3 refused the login, 3 answered 403, 3 answered 502, 3 could not be resolved, "
        "6 for other reasons), so no request can go out; they are tried again "
        "(SMOOTHPOOL_ADMISSION names what is fetched, now from site.test:81)"
    )
    lines = [m for m in messages(caplog, logging.DEBUG) if m.startswith("Admission: ")]
    assert len(lines) == 80
    assert f"Admission: {many[0].id} failed: {REFUSED.why}" in lines


@in_loop
async def test_the_round_ends_when_the_first_is_due_again(caplog):
    """A long list: what failed first is due again before the last was checked."""
    caplog.set_level(logging.INFO)
    many = proxies(12)
    pool = ListPool(many)

    async def check(proxy, url):
        await asyncio.sleep(0.01)
        if proxy.id == many[0].id:
            pool.due.append(proxy.id)  # for ever
            return REFUSED
        return ANSWERED

    running = admission(pool, check, concurrency=2)
    running.start("http://a.test/")
    await until(lambda: len(pool.reports) > 14)
    await running.stop()
    assert messages(caplog, logging.INFO) == [
        "Admission: 11 of 12 proxies passed, 1 failed (1 refused); the failed are tried again"
    ]


# The settings


@pytest.mark.parametrize(
    ("setting", "page", "url"),
    [
        (True, "http://a.test/x?y#z", "http://a.test/robots.txt"),
        (True, "https://a.test:8443/x", "https://a.test:8443/robots.txt"),
        (True, "http://user:pw@a.test/x", "http://a.test/robots.txt"),
        (True, "http://[::1]:81/", "http://[::1]:81/robots.txt"),
        ("https://b.test/ok?x=1", "http://a.test/", "https://b.test/ok?x=1"),
    ],
)
def test_check_url(setting, page, url):
    assert check_url(setting, page) == url


def read(**settings):
    given = {f"SMOOTHPOOL_{name}": value for name, value in settings.items()}
    return Settings.from_scrapy(get_crawler(settings_dict=given).settings)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (True, True),
        ("True", True),
        (False, False),
        ("0", False),
        ("http://a.test/", "http://a.test/"),
        (" https://a.test:81/x@y ", "https://a.test:81/x@y"),
    ],
)
def test_setting(given, value):
    assert read(ADMISSION=given).admission == value


def test_settings_of_numbers():
    found = read(ADMISSION_CONCURRENCY="20", ADMISSION_TIMEOUT="2.5")
    assert (found.admission_concurrency, found.admission_timeout) == (20, 2.5)
    assert (read().admission, read().admission_concurrency, read().admission_timeout) == (
        False,
        100,
        5.0,
    )


@pytest.mark.parametrize(
    "value", ["robots.txt", "ftp://a.test/", "http://", "http://a b/", "http://a:99999/", 7, ["x"]]
)
def test_setting_refused(value):
    with pytest.raises(SettingsError, match=r"SMOOTHPOOL_ADMISSION is .* accepted: False, True"):
        read(ADMISSION=value)


def test_a_login_in_the_setting_is_refused_without_showing_it():
    with pytest.raises(SettingsError) as caught:
        read(ADMISSION=f"http://{USER}:{SECRET}@10.0.0.1:3128")
    assert "SMOOTHPOOL_ADMISSION" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert USER not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ADMISSION_CONCURRENCY", 0), ("ADMISSION_TIMEOUT", 0), ("ADMISSION_TIMEOUT", "x")],
)
def test_number_refused(name, value):
    with pytest.raises(SettingsError, match=f"SMOOTHPOOL_{name}"):
        read(**{name: value})


# The request


def checker(settings=(), policy=None):
    crawler = get_crawler(settings_dict=dict(settings))
    return Checker(crawler, build_policy(policy, crawler), timeout=5, concurrency=50)


def test_the_request():
    own = {
        "USER_AGENT": AGENT,
        "HTTPPROXY_AUTH_ENCODING": "utf-8",
        "DEFAULT_REQUEST_HEADERS": {"Accept": "text/html", "Authorization": "x", "Cookie": "y"},
    }
    proxy = parse_proxies("http://jörg:größe@10.0.0.1:3128")[0]
    request = checker(own).request(proxy, "https://a.test/robots.txt")
    assert request.method == "HEAD"
    assert request.meta["proxy"] == "http://10.0.0.1:3128"
    assert request.meta["download_timeout"] == 5
    assert dict(request.headers.to_unicode_dict()) == {
        "User-Agent": AGENT,
        "Accept": "text/html",
        "Connection": "close",
        "Proxy-Authorization": "Basic asO2cmc6Z3LDtsOfZQ==",
    }
    assert SECRET not in repr(request)


def test_a_login_that_the_project_sends_with_every_request():
    own = {"DEFAULT_REQUEST_HEADERS": {"Proxy-Authorization": "Basic eDp5"}}
    request = checker(own).request(proxies(1)[0], "http://a.test/")
    assert request.headers[b"Proxy-Authorization"] == b"Basic eDp5"


@pytest.mark.parametrize("handler", [h for h in ("http11", "aiohttp") if HAS[h]])
def test_a_policy_that_wants_bodies_gets_one(farm, handler):
    """scrapy-rotating-proxies' own policy takes an empty body for a ban."""
    site = farm.site()
    site.respond("/big", body=b"x" * 3_000_000)
    site.respond("/empty")
    line = farm.proxy("good").url
    job = {"checks": [[line, f"{site.url}{path}"] for path in ("/big", "/empty")], "timeout": 3}
    settings = {**handler_settings(handler), "POLICY": "admission_spiders.WantsBody"}
    done = run(job, settings, "checking")
    found = {row["url"].rpartition("/")[2]: row["outcome"] for row in done.result["found"]}
    assert found == {"big": SUCCESS, "empty": BANNED}
    assert {hit.method for hit in site.hits} == {"GET"}
    warnings = [line for line in done.log.splitlines() if "] WARNING: " in line]
    assert all("is experimental" in line for line in warnings), warnings
