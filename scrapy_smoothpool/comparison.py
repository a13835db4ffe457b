"""Whose fault is a failure inside a tunnel? Judged by how other proxies fare on the site.

A timeout or a 503 over https may be the proxy's doing or the site's. Over a
sliding window the outcomes of each site are counted. A failure is blamed on its
proxy when the proxy's failure rate there is well above the rate of all others
together, in one of two stretches: since the site last answered through the
proxy (so that one that begins to fail is found at once), or in the whole window
(so that one that fails every other time is found, too). "Well above" means

* at least :data:`LEAST_OWN` failures of the proxy, and :data:`LEAST_OTHERS`
  outcomes of the others;
* a rate of at least :data:`LEAST_RATE`, and more than :data:`LEAST_RATIO` times
  the others' (so when half of the others fail, it is the site, and nobody is
  blamed);
* and not by chance: a proxy like the others would do as badly in one of
  :data:`ODDS` such stretches at most. So three failures in a row are enough
  where the others hardly fail, but where every fifth request fails it takes six.

Both are counted over the same stretch of time: what the others had from the
site before it went down does not speak against a proxy that failed afterwards.
For a proxy that was not used there before, that stretch begins with the
:data:`LEAST_OTHERS` outcomes before its first.

A *probe* of a proxy that is out needs less, since it has been found bad before:
its one failure is blamed when less than half of the last :data:`LEAST_OTHERS`
outcomes of the others were failures.

The window is :data:`WINDOW` seconds, in halves: half of it to all of it is
looked at. Pure; the clock is injected. Memory is bounded: the least recently
used sites go, and per site only so many proxies are counted one by one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from math import log
from typing import NamedTuple

WINDOW = 60.0
"""Seconds over which outcomes are compared."""
LEAST_OWN = 3
LEAST_OTHERS = 10
LEAST_RATE = 0.3
LEAST_RATIO = 2
ODDS = 10_000
MAX_SITES = 1_000
MAX_SUSPECTS = 1_000
"""Proxies counted one by one on one site; one beyond them is not blamed."""

_EVIDENCE = log(ODDS)


def stands_out(failed: int, total: int, others_failed: int, others: int) -> bool:
    """Say whether *failed* of *total* is a rate well above that of the others."""
    if failed < LEAST_OWN or others < LEAST_OTHERS:
        return False
    if failed < LEAST_RATE * total or failed * others <= LEAST_RATIO * others_failed * total:
        return False
    # Chernoff's bound on the chance of so many failures at the others' rate: total times the
    # Kullback-Leibler divergence of the two rates. With all failed it is rate ** -total. The
    # others' rate is taken as half a failure more, since none in ten is not yet "never".
    expected = (others_failed + 0.5) / (others + 1)
    evidence = failed * log(failed / total / expected)
    if answered := total - failed:
        evidence += answered * log(answered / total / (1 - expected))
    return evidence >= _EVIDENCE


class _Tally(NamedTuple):
    """Outcomes of all proxies at one moment."""

    total: int
    failed: int


_NOTHING = _Tally(0, 0)


class _Own:
    """One proxy's outcomes in one half of a site's window."""

    __slots__ = ("answered", "began", "failed", "streak", "streak_began", "total")

    def __init__(self, began: _Tally) -> None:
        self.total = 0
        self.failed = 0
        self.streak = 0
        """Failures since its last answer."""
        self.answered = False
        # Where the site's counts stood when the proxy's own counting began.
        self.began = began
        self.streak_began: tuple[int, int] = began


class _Half:
    """Outcomes of one site in one half of the window."""

    __slots__ = ("failed", "own", "total")

    def __init__(self) -> None:
        self.total = 0
        self.failed = 0
        self.own: dict[str, _Own] = {}


class _Site:
    """The two halves of one site's window; together they cover half to all of it."""

    __slots__ = ("began", "latest", "now", "past")

    def __init__(self, began: float) -> None:
        self.began = began
        self.now = _Half()
        self.past = _Half()
        # (when, proxy id, failed)
        self.latest: deque[tuple[float, str, bool]] = deque(maxlen=LEAST_OTHERS)

    def turn(self, now: float) -> None:
        """Begin a new half: this one has lasted long enough."""
        age = now - self.began
        self.past = self.now if age < WINDOW else _Half()
        self.now = _Half()
        self.began = now

    def note(self, now: float, proxy_id: str, failed: bool) -> _Own | None:
        """Count one outcome; returns the proxy's own counts, None when there is no room."""
        half = self.now
        own = half.own.get(proxy_id)
        if own is None and len(half.own) < MAX_SUSPECTS:
            own = half.own[proxy_id] = _Own(self._beginning(now, proxy_id))
        self.latest.append((now, proxy_id, failed))
        half.total += 1
        half.failed += failed
        if own is None:
            return None
        own.total += 1
        own.failed += failed
        if failed:
            own.streak += 1
        else:
            own.streak, own.answered = 0, True
            own.streak_began = half.total, half.failed
        return own

    def _beginning(self, now: float, proxy_id: str) -> _Tally:
        """Where counting begins for a proxy that has no outcome in this half yet."""
        if proxy_id in self.past.own:
            return _NOTHING
        total, failed = self.others_latest(now, proxy_id)
        return _Tally(self.now.total - total, self.now.failed - failed)

    def others_latest(self, now: float, proxy_id: str) -> _Tally:
        """Return the others' share of the latest outcomes, as far as the window goes back."""
        found = [
            failed
            for when, other, failed in self.latest
            if other != proxy_id and when > now - WINDOW
        ]
        return _Tally(len(found), sum(found))

    def to_blame(self, proxy_id: str, own: _Own) -> bool:
        """Say whether the proxy stands out, since its last answer or in the whole window."""
        now, past, before = self.now, self.past, self.past.own.get(proxy_id)
        # All proxies' outcomes of the two stretches; the proxy's own are taken off below.
        total, failed = now.total - own.began.total, now.failed - own.began.failed
        streak = own.streak
        since = own.streak_began
        s_total, s_failed = now.total - since[0], now.failed - since[1]
        own_total, own_failed = own.total, own.failed
        if before is not None:
            total += past.total - before.began.total
            failed += past.failed - before.began.failed
            own_total += before.total
            own_failed += before.failed
            if not own.answered:
                since = before.streak_began
                streak += before.streak
                s_total += past.total - since[0]
                s_failed += past.failed - since[1]
        return stands_out(streak, streak, s_failed - streak, s_total - streak) or stands_out(
            own_failed, own_total, failed - own_failed, total - own_total
        )


class Comparison:
    """Outcomes by site and proxy, and the verdict on ambiguous failures."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sites: OrderedDict[str, _Site] = OrderedDict()

    def answered(self, site: str, proxy_id: str) -> None:
        """Note that the site answered through the proxy."""
        now = self._clock()
        self._site(site, now).note(now, proxy_id, failed=False)

    def failed(self, site: str, proxy_id: str, probing: bool = False) -> bool:
        """Note an ambiguous failure and say whether the proxy is to blame for it.

        :param probing: the request probed a proxy that is out. Its failure says
            nothing of the site and is not counted there.
        """
        now = self._clock()
        found = self._site(site, now)
        if probing:
            others, others_failed = found.others_latest(now, proxy_id)
            return others >= LEAST_OTHERS and 2 * others_failed < others
        own = found.note(now, proxy_id, failed=True)
        return own is not None and found.to_blame(proxy_id, own)

    def _site(self, name: str, now: float) -> _Site:
        site = self._sites.get(name)
        if site is None:
            site = self._sites[name] = _Site(now)
            if len(self._sites) > MAX_SITES:
                self._sites.popitem(last=False)
        else:
            self._sites.move_to_end(name)
            if now - site.began >= WINDOW / 2:
                site.turn(now)
        return site
