"""A server whose time a test sets: the scripts read a list in place of TIME."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from scrapy_smoothpool.store import scripts
from scrapy_smoothpool.store.script import Script

if TYPE_CHECKING:
    import redis

START = 1_700_000_000_000


class ServerClock:
    """Milliseconds of the server's clock, which stands still until it is set."""

    def __init__(self, raw: redis.Redis, key: str, patch: pytest.MonkeyPatch) -> None:
        self.raw, self.key = raw, key
        for name, script in scripts.SCRIPTS.items():
            text = script.text.replace("redis.call('TIME')", f"redis.call('LRANGE', '{key}', 0, 1)")
            sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            patch.setitem(scripts.SCRIPTS, name, Script(name, text, sha))
        self.set(START)

    def set(self, now: int) -> None:
        self.now = now
        self.raw.delete(self.key)
        self.raw.rpush(self.key, now // 1000, now % 1000 * 1000 + 999)

    def pass_(self, seconds: float) -> None:
        self.set(self.now + round(seconds * 1000))
