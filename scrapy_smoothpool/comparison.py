"""Whose fault is a failure inside a tunnel? Judged by how other proxies fare on the site.

A timeout or a 503 over https may be the proxy's doing or the site's. Over a
sliding window the outcomes of each site are counted. A failure is blamed on its
proxy when, since the site last answered through it (or in the whole window),

* it has failed there at least :data:`LEAST_OWN` times, and
* the others have at least :data:`LEAST_OTHERS` outcomes there, less than half of
  them failures.

When most proxies fail on a site, it is the site, and nobody is blamed. Both are
counted over the same stretch of time: what the others had from the site before
it went down does not speak against a proxy that failed afterwards. Pure; the
clock is injected.

Memory is bounded: the least recently used sites go, and per site only so many
proxies are counted one by one.
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
"""Proxies counted one by one on one site; one beyond them is not blamed."""


class _Streak:
    """A proxy's failures since its last answer, or since its half of the window began."""

    __slots__ = ("all_failed", "answered", "failed", "total")

    def __init__(self) -> None:
        self.failed = 0
        self.answered = False
        # Where the site's counts stood when the streak began.
        self.total = 0
        self.all_failed = 0


class _Counts:
    """Outcomes of one site in one half of the window."""

    __slots__ = ("failed", "streaks", "total")

    def __init__(self) -> None:
        self.total = 0
        self.failed = 0
        self.streaks: dict[str, _Streak] = {}

    def streak(self, proxy_id: str) -> _Streak | None:
        found = self.streaks.get(proxy_id)
        if found is None and len(self.streaks) < MAX_SUSPECTS:
            found = self.streaks[proxy_id] = _Streak()
        return found


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
        streak = counts.streak(proxy_id)
        if streak is not None:
            streak.failed, streak.answered = 0, True
            streak.total, streak.all_failed = counts.total, counts.failed

    def failed(self, site: str, proxy_id: str) -> bool:
        """Note an ambiguous failure and say whether the proxy is to blame for it."""
        found = self._site(site)
        counts = found.now
        counts.total += 1
        counts.failed += 1
        streak = counts.streak(proxy_id)
        if streak is None:
            return False
        streak.failed += 1
        return self._to_blame(found, proxy_id)

    @staticmethod
    def _to_blame(site: _Site, proxy_id: str) -> bool:
        own = others = others_failed = 0
        for counts in (site.now, site.past):
            streak = counts.streaks.get(proxy_id) or _Streak()
            own += streak.failed
            others += counts.total - streak.total - streak.failed
            others_failed += counts.failed - streak.all_failed - streak.failed
            if streak.answered:
                break
        return own >= LEAST_OWN and others >= LEAST_OTHERS and 2 * others_failed < others

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
