"""Every error this package raises, under one base class.

Messages name the setting, the value received and the accepted form; they never
hold a login. Only the standard library is imported here, so that the pure
modules may use these classes.
"""

from __future__ import annotations

from collections.abc import Sequence


class SmoothPoolError(Exception):
    """Base class of all errors raised by scrapy-smoothpool."""


class SettingsError(SmoothPoolError, ValueError):
    """A ``SMOOTHPOOL_…`` setting (or a Scrapy setting it depends on) cannot be used.

    Raised while the crawler is being built, so that the crawl ends with exit
    status 1 before any request goes out.
    """


class ProxyListError(SettingsError):
    """A proxy list holds entries that cannot be understood without guessing.

    :param errors: every bad entry as ``(line number, reason)``, line numbers
        starting at 1, reasons free of secrets.
    :param where: what the list was read from, such as a setting's name or a
        file name.
    """

    def __init__(self, errors: Sequence[tuple[int, str]], where: str = "proxy list") -> None:
        self.errors: list[tuple[int, str]] = list(errors)
        self.where = where
        lines = "; ".join(f"line {number}: {reason}" for number, reason in self.errors)
        super().__init__(f"{where}: {lines}")

    def located(self, where: str) -> ProxyListError:
        """Return the same error naming *where* the list came from."""
        return ProxyListError(self.errors, where)


class PoolExhausted(SmoothPoolError):
    """No proxy was free for a request within the time allowed.

    Reaches the request's errback. It is the pool's own condition: no proxy is
    penalised for it and the request is never sent without a proxy.
    """


class PoolNotReady(SmoothPoolError):
    """The pool could not be opened or is already closed; nothing may be sent."""


class UnsupportedRequest(SmoothPoolError, ValueError):
    """A request that no proxy of this pool can carry, or whose ``proxy`` meta is unusable.

    Raised instead of letting the request out unproxied. Set
    ``meta["smoothpool"] = False`` to send such a request without the pool.
    """


class StoreError(SmoothPoolError):
    """Redis answered with an error that waiting does not mend (login, permission, type)."""


class StoreUnavailable(StoreError):
    """Redis cannot be reached or did not answer in time; it may come back."""
