"""What a worker reads of the pool, in steps that never hold the server for long.

Plain commands, no scripts; ``COMMANDS`` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from scrapy_smoothpool.exceptions import StoreUnavailable
from scrapy_smoothpool.store.publish import STEP, steps
from scrapy_smoothpool.store.scripts import server_time, text
from scrapy_smoothpool.store.verdicts import EJECTED, PROBING, UNCHECKED, MemberOut, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy_smoothpool.store.connection import RedisConnection
    from scrapy_smoothpool.store.keys import Keys

T = TypeVar("T")

#: Function → Redis commands it calls.
COMMANDS: dict[str, tuple[str, ...]] = {
    "lines": ("HMGET",),
    "load_members": ("GET", "HSCAN"),
    "counts": ("ZSCAN", "ZMSCORE"),
    "size": ("ZCARD",),
    "is_damaged": ("HLEN", "ZCARD"),
    "out": ("ZSCAN", "ZMSCORE", "HMGET"),
    "records": ("HMGET",),
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
        found = await _scan(conn, "hscan", keys.members, text)
        if before == await fingerprint(conn, keys):
            return found
    raise StoreUnavailable(f"pool {keys.pool!r}: its list was replaced again and again")


async def counts(
    conn: RedisConnection, keys: Keys, members: Iterable[str] | None = None
) -> dict[str, int]:
    """Return id → allocations of the live pool, or of those *members* that are in it.

    Those that are out included. No instant's picture: picks go on between the steps.
    """
    if members is None:
        found: dict[str, int] = {}
        for key in _looked_through(keys):
            found |= await _scan(conn, "zscan", key, _count)
        return found
    found = {}
    for step in steps(list(members)):
        for key in _looked_through(keys):
            scores = await conn.call(lambda client, k=key, s=step: client.zmscore(k, s))  # type: ignore[misc]
            found.update((m, _count(n)) for m, n in zip(step, scores, strict=True) if n is not None)
    return found


async def size(conn: RedisConnection, keys: Keys) -> int:
    """Return the number of members of the live pool, those out included; 0 when it is missing.

    One that moves meanwhile may be counted twice or not at all, unless it is the only one.
    """
    benched, rotation, again = [
        int(await conn.call(lambda client, k=key: client.zcard(k)))  # type: ignore[misc]
        for key in _looked_through(keys)
    ]
    return rotation + (benched or again)


async def is_damaged(conn: RedisConnection, keys: Keys) -> bool:
    """Say whether the pool is not there, or some members that its lines name, or the lines."""
    lines = int(await conn.call(lambda client: client.hlen(keys.members)))
    return lines == 0 or await size(conn, keys) < lines


async def out(conn: RedisConnection, keys: Keys) -> dict[str, MemberOut]:
    """Return all members that are out now, with state, reason and when that may change."""
    found: dict[str, MemberOut] = {}
    now = await server_time(conn, keys)
    benched = list(await _scan(conn, "zscan", keys.benched, _count))
    known = await records(conn, keys, benched)
    for step in steps(benched):
        wakes, checks = [
            await conn.call(lambda client, k=key, s=step: client.zmscore(k, s))  # type: ignore[misc]
            for key in (keys.wakes, keys.unchecked)
        ]
        for member, wake, check in zip(step, wakes, checks, strict=True):
            record = known.get(member)
            if record is None:
                record = Record(EJECTED, reason="" if check is None else UNCHECKED)
            due = check if wake is None else wake
            found[member] = MemberOut(
                state=PROBING if record.state == PROBING else EJECTED,
                reason=record.reason,
                wake=0.0 if due is None else max(0.0, (due - now) / 1000),
            )
    return found


async def records(conn: RedisConnection, keys: Keys, members: Iterable[str]) -> dict[str, Record]:
    """Return what is remembered of those *members* of which anything is."""
    found: dict[str, Record] = {}
    for step in steps(list(members)):
        replies = await conn.call(lambda client, s=step: client.hmget(keys.health, s))  # type: ignore[misc]
        for member, packed in zip(step, replies, strict=True):
            record = Record.parse(None if packed is None else text(packed))
            if record is not None:
                found[member] = record
    return found


def _looked_through(keys: Keys) -> tuple[str, str, str]:
    # The bench twice: a member that is put out while the rotation is read is then found on
    # it, and one that comes back was seen there before.
    return keys.benched, keys.allocations, keys.benched


async def fingerprint(conn: RedisConnection, keys: Keys) -> str | None:
    """Return the live list's fingerprint."""
    reply = await conn.call(lambda client: client.get(keys.fingerprint))
    return None if reply is None else text(reply)


async def _scan(
    conn: RedisConnection, command: str, key: str, value: Callable[[Any], T]
) -> dict[str, T]:
    # Not by rank: picks move members while we read. A scan returns every member
    # that is there throughout, some of them twice. Each page is read when it comes,
    # or the worker's own loop would be held for the whole list.
    found: dict[str, T] = {}
    cursor = 0
    while True:
        cursor, page = await conn.call(
            lambda client, c=cursor: getattr(client, command)(key, c, count=STEP)  # type: ignore[misc]
        )
        pairs = page.items() if isinstance(page, dict) else page
        found.update((text(member), value(it)) for member, it in pairs)
        if cursor == 0:
            return found


def _count(score: float) -> int:
    # Beyond 2^53 a score no longer counts; infinity is an operator's way to rest a member.
    return int(max(-MAX_COUNT, min(score, MAX_COUNT)))
