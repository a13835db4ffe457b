"""A Lua script as it lies in the package."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the digest under which a server knows it."""

    name: str
    text: str
    sha: str

    @classmethod
    def load(cls, name: str) -> Script:
        """Read ``lua/<name>.lua``."""
        text = (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
