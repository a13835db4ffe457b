"""A list becomes the pool's list: whole, at once, and without losing a count.

1. *begin*: a list that is live already changes nothing. Otherwise one worker at a
   time gets the turn, as a lease that runs out if it dies; the others wait and then
   mostly find that the list they wanted is live.
2. *stage*, in steps: the new members beside the live pool, each with its count. Then, in steps,
   who is out is put out there, too; who goes out or comes back meanwhile is noted by the scripts
   that do that, and put in its place before the swap.
3. *swap*: renames. Picks before it fall on the old list, after it on the new.
4. *settle*, in steps: what was picked between 2 and 3 is added to the members still
   listed; the others are parked with their count, in case they return, and their
   health is forgotten.

Members that are out stay out, with their count: the very script that swaps sees to it that
nobody is left over who was put out or came back since.

A worker that dies before 3 leaves keys with a TTL and the old list. One that dies
after it leaves the former pool unsettled, which the next publisher of any list,
the same one included, makes up for.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from scrapy_smoothpool.exceptions import StoreError, StoreUnavailable
from scrapy_smoothpool.store import scripts
from scrapy_smoothpool.store.keys import VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

    from scrapy_smoothpool.store.connection import RedisConnection
    from scrapy_smoothpool.store.keys import Keys

STEP = 250  # members a script call: 2 to 10 ms for the server, and as much for the worker
CARRIED = 100  # who is out, a call of the script that swaps: it asks of each in seven places
LEASE = 10_000  # ms without a sign of life after which another worker may publish
STAGING_TTL = 60_000  # ms
MAX_PARKED = 10_000
MAX_PARKED_AGE = 7 * 86_400  # seconds
MAX_WAIT = 60.0  # seconds for others to finish

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What publishing did.

    ``changed``: this call swapped a list in. ``replaced``: how many members the
    former, different list had; 0 when there was none. ``size``, ``added``,
    ``removed``: members of the list, and by how many it differs from the former.
    """

    changed: bool
    size: int
    replaced: int = 0
    added: int = 0
    removed: int = 0
    let_in: str | None = None
    """Who was let back in because the list had shrunk to members that were all out."""


async def publish(
    conn: RedisConnection,
    keys: Keys,
    members: Mapping[str, str],
    fingerprint: str,
    start_count: int = 0,
    candidates: bool = False,
    go_on: Callable[[], object] = lambda: None,
) -> PublishResult:
    """Make *members* (id → line) the pool's list.

    :param fingerprint: the same for the same list, in every worker.
    :param start_count: the count of newcomers to an empty pool.
    :param go_on: called before every step until the swap; what it raises ends all.
    :param candidates: whoever is not in the live pool yet begins outside, due at once.
    :raises StoreUnavailable: Redis cannot be reached, or other workers were still
        publishing after a minute.
    :raises StoreError: Redis refused.
    """
    if not members or not fingerprint:
        raise ValueError("a list to be published has members and a fingerprint")
    deadline = time.monotonic() + MAX_WAIT
    pause = 0.02
    while True:
        token = secrets.token_hex(8)
        verdict = await scripts.begin_publish(conn, keys, fingerprint, token, LEASE)
        if verdict == "version":
            raise other_version(keys, await _version(conn, keys))
        if verdict == "same":
            return PublishResult(False, len(members))
        if verdict != "busy":
            try:
                await _settle(conn, keys)
                if verdict == "settle":
                    return PublishResult(False, len(members))
                result = await _replace(
                    conn, keys, token, members, fingerprint, start_count, candidates, go_on
                )
                if result is not None:
                    return result
            finally:
                await _give_back(conn, keys, token)
        if time.monotonic() > deadline:
            raise StoreUnavailable(
                f"pool {keys.pool!r} could not be published: other workers kept publishing "
                f"to it for {MAX_WAIT:g} s, or Redis evicts its keys"
            )
        go_on()
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, 0.5)


async def _replace(
    conn: RedisConnection,
    keys: Keys,
    token: str,
    members: Mapping[str, str],
    fingerprint: str,
    start_count: int,
    candidates: bool,
    go_on: Callable[[], object],
) -> PublishResult | None:
    """Stage, swap and settle; None when the turn was lost on the way."""
    # Takes nothing, but mends what the loss of a key left of those that are out.
    await scripts.take_probe(conn, keys, 0, 0, 0, unchecked=candidates)
    returning: list[str] = []
    for step in steps(members.items()):
        go_on()
        parked = await scripts.stage_members(
            conn,
            keys,
            token,
            step,
            lease=LEASE,
            ttl=STAGING_TTL,
            start_count=start_count,
            candidates=candidates,
        )
        if parked is None:
            return None
        returning += parked
    async for page in _pages(conn, "zscan", keys.benched):
        if page and not await scripts.stir(conn, keys, token, page, lease=LEASE, ttl=STAGING_TTL):
            return None
    swapped: scripts.Swapped | int | None = 1
    while isinstance(swapped, int):
        go_on()
        swapped = await scripts.swap_in(
            conn, keys, token, fingerprint, len(members), CARRIED, LEASE, STAGING_TTL
        )
    if swapped is None:
        return None
    former_size, kept, former, let_in, strays = swapped
    for back in steps(returning):
        await scripts.unpark(conn, keys, back)
    await _settle(conn, keys)
    if strays:
        async for page in _pages(conn, "hscan", keys.health):
            if page:
                await scripts.forget_strays(conn, keys, page)
    return PublishResult(
        changed=True,
        size=len(members),
        replaced=former_size if former != fingerprint else 0,
        added=len(members) - kept,
        removed=max(0, former_size - kept),
        let_in=let_in,
    )


async def _pages(conn: RedisConnection, command: str, key: str) -> AsyncIterator[list[str]]:
    """Yield the names in a sorted set or hash; some may come twice."""
    cursor = 0
    while True:
        cursor, page = await conn.call(
            lambda client, c=cursor: getattr(client, command)(key, c, count=STEP)  # type: ignore[misc]
        )
        names = page if isinstance(page, dict) else [name for name, _ in page]
        for step in steps([scripts.text(name) for name in names]):
            yield step
        if cursor == 0:
            return


async def _settle(conn: RedisConnection, keys: Keys) -> None:
    left = 1
    while left:
        left = await scripts.settle_retired(conn, keys, STEP, MAX_PARKED_AGE)
        while await scripts.trim_parked(conn, keys, MAX_PARKED, MAX_PARKED_AGE, STEP):
            pass


async def check_version(conn: RedisConnection, keys: Keys) -> None:
    """Refuse a pool that is kept in another form than this one.

    One without a version has none that could be guessed.

    :raises StoreError: with what to do.
    """
    found = await _version(conn, keys)
    if found == VERSION:
        return
    if found is None and not await conn.call(lambda client: client.zcard(keys.allocations)):
        return  # nobody has published it yet
    raise other_version(keys, found)


async def _version(conn: RedisConnection, keys: Keys) -> str | None:
    found = await conn.call(lambda client: client.get(keys.version))
    return None if found is None else scripts.text(found)


def other_version(keys: Keys, found: str | None) -> StoreError:
    """Return the error for a pool that another version of this package keeps."""
    if found is None:
        what = f"has no version ({keys.version} is missing)"
        remedy = "delete its keys if no worker uses it, or give this crawl another SMOOTHPOOL_POOL"
    else:
        shown = found if found.isascii() and found.isalnum() and len(found) < 10 else "unknown"
        what = (
            f"is kept in form {shown}, and this version of scrapy-smoothpool keeps form {VERSION}"
        )
        remedy = (
            "let all workers have the same version of scrapy-smoothpool, or give this crawl "
            "another SMOOTHPOOL_POOL"
        )
    return StoreError(f"pool {keys.pool!r} in Redis {what}: {remedy}")


async def _give_back(conn: RedisConnection, keys: Keys, token: str) -> None:
    # Failing is harmless: the lease and the staging keys run out by themselves.
    with suppress(StoreError):
        await scripts.end_publish(conn, keys, token)


def steps(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield *items* in lists of up to :data:`STEP`."""
    iterator = iter(items)
    while step := list(islice(iterator, STEP)):
        yield step
