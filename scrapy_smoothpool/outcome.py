"""What a response or an exception says about the proxy it came through.

Blame and retry are two questions (design rule 2):

=============  =====================  =================  ==============================
outcome        counts as              retried elsewhere  examples
=============  =====================  =================  ==============================
success        success                no                 2xx, 3xx
neutral        nothing                no                 404 and other statuses the site
                                                         means, IgnoreRequest, local
                                                         faults such as no descriptors
proxy_error    failure, certain       yes                refused, 407; over plain http
                                                         also closed, garbage, no answer
ambiguous      nothing yet            yes                502/503/504, timeouts and lost
                                                         data inside a tunnel
banned         failure                yes                403, 429; to CONNECT: ambiguous
=============  =====================  =================  ==============================

Over plain http the TCP peer is the proxy, so a connection that breaks is the
proxy's doing. Inside a tunnel proxy and site cannot be told apart; nor can they
when a tunnel does not open, unless it is the login.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from .failures import Fault, fault_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response


class Outcome(StrEnum):
    """What one download said about its proxy."""

    SUCCESS = "success"
    NEUTRAL = "neutral"
    PROXY_ERROR = "proxy_error"
    AMBIGUOUS = "ambiguous"
    BANNED = "banned"

    # Enum's own is written in Python, and not that of the equal text.
    __hash__ = str.__hash__

    @property
    def is_failure(self) -> bool:
        """Whether it counts against the proxy."""
        return self in _FAILURES

    @property
    def retry_elsewhere(self) -> bool:
        """Whether the request deserves another proxy."""
        return self in _RETRIED


_FAILURES = frozenset({Outcome.PROXY_ERROR, Outcome.BANNED})
_RETRIED = frozenset({Outcome.PROXY_ERROR, Outcome.AMBIGUOUS, Outcome.BANNED})

_BANNED_STATUSES = frozenset({403, 429})
_AMBIGUOUS_STATUSES = frozenset({502, 503, 504})

_PROXY_ID = "smoothpool_proxy"  # meta.PROXY_ID, of a layer above

# Certain whatever the target; the rest of the faults is certain over plain http only.
_CERTAIN = frozenset({Fault.LOGIN, Fault.UNREACHABLE})
_NOBODYS = frozenset({Fault.FOREIGN, Fault.LOCAL})


class OutcomePolicy:
    """The default policy. Subclass it and name it in ``SMOOTHPOOL_OUTCOME_POLICY``.

    Called once per download that really went out by a proxy of the pool, never
    for cached or synthetic responses.
    """

    def classify_response(self, request: Request, response: Response) -> Outcome:
        """Return what *response* says. Its body is still compressed here."""
        status = response.status
        if 200 <= status < 400:
            return Outcome.SUCCESS
        if status == 407:
            return Outcome.PROXY_ERROR
        if status in _BANNED_STATUSES:
            return Outcome.BANNED
        if status in _AMBIGUOUS_STATUSES:
            return Outcome.AMBIGUOUS
        return Outcome.NEUTRAL

    def classify_exception(self, request: Request, exception: BaseException) -> Outcome:
        """Return what a download that raised *exception* says."""
        tunnelled = is_tunnelled(request)
        fault = fault_of(exception, tunnelled=tunnelled)
        if fault in _NOBODYS:
            return Outcome.NEUTRAL
        if fault in _CERTAIN:
            return Outcome.PROXY_ERROR
        if fault is Fault.CONNECT or tunnelled:
            return Outcome.AMBIGUOUS
        return Outcome.PROXY_ERROR


def is_tunnelled(request: Request) -> bool:
    """Say whether the proxy only carried bytes of *request*, so that faults may be the site's."""
    return request.url.startswith("https:") or str(request.meta.get(_PROXY_ID)).startswith("socks")
