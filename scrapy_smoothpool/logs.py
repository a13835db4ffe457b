"""Whether a line for the log would be seen by anybody."""

from __future__ import annotations

import logging


def any_handler_for(logger: logging.Logger, level: int) -> bool:
    """Say whether any handler would take a record of *level*.

    Scrapy lets all levels pass to the root's handlers, so a debug line that nobody sees costs
    10 µs, which is too much to pay at every request.
    """
    if not logger.isEnabledFor(level):
        return False
    found: logging.Logger | None = logger
    while found is not None:
        if any(handler.level <= level for handler in found.handlers):
            return True
        found = found.parent if found.propagate else None
    return False
