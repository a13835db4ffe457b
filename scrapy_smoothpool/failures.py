"""What a failed download says: where it failed, and what the failure tells besides.

Exceptions are recognised by the *names* of their classes, along the chain of
causes: Scrapy's handlers wrap the errors of libraries that need not be
installed, and the same class means different things under different handlers.
Everything here was measured: ``tests/test_crawl_outcomes.py`` is the table.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Any

RETRY_AFTER_MAX = 86_400.0


class Fault(Enum):
    """Where a download failed."""

    FOREIGN = auto()
    """In another component, which is not known to download anything."""
    LOCAL = auto()
    """On this machine, or meant by the crawl itself: another proxy would not help."""
    LOGIN = auto()
    """The proxy did not accept the login."""
    UNREACHABLE = auto()
    """There was no connection to the proxy."""
    CONNECT = auto()
    """The proxy answered, but opened no tunnel."""
    BROKEN = auto()
    """On an open connection, to the proxy over plain http, inside a tunnel otherwise."""


_LOCAL = frozenset({"ConnectBindError", "NoRouteError", "NotImplementedError", "PoolTimeout"})
_MEANT = frozenset(
    {
        "CloseSpider",
        "DownloadCancelledError",  # larger than DOWNLOAD_MAXSIZE
        "IgnoreRequest",
        "NotSupported",
        "StopDownload",
        "UnsupportedURLSchemeError",
    }
)
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
_LOCAL_ERRNOS = _EXHAUSTED | {errno.ENOBUFS, errno.ENOMEM}
# Local as well, unless another address of the same proxy was reached or refused: a name with
# IPv6 addresses, on a machine without IPv6.
_NO_WAY_OUT = frozenset({errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL})
_PEER_ERRNOS = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT}
    | {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.EPIPE}
)

_UNREACHABLE = frozenset(
    {
        "CannotResolveHostError",
        "ClientProxyConnectionError",
        "ConnectError",
        "ConnectionRefusedError",
        "TCPTimedOutError",
    }
)
_BROKEN = frozenset(
    {
        "ConnectionDone",
        "ConnectionError",
        "ConnectionLost",
        "DownloadConnectionRefusedError",
        "DownloadFailedError",
        "DownloadTimeoutError",
        "ResponseDataLossError",
        "ResponseFailed",
        "SSLError",
        "TimeoutError",
    }
)
# Causes of a "refused" connection that was refused inside the tunnel: the proxy was there.
_BEHIND_PROXY = frozenset(
    {
        "BrokenResourceError",
        "ClientConnectorCertificateError",
        "ClientConnectorSSLError",
        "EndOfStream",
        "SSLError",
        "VerificationError",
    }
)
# No tunnel: TunnelError is http11's, the others are causes, ProxyError also SOCKS's.
_NO_TUNNEL = frozenset({"TunnelError", "ClientHttpProxyError", "ProxyError"})
_OF_DOWNLOADS = _UNREACHABLE | _BROKEN | _NO_TUNNEL
# Where Scrapy's streaming handlers ask for the peer's address: a connection that was reset
# by then has none, and a TypeError or AssertionError is all they say.
_ASKS_FOR_PEER = "_build_base_response_args"
_SOCKS_LOGIN = ("Invalid username", "Requested ")


def fault_of(exception: BaseException, *, tunnelled: bool) -> Fault:
    """Return where the download failed that raised *exception*.

    :param tunnelled: whether the proxy only carries bytes: https, or any target by SOCKS.
    """
    chain = list(_chain(exception))
    names = {cls.__name__ for error in chain for cls in type(error).__mro__}
    if names & _LOCAL or _is_local(chain):
        return Fault.LOCAL
    if _lost_its_peer(exception):
        return Fault.BROKEN
    # What another component raised is its own, whatever failed below it.
    own_names = {cls.__name__ for cls in type(exception).__mro__}
    if not own_names & _OF_DOWNLOADS:
        return Fault.LOCAL if own_names & _MEANT else Fault.FOREIGN
    if names & _NO_TUNNEL:
        return Fault.LOGIN if any(map(_refused_login, chain)) else Fault.CONNECT
    if names & _BEHIND_PROXY and tunnelled:
        return Fault.BROKEN
    if names & _UNREACHABLE or any(map(_timed_out_dialling, chain)):
        return Fault.UNREACHABLE
    return Fault.BROKEN


def is_login_fault(response_or_exception: object) -> bool:
    """Say whether the proxy refused the login: 407 as an answer or to CONNECT, or by SOCKS."""
    if isinstance(response_or_exception, BaseException):
        return any(map(_refused_login, _chain(response_or_exception)))
    return getattr(response_or_exception, "status", None) == 407


def is_descriptor_exhaustion(exception: BaseException) -> bool:
    """Say whether this process or machine had no file descriptor left.

    A look-up that failed for want of one does not say so: ask right after the failure.
    """
    return _is_exhaustion(list(_chain(exception)))


def retry_after(response: Any, now: float | None = None) -> float | None:
    """Return the seconds that ``Retry-After`` asks for, 0 to 86,400; None if it does not.

    :param now: Unix time that a date in it is compared with, the present by default.
    """
    raw = response.headers.get("Retry-After")
    if raw is None:
        return None
    text = (raw.decode("latin-1") if isinstance(raw, bytes) else str(raw)).strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
        seconds = float(text)
    else:
        try:
            date = parsedate_to_datetime(text)
            # A date that names no zone, or "-0000", is in UTC: HTTP knows no other.
            date = date if date.tzinfo else date.replace(tzinfo=UTC)
            seconds = date.timestamp() - (time.time() if now is None else now)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return None if math.isnan(seconds) else min(max(seconds, 0.0), RETRY_AFTER_MAX)


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


def _is_local(chain: list[BaseException]) -> bool:
    codes = {_errno(error) for error in chain}
    if codes & _LOCAL_ERRNOS or (codes & _NO_WAY_OUT and not codes & _PEER_ERRNOS):
        return True
    return _is_exhaustion(chain)


def _is_exhaustion(chain: list[BaseException]) -> bool:
    if any(_errno(error) in _EXHAUSTED for error in chain):
        return True
    unresolved = any(type(error).__name__ == "CannotResolveHostError" for error in chain)
    return unresolved and _none_left()


def _none_left() -> bool:
    """Say whether no descriptor can be opened at this moment."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in _EXHAUSTED
    return False


