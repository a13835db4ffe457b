"""redis-py's clients, one for each topology, with explicit limits.

redis-py's defaults differ by version and by how the client is made (none, 0, 3 or
10 retries; no timeout or 5 s; a pool that refuses the 101st caller), so nothing is
left to them here. None of the clients repeats a command by itself: which errors
may be tried again is :mod:`.connection`'s to say.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio as aioredis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry as SyncRetry

from scrapy_smoothpool.store.options import OWN, SENTINEL
from scrapy_smoothpool.store.url import Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_smoothpool.store.url import RedisAddress

MAX_CONNECTIONS = 8
TIMEOUT = 1.0  # seconds: to connect, for a reply, for a free connection
SENTINEL_TIMEOUT = 0.5  # seconds, to connect to a Sentinel and for its reply


def make_client(address: RedisAddress) -> Any:
    """Return an asyncio client. It connects at the first command.

    What it is asked at the same time must be bounded by the caller: but for a single
    server redis-py refuses whoever finds no free connection, instead of waiting.
    """
    if address.topology is Topology.CLUSTER:
        return _cluster(address)
    if address.topology is Topology.SENTINEL:
        return _primary(address)
    kinds: dict[tuple[bool, bool], Any] = {
        (False, False): aioredis.Connection,
        (False, True): aioredis.SSLConnection,
        (True, False): aioredis.UnixDomainSocketConnection,
    }
    return aioredis.Redis.from_pool(
        aioredis.BlockingConnectionPool(
            connection_class=kinds[bool(address.path), address.tls],
            max_connections=most(address),
            timeout=patience(address),
            retry=_no_retry(),
            **_limits(address),
            **_where(address),
        )
    )


def most(address: RedisAddress) -> int:
    """Return how many commands may be under way at the same time."""
    return int(address.options.get("max_connections", MAX_CONNECTIONS))


def patience(address: RedisAddress) -> float:
    """Return the seconds to wait for a free connection."""
    return float(address.options.get("timeout", TIMEOUT))


def _limits(address: RedisAddress) -> dict[str, Any]:
    own = {name: value for name, value in address.options.items() if name not in OWN}
    return {
        "socket_timeout": TIMEOUT,
        "socket_connect_timeout": TIMEOUT,
        "protocol": 2,
        **own,
        # Replies are decoded here, whatever the URL says.
        "decode_responses": False,
    }


def _where(address: RedisAddress) -> dict[str, Any]:
    if address.path:
        return {"path": address.path}
    host, port = address.nodes[0]
    return {"host": host, "port": port}


def _no_retry() -> Retry:
    # With none, or 0 where it may, redis-py takes defaults of its own.
    return Retry(NoBackoff(), 0, supported_errors=(RedisConnectionError,))


def _cluster(address: RedisAddress) -> Any:
    limits = _limits(address)
    del limits["db"]
    return RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in address.nodes],
        ssl=address.tls,
        max_connections=most(address),
        # All keys of a pool lie in one slot; the others need not be served for it.
        require_full_coverage=False,
        retry=_no_retry(),
        **limits,
    )


def _primary(address: RedisAddress) -> Any:
    limits = _limits(address)
    sentinel: Any = Sentinel
    sentinels = sentinel(
        address.nodes,
        sentinel_kwargs={
            **{name: value for name, value in limits.items() if name.startswith("ssl_")},
            "ssl": address.tls,
            "protocol": limits["protocol"],
            "socket_timeout": SENTINEL_TIMEOUT,
            "socket_connect_timeout": SENTINEL_TIMEOUT,
            "retry": _no_retry(),
            **_sentinel_login(address),
        },
    )
    pool: Any = SentinelConnectionPool
    return aioredis.Redis.from_pool(
        pool(
            address.service,
            sentinels,
            connection_class=SentinelManagedSSLConnection
            if address.tls
            else SentinelManagedConnection,
            max_connections=most(address),
            retry=_no_retry(),
            **limits,
        )
    )


def _sentinel_login(address: RedisAddress) -> dict[str, Any]:
    return {
        name.removeprefix("sentinel_"): address.options[name]
        for name in SENTINEL
        if name in address.options
    }


async def close_client(client: Any) -> None:
    """Close all connections of a client. Never raises."""
    with suppress(Exception):
        if isinstance(client, RedisCluster):
            await client.aclose()
            return
        pool = client.connection_pool
        await client.aclose(close_connection_pool=True)
        if isinstance(pool, SentinelConnectionPool):
            for sentinel in pool.sentinel_manager.sentinels:
                await sentinel.aclose(close_connection_pool=True)


def ping(address: RedisAddress, timeout: float) -> None:
    """Connect, log in and PING; raise redis-py's error for whatever prevents that. Blocks.

    Of several nodes the first that answers is enough, of a Sentinel's the primary.

    :param timeout: seconds, for each step.
    """
    problem: Exception | None = None
    for connection in _connections(address, timeout):
        try:
            connection.connect()
            connection.send_command("PING")
            connection.read_response()
        except NoPermissionError:
            return  # it answers and let us in; PING itself is not needed
        except Exception as error:
            problem = problem or error
        else:
            return
        finally:
            with suppress(Exception):
                connection.disconnect()
    if problem is not None:
        raise problem


def _connections(address: RedisAddress, timeout: float) -> Iterator[Any]:
    arguments = _limits(address) | {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": SyncRetry(NoBackoff(), 0),
    }
    for name in ("decode_responses", "health_check_interval"):
        arguments.pop(name, None)
    if address.path:
        socket: Any = redis.UnixDomainSocketConnection
        yield socket(path=address.path, **arguments)
        return
    kind = redis.SSLConnection if address.tls else redis.Connection
    if address.topology is not Topology.SENTINEL:
        for host, port in address.nodes:
            yield kind(host=host, port=port, **arguments)
        return
    yield _primary_of(address, kind, arguments)


def _primary_of(address: RedisAddress, kind: Any, arguments: dict[str, Any]) -> Any:
    """Ask the Sentinels one after another for the primary."""
    login = _sentinel_login(address)
    asked = {
        name: value
        for name, value in arguments.items()
        if name not in ("db", "username", "password", "credential_provider")
    }
    problem: Exception | None = None
    for host, port in address.nodes:
        connection = kind(host=host, port=port, **asked, **login)
        try:
            connection.connect()
            connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)
            found = connection.read_response()
        except (AuthenticationError, NoPermissionError):
            problem = RedisError(
                "a Sentinel refuses the login, or SENTINEL GET-MASTER-ADDR-BY-NAME: give its "
                "user as sentinel_username and sentinel_password"
            )
        except ResponseError as error:
            unknown = "unknown command" in str(error)
            problem = RedisError(f"{host}:{port} is no Sentinel") if unknown else error
        except (RedisError, OSError) as error:
            problem = problem or error
        else:
            if found:
                primary, at = (word.decode() for word in found)
                return kind(host=primary, port=int(at), **arguments)
            problem = RedisError(f"the Sentinels know no primary named {address.service!r}")
        finally:
            with suppress(Exception):
                connection.disconnect()
    raise problem or RedisError("no Sentinel is given")
