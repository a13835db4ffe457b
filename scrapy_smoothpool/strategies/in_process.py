"""``smooth_wrr``: one spider's own smooth weighted round robin, with penalties.

The sequence itself is :class:`~.smooth_wrr.SmoothWeightedRoundRobin`; this
strategy puts the weights on the scale that makes penalties last and translates
failures into effective weights. No I/O, no awaiting.

With ``SMOOTHPOOL_SCOPE = "site"`` each site has a sequence of its own, so that
its share of every proxy is even whatever other sites do meanwhile.

Weakness: every spider has its own sequence, so fifty spiders with one list all
start with the same proxy (``SMOOTHPOOL_SHUFFLE`` spreads them).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

from ..penalties import auto_scale, penalty
from ..proxy import Proxy
from .base import StrategyOptions, WeightView
from .smooth_wrr import SmoothWeightedRoundRobin


class _Sequence(NamedTuple):
    """One smooth sequence, and who is out of it alone."""

    selector: SmoothWeightedRoundRobin
    out: set[str]


class SmoothWRRStrategy:
    """Smooth weighted round robin with effective weights, per spider."""

    shared: ClassVar[bool] = False
    by_site: ClassVar[bool] = True

    def __init__(self, options: StrategyOptions) -> None:
        self._options = options
        self._scale = 1
        self._proxies: Sequence[Proxy] = ()
        self._weights: dict[str, int] = {}
        self._out: set[str] = set()
        # By site; "" is the sequence of all sites, or of requests without one.
        self._sequences: dict[str, _Sequence] = {"": _Sequence(SmoothWeightedRoundRobin({}), set())}
        self._begun = 0  # sites that ever had a sequence

    @classmethod
    def from_options(cls, options: StrategyOptions) -> Self:
        """Build the strategy from ``max_fails``, ``penalty`` and ``weight_scale``."""
        return cls(options)

    def check(self, proxies: Sequence[Proxy]) -> None:
        """Accept any list: weights were checked when it was parsed."""

    def reach(self) -> None:
        """Need nothing but this process."""

    def describe(self) -> str:
        """Return what a reader of the log wants to know besides the list."""
        rule = self._options.penalty
        return f"penalty {rule}, max_fails {self._options.max_fails}, weight scale {self._scale}"

    async def open(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        """Put the proxies in list order into the selector."""
        self._set(proxies)
        return proxies

    async def reload(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        """Apply the difference to the running sequence; the scale is computed anew."""
        self._set(proxies)
        return proxies

    def _set(self, proxies: Sequence[Proxy]) -> None:
        self._proxies = tuple(proxies)
        self._weights = {proxy.id: proxy.weight for proxy in proxies}
        fixed = self._options.weight_scale
        self._scale = fixed or auto_scale(self._weights.values(), self._options.max_fails)
        self._out &= self._weights.keys()
        scaled = {name: w * self._scale for name, w in self._weights.items()}
        for sequence in self._sequences.values():
            sequence.out.intersection_update(scaled)
            sequence.selector.update(scaled)

    def pick(self, exclude: Collection[str] = (), site: str = "") -> str | None:
        """Return nginx's next proxy; O(log n), O(n) at the first request of a site."""
        sequence = self._sequences.get(site) or self._begin(site)
        return sequence.selector.select(exclude)

    def _begin(self, site: str) -> _Sequence:
        names = list(self._weights)
        # Each site begins one further on, or all first pages would go by the same proxy.
        start = self._begun % len(names) if names else 0
        self._begun += 1
        order = names[start:] + names[:start]
        selector = SmoothWeightedRoundRobin({n: self._weights[n] * self._scale for n in order})
        for name in self._out:
            selector.disable(name)
        sequence = self._sequences[site] = _Sequence(selector, set())
        return sequence

    def forget(self, site: str) -> None:
        """Drop a site's sequence; should the site come again, it begins anew."""
        self._sequences.pop(site, None)

    def lookup(self, proxy_id: str) -> Proxy | None:
        """Know nobody beyond the list."""
        return None

    async def members(self) -> Sequence[Proxy]:
        """Return the list."""
        return self._proxies

    def _on(self, site: str | None) -> Iterable[_Sequence]:
        if site is None:
            return self._sequences.values()
        return (self._sequences.get(site) or self._begin(site),)

    def penalize(self, proxy_id: str, consecutive: int, site: str | None = None) -> int:
        """Lower the effective weight by the chosen rule; it heals by 1 per selection."""
        by = penalty(
            self._options.penalty,
            weight=self._weights[proxy_id] * self._scale,
            max_fails=self._options.max_fails,
            consecutive=consecutive,
        )
        if by:
            for sequence in self._on(site):
                sequence.selector.penalize(proxy_id, by)
        return by

    def eject(self, proxy_id: str, site: str | None = None) -> None:
        """Disable the proxy in its sequence, or in all of them."""
        if site is None:
            self._out.add(proxy_id)
        for sequence in self._on(site):
            if site is not None:
                sequence.out.add(proxy_id)
            sequence.selector.disable(proxy_id)

    def restore(self, proxy_id: str, site: str | None = None, *, gently: bool = True) -> None:
        """Enable the proxy again; gently: from effective weight 0, owing nothing."""
        if site is None:
            self._out.discard(proxy_id)
        for sequence in self._on(site):
            if site is not None:
                sequence.out.discard(proxy_id)
            if proxy_id not in self._out and proxy_id not in sequence.out:
                sequence.selector.enable(proxy_id, from_zero=gently)

    @property
    def verdicts(self) -> None:
        """Return nothing: this process judges for itself."""
        return None

    def weights(self) -> Mapping[str, WeightView]:
        """Return weight and effective weight (the mean over all sites), divided by the scale."""
        used = [s.selector.snapshot() for s in self._sequences.values()]
        if len(used) > 1:
            del used[0]  # the one of all sites, which nobody picks from
        scale = self._scale * len(used)
        return {
            name: WeightView(weight, sum(s[name].effective_weight for s in used) / scale)
            for name, weight in self._weights.items()
        }

    async def close(self) -> None:
        """Hold nothing that needs closing."""
