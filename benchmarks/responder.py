"""A forward proxy that answers everything itself, as cheaply as it can: for benchmarks.

In a process of its own. Any number of logins share its one port, so that a list of 10,000 proxies
shares connections and what is compared is the rotation, not the dialling.
"""

from __future__ import annotations

import asyncio
import sys

BODY = b"<html><title>page</title>" + b"<p>some text</p>" * 40 + b"</html>"
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
)


class Responder(asyncio.Protocol):
    """Answers each request head with the same page. Requests have no bodies."""

    def connection_made(self, transport):
        self.transport = transport
        self.rest = b""

    def data_received(self, data):
        *heads, self.rest = (self.rest + data).split(b"\r\n\r\n")
        if heads:
            self.transport.write(ANSWER * len(heads))


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Responder, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await asyncio.get_running_loop().connect_read_pipe(End, sys.stdin)
        await server.serve_forever()


class End(asyncio.Protocol):
    """Ends the process with its parent, whose pipe this is."""

    def connection_lost(self, exc):
        sys.exit(0)


if __name__ == "__main__":
    asyncio.run(main())
