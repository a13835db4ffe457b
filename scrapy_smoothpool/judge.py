"""Who is out, and what the pool asks and tells whoever decides it.

A judge is told how downloads ended and says which proxies may be used. There is
one for pools that live in one process (``local_judge.py``), whose verdicts may
be one for all sites or one a site, and one for pools in Redis, where all workers
share its verdicts (``shared_judge.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Container, Sequence
from typing import NamedTuple, Protocol

from .outcome import Outcome
from .turns import Steps


class Evidence(NamedTuple):
    """What is known of how a download ended."""

    outcome: Outcome
    site: str = ""
    answered: bool = False
    """The site answered, so the proxy carried the request: success, or neutral with a response."""
    login: bool = False
    """The proxy refused the login."""
    why: str = ""
    """In a few words, without secrets: a status, or the names of an error."""
    rest: float | None = None
    """Seconds for which the site asked not to be asked again (``Retry-After``)."""
    turned_away: bool = False
    """A response said that the site does not want this proxy; so the proxy carried it."""
    check: bool = False
    """It was a check, not a request: see :mod:`scrapy_smoothpool.admission`."""


class Report(NamedTuple):
    """What an outcome changed."""

    stale: bool = False
    blamed: bool = False
    """It counted as a failure of the proxy."""
    penalty: int = 0
    ejected_for: float | None = None
    """Seconds."""
    consecutive: int = 0
    panic: bool = False
    """With this failure the pool began to panic."""
    site: str = ""
    """The one site this is about, "" when it counts everywhere."""


NOTHING = Report()
"""The report of nearly every success."""


class Return(NamedTuple):
    """A proxy that is back in the selection."""

    proxy_id: str
    site: str = ""
    """The one site it is back on, "" when it is back everywhere."""
    admitted: bool = False
    """It had been a candidate: nothing was known of it before."""
    reason: str = ""
    """Why it was out: an outcome."""
    duration: float | None = None
    """Seconds it was out, as far as this worker knows."""


class Standing(NamedTuple):
    """One proxy's health, for reports."""

    out: bool = False
    reason: str = ""
    """Why it is out: an outcome, or that it is unchecked."""
    consecutive: int = 0
    """Failures in a row."""


class Judge(Protocol):
    """Decides who is out.

    ``site`` is "" wherever one verdict counts for all sites (:attr:`by_site` is
    False); the methods that may have to ask Redis may return an awaitable.
    """

    by_site: bool
    """Whether each site has verdicts of its own."""

    @property
    def out(self) -> int:
        """Number of proxies that are out everywhere."""

    @property
    def eligible(self) -> int:
        """Number of proxies that take part when healthy (drained ones do not)."""

    @property
    def epoch(self) -> int:
        """The present epoch, which an assignment carries."""

    async def open(self) -> None:
        """Learn what is known already; called once, when the list is in place."""

    def add(self, proxy_id: str, *, eligible: bool) -> None:
        """Take in one more."""

    def set_eligible(self, proxy_id: str, eligible: bool) -> None:
        """Note whether a member takes part when healthy, which drained ones do not."""

    def remove(self, proxy_id: str) -> None:
        """Forget one that left the list."""

    def settled(self, members: Container[str]) -> Steps[None]:
        """Note that a new list is in force whole, and forget whoever else was known; in steps."""

    def probe(
        self, exclude: Collection[str], site: str, *, may: bool = True
    ) -> str | Awaitable[str | None] | None:
        """Do what is due, and return a proxy that this request has to probe, if any.

        Asked before every pick: must not wait unless there is something to do.

        :param may: this request may probe; one that has failed already should not.
        """

    def take_probes(self, most: int) -> Sequence[str] | Awaitable[Sequence[str]]:
        """Return up to *most* proxies that are due, for checks instead of requests."""

    def is_out(self, proxy_id: str, site: str) -> bool:
        """Say whether a proxy that was picked has to be passed over all the same."""

    def is_current(self, proxy_id: str, epoch: int, site: str) -> bool:
        """Say whether a proxy is in, and has been since *epoch*."""

    def minds(self, site: str) -> bool:
        """Say whether a pick is not just the strategy's matter now.

        False means that there is nothing to put back or to probe and no panic: then
        :meth:`may_pick` and :meth:`probe` need not be asked.
        """

    def may_pick(self, site: str) -> bool:
        """Say whether a request may be tried now; False in a panic when it is not its turn."""

    def nothing_found(self, site: str) -> None:
        """Note that nothing came of the turn."""

    def paced(self, site: str) -> bool:
        """Say whether it is only the panic's walking pace for which a request has to wait."""

    def expect(self, size: int) -> None:
        """Make room for a list of that size, which comes next."""

    @property
    def next_due(self) -> float | None:
        """Seconds until a proxy that is out is due; None when that is not known."""

    def panicking(self, site: str) -> bool:
        """Say whether hardly anything gets through and no more proxies may be put out."""

    def report(self, proxy_id: str, epoch: int, evidence: Evidence, blamed: bool) -> Report | None:
        """Take in an outcome; None when what follows from it will be told later.

        :param blamed: it is the proxy's failure.
        """

    def judged(self) -> Awaitable[None] | None:
        """Return what to await for all that was reported to be judged; None when it is."""

    def is_probing(self, proxy_id: str, epoch: int, site: str) -> bool:
        """Say whether an assignment of *epoch* is a probe."""

    def unsent(self, proxy_id: str, site: str, *, usable: bool = True) -> None:
        """Note that a probe never went out: the next request is one.

        :param usable: False when this worker cannot use the proxy at all.
        """

    def standing(self, proxy_id: str) -> Standing:
        """Return a proxy's health."""

    async def refresh(self) -> None:
        """Bring :meth:`standing` up to date for a report."""

    async def close(self) -> None:
        """Deliver what was not delivered yet. Never raises."""
