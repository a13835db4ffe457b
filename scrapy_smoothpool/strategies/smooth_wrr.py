"""Smooth weighted round robin, the sequence nginx picks, in O(log n) a pick.

Every proxy has a *weight* (fixed), an *effective_weight* (starts at weight, lowered by failures,
climbs back) and a *current_weight* (starts at 0). One selection: each proxy gains its effective
weight; the greatest current weight is picked, the first in list order on a tie, and pays the
total of the effective weights. With weights a = 5, b = 1, c = 1 the total is 7::

     pick   after the gain     picked   after paying 7
      1     ( 5,  1,  1)         a      (-2,  1,  1)
      2     ( 3,  2,  2)         a      (-4,  2,  2)
      3     ( 1,  3,  3)         b      ( 1, -4,  3)
      4     ( 6, -3,  4)         a      (-1, -3,  4)
      5     ( 4, -2,  5)         c      ( 4, -2, -2)
      6     ( 9, -1, -1)         a      ( 2, -1, -1)
      7     ( 7,  0,  0)         a      ( 0,  0,  0)   and round again: a a b a c a a

Where an effective weight is below the weight it grows by 1 at each selection, after it was counted:
the proxy *heals*. These are the rules of nginx's ``ngx_http_upstream_get_peer``; its penalties are
in ``ngx_http_upstream_free_round_robin_peer``. Two rules are ours: what a total of 0 means (see
`_pick`), and what becomes of debts when a weight changes (see `reweight`).

Done as told, a pick visits all n proxies. The same sequence comes out of visiting log n of them,
because with t the number of picks so far a current weight needs no visit to be known:

- a *steady* proxy, effective weight = weight, stands at ``current = start + weight × t``: a line;
- a *recovering* one that had the effective weight e at pick t₀ and the current weight c has gained
  ``e + (e + 1) + …`` since, so ``2 × current - t² = start + slope × t`` with
  ``slope = 2(e - t₀) - 1`` and ``start = 2c - t₀² - slope × t₀``. All of them share the curve t²,
  so among themselves they too are lines.

The greatest of many lines is what `tournament.py` keeps. So there are two tournaments; a pick
compares their two winners. Total weight is kept as a sum, and a heap of the picks at which
proxies will have healed says when to move them from one tournament to the other.

Reading order: `select`, `_pick`, then `_place` and `_take`, through which every change goes, then
`_write` for what each attribute means. The plain loop, to which this is compared step by step, is
``tests/reference_wrr.py``.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from .tournament import NOBODY, KineticTournament, Lines

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_RESTART_AT: Final = 1 << 28
"""Picks after which t starts again at 0: keeps t², and all that is computed with it, in two of
Python's 30-bit digits. Costs one O(n) pass in 268 million picks."""


_SLOT_BITS: Final = 32
"""A note of a healing is ``t << _SLOT_BITS | slot``: one number, so that comparing is cheap."""

# Where a proxy is, with what `Lines` holds of it meanwhile.
_IDLE: Final = 0  # disabled or drained, standing still: current weight, effective weight
_STEADY: Final = 1
_RECOVERING: Final = 2


class ProxyWeights(NamedTuple):
    """What `SmoothWeightedRoundRobin.snapshot` says of one proxy."""

    weight: int
    effective_weight: int
    current_weight: int
    disabled: bool


