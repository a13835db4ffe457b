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

A player whose line changes makes the nodes above it stale; they too are replayed when the winner is
next asked for. Changing one line several times between two questions costs one replay.

Cost: `first` replays log n nodes for each line changed since the last call, and those that have
come due. How many come due depends on who sits beside whom: neighbours of like slope seldom pass
one another, so seat players in the order of their slopes. (Seated at random, 100,000 lines with
distinct slopes took twice the replays; the winner is the same in any order.)
Memory: a few flat lists of n, and nothing that grows with time. Integers only; nothing is rounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

NOBODY: Final = -1
"""The winner where no seat is taken."""

END: Final = (1 << 30) - 1
"""Moments are below this. As a due time it means never, and it is still one digit to Python."""


class KineticTournament:
    """The greatest of up to `capacity` lines at a moment t, below `END`, that never goes back.

    `put(seat, start, slope)` seats a player or changes its line, `drop(seat)` unseats it,
    `lower(seat, by)` moves its line down, `value(seat, t)` reads it, and `first(t)` is the seat of
    the greatest. Of equals the one with the lower ``rank[seat]`` is first; ranks differ, and that
    of a taken seat does not change. Seats count from 0.
    """

    __slots__ = ("_changed", "_due", "_levels", "_rank", "_winner", "capacity", "slope", "start")

    def __init__(self, capacity: int, rank: Sequence[int]) -> None:
        self.capacity = seats = 1 << max(1, (capacity - 1).bit_length())
        self._rank = rank
        # Node i has the children 2i and 2i + 1; node 1 is the root, seat k is node seats + k.
        self._winner = [NOBODY] * (2 * seats)
        # When a node must be replayed: 0 = at once, as all are to begin with; a seat never is.
        self._due = [0] * seats + [END] * seats
        # The first seat changed since the last replay. Often it is the only one, the winner having
        # been lowered, and then which nodes to replay is known without marking and searching.
        self._changed = NOBODY
        self._levels = range(seats.bit_length() - 1, 0, -1)
        # The lines, by seat. What a vacant seat has here is never looked at.
        self.start = [0] * seats
        self.slope = [0] * seats

    def put(self, seat: int, start: int, slope: int) -> None:
        """Seat a player, or give the one there a new line. O(log n)."""
        self.start[seat] = start
        self.slope[seat] = slope
        self._winner[self.capacity + seat] = seat
        self._touch(seat)

    def drop(self, seat: int) -> None:
        """Vacate `seat`. O(log n)."""
        self._winner[self.capacity + seat] = NOBODY
        self._touch(seat)

    def lower(self, seat: int, by: int) -> None:
        """Move the line of the player at `seat` down. O(log n)."""
        self.start[seat] -= by
        self._touch(seat)

    def value(self, seat: int, t: int) -> int:
        """Where the player at `seat` stands at t."""
        return self.start[seat] + self.slope[seat] * t

    def first(self, t: int) -> int:
        """The seat of the greatest line at t >= 1, of equals the best ranked, or `NOBODY`."""
        if self._changed != NOBODY or self._due[1] <= t:
            self._replay(self._stale_nodes(t), t)
        return self._winner[1]

    def _touch(self, seat: int) -> None:
        """Note that `seat` is not as it was when its matches were played."""
        if self._changed == NOBODY:
            self._changed = seat
        elif self._changed != seat:
            self._mark(seat)

    def _mark(self, seat: int) -> None:
        """Make all nodes above `seat` due at once."""
        due = self._due
        node = (self.capacity + seat) >> 1
        # Above a node that is due at once all are, for a node is due no later than its children.
        while node and due[node]:
            due[node] = 0
            node >>= 1

    def _stale_nodes(self, t: int) -> list[int]:
        """The nodes to be replayed at t, parents before children, the root being one of them."""
        due, changed = self._due, self._changed
        self._changed = NOBODY
        if changed != NOBODY:
            if due[1] > t:
                leaf = self.capacity + changed
                return [leaf >> level for level in self._levels]
            self._mark(changed)
        nodes = [1]
        for node in nodes:  # grows while it is walked
            left = node + node
            if due[left] <= t:
                nodes.append(left)
            if due[left + 1] <= t:
                nodes.append(left + 1)
        return nodes

    def _replay(self, nodes: list[int], t: int) -> None:
        """Play the matches of `nodes` again as of t, from the last to the first."""
        due, winner, rank = self._due, self._winner, self._rank
        start, slope = self.start, self.slope
        for node in reversed(nodes):
            child = node + node
            left, right = winner[child], winner[child + 1]
            soonest, other = due[child], due[child + 1]
            if other < soonest:
                soonest = other
            if right < 0:
                winner[node] = left
            elif left < 0:
                winner[node] = right
            else:
                # Left wins while ahead - closing × t >= 0. All are integers, so where it is worse
                # ranked it must be ahead by 1; right wins while ~ahead + closing × t >= 0.
                ahead = start[left] - start[right]
                if rank[left] > rank[right]:
                    ahead -= 1
                closing = slope[right] - slope[left]
                if ahead >= closing * t:
                    winner[node] = left
                else:
                    winner[node] = right
                    ahead, closing = ~ahead, -closing
                if closing > 0:
                    # The first t at which ahead - closing × t < 0.
                    passed = ahead // closing + 1
                    if passed < soonest:
                        soonest = passed
            due[node] = soonest
