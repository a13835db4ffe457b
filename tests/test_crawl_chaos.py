"""Does every page arrive while Redis is killed, stalled, flushed and failed over at random?"""

from __future__ import annotations

import random

import chaos


def test_one_seed():
    """Another one each time; `make chaos` runs ten, and its SEED= repeats one."""
    found = chaos.run(random.SystemRandom().randrange(1_000_000), pages=1_000)
    assert found.faults == [], str(found)
