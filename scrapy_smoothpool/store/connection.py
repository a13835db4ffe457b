"""The connection to Redis: explicit limits, short timeouts, two kinds of errors.

redis-py's defaults differ by version and by how the client is made (none, 0, 3 or
10 retries; no timeout or 5 s; a pool that refuses the 101st caller), so nothing is
left to them here.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, NoScriptError
from redis.retry import Retry as SyncRetry

from scrapy_smoothpool.exceptions import StoreError, StoreUnavailable
from scrapy_smoothpool.store.errors import CAUGHT, translate
from scrapy_smoothpool.store.url import RedisAddress, parse_url, validate_url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from scrapy_smoothpool.store.script import Script

__all__ = ["RedisConnection", "ping_once", "validate_url"]

MAX_CONNECTIONS = 8
TIMEOUT = 1.0  # seconds: to connect, for a reply, for a free connection


class RedisConnection:
    """A small pool of connections to one server. Connects at the first call.

    :param url: ``SMOOTHPOOL_REDIS_URL``. Options in it win over the defaults here.
    :raises SettingsError: for a URL that cannot be used.
    """

    def __init__(self, url: str) -> None:
        self._address = parse_url(url)
        self._client = _client(self._address)
        self._closed = False

    def describe(self) -> str:
        """Return ``host:port/database``, or the socket's path, for a log."""
        return str(self._address)

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[str | int] = ()) -> Any:
        """Run *script* and return its reply: bytes, int, list or None.

        EVALSHA, and EVAL when the server does not know the script (any more), so
        that SCRIPT LOAD need not be permitted. At most one retry, and only when
        the connection broke: a call that timed out may still be carried out.

        :raises StoreUnavailable: for what may mend by itself.
        :raises StoreError: for what a person has to mend.
        """
        rest = (len(keys), *keys, *args)

        async def evaluate(client: Any) -> Any:
            try:
                return await client.execute_command("EVALSHA", script.sha, *rest)
            except NoScriptError:
                return await client.execute_command("EVAL", script.text, *rest)

        return await self.call(evaluate)

    async def call(self, command: Callable[[Any], Awaitable[Any]]) -> Any:
        """Await ``command(client)``; the same errors as :meth:`run`."""
        if self._closed:
            raise self._is_closed()
        try:
            return await command(self._client)
        except Exception as error:
            if self._closed:
                # redis-py takes its connections apart under a call in flight, which then
                # stumbles over whatever is missing first (an AttributeError, say).
                raise self._is_closed() from None
            if not isinstance(error, CAUGHT):
                raise
            raise translate(error, self._address) from None
        finally:
            if self._closed:
                # Closed meanwhile: the retry may have opened a connection anew.
                await self._disconnect()

    def _is_closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"Redis at {self._address}: the connection is closed")

    async def aclose(self) -> None:
        """Close all connections. Never raises; calls in flight fail."""
        self._closed = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        with suppress(Exception):
            await self._client.aclose(close_connection_pool=True)


def _client(address: RedisAddress) -> aioredis.Redis:
    kinds: dict[str, Any] = {
        "redis": aioredis.Connection,
        "rediss": aioredis.SSLConnection,
        "unix": aioredis.UnixDomainSocketConnection,
    }
    arguments: dict[str, Any] = {
        "connection_class": kinds[address.scheme],
        "max_connections": MAX_CONNECTIONS,
        "timeout": TIMEOUT,
        "socket_timeout": TIMEOUT,
        "socket_connect_timeout": TIMEOUT,
        "protocol": 2,
        # A stale connection is found out by using it: one retry, for that only.
        "retry": Retry(
            ExponentialWithJitterBackoff(base=0.05, cap=0.5),
            1,
            supported_errors=(RedisConnectionError,),
        ),
        **address.options,
        # Replies are decoded here, whatever the URL says.
        "decode_responses": False,
    }
    return aioredis.Redis.from_pool(aioredis.BlockingConnectionPool(**arguments))


def ping_once(url: str, timeout: float = TIMEOUT) -> None:
    """Connect, log in and PING, blocking for *timeout* seconds at most.

    :raises SettingsError: for a URL that cannot be used.
    :raises StoreUnavailable: when nothing (or a server that is not ready) answers.
    :raises StoreError: when the login is refused or no Redis is there.
    """
    address = parse_url(url)
    outcome: list[StoreError | None] = []
    # A thread, since socket timeouts bound neither the look-up of a host's name
    # nor the sum of the steps.
    thread = threading.Thread(
        target=lambda: outcome.append(_ping(address, timeout)), daemon=True, name="smoothpool-ping"
    )
    thread.start()
    thread.join(timeout)
    if not outcome:
        raise StoreUnavailable(f"Redis at {address} did not answer within {timeout:g} s")
    if outcome[0] is not None:
        raise outcome[0]


def _ping(address: RedisAddress, timeout: float) -> StoreError | None:
    kinds: dict[str, Any] = {
        "redis": redis.Connection,
        "rediss": redis.SSLConnection,
        "unix": redis.UnixDomainSocketConnection,
    }
    arguments = {
        name: value
        for name, value in address.options.items()
        if name not in ("max_connections", "timeout", "decode_responses", "health_check_interval")
    }
    arguments |= {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": SyncRetry(NoBackoff(), 0),
    }
    arguments.setdefault("protocol", 2)
    connection: Any = None
    try:
        connection = kinds[address.scheme](**arguments)
        connection.connect()
        connection.send_command("PING")
        connection.read_response()
    except NoPermissionError:
        return None  # it answers and let us in; PING itself is not needed
    except CAUGHT as error:
        return translate(error, address)
    except Exception as error:  # the thread must not die with a traceback that nobody asked for
        return StoreError(f"Redis at {address}: {type(error).__name__}")
    finally:
        if connection is not None:
            with suppress(Exception):
                connection.disconnect()
    return None
