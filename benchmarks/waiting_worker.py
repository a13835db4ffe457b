"""A crawl of `worker.py` that says when it is ready and waits for a line before it begins.

Not run by hand: several of them begin at the same moment so.
"""

from __future__ import annotations

import asyncio
import sys

from worker import Meter, main


class WaitingMeter(Meter):
    """Begins to measure when told to; the crawl waits, too."""

    async def opened(self, spider):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        await super().opened(spider)


if __name__ == "__main__":
    main(meter=WaitingMeter)
