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

Reading order: `select`, `_pick`, then `_place` and `_take`, by which a proxy gets into and out of
the tournaments, then `_write`, which does so for a whole list and says what each attribute means;
`_Columns` serves only what goes over the whole list. The plain loop, to which this is compared step
by step, is ``tests/reference_wrr.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import compress
from typing import TYPE_CHECKING, Final, NamedTuple

from .tournament import NOBODY, KineticTournament, Lines

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Generator, Mapping

_RESTART_AT: Final = 1 << 28
"""Picks after which t starts again at 0: keeps t², and all that is computed with it, in two of
Python's 30-bit digits. Costs one O(n) pass in 268 million picks."""


_SLOT_BITS: Final = 32
"""A note of a healing is ``t << _SLOT_BITS | slot``: one number, so that comparing is cheap."""

# Where a proxy is, with what `Lines` holds of it meanwhile.
_IDLE: Final = 0  # disabled or drained, standing still: current weight, effective weight
_STEADY: Final = 1
_RECOVERING: Final = 2
_VACANT: Final = 3  # nobody's

_ROOMY: Final = 4096
"""Seats beyond which a list that shrinks keeps its room for longer: writing a long one anew would
hold up everybody else."""
_UNITS: Final = 32
"""Names changed (or 16 times as many looked at) in one step of `update_in_steps`."""


class ProxyWeights(NamedTuple):
    """What `SmoothWeightedRoundRobin.snapshot` says of one proxy."""

    weight: int
    effective_weight: int
    current_weight: int
    disabled: bool


@dataclass(slots=True)
class _Columns:
    """All proxies as they stand, in list order, while the whole list is written anew."""

    names: list[str]
    weights: list[int]
    effective: list[int]
    current: list[int]
    disabled: list[bool]

    @classmethod
    def healthy(cls, weights: Mapping[str, int]) -> _Columns:
        """Newcomers."""
        numbers, n = list(weights.values()), len(weights)
        return cls(list(weights), numbers, numbers.copy(), [0] * n, [False] * n)

    def only(self, names: Container[str]) -> _Columns:
        """Without those not in `names`."""
        keep = [name in names for name in self.names]
        return _Columns(
            list(compress(self.names, keep)),
            list(compress(self.weights, keep)),
            list(compress(self.effective, keep)),
            list(compress(self.current, keep)),
            list(compress(self.disabled, keep)),
        )

    def extend(self, other: _Columns) -> None:
        """Append others to the list."""
        self.names += other.names
        self.weights += other.weights
        self.effective += other.effective
        self.current += other.current
        self.disabled += other.disabled

    def reweight(self, weights: Mapping[str, int]) -> None:
        """Give all the weights they have in `weights`."""
        wanted = [weights[name] for name in self.names]
        rows = zip(self.effective, self.weights, wanted, strict=True)
        self.effective = [_in_proportion(*row) for row in rows]
        self.weights = wanted

    def clamp(self) -> None:
        """Bring every current weight within ± the total a selection would have now."""
        rows = zip(self.effective, self.weights, self.disabled, strict=True)
        eligible = [effective for effective, weight, off in rows if weight and not off]
        total = sum(eligible) or len(eligible)
        self.current = [c if -total <= c <= total else _clamped(c, total) for c in self.current]


