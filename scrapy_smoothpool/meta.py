"""Keys in ``request.meta``: the public ones and this package's own.

All values are plain and immutable, since Scrapy shares the values of ``meta``
between a request and its copies, and a JOBDIR pickles them. Nothing here ever
holds a login but ``proxy`` itself, between assignment and outcome.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from scrapy import Request

USE_POOL = "smoothpool"
"""Public: False sends the request without the pool."""
PROXY_ID = "smoothpool_proxy"
"""Public, read-only: the id of the proxy the request was given."""

SITE = "smoothpool_site"
"""Public: the site this request belongs to, for hosts that should be judged as one."""

PROXY = "proxy"
"""Scrapy's: a key present at arrival means that the user chose the proxy."""

ASSIGNED = "_smoothpool_assigned"
"""(proxy id, epoch, site) from assignment to outcome; whoever reads it takes it out."""
SENT = "_smoothpool_sent"
"""There once the request reached the downloader: its pick is spent, an outcome follows. True, or
:data:`CLOSES`."""
CLOSES = "close"
"""Value of :data:`SENT` of a request whose ``Connection`` header is ours."""
TRIES = "_smoothpool_tries"
"""A :class:`Tries`, as a plain tuple, kept across retries; cleared by success and redirect."""
WAIT = "_smoothpool_wait"
"""A :class:`Wait`, as a plain tuple, while the request waits for a proxy."""
RETURNED = "_smoothpool_returned"
"""Seconds waited, set on a request that goes back; the scheduler's signal takes it out. Where it
is still there on arrival, the request has no scheduler (``engine.download_async``)."""

Assigned = tuple[str, int, str]
"""The value of :data:`ASSIGNED`."""

DONT_CACHE = "dont_cache"
"""HttpCacheMiddleware's; set to :data:`OURS` while an answer that asks for a retry passes it."""
OURS = "smoothpool"


class Tries(NamedTuple):
    """What a request has been through. Belongs to one URL: a redirect starts anew."""

    url: str
    retries: int
    """Retries used from the budget of ``SMOOTHPOOL_RETRY_TIMES``."""
    proxies: tuple[str, ...]
    """Ids tried, in order."""
    not_before: float
    """Unix time of the next try: repeated bans are not answered at once."""
    last_not_before: float
    """Unix time from which the last proxy may be tried again if there is no other."""


class Wait(NamedTuple):
    """A request that waits for a proxy."""

    run: str
    """The run that started the wait: after a resume the time starts anew."""
    deadline: float
    """Unix time of the end."""
    priority: int
    dont_filter: bool
    """The request's own values, put back when it gets its proxy."""


NO_TRIES = Tries("", 0, (), 0.0, 0.0)


def tries_of(request: Request) -> Tries:
    """Return what the request has been through; nothing if the entry is of another URL."""
    found = request.meta.get(TRIES)
    if found is None or found[0] != request.url:
        return NO_TRIES
    return Tries(found[0], found[1], tuple(found[2]), found[3], found[4])


def site_of(request: Request) -> str:
    """Return the site a request belongs to: its host, unless ``smoothpool_site`` groups it."""
    site = request.meta.get(SITE)
    if site is not None:
        return str(site)
    return _host(request.url.partition("//")[2].partition("/")[0])


@lru_cache(maxsize=1_000)
def _host(authority: str) -> str:
    """Return the host of what stands between "//" and the path; not parsed at every request."""
    return urlsplit(f"//{authority}").hostname or ""


def take_out(request: Request) -> Assigned | None:
    """Remove everything the assignment caused and return it.

    Runs at the first outcome, before retries or redirects copy ``meta`` and
    before a cache or a JOBDIR stores the request: afterwards a ``proxy`` key
    means that the user set it, and no login stays behind. None if the request
    has no assignment of ours; then nothing is touched.
    """
    meta = request.meta
    assigned: Assigned | None = meta.pop(ASSIGNED, None)
    if assigned is None:
        return None
    if meta.pop(SENT, None) == CLOSES:
        request.headers.pop(b"Connection", None)
    meta.pop(PROXY, None)
    # HttpProxyMiddleware notes in _auth_proxy that the header is its own; a header
    # without the note is the user's.
    if meta.pop("_auth_proxy", None) is not None:
        request.headers.pop(b"Proxy-Authorization", None)
    return assigned