def _errno(error: object) -> int | None:
    """Return the system's error number; those of name look-ups are another series."""
    if type(error).__name__ == "gaierror":
        return None
    value = getattr(error, "osError", None) or getattr(error, "errno", None)
    if isinstance(value, int):
        return value
    inner = getattr(error, "os_error", None)  # aiohttp's ClientConnectorError
    return None if inner is None else _errno(inner)


def _refused_login(error: BaseException) -> bool:
    """Say whether *error* tells that no tunnel opened because of the login."""
    if type(error).__name__ not in _NO_TUNNEL:
        return False
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return status == 407
    text = str(error)
    if type(error).__name__ == "TunnelError":  # "... [{'status': 407, 'reason': ...}]"
        return re.search(r"'status': 407\b", text) is not None
    return text.startswith(("407", *_SOCKS_LOGIN))


def _timed_out_dialling(error: BaseException) -> bool:
    """Say whether a connection timed out before it was there, which only Twisted tells.

    httpx counts the TLS handshake inside the tunnel as connecting, aiohttp has one
    timeout for everything.
    """
    return type(error).__name__ == "TimeoutError" and type(error).__module__.startswith("twisted")


def _lost_its_peer(exception: BaseException) -> bool:
    if not isinstance(exception, TypeError | AssertionError):
        return False
    trace = exception.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name == _ASKS_FOR_PEER


def describe(exception: BaseException) -> str:
    """Return what a failure was, in a few words that cannot hold a login.

    The names of the error and of its innermost cause; texts are left out, since
    some handlers put the proxy's URL into them.
    """
    chain = list(_chain(exception))
    status = next((s for s in map(_status, chain) if s is not None), None)
    first, last = type(chain[0]).__name__, type(chain[-1]).__name__
    text = first if first == last else f"{first} ({last})"
    return f"{text}, status {status}" if status is not None else text


def _status(error: BaseException) -> int | None:
    status = getattr(error, "status", None)
    if isinstance(status, int) and status:
        return status
    found = _TUNNEL_STATUS.search(str(error))
    return int(found[1]) if found else None


def scrub(exception: BaseException) -> None:
    """Take logins out of the URLs in an exception's text, and causes that tell one.

    aiohttp's errors hold the proxy's URL with its login, and Scrapy logs their
    text and hands the exception to the spider. To be called after the exception
    was classified, which needs the causes.
    """
    exception.args = tuple(
        _USERINFO.sub("://***@", argument) if isinstance(argument, str) else argument
        for argument in exception.args
    )
    for error in list(_chain(exception)):
        for name in ("__cause__", "__context__"):
            inner = getattr(error, name)
            if inner is not None and _USERINFO.search(f"{inner!s} {inner!r}"):
                setattr(error, name, None)


_TUNNEL_STATUS = re.compile(r"'status': (\d{3})")
_USERINFO = re.compile(r"://[^\s/'\"<>]*@")
