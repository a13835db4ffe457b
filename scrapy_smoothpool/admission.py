"""Admission: proxies of unknown quality prove themselves before a request may use them.

A proxy that was never checked is a candidate; one that failed becomes due again
after a while. Both are checked here, a bounded number at a time, while the crawl
already runs on those that passed. Whatever asks the pool for due proxies does so
in turns of about a second when there are none, and at once when a check ends.

Works on any reactor and without one: nothing is awaited but what Scrapy's own
helpers make awaitable everywhere.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from .exceptions import StoreError
from .failures import describe
from .judge import Evidence
from .outcome import Outcome

if TYPE_CHECKING:
    from .pool import Assignment
    from .proxy import Proxy

logger = logging.getLogger(__name__)

IDLE = 1.0
"""Seconds after which a pool that had no due proxy is asked again."""
STOP_TIME = 0.4
"""Seconds that checks have for ending when they are stopped."""
_REASONS = 6  # kinds of failure named in the summary


class Candidates(Protocol):
    """What admission needs of a pool."""

    def take_probes(self, most: int) -> Sequence[Assignment] | Awaitable[Sequence[Assignment]]:
        """Lease up to *most* proxies that are due; empty if none is."""

    def checked(self, proxy_id: str, epoch: int, evidence: Evidence) -> object:
        """Book what a check found; what is awaitable is awaited."""

    def proxy(self, proxy_id: str) -> Proxy | None:
        """Return a proxy of the pool, None if it has left."""


Check = Callable[["Proxy", str], Awaitable[Evidence]]
"""(proxy, URL) → what is known of it; ``answered`` says that it passed."""


def check_url(setting: bool | str, request_url: str) -> str:
    """Return the URL that checks are to fetch.

    :param setting: ``SMOOTHPOOL_ADMISSION``: a URL, or True for the robots.txt of
        the site of *request_url*, that of the first page.
    """
    if isinstance(setting, str):
        return setting
    parts = urlsplit(request_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/robots.txt"


class Admission:
    """Keeps checks running for as long as the crawl does.

    :param check: runs one check, :meth:`Checker.check
        <scrapy_smoothpool.checker.Checker.check>`.
    :param concurrency: most checks at a time.
    """

    def __init__(self, pool: Candidates, check: Check, *, concurrency: int) -> None:
        self._pool = pool
        self._check = check
        self._concurrency = concurrency
        self._url = ""
        self._loop: Deferred[None] | None = None
        self._checks: set[Deferred[None]] = set()
        self._stopping = False
        self._taking = False
        self._next_ask = 0.0
        self._wake = _Bell()
        self._all_ended = _Bell()
        self._first: _Round | None = _Round()
        self._faults: set[str] = set()

    @property
    def first_round(self) -> bool:
        """Whether some proxies have not been checked for the first time."""
        return self._first is not None

    @property
    def running(self) -> int:
        """Number of checks under way."""
        return len(self._checks)

    def start(self, url: str) -> None:
        """Begin to check proxies by fetching *url*; nothing once it runs, or was stopped."""
        if self._loop is not None or self._stopping:
            return
        self._url = self._url or url
        loop = self._loop = deferred_from_coro(self._run())
        loop.addBoth(self._loop_ended)

    async def stop(self) -> None:
        """Cancel all checks and return when they have ended, within half a second.

        What a cancelled check was about to find is not reported: its lease runs out.
        """
        self._stopping = True
        for check in list(self._checks):
            check.cancel()
        # What is being leased just now must reach the pool, which gives it back.
        if self._loop is not None and not self._taking:
            self._loop.cancel()
        if self._loop is not None or self._checks:
            await self._all_ended.wait(STOP_TIME)

    # The loop

    async def _run(self) -> None:
        while not self._stopping:
            free = self._concurrency - len(self._checks)
            wait = self._next_ask - time.monotonic()
            if free > 0 and wait <= 0:
                taken = await self._take(free)
                if self._stopping:
                    return
                if self._first is not None and taken is not None:
                    self._first.taken(taken)
                for assignment in taken or ():
                    self._begin(assignment)
                wait = IDLE
                self._next_ask = 0.0 if taken else time.monotonic() + IDLE
                self._summarize()
            await self._wake.wait(wait if 0 < wait < IDLE else IDLE)

    async def _take(self, most: int) -> Sequence[Assignment] | None:
        """Return leases; none is not the same as None, a pool that could not tell."""
        self._taking = True
        try:
            taken = self._pool.take_probes(most)
            return await taken if isinstance(taken, Awaitable) else taken
        except StoreError:
            return None  # the connection to Redis says what there is to say
        except Exception:
            self._fault("The pool gave no proxies to check")
            return None
        finally:
            self._taking = False

    def _begin(self, assignment: Assignment) -> None:
        check = deferred_from_coro(self._one(assignment))
        self._checks.add(check)
        check.addBoth(self._check_ended, check)

    async def _one(self, assignment: Assignment) -> None:
        proxy_id, epoch, _ = assignment
        try:
            proxy = self._pool.proxy(proxy_id)
            if proxy is None:
                evidence = Evidence(Outcome.NEUTRAL, why="it has left the pool")
            else:
                evidence = await self._check(proxy, self._url)
        except Exception as error:
            # Without its text, which may hold a login.
            evidence = Evidence(Outcome.NEUTRAL, why=describe(error))
            if not self._stopping:  # then it is how a cancelled Deferred ends
                logger.error("The check of proxy %s failed: %s", proxy_id, evidence.why)
        if self._stopping:
            return
        if not evidence.answered:
            logger.debug("Admission: %s failed: %s", proxy_id, evidence.why)
        try:
            booked = self._pool.checked(proxy_id, epoch, evidence)
            if isinstance(booked, Awaitable):
                await booked
        except Exception:
            self._fault("The pool did not book a check")
        # Not before: while a proxy that passed is not back yet, the pool only seems empty.
        if self._first is not None:
            self._first.ended(proxy_id, evidence)

    def _check_ended(self, result: object, check: Deferred[None]) -> None:
        # Returns nothing, so a cancelled check leaves no unhandled error behind.
        self._checks.discard(check)
        self._summarize()
        self._wake.ring()
        self._tell_all_ended()

    def _loop_ended(self, result: object) -> None:
        self._loop = None
        error = getattr(result, "value", None)
        if isinstance(error, Exception) and not self._stopping:
            logger.error("The admission checks broke off: %s", describe(error))
        self._tell_all_ended()

    def _tell_all_ended(self) -> None:
        if self._loop is None and not self._checks:
            self._all_ended.ring()

    def _fault(self, what: str) -> None:
        if self._stopping:
            return
        # In full once; what is broken is so at every turn.
        logger.log(
            logging.DEBUG if what in self._faults else logging.ERROR,
            "%s; the checks go on",
            what,
            exc_info=what not in self._faults,
        )
        self._faults.add(what)

    def _summarize(self) -> None:
        if self._first is not None and self._first.over:
            self._first.log(self._url)
            self._first = None


class _Round:
    """The first check of each proxy, for the summary."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._open: set[str] = set()
        self._complete = False
        self._passed = 0
        self._reasons: Counter[str] = Counter()

    def taken(self, assignments: Sequence[Assignment]) -> None:
        """Note which proxies are checked now. A second time for one of them ends the round."""
        if not assignments:
            self._complete = bool(self._seen)
        for assignment in assignments:
            self._complete |= assignment.proxy_id in self._seen
            if not self._complete:
                self._seen.add(assignment.proxy_id)
                self._open.add(assignment.proxy_id)

    def ended(self, proxy_id: str, evidence: Evidence) -> None:
        """Note what the check of a proxy found."""
        if proxy_id not in self._open:
            return
        self._open.remove(proxy_id)
        if evidence.answered:
            self._passed += 1
        else:
            self._reasons[_in_words(evidence)] += 1

    @property
    def over(self) -> bool:
        """Whether every proxy was checked once."""
        return self._complete and not self._open

    def log(self, url: str) -> None:
        """Say in one line how it went."""
        failed = self._reasons.total()
        named = [f"{count} {reason}" for reason, count in self._reasons.most_common(_REASONS)]
        rest = failed - sum(count for _, count in self._reasons.most_common(_REASONS))
        if rest:
            named.append(f"{rest} for other reasons")
        total, reasons = self._passed + failed, ", ".join(named)
        if not failed:
            logger.info("Admission: all %d proxies passed", total)
        elif self._passed:
            logger.info(
                "Admission: %d of %d proxies passed, %d failed (%s); the failed are tried again",
                self._passed,
                total,
                failed,
                reasons,
            )
        else:
            logger.warning(
                "Admission: none of %d proxies passed (%s), so no request can go out; they are "
                "tried again (SMOOTHPOOL_ADMISSION names what is fetched, now from %s)",
                total,
                reasons,
                urlsplit(url).netloc.rpartition("@")[2],
            )


