"""A TCP relay that holds every byte for a while, half of it each way: a distant Redis.

In a process of its own, so that its work is nobody else's. Not run by hand.

Usage: python benchmarks/relay.py PORT SECONDS   (prints its own port; ends with its stdin)
"""

from __future__ import annotations

import asyncio
import sys

from responder import End


async def serve(port, seconds):
    loop = asyncio.get_running_loop()

    async def relay(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, back), pass_on(there, writer))

    async def pass_on(reader, writer):
        while data := await reader.read(65_536):
            loop.call_later(seconds / 2, writer.write, data)
        loop.call_later(seconds / 2, writer.close)

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await loop.connect_read_pipe(End, sys.stdin)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
