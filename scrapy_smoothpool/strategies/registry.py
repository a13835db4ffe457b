"""Strategies by the name that ``SMOOTHPOOL_STRATEGY`` gives them."""

from __future__ import annotations

import importlib
import inspect
from typing import cast

from ..exceptions import SettingsError
from .base import Strategy

# Paths, not classes: redis is imported only when a strategy needs it.
STRATEGIES = {
    "smooth_wrr": "scrapy_smoothpool.strategies.in_process.SmoothWRRStrategy",
    "least_used": "scrapy_smoothpool.strategies.least_used.LeastUsedStrategy",
}


def find_strategy(value: object) -> type[Strategy]:
    """Return the strategy class for a name, a dotted path or a class.

    Raises :exc:`~scrapy_smoothpool.exceptions.SettingsError`.
    """
    accepted = " or ".join(f'"{name}"' for name in STRATEGIES)
    accepted += ", or the path of a class with the Strategy interface"
    if inspect.isclass(value):
        found: object = value
    elif isinstance(value, str) and (value in STRATEGIES or "." in value):
        module, _, name = STRATEGIES.get(value, value).rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise SettingsError(
                f"SMOOTHPOOL_STRATEGY is {value!r}, which cannot be imported ({error}); "
                f"accepted: {accepted}"
            ) from None
    else:
        raise SettingsError(f"SMOOTHPOOL_STRATEGY is {value!r}; accepted: {accepted}")
    missing = [name for name in _INTERFACE if not hasattr(found, name)]
    if not inspect.isclass(found) or missing:
        raise SettingsError(
            f"SMOOTHPOOL_STRATEGY is {value!r}, which is no strategy class"
            + (f" (it lacks {', '.join(missing)})" if missing else "")
            + f"; accepted: {accepted}"
        )
    return cast("type[Strategy]", found)


_INTERFACE = sorted(
    name for name in {*vars(Strategy), *Strategy.__annotations__} if not name.startswith("_")
)
