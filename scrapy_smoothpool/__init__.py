"""A proxy pool for Scrapy: smooth weighted round robin, shared least-used, fail-closed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import signals
    from .addon import Addon
    from .exceptions import PoolExhausted, ProxyListError, SmoothPoolError
    from .extension import SmoothPoolExtension, get_pool
    from .middleware import SmoothPoolMiddleware
    from .outcome import Outcome, OutcomePolicy
    from .parsing import parse_proxies
    from .proxy import Proxy
    from .strategies.smooth_wrr import SmoothWeightedRoundRobin

__version__ = "0.1.0"

# Resolved on first use, so that the pure parts can be imported without Scrapy.
_WHERE = {
    "Addon": "addon",
    "Outcome": "outcome",
    "OutcomePolicy": "outcome",
    "PoolExhausted": "exceptions",
    "Proxy": "proxy",
    "ProxyListError": "exceptions",
    "SmoothPoolError": "exceptions",
    "SmoothPoolExtension": "extension",
    "SmoothPoolMiddleware": "middleware",
    "SmoothWeightedRoundRobin": "strategies.smooth_wrr",
    "get_pool": "extension",
    "parse_proxies": "parsing",
    "signals": None,
}

__all__ = [
    "Addon",
    "Outcome",
    "OutcomePolicy",
    "PoolExhausted",
    "Proxy",
    "ProxyListError",
    "SmoothPoolError",
    "SmoothPoolExtension",
    "SmoothPoolMiddleware",
    "SmoothWeightedRoundRobin",
    "get_pool",
    "parse_proxies",
    "signals",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _WHERE[name]
    if module is None:
        return import_module(f".{name}", __name__)
    value: object = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
