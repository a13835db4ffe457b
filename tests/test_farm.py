"""Do the farm's site and proxies do what real ones do, and say truly what they saw?"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import gc
import http.client
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from farm import (
    Answer,
    Close,
    CloseMidBody,
    CloseMidHeaders,
    Farm,
    Forward,
    Garbage,
    Hang,
    Reset,
    SiteRequest,
    SiteResponse,
    TunnelClose,
    TunnelHang,
    TunnelReset,
    after,
    certificate_pem,
    chain,
    during,
    every,
    first,
    half,
    matching,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from farm import Action, ForwardProxy, Site


@pytest.fixture
def farm() -> Iterator[Farm]:
    with Farm() as farm:
        yield farm


def basic(user: str, password: str) -> dict[str, str]:
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {token}"}


@contextlib.contextmanager
def client(proxy: ForwardProxy, timeout: float = 5) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout)
    try:
        yield connection
    finally:
        connection.close()


def get(
    connection: http.client.HTTPConnection,
    url: str,
    headers: dict[str, str] | None = None,
    method: str = "GET",
    body: bytes | None = None,
) -> tuple[int, bytes]:
    connection.request(method, url, body, headers or {})
    response = connection.getresponse()
    return response.status, response.read()


def fetch(proxy: ForwardProxy, url: str, headers: dict[str, str] | None = None) -> int:
    with client(proxy) as connection:
        return get(connection, url, headers)[0]


@contextlib.contextmanager
def tunnelled(
    proxy: ForwardProxy, url: str, headers: dict[str, str] | None = None, timeout: float = 5
) -> Iterator[http.client.HTTPSConnection]:
    context = ssl.create_default_context(cadata=certificate_pem())
    connection = http.client.HTTPSConnection(
        "127.0.0.1", proxy.port, timeout=timeout, context=context
    )
    parts = urlsplit(url)
    assert parts.hostname
    connection.set_tunnel(parts.hostname, parts.port, headers)
    try:
        yield connection
    finally:
        connection.close()


def raw(port: int, data: bytes, timeout: float = 5) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout) as sock:
        sock.sendall(data)
        received = b""
        while block := sock.recv(65536):
            received += block
        return received


# The site


def test_site_keeps_a_connection_alive_and_serves_its_pages(farm: Farm) -> None:
    site = farm.site(robots="User-agent: *\nDisallow: /page/7\n")
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=5)
    with contextlib.closing(connection):
        assert b'href="/page/10"' in get(connection, "/")[1]
        first_socket = connection.sock
        assert b'href="/page/300"' in get(connection, "/page/29")[1]
        assert get(connection, "/page/301")[0] == 404
        assert get(connection, "/status/429")[0] == 429
        assert get(connection, "/status/204") == (204, b"")
        assert get(connection, "/page/1", method="HEAD") == (200, b"")
        assert get(connection, "/robots.txt")[1].startswith(b"User-agent")
        assert get(connection, "/redirect?to=/page/2")[0] == 302
        assert get(connection, "/bytes?n=2500&chunked=1") == (200, b"x" * 2500)
        echoed = json.loads(get(connection, "/echo", {"X-A": "b"}, "POST", b"body")[1])
        assert ["X-A", "b"] in echoed["headers"]
        assert echoed["body"] == "body"
        assert connection.sock is first_socket
    assert site.listeners[0].connections_total == 1
    assert [hit.path for hit in site.hits][:2] == ["/", "/page/29"]


def test_every_page_is_reached_by_links_and_some_lead_to_https(farm: Farm) -> None:
    site = farm.site(tls=True, pages=120, secure_every=5)
    seen, queue = set(), [site.url_for("/")]
    context = ssl.create_default_context(cadata=certificate_pem())
    while queue:
        url = urlsplit(queue.pop())
        if url.path in seen:
            continue
        seen.add(url.path)
        connection = (
            http.client.HTTPSConnection(url.netloc, timeout=5, context=context)
            if url.scheme == "https"
            else http.client.HTTPConnection(url.netloc, timeout=5)
        )
        with contextlib.closing(connection):
            body = get(connection, url.path)[1].decode()
        for link in body.split('href="')[1:]:
            target = link.partition('"')[0]
            queue.append(target if "://" in target else f"{url.scheme}://{url.netloc}{target}")
    assert len(seen) == 121
    assert {hit.path for hit in site.hits if hit.tls} == {f"/page/{n}" for n in range(5, 121, 5)}


def test_site_behaviour_changes_while_it_runs(farm: Farm) -> None:
    site = farm.site(lambda request: SiteResponse(201) if request.path == "/own" else None)
    proxy = farm.proxy()
    assert fetch(proxy, site.url_for("/own")) == 201
    site.respond("/page/3", status=403)
    assert fetch(proxy, site.url_for("/page/3")) == 403
    site.respond("/page/3", lambda r: SiteResponse(429) if r.via == proxy.name else None)
    assert fetch(proxy, site.url_for("/page/3")) == 429
    site.restore("/page/3")
    assert fetch(proxy, site.url_for("/page/3")) == 200
    site.respond("/page/4", drop=True)
    assert fetch(proxy, site.url_for("/page/4")) == 502
    assert proxy.hits[-1].done == "unreachable"


def test_site_answers_on_ipv6(farm: Farm) -> None:
    site = farm.site(ipv6=True)
    with contextlib.closing(http.client.HTTPConnection("::1", site.port, timeout=5)) as connection:
        assert get(connection, "/")[0] == 200
    proxy = farm.proxy(host="::1")
    with contextlib.closing(http.client.HTTPConnection("::1", proxy.port, timeout=5)) as connection:
        assert get(connection, f"http://[::1]:{site.port}/")[0] == 200
    assert [hit.via for hit in site.hits] == [None, proxy.name]


# Which way a request came


def test_a_request_without_a_proxy_is_seen_as_direct(farm: Farm) -> None:
    site = farm.site(tls=True)
    proxy = farm.proxy("a")
    assert fetch(proxy, site.url) == 200
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=5)
    with contextlib.closing(connection):
        get(connection, "/page/1")
    with tunnelled(proxy, site.tls_url) as secure:
        get(secure, "/page/2")
    context = ssl.create_default_context(cadata=certificate_pem())
    secure = http.client.HTTPSConnection("127.0.0.1", site.tls_port, timeout=5, context=context)
    with contextlib.closing(secure):
        get(secure, "/page/3")
    assert [(hit.path, hit.via) for hit in site.hits] == [
        ("/", "a"),
        ("/page/1", None),
        ("/page/2", "a"),
        ("/page/3", None),
    ]
    assert [hit.path for hit in site.direct] == ["/page/1", "/page/3"]


def test_three_hundred_proxies_at_once_are_told_apart(farm: Farm) -> None:
    site = farm.site(tls=True)
    proxies = farm.many(300)

    def both(proxy: ForwardProxy) -> None:
        assert fetch(proxy, site.url_for(f"/page/1?{proxy.name}")) == 200
        with tunnelled(proxy, site.tls_url, timeout=30) as connection:
            assert get(connection, f"/page/2?{proxy.name}")[0] == 200

    with concurrent.futures.ThreadPoolExecutor(32) as executor:
        list(executor.map(both, proxies))
    assert len(site.hits) == 600
    assert all(hit.via == hit.path.partition("?")[2] for hit in site.hits)
    assert all([hit.kind for hit in proxy.hits] == ["plain", "connect"] for proxy in proxies)
    farm.wait_until(lambda: not farm.sources)


def test_a_thousand_proxies_listen_and_refuse_after_close() -> None:
    with Farm() as farm:
        site = farm.site()
        proxies = farm.many(1000)
        assert fetch(proxies[-1], site.url) == 200
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxies[500].port), 5).close()


# Plain requests


def test_both_sides_are_kept_alive_and_several_sites_share_a_connection(farm: Farm) -> None:
    sites = [farm.site(), farm.site()]
    proxy = farm.proxy()
    with client(proxy) as connection:
        for site in [*sites, *sites]:
            assert get(connection, site.url_for("/page/1", "a.test"))[0] == 200
    assert proxy.connections_total == 1
    assert [site.listeners[0].connections_total for site in sites] == [1, 1]
    farm.wait_until(lambda: proxy.connections == 0)
    assert proxy.connections_max == 1


def test_hop_by_hop_headers_and_logins_stay_at_the_proxy(farm: Farm) -> None:
    site = farm.site()
    proxy = farm.proxy(login=("u", "p"))
    headers = {
        **basic("u", "p"),
        "Proxy-Connection": "keep-alive",
        "Connection": "X-Mine",
        "X-Mine": "1",
        "X-Tag": "t1",
    }
    assert fetch(proxy, site.url_for("/echo", "a.test"), headers) == 200
    names = {name.lower() for name, _ in site.hits[0].headers}
    assert names == {"host", "accept-encoding", "x-tag"}
    assert site.hits[0].host == f"a.test:{site.port}"
    hit = proxy.hits[0]
    assert (hit.kind, hit.method, hit.tag, hit.status) == ("plain", "GET", "t1", 200)
    assert hit.target == site.url_for("/echo", "a.test")
    assert dict(hit.headers)["Proxy-Authorization"] == basic("u", "p")["Proxy-Authorization"]


def test_bodies_pass_whatever_their_framing(farm: Farm) -> None:
    site = farm.site()
    proxy = farm.proxy()
    with client(proxy) as connection:
        size = 300_000
        assert get(connection, site.url_for(f"/bytes?n={size}"))[1] == b"x" * size
        assert get(connection, site.url_for(f"/bytes?n={size}&chunked=1"))[1] == b"x" * size
        assert get(connection, site.url_for("/bytes?n=9"), method="HEAD") == (200, b"")
        assert get(connection, site.url_for("/status/304")) == (304, b"")
        body = b"y" * 100_000
        echoed = json.loads(get(connection, site.url_for("/echo"), {}, "POST", body)[1])
        assert echoed["body"] == body.decode()
        connection.request("POST", site.url_for("/echo"), iter([b"a", b"bc"]), encode_chunked=True)
        assert "1\\r\\na" in connection.getresponse().read().decode()
    assert proxy.connections_total == 1


def test_an_answer_that_ends_with_its_connection_is_passed_on(farm: Farm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(b"HTTP/1.0 200 OK\r\n\r\nto the end")

        thread = threading.Thread(target=serve)
        thread.start()
        with client(farm.proxy()) as connection:
            url = f"http://127.0.0.1:{server.getsockname()[1]}/"
            assert get(connection, url) == (200, b"to the end")
        thread.join()


def test_names_lead_to_the_site_or_nowhere(farm: Farm) -> None:
    site = farm.site(tls=True)
    proxy = farm.proxy()
    assert fetch(proxy, site.url_for("/", "a.test")) == 200
    assert fetch(proxy, "http://b.test/") == 200
    assert fetch(proxy, "http://no.invalid/") == 502
    assert fetch(proxy, "http://192.0.2.1/") == 502
    with tunnelled(proxy, "https://c.test:443") as connection:
        assert get(connection, "/")[0] == 200
    with (
        tunnelled(proxy, "https://no.invalid:443") as connection,
        pytest.raises(OSError, match="502"),
    ):
        get(connection, "/")
    assert [hit.host for hit in site.hits] == [f"a.test:{site.port}", "b.test", "c.test"]
    assert [hit.status for hit in proxy.hits] == [200, 200, 502, 502, 200, 502]


def test_what_is_not_a_proxy_request_is_answered_400(farm: Farm) -> None:
    farm.site()
    proxy = farm.proxy()
    assert raw(proxy.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(proxy.port, b"\x16\x03\x01\r\n\r\n").startswith(b"HTTP/1.1 400")


# Logins


def test_a_gateway_knows_its_logins_apart(farm: Farm) -> None:
    site = farm.site(tls=True)
    logins = [("ann", "1"), ("ann", "2"), ("bob", "p@ss:%#")]
    proxy = farm.proxy("gate", logins=logins)
    with client(proxy) as connection:
        for login in logins:
            assert get(connection, site.url, basic(*login))[0] == 200
        assert get(connection, site.url)[0] == 407
        connection.request("GET", site.url, headers=basic("bob", "1"))
        response = connection.getresponse()
        assert (response.status, response.read()) == (407, b"")
        assert response.headers["Proxy-Authenticate"].startswith("Basic ")
    with tunnelled(proxy, site.tls_url, basic("bob", "p@ss:%#")) as secure:
        assert get(secure, "/page/1")[0] == 200
    with tunnelled(proxy, site.tls_url) as secure, pytest.raises(OSError, match="407"):
        get(secure, "/page/1")
    assert [(hit.login, hit.password) for hit in proxy.hits[:3]] == logins
    assert [hit.done for hit in proxy.hits[3:5]] == ["login", "login"]
    assert proxy.connections_total == 3
    assert [hit.login for hit in site.hits] == ["ann", "ann", "bob", "bob"]
    assert proxy.urls[2] == f"http://bob:p%40ss%3A%25%23@127.0.0.1:{proxy.port}"


def test_a_rotating_gateway_has_another_exit_for_each_connection(farm: Farm) -> None:
    site = farm.site(tls=True)
    gateway = farm.proxy("gateway", rotating=True)
    for _ in range(2):
        with client(gateway) as connection:
            for _ in range(2):
                assert get(connection, f"{site.url}/page/1")[0] == 200
    with tunnelled(gateway, f"{site.tls_url}/page/1") as connection:
        assert get(connection, "/page/1")[0] == 200
    one, two, three = "gateway/1", "gateway/2", "gateway/3"
    assert [hit.via for hit in site.hits] == [one, one, two, two, three]


def test_one_login_of_a_gateway_can_be_ill(farm: Farm) -> None:
    site = farm.site()
    proxy = farm.proxy(logins={"ann": "1", "bob": "2"})
    proxy.behaviour = matching(lambda hit: hit.login == "bob", Answer(403))
    assert fetch(proxy, site.url, basic("ann", "1")) == 200
    assert fetch(proxy, site.url, basic("bob", "2")) == 403
    assert len(site.hits) == 1


def test_lines_carry_the_weight(farm: Farm) -> None:
    proxy = farm.proxy(login=("u", "p"), weight=5)
    assert proxy.line == f"http://u:p@127.0.0.1:{proxy.port} weight=5"
    assert farm.proxy().line == farm.proxies["p1"].url


# Behaviours


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Close(), http.client.RemoteDisconnected),
        (CloseMidBody(), http.client.IncompleteRead),
        (CloseMidBody(chunked=True), http.client.IncompleteRead),
        (Reset(), ConnectionResetError),
        (Hang(), TimeoutError),
        (Garbage(), http.client.BadStatusLine),
    ],
)
def test_a_plain_request_meets_its_fault(
    farm: Farm, action: Action, expected: type[Exception]
) -> None:
    site = farm.site()
    proxy = farm.proxy(behaviour=action)
    with client(proxy, timeout=0.5) as connection, pytest.raises(expected):
        get(connection, site.url)
    assert proxy.hits[0].done == type(action).__name__.lower()
    assert proxy.hits[0].status is None
    assert not site.hits
    farm.wait_until(lambda: proxy.connections == 0)


def test_a_head_can_be_cut_short(farm: Farm) -> None:
    proxy = farm.proxy(behaviour=CloseMidHeaders())
    received = raw(proxy.port, b"GET http://a.test/ HTTP/1.1\r\n\r\n")
    assert received == b"HTTP/1.1 200 OK\r\nContent-Type: text/ht"


# ssl.wrap_socket leaks its socket when the peer has reset it already.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Answer(403), "403"),
        (Answer(504), "504"),
        (Close(), "closed connection"),
        (Reset(), "reset"),
        (Hang(), "timed out"),
        (Garbage(), "not HTTP"),
        (TunnelClose(), "EOF|reset"),
        (TunnelReset(), "reset"),
        (TunnelHang(), "timed out"),
        (TunnelClose(after_bytes=100), "EOF|reset"),
        (TunnelReset(after_bytes=100), "reset"),
        (TunnelHang(after_bytes=100), "timed out"),
    ],
)
def test_a_tunnel_meets_its_fault(farm: Farm, action: Action, expected: str) -> None:
    site = farm.site(tls=True)
    proxy = farm.proxy(behaviour=action)
    with (
        tunnelled(proxy, site.tls_url, timeout=0.5) as connection,
        pytest.raises((OSError, http.client.HTTPException), match=expected),
    ):
        get(connection, "/")
    assert proxy.hits[0].done == type(action).__name__.lower()
    assert not site.hits
    farm.wait_until(lambda: proxy.connections == 0)


def test_answers_are_sent_as_given_and_keep_the_connection(farm: Farm) -> None:
    proxy = farm.proxy(behaviour=Answer(429, (("X-A", "b"),), b"slow down", retry_after=120))
    with client(proxy) as connection:
        for _ in range(2):
            connection.request("POST", "http://a.test/", b"some body")
            response = connection.getresponse()
            assert (response.status, response.read()) == (429, b"slow down")
            assert (response.headers["Retry-After"], response.headers["X-A"]) == ("120", "b")
    assert proxy.connections_total == 1


def test_helpers_choose_the_requests(farm: Farm) -> None:
    site = farm.site()
    proxy = farm.proxy()
    bad = Answer(403)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: half(bad), ".x.x.x"),
        (lambda: every(3, bad), "..x..x"),
        (lambda: first(2, bad), "xx...."),
        (lambda: after(2, bad), "..xxxx"),
        (lambda: during(60, bad), "xxxxxx"),
        (lambda: during(60, bad, start=60), "......"),
        (lambda: matching(lambda hit: hit.tag == "2", bad), "..x..."),
        (lambda: chain(first(1, bad), every(2, bad)), "x.x.x."),
        (lambda: bad, "xxxxxx"),
        (lambda: None, "......"),
    ]
    for make, expected in cases:
        proxy.behaviour = make()  # type: ignore[assignment]
        got = [fetch(proxy, site.url, {"X-Tag": str(n)}) for n in range(6)]
        assert "".join(".x"[status == 403] for status in got) == expected


def test_a_slow_proxy_is_slow(farm: Farm) -> None:
    site = farm.site()
    began = time.monotonic()
    assert fetch(farm.proxy(behaviour=Forward(delay=0.2)), site.url) == 200
    assert time.monotonic() - began >= 0.2


def test_a_stopped_proxy_refuses_and_comes_back_on_its_port(farm: Farm) -> None:
    site = farm.site()
    proxy = farm.proxy(listening=False)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            fetch(proxy, site.url)
        proxy.start()
        with client(proxy) as connection:
            assert get(connection, site.url)[0] == 200
            proxy.stop()
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                get(connection, site.url)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Close(), (ConnectionError, http.client.HTTPException)),
        (Reset(), (ConnectionError, http.client.HTTPException)),
        (Hang(), TimeoutError),
    ],
)
def test_a_connection_can_be_broken_before_a_request(
    farm: Farm, action: Action, expected: type[Exception]
) -> None:
    site = farm.site()
    proxy = farm.proxy(on_accept=action)  # type: ignore[arg-type]
    with client(proxy, timeout=0.5) as connection, pytest.raises(expected):
        get(connection, site.url)
    assert not proxy.hits
    proxy.on_accept = None
    assert fetch(proxy, site.url) == 200


# The farm's own life


def test_a_fault_in_a_behaviour_or_handler_is_raised_at_close() -> None:
    def broken(*_: object) -> None:
        raise LookupError("broken on purpose")

    farm = Farm().start()
    site = farm.site()
    site.respond("/page/1", broken)  # type: ignore[arg-type]
    assert fetch(farm.proxy(), site.url_for("/page/1")) == 500
    with pytest.raises(http.client.RemoteDisconnected):
        fetch(farm.proxy(behaviour=broken), site.url)  # type: ignore[arg-type]
    with pytest.raises(ExceptionGroup) as caught:
        farm.close()
    assert [str(error) for error in caught.value.exceptions] == ["broken on purpose"] * 2
    farm.close()


def test_clients_that_go_away_are_no_fault(farm: Farm) -> None:
    site = farm.site(tls=True)
    proxy = farm.proxy()
    target = f"127.0.0.1:{site.tls_port}"
    for data in (
        b"GET http://a.te",
        f"GET {site.url}/slow?s=0.2 HTTP/1.1\r\n\r\n".encode(),
        f"POST {site.url}/ HTTP/1.1\r\nContent-Length: 9\r\n\r\nab".encode(),
        f"CONNECT {target} HTTP/1.1\r\n\r\n\x16\x03\x01".encode(),
        f"CONNECT {target} HTTP/1.1\r\n\r\n".encode(),
    ):
        for port in (proxy.port, site.tls_port, site.port):
            assert port
            with socket.create_connection(("127.0.0.1", port), 5) as sock:
                sock.sendall(data)
                time.sleep(0.02)
    farm.wait_until(lambda: not proxy.connections)
    assert not farm.errors


@pytest.mark.filterwarnings("error")
def test_close_leaves_nothing_behind_whatever_is_open() -> None:
    threads = threading.active_count()
    farm = Farm().start()
    site = farm.site(tls=True, ipv6=True)
    plain, hanging = farm.proxy(), farm.proxy(behaviour=Hang())
    with contextlib.ExitStack() as stack:
        for proxy in (plain, hanging):
            connection = stack.enter_context(client(proxy))
            connection.request("GET", site.url_for("/slow?s=60"))
        secure = stack.enter_context(tunnelled(plain, site.tls_url))
        secure.request("GET", "/slow?s=60")
        for port in (plain.port, site.port, site.tls_port):  # silent ones
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        farm.wait_until(lambda: len(site.hits) == 2 and hanging.hits)
        began = time.monotonic()
        farm.close()
        assert time.monotonic() - began < 2
        with pytest.raises((OSError, http.client.HTTPException)):
            secure.getresponse()
    farm.close()
    gc.collect()
    assert threading.active_count() == threads
    ports = [plain.port, hanging.port, site.port, site.tls_port]
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5).close()


def test_the_farm_cannot_be_driven_from_its_own_thread(farm: Farm) -> None:
    proxy = farm.proxy()

    def stop(request: SiteRequest) -> SiteResponse:
        with pytest.raises(RuntimeError, match="own thread"):
            proxy.stop()
        return SiteResponse(202)

    assert fetch(proxy, farm.site(stop).url) == 202


SPIDER = """
import scrapy