class SmoothWeightedRoundRobin:
    """Pick names in proportion to their weights, spread as evenly as nginx does.

    `weights` maps each name to a whole number >= 0, in list order, which breaks ties. Weight 0 is
    *drained*: listed, never picked. A disabled or drained proxy stands still: it neither gains,
    heals nor counts.

    `select` costs O(log n), amortised; with k names to leave out O(k log n). `penalize`, `disable`,
    `enable`, `add` and `remove` cost O(log n), amortised; `reweight`, `update` and `snapshot` O(n).
    A name that is not listed raises KeyError, an unfit number ValueError, and nothing has changed.
    """

    # All state is set, and explained, in _write.
    _t: int
    _lift: int
    _total: int

    def __init__(self, weights: Mapping[str, int]) -> None:
        weights = _checked(weights)
        self._write({name: ProxyWeights(w, w, 0, False) for name, w in weights.items()})

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    def select(self, exclude: Collection[str] = ()) -> str | None:
        """Pick the next name; None, with nothing changed, when none is eligible.

        Names in `exclude` are passed over for this one selection, as nginx does with peers already
        tried for a request: they neither gain, heal nor count. Names not listed are ignored.
        """
        if self._t >= _RESTART_AT:
            self._write(self.snapshot())
        if not exclude:
            return self._pick()
        slots, where = self._slots, self._where
        excluded = {slots[name] for name in exclude if name in slots}
        held = [(slot, *self._take(slot)) for slot in excluded if where[slot] != _IDLE]
        name = self._pick()
        for standing in held:
            self._place(*standing)
        return name

    def penalize(self, name: str, by: int) -> None:
        """Lower the effective weight of `name` by `by` >= 0, but not below 0."""
        slot = self._slots[name]
        by = _whole_number("penalty", name, by)
        effective, current = self._take(slot)
        self._place(slot, max(0, effective - by), current)

    def disable(self, name: str) -> None:
        """Leave `name` out of all selections until `enable`; its weights stand still."""
        slot = self._slots[name]
        standing = self._take(slot)
        self._disabled.add(slot)
        self._place(slot, *standing)

    def enable(self, name: str, *, from_zero: bool = False) -> None:
        """Let `name` take part again, with the weights it had, as nginx does.

        With `from_zero` it starts at effective weight 0 and current weight 0 instead, and heals
        from there: the gentle return of a proxy that had been ejected.
        """
        slot = self._slots[name]
        effective, current = self._take(slot)
        self._disabled.discard(slot)
        if from_zero:
            effective = current = 0
        self._place(slot, effective, current)

    def add(self, name: str, weight: int) -> None:
        """Append `name` to the list, healthy and with current weight 0.

        :raises ValueError: also when `name` is listed already.
        """
        if name in self._slots:
            raise ValueError(f"{name!r} is listed already; use reweight() to change its weight")
        weight = _whole_number("weight", name, weight)
        if len(self._names) == self._lines.capacity:
            # Out of slots: close the gaps of removed ones and make room. O(n), once in O(n) adds.
            self._write(self.snapshot(), room=len(self._slots) // 4 + 1)
        slot = self._new_slot(name, weight, rank=len(self._names))
        self._place(slot, weight, 0)

    def remove(self, name: str) -> None:
        """Take `name` off the list. The others' current weights stay as they are."""
        self._vacate(self._slots.pop(name))
        if len(self._slots) < self._lines.capacity // 4:
            self._write(self.snapshot())

    def reweight(self, name: str, weight: int) -> None:
        """Change the weight of `name`. O(n).

        Its effective weight keeps its proportion (rounded down; healthy stays healthy), and every
        current weight is brought within ± the new total. Without that, lowering 1000 to 1 would
        leave a debt of hundreds behind, and the proxy unpicked until it had earned it, 1 at a time.
        """
        self._slots[name]  # an unknown name is a KeyError before the weight is looked at
        self._reweight(name, _whole_number("weight", name, weight))
        self._clamp()

    def update(self, weights: Mapping[str, int]) -> None:
        """Make `weights` the list, by difference: O(log n) for each, after a comparison of all.

        Names it lacks are removed, changed ones reweighted, new ones appended in its order; the
        others keep their place and standing. Current weights are clamped as by `reweight`, once,
        if a weight changed.
        """
        wanted = _checked(weights)
        listed = dict(zip(self._slots, map(self._weights.__getitem__, self._slots.values())))
        if wanted == listed:
            return
        gone = [name for name in listed if name not in wanted]
        new = [name for name in wanted if name not in listed]
        changed = [name for name, weight in listed.items() if wanted.get(name, weight) != weight]
        for name in gone:
            self.remove(name)
        for name in changed:
            self._reweight(name, wanted[name])
        for name in new:
            self.add(name, wanted[name])
        if changed:
            self._clamp()
        if len(new) + len(changed) > len(wanted) // 4:
            self._write(self.snapshot())  # those have slots out of order

    def snapshot(self) -> dict[str, ProxyWeights]:
        """Every name's weights as they stand, in list order. O(n)."""
        weights, disabled, standing = self._weights, self._disabled, self._standing
        return {
            name: ProxyWeights(weights[slot], *standing(slot), slot in disabled)
            for name, slot in self._slots.items()
        }

    # One selection.

    def _pick(self) -> str | None:
        """The name picked, or None with nothing changed."""
        t = self._t
        if self._healing and self._healing[0] >> _SLOT_BITS <= t:
            self._heal()
        recovering = self._recovering_count
        winner = NOBODY
        if self._steady_count:
            winner = self._steady.first(t + 1)
        elif not recovering:
            return None
        self._t = t = t + 1
        total = self._total
        if not recovering:
            self._steady.lower(winner, total)
            return self._names[winner]
        self._total = total + recovering  # these heal by 1 each, after they were counted
        if not total:
            # All are at effective weight 0, so all are recovering, and each gains 1 in place of 0.
            # What all gain alike lifts the curve they share.
            total = recovering
            self._lift += 2
        other = self._recovering.first(t)
        if winner == NOBODY or self._leads(other, winner, t):
            self._recovering.lower(other, 2 * total)
            return self._names[other]
        self._steady.lower(winner, total)
        return self._names[winner]

    def _leads(self, recovering: int, steady: int, t: int) -> bool:
        """Whether the best of the recovering beats the best of the steady; ties by list order."""
        start, slope = self._lines.start, self._lines.slope
        lead = start[recovering] + slope[recovering] * t + t * t + self._lift
        lead -= 2 * (start[steady] + slope[steady] * t)
        return lead > 0 or (lead == 0 and self._rank[recovering] < self._rank[steady])

    def _heal(self) -> None:
        """Move the proxies whose note is due to the steady ones, or note when it will be due."""
        healing, t = self._healing, self._t
        while healing and healing[0] >> _SLOT_BITS <= t:
            slot = heappop(healing) & ((1 << _SLOT_BITS) - 1)
            self._healing_noted[slot] = 0
            if self._where[slot] == _RECOVERING:
                effective, current = self._standing(slot)
                if effective == self._weights[slot]:
                    self._take(slot)
                    self._place(slot, effective, current)
                else:
                    self._note_healing(slot, effective)

    def _note_healing(self, slot: int, effective: int) -> None:
        # One note a slot is enough, which bounds the heap: whatever happens to a proxy meanwhile
        # (a penalty, an exclusion, a time disabled) only postpones its healing, and a note that
        # comes up early is written anew. With another weight a proxy gets another slot.
        if not self._healing_noted[slot]:
            self._healing_noted[slot] = 1
            healed_at = self._t + self._weights[slot] - effective
            heappush(self._healing, healed_at << _SLOT_BITS | slot)

    # A proxy's way into and out of the tournaments.

    def _place(self, slot: int, effective: int, current: int) -> None:
        """Let a proxy stand with these weights as of now, where it belongs."""
        weight = self._weights[slot]
        if not weight or slot in self._disabled:
            self._where[slot] = _IDLE
            self._lines.start[slot] = current
            self._lines.slope[slot] = effective
            return
        t = self._t
        self._total += effective
        if effective == weight:
            self._where[slot] = _STEADY
            self._steady_count += 1
            self._steady.put(slot, current - weight * t, weight)
        else:
            self._where[slot] = _RECOVERING
            self._recovering_count += 1
            slope = 2 * (effective - t) - 1
            start = 2 * current - t * t - self._lift - slope * t
            self._recovering.put(slot, start, slope)
            self._note_healing(slot, effective)

    def _take(self, slot: int) -> tuple[int, int]:
        """Take a proxy out of where it stands; its effective and current weight."""
        standing = self._standing(slot)
        where = self._where[slot]
        if where == _STEADY:
            self._total -= standing[0]
            self._steady_count -= 1
            self._steady.drop(slot)
        elif where == _RECOVERING:
            self._total -= standing[0]
            self._recovering_count -= 1
            self._recovering.drop(slot)
        self._where[slot] = _IDLE
        return standing

    def _standing(self, slot: int) -> tuple[int, int]:
        """The effective and current weight of a proxy as of now."""
        t, where = self._t, self._where[slot]
        start, slope = self._lines.start[slot], self._lines.slope[slot]
        if where == _STEADY:
            return slope, start + slope * t
        if where == _RECOVERING:
            # slope = 2 × (effective weight - t) - 1 held when it was placed; both grow by 1 a pick.
            return t + (slope + 1) // 2, (start + slope * t + t * t + self._lift) // 2
        return slope, start

    # The list as a whole.

    def _new_slot(self, name: str, weight: int, rank: int) -> int:
        slot = self._slots[name] = len(self._names)
        self._names.append(name)
        self._weights.append(weight)
        self._rank.append(rank)
        self._where.append(_IDLE)
        self._healing_noted.append(0)
        return slot

    def _vacate(self, slot: int) -> tuple[int, int]:
        # The slot stays vacant until all is written afresh: its note in the heap may outlive it.
        self._disabled.discard(slot)
        return self._take(slot)

    def _reweight(self, name: str, weight: int) -> None:
        if len(self._names) == self._lines.capacity:
            self._write(self.snapshot(), room=len(self._slots) // 4 + 1)
        old = self._slots[name]
        old_weight, disabled = self._weights[old], old in self._disabled
        effective, current = self._vacate(old)
        slot = self._new_slot(name, weight, self._rank[old])
        if disabled:
            self._disabled.add(slot)
        if effective == old_weight:
            effective = weight
        else:
            effective = effective * weight // old_weight
        self._place(slot, effective, current)

    def _clamp(self) -> None:
        """Bring every current weight within ± the total a selection would have now."""
        total = self._total or self._recovering_count
        for slot in self._slots.values():
            effective, current = self._standing(slot)
            if not -total <= current <= total:
                self._take(slot)
                self._place(slot, effective, max(-total, min(total, current)))

    def _write(self, standings: Mapping[str, ProxyWeights], room: int = 0) -> None:
        """Start afresh, at t = 0 and without vacant slots, with these proxies as they stand."""
        # A slot is a proxy's index in the lists here and its seat in both tournaments: by weight,
        # so that neighbours have like slopes. Its rank is its place in list order, and breaks ties.
        names, rows = list(standings), list(standings.values())
        self._rank = sorted(range(len(rows)), key=lambda place: rows[place].weight)
        self._names = [names[place] for place in self._rank]
        self._weights = [rows[place].weight for place in self._rank]
        slots = {name: slot for slot, name in enumerate(self._names)}
        self._slots = {name: slots[name] for name in names}  # in list order
        self._lines = Lines(len(rows) + room, self._rank)
        self._steady = KineticTournament(self._lines)
        self._recovering = KineticTournament(self._lines)
        self._steady_count = self._recovering_count = 0
        # The sum of the effective weights of all in the two tournaments.
        self._total = 0
        # Picks since the last fresh start, and what the recovering gained on top of t² (see _pick).
        self._t = self._lift = 0
        self._disabled = {slots[name] for name, row in standings.items() if row.disabled}
        # Where each slot's proxy is, and whether a note of its healing is in the heap.
        self._where = bytearray(len(rows))
        self._healing_noted = bytearray(len(rows))
        self._healing: list[int] = []
        for slot, place in enumerate(self._rank):
            self._place(slot, rows[place].effective_weight, rows[place].current_weight)


def _checked(weights: Mapping[str, int]) -> dict[str, int]:
    return {name: _whole_number("weight", name, weight) for name, weight in weights.items()}


def _whole_number(what: str, name: str, value: int) -> int:
    # bool is an int to Python; a weight of True is a slip.
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{what} of {name!r} must be a whole number >= 0, not {value!r}")
    return value
