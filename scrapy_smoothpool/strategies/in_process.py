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

from ..penalties import kept_scale, penalty, scale_for
from ..proxy import Proxy
from ..turns import Steps, Stopped, at_once, emptied
from .base import StrategyOptions, WeightView
from .smooth_wrr import SmoothWeightedRoundRobin


class _Sequence(NamedTuple):
    """One smooth sequence, and who is out of it alone."""

    selector: SmoothWeightedRoundRobin
    out: set[str]


_AT_ONCE = 1_000
"""Members, of both lists together, whose difference is applied in one step."""
_FURTHER = 100
"""By how many picks the sequences of several sites are apart, at most, with such a list."""
_LOOKED_AT = 2_048
"""Members that are merely looked at in one step."""


class _Either:
    """In one set or in the other, as they are when asked."""

    __slots__ = ("_one", "_other")

    def __init__(self, one: set[str], other: set[str]) -> None:
        self._one, self._other = one, other

    def __contains__(self, name: object) -> bool:
        return name in self._one or name in self._other


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
        self._reloading = False
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
        at_once(self._set(proxies))
        return proxies

    async def reload(self, proxies: Sequence[Proxy]) -> Sequence[Proxy]:
        """Apply the difference to the running sequences, a long one in steps.

        The scale is kept while it is about right. Whatever ends a reload too early, the list
        before is in force again; but for the end of the pool itself.
        """
        before = self._proxies
        try:
            await self._options.turns.drive(self._set(proxies))
        except Stopped:
            raise
        except BaseException:
            at_once(self._set(before))
            raise
        return proxies

    def _set(self, proxies: Sequence[Proxy]) -> Steps[None]:
        weights: dict[str, int] = {}
        active = total = 0
        for proxy in proxies:
            weights[proxy.id] = weight = proxy.weight
            active += weight > 0
            total += weight
            if not len(weights) % _LOOKED_AT:
                yield
        fixed = self._options.weight_scale
        wanted = scale_for(active, total, self._options.max_fails)
        yield
        scale = fixed or kept_scale(self._scale, wanted)
        scaled = {}
        for name, weight in weights.items():
            scaled[name] = weight * scale
            if not len(scaled) % _LOOKED_AT:
                yield
        # From here on sites that begin have the new list. What is said of somebody who is
        # neither in it nor in a sequence any more goes nowhere.
        former = self._weights
        self._proxies, self._weights, self._scale = tuple(proxies), weights, scale
        self._reloading = True
        yield
        for site, sequence in list(self._sequences.items()):
            selector = sequence.selector
            if len(selector) + len(scaled) <= _AT_ONCE:
                selector.update(scaled)
                for name in self._out | sequence.out:
                    if name in selector:
                        selector.disable(name)
            elif not len(selector):
                sequence = sequence._replace(selector=SmoothWeightedRoundRobin(scaled))
                for name in self._out:
                    if name in scaled:
                        sequence.selector.disable(name)
                sequence.selector.settle()
                self._sequences[site] = sequence
                yield
            else:
                yield from selector.update_in_steps(scaled, _Either(self._out, sequence.out))
            sequence.out.intersection_update(scaled)
            yield
        self._reloading = False
        self._out.intersection_update(weights)
        yield from emptied(former, scaled)

    def pick(self, exclude: Collection[str] = (), site: str = "") -> str | None:
        """Return nginx's next proxy; O(log n), O(n) at the first request of a site."""
        sequence = self._sequences.get(site) or self._begin(site)
        return sequence.selector.select(exclude)

    def _begin(self, site: str) -> _Sequence:
        # Each site begins one further on, or all first pages would go by the same proxy.
        begun, self._begun = self._begun, self._begun + 1
        if len(self._weights) > _AT_ONCE and not self._reloading:
            return self._begin_as_copy(site, begun)
        names = list(self._weights)
        start = begun % len(names) if names else 0
        order = names[start:] + names[:start]
        selector = SmoothWeightedRoundRobin({n: self._weights[n] * self._scale for n in order})
        for name in self._out:
            selector.disable(name)
        sequence = self._sequences[site] = _Sequence(selector, set())
        return sequence

    def _begin_as_copy(self, site: str, begun: int) -> _Sequence:
        """Copy the sequence of all sites, since building one over a long list takes long."""
        whole = self._sequences[""]
        selector = whole.selector.copy()
        for name in whole.out - self._out:  # out there alone
            selector.enable(name)
        for _ in range(begun % _FURTHER):
            selector.select()
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
            # Who is leaving has none any more.
            weight=self._weights.get(proxy_id, 0) * self._scale,
            max_fails=self._options.max_fails,
            consecutive=consecutive,
        )
        if by:
            for sequence in self._on(site):
                if proxy_id in sequence.selector:
                    sequence.selector.penalize(proxy_id, by)
        return by

    def eject(self, proxy_id: str, site: str | None = None) -> None:
        """Disable the proxy in its sequence, or in all of them.

        One that a reload is about to bring begins disabled.
        """
        if site is None:
            self._out.add(proxy_id)
        for sequence in self._on(site):
            if site is not None:
                sequence.out.add(proxy_id)
            if proxy_id in sequence.selector:
                sequence.selector.disable(proxy_id)

    def restore(self, proxy_id: str, site: str | None = None, *, gently: bool = True) -> None:
        """Enable the proxy again; gently: from effective weight 0, owing nothing."""
        if site is None:
            self._out.discard(proxy_id)
        for sequence in self._on(site):
            if site is not None:
                sequence.out.discard(proxy_id)
            out = proxy_id in self._out or proxy_id in sequence.out
            if not out and proxy_id in sequence.selector:
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
        views = {}
        for name, weight in self._weights.items():
            # Not in all of them while a reload is under way.
            effective = [s[name].effective_weight for s in used if name in s]
            mean = sum(effective) / (self._scale * len(effective)) if effective else weight
            views[name] = WeightView(weight, mean)
        return views

    async def close(self) -> None:
        """Hold nothing that needs closing."""
