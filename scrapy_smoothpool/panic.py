"""What to do when hardly anything gets through and no more proxies may be put out.

A rule that calls every answer a ban, a site that closed, a network that is gone:
failure upon failure, and the limits of ejection (rule 6) keep the rest of the
pool in use. Then the pool *panics*: it goes on at a walking pace, or not at all,
until something succeeds. The idea is Envoy's panic threshold.

Pure; the clock is injected (seconds, monotonic).
"""

from __future__ import annotations

from collections.abc import Callable

LEAST_BARREN = 20
"""Failures without a success between them, pool-wide, before it is a panic."""
PACE = 0.05
"""Seconds between two picks in a panic."""
PAUSE = 5.0
"""Seconds between two picks in a panic when the choice is to wait."""


class Panic:
    """Whether the pool panics, and who may pick meanwhile."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._barren = 0
        self._next = 0.0
        self.on = False

    def success(self) -> None:
        """Note that something got through: no panic."""
        self._barren = 0
        self.on = False

    def failure(self, *, spared: bool, size: int) -> bool:
        """Note a failure; True when the panic begins with it.

        :param spared: it would have put its proxy out, had the limits allowed it.
        :param size: proxies in the pool; each should have had its chance.
        """
        self._barren += 1
        if self.on or not spared or self._barren < max(LEAST_BARREN, 2 * size):
            return False
        self.on = True
        return True

    def may_pick(self, wait: bool) -> bool:
        """Say whether a request may be tried now; only asked while the pool panics.

        :param wait: the choice is to wait; even then one in a while must try, or
            nobody would find out that it is over.
        """
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + (PAUSE if wait else PACE)
        return True

    def give_turn_back(self) -> None:
        """Note that nothing came of the turn that :meth:`may_pick` gave."""
        self._next = 0.0

    @property
    def between_turns(self) -> bool:
        """Whether the last turn found a proxy: then whoever found none came between two turns.

        Not a look at the clock: the next turn may come while one asks why it had none.
        """
        return self.on and self._next > 0.0
