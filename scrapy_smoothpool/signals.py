"""Signals: what happened, for whoever listens. Outward only.

Connect with ``crawler.signals.connect(handler, signal=signals.proxy_ejected)``.
All are sent synchronously with keyword arguments; handlers take any subset of
them. No argument holds a login: proxies are named by their id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydispatch import dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.signalmanager import SignalManager

proxy_assigned = object()
"""A request got its proxy. ``request``, ``proxy_id``, ``spider``."""

proxy_outcome = object()
"""A download through a proxy ended. ``request``, ``proxy_id``, ``outcome``
(:class:`~scrapy_smoothpool.Outcome`), ``response`` or None, ``exception`` or None, ``spider``."""

proxy_ejected = object()
"""A proxy was put out. ``proxy_id``, ``reason`` (an outcome), ``duration`` (seconds), ``site``
("" when it is out everywhere), ``spider``."""

proxy_restored = object()
"""An ejected proxy came back. ``proxy_id``, ``reason`` (the outcome that had put it out),
``duration`` (seconds it was out; None where another worker put it out unheard), ``site`` ("" when
it had been out everywhere), ``spider``."""

pool_exhausted = object()
"""No proxy is free; sent once until one is free again. ``reason`` (text), ``duration`` (seconds
until a proxy that is out is due for its probe, None when none is out), ``spider``."""


def receiver(method: Callable[..., object]) -> Callable[..., None]:
    """Return a plain function that calls *method*, for a signal that is sent at every request.

    To a bound method a dispatch costs several calls more: its weak reference is made of Python
    code, and what it does not accept is sorted out. The caller has to keep what this returns.
    """

    def call(**arguments: object) -> None:
        method(**arguments)

    return call


_EVERYBODY = dispatcher.Any
_ANY_SENDER = id(_EVERYBODY)


def has_receivers(manager: SignalManager, signal: object) -> bool:
    """Say whether anybody listens to a signal of *manager*'s.

    A dispatch without a receiver costs 3 µs, which shows at every request; this a tenth.
    """
    connections = dispatcher.connections
    # An entry is there from the first receiver on, and goes with the last.
    found = connections.get(id(manager.sender))
    if found and (signal in found or _EVERYBODY in found):
        return True
    found = connections.get(_ANY_SENDER)
    return bool(found) and (signal in found or _EVERYBODY in found)
