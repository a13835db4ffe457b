"""Thousands of forward proxies in one process, as cheap as can be: for benchmarks.

One listening socket takes connections to every address 127.x.y.z, so each address is a proxy. Plain
requests and, after CONNECT, those inside TLS are answered by the proxy itself, with keep-alive
unless the request asks to close. Prints its port; each line on stdin is answered with the number of
connections accepted since the last one. Ends with its parent.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "demo_spider")]

from responder import ANSWER  # noqa: E402

from farm.certificate import server_context  # noqa: E402

LAST = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


class Proxy(asyncio.Protocol):
    """One connection. Requests have no bodies."""

    accepted = 0

    def connection_made(self, transport):
        self.transport = transport
        self.rest = b""
        self.starting = None

    def data_received(self, data):
        self.rest += data
        if self.starting is None:
            self.answer()

    def answer(self):
        *heads, self.rest = self.rest.split(b"\r\n\r\n")
        for head in heads:
            if head.startswith(b"CONNECT "):
                # Not a byte of the handshake may arrive before TLS is there.
                self.transport.pause_reading()
                self.transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
                self.starting = asyncio.get_running_loop().create_task(self.start_tls())
            elif b"connection: close" in head.lower():
                self.transport.write(LAST)
                self.transport.close()
            else:
                self.transport.write(ANSWER)

    async def start_tls(self):
        loop = asyncio.get_running_loop()
        try:
            self.transport = await loop.start_tls(
                self.transport, self, server_context(), server_side=True
            )
        except OSError:
            self.transport.abort()
            return
        self.starting = None
        self.answer()  # what came before the transport was there


class Accepting(Proxy):
    """What the listening socket makes."""

    def connection_made(self, transport):
        Proxy.accepted += 1
        super().connection_made(transport)


class Asked(asyncio.Protocol):
    """The parent's pipe."""

    def data_received(self, data):
        for _ in range(data.count(b"\n")):
            print(Proxy.accepted, flush=True)
            Proxy.accepted = 0

    def connection_lost(self, exc):
        sys.exit(0)


async def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Accepting, "0.0.0.0", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await loop.connect_read_pipe(Asked, sys.stdin)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
