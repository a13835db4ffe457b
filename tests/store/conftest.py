from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
import redis
from store_helpers import run, stop_loop

from farm.redis_server import RedisServer
from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.shared_pool import SharedPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_numbers = count()


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running
    stop_loop()


@pytest.fixture
def raw(server: RedisServer) -> Iterator[redis.Redis]:
    """A plain client, to look at Redis past the package."""
    with redis.Redis.from_url(server.url, decode_responses=True, protocol=2) as client:
        yield client


@pytest.fixture
def make_pool(server: RedisServer, raw: redis.Redis) -> Iterator[Callable[..., SharedPool]]:
    """Return clients of one pool that no other test uses."""
    name = f"t{next(_numbers)}"
    made: list[SharedPool] = []

    def make(url: str = server.url, name: str = name) -> SharedPool:
        made.append(SharedPool(RedisConnection(url), Keys(pool=name)))
        return made[-1]

    yield make
    for pool in made:
        run(pool.aclose())
    leftovers = raw.keys(f"smoothpool:{{{name}}}:*")
    if leftovers:
        raw.delete(*leftovers)


@pytest.fixture
def pool(make_pool: Callable[..., SharedPool]) -> SharedPool:
    return make_pool()
