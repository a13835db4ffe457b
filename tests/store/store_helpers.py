from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from scrapy_smoothpool.health import FALL_BACK, LEAST, POOR, WINDOW
from scrapy_smoothpool.store.verdicts import HealthRules

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

T = TypeVar("T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    # A loop of its own in a thread: pytest-twisted runs tests inside the reactor's
    # loop, where nothing can wait for a task.
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="store-tests").start()
    return loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await *coroutine* as an asyncio task and return its result."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result(120)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in a loop that can wait."""
    assert inspect.iscoroutinefunction(test)

    @functools.wraps(test)
    def wrapper(*args: object, **kwargs: object) -> None:
        run(test(*args, **kwargs))

    return wrapper


def stop_loop() -> None:
    loop = _loop()
    loop.call_soon_threadsafe(loop.stop)
    while loop.is_running():
        threading.Event().wait(0.01)
    loop.close()
    _loop.cache_clear()


def named(start: int, stop: int | None = None) -> dict[str, str]:
    """Return members p00000… with their lines."""
    first, last = (0, start) if stop is None else (start, stop)
    return {f"p{n:05}": f"http://user:secret@10.0.0.1:{n}" for n in range(first, last)}


def fingerprint(members: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(members.items())).encode()).hexdigest()[:16]


def model_pick(counts: dict[str, int], excluded: Iterable[str] = ()) -> str | None:
    """Take the least used of *counts*, first in byte order on a tie, and add one."""
    left = [m for m in counts if m not in set(excluded)]
    if not left:
        return None
    best = min(left, key=lambda m: (counts[m], m.encode()))
    counts[best] += 1
    return best


def rules(
    *,
    eject_after: int = 3,
    eject_time: float = 30.0,
    eject_time_max: float = 1_800.0,
    max_percent: int = 50,
) -> HealthRules:
    """Return rules in seconds, with the constants that the package uses."""
    return HealthRules(
        eject_after=eject_after,
        eject_time=eject_time,
        eject_time_max=eject_time_max,
        max_percent=max_percent,
        window=WINDOW,
        least=LEAST,
        poor=POOR,
        fall_back=FALL_BACK,
    )
