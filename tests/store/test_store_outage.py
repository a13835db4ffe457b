from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import redis
from redis.asyncio.sentinel import MasterNotFoundError
from store_helpers import named, run

from farm.redis_server import RedisServer
from scrapy_smoothpool.exceptions import SettingsError, StoreError, StoreUnavailable
from scrapy_smoothpool.store.connection import RedisConnection, ping_once
from scrapy_smoothpool.store.errors import translate
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.shared_pool import SharedPool
from scrapy_smoothpool.store.url import parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server that the test may break."""
    with RedisServer() as running:
        yield running


@pytest.fixture
def open_pool() -> Iterator[Callable[[str], SharedPool]]:
    made: list[SharedPool] = []

    def make(url: str) -> SharedPool:
        made.append(SharedPool(RedisConnection(url), Keys()))
        return made[-1]

    yield make
    for pool in made:
        run(pool.aclose())


def soon(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await what is called, again and again while the breaker lets nobody through."""
    deadline = time.monotonic() + 3
    while True:
        try:
            return run(call())
        except StoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def refused(pool: SharedPool, kind: type[StoreError]) -> str:
    """Pick, expect *kind* exactly, and return all that a log could hold of it."""
    with pytest.raises(StoreError) as caught:
        run(pool.pick())
    assert type(caught.value) is kind
    return str(caught.value) + "".join(traceback.format_exception(caught.value))


def test_killed_is_unavailable_at_once_and_heals_after_a_restart(
    own: RedisServer, open_pool: Callable[[str], SharedPool]
) -> None:
    pool = open_pool(own.url)
    run(pool.publish(named(3), "f"))
    own.kill()
    for _ in range(3):
        began = time.monotonic()
        text = refused(pool, StoreUnavailable)
        assert time.monotonic() - began < 0.9
        assert f"127.0.0.1:{own.port}/0" in text
    own.restart()
    assert soon(pool.size) == 0
    assert run(pool.publish(named(3), "f")).changed
    assert run(pool.pick()) == "p00000"


def test_a_restart_while_idle_is_not_noticed(
    own: RedisServer, open_pool: Callable[[str], SharedPool]
) -> None:
    pool = open_pool(own.url)
    run(pool.pick())
    own.restart()
    assert run(pool.pick()) is None


def test_a_stalled_server_is_unavailable_within_about_a_second(
    own: RedisServer, open_pool: Callable[[str], SharedPool]
) -> None:
    pool = open_pool(own.url)
    run(pool.publish(named(3), "f"))
    own.pause()
    try:
        began = time.monotonic()
        assert "did not answer in time" in refused(pool, StoreUnavailable)
        assert time.monotonic() - began < 1.5

        async def many() -> list[object]:
            return await asyncio.gather(*(pool.pick() for _ in range(64)), return_exceptions=True)

        began = time.monotonic()
        assert {type(result) for result in run(many())} == {StoreUnavailable}
        assert time.monotonic() - began < 2.5
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="did not answer"):
            ping_once(own.url)
        assert time.monotonic() - began < 1.5
    finally:
        own.resume()
    assert soon(pool.pick) is not None
    ping_once(own.url)


@pytest.mark.parametrize("login", [":wr0ng", "us3r:wr0ng", ""], ids=["password", "user", "none"])
def test_a_refused_login_needs_a_person_and_shows_no_secret(
    login: str, open_pool: Callable[[str], SharedPool]
) -> None:
    with RedisServer(args=("--requirepass", "r1ght")) as server:
        url = server.url.replace("//", f"//{login}@" if login else "//")
        began = time.monotonic()
        text = refused(open_pool(url), StoreError)
        with pytest.raises(StoreError) as caught:
            ping_once(url)
        assert time.monotonic() - began < 1.5
        assert not isinstance(caught.value, StoreUnavailable)
        for shown in (text, str(caught.value)):
            assert "SMOOTHPOOL_REDIS_URL" in shown
            assert "r0ng" not in shown
            assert "us3r" not in shown
        right = server.url.replace("//", "//:r1ght@")
        ping_once(right)
        assert run(open_pool(right).pick()) is None


