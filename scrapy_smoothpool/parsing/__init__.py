"""Proxy lists as people really have them, read without guessing.

What has two readings is refused with a reason that says how to write it; no
reason ever repeats a piece of the list, since any piece may be a login.
"""

from __future__ import annotations

from .lists import (
    parse_entries,
    parse_proxies,
    parse_weighted,
    read_entries,
    read_proxies,
    read_weighted,
)

__all__ = [
    "parse_entries",
    "parse_proxies",
    "parse_weighted",
    "read_entries",
    "read_proxies",
    "read_weighted",
]
