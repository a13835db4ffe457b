"""What a worker reads of the pool, in steps that never hold the server for long.

Plain commands, no scripts; ``COMMANDS`` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_smoothpool.exceptions import StoreUnavailable
from scrapy_smoothpool.store.publish import STEP, steps
from scrapy_smoothpool.store.scripts import text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy_smoothpool.store.connection import RedisConnection
    from scrapy_smoothpool.store.keys import Keys

#: Function → Redis commands it calls.
COMMANDS: dict[str, tuple[str, ...]] = {
    "lines": ("HMGET",),
    "load_members": ("GET", "HSCAN"),
    "counts": ("ZSCAN", "ZMSCORE"),
    "size": ("ZCARD",),
    "fingerprint": ("GET",),
}
LOAD_TRIES = 10
MAX_COUNT = 2**53


async def lines(conn: RedisConnection, keys: Keys, members: Iterable[str]) -> dict[str, str]:
    """Return id → line of those *members* that the live list has."""
    found: dict[str, str] = {}
    for step in steps(list(members)):
        replies = await conn.call(lambda client, s=step: client.hmget(keys.members, s))  # type: ignore[misc]
        found.update((m, text(line)) for m, line in zip(step, replies, strict=True) if line)
    return found


async def load_members(conn: RedisConnection, keys: Keys) -> dict[str, str]:
    """Return the whole live list, id → line; empty when there is none.

    Read again when another list was swapped in meanwhile.
    """
    for _ in range(LOAD_TRIES):
        before = await fingerprint(conn, keys)
        scanned = await _scan(conn, "hscan", keys.members)
        if before == await fingerprint(conn, keys):
            return {text(member): text(line) for member, line in scanned.items()}
    raise StoreUnavailable(f"pool {keys.pool!r}: its list was replaced again and again")


async def counts(
    conn: RedisConnection, keys: Keys, members: Iterable[str] | None = None
) -> dict[str, int]:
    """Return id → allocations of the live pool, or of those *members* that are in it.

    No instant's picture: picks go on between the steps.
    """
    if members is None:
        scanned = await _scan(conn, "zscan", keys.allocations)
        return {text(member): _count(score) for member, score in scanned.items()}
    found: dict[str, int] = {}
    for step in steps(list(members)):
        scores = await conn.call(lambda client, s=step: client.zmscore(keys.allocations, s))  # type: ignore[misc]
        found.update((m, _count(n)) for m, n in zip(step, scores, strict=True) if n is not None)
    return found


async def size(conn: RedisConnection, keys: Keys) -> int:
    """Return the number of members of the live pool; 0 when it is missing."""
    return int(await conn.call(lambda client: client.zcard(keys.allocations)))


async def fingerprint(conn: RedisConnection, keys: Keys) -> str | None:
    """Return the live list's fingerprint."""
    reply = await conn.call(lambda client: client.get(keys.fingerprint))
    return None if reply is None else text(reply)


async def _scan(conn: RedisConnection, command: str, key: str) -> dict[Any, Any]:
    # Not by rank: picks move members while we read. A scan returns every member
    # that is there throughout, some of them twice.
    found: dict[Any, Any] = {}
    cursor = 0
    while True:
        cursor, page = await conn.call(
            lambda client, c=cursor: getattr(client, command)(key, c, count=STEP)  # type: ignore[misc]
        )
        found.update(page)
        if cursor == 0:
            return found


def _count(score: float) -> int:
    # Beyond 2^53 a score no longer counts; infinity is an operator's way to rest a member.
    return int(max(-MAX_COUNT, min(score, MAX_COUNT)))
