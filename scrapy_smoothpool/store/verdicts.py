"""What a worker tells a shared pool of its outcomes, and what the pool makes of them.

The judging itself is :mod:`scrapy_smoothpool.health`'s, once more in Lua: shared
pools are judged where their counts lie, by the server's clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

ACTIVE, EJECTED, PROBING = "active", "ejected", "probing"
"""The states, as :class:`scrapy_smoothpool.health.State` and the scripts write them."""
UNCHECKED = "unchecked"
"""The reason of a member that is out and of which nothing is known: a candidate."""
NO_REASON = "-"

_RECORD = re.compile(r"([a-z]+) (\d+) (\d+) ([01-]+) (\d+) (\d+) (.*)", re.DOTALL)
_MAX_MS = 2**50


class Kind(StrEnum):
    """What an outcome says of the proxy."""

    SUCCESS = "success"
    PASSED = "passed"
    """Answered without being a success: ends a probe like one, says nothing otherwise."""
    FAILED = "failed"
    """A failure that may not be the proxy's fault: a ban, a comparison's verdict."""
    FAULTY = "faulty"
    """A failure that is the proxy's fault beyond doubt."""
    LOGIN = "login"
    """Such a failure, and out at once for the longest time: the proxy refused the login."""
    UNCLEAR = "unclear"
    """Says nothing; if it was a probe, another is sent in a while."""
    UNSENT = "unsent"
    """The request never went out; if it was a probe, the next request is one."""


@dataclass(frozen=True, slots=True)
class HealthRules:
    """The settings by which outcomes are judged. Every worker of a pool has the same.

    :param eject_after: failures in a row that put a proxy out; 0 means never.
    :param eject_time: seconds of the first ejection.
    :param eject_time_max: seconds of the longest.
    :param max_percent: share of the pool that uncertain failures may put out, 0 to 100.
    :param window: :data:`scrapy_smoothpool.health.WINDOW`; this and the next three are
        handed in, so that both state machines have them from one place.
    :param least: :data:`scrapy_smoothpool.health.LEAST`
    :param poor: :data:`scrapy_smoothpool.health.POOR`
    :param fall_back: :data:`scrapy_smoothpool.health.FALL_BACK`
    """

    eject_after: int
    eject_time: float
    eject_time_max: float
    max_percent: int
    window: int
    least: int
    poor: int
    fall_back: int

    def arguments(self) -> list[int]:
        """Return what the script takes, times in ms."""
        return [
            self.eject_after,
            milliseconds(self.eject_time),
            milliseconds(max(self.eject_time, self.eject_time_max)),
            self.max_percent,
            self.window,
            self.least,
            self.poor,
            self.fall_back,
        ]


class Happened(NamedTuple):
    """One outcome, to be judged."""

    proxy_id: str
    epoch: int
    """The pool's at the moment of the assignment."""
    kind: Kind
    reason: str = ""
    """One word without secrets: why it is out, should this put it out."""
    jitter: float = 1.0
    """Factor by which an ejection is drawn out, 1 or more; drawn by the worker."""


class Delivery(NamedTuple):
    """What tells a batch of outcomes from all others, when it has to be sent again."""

    worker: str
    """A token, random and the same for all deliveries of a worker."""
    number: int
    """Greater than that of the worker's deliveries before; the same when sent again."""


class Judged(NamedTuple):
    """What one outcome led to."""

    stale: bool
    """It changed nothing: too late, or the proxy is no member (any more)."""
    state: str
    """The member's state now; empty when it is none."""
    consecutive: int
    """Failures in a row, this one included."""
    ejected_for: float | None = None
    """Seconds of the ejection this failure caused, None when it caused none."""
    spared: bool = False
    """It would have been ejected, but too much of the pool is out already."""
    restored: bool = False
    """A probe got through: the member is back in rotation."""


IN_ROTATION = Judged(stale=False, state=ACTIVE, consecutive=0)
"""What nearly every success leads to."""


class Judgement(NamedTuple):
    """What a batch of outcomes led to, and how the pool stands now."""

    epoch: int
    out: int
    """Members that are ejected or being probed."""
    members: int
    outcomes: list[Judged]
    """In the order of the batch."""
    unchecked: int = 0
    """Members that are out since they have passed no probe yet."""

    @property
    def checked(self) -> int:
        """Members but those: the pool as the limits of ejection see it."""
        return self.members - self.unchecked


class Probes(NamedTuple):
    """Members to be probed, and how the pool stands now."""

    epoch: int
    """The pool's now: that of the assignments made next."""
    leased: dict[str, str]
    """Id → why it was put out, of those the caller is to probe, the longest due first."""
    next_wake: float | None
    """Seconds until the next step of a member that is not due yet; None when there is none."""
    put_out: list[str]
    """Ids of those out now that were put out after the epoch asked about, oldest first."""
    complete_until: int
    """Epoch up to which ``put_out`` is complete; below ``epoch``, ask again from here."""
    whole: bool
    """False: a key was lost, the pool has to be published again."""
    members: int = 0
    unchecked: int = 0
    """Members that are out since they have passed no probe yet."""

    @property
    def checked(self) -> int:
        """Members but those: the pool as the limits of ejection see it."""
        return self.members - self.unchecked


class MemberOut(NamedTuple):
    """A member that is out of rotation."""

    state: str
    reason: str
    wake: float
    """Seconds until its next step, by the server's clock; 0 when it is due."""


class Record(NamedTuple):
    """What is remembered of a member's outcomes."""

    state: str = ACTIVE
    epoch: int = 0
    """In which it was last put out."""
    consecutive: int = 0
    """Failures in a row."""
    history: str = ""
    """The last outcomes, ``1`` a failure, the oldest first."""
    doublings: int = 0
    """By how many the next ejection is longer than the first."""
    active_since: int = 0
    """Server time of its last return, ms; 0 when it was never out."""
    reason: str = ""
    """Why it was last put out."""

    @classmethod
    def parse(cls, packed: str | None) -> Record | None:
        """Read a record as it lies in Redis; None when there is none that can be read."""
        found = _RECORD.fullmatch(packed or "")
        if not found:
            return None
        state, epoch, consecutive, history, doublings, active_since, reason = found.groups()
        return cls(
            state,
            int(epoch),
            int(consecutive),
            "" if history == NO_REASON else history,
            int(doublings),
            int(active_since),
            "" if reason == NO_REASON else reason,
        )


class VerdictStore(Protocol):
    """Where the verdicts are kept. All methods may raise StoreError or StoreUnavailable."""

    async def report_outcomes(
        self,
        rules: HealthRules,
        outcomes: Sequence[Happened],
        delivery: Delivery | None = None,
    ) -> Judgement:
        """Judge outcomes in their order; those of a delivery once, however often it is sent."""

    async def take_probe(
        self,
        probe_timeout: float,
        since_epoch: int = 0,
        wanted: int = 1,
        excluded: Collection[str] = (),
        *,
        unchecked: bool = False,
    ) -> Probes:
        """Lease members that are due, unchecked ones if asked, and tell how the pool stands."""

    async def out(self) -> dict[str, MemberOut]:
        """Return all members that are out."""

    def withdraw(self, gone: Collection[str]) -> None:
        """Drop picks in hand of members that were put out."""


def milliseconds(seconds: float) -> int:
    """Return *seconds* as the scripts take them: whole milliseconds, at least one."""
    return max(1, round(min(seconds * 1000, _MAX_MS)))
