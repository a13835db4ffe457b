"""Is a pool that cannot be used found out before the first request?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis
from store_helpers import named, run

from farm.redis_server import RedisServer
from scrapy_smoothpool.exceptions import StoreError, StoreUnavailable
from scrapy_smoothpool.store.connection import RedisConnection
from scrapy_smoothpool.store.keys import VERSION, Keys
from scrapy_smoothpool.store.scripts import SCRIPTS
from scrapy_smoothpool.store.shared_pool import COMMANDS, SharedPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def user(server: RedisServer, raw: redis.Redis) -> Iterator[Callable[..., str]]:
    """Return the URL of a user that may run such commands."""

    def make(*allowed: str) -> str:
        rules = [f"+{command.lower()}" for command in allowed]
        raw.execute_command(
            "ACL", "SETUSER", "w0rker", "reset", "on", ">s3cret", "-@all", "~smoothpool:*", *rules
        )
        return server.url.replace("//", "//w0rker:s3cret@")

    yield make
    raw.execute_command("ACL", "DELUSER", "w0rker")


def test_a_user_with_all_commands_passes_and_nothing_is_left(
    user: Callable[..., str], make_pool: Callable[..., SharedPool], raw: redis.Redis
) -> None:
    pool = make_pool(user(*COMMANDS))
    run(pool.check())
    left = set(raw.keys(f"smoothpool:{{{pool.keys.pool}}}:*"))
    assert left <= {pool.keys.checked[0]}
    assert 0 < raw.pttl(pool.keys.checked[0]) <= 1000


@pytest.mark.parametrize("missing", COMMANDS)
def test_one_command_fewer_is_found_and_named(
    user: Callable[..., str], make_pool: Callable[..., SharedPool], missing: str
) -> None:
    pool = make_pool(user(*(command for command in COMMANDS if command != missing)))
    with pytest.raises(StoreError) as caught:
        run(pool.check())
    assert not isinstance(caught.value, StoreUnavailable)
    text = str(caught.value)
    named_commands = missing in text or f"refused: {missing.lower()}" in text
    assert named_commands, text
    assert "w0rker" not in text
    assert "s3cret" not in text


def test_the_check_tries_every_command() -> None:
    text = SCRIPTS["check_access"].text
    tried = {command for command in COMMANDS if f"{{'{command}'" in text}
    # EVAL runs the check itself, EVALSHA is asked for first.
    assert tried == set(COMMANDS) - {"EVAL", "EVALSHA"}


def test_keys_that_the_user_may_not_touch(
    raw: redis.Redis, server: RedisServer, make_pool: Callable[..., SharedPool]
) -> None:
    raw.execute_command("ACL", "SETUSER", "w0rker", "on", ">s3cret", "+@all", "~other:*")
    try:
        pool = make_pool(server.url.replace("//", "//w0rker:s3cret@"))
        with pytest.raises(StoreError, match="the pool's keys"):
            run(pool.check())
    finally:
        raw.execute_command("ACL", "DELUSER", "w0rker")


def test_a_replica_and_a_full_server_are_found_at_once() -> None:
    with RedisServer() as own, redis.Redis.from_url(own.url) as client:
        for command, setting in (
            (("CONFIG", "SET", "maxmemory", "1"), "out of memory"),
            (("CONFIG", "SET", "maxmemory", "0"), ""),
            (("REPLICAOF", "127.0.0.1", "1"), "read-only replica: point SMOOTHPOOL_REDIS_URL"),
        ):
            client.execute_command(*command)
            pool = SharedPool(RedisConnection(own.url), Keys())
            if setting:
                with pytest.raises(StoreError, match=setting):
                    run(pool.check())
            else:
                run(pool.check())
            run(pool.aclose())


def test_a_pool_of_this_version_and_one_that_nobody_published(pool: SharedPool) -> None:
    run(pool.check())
    run(pool.publish(named(3), "f"))
    run(pool.check())


@pytest.mark.parametrize("found", ["0", "2", "10", "\x1b[31m", "no number", "9" * 1000])
def test_another_version_is_refused_and_nothing_is_touched(
    pool: SharedPool, raw: redis.Redis, found: str
) -> None:
    run(pool.publish(named(3), "f"))
    raw.set(pool.keys.version, found)
    before = {key: raw.dump(key) for key in raw.keys(f"smoothpool:{{{pool.keys.pool}}}:*")}
    for call in (pool.check(), pool.publish(named(5), "g"), pool.publish(named(3), "f")):
        with pytest.raises(StoreError) as caught:
            run(call)
        text = str(caught.value)
        assert "SMOOTHPOOL_POOL" in text
        assert f"keeps form {VERSION}" in text
        assert text.isprintable()
        assert len(text) < 400
    after = {key: raw.dump(key) for key in raw.keys(f"smoothpool:{{{pool.keys.pool}}}:*")}
    after.pop(pool.keys.checked[0], None)
    before.pop(pool.keys.checked[0], None)
    assert after == before


def test_a_pool_without_a_version_is_not_guessed(pool: SharedPool, raw: redis.Redis) -> None:
    run(pool.publish(named(3), "f"))
    raw.delete(pool.keys.version)
    with pytest.raises(StoreError, match="has no version") as caught:
        run(pool.check())
    assert pool.keys.version in str(caught.value)