class SmoothWeightedRoundRobin:
    """Pick names in proportion to their weights, spread as evenly as nginx does.

    `weights` maps each name to a whole number >= 0, in list order, which breaks ties. Weight 0 is
    *drained*: listed, never picked. A disabled or drained proxy stands still: it neither gains,
    heals nor counts.

    `select` costs O(log n), amortised; with k names to leave out O(k log n). `penalize`, `disable`,
    `enable`, `add` and `remove` cost O(log n), amortised; `reweight` and `snapshot` O(n), and so
    does `update`, which compares all but works only on what differs.
    A name that is not listed raises KeyError, an unfit number ValueError, and nothing has changed.
    """

    # All state is set, and explained, in _write.
    _t: int
    _lift: int
    _total: int
    _next_rank: int
    _healing: list[int]

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._write(_Columns.healthy(_checked(weights)))

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
            self._write(self._columns())
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
        if self._where[slot] == _RECOVERING:
            # It stays where it is: only its line turns, about where it stands now.
            t, start, slope = self._t, self._lines.start[slot], self._lines.slope[slot]
            by = min(by, t + (slope + 1) // 2)  # its effective weight, as in _standing
            self._total -= by
            self._recovering.put(slot, start + 2 * by * t, slope - 2 * by)
        else:
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
        slot = self._new_slot(name, weight, rank=self._next_rank)
        self._next_rank += 1
        self._place(slot, weight, 0)

    def remove(self, name: str) -> None:
        """Take `name` off the list. The others' current weights stay as they are."""
        self._remove(name)
        capacity = self._lines.capacity
        if len(self._slots) < capacity // (4 if capacity <= _ROOMY else 64):
            self._write(self._columns())

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
        """Make `weights` the list, by difference.

        Costs O(log n) for each name added or removed, after a comparison of all; a pass over all
        where a weight changed; and everything is written anew if much differs.

        Names it lacks are removed, changed ones reweighted, new ones appended in its order; the
        others keep their place and standing. Current weights are clamped as by `reweight`, once,
        if a weight changed.
        """
        wanted = _checked(weights)
        listed = dict(zip(self._slots, self._listed_weights(), strict=True))
        if wanted == listed:
            return
        gone = listed.keys() - wanted.keys()
        changed = [name for name, weight in listed.items() if wanted.get(name, weight) != weight]
        new = {name: weight for name, weight in wanted.items() if name not in listed}
        if 8 * (len(gone) + len(changed) + len(new)) > len(wanted):
            self._write_anew(wanted, new, clamp=bool(changed))
            return
        for name in gone:
            self.remove(name)
        for name in changed:
            self._reweight(name, wanted[name])
        for name, weight in new.items():
            self.add(name, weight)
        if changed:
            self._clamp()

    def update_in_steps(
        self, weights: Mapping[str, int], disabled: Container[str] = ()
    ) -> Generator[None, None, None]:
        """Do what `update` does, a few names at a time, and yield in between.

        Meanwhile anything but `update` may be done with the list, which is then partly the old and
        partly the new one; newcomers come before those they replace go. Those in `disabled` (as it
        is when their turn comes) begin disabled.
        """
        wanted: dict[str, int] = {}
        for name, weight in weights.items():
            wanted[name] = _whole_number("weight", name, weight)
            if not len(wanted) % (16 * _UNITS):
                yield from self._between_steps()
        names = list(self._slots)
        gone, changed, done = list[str](), False, 0
        for name in names:
            done += 1
            if name in self._slots and name not in wanted:
                gone.append(name)
            elif name in self._slots and self._weights[self._slots[name]] != wanted[name]:
                changed = True
                self._reweight(name, wanted[name])
                done += 16
            if done >= 16 * _UNITS:
                done = 0
                yield from self._between_steps()
        gone.reverse()
        new = []
        for number, name in enumerate(wanted):
            if name not in self._slots:
                new.append(name)
            if not number % (16 * _UNITS):
                yield from self._between_steps()
        eligible = False
        for number, name in enumerate(new):
            self.add(name, wanted[name])
            if name in disabled:
                self.disable(name)
            elif wanted[name]:
                eligible = True
            if eligible and gone:
                self._remove(gone.pop())
            if not number % _UNITS:
                yield from self._between_steps()
        while gone:
            self._remove(gone.pop())
            if not len(gone) % _UNITS:
                yield from self._between_steps()
        if changed:
            names.clear()
            names += self._slots
            for number, name in enumerate(names):
                if name in self._slots:
                    self._clamp_one(self._slots[name])
                if not number % (4 * _UNITS):
                    yield from self._between_steps()

    def _between_steps(self) -> Generator[None, None, None]:
        self.settle()
        yield

    def settle(self) -> None:
        """Play the matches that the next pick would have to play. Changes nothing else."""
        self._steady.first(self._t + 1)
        self._recovering.first(self._t + 1)

    def copy(self) -> SmoothWeightedRoundRobin:
        """Return another one in the same state.

        O(n), but copying flat lists: thirty times as fast as building it.
        """
        self.settle()
        other = SmoothWeightedRoundRobin.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._rank, other._names = self._rank.copy(), self._names.copy()
        other._weights, other._slots = self._weights.copy(), self._slots.copy()
        other._disabled, other._free = self._disabled.copy(), self._free.copy()
        other._where, other._healing = self._where.copy(), self._healing.copy()
        other._healing_noted = self._healing_noted.copy()
        other._lines = self._lines.copy(other._rank)
        other._steady = self._steady.copy(other._lines)
        other._recovering = self._recovering.copy(other._lines)
        return other

    def snapshot(self) -> dict[str, ProxyWeights]:
        """Every name's weights as they stand, in list order. O(n)."""
        all_ = self._columns()
        rows = map(ProxyWeights, all_.weights, all_.effective, all_.current, all_.disabled)
        return dict(zip(all_.names, rows, strict=True))

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
            if self._where[slot] == _VACANT:
                self._free.append(slot)
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
        if not self._free and len(self._names) == self._lines.capacity:
            self._make_room()
        if self._free:
            slot = self._free.pop()
            self._names[slot], self._weights[slot], self._rank[slot] = name, weight, rank
            self._where[slot] = _IDLE
        else:
            slot = len(self._names)
            self._names.append(name)
            self._weights.append(weight)
            self._rank.append(rank)
            self._where.append(_IDLE)
            self._healing_noted.append(0)
        self._slots[name] = slot
        return slot

    def _make_room(self) -> None:
        """Free vacant slots, or else double their number; O(n), but only copying."""
        if len(self._names) - len(self._slots) > len(self._slots) // 8:
            vacant, noted = self._where, self._healing
            mask = (1 << _SLOT_BITS) - 1
            self._free += [note & mask for note in noted if vacant[note & mask] == _VACANT]
            self._healing = [note for note in noted if vacant[note & mask] != _VACANT]
            heapify(self._healing)
            for slot in self._free:
                self._healing_noted[slot] = 0
        else:
            self._lines.grow()
            self._steady.grow()
            self._recovering.grow()

    def _remove(self, name: str) -> None:
        self._vacate(self._slots.pop(name))

    def _vacate(self, slot: int) -> tuple[int, int]:
        self._disabled.discard(slot)
        standing = self._take(slot)
        self._where[slot] = _VACANT
        # A note in the heap outlives its proxy: the slot is not free until it has come up.
        if not self._healing_noted[slot]:
            self._free.append(slot)
        return standing

    def _reweight(self, name: str, weight: int) -> None:
        # In another slot if there is a note of this one in the heap, which may be too late for
        # another weight.
        old = self._slots[name]
        old_weight, disabled, rank = self._weights[old], old in self._disabled, self._rank[old]
        effective, current = self._vacate(old)
        slot = self._new_slot(name, weight, rank)
        if disabled:
            self._disabled.add(slot)
        self._place(slot, _in_proportion(effective, old_weight, weight), current)

    def _clamp(self) -> None:
        """`_Columns.clamp` in place, moving only those beyond the total."""
        total = self._total or self._recovering_count
        slots = self._slots.values()
        for slot, current in zip(slots, self._columns().current, strict=True):
            if not -total <= current <= total:
                effective, _ = self._take(slot)
                self._place(slot, effective, _clamped(current, total))

    def _clamp_one(self, slot: int) -> None:
        total = self._total or self._recovering_count
        current = self._standing(slot)[1]
        if not -total <= current <= total:
            effective, _ = self._take(slot)
            self._place(slot, effective, _clamped(current, total))

    def _listed_weights(self) -> list[int]:
        return list(map(self._weights.__getitem__, self._slots.values()))

    def _columns(self) -> _Columns:
        t, where, start, slope = self._t, self._where, self._lines.start, self._lines.slope
        slots, weights = list(self._slots.values()), self._listed_weights()
        # As if all were steady, which is quick and mostly true.
        effective = weights.copy()
        current = [start[slot] + slope[slot] * t for slot in slots]
        for place, slot in enumerate(slots):
            if where[slot] != _STEADY:
                effective[place], current[place] = self._standing(slot)
        disabled = [slot in self._disabled for slot in slots]
        return _Columns(list(self._slots), weights, effective, current, disabled)

    def _write_anew(self, wanted: dict[str, int], new: dict[str, int], *, clamp: bool) -> None:
        """Do what `update` does, all at once."""
        columns = self._columns().only(wanted)
        columns.reweight(wanted)
        columns.extend(_Columns.healthy(new))
        if clamp:
            columns.clamp()
        self._write(columns)

    def _write(self, columns: _Columns) -> None:
        """Start afresh, at t = 0 and without vacant slots, with these proxies as they stand."""
        n = len(columns.names)
        # A slot is a proxy's index in the lists here and its seat in both tournaments: by weight,
        # so that neighbours have like slopes. Its rank is its place in list order, and breaks ties.
        self._rank = rank = sorted(range(n), key=columns.weights.__getitem__)
        self._names = [columns.names[place] for place in rank]
        self._weights = weights = [columns.weights[place] for place in rank]
        by_place = [0] * n
        for slot, place in enumerate(rank):
            by_place[place] = slot
        self._slots = dict(zip(columns.names, by_place, strict=True))  # in list order
        # The next newcomer's rank, and slots that it may have.
        self._next_rank, self._free = n, list[int]()
        self._disabled = set(compress(by_place, columns.disabled))
        self._lines = Lines(n, rank)
        self._steady = KineticTournament(self._lines)
        self._recovering = KineticTournament(self._lines)
        # Picks since the last fresh start, and what the recovering gained on top of t² (see _pick).
        self._t = self._lift = 0
        # Where each slot's proxy is, and whether a note of its healing is in the heap.
        self._where = bytearray(n)
        self._healing_noted = bytearray(n)
        self._healing = []
        # How many are in each tournament, and the sum of the effective weights of all these.
        self._steady_count = self._recovering_count = self._total = 0
        effective = [columns.effective[place] for place in rank]
        current = [columns.current[place] for place in rank]
        healthy = []
        for slot, weight in enumerate(weights):
            if weight and effective[slot] == weight and slot not in self._disabled:
                healthy.append(slot)
                self._where[slot] = _STEADY
            else:
                self._place(slot, effective[slot], current[slot])
        # What _place would do one by one: at t = 0 a line starts at the current weight.
        for slot in healthy:
            self._lines.start[slot] = current[slot]
            self._lines.slope[slot] = weights[slot]
            self._total += weights[slot]
        self._steady_count = len(healthy)
        self._steady.fill(healthy)


def _in_proportion(effective: int, old_weight: int, weight: int) -> int:
    """The effective weight with another weight; healthy stays healthy."""
    return weight if effective == old_weight else effective * weight // old_weight


def _clamped(current: int, total: int) -> int:
    return max(-total, min(total, current))


def _checked(weights: Mapping[str, int]) -> dict[str, int]:
    checked = dict(weights)
    numbers = checked.values()
    if set(map(type, numbers)) == {int} and min(numbers) >= 0:
        return checked  # at once, where there is nothing to look at one by one
    return {name: _whole_number("weight", name, weight) for name, weight in checked.items()}


def _whole_number(what: str, name: str, value: int) -> int:
    # bool is an int to Python; a weight of True is a slip.
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{what} of {name!r} must be a whole number >= 0, not {value!r}")
    return value
