"""An outage costs one timeout, not one per request.

Once a server has failed to answer, all calls fail at once with what it said, but for
one that tries again after a pause. When that one is answered, all go through.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from scrapy_smoothpool.exceptions import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

PAUSE = 0.5
"""Seconds from one failed try to the next; a try against a server that hangs takes 1 s more."""

REPEATED = 60.0
"""Seconds after which what a person has to mend is told again."""
_MOST_TOLD = 100


class Breaker:
    """Lets one call at a time try while a server does not answer.

    Says so in the log, once an outage, and when it is over; and once a minute what a person
    has to mend. Not before :attr:`tells` is set: a start that fails is told by whoever starts.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._error: StoreUnavailable | None = None
        self._since = 0.0
        self._next_try = 0.0
        self._trying = False
        self._answered = False
        self._told: dict[str, float] = {}  # text → when
        self.tells = False

    @property
    def answered(self) -> bool:
        """Whether the server has ever answered."""
        return self._answered

    def admit(self) -> bool:
        """Return whether this call is the one that tries again.

        :raises StoreUnavailable: when it has to fail, since the last one did.
        """
        if self._error is None:
            return False
        if self._trying or self._clock() < self._next_try:
            raise StoreUnavailable(*self._error.args)
        self._trying = True
        return True

    def refusal(self) -> StoreUnavailable | None:
        """Return what to raise while the server does not answer, None while it does."""
        return None if self._error is None else StoreUnavailable(*self._error.args)

    def succeeded(self) -> None:
        """Note that the server answered."""
        self._answered = True
        if self._error is not None:
            self._back()

    def failed(self, error: StoreError) -> None:
        """Note that the server did not answer, or answered with what waiting does not mend."""
        if isinstance(error, StoreUnavailable):
            now = self._clock()
            self._next_try = now + PAUSE
            if self._error is None:
                self._since = now
                if self.tells:
                    logger.warning("%s; trying again every %g s", error, PAUSE)
            # A copy: a traceback grows wherever an exception is raised.
            self._error = StoreUnavailable(*error.args)
            return
        if self._error is not None:
            self._back()  # it answered
        now, text = self._clock(), str(error)
        if self.tells and now - self._told.get(text, -REPEATED) >= REPEATED:
            if len(self._told) >= _MOST_TOLD:
                self._told.clear()
            self._told[text] = now
            logger.error("%s", error)

    def ended(self, trial: bool) -> None:
        """Note that a call is over, whatever came of it."""
        if trial:
            self._trying = False

    def _back(self) -> None:
        if self.tells:
            logger.info("%s answers again after %.1f s", self._name, self._clock() - self._since)
        self._error = None
