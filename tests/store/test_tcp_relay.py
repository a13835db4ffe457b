from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import redis

from farm.tcp_relay import TcpRelay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from farm.redis_server import RedisServer


@pytest.fixture
def relay(server: RedisServer) -> Iterator[TcpRelay]:
    before = threading.active_count()
    with TcpRelay(server.port) as relay:
        yield relay
    assert threading.active_count() == before


@pytest.fixture
def connect(server: RedisServer, relay: TcpRelay) -> Iterator[Callable[[], socket.socket]]:
    """Return plain connections through the relay, which have been answered once."""
    opened: list[socket.socket] = []

    def connect(greet: bool = True) -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", relay.port), 5))
        if greet:
            assert ask(opened[-1]) == b"+PONG\r\n"
        return opened[-1]

    yield connect
    for sock in opened:
        sock.close()


def ask(sock: socket.socket, command: bytes = b"PING") -> bytes:
    sock.sendall(command + b"\r\n")
    return sock.recv(100)


def hears_nothing(sock: socket.socket, seconds: float = 0.1) -> bool:
    sock.settimeout(seconds)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(5)
    return False


def is_reset(sock: socket.socket) -> bool:
    try:
        sock.recv(1)
    except ConnectionResetError:
        return True
    return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_it_carries_a_client_and_much_at_once(server: RedisServer, relay: TcpRelay) -> None:
    url = relay.url_for("redis://user:p%40ss@localhost:6379/2?timeout=3")
    assert url == f"redis://user:p%40ss@127.0.0.1:{relay.port}/2?timeout=3"
    much = bytes(8_000_000)
    with redis.Redis.from_url(relay.url_for(server.url)) as client:
        client.set("relay", much)
        assert client.get("relay") == much
        client.delete("relay")
        assert relay.connections == 1
    wait_for(lambda: not relay.connections)


def test_delay_adds_to_a_round_trip_and_keeps_the_order(
    relay: TcpRelay, connect: Callable[[], socket.socket]
) -> None:
    sock = connect()
    relay.delay(0.2)
    start = time.monotonic()
    for word in (b"a", b"b", b"c"):
        sock.sendall(b"ECHO " + word + b"\r\n")
        time.sleep(0.01)
    answers = b""
    while len(answers) < 21:
        answers += sock.recv(100)
    # A latency, not a rate: three on their way together take no longer than one.
    assert 0.2 <= time.monotonic() - start < 0.4
    assert answers == b"$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"
    relay.flow()
    start = time.monotonic()
    ask(sock)
    assert time.monotonic() - start < 0.15


def test_cut_resets_what_is_open_and_takes_new_ones(
    relay: TcpRelay, connect: Callable[[], socket.socket]
) -> None:
    first, second = connect(), connect()
    relay.cut()
    assert is_reset(first)
    assert is_reset(second)
    connect()
    wait_for(lambda: relay.connections == 1)


def test_stall_holds_bytes_both_ways_of_old_and_new_connections(
    relay: TcpRelay, connect: Callable[..., socket.socket], raw: redis.Redis
) -> None:
    old = connect()
    relay.stall()
    new = connect(greet=False)
    for sock in (old, new):
        sock.sendall(b"INCR stalled\r\n")
    assert hears_nothing(old)
    assert hears_nothing(new)
    assert not raw.exists("stalled")
    relay.flow()
    assert {old.recv(100), new.recv(100)} == {b":1\r\n", b":2\r\n"}
    raw.delete("stalled")


def test_a_reply_that_is_under_way_is_held_too(
    relay: TcpRelay, connect: Callable[[], socket.socket], raw: redis.Redis
) -> None:
    sock = connect()
    relay.delay(0.3)
    sock.sendall(b"INCR held\r\n")
    wait_for(lambda: bool(raw.exists("held")))
    relay.stall()
    assert hears_nothing(sock, 0.3)
    relay.flow()
    assert sock.recv(100) == b":1\r\n"
    raw.delete("held")


def test_drop_replies_lets_requests_through(
    relay: TcpRelay, connect: Callable[[], socket.socket], raw: redis.Redis
) -> None:
    idle, busy, left = connect(), connect(), connect()
    relay.drop_replies()
    busy.sendall(b"INCR dropped\r\n")
    assert hears_nothing(busy)
    assert raw.get("dropped") == "1"
    left.close()
    wait_for(lambda: relay.connections == 2)
    relay.flow()
    assert is_reset(busy)
    assert ask(idle) == b"+PONG\r\n"
    raw.delete("dropped")


def test_refuse_closes_all_until_it_flows_under_the_same_port(
    relay: TcpRelay, connect: Callable[..., socket.socket]
) -> None:
    sock, port = connect(), relay.port
    relay.refuse()
    relay.refuse()
    assert is_reset(sock)
    with pytest.raises(ConnectionRefusedError):
        connect(greet=False)
    relay.flow()
    assert relay.port == port
    connect()


def test_a_dead_target_resets_and_a_client_that_leaves_is_forgotten(server: RedisServer) -> None:
    with TcpRelay(server.port) as relay:
        relay.target = 1
        # By connect() already, when the relay is quick.
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection(("127.0.0.1", relay.port), 5) as sock,
        ):
            sock.recv(1)
        relay.target = server.port
        relay.delay(0.1)
        with socket.create_connection(("127.0.0.1", relay.port), 5) as sock:
            sock.sendall(b"SET left behind\r\n")
        with redis.Redis.from_url(server.url) as client:
            wait_for(lambda: bool(client.delete("left")))
        wait_for(lambda: not relay.links)


def test_it_closes_under_load_and_in_any_mode(server: RedisServer) -> None:
    def hammer(relay: TcpRelay) -> None:
        with redis.Redis.from_url(relay.url_for(server.url), socket_timeout=1) as client:
            deadline = time.monotonic() + 10
            with contextlib.suppress(redis.RedisError):
                while time.monotonic() < deadline:
                    client.ping()

    for mode in ("flow", "cut", "stall", "drop_replies", "refuse"):
        with ThreadPoolExecutor(4) as executor:
            with TcpRelay(server.port) as relay:
                for _ in range(4):
                    executor.submit(hammer, relay)
                wait_for(lambda relay=relay: relay.connections == 4)
                getattr(relay, mode)()
            relay.close()
    with pytest.raises(RuntimeError, match="not running"):
        relay.flow()
