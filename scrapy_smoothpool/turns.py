"""Long work in steps, between which everybody else gets a turn of the event loop.

What takes long over a long list (reading it, comparing it with the one before) is written as a
generator that yields wherever it may be left for a while. :func:`at_once` runs it to its end,
:class:`Turns` lets the loop go round after every few milliseconds of it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work that returns T and may be left alone between two steps."""

MOST = 0.004
"""Seconds of work after which the loop gets a turn."""
_FREED = 512
"""Things thrown away in one step."""
_CAN_FREEZE = hasattr(gc, "freeze")


class Stopped(Exception):
    """Nobody wants the work any more."""


def at_once(steps: Steps[T]) -> T:
    """Do all steps, and return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def emptied(*containers: dict[Any, Any] | set[Any] | list[Any]) -> Steps[None]:
    """Throw away what is in them; freeing 100,000 objects at once takes long, too."""
    for container in containers:
        take = container.popitem if isinstance(container, dict) else container.pop
        while container:
            for _ in range(min(_FREED, len(container))):
                take()
            yield


def _keep_from_collector() -> None:
    """Move what is young to the oldest generation without looking through it.

    100,000 new proxies that stay make the garbage collector go through every object of the
    process, which holds everybody for some hundred milliseconds, and finds nothing: they are
    in no cycles. Freezing and unfreezing costs two pointers. Garbage of others that is moved
    along waits for the next full collection.
    """
    if _CAN_FREEZE and gc.isenabled() and not gc.get_freeze_count():  # else the user's business
        gc.freeze()
        gc.unfreeze()


class Turns:
    """Does work in steps on an event loop that has other things to do.

    :param pause: awaited with seconds, on whatever loop there is; 0 lets it go round once.
    :param aside: calls a function in a thread and returns what it returns.
    :param clock: seconds.
    """

    def __init__(
        self,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        aside: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._pause = pause
        self._aside = aside
        self._clock = clock
        self._stopped = False

    def stop(self) -> None:
        """Let all work under way end at its present step with :exc:`Stopped`."""
        self._stopped = True

    def check(self) -> None:
        """Raise :exc:`Stopped` when the work is no longer wanted."""
        if self._stopped:
            raise Stopped

    async def pause(self, seconds: float = 0.0) -> None:
        """Let others go on. Raises :exc:`Stopped` when the work is no longer wanted."""
        if not self._stopped:
            await self._pause(seconds)
        self.check()

    async def aside(self, function: Callable[[], T]) -> T:
        """Call what blocks, and let others go on until it has returned."""
        found: T = await self._aside(function)
        await self.pause()
        return found

    async def drive(self, steps: Steps[T]) -> T:
        """Do all steps, with a pause after every few milliseconds, and return what they return.

        Raises what a step raises, or :exc:`Stopped`.
        """
        until = self._clock() + MOST
        try:
            while True:
                next(steps)
                if self._clock() >= until:
                    _keep_from_collector()
                    await self.pause()
                    until = self._clock() + MOST
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            steps.close()
