"""Real forward proxies: plain and CONNECT, with and without logins, well or ill at will."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from .actions import (
    Action,
    Answer,
    Behaviour,
    BreakingAction,
    Forward,
    ProxyHit,
    TunnelClose,
    TunnelHang,
    TunnelReset,
    as_behaviour,
)
from .answers import answer, break_off, credentials
from .core import Connection, HandlerFault, Hub, Listener
from .relay import Outward, Unreachable, forward, split_target, tunnel
from .wire import BadHead, Head, read_head, relay_body, request_framing

Logins = Mapping[str, str] | Sequence[tuple[str, str]]


class ForwardProxy:
    """One forward proxy on one port; made by ``Farm.proxy``.

    All methods may be called from any thread but the farm's own; ``behaviour`` and
    ``on_accept`` take effect from the next request or connection on.
    """

    def __init__(
        self,
        hub: Hub,
        name: str,
        *,
        logins: Logins = (),
        behaviour: Action | Behaviour | None = None,
        on_accept: BreakingAction | None = None,
        weight: int | None = None,
        tag_header: str = "X-Tag",
        rotating: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.name = name
        #: Accepted (user, password) pairs; none means that no login is asked for.
        self.logins: list[tuple[str, str]] = list(
            logins.items() if isinstance(logins, Mapping) else logins
        )
        #: What to do to every connection instead of reading from it.
        self.on_accept: BreakingAction | None = on_accept
        self.weight = weight
        self.tag_header = tag_header
        #: Another exit for each connection: sites see ``name/1``, ``name/2``, … as *via*.
        self.rotating = rotating
        self.listener = Listener(hub, self._serve, (host, port))
        self._hub = hub
        self._behaviour = as_behaviour(behaviour)
        self._hits: list[ProxyHit] = []

    @property
    def behaviour(self) -> Behaviour:
        """What decides on each request; an action or None may be assigned as well."""
        return self._behaviour

    @behaviour.setter
    def behaviour(self, given: Action | Behaviour | None) -> None:
        self._behaviour = as_behaviour(given)

    @property
    def port(self) -> int:
        """The port, the same for the proxy's whole life."""
        return self.listener.port

    @property
    def hits(self) -> list[ProxyHit]:
        """What has been received so far, in order of arrival."""
        return list(self._hits)

    @property
    def connections(self) -> int:
        """Connections open now."""
        return self.listener.connections

    @property
    def connections_max(self) -> int:
        """Most connections open at one time."""
        return self.listener.connections_max

    @property
    def connections_total(self) -> int:
        """Connections ever accepted."""
        return self.listener.connections_total

    @property
    def address(self) -> str:
        """``host:port``."""
        host = self.listener.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def url_for(self, user: str | None = None, password: str = "") -> str:
        """Return the proxy's URL with a login, percent-encoded."""
        login = "" if user is None else f"{quote(user, safe='')}:{quote(password, safe='')}@"
        return f"http://{login}{self.address}"

    @property
    def urls(self) -> list[str]:
        """One URL for each login, or the one without."""
        return [self.url_for(*login) for login in self.logins] or [self.url_for()]

    @property
    def url(self) -> str:
        """The URL with the first login."""
        return self.urls[0]

    @property
    def lines(self) -> list[str]:
        """The URLs as lines of a proxy list, with the weight where one is set."""
        suffix = "" if self.weight is None else f" weight={self.weight}"
        return [url + suffix for url in self.urls]

    @property
    def line(self) -> str:
        """The first of ``lines``."""
        return self.lines[0]

    def stop(self) -> None:
        """Cut every connection and refuse new ones."""
        self._hub.run(self.listener.refuse())

    def start(self) -> None:
        """Accept connections again, on the same port."""
        self._hub.run(self.listener.open())

    def clear(self) -> None:
        """Forget the hits so far."""
        self._hits.clear()

    async def _serve(self, client: Connection) -> None:
        if self.on_accept is not None:
            await break_off(client, self.on_accept)
            return
        exit_ = f"/{self.connections_total}" if self.rotating else ""
        outward = Outward(self._hub, self.name + exit_)
        try:
            while await self._request(client, outward):
                pass
        finally:
            outward.close()

    async def _request(self, client: Connection, outward: Outward) -> bool:
        """Serve one request; True when the connection is good for another."""
        try:
            head = await read_head(client.reader)
            if head is None:
                return False
            hit = self._note(head)
            if hit.kind == "plain":
                split_target(hit.target)
            if "100-continue" in (head.get("expect") or "").lower():
                client.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        except BadHead as error:
            await answer(client, None, Answer(400, body=str(error).encode(), close=True))
            return False
        action: Action
        if self.logins and (hit.login, hit.password) not in self.logins:
            action, hit.done = Answer(407), "login"
        else:
            try:
                action = self._hub.call(self._behaviour, hit) or Forward()
            except HandlerFault:
                hit.done = "fault"
                raise
            hit.done = type(action).__name__.lower()
        if isinstance(action, Forward | Answer) and action.delay:
            await asyncio.sleep(action.delay)
        if isinstance(action, Forward | TunnelClose | TunnelReset | TunnelHang):
            return await self._work(client, head, hit, action, outward)
        await relay_body(client.reader, request_framing(head), None)
        if isinstance(action, Answer):
            hit.status = action.status
            return await answer(client, head, action)
        await break_off(client, action)
        return False

    async def _work(
        self,
        client: Connection,
        head: Head,
        hit: ProxyHit,
        action: Forward | TunnelClose | TunnelReset | TunnelHang,
        outward: Outward,
    ) -> bool:
        def answered(status: int) -> None:
            hit.status = status

        try:
            if hit.kind == "plain":
                login = (hit.login, hit.password)
                return await forward(client, head, login, outward, answered)
            host, _, port = hit.target.rpartition(":")
            if not port.isdecimal():
                raise Unreachable(f"no port in {hit.target!r}")
            origin = await outward.connect(host, int(port), hit.login)
        except Unreachable as error:
            hit.done = "unreachable"
            hit.status = 502
            return await answer(client, head, Answer(502, body=f"{error}\n".encode(), close=True))
        hit.status = 200
        client.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await tunnel(client, origin, None if isinstance(action, Forward) else action)
        return False

    def _note(self, head: Head) -> ProxyHit:
        method, target, _ = head.start
        user, password = credentials(head.get("proxy-authorization"))
        hit = ProxyHit(
            time=time.monotonic(),
            kind="connect" if method == "CONNECT" else "plain",
            method=method,
            target=target,
            tag=head.get(self.tag_header),
            login=user,
            password=password,
            headers=head.headers,
        )
        self._hits.append(hit)
        return hit
