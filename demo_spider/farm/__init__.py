"""A local site and real local forward proxies, for the tests and the demo."""

from __future__ import annotations

from .actions import (
    Action,
    Answer,
    Behaviour,
    Close,
    CloseMidBody,
    CloseMidHeaders,
    Forward,
    Garbage,
    Hang,
    ProxyHit,
    Reset,
    TunnelClose,
    TunnelHang,
    TunnelReset,
    after,
    always,
    chain,
    during,
    every,
    first,
    half,
    matching,
)
from .certificate import certificate_pem
from .content import SiteRequest, SiteResponse, html
from .loop import Farm
from .proxies import ForwardProxy
from .site import Hit, Site

__all__ = [
    "Action",
    "Answer",
    "Behaviour",
    "Close",
    "CloseMidBody",
    "CloseMidHeaders",
    "Farm",
    "Forward",
    "ForwardProxy",
    "Garbage",
    "Hang",
    "Hit",
    "ProxyHit",
    "Reset",
    "Site",
    "SiteRequest",
    "SiteResponse",
    "TunnelClose",
    "TunnelHang",
    "TunnelReset",
    "after",
    "always",
    "certificate_pem",
    "chain",
    "during",
    "every",
    "first",
    "half",
    "html",
    "matching",
]