_WORDS = (
    (re.compile(r"\bstatus (\d+)"), r"answered \1"),
    (re.compile(r"CannotResolveHost"), "could not be resolved"),
    (re.compile(r"Timeout|TimedOut"), "timed out"),
    (re.compile(r"ConnectionRefusedError\)|^DownloadConnectionRefusedError$"), "refused"),
)


def _in_words(evidence: Evidence) -> str:
    """Return why a check failed, in words that go with a number of proxies."""
    if evidence.login:
        return "refused the login"
    for pattern, words in _WORDS:
        found = pattern.search(evidence.why)
        if found:
            return found.expand(words)
    return f"ended in {evidence.why}"


class _Bell:
    """Something to wait for, with a limit, on any reactor and without one."""

    def __init__(self) -> None:
        self._rung = False
        self._waiter: Deferred[None] | None = None

    def ring(self) -> None:
        """Let the waiter go on, or the next one if nobody waits."""
        self._rung = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.called:
            waiter.callback(None)

    async def wait(self, most: float) -> None:
        """Wait until it rings, or *most* seconds."""
        if not self._rung:
            waiter: Deferred[Any] = Deferred()
            self._waiter = waiter
            timer = call_later(most, self.ring)
            try:
                await cast("Awaitable[None]", maybe_deferred_to_future(waiter))
            finally:
                timer.cancel()
                self._waiter = None
        self._rung = False
