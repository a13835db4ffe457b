"""Picks that are wanted at the same moment share one round trip.

One call is in flight at a time; whoever wants a pick meanwhile is in the next one.
So a worker needs one connection, puts bounded load on the server, and in an outage
all wait for one timeout, not each for its own. (Measured: at 16 requests at a time a
pick costs a sixth of a call of its own.)

With *ahead* picks are fetched before they are wanted, for a distant server. They are
counted when fetched; a worker that dies takes them along.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from scrapy_smoothpool.exceptions import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Sequence

MOST = 64
"""Picks in one call."""
_TURNS = 8
"""Turns of the event loop for which a call waits for more who want a pick. A call costs a worker
0.3 ms whatever it asks for, and those who got their picks together want the next ones shortly
after one another; in a loop that has nothing else to do the turns take a tenth of a
millisecond."""


class GatheredPicks:
    """Hands out picks, fetched together.

    :param fetch: returns up to that many picks; fewer only from an empty pool.
    :param ahead: picks to keep in hand, 0 to fetch only what is wanted.
    """

    def __init__(self, fetch: Callable[[int], Awaitable[Sequence[str]]], ahead: int = 0) -> None:
        self._fetch = fetch
        self._ahead = ahead
        self._wanted: deque[asyncio.Future[str | None]] = deque()
        # Fetched ahead, or for somebody who did not wait for it.
        self._in_hand: deque[str] = deque()
        self._fetching: asyncio.Task[None] | None = None

    def take(self) -> str | asyncio.Future[str | None]:
        """Return a pick that is in hand, or a future of one.

        The future's result is None for an empty pool; it raises what fetching
        raised. Cancelling it harms nobody else.
        """
        if self._in_hand:
            found = self._in_hand.popleft()
            if len(self._in_hand) < self._ahead / 2:
                self._go()
            return found
        future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._wanted.append(future)
        self._go()
        return future

    def withdraw(self, gone: Container[str]) -> None:
        """Drop picks in hand whose proxy was put out or removed."""
        if self._in_hand:
            self._in_hand = deque(pick for pick in self._in_hand if pick not in gone)

    def _go(self) -> None:
        # A task begins one turn of the loop later: who wants a pick in this turn is in it.
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._keep_fetching())

    async def _keep_fetching(self) -> None:
        try:
            while True:
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
                batch = self._next_batch()
                lacking = max(0, self._ahead - len(self._in_hand))
                if not batch and lacking <= self._ahead / 2:
                    return
                if not await self._fetch_for(batch, min(lacking, MOST)) and not self._wanted:
                    return  # who comes next will ask
        finally:
            self._fetching = None

    def _next_batch(self) -> list[asyncio.Future[str | None]]:
        batch: list[asyncio.Future[str | None]] = []
        while self._wanted and len(batch) < MOST:
            future = self._wanted.popleft()
            if not future.done():  # cancelled meanwhile
                batch.append(future)
        return batch

    async def _fetch_for(self, batch: list[asyncio.Future[str | None]], more: int) -> bool:
        """Fetch for those who wait, and some ahead; False when there is nothing to be had."""
        asked = len(batch) + more
        try:
            picks = deque(await self._fetch(asked))
        except asyncio.CancelledError:
            for future in (*batch, *self._wanted):
                future.cancel()
            raise
        except Exception as error:
            for future in batch:
                if not future.done():
                    # Each its own: a traceback grows wherever an exception is raised.
                    copy = type(error)(*error.args) if isinstance(error, StoreError) else error
                    future.set_exception(copy)
            return False
        full = len(picks) == asked
        for future in batch:
            if not future.done():
                future.set_result(picks.popleft() if picks else None)
        self._in_hand.extend(picks)
        return full
