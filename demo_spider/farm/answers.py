"""What a proxy says of its own accord: refusals, broken answers, and reading a login."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from .actions import (
    Answer,
    BreakingAction,
    Close,
    CloseMidBody,
    CloseMidHeaders,
    Garbage,
    Hang,
    Reset,
)
from .wire import Head, Headers, format_head, status_line

if TYPE_CHECKING:
    from .core import Connection


def credentials(value: str | None) -> tuple[str | None, str | None]:
    """Return the user and password of a Basic login; (None, None) where there is none."""
    scheme, _, encoded = (value or "").partition(" ")
    if scheme.lower() != "basic":
        return None, None
    try:
        raw = base64.b64decode(encoded.strip(), validate=True)
    except binascii.Error:
        return None, None
    try:
        user, _, password = raw.decode("utf-8").partition(":")
    except UnicodeDecodeError:
        user, _, password = raw.decode("latin-1").partition(":")
    return user, password


async def answer(client: Connection, head: Head | None, action: Answer) -> bool:
    """Send a proxy's own answer; True when the connection is good for another request."""
    alive = head is not None and head.keeps_alive and not action.close
    headers: Headers = [*action.headers, ("Content-Length", str(len(action.body)))]
    headers.append(("Connection", "keep-alive" if alive else "close"))
    if action.retry_after is not None:
        headers.append(("Retry-After", str(action.retry_after)))
    if action.status == 407 and not any(k.lower() == "proxy-authenticate" for k, _ in headers):
        headers.append(("Proxy-Authenticate", 'Basic realm="farm"'))
    bodiless = head is not None and head.start[0] == "HEAD"
    sent = format_head(status_line(action.status), headers)
    client.writer.write(sent if bodiless else sent + action.body)
    await client.writer.drain()
    return alive


async def break_off(client: Connection, action: BreakingAction) -> None:
    """End the exchange the way *action* says; the connection closes afterwards."""
    write = client.writer.write
    match action:
        case Reset():
            client.reset()
        case Hang():
            await client.hang()
        case Garbage(data):
            write(data)
        case CloseMidHeaders():
            write(b"HTTP/1.1 200 OK\r\nContent-Type: text/ht")
        case CloseMidBody(sent, _, chunked=True):
            part = f"{sent:x}\r\n".encode() + b"x" * sent + b"\r\n"
            write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + part)
        case CloseMidBody(sent, length):
            write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + b"x" * sent)
        case Close():
            pass
