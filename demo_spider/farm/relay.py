"""The working half of a proxy: connections outward, plain requests, tunnels."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .actions import TunnelAction, TunnelHang, TunnelReset
from .core import DISCONNECTED, Address, Connection, Hub, Source
from .wire import (
    HEAD_LIMIT,
    BadHead,
    Head,
    Headers,
    end_to_end,
    format_head,
    read_head,
    relay_body,
    request_framing,
    response_framing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Unreachable(Exception):
    """The origin could not be reached, or went away without an answer."""


@dataclass(slots=True)
class Outward:
    """The outgoing connections that serve one client connection, kept alive between requests."""

    hub: Hub
    name: str
    _open: dict[tuple[Address, str | None, str | None], Streams] = field(default_factory=dict)

    async def connect(self, host: str, port: int, login: str | None) -> Streams:
        """Open a connection to an origin, booked under this proxy's name before any byte.

        :raises Unreachable: the name does not resolve, or nobody listens there.
        """
        try:
            address = self.hub.resolve(host, port)
            reader, writer = await asyncio.open_connection(*address, limit=HEAD_LIMIT)
        except OSError as error:
            raise Unreachable(str(error)) from error
        local, remote = (writer.get_extra_info(key) for key in ("sockname", "peername"))
        if remote is None:
            writer.transport.abort()
            raise Unreachable("closed at once")
        self.hub.sources[tuple(local[:2]), tuple(remote[:2])] = Source(self.name, login)
        return reader, writer

    async def lend(self, key: tuple[Address, str | None, str | None]) -> Streams:
        """Return an idle connection for *key*, or a new one."""
        streams = self._open.pop(key, None)
        if streams is not None:
            if not (streams[0].at_eof() or streams[1].is_closing()):
                return streams
            streams[1].transport.abort()
        (host, port), login, _ = key
        return await self.connect(host, port, login)

    def keep(self, key: tuple[Address, str | None, str | None], streams: Streams) -> None:
        """Take a connection back for the next request."""
        self._open[key] = streams

    def close(self) -> None:
        """Close what is idle."""
        for _, writer in self._open.values():
            writer.transport.abort()
        self._open.clear()


def split_target(target: str) -> tuple[Address, str, str]:
    """Return an absolute-form target's address, Host header value, and path with query.

    :raises BadHead: it is no http URL.
    """
    try:
        parts = urlsplit(target)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise BadHead(str(error)) from error
    if parts.scheme != "http" or not host:
        raise BadHead(f"not an absolute http URL: {target[:80]!r}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return (host, port), parts.netloc.rpartition("@")[2], path


async def forward(
    client: Connection,
    head: Head,
    login: tuple[str | None, str | None],
    outward: Outward,
    answered: Callable[[int], None],
) -> bool:
    """Carry one plain request to its origin and the answer back; True to go on with *client*.

    *answered* is told the status before its first byte goes to the client.

    :raises Unreachable: nothing was sent to the client yet.
    """
    address, host, path = split_target(head.start[1])
    key = (address, *login)
    reader, writer = await outward.lend(key)
    done = False
    try:
        headers: Headers = [("Host", host)]
        dropped = ("host", "expect")
        headers += [pair for pair in end_to_end(head.headers) if pair[0].lower() not in dropped]
        writer.write(format_head(f"{head.start[0]} {path} HTTP/1.1", headers))
        await relay_body(client.reader, request_framing(head), writer)
        answer = await _answer_head(reader)
        framing = response_framing(answer, head.start[0])
        alive = head.keeps_alive and not framing.until_close
        headers = [*end_to_end(answer.headers), ("Connection", "keep-alive" if alive else "close")]
        answered(int(answer.start[1]))
        client.writer.write(format_head(" ".join(("HTTP/1.1", *answer.start[1:])), headers))
        await relay_body(reader, framing, client.writer)
        await client.writer.drain()
        done = answer.keeps_alive and not framing.until_close
    finally:
        if done:
            outward.keep(key, (reader, writer))
        else:
            writer.transport.abort()
    return alive


async def _answer_head(reader: asyncio.StreamReader) -> Head:
    try:
        while (head := await read_head(reader)) is not None:
            if not head.start[1].startswith("1"):
                return head
    except (ConnectionError, asyncio.IncompleteReadError, BadHead) as error:
        raise Unreachable("the origin's answer is broken") from error
    raise Unreachable("the origin closed without an answer")


async def tunnel(client: Connection, origin: Streams, fault: TunnelAction | None) -> None:
    """Carry bytes both ways until either side ends, or *fault* strikes."""
    reader, writer = origin
    upward = asyncio.create_task(_copy(client.reader, writer))
    try:
        limit = None if fault is None else fault.after_bytes
        await _copy(reader, client.writer, limit)
    finally:
        # Before any await: the farm's close may cancel this task right here.
        writer.transport.abort()
        upward.cancel()
        await asyncio.gather(upward, return_exceptions=True)
    if isinstance(fault, TunnelHang):
        await client.hang()
    elif isinstance(fault, TunnelReset):
        client.reset()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None = None
) -> None:
    """Copy until the end, or until *limit* bytes went; the writer then hears of the end."""
    try:
        while limit is None or limit > 0:
            data = await reader.read(HEAD_LIMIT if limit is None else min(limit, HEAD_LIMIT))
            if not data:
                break
            writer.write(data)
            await writer.drain()
            limit = None if limit is None else limit - len(data)
        ended = limit is None or limit > 0
    except DISCONNECTED:
        ended = True
    if ended:
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()
