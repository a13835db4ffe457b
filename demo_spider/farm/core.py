"""What sites and proxies share: the hub that knows them all, and listening sockets."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import ipaddress
import socket
import ssl
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .wire import HEAD_LIMIT, BadHead

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

T = TypeVar("T")
Address = tuple[str, int]

#: What a peer that goes away, or that talks nonsense, makes of a connection: not our fault.
DISCONNECTED = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, BadHead, TimeoutError)


class UnknownHost(OSError):
    """A name that the farm's proxies do not resolve."""


class HandlerFault(Exception):
    """A callable handed to the farm raised; the original is in ``Farm.errors``."""


@dataclass(frozen=True, slots=True)
class Source:
    """Which proxy, and which of its logins, opened a connection."""

    proxy: str
    login: str | None


class Hub:
    """The loop's thread-safe doorway, the name table, and who opened which connection."""

    def __init__(self) -> None:
        #: Faults in handlers and behaviours; raised when the farm closes.
        self.errors: list[BaseException] = []
        #: What the proxies resolve: a name or pattern to a loopback address, None to refuse.
        self.hosts: dict[str, str | None] = {
            "localhost": "127.0.0.1",
            "*.test": "127.0.0.1",
            "*.invalid": None,
        }
        #: Where ports 80 and 443 of resolved names lead: the first site's.
        self.default_ports: dict[int, int] = {}
        # Written by a proxy before it sends a byte on an outgoing connection, read by the
        # site when it has parsed a request, dropped by the site when the connection ends.
        self.sources: dict[tuple[Address, Address], Source] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None

    def resolve(self, host: str, port: int) -> Address:
        """Return where a proxy connects to for *host*; never off this machine.

        :raises UnknownHost: the name is not in ``hosts`` or leads off the machine.
        """
        name = host.lower().strip("[]")
        address: str | None = name
        named = not _is_address(name)
        if named:
            found = [
                known for pattern, known in self.hosts.items() if fnmatch.fnmatch(name, pattern)
            ]
            address = self.hosts[name] if name in self.hosts else (found[0] if found else None)
        if address is None or not ipaddress.ip_address(address).is_loopback:
            raise UnknownHost(f"{host} does not resolve here")
        return address, self.default_ports.get(port, port) if named else port

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = 30) -> T:
        """Run *coroutine* on the farm's loop and wait for it, from any other thread."""
        if self.loop is None or threading.current_thread() is self.thread:
            coroutine.close()
            raise RuntimeError("the farm is not running, or this is its own thread")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Call a handler; keep its fault for the farm's close.

        :raises HandlerFault: it raised.
        """
        try:
            return function(*args)
        except Exception as error:
            self.errors.append(error)
            raise HandlerFault from error

    @staticmethod
    def wait_until(predicate: Callable[[], object], timeout: float = 5) -> None:
        """Wait in the calling thread until *predicate* holds.

        :raises TimeoutError: it did not within *timeout* seconds.
        """
        end = time.monotonic() + timeout
        while not predicate():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {timeout} s")
            time.sleep(0.005)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """One accepted connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    tls: bool

    def reset(self) -> None:
        """End it with RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def hang(self) -> None:
        """Take what comes and answer nothing until the peer goes."""
        while await self.reader.read(HEAD_LIMIT):
            pass


class Listener:
    """A port that stays reserved for its whole life, listening or refusing."""

    def __init__(
        self,
        hub: Hub,
        serve: Callable[[Connection], Awaitable[None]],
        address: Address,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._hub = hub
        self._serve = serve
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        # Bound but not listening: connections are refused, and nobody else gets the port.
        self._reserved: socket.socket | None = _bind(address)
        self.host: str = address[0]
        self.port: int = self._reserved.getsockname()[1]
        self.connections = 0
        self.connections_max = 0
        self.connections_total = 0

    async def open(self) -> None:
        """Accept connections."""
        if self._server is None:
            options: dict[str, Any] = {"ssl_shutdown_timeout": 1} if self._tls else {}
            self._server = await asyncio.start_server(
                self._accept,
                sock=self._reserved,
                ssl=self._tls,
                limit=HEAD_LIMIT,
                backlog=1024,
                **options,
            )
            self._reserved = None

    async def refuse(self) -> None:
        """Refuse connections and cut those that are open; the port stays ours."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._reserved = _bind((self.host, self.port))
        await self._cut()

    async def close(self) -> None:
        """Give the port up and cut every connection."""
        if self._server is not None:
            self._server.close()
        if self._reserved is not None:
            self._reserved.close()
        self._server = self._reserved = None
        await self._cut()

    async def _cut(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # accepted just before the port was closed
            _abort(writer)
            return
        connection = Connection(reader, writer, self._tls is not None)
        task = asyncio.get_running_loop().create_task(self._run(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task cancelled before its first step never gets to its own clean-up.
        task.add_done_callback(lambda _: _abort(writer))

    async def _run(self, connection: Connection) -> None:
        self.connections += 1
        self.connections_total += 1
        self.connections_max = max(self.connections_max, self.connections)
        writer = connection.writer
        try:
            await self._serve(connection)
            writer.close()
            await writer.wait_closed()
        except (*DISCONNECTED, HandlerFault):
            pass
        except Exception as error:
            self._hub.errors.append(error)
        finally:
            self.connections -= 1


def _abort(writer: asyncio.StreamWriter) -> None:
    # Python 3.11 up to 3.11.3 forgets the inner transport of a TLS one that is closed already.
    with contextlib.suppress(AttributeError):
        writer.transport.abort()


def _bind(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock
