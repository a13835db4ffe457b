"""A relay in front of a server, to break the network between it and its clients."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING, Self, cast
from urllib.parse import urlsplit, urlunsplit

from .redis_server import TRIES, PortTaken, free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

TIMEOUT = 10.0  # seconds


class TcpRelay:
    """Carries bytes between a port of its own and *target*, both on 127.0.0.1::

        with RedisServer() as server, TcpRelay(server.port) as relay:
            client = Redis.from_url(relay.url_for(server.url))
            relay.stall()

    Every method may be called from any thread, holds for open and new connections, and
    has happened when it returns. Modes add up; ``flow()`` ends them all. What is read is
    buffered without a limit. The port is the same throughout.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.half_delay = 0.0
        self.stalled = False
        self.dropping = False
        self.links: set[_Link] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending: asyncio.Event | None = None
        self._server: asyncio.Server | None = None

    def url_for(self, url: str) -> str:
        """Return *url* with this relay's address in place of its host and port."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}"))

    @property
    def connections(self) -> int:
        """How many client connections are open."""
        return sum(link.client.transport is not None for link in tuple(self.links))

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None

    def delay(self, seconds: float) -> None:
        """Add *seconds* to each round trip, half of them each way; 0 ends it."""

        def set_delay() -> None:
            self.half_delay = seconds / 2
            self._update()

        self._call(set_delay)

    def cut(self) -> None:
        """Reset all open connections, on both sides; new ones are accepted."""
        self._call(self._cut)

    def stall(self) -> None:
        """Accept, and hold all bytes both ways until ``flow()``, which passes them on."""

        def stall() -> None:
            self.stalled = True
            self._update()

        self._call(stall)

    def drop_replies(self) -> None:
        """Pass requests on and discard replies; connections stay open until ``flow()``.

        That one resets those that lost bytes: TCP has no connections with a gap.
        """

        def drop() -> None:
            self.dropping = True

        self._call(drop)

    def refuse(self) -> None:
        """Close the listener and reset all connections."""

        async def refuse() -> None:
            await self._stop_listening()
            self._cut()

        self._call(refuse)

    def flow(self) -> None:
        """Back to normal: no delay, nothing held or discarded, listening."""
        self._call(self._flow)

    def start(self) -> Self:
        """Start the thread and listen; done by ``with``."""
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(ready)), name="tcp-relay", daemon=True
        )
        self._thread.start()
        try:
            ready.result(TIMEOUT)
        except BaseException:
            self._thread.join(TIMEOUT)
            self._thread = None
            raise
        return self

    def close(self) -> None:
        """Reset all connections and end the thread; closing twice is harmless."""
        if self._thread is None or self._loop is None or self._ending is None:
            return
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(TIMEOUT)
        if self._thread.is_alive():
            raise RuntimeError("the relay's thread does not end")
        self._thread = self._loop = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _main(self, ready: concurrent.futures.Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        try:
            await self._listen_somewhere()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        await self._ending.wait()
        await self._stop_listening()
        opening = [link.opening for link in self.links if link.opening is not None]
        self._cut()
        await asyncio.gather(*opening, return_exceptions=True)
        for _ in range(5):  # transports close their sockets on the next turns
            await asyncio.sleep(0)

    async def _listen_somewhere(self) -> None:
        for attempt in range(TRIES):
            # Not one of the system's own choice: while refusing, it would hand it out again.
            self.port = free_port()
            try:
                return await self._listen()
            except OSError as error:
                if attempt == TRIES - 1:
                    raise PortTaken(f"port {self.port} is taken") from error
        raise AssertionError("unreachable")

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Link(self).client, "127.0.0.1", self.port, backlog=1024
        )

    async def _stop_listening(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        # What was accepted on this turn has no transport yet, and asyncio cannot make one for a
        # server that is closed: the socket would stay open.
        for sock in server.sockets:
            asyncio.get_running_loop().remove_reader(sock.fileno())
        for _ in range(5):
            await asyncio.sleep(0)
        server.close()

    def _update(self) -> None:
        for link in tuple(self.links):
            link.update()

    def _cut(self) -> None:
        for link in tuple(self.links):
            link.reset()

    async def _flow(self) -> None:
        self.half_delay = 0.0
        self.stalled = self.dropping = False
        for link in tuple(self.links):
            if link.replies.gap:
                link.reset()
        self._update()
        if self._server is None:
            await self._listen()

    def _call(self, action: Callable[[], object]) -> None:
        if self._loop is None:
            raise RuntimeError("the relay is not running")

        async def act() -> None:
            result = action()
            if asyncio.iscoroutine(result):
                await result

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(TIMEOUT)


class _Link:
    """A client's connection and the one to the target that belongs to it."""

    def __init__(self, relay: TcpRelay) -> None:
        self.relay = relay
        self.requests = _Pipe(self)
        self.replies = _Pipe(self)
        self.client = _End(self, self.requests)
        self.server = _End(self, self.replies)
        self.opening: asyncio.Task[None] | None = None

    def connected(self, end: _End) -> None:
        if end is self.client:
            self.relay.links.add(self)
            if not self.relay.listening:  # it was accepted just before
                self.reset()
                return
            self.opening = asyncio.get_running_loop().create_task(self._open())
        self.update()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.server, "127.0.0.1", self.relay.target)
        except OSError:
            self.reset()
        finally:
            self.opening = None

    def update(self) -> None:
        """Read and write as the relay's modes now have it."""
        for end in (self.client, self.server):
            if end.transport is not None:
                # Until the target is there, bytes are left with the system. Both calls
                # do nothing the second time.
                if self.relay.stalled or self.server.transport is None:
                    end.transport.pause_reading()
                else:
                    end.transport.resume_reading()
        self.requests.flush()
        self.replies.flush()

    def carry(self, pipe: _Pipe, data: bytes) -> None:
        end = self.server if pipe is self.requests else self.client
        if pipe is self.replies and self.relay.dropping:
            pipe.gap = True
        elif end.transport is not None:
            end.transport.write(data)

    def end(self, pipe: _Pipe) -> None:
        """Tell the other side of the end of *pipe*, unless it must not hear of it yet."""
        if pipe is self.requests:
            pipe.close()
            if self.client.transport is None:
                self._close()
            elif self.server.transport is not None:
                with contextlib.suppress(OSError):
                    self.server.transport.write_eof()
            self.replies.flush()  # its end may have waited for this one
        elif self.requests.closed or not self.relay.dropping:
            self._close()  # Redis never closes one direction alone

    def lost(self, end: _End) -> None:
        if self.client.transport is self.server.transport is None:
            self.relay.links.discard(self)
        if end is self.client and self.requests.closed:
            self._close()
        end.onward.feed(None)

    def reset(self) -> None:
        """End both with RST instead of FIN."""
        if self.opening is not None:
            self.opening.cancel()
        for end in (self.client, self.server):
            if end.transport is not None:
                sock = end.transport.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close(abort=True)

    def _close(self, abort: bool = False) -> None:
        self.requests.close()
        self.replies.close()
        for end in (self.client, self.server):
            if end.transport is not None and abort:
                end.transport.abort()
            elif end.transport is not None:
                end.transport.close()


class _End(asyncio.Protocol):
    """One of a link's two connections; *onward* takes what is read from it."""

    def __init__(self, link: _Link, onward: _Pipe) -> None:
        self.link = link
        self.onward = onward
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.link.connected(self)

    def data_received(self, data: bytes) -> None:
        self.onward.feed(data)

    def eof_received(self) -> bool:
        self.onward.feed(None)
        return True  # the other direction stays open

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self.link.lost(self)


class _Pipe:
    """One direction of a link: what was read and when it is due, None standing for the end."""

    def __init__(self, link: _Link) -> None:
        self.link = link
        self.closed = False
        self.gap = False
        self._held: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, data: bytes | None) -> None:
        if not self.closed:
            due = asyncio.get_running_loop().time() + self.link.relay.half_delay
            self._held.append((due, data))
            self.flush()

    def flush(self) -> None:
        self._stop_timer()
        loop, relay = asyncio.get_running_loop(), self.link.relay
        while self._held and not relay.stalled:
            due, data = self._held[0]
            if relay.half_delay and due > loop.time():
                self._timer = loop.call_at(due, self.flush)
                return
            if data is None:
                self.link.end(self)
                return
            self._held.popleft()
            self.link.carry(self, data)

    def close(self) -> None:
        """Carry nothing any more; what is held is lost."""
        self._stop_timer()
        self._held.clear()
        self.closed = True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
