"""The Lua scripts, and one typed function for each.

Every script gets all its keys through KEYS and passes integers and strings only.
``COMMANDS`` lists what each may call, for whoever writes an ACL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from scrapy_smoothpool.store.script import Script

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapy_smoothpool.store.connection import RedisConnection
    from scrapy_smoothpool.store.keys import Keys

#: Script → Redis commands it calls; EVALSHA and EVAL come on top.
COMMANDS: dict[str, tuple[str, ...]] = {
    "least_used": ("ZRANGE", "ZINCRBY"),
    "least_used_excluding": ("ZRANGE", "ZINCRBY"),
    "raise_to_minimum": ("ZSCORE", "ZRANGE", "ZADD"),
    "begin_publish": ("GET", "SET", "ZCARD", "HLEN"),
    "stage_members": ("GET", "PEXPIRE", "ZMSCORE", "ZRANGE", "ZADD", "HSET"),
    "swap_in": ("GET", "SET", "ZCARD", "HLEN", "UNLINK", "RENAME", "PERSIST"),
    "settle_retired": (
        "ZRANGE",
        "HMGET",
        "ZMSCORE",
        "TIME",
        "ZINCRBY",
        "ZADD",
        "EXPIRE",
        "ZREMRANGEBYRANK",
        "ZCARD",
        "UNLINK",
    ),
    "trim_parked": ("TIME", "ZRANGEBYSCORE", "ZCARD", "ZRANGE", "ZREM"),
    "unpark": ("ZMSCORE", "ZREM"),
    "end_publish": ("GET", "UNLINK"),
}


SCRIPTS = {name: Script.load(name) for name in COMMANDS}


def text(value: bytes | str) -> str:
    """Return a reply as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _member(reply: Any) -> str | None:
    return None if reply is None else text(reply)


async def least_used(conn: RedisConnection, keys: Keys) -> str | None:
    """Allocate the least used member; None when the pool is empty."""
    return _member(await conn.run(SCRIPTS["least_used"], [keys.allocations]))


async def least_used_excluding(
    conn: RedisConnection, keys: Keys, excluded: Iterable[str]
) -> str | None:
    """Allocate the least used member that is not in *excluded*; None when there is none."""
    script = SCRIPTS["least_used_excluding"]
    return _member(await conn.run(script, [keys.allocations], list(excluded)))


async def raise_to_minimum(
    conn: RedisConnection, keys: Keys, member: str, excluded: Iterable[str]
) -> int | None:
    """Lift *member* to the least count of the others; return its count, None if it is gone."""
    script = SCRIPTS["raise_to_minimum"]
    args = [member, *excluded]
    return cast("int | None", await conn.run(script, [keys.allocations], args))


async def begin_publish(
    conn: RedisConnection, keys: Keys, fingerprint: str, token: str, lease: int
) -> str:
    """Return ``same``, ``busy``, ``settle`` or ``publish``; *lease* in ms."""
    reply = await conn.run(
        SCRIPTS["begin_publish"],
        [keys.allocations, keys.members, keys.fingerprint, keys.retired, keys.publisher],
        [fingerprint, token, lease],
    )
    return text(reply)


async def stage_members(
    conn: RedisConnection,
    keys: Keys,
    token: str,
    members: Sequence[tuple[str, str]],
    *,
    lease: int,
    ttl: int,
    start_count: int,
) -> list[str] | None:
    """Lay out up to 1,000 (id, line); return ids that were parked, None if the turn is lost.

    *lease* and *ttl* in ms.
    """
    args: list[str | int] = [token, lease, ttl, start_count]
    for member in members:
        args.extend(member)
    reply = await conn.run(
        SCRIPTS["stage_members"],
        [keys.allocations, keys.parked, keys.publisher, *keys.staging(token)],
        args,
    )
    return None if reply is None else [text(member) for member in reply]


async def swap_in(
    conn: RedisConnection, keys: Keys, token: str, fingerprint: str, size: int
) -> tuple[int, int, str] | None:
    """Make the staged list live; (former size, kept, former fingerprint), None if refused."""
    reply = await conn.run(
        SCRIPTS["swap_in"],
        [
            keys.allocations,
            keys.members,
            keys.fingerprint,
            keys.retired,
            keys.retired_copied,
            keys.publisher,
            *keys.staging(token),
        ],
        [token, fingerprint, size],
    )
    return None if reply is None else (int(reply[0]), int(reply[1]), text(reply[2]))


async def settle_retired(conn: RedisConnection, keys: Keys, step: int, max_age: int) -> int:
    """Carry over or park up to *step* of the former pool; return how many are left."""
    reply = await conn.run(
        SCRIPTS["settle_retired"],
        [keys.retired, keys.retired_copied, keys.allocations, keys.parked, keys.parked_at],
        [step, max_age],
    )
    return int(reply)


async def trim_parked(
    conn: RedisConnection, keys: Keys, max_number: int, max_age: int, step: int
) -> int:
    """Drop up to *step* parked members too many or too old (s); return how many."""
    script = SCRIPTS["trim_parked"]
    reply = await conn.run(script, [keys.parked, keys.parked_at], [max_number, max_age, step])
    return int(reply)


async def unpark(conn: RedisConnection, keys: Keys, members: Sequence[str]) -> int:
    """Forget the parked counts of up to 1,000 members that are live again."""
    script = SCRIPTS["unpark"]
    return int(await conn.run(script, [keys.allocations, keys.parked, keys.parked_at], members))


async def end_publish(conn: RedisConnection, keys: Keys, token: str) -> bool:
    """Give the turn back and drop what was staged; return whether it was still ours."""
    script = SCRIPTS["end_publish"]
    return bool(await conn.run(script, [keys.publisher, *keys.staging(token)], [token]))