class Tiny(scrapy.Spider):
    name = "tiny"
    custom_settings = {"LOG_LEVEL": "WARNING", "ROBOTSTXT_OBEY": False}

    async def start(self):
        for url in self.urls.split(","):
            yield scrapy.Request(url, meta={"proxy": self.via}, headers={"X-Tag": "t"})

    def parse(self, response):
        yield {"url": response.url, "status": response.status}
"""


def test_scrapy_crawls_http_and_https_through_a_login(farm: Farm, tmp_path: Path) -> None:
    site: Site = farm.site(tls=True)
    proxy = farm.proxy("a", login=("us er", "p@:%#"))
    (tmp_path / "tiny.py").write_text(SPIDER)
    urls = [site.url_for(f"/page/{n}", "a.test", tls=n % 2 == 0) for n in range(1, 9)]
    command = [sys.executable, "-m", "scrapy", "runspider", "tiny.py", "-O", "out.json"]
    command += ["-a", f"urls={','.join(urls)}", "-a", f"via={proxy.url}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    items = json.loads((tmp_path / "out.json").read_text())
    assert {(item["url"], item["status"]) for item in items} == {(url, 200) for url in urls}
    assert len(site.hits) == 8
    assert not site.direct
    assert {hit.kind for hit in proxy.hits} == {"plain", "connect"}
    assert {hit.login for hit in proxy.hits} <= {"us er", None}
    assert all(hit.tag == "t" for hit in proxy.hits if hit.kind == "plain")
    assert not any(name.lower().startswith("proxy") for hit in site.hits for name, _ in hit.headers)
