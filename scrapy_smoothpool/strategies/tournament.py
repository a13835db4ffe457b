"""A kinetic tournament: the greatest of n moving lines, in O(log n).

Each player is a line, ``start + slope × t``, and t only ever grows. Players sit at the leaves of a
binary tree, and each inner node holds the winner of the match between its two children. Say a, b,
c, d are ranked in this order, which decides when they are equal::

            [1] a, due at 2                 line     t = 0    t = 2    t = 5
             /           \\             a    6 + 1t      6        8       11
      [2] a, never    [3] d, due at 2   b    5 + 0t      5        5        5
         /     \\         /     \\       c    2 + 2t      2        6       12
        a       b       c       d       d    4 + 1t      4        6        9

Two lines cross at most once. So the match that made a node's winner also tells when its loser will
pass it, and the node notes the earliest such moment anywhere beneath it, its *due* time: until then
nothing there can change. At t = 2 c is level with d and better ranked, so nodes 3 and 1 are due:
c wins node 3 for ever, a still wins node 1, now until t = 5, when c passes it. Asking for the
winner at t replays the nodes whose due time has come, each once, and no others.

A player whose line has changed plays again when the winner is next asked for, from its leaf up: to
the root if it was the winner; else only as far as it won before or wins now. Half of the players
lose their first match and three quarters one of the first two, so that is two or three matches.

Cost: `first` replays log n nodes if the winner was changed, about two for any other line changed,
and those that have come due. How many come due depends on who sits beside whom: neighbours of like
slope seldom pass one another, so seat players in the order of their slopes. (Seated at random,
100,000 lines with distinct slopes took twice the replays; the winner is the same in any order.)
Memory: a few flat lists of n, and nothing that grows with time. Integers only; nothing is rounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

NOBODY: Final = -1
"""The winner where no seat is taken."""

END: Final = (1 << 30) - 1
"""Moments are below this. As a due time it means never, and it is still one digit to Python."""


class Lines:
    """The lines of up to `capacity` players, by seat, from 0; tournaments may share them.

    `rank[seat]` decides between equals: the lower one is first. Ranks differ, and that of a taken
    seat does not change.
    """

    __slots__ = ("capacity", "rank", "slope", "start")

    def __init__(self, capacity: int, rank: list[int]) -> None:
        self.capacity = 1 << max(1, (capacity - 1).bit_length())
        self.rank = rank
        # What a seat that nobody has taken has here is never looked at.
        self.start = [0] * self.capacity
        self.slope = [0] * self.capacity

    def copy(self, rank: list[int]) -> Lines:
        """Return the same lines with a copy of the ranks."""
        other = Lines.__new__(Lines)
        other.capacity, other.rank = self.capacity, rank
        other.start, other.slope = self.start.copy(), self.slope.copy()
        return other

    def grow(self) -> None:
        """Make room for twice as many; who is seated stays there."""
        self.start += [0] * self.capacity
        self.slope += [0] * self.capacity
        self.capacity *= 2

    def at(self, seat: int, t: int) -> int:
        """Where the player at `seat` stands at t."""
        return self.start[seat] + self.slope[seat] * t


class KineticTournament:
    """The greatest of some `lines` at a moment t, below `END`, that never goes back.

    `put(seat, start, slope)` seats a player or changes its line, `drop(seat)` unseats it,
    `lower(seat, by)` moves its line down, and `first(t)` is the seat of the greatest.
    """

    __slots__ = ("_changed", "_due", "_lines", "_seats", "_winner")

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._seats = seats = lines.capacity
        # Node i has the children 2i and 2i + 1; node 1 is the root, seat k is node seats + k.
        self._winner = [NOBODY] * (2 * seats)
        # When a node must be replayed, or earlier: a seat never, a match when the loser is level,
        # though it may be ranked behind and pass one later. Too early costs a replay, no more.
        self._due = [END] * (2 * seats)
        # Seats that are not as they were when their matches were played.
        self._changed: set[int] = set()

    def put(self, seat: int, start: int, slope: int) -> None:
        """Seat a player, or give the one there a new line."""
        self._lines.start[seat] = start
        self._lines.slope[seat] = slope
        self._winner[self._seats + seat] = seat
        self._changed.add(seat)

    def fill(self, seats: Collection[int]) -> None:
        """Seat players whose lines have been written already."""
        leaf, winner = self._seats, self._winner
        for seat in seats:
            winner[leaf + seat] = seat
        self._changed.update(seats)

    def grow(self) -> None:
        """Take in the seats that :meth:`Lines.grow` has added. No match is played for it.

        The old tree becomes the left half of one twice as wide, level by level.
        """
        old = self._seats
        self._seats = 2 * old
        for nodes, empty in ((self._winner, NOBODY), (self._due, END)):
            before = list(nodes)
            nodes[1:] = [before[1], *[empty] * (4 * old - 2)]
            width = 1
            while width <= old:
                nodes[2 * width : 3 * width] = before[width : 2 * width]
                width *= 2

    def copy(self, lines: Lines) -> KineticTournament:
        """Return the same tournament over a copy of the lines. No match is played for it."""
        other = KineticTournament.__new__(type(self))
        other._lines, other._seats = lines, self._seats
        other._winner, other._due = self._winner.copy(), self._due.copy()
        other._changed = self._changed.copy()
        return other

    def drop(self, seat: int) -> None:
        """Vacate `seat`."""
        self._winner[self._seats + seat] = NOBODY
        self._changed.add(seat)

    def lower(self, seat: int, by: int) -> None:
        """Move the line of the player at `seat` down."""
        self._lines.start[seat] -= by
        self._changed.add(seat)

    def first(self, t: int) -> int:
        """The seat of the greatest line at t >= 1, of equals the best ranked, or `NOBODY`."""
        changed = self._changed
        if changed:
            if len(changed) > self._seats // 4:
                self._replay(range(self._seats - 1, 0, -1), t)
            else:
                for seat in changed:
                    self._climb(seat, t)
            changed.clear()
        if self._due[1] <= t:
            self._replay(self._nodes_due(t), t)
        return self._winner[1]

    def _climb(self, seat: int, t: int) -> None:
        """Play the matches again that the player at `seat` took part in, or does now."""
        winner, due = self._winner, self._due
        start, slope, rank = self._lines.start, self._lines.slope, self._lines.rank
        was_first = winner[1] == seat
        node = self._seats + seat
        best = winner[node]
        gain = slope[best]
        value = start[best] + gain * t  # of no meaning where best is NOBODY
        soonest = END
        while node > 1:
            sibling = node ^ 1
            node >>= 1
            if due[sibling] < soonest:
                soonest = due[sibling]
            other = winner[sibling]
            if other >= 0:
                other_gain = slope[other]
                other_value = start[other] + other_gain * t
                if best < 0:
                    best, value, gain = other, other_value, other_gain
                elif value > other_value or (value == other_value and rank[best] < rank[other]):
                    if other_gain > gain:
                        lasts = -((other_value - value) // (other_gain - gain)) or 1
                        if lasts < soonest - t:
                            soonest = t + lasts
                else:
                    if gain > other_gain:
                        lasts = -((value - other_value) // (gain - other_gain)) or 1
                        if lasts < soonest - t:
                            soonest = t + lasts
                    best, value, gain = other, other_value, other_gain
            if not was_first and winner[node] == best and best != seat:
                # It did not and does not win here, so above nothing changes but due times.
                due[node] = soonest
                while node > 1 and due[node >> 1] > soonest:
                    node >>= 1
                    due[node] = soonest
                return
            winner[node] = best
            due[node] = soonest

    def _nodes_due(self, t: int) -> list[int]:
        """The nodes to be replayed at t, children before parents."""
        due = self._due
        nodes = [1]
        for node in nodes:  # grows while it is walked
            left = node + node
            if due[left] <= t:
                nodes.append(left)
            if due[left + 1] <= t:
                nodes.append(left + 1)
        nodes.reverse()
        return nodes

    def _replay(self, nodes: Iterable[int], t: int) -> None:
        """Play the matches of `nodes` again."""
        winner, due = self._winner, self._due
        start, slope, rank = self._lines.start, self._lines.slope, self._lines.rank
        for node in nodes:
            child = node + node
            best, other = winner[child], winner[child + 1]
            soonest, their_due = due[child], due[child + 1]
            if their_due < soonest:
                soonest = their_due
            if best < 0:
                best = other
            elif other >= 0:
                closing = slope[other] - slope[best]
                lead = start[best] - start[other] - closing * t
                if lead < 0 or (lead == 0 and rank[other] < rank[best]):
                    lead, closing, best = -lead, -closing, other
                if closing > 0:
                    lasts = -(-lead // closing) or 1
                    if lasts < soonest - t:
                        soonest = t + lasts
            winner[node] = best
            due[node] = soonest
