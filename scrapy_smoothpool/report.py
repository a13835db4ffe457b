"""The closing table: at a glance, which proxies are worth paying for."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from .pool import MemberView

LONG = 24
"""A pool of more proxies than this is shown by its best, its worst and a sum."""
_SHOWN = 8

_HEADER = (
    "proxy",
    "weight",
    "eff.",
    "picks",
    "share",
    "due",
    "ok",
    "failed",
    "unclear",
    "ejected",
    "last fault",
)
Row = tuple[str, ...]


class Summary:
    """Warnings of one kind: the first few in full, the rest of a burst as one line.

    :param most: warnings in full in any :data:`BURST` seconds.
    """

    BURST = 60.0

    def __init__(self, logger: logging.Logger, what: str, most: int = 5) -> None:
        self._logger = logger
        self._what = what
        self._most = most
        self._began = 0.0
        self._count = 0

    def warn(self, message: str, *args: object) -> None:
        """Log a warning, or count it."""
        now = time.monotonic()
        if now - self._began > self.BURST:
            self.close()
            self._began = now
        self._count += 1
        if self._count <= self._most:
            self._logger.warning(message, *args)

    def close(self) -> None:
        """Say how many were only counted."""
        if self._count > self._most:
            more = self._count - self._most
            self._logger.warning("… and %d more %s within a minute", more, self._what)
        self._count = 0


def closing_table(members: Sequence[MemberView]) -> str:
    """Return the table as text. ``share`` is of all picks, ``due`` is the weight's share."""
    if not members:
        return "(no proxies)"
    if len(members) <= LONG:
        return _render([_row(member, members) for member in members])
    # Best first: what came through it counts, then how little failed.
    ranked = sorted(members, key=lambda m: (-m.successes, m.failures, m.id))
    left_out = ranked[_SHOWN:-_SHOWN]
    rows = [_row(member, members) for member in ranked[:_SHOWN]]
    rows.append(_summed(f"… {len(left_out)} more", left_out, members))
    rows += [_row(member, members) for member in ranked[-_SHOWN:]]
    rows.append(_summed(f"all {len(members)}", members, members))
    return _render(rows)


def _row(member: MemberView, members: Sequence[MemberView]) -> Row:
    picks = sum(m.picks for m in members)
    weight = sum(m.weight for m in members)
    # Another worker may have put it out, and this one never met its fault.
    fault = member.last_fault or member.reason * member.out
    state = "out: " * member.out + "drained " * (member.weight == 0) + fault
    return (
        member.id,
        str(member.weight),
        _plain(0 if member.out else member.effective_weight),
        str(member.picks),
        _percent(member.picks, picks),
        _percent(member.weight, weight),
        str(member.successes),
        str(member.failures),
        str(member.unclear),
        str(member.ejections),
        state,
    )


def _summed(label: str, some: Sequence[MemberView], members: Sequence[MemberView]) -> Row:
    picks = sum(m.picks for m in some)
    weight = sum(m.weight for m in some)
    out = sum(m.out for m in some)
    return (
        label,
        str(weight),
        _plain(sum(m.effective_weight for m in some if not m.out)),
        str(picks),
        _percent(picks, sum(m.picks for m in members)),
        _percent(weight, sum(m.weight for m in members)),
        str(sum(m.successes for m in some)),
        str(sum(m.failures for m in some)),
        str(sum(m.unclear for m in some)),
        str(sum(m.ejections for m in some)),
        f"{out} out" if out else "",
    )


def _plain(number: float) -> str:
    return f"{round(number, 3):.15g}"  # never 1e+04


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _render(rows: Sequence[Row]) -> str:
    table = [_HEADER, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(_HEADER))]
    lines = []
    for row in table:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)
