"""``smooth_wrr``: one spider's own smooth weighted round robin, with penalties.

The sequence itself is :class:`~.smooth_wrr.SmoothWeightedRoundRobin`; this
strategy puts the weights on the scale that makes penalties last and translates
failures into effective weights. No I/O, no awaiting.

Weakness: every spider has its own sequence, so fifty spiders with one list all
start with the same proxy (``SMOOTHPOOL_SHUFFLE`` spreads them).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Self

from ..penalties import auto_scale, penalty
from ..proxy import Proxy
from .base import StrategyOptions, WeightView
from .smooth_wrr import SmoothWeightedRoundRobin


class SmoothWRRStrategy:
    """Smooth weighted round robin with effective weights, per spider."""

    shared: ClassVar[bool] = False

    def __init__(self, options: StrategyOptions) -> None:
        self._options = options
        self._scale = 1
        self._proxies: Sequence[Proxy] = ()
        self._weights: dict[str, int] = {}
        self._selector = SmoothWeightedRoundRobin({})

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
        self._selector.update({name: w * self._scale for name, w in self._weights.items()})

    def pick(self, exclude: Collection[str] = ()) -> str | None:
        """Return nginx's next proxy; O(log n)."""
        return self._selector.select(exclude)

    def lookup(self, proxy_id: str) -> Proxy | None:
        """Know nobody beyond the list."""
        return None

    async def members(self) -> Sequence[Proxy]:
        """Return the list."""
        return self._proxies

    def penalize(self, proxy_id: str, consecutive: int) -> int:
        """Lower the effective weight by the chosen rule; it heals by 1 per selection."""
        by = penalty(
            self._options.penalty,
            weight=self._weights[proxy_id] * self._scale,
            max_fails=self._options.max_fails,
            consecutive=consecutive,
        )
        if by:
            self._selector.penalize(proxy_id, by)
        return by

    def eject(self, proxy_id: str) -> None:
        """Disable the proxy in the selector."""
        self._selector.disable(proxy_id)

    def restore(self, proxy_id: str) -> None:
        """Enable the proxy again; it climbs from effective weight 0 and owes nothing."""
        self._selector.enable(proxy_id, from_zero=True)

    def weights(self) -> Mapping[str, WeightView]:
        """Return weight and effective weight, divided by the scale."""
        return {
            name: WeightView(self._weights[name], state.effective_weight / self._scale)
            for name, state in self._selector.snapshot().items()
        }

    async def close(self) -> None:
        """Hold nothing that needs closing."""
