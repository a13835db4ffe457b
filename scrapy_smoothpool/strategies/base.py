"""What a strategy is, and how one is found by name.

A strategy decides which proxy comes next. It knows ids and weights, nothing of
Scrapy, requests or outcomes: the pool tells it when to penalise, eject or
restore a proxy. Every strategy passes the suite in ``tests/test_contract.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

from ..penalties import PenaltyRule
from ..proxy import Proxy
from ..store.verdicts import VerdictStore
from ..turns import Turns


@dataclass(frozen=True, slots=True)
class StrategyOptions:
    """Everything a strategy may be configured with; each takes what it needs."""

    pool: str = "default"
    key_prefix: str = "smoothpool"
    redis_url: str | None = field(default=None, repr=False)
    redis_params: Mapping[str, Any] | None = field(default=None, repr=False)
    redis_setting: str = "SMOOTHPOOL_REDIS_URL"
    """Where ``redis_url`` was given, for messages."""
    redis_start_timeout: float = 0.0
    """Seconds to wait at start for a Redis that cannot be reached."""
    carry_on: bool = False
    """Pick alone while Redis is away, instead of letting requests wait."""
    start_count: int = 0
    max_fails: int = 3
    penalty: PenaltyRule = PenaltyRule.CONSECUTIVE
    weight_scale: int | None = None
    """None means "auto"."""
    look_ahead: int = 0
    """Picks to fetch ahead from a distant store."""
    admission: bool = False
    """Newcomers are candidates until they have passed a check."""
    turns: Turns = field(default_factory=Turns, repr=False, compare=False)
    """Does what takes long over a long list."""


class WeightView(NamedTuple):
    """A proxy's weights as a user wrote them, scaling taken out again."""

    weight: int
    effective_weight: float


@runtime_checkable
class Strategy(Protocol):
    """Chooses the next proxy of a pool.

    ``pick``, ``restore`` and ``lookup`` may return their result or an awaitable
    of it, so that strategies without I/O cost no suspension.
    """

    shared: ClassVar[bool]
    """Whether the pool lives in Redis and other workers take part in it."""
    by_site: ClassVar[bool]
    """Whether it can keep a sequence for each site (``SMOOTHPOOL_SCOPE = "site"``)."""

    @classmethod
    def from_options(cls, options: StrategyOptions) -> Self:
        """Build the strategy. Raises :exc:`~scrapy_smoothpool.exceptions.SettingsError`."""

    def check(self, proxies: Sequence[Proxy]) -> None:
        """Refuse a list that this strategy cannot work with.

        A long list comes in pieces, each with the list's first proxy at its head.

        Raises :exc:`~scrapy_smoothpool.exceptions.SettingsError`.
        """

    def reach(self) -> None:
        """Refuse, at start and without awaiting, a store that does not answer.

        May block for at most a second (one PING). Raises
        :exc:`~scrapy_smoothpool.exceptions.SettingsError`.
        """

    def describe(self) -> str:
        """Return a short text for the log, such as the Redis host; never a login."""

    async def open(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        """Start with *proxies* and return those that the pool consists of."""

    def pick(
        self, exclude: Collection[str] = (), site: str = ""
    ) -> str | Awaitable[str | None] | None:
        """Return the id of the next proxy, None when none is eligible.

        Ejected and drained proxies are never returned, those in *exclude* not by
        this call. With a *site*, the next of that site's own sequence.
        """

    def lookup(self, proxy_id: str) -> Proxy | Awaitable[Proxy | None] | None:
        """Return the proxy behind an id that the pool does not know, None if nobody does."""

    async def members(self) -> Sequence[Proxy]:
        """Return the proxies that the pool consists of now."""

    def penalize(self, proxy_id: str, consecutive: int, site: str | None = None) -> int:
        """Lower a proxy's standing after its *consecutive*-th failure in a row.

        On one *site*, or everywhere. Returns by how much, 0 when this strategy or
        rule does not penalise.
        """

    def eject(self, proxy_id: str, site: str | None = None) -> None:
        """Take a proxy out of the selection, of one site or everywhere, until :meth:`restore`.

        May name one that only the :meth:`reload` called next, or under way, will list.

        The two are independent: one that is out everywhere and on a site needs
        both restored to be picked there.
        """

    def restore(
        self, proxy_id: str, site: str | None = None, *, gently: bool = True
    ) -> Awaitable[None] | None:
        """Let an ejected proxy back in.

        :param gently: it climbs from nothing; False for one that has not failed.
        """

    def forget(self, site: str) -> None:
        """Drop what is kept of a site."""

    @property
    def verdicts(self) -> VerdictStore | None:
        """Where all workers share their verdicts; None to be judged in this process.

        Where there is one, :meth:`eject` and :meth:`restore` are not called for
        health's sake: the shared rotation leaves out who is out.
        """

    async def reload(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        """Replace the list by difference and return the proxies the pool now consists of.

        Picks, penalties and the like go on meanwhile. A list that is long is worked through in
        steps (``StrategyOptions.turns``); a reload that raises leaves the list as it was.
        """

    def weights(self) -> Mapping[str, WeightView]:
        """Return the weights of all proxies, for reports."""

    async def close(self) -> None:
        """Release connections. Never raises."""


StrategyFactory = Callable[[StrategyOptions], Strategy]