def test_a_missing_permission_names_the_command_but_not_the_user(
    own: RedisServer, open_pool: Callable[[str], SharedPool]
) -> None:
    with redis.Redis.from_url(own.url) as raw:
        raw.execute_command("ACL", "SETUSER", "w0rker", "on", ">s3cret", "~*", "-@all", "+zcard")
    url = own.url.replace("//", "//w0rker:s3cret@")
    text = refused(open_pool(url), StoreError)
    assert "evalsha" in text
    assert "w0rker" not in text
    assert "s3cret" not in text
    ping_once(url)  # it answers; PING itself is not needed


def test_a_key_of_another_type_needs_a_person(
    own: RedisServer, open_pool: Callable[[str], SharedPool]
) -> None:
    with redis.Redis.from_url(own.url) as raw:
        raw.set(Keys().allocations, "x")
    pool = open_pool(own.url)
    assert "SMOOTHPOOL_POOL" in refused(pool, StoreError)
    with pytest.raises(StoreError, match="holds something else"):
        run(pool.publish(named(3), "f"))
    with redis.Redis.from_url(own.url) as raw:
        assert raw.keys("*publisher*") == []


def test_a_full_server_and_a_replica_need_a_person(
    own: RedisServer, open_pool: Callable[[str], SharedPool]
) -> None:
    pool = open_pool(own.url)
    run(pool.publish(named(3), "f"))
    with redis.Redis.from_url(own.url) as raw:
        raw.config_set("maxmemory", 1)
        assert "maxmemory" in refused(pool, StoreError)
        raw.config_set("maxmemory", 0)
        raw.execute_command("REPLICAOF", "127.0.0.1", "1")
        # It was a primary: somebody is failing over, and it may be one again.
        assert "replica" in refused(pool, StoreUnavailable)
        assert "point SMOOTHPOOL_REDIS_URL at the primary" in refused(
            open_pool(own.url), StoreError
        )
        raw.execute_command("REPLICAOF", "NO", "ONE")
    assert soon(pool.pick) is not None


def test_a_busy_server_may_come_back(
    own: RedisServer, open_pool: Callable[[str], SharedPool]
) -> None:
    pool = open_pool(own.url)
    with redis.Redis.from_url(own.url) as raw:
        raw.config_set("lua-time-limit", 50)

        def spin() -> None:
            with redis.Redis.from_url(own.url) as other, pytest.raises(redis.ResponseError):
                other.eval("while true do end", 0)

        thread = threading.Thread(target=spin)
        thread.start()
        time.sleep(0.3)
        assert "BUSY" in refused(pool, StoreUnavailable)
        raw.script_kill()
        thread.join()
    assert soon(pool.pick) is None


