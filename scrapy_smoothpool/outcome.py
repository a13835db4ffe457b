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
banned         failure                yes                403, 429
=============  =====================  =================  ==============================

Over plain http the TCP peer is the proxy, so a connection that breaks is the
proxy's doing. Inside a CONNECT tunnel proxy and site cannot be told apart.

Exceptions are recognised by the *names* of their classes, along the chain of
causes: Scrapy's handlers wrap the errors of libraries that need not be
installed, and the same class means different things under different handlers.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

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

# Our machine's fault or the program's: another proxy would not help.
_LOCAL = frozenset({"ConnectBindError", "NoRouteError", "NotImplementedError", "PoolTimeout"})
_LOCAL_ERRNOS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL}
)

# Raised before or while the proxy is dialled, whatever the target's scheme.
_UNREACHABLE = frozenset(
    {
        "CannotResolveHostError",
        "ConnectError",
        "TCPTimedOutError",
        "ConnectionRefusedError",
        "ClientProxyConnectionError",
    }
)
# Raised on an open connection: to the proxy over plain http, inside a tunnel otherwise.
_BROKEN = frozenset(
    {
        "DownloadConnectionRefusedError",
        "DownloadFailedError",
        "DownloadTimeoutError",
        "ResponseDataLossError",
        "ConnectionDone",
        "ConnectionLost",
        "ResponseFailed",
        "TunnelError",
        "OSError",
    }
)
# Causes that place a refused connection behind the proxy: the tunnel was there.
_BEHIND_PROXY = frozenset(
    {
        "SSLError",
        "SSLEOFError",
        "SSLZeroReturnError",
        "SSLCertVerificationError",
        "ClientConnectorSSLError",
        "ClientConnectorCertificateError",
        "VerificationError",
        "EndOfStream",
        "BrokenResourceError",
    }
)
# CONNECT was answered with a status: TunnelError (http11), the others by cause.
_CONNECT_ANSWERED = frozenset({"TunnelError", "ClientHttpProxyError", "ProxyError"})
_OF_DOWNLOADS = _UNREACHABLE | _BROKEN | _CONNECT_ANSWERED


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
        chain = list(_chain(exception))
        names = {cls.__name__ for error in chain for cls in type(error).__mro__}
        if names & _LOCAL or any(_errno(error) in _LOCAL_ERRNOS for error in chain):
            return Outcome.NEUTRAL
        # What another component raised is its own, whatever failed below it.
        if not {cls.__name__ for cls in type(exception).__mro__} & _OF_DOWNLOADS:
            return Outcome.NEUTRAL
        if names & _CONNECT_ANSWERED:
            refused_login = any(_connect_status(error) == 407 for error in chain)
            return Outcome.PROXY_ERROR if refused_login else Outcome.AMBIGUOUS
        tunnelled = request.url.startswith("https:")
        if names & _BEHIND_PROXY and tunnelled:
            return Outcome.AMBIGUOUS
        if names & _UNREACHABLE or _dial_timed_out(chain, tunnelled=tunnelled):
            return Outcome.PROXY_ERROR
        return Outcome.AMBIGUOUS if tunnelled else Outcome.PROXY_ERROR


def _chain(exception: BaseException) -> Iterator[BaseException]:
    """Yield *exception* and what caused it, through Twisted's and asyncio's wrappers."""
    seen: set[int] = set()
    queue: list[object] = [exception]
    while queue and len(seen) < 32:  # wrappers nest a few deep; a cycle must not hang us
        error = queue.pop(0)
        if type(error).__name__ == "Failure":  # Twisted's; an exception itself by now
            error = getattr(error, "value", error)
        if not isinstance(error, BaseException) or id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        queue += [error.__cause__, error.__context__]
        queue += getattr(error, "exceptions", ())  # ExceptionGroup
        queue += getattr(error, "reasons", None) or ()  # twisted.web ResponseFailed


def _errno(error: BaseException) -> int | None:
    value = getattr(error, "osError", None) or getattr(error, "errno", None)
    if isinstance(value, int):
        return value
    inner = getattr(error, "os_error", None)  # aiohttp's ClientConnectorError
    return getattr(inner, "errno", None)


def _connect_status(error: BaseException) -> int | None:
    """Return the status with which CONNECT was refused, from the error that tells it."""
    if type(error).__name__ not in _CONNECT_ANSWERED:
        return None
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status
    text = str(error)
    # TunnelError: "... [{'status': 407, ...}]"; ProxyError: "407 Proxy Authentication Required".
    for part in (text.partition("'status': ")[2][:3], text[:3]):
        if part.isdigit():
            return int(part)
    return None


def _dial_timed_out(chain: list[BaseException], *, tunnelled: bool) -> bool:
    """Say whether a timeout happened while the proxy was being dialled."""
    if "DownloadTimeoutError" not in {type(error).__name__ for error in chain}:
        return False
    for error in chain[1:]:
        cls = type(error)
        if cls.__name__ == "TimeoutError" and cls.__module__.startswith("twisted"):
            return True
        # httpx counts the TLS handshake inside the tunnel as connecting, too.
        if cls.__name__ == "ConnectTimeout" and not tunnelled:
            return True
    return False
