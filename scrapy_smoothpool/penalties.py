"""How far a failure lowers a proxy's effective weight. Pure arithmetic.

Three rules, chosen by ``SMOOTHPOOL_PENALTY``:

``consecutive``
    Nothing happens until a proxy has failed more than ``max_fails`` times in a
    row; from then on every further failure costs ``weight // max_fails + 1``.
    The ``+ 1`` makes sure that weight 1 is punished too.
``nginx``
    Every failure costs ``weight // max_fails``, as in nginx's
    ``ngx_http_upstream_free_round_robin_peer``. With weight 1 and max_fails 3
    this is 0: nginx's integer division never punishes small weights.
``off``
    Effective weights stay at the weights.

Every proxy heals by 1 at *every* selection, so on small weights a penalty is
gone within one round. Multiplying all weights by one factor changes no healthy
sequence and makes penalties last: see :func:`auto_scale`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class PenaltyRule(StrEnum):
    """The values of ``SMOOTHPOOL_PENALTY``."""

    CONSECUTIVE = "consecutive"
    NGINX = "nginx"
    OFF = "off"


def penalty(rule: PenaltyRule, *, weight: int, max_fails: int, consecutive: int) -> int:
    """Return how much one failure takes off ``effective_weight`` (never negative).

    :param weight: the proxy's weight as the selector knows it (scaled).
    :param max_fails: ``SMOOTHPOOL_MAX_FAILS``, at least 1.
    :param consecutive: failures in a row, the present one included.
    """
    if rule is PenaltyRule.CONSECUTIVE:
        return weight // max_fails + 1 if consecutive > max_fails else 0
    if rule is PenaltyRule.NGINX:
        return weight // max_fails
    return 0


def kept_scale(present: int, wanted: int) -> int:
    """Return *present* while it is more than half and less than twice what is *wanted*.

    A reload that changes a few proxies then leaves the weights of all others alone. What the
    factor does depends on its size, not on its digits: penalties last half as long at worst.
    """
    return present if wanted < 2 * present and present < 2 * wanted else wanted


def auto_scale(weights: Iterable[int], max_fails: int) -> int:
    """Return the factor that makes penalties last: ``ceil(10 × max_fails × n / mean weight)``.

    Drained proxies (weight 0) take no part in selections and are not counted.
    With this factor a proxy that always fails keeps about a tenth of its fair
    share at 10, 100 and 300 proxies; without one it would keep nearly all of it.
    """
    active = [weight for weight in weights if weight > 0]
    return scale_for(len(active), sum(active), max_fails)


def scale_for(count: int, total: int, max_fails: int) -> int:
    """Return what :func:`auto_scale` does, for *count* weights above 0 that make up *total*."""
    if not count:
        return 1
    # mean = total / count, all in integers; -(-a // b) rounds up.
    return max(1, -(-10 * max_fails * count * count // total))
