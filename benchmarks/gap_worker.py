"""A crawl of `worker.py` that prints every gap of the event loop; `gaps.py` runs it."""

from __future__ import annotations

import asyncio
import time

from worker import TICK, Meter, main


class GapMeter(Meter):
    """Notes how late each look at the clock was, and for how long of that this process worked."""

    def __init__(self, crawler):
        super().__init__(crawler)
        self.busy: list[float] = []
        self.until = 0

    def idle(self, spider):
        super().idle(spider)
        self.until = len(self.gaps)

    async def look(self):
        while True:
            before, worked = time.monotonic(), time.process_time()
            await asyncio.sleep(TICK)
            late = max(0.0, time.monotonic() - before - TICK)
            self.gaps.append(late)
            self.busy.append(min(late, time.process_time() - worked))

    def figures(self):
        return {
            **super().figures(),
            "gaps": [round(gap, 5) for gap in self.gaps[: self.until]],
            "busy": [round(gap, 5) for gap in self.busy[: self.until]],
            "closing": max(self.gaps[self.until :], default=0.0),
        }


if __name__ == "__main__":
    main(meter=GapMeter)
