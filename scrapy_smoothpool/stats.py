"""Every stat key, and the one place that writes them.

Keys are fixed but for the per-proxy family, which is opt-in
(``SMOOTHPOOL_STATS_PER_PROXY``) since 10,000 proxies would flood the dump.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.statscollectors import StatsCollector

    from .pool import MemberView

PREFIX = "smoothpool/"
FLUSH = 0.5
"""Seconds between two times that the collector is told of what happens at every request."""

ASSIGNED = PREFIX + "assigned"
"""Requests that were given a proxy."""
BYPASSED = PREFIX + "bypassed"
"""Requests that asked to go without the pool (``meta["smoothpool"] = False``)."""
PINNED = PREFIX + "pinned"
"""Requests whose ``proxy`` meta the user set."""
REFUSED = PREFIX + "refused"
"""Requests that no proxy could carry (ftp, an empty ``proxy``)."""
TICKETS = PREFIX + "tickets"
"""Picks whose request never went out (a cached page, a refusal on the way), kept for the next."""
OUTCOME = PREFIX + "outcome/{}"
"""Downloads by outcome."""
STALE = PREFIX + "outcome/stale"
"""Outcomes from before the proxy's last ejection, which changed nothing."""
BLAMED = PREFIX + "outcome/blamed"
"""Ambiguous outcomes that were the proxy's fault, by comparison with the others."""
PENALTIES = PREFIX + "penalties"
"""Times an effective weight was lowered."""
EJECTIONS = PREFIX + "ejections"
"""Times a proxy was put out."""
LOGINS_REFUSED = PREFIX + "logins_refused"
"""Ejections because of a 407."""
PANICS = PREFIX + "panics"
"""Times hardly anything got through and no more proxies could be put out."""
RESTORATIONS = PREFIX + "restorations"
"""Times an ejected proxy came back: its probe got through."""
ADMITTED = PREFIX + "admitted"
"""Proxies that passed their first check (``SMOOTHPOOL_ADMISSION``)."""
RETRIES = PREFIX + "retries"
"""Requests sent again through another proxy."""
RETRIES_SPENT = PREFIX + "retries_spent"
"""Failures that went their normal way because the request's budget was spent."""
WAITS = PREFIX + "waits"
"""Requests that had to wait for a proxy."""
WAITS_REQUEUED = PREFIX + "waits_requeued"
"""Times a waiting request went back to the scheduler."""
WAITS_ENDED = PREFIX + "waits_ended"
"""Requests that got the PoolExhausted error."""
ROBOTS_WAITS = PREFIX + "robots_waits"
"""Times a page waited because its robots.txt could not be had through the pool."""
POLICY_ERRORS = PREFIX + "policy_errors"
"""Outcomes on which SMOOTHPOOL_OUTCOME_POLICY failed, taken as neutral."""
STORE_ERRORS = PREFIX + "store_errors"
"""Picks that Redis did not answer."""
PROXIES = PREFIX + "proxies"
"""Proxies in the pool at close."""
PROXIES_OUT = PREFIX + "proxies_out"
"""Proxies that were ejected at close."""
PER_PROXY = PREFIX + "proxy/{id}/{what}"
"""Opt-in: picks, successes, failures, unclear and ejections of one proxy."""

_PER_PROXY_FIELDS = ("picks", "successes", "failures", "unclear", "ejections")


def _key(outcome: Outcome) -> str:
    return OUTCOME.format(outcome.value)


class Stats:
    """Writes the keys above into a crawler's stats collector."""

    def __init__(self, collector: StatsCollector) -> None:
        self._collector = collector
        self.inc = collector.inc_value
        # What happens at every request is counted here, and the collector told of it every FLUSH
        # seconds: telling it costs 2 µs.
        self.assigned = 0
        self.outcomes = dict.fromkeys(Outcome, 0)
        self._told = dict.fromkeys((ASSIGNED, *map(_key, Outcome)), 0)

    def flush(self) -> None:
        """Tell the collector what was counted since."""
        now = {ASSIGNED: self.assigned} | {_key(o): n for o, n in self.outcomes.items()}
        for key, count in now.items():
            if count != self._told[key]:
                self.inc(key, count - self._told[key])
        self._told = now

    def final(self, members: Iterable[MemberView], *, per_proxy: bool) -> None:
        """Write the values that are known only at close."""
        total = out = 0
        for member in members:
            total += 1
            out += member.out
            if per_proxy:
                for what in _PER_PROXY_FIELDS:
                    key = PER_PROXY.format(id=member.id, what=what)
                    self._collector.set_value(key, getattr(member, what))
        self._collector.set_value(PROXIES, total)
        self._collector.set_value(PROXIES_OUT, out)
