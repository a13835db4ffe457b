"""The Lua scripts, and one typed function for each.

Every script gets all its keys through KEYS and passes integers and strings only.
``COMMANDS`` lists what each may call, for whoever writes an ACL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scrapy_smoothpool.store.script import Script
from scrapy_smoothpool.store.verdicts import (
    ACTIVE,
    NO_REASON,
    Judged,
    Judgement,
    Probes,
    milliseconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapy_smoothpool.store.connection import RedisConnection
    from scrapy_smoothpool.store.keys import Keys
    from scrapy_smoothpool.store.verdicts import Delivery, Happened, HealthRules

MOST_OUTCOMES = 1_000
"""Outcomes a call, also what Lua's unpack() can still take."""
DELIVERED_TTL = 60_000
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
    ),
    "begin_publish": ("GET", "SET", "ZCARD", "HLEN"),
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
        "ZRANGE",
        "ZMSCORE",
        "ZSCORE",
        "HMGET",
        "HGET",
        "HSET",
        "HDEL",
        "ZADD",
        "ZREM",
        "TIME",
    ),
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
}


_UNREMARKABLE = Judged(stale=False, state=ACTIVE, consecutive=0)
"""What most outcomes lead to; the reply does not name them."""

SCRIPTS = {name: Script.load(name) for name in COMMANDS}


def text(value: bytes | str) -> str:
    """Return a reply as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _member(reply: Any) -> str | None:
    return None if reply is None else text(reply)


async def least_used(conn: RedisConnection, keys: Keys) -> str | None:
    """Allocate the least used member; None when the pool is empty."""
    return _member(await conn.run(SCRIPTS["least_used"], [keys.allocations]))


async def least_used_many(conn: RedisConnection, keys: Keys, number: int) -> list[str]:
    """Allocate *number* times the least used member; shorter when the pool is empty."""
    reply = await conn.run(SCRIPTS["least_used_many"], [keys.allocations], [number])
    return [text(member) for member in reply]


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
    args: list[str | int] = [*rules.arguments(), delivery.number if delivery else 0, DELIVERED_TTL]
    for proxy_id, epoch, kind, reason, jitter in outcomes:
        args += [proxy_id, epoch, kind.value, reason or NO_REASON, repr(float(jitter))]
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
            *([keys.delivered(delivery.worker)] if delivery else []),
        ],
        args,
    )
    if reply is None:
        raise ValueError(f"{delivery} comes after one with a greater number")
    epoch, out, members, unchecked, number, *rest = reply
    judged = [_UNREMARKABLE] * number
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
    """Return ``same``, ``busy``, ``settle`` or ``publish``; *lease* in ms."""
    reply = await conn.run(
        SCRIPTS["begin_publish"],
        [
            keys.allocations,
            keys.benched,
            keys.members,
            keys.fingerprint,
            keys.retired,
            keys.publisher,
        ],
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


class Swapped(NamedTuple):
    """What a swap found, and did."""

    former_size: int
    kept: int
    """Members that both lists have."""
    former: str
    """The former list's fingerprint, empty when there was none."""
    let_in: str | None
    """Who came back because everybody was out."""


async def swap_in(
    conn: RedisConnection,
    keys: Keys,
    token: str,
    fingerprint: str,
    size: int,
    step: int = 1_000,
) -> Swapped | None:
    """Make the staged list live, members that are out *step* at a time; None if refused."""
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
        ],
        [token, fingerprint, size, step],
    )
    if reply is None:
        return None
    former_size, kept, former, let_in = reply
    return Swapped(former_size, kept, text(former), text(let_in) or None)


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
