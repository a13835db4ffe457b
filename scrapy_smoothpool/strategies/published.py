"""The list that a worker stands for in a shared pool, published again whenever Redis loses it.

A missing key is not an empty pool: a server that was flushed, or came back without its data,
is given the list anew, with counts no lower than the least that this worker has seen there. If
another worker was first and had seen less, the counts are raised to that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ..store.publish import PublishResult
from ..store.shared_pool import SharedPool

logger = logging.getLogger(__name__)

_MISSING = "Pool %r is missing in Redis, or part of it; publishing it again"
_GRACE = 0.5
"""Seconds for which a worker without a list of its own lets others be first."""
_MOST = 2**53
"""From there on a count no longer counts."""


class Published:
    """What a worker published, or would.

    :param go_on: raises when publishing is no longer wanted.
    :param knows: says whether the worker knows any members, for one that brought no list.
    :param known: returns id → line of all that it knows, and their fingerprint.
    """

    def __init__(
        self,
        shared: SharedPool,
        pool: str,
        *,
        start_count: int,
        candidates: bool,
        go_on: Callable[[], object],
        knows: Callable[[], bool],
        known: Callable[[], Awaitable[tuple[dict[str, str], str]]],
    ) -> None:
        self._shared = shared
        self._pool = pool
        self._start_count = start_count
        self._candidates = candidates
        self._go_on = go_on
        self._knows = knows
        self._known = known
        self.lines: dict[str, str] | None = None
        """None: it joined the pool as it stood."""
        self._fingerprint = ""
        self._lock = asyncio.Lock()
        self._least = 0

    async def publish(self, lines: dict[str, str], fingerprint: str) -> None:
        """Publish a list, and stand for it from now on."""
        async with self._lock:
            result = await self._publish(lines, fingerprint)
            # Only now: should it fail, it is the former list that is mended.
            former, self.lines, self._fingerprint = self.lines, lines, fingerprint
        if not result.replaced:
            return
        if former is None:
            logger.warning(
                "Pool %r held another list of %d proxies, which this worker's list of %d "
                "replaces for every worker; if both are meant, give them different names "
                "with SMOOTHPOOL_POOL",
                self._pool,
                result.replaced,
                len(lines),
            )
        else:  # a reload, which is meant to
            logger.info(
                "Pool %r: a list of %d proxies takes the place of one of %d, for every worker",
                self._pool,
                len(lines),
                result.replaced,
            )

    async def _publish(self, lines: dict[str, str], fingerprint: str) -> PublishResult:
        return await self._shared.publish(
            lines,
            fingerprint,
            max(self._start_count, self._least),
            candidates=self._candidates,
            go_on=self._go_on,
        )

    async def saw(self, least: float) -> None:
        """Note the least of the pool's counts, and raise the counts if it was higher before."""
        if self._least <= least < _MOST:
            self._least = int(least)
        elif least < self._least:
            raised = await self._shared.raise_counts(self._least)
            logger.info(
                "Pool %r had counts below %d, which was the least of them before: %d are raised",
                self._pool,
                self._least,
                raised,
            )

    async def mend(self) -> bool:
        """Publish the list again if the pool is gone, or some of its members or lines are.

        What Redis still has of the list counts, whoever published it; then what this worker did;
        for one that joined, what it knows. False when there is nothing that could be missing.
        """
        if self.lines is None and not self._knows():
            return False
        if not await self._shared.is_damaged():
            return True
        if self.lines is None or await self._shared.fingerprint() not in (None, self._fingerprint):
            await asyncio.sleep(_GRACE)
        async with self._lock:
            # Or it was mended meanwhile, by another request or worker.
            if await self._shared.is_damaged():
                logger.warning(_MISSING, self._pool)
                await self._publish(*await self._best_list())
        return True

    async def _best_list(self) -> tuple[dict[str, str], str]:
        fingerprint = await self._shared.fingerprint()
        if self.lines is not None and fingerprint in (None, self._fingerprint):
            return self.lines, self._fingerprint
        kept = await self._shared.load_members()
        if kept and fingerprint:
            return kept, fingerprint
        if self.lines is not None:
            return self.lines, self._fingerprint
        return await self._known()
