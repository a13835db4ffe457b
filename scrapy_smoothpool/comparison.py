"""Whose fault is a failure inside a tunnel? Judged by how other proxies fare on the site.

A timeout or a 503 over https may be the proxy's doing or the site's. Over a
sliding window the outcomes of each site are counted. A failure is blamed on its
proxy when, on that site and within the window,

* the proxy has at least :data:`LEAST_OWN` outcomes, half of them failures, and
* the others have at least :data:`LEAST_OTHERS`, and fail less than half as often.

When most proxies fail on a site, it is the site, and nobody is blamed. Pure; the
clock is injected.

Memory is bounded: the least recently used sites go, and per site only proxies
that have failed there are counted one by one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

WINDOW = 60.0
"""Seconds over which outcomes are compared."""
LEAST_OWN = 3
LEAST_OTHERS = 10
MAX_SITES = 1_000
MAX_SUSPECTS = 1_000
"""Proxies counted one by one on one site."""


class _Counts:
    """Outcomes of one site in one half of the window."""

    __slots__ = ("failed", "suspects", "total")

    def __init__(self) -> None:
        self.total = 0
        self.failed = 0
        # proxy id -> [outcomes, failures], from its first failure in this half on.
        self.suspects: dict[str, list[int]] = {}


class _Site:
    """The two halves of one site's window; together they cover half to all of it."""

    __slots__ = ("began", "now", "past")

    def __init__(self, began: float) -> None:
        self.began = began
        self.now = _Counts()
        self.past = _Counts()

    def turn(self, now: float) -> None:
        age = now - self.began
        if age < WINDOW / 2:
            return
        self.past = self.now if age < WINDOW else _Counts()
        self.now = _Counts()
        self.began = now


class Comparison:
    """Outcomes by site and proxy, and the verdict on ambiguous failures."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sites: OrderedDict[str, _Site] = OrderedDict()

    def answered(self, site: str, proxy_id: str) -> None:
        """Note that the site answered through the proxy."""
        counts = self._site(site).now
        counts.total += 1
        suspect = counts.suspects.get(proxy_id)
        if suspect is not None:
            suspect[0] += 1

    def failed(self, site: str, proxy_id: str) -> bool:
        """Note an ambiguous failure and say whether the proxy is to blame for it."""
        found = self._site(site)
        counts = found.now
        counts.total += 1
        counts.failed += 1
        suspect = counts.suspects.get(proxy_id)
        if suspect is None and len(counts.suspects) < MAX_SUSPECTS:
            suspect = counts.suspects[proxy_id] = [0, 0]
        if suspect is not None:
            suspect[0] += 1
            suspect[1] += 1
        return self._to_blame(found, proxy_id)

    @staticmethod
    def _to_blame(site: _Site, proxy_id: str) -> bool:
        own = failed = total = all_failed = 0
        for counts in (site.now, site.past):
            total += counts.total
            all_failed += counts.failed
            suspect = counts.suspects.get(proxy_id, (0, 0))
            own += suspect[0]
            failed += suspect[1]
        others, others_failed = total - own, all_failed - failed
        if own < LEAST_OWN or others < LEAST_OTHERS or 2 * failed < own:
            return False
        # failed / own > 2 × others_failed / others, in integers.
        return failed * others > 2 * others_failed * own

    def _site(self, name: str) -> _Site:
        now = self._clock()
        site = self._sites.get(name)
        if site is None:
            site = self._sites[name] = _Site(now)
            if len(self._sites) > MAX_SITES:
                self._sites.popitem(last=False)
        else:
            self._sites.move_to_end(name)
            site.turn(now)
        return site
