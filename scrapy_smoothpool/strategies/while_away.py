"""What a worker of a shared pool does while Redis is away, if it is not to wait.

It carries on by itself, with nginx's smooth sequence over the proxies that were in rotation
when it last heard, and keeps account of what it picks. The counts of the pool are added to
when Redis is back: they say how often each proxy was allocated, whoever did it.

Each worker begins at a place of its own, so that fifty do not all begin with the same proxy.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice

from ..store.shared_pool import SharedPool
from ..turns import Steps
from .smooth_wrr import SmoothWeightedRoundRobin

_PLACED = 64
"""Proxies placed in one step."""


_HANDED_OVER = 250
"""Proxies whose allocations are handed over in one call."""


class WhileAway:
    """A sequence of one worker's own, and its account.

    :param worker: a token, random and the same for the life of a worker.
    """

    def __init__(self, shared: SharedPool, worker: str) -> None:
        self._shared = shared
        self._worker = worker
        self._sequence = SmoothWeightedRoundRobin({})
        self._owed: Counter[str] = Counter()
        # Sent, not answered: it may have been carried out, so it is sent again as it was, under
        # the same number, until it is answered.
        self._in_doubt: dict[str, int] = {}
        self._number = 0
        self.active = False
        """Whether picks are made here now."""

    def begin(self, proxy_ids: Sequence[str], out: Collection[str]) -> Steps[None]:
        """Make the sequence, of all but those that are *out*; in steps."""
        sequence = SmoothWeightedRoundRobin({})
        first = random.randrange(len(proxy_ids)) if proxy_ids else 0
        for number, name in enumerate((*proxy_ids[first:], *proxy_ids[:first])):
            if name not in out:
                sequence.add(name, 1)
            if not number % _PLACED:
                yield
        self._sequence = sequence
        self.active = True

    def __len__(self) -> int:
        return len(self._sequence)

    def pick(self, exclude: Collection[str] = ()) -> str | None:
        """Return the next proxy and note that it was picked."""
        found = self._sequence.select(exclude)
        if found is not None:
            self._owed[found] += 1
        return found

    @property
    def owed(self) -> int:
        """Allocations that the pool's counts do not have yet."""
        return self._owed.total() + sum(self._in_doubt.values())

    async def hand_over(self) -> None:
        """Add what was picked to the pool's counts, each of it once.

        Raises StoreError when Redis cannot take it; what is left is kept.
        """
        while True:
            if not self._in_doubt:
                self._in_doubt = dict(islice(self._owed.items(), _HANDED_OVER))
                for name in self._in_doubt:
                    del self._owed[name]
                self._number += 1
            if not self._in_doubt:
                return
            await self._shared.add_allocations(self._worker, self._number, self._in_doubt)
            self._in_doubt = {}
