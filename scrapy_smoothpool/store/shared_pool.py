"""What a strategy sees of the shared pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_smoothpool.exceptions import StoreError
from scrapy_smoothpool.store import publish, reading, scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from scrapy_smoothpool.store.connection import RedisConnection
    from scrapy_smoothpool.store.keys import Keys
    from scrapy_smoothpool.store.verdicts import (
        Delivery,
        Happened,
        HealthRules,
        Judgement,
        MemberOut,
        Probes,
        Record,
    )

#: Every Redis command the store uses, for an ACL. PING is wanted at start but not needed.
COMMANDS = sorted({"EVALSHA", "EVAL"}.union(*scripts.COMMANDS.values(), *reading.COMMANDS.values()))


class SharedPool:
    """One pool in Redis. Every method may raise StoreUnavailable or StoreError."""

    def __init__(self, connection: RedisConnection, keys: Keys) -> None:
        self.connection = connection
        self.keys = keys

    async def check(self) -> None:
        """Find out, before anything is needed, whether the pool can be used at all.

        :raises StoreError: the user may not run a command, the server takes no writes, or the
            pool is kept by another version of this package.
        """
        refused = await scripts.refused_commands(self.connection, self.keys)
        if refused:
            raise StoreError(
                f"Redis at {self.connection.describe()} refuses {', '.join(refused)}: allow the "
                f"user of {self.connection.address.setting} all commands that docs/redis.md "
                "lists; a server older than Redis 6.2 does not know them"
            )
        await publish.check_version(self.connection, self.keys)

    async def pick(self) -> str | None:
        """Allocate the least used member; None when the pool is empty."""
        return await scripts.least_used(self.connection, self.keys)

    async def pick_many(self, number: int) -> scripts.Picks:
        """Allocate *number* times the least used member; shorter when the pool is empty."""
        return await scripts.least_used_many(self.connection, self.keys, number)

    async def pick_excluding(self, excluded: Iterable[str]) -> str | None:
        """Allocate the least used member not in *excluded*; None when there is none."""
        return await scripts.least_used_excluding(self.connection, self.keys, excluded)

    async def publish(
        self,
        members: Mapping[str, str],
        fingerprint: str,
        start_count: int = 0,
        *,
        candidates: bool = False,
        go_on: Callable[[], object] = lambda: None,
    ) -> publish.PublishResult:
        """Make *members* (id → line) the pool's list; see :func:`.publish.publish`."""
        return await publish.publish(
            self.connection, self.keys, members, fingerprint, start_count, candidates, go_on
        )

    async def report_outcomes(
        self,
        rules: HealthRules,
        outcomes: Sequence[Happened],
        delivery: Delivery | None = None,
    ) -> Judgement:
        """Judge outcomes in their order, 1,000 at most; see :func:`.scripts.report_outcomes`."""
        return await scripts.report_outcomes(self.connection, self.keys, rules, outcomes, delivery)

    async def take_probe(
        self,
        probe_timeout: float,
        since_epoch: int = 0,
        wanted: int = 1,
        excluded: Iterable[str] = (),
        *,
        unchecked: bool = False,
    ) -> Probes:
        """Lease members that are due, and tell how the pool stands.

        See :func:`.scripts.take_probe`.
        """
        return await scripts.take_probe(
            self.connection,
            self.keys,
            probe_timeout,
            since_epoch,
            wanted,
            excluded,
            unchecked=unchecked,
        )

    async def out(self) -> dict[str, MemberOut]:
        """Return all members that are out now; see :func:`.reading.out`."""
        return await reading.out(self.connection, self.keys)

    async def records(self, members: Iterable[str]) -> dict[str, Record]:
        """Return what is remembered of those *members* that ever had an outcome."""
        return await reading.records(self.connection, self.keys, members)

    async def lines(self, members: Iterable[str]) -> dict[str, str]:
        """Return id → line of those *members* that the live list has."""
        return await reading.lines(self.connection, self.keys, members)

    async def load_members(self) -> dict[str, str]:
        """Return the whole live list, id → line; empty when there is none."""
        return await reading.load_members(self.connection, self.keys)

    async def raise_counts(self, least: int) -> int:
        """Raise all counts below *least* to it; return how many were."""
        raised = 0
        while found := await scripts.raise_counts(self.connection, self.keys, least, publish.STEP):
            raised += found
        return raised

    async def add_allocations(
        self, worker: str, number: int, allocations: Mapping[str, int]
    ) -> None:
        """Add allocations that were made elsewhere; see :func:`.scripts.add_allocations`."""
        await scripts.add_allocations(self.connection, self.keys, worker, number, allocations)

    async def raise_to_minimum(self, member: str, excluded: Iterable[str] = ()) -> int | None:
        """Lift *member* to the least count of the others not in *excluded*.

        Returns its count, or None when it is no longer listed (it is not added).
        """
        return await scripts.raise_to_minimum(self.connection, self.keys, member, excluded)

    async def counts(self, members: Iterable[str] | None = None) -> dict[str, int]:
        """Return id → allocations, of the whole pool or of *members*, those out included."""
        return await reading.counts(self.connection, self.keys, members)

    async def size(self) -> int:
        """Return the number of members, those out included; 0 when the pool is missing."""
        return await reading.size(self.connection, self.keys)

    async def is_damaged(self) -> bool:
        """Say whether the pool is not there, or members that its lines name, or the lines."""
        return await reading.is_damaged(self.connection, self.keys)

    async def fingerprint(self) -> str | None:
        """Return which list is live."""
        return await reading.fingerprint(self.connection, self.keys)

    async def aclose(self) -> None:
        """Close the connections. Never raises."""
        await self.connection.aclose()
