"""HTTP/1.1 on the wire: heads, body framing, and bodies passed on byte for byte."""

from __future__ import annotations

import asyncio
import http.client
from dataclasses import dataclass

Headers = list[tuple[str, str]]

#: Headers that concern one connection only; a proxy does not pass them on.
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "upgrade",
    }
)
#: Longest head accepted, in bytes; also the readers' buffer limit.
HEAD_LIMIT = 256 * 1024
_BLOCK = 64 * 1024


class BadHead(Exception):
    """What arrived is not an HTTP head."""


@dataclass(frozen=True, slots=True)
class Head:
    """The start line of a request or a response, and its headers as received."""

    start: tuple[str, str, str]
    headers: Headers

    def get(self, name: str) -> str | None:
        """Return the first value of header *name* (any case), or None."""
        return header(self.headers, name)

    @property
    def keeps_alive(self) -> bool:
        """Whether the sender means to use the connection again."""
        version = self.start[0] if self.start[0].startswith("HTTP/") else self.start[2]
        tokens = _tokens(self.get("connection")) | _tokens(self.get("proxy-connection"))
        return "close" not in tokens and (version != "HTTP/1.0" or "keep-alive" in tokens)


@dataclass(frozen=True, slots=True)
class Framing:
    """How a body's end is told: by its length, by chunks, or by the connection's end."""

    length: int = 0
    chunked: bool = False
    until_close: bool = False


def header(headers: Headers, name: str) -> str | None:
    """Return the first value of header *name* (any case), or None."""
    wanted = name.lower()
    return next((value for key, value in headers if key.lower() == wanted), None)


def _tokens(value: str | None) -> set[str]:
    return {token.strip().lower() for token in (value or "").split(",") if token.strip()}


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Read one head; None when the peer closed between messages.

    :raises BadHead: the bytes are not HTTP or the head is too long.
    :raises asyncio.IncompleteReadError: the peer closed inside the head.
    """
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise
        return None
    except asyncio.LimitOverrunError as error:
        raise BadHead("head too long") from error
    lines = raw.decode("latin-1").lstrip("\r\n").split("\r\n")
    start = lines[0].split(" ", 2)
    if len(start) == 2 and start[0].startswith("HTTP/"):
        start.append("")
    if len(start) != 3 or not (start[0].startswith("HTTP/") or start[2].startswith("HTTP/")):
        raise BadHead(f"no HTTP start line: {lines[0][:80]!r}")
    headers: Headers = []
    for line in lines[1:]:
        if line:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadHead(f"no header: {line[:80]!r}")
            headers.append((name, value.strip()))
    return Head((start[0], start[1], start[2]), headers)


def request_framing(head: Head) -> Framing:
    """Return how the body of request *head* is framed."""
    if "chunked" in _tokens(head.get("transfer-encoding")):
        return Framing(chunked=True)
    return Framing(length=_length(head))


def response_framing(head: Head, method: str) -> Framing:
    """Return how the body of response *head* to a *method* request is framed."""
    status = int(head.start[1])
    if method == "HEAD" or status in (204, 304) or 100 <= status < 200:
        return Framing()
    if "chunked" in _tokens(head.get("transfer-encoding")):
        return Framing(chunked=True)
    if head.get("content-length") is None:
        return Framing(until_close=True)
    return Framing(length=_length(head))


def _length(head: Head) -> int:
    value = head.get("content-length") or "0"
    if not value.isdecimal():
        raise BadHead(f"Content-Length {value!r}")
    return int(value)


def end_to_end(headers: Headers) -> Headers:
    """Return *headers* without those meant for one connection only."""
    named = _tokens(header(headers, "connection"))
    return [pair for pair in headers if pair[0].lower() not in HOP_BY_HOP | named]


def format_head(start: str, headers: Headers) -> bytes:
    """Return a head as sent."""
    lines = [start, *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def status_line(status: int) -> str:
    """Return the first line of a response."""
    return f"HTTP/1.1 {status} {http.client.responses.get(status, 'Other')}"


async def relay_body(
    reader: asyncio.StreamReader, framing: Framing, writer: asyncio.StreamWriter | None
) -> bytes:
    """Pass one body on to *writer* exactly as framed; without one, return its raw bytes."""
    kept = bytearray()

    async def put(data: bytes) -> None:
        if writer is None:
            kept.extend(data)
        else:
            writer.write(data)
            await writer.drain()

    if framing.chunked:
        while True:
            line = await reader.readuntil(b"\r\n")
            await put(line)
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError as error:
                raise BadHead(f"chunk size {line[:20]!r}") from error
            if size == 0:
                break
            await put(await reader.readexactly(size + 2))
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            await put(line)
        await put(line)
    elif framing.until_close:
        while data := await reader.read(_BLOCK):
            await put(data)
    else:
        left = framing.length
        while left:
            data = await reader.read(min(left, _BLOCK))
            if not data:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(data)
            await put(data)
    return bytes(kept)
