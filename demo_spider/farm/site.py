"""A real HTTP/1.1 origin, plain and TLS, that knows by which proxy each request came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from .certificate import server_context
from .content import Content, SiteRequest, SiteResponse
from .core import Address, Connection, HandlerFault, Hub, Listener, Source
from .wire import Head, Headers, format_head, read_head, relay_body, request_framing, status_line

Handler = Callable[[SiteRequest], SiteResponse | None]


@dataclass(frozen=True, slots=True)
class Hit:
    """One request as the site received it.

    *via* is the name of the farm's proxy that brought it, None for a DIRECT request;
    *login* is the user name the proxy was given for it.
    """

    time: float
    method: str
    host: str
    path: str
    headers: Headers
    via: str | None
    login: str | None
    tls: bool


class Site:
    """One origin; made by ``Farm.site``.

    A request is answered by what ``respond`` laid on its path, else by *handler*, else
    by the ready-made *content*, else 404.
    """

    def __init__(
        self,
        hub: Hub,
        handler: Handler | None = None,
        *,
        tls: bool = False,
        ipv6: bool = False,
        pages: int = 300,
        robots: str | None = None,
        secure_every: int = 0,
        port: int = 0,
    ) -> None:
        self.handler = handler
        self.content = Content(pages, robots, secure_every)
        self._hub = hub
        self._hits: list[Hit] = []
        self._overrides: dict[str, Handler] = {}
        self.listeners = [Listener(hub, self._serve, ("127.0.0.1", port))]
        self.port = self.listeners[0].port
        self.tls_port: int | None = None
        if tls:
            self.listeners.append(Listener(hub, self._serve, ("127.0.0.1", 0), server_context()))
            self.tls_port = self.listeners[-1].port
        if ipv6:
            self.listeners.append(Listener(hub, self._serve, ("::1", self.port)))
        self.url = f"http://127.0.0.1:{self.port}"
        self._tls_url = f"https://127.0.0.1:{self.tls_port}" if tls else None
        self.content.origins = (self.url, self._tls_url)

    @property
    def tls_url(self) -> str:
        """``https://127.0.0.1:port``.

        :raises RuntimeError: the site was made without ``tls=True``.
        """
        if self._tls_url is None:
            raise RuntimeError("this site has no TLS: make it with tls=True")
        return self._tls_url

    @property
    def hits(self) -> list[Hit]:
        """What has been received so far, in order of arrival."""
        return list(self._hits)

    @property
    def direct(self) -> list[Hit]:
        """The hits that came by none of the farm's proxies."""
        return [hit for hit in self.hits if hit.via is None]

    def url_for(self, path: str = "/", host: str = "127.0.0.1", tls: bool = False) -> str:
        """Return the URL of *path* under one of the site's names."""
        scheme, port = ("https", self.tls_url.rpartition(":")[2]) if tls else ("http", self.port)
        return f"{scheme}://{host}:{port}{path}"

    def respond(
        self,
        path: str,
        handler: Handler | None = None,
        *,
        status: int = 200,
        body: bytes | str = b"",
        headers: tuple[tuple[str, str], ...] = (),
        delay: float = 0.0,
        drop: bool = False,
    ) -> None:
        """From now on answer *path* (with or without its query) this way.

        A *handler* that returns None leaves the request to what was there before.
        """
        raw = body.encode() if isinstance(body, str) else body
        fixed = SiteResponse(status, raw, headers, delay, drop=drop)
        self._overrides[path] = handler or (lambda request: fixed)

    def restore(self, path: str | None = None) -> None:
        """Take back what ``respond`` laid on *path*, or on all paths."""
        if path is None:
            self._overrides.clear()
        else:
            self._overrides.pop(path, None)

    def stop(self) -> None:
        """Cut every connection and refuse new ones."""
        for listener in self.listeners:
            self._hub.run(listener.refuse())

    def start(self) -> None:
        """Accept connections again, on the same ports."""
        for listener in self.listeners:
            self._hub.run(listener.open())

    def clear(self) -> None:
        """Forget the hits so far."""
        self._hits.clear()

    async def _serve(self, client: Connection) -> None:
        remote, local = (client.writer.get_extra_info(key) for key in ("peername", "sockname"))
        if remote is None or local is None:
            return
        key: tuple[Address, Address] = (tuple(remote[:2]), tuple(local[:2]))
        source: Source | None = None
        try:
            while (head := await read_head(client.reader)) is not None:
                source = self._hub.sources.get(key)
                if not await self._answer(client, head, source):
                    return
        finally:
            if source is None or self._hub.sources.get(key) is source:
                self._hub.sources.pop(key, None)

    async def _answer(self, client: Connection, head: Head, source: Source | None) -> bool:
        """Serve one request; True when the connection is good for another."""
        method, target, _ = head.start
        via, login = (source.proxy, source.login) if source else (None, None)
        host = head.get("host") or ""
        self._hits.append(
            Hit(time.monotonic(), method, host, target, head.headers, via, login, client.tls)
        )
        if "100-continue" in (head.get("expect") or "").lower():
            client.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await relay_body(client.reader, request_framing(head), None)
        request = SiteRequest(method, target, head.headers, body, client.tls, via, login)
        try:
            response = self._respond(request)
        except HandlerFault:
            response = SiteResponse(500, b"fault in a handler, see Farm.errors", close=True)
        if response.delay:
            await asyncio.sleep(response.delay)
        if response.drop:
            return False
        alive = head.keeps_alive and not response.close
        client.writer.write(_format(response, method, alive))
        await client.writer.drain()
        return alive

    def _respond(self, request: SiteRequest) -> SiteResponse:
        override = self._overrides.get(request.target) or self._overrides.get(request.path)
        for handler in (override, self.handler, self.content):
            if handler is not None:
                response = self._hub.call(handler, request)
                if response is not None:
                    return response
        return SiteResponse(404, b"not found\n", (("Content-Type", "text/plain"),))


def _format(response: SiteResponse, method: str, alive: bool) -> bytes:
    status, body = response.status, response.body
    headers: Headers = [("Server", "farm"), *response.headers]
    headers.append(("Connection", "keep-alive" if alive else "close"))
    if status in (204, 304) or status < 200:
        body = b""
    elif response.chunked:
        headers.append(("Transfer-Encoding", "chunked"))
        blocks = [body[at : at + 1000] for at in range(0, len(body), 1000)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(block), block) for block in blocks) + b"0\r\n\r\n"
    else:
        headers.append(("Content-Length", str(len(body))))
    head = format_head(status_line(status), headers)
    return head if method == "HEAD" else head + body
