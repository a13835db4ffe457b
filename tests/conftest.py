from __future__ import annotations

import pytest

from clock import Clock
from crawl import REACTORLESS
from farm import Farm


@pytest.fixture
def farm():
    with Farm() as farm:
        yield farm


@pytest.fixture(params=["reactor", "reactorless"])
def mode(request) -> dict[str, object]:
    """Settings of both ways in which Scrapy runs: Twisted's asyncio reactor, and none."""
    return dict(REACTORLESS) if request.param == "reactorless" else {}


@pytest.fixture
def clock() -> Clock:
    return Clock()
