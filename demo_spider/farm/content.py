"""What a site serves when a test gives nothing of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from urllib.parse import parse_qsl, urlsplit

from .wire import Headers, header

#: Links on each page lead to this many further ones.
FANOUT = 10


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """One request as a site received it; *via* and *login* say which proxy brought it."""

    method: str
    target: str
    headers: Headers
    body: bytes
    tls: bool
    via: str | None
    login: str | None

    @property
    def path(self) -> str:
        """The path, without the query."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """The query's fields, the last of each name."""
        return dict(parse_qsl(urlsplit(self.target).query))

    @property
    def host(self) -> str:
        """The Host header's name, without the port."""
        return urlsplit(f"//{header(self.headers, 'host') or ''}").hostname or ""


@dataclass(frozen=True, slots=True)
class SiteResponse:
    """An answer: sent after *delay* seconds, or (*drop*) never, the connection being closed."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    chunked: bool = False
    close: bool = False
    drop: bool = False


def html(text: str, status: int = 200, delay: float = 0.0) -> SiteResponse:
    """Return an HTML page."""
    headers = (("Content-Type", "text/html; charset=utf-8"),)
    return SiteResponse(status, f"<!doctype html>\n{text}\n".encode(), headers, delay)


@dataclass(slots=True)
class Content:
    """The ready-made paths.

    ``/`` and ``/page/N`` (N up to *pages*): a tree of linked pages, page N leading to
    10N+1 … 10N+10; ``/robots.txt``: *robots*, None for 404; ``/redirect?to=URL[&status=N]``;
    ``/status/N``; ``/echo``: the request as JSON; ``/slow?s=SECONDS``;
    ``/bytes?n=N[&chunked=1]``.

    With *secure_every* = k, links to each k-th page lead to *origins* [1] (https), all
    others to [0]; both are set by the site.
    """

    pages: int = 300
    robots: str | None = None
    secure_every: int = 0
    origins: tuple[str, str | None] = field(default=("", None))

    def __call__(self, request: SiteRequest) -> SiteResponse | None:
        """Return the answer, None where there is nothing at this path."""
        path, query = request.path, request.query
        head, _, tail = path.strip("/").partition("/")
        if path == "/":
            return self.page(0, request)
        if head == "page" and tail.isdecimal() and 0 < int(tail) <= self.pages:
            return self.page(int(tail), request)
        if head == "status" and tail.isdecimal():
            return html(f"<p>status {tail}</p>", int(tail))
        match path:
            case "/robots.txt" if self.robots is not None:
                return SiteResponse(200, self.robots.encode(), (("Content-Type", "text/plain"),))
            case "/redirect":
                status = int(query.get("status", 302))
                return SiteResponse(status, headers=(("Location", query.get("to", "/")),))
            case "/echo":
                return _echo(request)
            case "/slow":
                return html("<p>slow</p>", delay=float(query.get("s", 1)))
            case "/bytes":
                body = b"x" * int(query.get("n", 1000))
                return SiteResponse(200, body, chunked="chunked" in query)
        return None

    def page(self, number: int, request: SiteRequest) -> SiteResponse:
        """Return page *number*, 0 being the front page."""
        below = range(FANOUT * number + 1, min(FANOUT * (number + 1), self.pages) + 1)
        title = f"Page {number}" if number else "Front page"
        links = (f'<li><a href="{escape(self.link(n, request))}">Page {n}</a>' for n in below)
        items = "\n".join(links)
        return html(f"<title>{title}</title>\n<h1>{title}</h1>\n<ul>\n{items}\n</ul>")

    def link(self, number: int, request: SiteRequest) -> str:
        """Return the link to page *number*: absolute where the scheme changes."""
        path = f"/page/{number}"
        plain, secure = self.origins
        to_tls = bool(secure and self.secure_every and number % self.secure_every == 0)
        if not self.secure_every or to_tls == request.tls:
            return path
        parts = urlsplit((secure if to_tls else plain) or plain)
        return f"{parts.scheme}://{request.host}:{parts.port}{path}"


def _echo(request: SiteRequest) -> SiteResponse:
    seen = {
        "method": request.method,
        "target": request.target,
        "headers": request.headers,
        "body": request.body.decode("latin-1"),
        "tls": request.tls,
    }
    return SiteResponse(200, json.dumps(seen).encode(), (("Content-Type", "application/json"),))
