"""Time as a test wants it."""

from __future__ import annotations


class Clock:
    """A clock that stands still until it is moved: ``clock.now += 1.5``, in seconds."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
