"""What a proxy can do with a request, and when it does it.

An action is a value; a behaviour is a callable that gives one per request::

    proxy.behaviour = half(Answer(403))
    proxy.behaviour = matching(lambda hit: hit.login == "bob", Answer(407))
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .wire import Headers


@dataclass(slots=True)
class ProxyHit:
    """One request as a proxy received it.

    ``status`` is what the client was answered (None: nothing, or still to come);
    ``done`` names what the proxy did, the action's class name in lower case, or
    ``login`` (407 for a missing or wrong one), ``unreachable`` (502), ``malformed`` (400).
    """

    time: float
    kind: Literal["plain", "connect"]
    method: str
    target: str
    tag: str | None
    login: str | None
    password: str | None
    headers: Headers
    status: int | None = None
    done: str = ""


@dataclass(frozen=True, slots=True)
class Forward:
    """Do a proxy's work, after *delay* seconds."""

    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer in the origin's place; at CONNECT no tunnel opens."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    retry_after: int | None = None
    delay: float = 0.0
    close: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection (FIN) without an answer."""


@dataclass(frozen=True, slots=True)
class CloseMidHeaders:
    """End the connection within the head of an answer."""


@dataclass(frozen=True, slots=True)
class CloseMidBody:
    """Answer 200 and close after *sent* of *length* bytes, or before the last chunk."""

    sent: int = 10
    length: int = 1000
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """End the connection with RST."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Never answer, until the client goes or the farm closes."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """Answer with something that is not HTTP, then close."""

    data: bytes = b"\x15\x03\x01 this is not HTTP\r\n\r\n"


@dataclass(frozen=True, slots=True)
class TunnelClose:
    """Open the tunnel, then end it once *after_bytes* came back; plain: forward."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TunnelReset:
    """Open the tunnel, then reset it once *after_bytes* came back; plain: forward."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TunnelHang:
    """Open the tunnel, then go silent once *after_bytes* came back; plain: forward."""

    after_bytes: int = 0


TunnelAction = TunnelClose | TunnelReset | TunnelHang
BreakingAction = Close | CloseMidHeaders | CloseMidBody | Reset | Hang | Garbage
Action = Forward | Answer | BreakingAction | TunnelAction
Behaviour = Callable[[ProxyHit], Action | None]


def always(action: Action) -> Behaviour:
    """Do *action* to every request."""
    return lambda hit: action


def every(n: int, action: Action) -> Behaviour:
    """Do *action* to each *n*-th request; the others are forwarded."""
    return after_counting(lambda count: count % n == 0, action)


def half(action: Action) -> Behaviour:
    """Do *action* to every other request, the second one first."""
    return every(2, action)


def first(n: int, action: Action) -> Behaviour:
    """Do *action* to the first *n* requests, then recover."""
    return after_counting(lambda count: count <= n, action)


def after(n: int, action: Action) -> Behaviour:
    """Forward the first *n* requests, then do *action* to all."""
    return after_counting(lambda count: count > n, action)


def after_counting(test: Callable[[int], bool], action: Action) -> Behaviour:
    """Do *action* to requests whose number (from 1) passes *test*."""
    count = 0

    def behaviour(hit: ProxyHit) -> Action | None:
        nonlocal count
        count += 1
        return action if test(count) else None

    return behaviour


def during(seconds: float, action: Action, start: float = 0.0) -> Behaviour:
    """Do *action* for *seconds*, beginning *start* seconds after the first request."""
    began: float | None = None

    def behaviour(hit: ProxyHit) -> Action | None:
        nonlocal began
        now = time.monotonic()
        began = now if began is None else began
        return action if start <= now - began < start + seconds else None

    return behaviour


def matching(predicate: Callable[[ProxyHit], bool], then: Action | Behaviour) -> Behaviour:
    """Do *then* (an action or another behaviour) to requests that pass *predicate*."""
    behaviour = as_behaviour(then)
    return lambda hit: behaviour(hit) if predicate(hit) else None


def chain(*behaviours: Behaviour) -> Behaviour:
    """Ask *behaviours* in turn; the first that has an action decides."""

    def behaviour(hit: ProxyHit) -> Action | None:
        return next((action for ask in behaviours if (action := ask(hit)) is not None), None)

    return behaviour


def as_behaviour(given: Action | Behaviour | None) -> Behaviour:
    """Return *given* as a behaviour: an action means always, None means forward."""
    if given is None:
        return always(Forward())
    return given if callable(given) else always(given)
