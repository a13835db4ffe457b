"""Every Redis key of a pool.

All of them begin with ``{prefix}:{<pool>}:``, braces included around the pool's
name: what stands in braces is the *hash tag*, so that on a cluster all keys of a
pool live in one slot and a script may touch several of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from scrapy_smoothpool.exceptions import SettingsError

MAX_NAME = 100
# No braces (they delimit the hash tag), no white space or control characters
# (they make keys that nobody can type), nothing that ACL patterns read as special.
_NAME = re.compile(r"[^\s\x00-\x1f\x7f{}*?\[\]\\]+")


VERSION = "1"
"""Of the form in which a pool is kept: which keys there are and what they hold."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one pool.

    :param prefix: ``SMOOTHPOOL_KEY_PREFIX``.
    :param pool: ``SMOOTHPOOL_POOL``.
    :raises SettingsError: for a name that makes no usable key.
    """

    prefix: str = "smoothpool"
    pool: str = "default"

    def __post_init__(self) -> None:
        _check("SMOOTHPOOL_KEY_PREFIX", self.prefix)
        _check("SMOOTHPOOL_POOL", self.pool)

    @property
    def allocations(self) -> str:
        """Sorted set, id → allocations: the members in rotation."""
        return self._key("allocations")

    @property
    def benched(self) -> str:
        """Sorted set, id → allocations: the members that are out, ejected or being probed."""
        return self._key("benched")

    @property
    def health(self) -> str:
        """Hash, id → what is remembered of a member's outcomes; see :mod:`.verdicts`."""
        return self._key("health")

    @property
    def wakes(self) -> str:
        """Sorted set, id → server time, ms, of the next step of a member that was put out."""
        return self._key("wakes")

    @property
    def unchecked(self) -> str:
        """Sorted set, the same of a member that is out since it has passed no probe yet.

        Whoever is :attr:`benched` is in one of the two.
        """
        return self._key("unchecked")

    @property
    def ejections(self) -> str:
        """Sorted set, id → epoch in which a member that is out was put out."""
        return self._key("ejections")

    @property
    def epoch(self) -> str:
        """String, the clock of ejections: one more for each."""
        return self._key("epoch")

    @property
    def members(self) -> str:
        """Hash, id → line with login: the one place outside a process where a login rests."""
        return self._key("members")

    @property
    def fingerprint(self) -> str:
        """String, which list is live."""
        return self._key("fingerprint")

    @property
    def parked(self) -> str:
        """Sorted set, id → allocations of members that are no longer listed."""
        return self._key("parked")

    @property
    def parked_at(self) -> str:
        """Sorted set, id → server time of parking, s."""
        return self._key("parked_at")

    @property
    def publisher(self) -> str:
        """String with a TTL, token of the worker that is publishing."""
        return self._key("publisher")

    @property
    def retired(self) -> str:
        """Sorted set, the former pool until it is settled."""
        return self._key("retired")

    @property
    def retired_out(self) -> str:
        """Sorted set, those of the former pool who were out, until it is settled."""
        return self._key("retired:out")

    @property
    def stirred(self) -> str:
        """Set, ids whose being in or out has yet to be carried over to the list being published.

        With a TTL; written to while somebody publishes.
        """
        return self._key("stirred")

    @property
    def retired_copied(self) -> str:
        """Hash, id → the count that went into the new pool; until it is settled."""
        return self._key("retired:copied")

    @property
    def version(self) -> str:
        """String, the :data:`VERSION` of whoever first published the pool."""
        return self._key("version")

    @property
    def checked(self) -> tuple[str, str]:
        """String that exists for a moment, and a key that never does: for trying commands."""
        return self._key("checked"), self._key("checked:not")

    def added(self, worker: str) -> str:
        """Return the string with a TTL: number of a worker's last addition to the counts."""
        return self._key(f"added:{worker}")

    def delivered(self, worker: str) -> str:
        """Return the string with a TTL: a worker's last delivery of outcomes, and its reply."""
        return self._key(f"delivered:{worker}")

    def staging(self, token: str) -> tuple[str, ...]:
        """Return the keys of a list being laid out, all with a TTL.

        Allocations, members, copied counts; and of the candidates among them what
        will be in :attr:`benched`, :attr:`wakes`, :attr:`ejections` and :attr:`unchecked`.
        """
        base = self._key(f"staging:{token}")
        kinds = ("allocations", "members", "copied", "benched", "wakes", "ejections", "unchecked")
        return tuple(f"{base}:{kind}" for kind in kinds)

    def _key(self, name: str) -> str:
        return f"{self.prefix}:{{{self.pool}}}:{name}"


def _check(setting: str, name: object) -> None:
    if not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= MAX_NAME else f"{repr(name)[:MAX_NAME]}…"
        raise SettingsError(
            f"{setting} = {shown}: expected a name of 1 to {MAX_NAME} characters without "
            "white space, control characters, braces, brackets, backslashes, '*' and '?'"
        )
