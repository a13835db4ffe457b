"""The plain loop: nginx's smooth weighted round robin written down as its rules are told.

O(n) a pick and nothing clever. `SmoothWeightedRoundRobin` must do what this does, exactly; the
benchmark compares against it too. Its pick for pick agreement with a real nginx is tested beside
that of the selector, in test_smooth_wrr_nginx.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Standing = tuple[int, int, int, bool]
"""weight, effective_weight, current_weight, disabled."""


@dataclass(slots=True)
class Peer:
    name: str
    weight: int
    effective: int
    current: int = 0
    disabled: bool = False

    def change_weight(self, weight: int) -> None:
        healthy = self.effective == self.weight
        self.effective = weight if healthy else self.effective * weight // self.weight
        self.weight = weight


class PlainLoop:
    """The interface of `SmoothWeightedRoundRobin`, without its checks of numbers."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.peers = {name: Peer(name, weight, weight) for name, weight in weights.items()}

    def __len__(self) -> int:
        return len(self.peers)

    def __contains__(self, name: object) -> bool:
        return name in self.peers

    def select(self, exclude: Collection[str] = ()) -> str | None:
        best: Peer | None = None
        total = 0
        for peer in self.peers.values():
            if peer.disabled or not peer.weight or peer.name in exclude:
                continue
            peer.current += peer.effective
            total += peer.effective
            if peer.effective < peer.weight:
                peer.effective += 1
            if best is None or peer.current > best.current:
                best = peer
        if best is None:
            return None
        if not total:
            return self._select_among_zeros(exclude)
        best.current -= total
        return best.name

    def _select_among_zeros(self, exclude: Collection[str]) -> str:
        """Nobody gained anything: each eligible one counts as 1. They have healed already."""
        eligible = [
            peer
            for peer in self.peers.values()
            if not peer.disabled and peer.weight and peer.name not in exclude
        ]
        for peer in eligible:
            peer.current += 1
        best = max(eligible, key=lambda peer: peer.current)  # max returns the first of equals
        best.current -= len(eligible)
        return best.name

    def penalize(self, name: str, by: int) -> None:
        self.peers[name].effective = max(0, self.peers[name].effective - by)

    def disable(self, name: str) -> None:
        self.peers[name].disabled = True

    def enable(self, name: str, *, from_zero: bool = False) -> None:
        self.peers[name].disabled = False
        if from_zero:
            self.peers[name].effective = self.peers[name].current = 0

    def add(self, name: str, weight: int) -> None:
        if name in self.peers:
            raise ValueError(name)
        self.peers[name] = Peer(name, weight, weight)

    def remove(self, name: str) -> None:
        del self.peers[name]

    def reweight(self, name: str, weight: int) -> None:
        self.peers[name].change_weight(weight)
        self._clamp()

    def update(self, weights: Mapping[str, int]) -> None:
        changed = False
        for name in list(self.peers):
            if name not in weights:
                self.remove(name)
            elif self.peers[name].weight != weights[name]:
                self.peers[name].change_weight(weights[name])
                changed = True
        for name, weight in weights.items():
            if name not in self.peers:
                self.add(name, weight)
        if changed:
            self._clamp()

    def _clamp(self) -> None:
        eligible = [p for p in self.peers.values() if p.weight and not p.disabled]
        total = sum(p.effective for p in eligible) or len(eligible)
        for peer in self.peers.values():
            peer.current = max(-total, min(total, peer.current))

    def snapshot(self) -> dict[str, Standing]:
        return {p.name: (p.weight, p.effective, p.current, p.disabled) for p in self.peers.values()}