def test_nobody_listening(open_pool: Callable[[str], SharedPool]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"redis://us3r:s3cret@127.0.0.1:{taken.getsockname()[1]}/0"
        text = refused(open_pool(url), StoreUnavailable)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            ping_once(url)
        assert time.monotonic() - began < 1
    assert "s3" not in text + str(caught.value)


def test_a_host_that_does_not_exist(open_pool: Callable[[str], SharedPool]) -> None:
    url = "redis://nowhere.invalid/0"
    assert "nowhere.invalid:6379/0" in refused(open_pool(url), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        ping_once(url)


def test_something_that_is_no_redis(open_pool: Callable[[str], SharedPool]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                peer, _address = listener.accept()
                with peer:
                    peer.recv(100)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        refused(open_pool(url), StoreError)
        with pytest.raises(StoreError):
            ping_once(url)
        thread.join()


def test_a_missing_socket(open_pool: Callable[[str], SharedPool]) -> None:
    refused(open_pool("unix:///nowhere/redis.sock"), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        ping_once("unix:///nowhere/redis.sock")


def test_ping_checks_the_url_first() -> None:
    with pytest.raises(SettingsError):
        ping_once("localhost")


def test_a_closed_connection_stays_closed_and_closing_twice_is_fine(server: RedisServer) -> None:
    pool = SharedPool(RedisConnection(server.url), Keys())

    async def main() -> None:
        await pool.pick()
        await pool.aclose()
        await pool.aclose()

    run(main())
    assert "closed" in refused(pool, StoreUnavailable)


@pytest.mark.filterwarnings("error")
def test_no_connection_is_left_open(own: RedisServer) -> None:
    def clients() -> int:
        with redis.Redis.from_url(own.url) as raw:
            return len(raw.client_list())

    async def main() -> list[object]:
        pool = SharedPool(RedisConnection(own.url), Keys())
        await pool.publish(named(3), "f")
        own.pause()
        # Closed with calls in flight: they fail, and do not connect anew.
        pending = [asyncio.ensure_future(pool.pick()) for _ in range(12)]
        await asyncio.sleep(0.1)
        await pool.aclose()
        own.resume()
        return await asyncio.gather(*pending, return_exceptions=True)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        results = run(main())
        ping_once(own.url)
        gc.collect()
    assert {type(result) for result in results} <= {StoreUnavailable, str}
    assert [str(warning.message) for warning in seen] == []
    deadline = time.monotonic() + 2
    while clients() > 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert clients() == 1  # the one that asks


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, OSError, redis.RedisError])
def test_a_call_that_the_closing_breaks_says_that_it_is_closed(
    server: RedisServer, error: type[Exception]
) -> None:
    # What a call in flight meets while redis-py takes its connection apart depends on the
    # moment; here every kind of it, after a real answer.
    connection = RedisConnection(server.url)

    async def interrupted(client: Any) -> None:
        assert await client.ping()
        await connection.aclose()
        raise error("taken apart")

    with pytest.raises(StoreUnavailable, match="the connection is closed"):
        run(connection.call(interrupted))


def test_an_error_of_the_caller_is_not_taken_for_one_of_redis(server: RedisServer) -> None:
    connection = RedisConnection(server.url)

    async def faulty(client: Any) -> None:
        raise AttributeError("a fault in the code")

    async def main() -> None:
        try:
            await connection.call(faulty)
        finally:
            await connection.aclose()

    with pytest.raises(AttributeError, match="a fault in the code"):
        run(main())


def test_a_cancelled_pick_does_not_spoil_the_next(server: RedisServer, pool: SharedPool) -> None:
    run(pool.publish(named(50), "f"))

    async def main() -> list[str | None]:
        for _ in range(20):
            task = asyncio.ensure_future(pool.pick())
            await asyncio.sleep(0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return [await pool.pick() for _ in range(50)]

    assert all(member in named(50) for member in run(main()))


@pytest.mark.parametrize(
    ("login", "said"),
    [
        ("u:two%20%20spaces", "connection with password=two  spaces refused"),
        (f"u:{'s3cret' * 60}", f"connection with password={'s3cret' * 60} refused"),
        ("s3cret:s3cretlonger", "password=s3cretlonger user=s3cret refused"),
        ("u:p", "user u, password p: connection refused"),
    ],
)
def test_no_login_is_in_what_redis_py_says(login: str, said: str) -> None:
    address = parse_url(f"redis://{login}@h")
    text = str(translate(redis.ConnectionError(said), address))
    for secret in address.secrets:
        if len(secret) > 2:
            assert secret not in text
            assert secret[:20] not in text
    assert "longer" not in text
    assert "spaces" not in text
    assert "refused" in text  # with one letter for a user not all words with it go
    assert "u," not in text.replace("***", "").partition("user")[2]


def test_sentinels_that_do_not_answer_are_told_without_their_insides() -> None:
    address = parse_url("redis+sentinel://h:1,i:2/shop?sentinel_password=s3cret")
    error = MasterNotFoundError("No master found for 'shop' : <Connection(password=s3cret...")
    assert str(translate(error, address)) == (
        "Redis at shop/0 (Sentinel h:1,i:2) cannot be reached: no Sentinel that answers knows a "
        "primary named 'shop'"
    )
