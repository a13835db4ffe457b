"""The Lua scripts, and one typed function for each.

Every script gets all its keys through KEYS and passes integers and strings only.
``COMMANDS`` lists what each may call, for whoever writes an ACL.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scrapy_smoothpool.store.keys import VERSION
from scrapy_smoothpool.store.script import Script
from scrapy_smoothpool.store.verdicts import (
    IN_ROTATION,
    NO_REASON,
    Judged,
    Judgement,
    Probes,
    milliseconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy_smoothpool.store.connection import RedisConnection
    from scrapy_smoothpool.store.keys import Keys
    from scrapy_smoothpool.store.verdicts import Delivery, Happened, HealthRules

MOST_OUTCOMES = 1_000
"""Outcomes a call, also what Lua's unpack() can still take."""
ADDED_TTL = 3_600_000
"""ms for which a worker's last addition is remembered. This and the next outlast an outage: it may
come between a call and the same call made again."""
DELIVERED_TTL = 3_600_000
"""ms for which a worker's last delivery is remembered."""

#: Script → Redis commands it calls; EVALSHA and EVAL come on top.
COMMANDS: dict[str, tuple[str, ...]] = {
    "least_used": ("ZRANGE", "ZINCRBY"),
    "least_used_many": ("ZRANGE", "ZINCRBY"),
    "least_used_excluding": ("ZRANGE", "ZINCRBY"),
    "raise_to_minimum": ("ZSCORE", "ZRANGE", "ZADD"),
    "report_outcomes": (
        "TIME",
        "GET",
        "SET",
        "ZCARD",
        "ZMSCORE",
        "HMGET",
        "HSET",
        "ZADD",
        "ZREM",
        "ZRANGE",
        "EXISTS",
        "SADD",
        "PEXPIRE",
    ),
    "take_probe": (
        "TIME",
        "GET",
        "SET",
        "ZCARD",
        "ZDIFF",
        "ZINTER",
        "ZSCORE",
        "ZADD",
        "ZREM",
        "ZRANGE",
        "ZRANGEBYSCORE",
        "HEXISTS",
        "HGET",
        "HSET",
        "HLEN",
        "EXISTS",
        "SADD",
        "PEXPIRE",
    ),
    "begin_publish": ("GET", "SET", "ZCARD", "HLEN", "UNLINK"),
    "stir": ("GET", "PEXPIRE", "SADD"),
    "stage_members": ("GET", "SET", "PEXPIRE", "ZMSCORE", "ZRANGE", "ZADD", "HSET", "TIME"),
    "swap_in": (
        "GET",
        "SET",
        "ZCARD",
        "HLEN",
        "EXISTS",
        "UNLINK",
        "RENAME",
        "PERSIST",
        "PEXPIRE",
        "ZRANGE",
        "ZMSCORE",
        "ZSCORE",
        "HGET",
        "HSET",
        "SPOP",
        "SCARD",
        "ZADD",
        "ZREM",
        "TIME",
    ),
    "forget_strays": ("ZMSCORE", "HDEL"),
    "settle_retired": (
        "ZRANGE",
        "HMGET",
        "HDEL",
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
    "raise_counts": ("ZRANGEBYSCORE", "ZADD"),
    "add_allocations": ("GET", "ZSCORE", "ZINCRBY", "SET"),
    "server_time": ("TIME",),
    "check_access": (),  # which tries them all
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


class Picks(NamedTuple):
    """Allocations made in one call."""

    members: list[str]
    """In their order; fewer than asked when the pool is empty."""
    least: float
    """Of the pool's counts, before the last of them; 0 when there are none."""


async def least_used_many(conn: RedisConnection, keys: Keys, number: int) -> Picks:
    """Allocate *number* times the least used member; shorter when the pool is empty."""
    reply = await conn.run(SCRIPTS["least_used_many"], [keys.allocations], [number])
    if reply is None:
        return Picks([], 0.0)
    count, *members = json.loads(text(reply))
    return Picks(members, float(count) - 1)


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


async def report_outcomes(
    conn: RedisConnection,
    keys: Keys,
    rules: HealthRules,
    outcomes: Sequence[Happened],
    delivery: Delivery | None = None,
) -> Judgement:
    """Judge up to :data:`MOST_OUTCOMES` outcomes in their order.

    A call whose reply was lost may have been carried out. Made again with the same
    *delivery* within :data:`DELIVERED_TTL` of that, and before any with a greater number,
    it is answered as before and changes nothing; without one its outcomes count twice.

    :raises ValueError: for more, or for a delivery after one with a greater number.
    """
    if len(outcomes) > MOST_OUTCOMES:
        raise ValueError(f"{len(outcomes)} outcomes in one call; {MOST_OUTCOMES} are taken")
    happened = [
        (proxy_id, epoch, kind, reason or NO_REASON, jitter)
        for proxy_id, epoch, kind, reason, jitter in outcomes
    ]
    args: list[str | int] = [
        *rules.arguments(),
        delivery.number if delivery else 0,
        DELIVERED_TTL,
        # One argument: five an outcome cost twenty times as much to send.
        json.dumps(happened, ensure_ascii=False, separators=(",", ":")),
    ]
    reply = await conn.run(
        SCRIPTS["report_outcomes"],
        [
            keys.allocations,
            keys.benched,
            keys.health,
            keys.wakes,
            keys.ejections,
            keys.epoch,
            keys.unchecked,
            keys.publisher,
            keys.stirred,
            *([keys.delivered(delivery.worker)] if delivery else []),
        ],
        args,
    )
    if reply is None:
        raise ValueError(f"{delivery} comes after one with a greater number")
    epoch, out, members, unchecked, count, *rest = reply
    judged = [IN_ROTATION] * count
    for place, state, stale, consecutive, ejected_for, spared, restored in zip(
        *[iter(rest)] * 7, strict=True
    ):
        judged[place - 1] = Judged(
            stale=bool(stale),
            state=text(state),
            consecutive=consecutive,
            ejected_for=None if ejected_for < 0 else ejected_for / 1000,
            spared=bool(spared),
            restored=bool(restored),
        )
    return Judgement(epoch, out, members, judged, unchecked)


async def take_probe(
    conn: RedisConnection,
    keys: Keys,
    probe_timeout: float,
    since_epoch: int,
    wanted: int,
    excluded: Iterable[str] = (),
    *,
    unchecked: bool = False,
) -> Probes:
    """Lease up to *wanted* due members that are not in *excluded*, and tell how the pool stands.

    Also mends what the loss of a key left of those that are out. A lease whose reply was
    lost runs out by itself.

    :param probe_timeout: seconds to wait for a probe's outcome before another is sent.
    :param since_epoch: the caller last knew who was out in this epoch; 0 at first.
    :param unchecked: lease candidates, too; False for whoever would send them requests.
        What concerns candidates then is not in ``next_wake`` either.
    """
    epoch, complete, wake, whole, members, candidates, leased, put_out = await conn.run(
        SCRIPTS["take_probe"],
        [
            keys.allocations,
            keys.benched,
            keys.health,
            keys.wakes,
            keys.ejections,
            keys.epoch,
            keys.members,
            keys.unchecked,
            keys.publisher,
            keys.stirred,
        ],
        [milliseconds(probe_timeout), since_epoch, wanted, int(unchecked), *excluded],
    )
    names = [text(word) for word in leased]
    return Probes(
        epoch=epoch,
        leased={
            name: "" if reason == NO_REASON else reason
            for name, reason in zip(names[::2], names[1::2], strict=True)
        },
        next_wake=None if wake < 0 else wake / 1000,
        put_out=[text(name) for name in put_out],
        complete_until=complete,
        whole=bool(whole),
        members=members,
        unchecked=candidates,
    )


async def begin_publish(
    conn: RedisConnection, keys: Keys, fingerprint: str, token: str, lease: int
) -> str:
    """Return ``version``, ``same``, ``busy``, ``settle`` or ``publish``; *lease* in ms."""
    reply = await conn.run(
        SCRIPTS["begin_publish"],
        [
            keys.allocations,
            keys.benched,
            keys.members,
            keys.fingerprint,
            keys.retired,
            keys.publisher,
            keys.retired_out,
            keys.stirred,
            keys.version,
        ],
        [fingerprint, token, lease, VERSION],
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
    candidates: bool = False,
) -> list[str] | None:
    """Lay out up to 1,000 (id, line); return ids that were parked, None if the turn is lost.

    *lease* and *ttl* in ms. With *candidates*, those that are not in the live pool will
    be out at first, and due.
    """
    args: list[str | int] = [token, lease, ttl, start_count, int(candidates)]
    for member in members:
        args.extend(member)
    reply = await conn.run(
        SCRIPTS["stage_members"],
        [
            keys.allocations,
            keys.benched,
            keys.parked,
            keys.epoch,
            keys.publisher,
            *keys.staging(token),
        ],
        args,
    )
    return None if reply is None else [text(member) for member in reply]


async def stir(
    conn: RedisConnection, keys: Keys, token: str, members: Sequence[str], *, lease: int, ttl: int
) -> bool:
    """Note up to 1,000 members to be looked at before the swap; False if the turn is lost."""
    script = SCRIPTS["stir"]
    args: list[str | int] = [token, lease, ttl, *members]
    return await conn.run(script, [keys.publisher, keys.stirred], args) is not None


class Swapped(NamedTuple):
    """What a swap found, and did."""

    former_size: int
    kept: int
    """Members that both lists have."""
    former: str
    """The former list's fingerprint, empty when there was none."""
    let_in: str | None
    """Who came back because everybody was out."""
    strays: bool
    """There are records of others than members."""


async def swap_in(
    conn: RedisConnection,
    keys: Keys,
    token: str,
    fingerprint: str,
    size: int,
    step: int = 1_000,
    lease: int = 10_000,
    ttl: int = 60_000,
) -> Swapped | int | None:
    """Make the staged list live, once up to *step* stirred members a call are in their places.

    Returns how many of these are left, to be called again; None if refused. *lease* and *ttl* in
    ms.
    """
    reply = await conn.run(
        SCRIPTS["swap_in"],
        [
            keys.allocations,
            keys.members,
            keys.fingerprint,
            keys.retired,
            keys.retired_copied,
            keys.publisher,
            keys.benched,
            keys.wakes,
            keys.ejections,
            keys.unchecked,
            keys.health,
            *keys.staging(token),
            keys.stirred,
            keys.retired_out,
        ],
        [token, fingerprint, size, step, lease, ttl],
    )
    if reply is None or isinstance(reply, int):
        return reply
    former_size, kept, former, let_in, strays = reply
    return Swapped(former_size, kept, text(former), text(let_in) or None, bool(strays))


async def forget_strays(conn: RedisConnection, keys: Keys, ids: Sequence[str]) -> int:
    """Forget the records of those of up to 1,000 *ids* that are no members."""
    stands = [keys.allocations, keys.benched, keys.health]
    return int(await conn.run(SCRIPTS["forget_strays"], stands, ids))


async def settle_retired(conn: RedisConnection, keys: Keys, step: int, max_age: int) -> int:
    """Carry over or park up to *step* of the former pool; return how many are left."""
    reply = await conn.run(
        SCRIPTS["settle_retired"],
        [
            keys.retired,
            keys.retired_copied,
            keys.allocations,
            keys.benched,
            keys.health,
            keys.parked,
            keys.parked_at,
            keys.retired_out,
        ],
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
    live = [keys.allocations, keys.benched]
    parked = [keys.parked, keys.parked_at]
    return int(await conn.run(SCRIPTS["unpark"], [*live, *parked], members))


async def end_publish(conn: RedisConnection, keys: Keys, token: str) -> bool:
    """Give the turn back and drop what was staged; return whether it was still ours."""
    script = SCRIPTS["end_publish"]
    return bool(await conn.run(script, [keys.publisher, *keys.staging(token)], [token]))


async def raise_counts(conn: RedisConnection, keys: Keys, least: int, step: int) -> int:
    """Raise up to *step* counts that are below *least*; return how many were."""
    script = SCRIPTS["raise_counts"]
    return int(await conn.run(script, [keys.allocations, keys.benched], [least, step]))


async def add_allocations(
    conn: RedisConnection, keys: Keys, worker: str, number: int, allocations: Mapping[str, int]
) -> bool:
    """Add to the counts of up to 1,000 members; those that are none are left out.

    :param worker: a token, random and the same for all additions of a worker.
    :param number: greater than that of the worker's additions before; the same when sent
        again, as has to be done when the reply was lost: it then counts once.
    """
    stands = [keys.allocations, keys.benched, keys.parked, keys.added(worker)]
    args: list[str | int] = [number, ADDED_TTL, json.dumps(dict(allocations), ensure_ascii=False)]
    return bool(await conn.run(SCRIPTS["add_allocations"], stands, args))


async def server_time(conn: RedisConnection, keys: Keys) -> int:
    """Return the time by the server that has the pool, ms."""
    return int(await conn.run(SCRIPTS["server_time"], [keys.allocations]))


async def refused_commands(conn: RedisConnection, keys: Keys) -> list[str]:
    """Return those commands of the scripts that the server does not let this user run.

    EVALSHA and EVAL themselves raise what :meth:`.RedisConnection.run` does.
    """
    reply = await conn.run(SCRIPTS["check_access"], keys.checked, sent_whole=True)
    if not reply:
        await server_time(conn, keys)  # by EVALSHA
    return [text(name) for name in reply]
