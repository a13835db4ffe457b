"""The kinetic tournament names the greatest line at every moment, whatever was changed between."""

from __future__ import annotations

import random

import pytest

from scrapy_smoothpool.strategies.tournament import NOBODY, KineticTournament, Lines


def seated(*lines, rank=None):
    tournament = KineticTournament(Lines(len(lines), rank or list(range(len(lines)))))
    for seat, line in enumerate(lines):
        tournament.put(seat, *line)
    return tournament


def greatest(lines, rank, t):
    """Look at all of them: the definition."""
    return max(
        lines, key=lambda seat: (lines[seat][0] + lines[seat][1] * t, -rank[seat]), default=NOBODY
    )


def test_the_example_of_the_module_docstring():
    tournament = seated((6, 1), (5, 0), (2, 2), (4, 1))
    assert [tournament.first(t) for t in (1, 2, 3, 4, 5, 6)] == [0, 0, 0, 0, 2, 2]
    assert [tournament._lines.at(seat, 5) for seat in range(4)] == [11, 5, 12, 9]


def test_nobody_wins_where_nobody_sits():
    tournament = seated((1, 1))
    tournament.drop(0)
    assert tournament.first(1) == NOBODY
    assert KineticTournament(Lines(0, [])).first(1) == NOBODY


def test_a_dropped_winner_gives_way_and_may_return():
    tournament = seated((5, 0), (3, 0))
    assert tournament.first(1) == 0
    tournament.drop(0)
    assert tournament.first(2) == 1
    tournament.put(0, 4, 0)
    assert tournament.first(3) == 0
    tournament.lower(0, 2)
    assert tournament.first(4) == 1


@pytest.mark.parametrize("rank", [[0, 1], [1, 0]])
def test_the_better_ranked_wins_from_the_moment_it_is_level(rank):
    # Level at t = 4; the second is the faster one.
    tournament = seated((4, 0), (0, 1), rank=rank)
    first_moment_of_the_faster = 5 if rank == [0, 1] else 4
    for t in range(1, 9):
        assert tournament.first(t) == (1 if t >= first_moment_of_the_faster else 0), t


def test_moments_may_be_skipped():
    tournament = seated((1000, 0), (500, 1), (0, 2), (-500, 3))
    assert tournament.first(1) == 0
    assert tournament.first(10**8) == 3


def test_numbers_of_any_size_are_compared_exactly():
    huge = 10**40
    tournament = seated((huge, huge), (huge + 3, huge - 1), (0, 0))
    assert [tournament.first(t) for t in (2, 3, 4)] == [1, 0, 0]


@pytest.mark.parametrize("seed", range(60))
def test_random_changes_against_looking_at_all(seed):
    rng = random.Random(seed)
    n = rng.choice([1, 2, 3, 7, 16, 33])
    spread = rng.choice([1, 5, 1000, 10**12])
    rank = rng.sample(range(n), n)
    tournament, lines, t = KineticTournament(Lines(n, rank)), {}, 0
    for _ in range(600):
        seat = rng.randrange(n)
        action = rng.random()
        if action < 0.5:
            t += rng.choice([0, 1, 1, 1, 7]) or (not t)
            assert tournament.first(t) == greatest(lines, rank, t), f"seed {seed}, t {t}"
        elif action < 0.75:
            # Slopes grow as the recovering do, and may be negative.
            lines[seat] = (rng.randint(-spread, spread), rng.randint(-spread, spread))
            tournament.put(seat, *lines[seat])
        elif action < 0.9 and seat in lines:
            by = rng.randint(0, spread)
            lines[seat] = (lines[seat][0] - by, lines[seat][1])
            tournament.lower(seat, by)
        elif seat in lines:
            del lines[seat]
            tournament.drop(seat)
