"""Proxies that rest on one site because the site asked for it (``Retry-After``).

Pure; the clock is injected. Bounded: the least recently used sites go, and a
rest lasts a day at most.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Set

MAX_SITES = 1_000
MAX_REST = 86_400.0
"""Seconds."""


class _Site:
    __slots__ = ("ends", "heap", "ids")

    def __init__(self) -> None:
        self.ends: dict[str, float] = {}
        # One entry for each that rests; it may be earlier than the end of a rest prolonged since.
        self.heap: list[tuple[float, str]] = []
        self.ids: set[str] = set()


class Rests:
    """Which proxies rest on which site."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.by_site: OrderedDict[str, _Site] = OrderedDict()
        """For nobody else to change; empty while nobody rests anywhere."""

    def rest(self, site: str, proxy_id: str, seconds: float) -> None:
        """Let a proxy rest on a site; a longer rest than the present one replaces it."""
        found = self.by_site.get(site)
        if found is None:
            found = self.by_site[site] = _Site()
            if len(self.by_site) > MAX_SITES:
                self.by_site.popitem(last=False)
        else:
            self.by_site.move_to_end(site)
        end = self._clock() + min(seconds, MAX_REST)
        if proxy_id not in found.ids:
            found.ids.add(proxy_id)
            heapq.heappush(found.heap, (end, proxy_id))
        found.ends[proxy_id] = max(end, found.ends.get(proxy_id, end))

    def on(self, site: str) -> Set[str]:
        """Return the proxies that rest on a site now. Not to be changed by the caller."""
        found = self.by_site.get(site)
        if found is None:
            return frozenset()
        self.by_site.move_to_end(site)
        now = self._clock()
        while found.heap and found.heap[0][0] <= now:
            _, proxy_id = heapq.heappop(found.heap)
            end = found.ends[proxy_id]
            if end > now:
                heapq.heappush(found.heap, (end, proxy_id))
            else:
                del found.ends[proxy_id]
                found.ids.remove(proxy_id)
        if not found.ids:
            del self.by_site[site]
        return found.ids
