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

_MISSING = "Pool %r is missing in Redis; publishing it again"
_GRACE = 0.5
"""Seconds for which a worker without a list of its own lets others be first."""
_MOST = 2**53
"""From there on a count no longer counts."""


class Published:
    """What a worker published, or would.

    :param known: returns id → line of all members that the worker knows, for one that
        brought no list.
    """

    def __init__(
        self,
        shared: SharedPool,
        pool: str,
        *,
        start_count: int,
        candidates: bool,
        known: Callable[[], Awaitable[tuple[dict[str, str], str]]],
    ) -> None:
        self._shared = shared
        self._pool = pool
        self._start_count = start_count
        self._candidates = candidates
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

    async def mend(self) -> None:
        """Publish the list again if the pool is gone."""
        if await self._shared.size():
            return
        if self.lines is None:
            await asyncio.sleep(_GRACE)
        async with self._lock:
            if await self._shared.size():  # mended meanwhile, by another request or worker
                return
            lines, fingerprint = self.lines, self._fingerprint
            if lines is None:
                lines, fingerprint = await self._known()
                if not lines:
                    return  # nobody has published anything yet
            logger.warning(_MISSING, self._pool)
            await self._publish(lines, fingerprint)

    async def mend_in_part(self) -> None:
        """Publish the list again where some members or lines got lost.

        That another worker replaced the list is no reason to bring ours back.
        """
        if self.lines is None or self._lock.locked():
            return
        async with self._lock:
            if await self._shared.fingerprint() in (None, self._fingerprint):
                logger.warning(_MISSING, self._pool)
                await self._publish(self.lines, self._fingerprint)
