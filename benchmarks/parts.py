"""What `make bench` runs, in this order: a line each, and the function that makes its section.

A script takes `--json FILE`. Its arguments here are chosen so that all of them together take less
than a quarter of an hour on two idle cores, most of it in the paired crawls; `quick` are those of a
short look (`make bench QUICK=1`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import sections
from common import HERE

if TYPE_CHECKING:
    from collections.abc import Callable


class Part(NamedTuple):
    name: str
    title: str
    script: str
    arguments: str
    quick: str
    section: Callable[[Any], tuple[str, list[dict[str, Any]]]]
    long: str | None = None
    """Arguments of a measurement that takes longer than all the others (`make bench LONG=1`)."""


_LOOK = "--proxies 1000 --rounds 2 --requests 100"
_RIVALS = "--variants cycle random rotating smooth_wrr least_used"
_OURS = "--variants cycle smooth_wrr raw_call least_used"
_FAR = "--delay 0.005 --variants cycle least_used least_used_ahead"

# Whoever adds a script adds a line; one that is not there is left out.
PARTS = [
    part
    for part in (
        Part("selection", "A pick", "selection.py", "--quick", "--quick", sections.selection),
        Part(
            "smoothness", "Smoothness", "smoothness.py", "--seeds 5", "--quick", sections.smoothness
        ),
        Part(
            "middleware",
            "A request's way through the middleware",
            "crawls.py",
            f"--null --proxies 10 10000 --rounds 30 --requests 64 {_OURS}",
            f"--null {_LOOK} {_OURS}",
            sections.middleware,
        ),
        Part(
            "crawls",
            "Whole crawls",
            "crawls.py",
            f"--rounds 20 --requests 64 {_RIVALS}",
            f"{_LOOK} {_RIVALS}",
            sections.crawls,
        ),
        Part(
            "delay",
            "A distant Redis",
            "crawls.py",
            f"--proxies 1000 --rounds 20 --requests 96 {_FAR}",
            f"{_LOOK} {_FAR}",
            sections.delay,
        ),
        Part(
            "workers",
            "Workers that share a pool",
            "workers.py",
            "--rounds 1 --requests 1600",
            "--rounds 1 --requests 400 --workers 1 2",
            sections.workers,
        ),
        Part(
            "server_time",
            "The Redis server's time",
            "server_time.py",
            "--quick",
            "--quick --sizes 10 1000",
            sections.server_time,
        ),
        Part(
            "memory",
            "Memory",
            "memory.py",
            "--quick",
            "--from 1000 --to 5000",
            sections.memory,
            long="",
        ),
        Part(
            "gaps",
            "Gaps of the event loop",
            "gaps.py",
            "--rounds 2 --requests 600",
            "--rounds 1 --requests 300 --proxies 10",
            sections.gaps,
        ),
        Part("load", "Long lists", "load.py", "", "--quick", sections.load),
        Part(
            "connections",
            "Connections",
            "connections.py",
            "--proxies 100 --rounds 1 --after 1",
            "--quick --handlers http11",
            sections.connections,
        ),
    )
    if (HERE / part.script).exists()
]
