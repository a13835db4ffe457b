"""The farm itself: one event loop in a thread of its own, and everything it serves."""

from __future__ import annotations

import asyncio
import resource
import threading
from typing import TYPE_CHECKING, Any, Self

from .core import DISCONNECTED, Hub, Listener
from .proxies import ForwardProxy, Logins
from .site import Handler, Site

if TYPE_CHECKING:
    from types import TracebackType

    from .actions import Action, Behaviour, BreakingAction

#: Open files a large farm needs; the soft limit is raised to it where the hard one allows.
_FILES = 16_384


class Farm(Hub):
    """A local site and its proxies, on loopback only, served from a background thread::

        with Farm() as farm:
            site = farm.site(tls=True)
            proxy = farm.proxy("a", login=("user", "p@ss"))

    Closing cuts every connection, gives every port back, ends the thread, and raises an
    ``ExceptionGroup`` of the faults that handlers and behaviours had.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[Site] = []
        self.proxies: dict[str, ForwardProxy] = {}
        self._listeners: list[Listener] = []
        self._ending: asyncio.Event | None = None

    def start(self) -> Self:
        """Start the thread; done by ``with``."""
        _raise_file_limit()
        ready = threading.Event()
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self._main(ready)), name="farm", daemon=True
        )
        self.thread.start()
        if not ready.wait(10):
            raise RuntimeError("the farm's thread did not start")
        return self

    def close(self) -> None:
        """Close everything; closing twice is harmless.

        :raises ExceptionGroup: handlers or behaviours had faults.
        """
        self._end()
        errors, self.errors = self.errors, []
        if errors:
            raise BaseExceptionGroup("faults in the farm's handlers", errors)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        self._end()
        for fault in self.errors:
            error.add_note(f"fault in the farm: {fault!r}")

    def site(
        self,
        handler: Handler | None = None,
        *,
        tls: bool = False,
        ipv6: bool = False,
        pages: int = 300,
        robots: str | None = None,
        secure_every: int = 0,
        port: int = 0,
    ) -> Site:
        """Start an origin; ports 80 and 443 of ``*.test`` names lead to the first one."""
        site = Site(
            self,
            handler,
            tls=tls,
            ipv6=ipv6,
            pages=pages,
            robots=robots,
            secure_every=secure_every,
            port=port,
        )
        self._listeners += site.listeners
        site.start()
        self.sites.append(site)
        self.default_ports.setdefault(80, site.port)
        if site.tls_port is not None:
            self.default_ports.setdefault(443, site.tls_port)
        return site

    def proxy(
        self,
        name: str | None = None,
        *,
        login: tuple[str, str] | None = None,
        logins: Logins = (),
        behaviour: Action | Behaviour | None = None,
        on_accept: BreakingAction | None = None,
        listening: bool = True,
        weight: int | None = None,
        tag_header: str = "X-Tag",
        rotating: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> ForwardProxy:
        """Start a proxy; one with many *logins* is a gateway, one not *listening* refuses."""
        name = f"p{len(self.proxies)}" if name is None else name
        if name in self.proxies:
            raise ValueError(f"there is a proxy named {name!r} already")
        proxy = ForwardProxy(
            self,
            name,
            logins=[login] if login else logins,
            behaviour=behaviour,
            on_accept=on_accept,
            weight=weight,
            tag_header=tag_header,
            rotating=rotating,
            host=host,
            port=port,
        )
        self._listeners.append(proxy.listener)
        self.proxies[name] = proxy
        if listening:
            proxy.start()
        return proxy

    def many(self, count: int, prefix: str = "p", **options: Any) -> list[ForwardProxy]:
        """Start *count* proxies alike, named *prefix* and a number; *options* as for ``proxy``."""
        return [self.proxy(f"{prefix}{number}", **options) for number in range(count)]

    async def _main(self, ready: threading.Event) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._fault)
        self._ending = asyncio.Event()
        ready.set()
        await self._ending.wait()
        for listener in self._listeners:
            await listener.close()
        for _ in range(5):  # transports tell their protocols on the next turns
            await asyncio.sleep(0)

    def _end(self) -> None:
        if self.thread is None or self.loop is None or self._ending is None:
            return
        self.loop.call_soon_threadsafe(self._ending.set)
        self.thread.join(30)
        if self.thread.is_alive():
            raise RuntimeError("the farm's thread does not end")
        self.thread = self.loop = None

    def _fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        # Cancelled: a TLS handshake that was still going on when the farm closed.
        if not isinstance(error, (*DISCONNECTED, asyncio.CancelledError)):
            self.errors.append(error)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS has a further ceiling of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 10_240), hard))
