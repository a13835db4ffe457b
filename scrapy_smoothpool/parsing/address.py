"""One address: ``[scheme://]`` and host, port and login in the orders in use.

========================  ======================================================
``user:pass@host:port``   the login is percent-decoded; the last ``@`` splits
``host:port@user:pass``   literal; only without a scheme
``host:port:user:pass``   literal; ``http://host:port:user:pass`` too
``user:pass:host:port``   literal
========================  ======================================================

Where two of these readings are possible the address is refused; the URL form
with a scheme always has one reading.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from ..proxy import InvalidProxy, canonical_host, canonical_scheme, check_port, percent_decoded

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_BRACKETS = re.compile(r"(?:(?<=:)|^)\[[0-9A-Fa-f:.]*\](?=:|$)")
_BEFORE_PATH = re.compile(r"([^/?#]*)[/?#]")
_HEX_GROUPS = re.compile(r"[0-9A-Fa-f:.]+")

AS_URL = "write it as http://user:password@host:port"


class Address(NamedTuple):
    """The parts of an address; ``scheme`` is ``None`` where none was written."""

    scheme: str | None
    host: str
    port: int
    username: str | None = None
    password: str | None = None
    # The text ends in the login, so that a trailing comma may belong to it.
    login_last: bool = False


def has_scheme(text: str) -> bool:
    """Whether *text* starts like a URL."""
    return _SCHEME.match(text) is not None


def read_address(text: str) -> Address:
    """Read one address without blanks around it.

    :raises ValueError: (as ``InvalidProxy``) if it has no reading, or several.
    """
    match = _SCHEME.match(text)
    if match is None:
        return _read_around_at(text) if "@" in text else _read_colons(text)
    scheme = canonical_scheme(match[1])
    rest = text[match.end() :]
    if _SCHEME.match(rest):
        raise InvalidProxy("the scheme is there twice")
    if "@" not in rest:
        address = _read_colons(rest)
        if address.login_last and rest.endswith("/"):
            raise InvalidProxy(f"does the '/' belong to the password? {AS_URL}")
        return address._replace(scheme=scheme)
    login, _, server = rest.rpartition("@")
    return _with_login(login, server)._replace(scheme=scheme)


def is_port(text: str) -> bool:
    """Whether *text* is a port number as one writes it."""
    return _PORT.fullmatch(text) is not None and int(text) <= 65535


def is_host(text: str) -> bool:
    """Whether *text* can be a host; IPv6 with or without brackets."""
    try:
        canonical_host(bare_host(text))
    except InvalidProxy:
        return False
    return True


def bare_host(text: str) -> str:
    """Take the brackets off an IPv6 address; leave anything else as it is."""
    if text.startswith("[") and text.endswith("]") and ":" in text:
        return text[1:-1]
    return text


def port_number(text: str) -> int:
    """Return the port, or raise ``InvalidProxy``."""
    if not _PORT.fullmatch(text):
        raise InvalidProxy("the port is not a number from 1 to 65535")
    return check_port(int(text))


def four_fields(first: str, second: str, third: str, fourth: str) -> Address:
    """Tell ``host, port, user, password`` from ``user, password, host, port``."""
    left = is_port(second) and is_host(first)
    right = is_port(fourth) and is_host(third)
    if left and right:
        raise InvalidProxy(f"both halves look like host:port; {AS_URL}")
    if left:
        _refuse_rival(host=first, other=third)
        return Address(None, bare_host(first), int(second), third, fourth, login_last=True)
    if right:
        _refuse_rival(host=third, other=first)
        return Address(None, bare_host(third), int(fourth), first, second)
    if is_port(second):
        canonical_host(bare_host(first))
    if is_port(fourth):
        canonical_host(bare_host(third))
    raise InvalidProxy(f"four fields, none of them a port from 1 to 65535; {AS_URL}")


def _read_around_at(text: str) -> Address:
    first, _, _ = text.partition("@")
    login, _, server = text.rpartition("@")
    left, right = _is_endpoint(first), _is_endpoint(server.removesuffix("/"))
    if left and right:
        raise InvalidProxy(f"both sides of @ look like host:port; {AS_URL}")
    if right:
        if _is_address(_split_colons(first)[0]):
            raise InvalidProxy(f"an IP address before the @ has no usable port; {AS_URL}")
        return _with_login(login, server)
    username, colon, password = server.partition(":")
    # A one-word host before the @ is more likely a login whose server is misspelt.
    if left and first == login and colon and ("." in first or first.startswith("[")):
        host, port = _split_endpoint(first)
        _refuse_rival(host=host, other=username, dotted=True)
        return Address(None, host, port, username, password, login_last=True)
    _split_endpoint(server.removesuffix("/"))
    raise InvalidProxy(f"the address can be read in several ways; {AS_URL}")


def _read_colons(text: str) -> Address:
    fields = _split_colons(text)
    if len(fields) == 4:
        return four_fields(*fields)
    if len(fields) == 3 and not _HEX_GROUPS.fullmatch(text):
        raise InvalidProxy(f"three fields between ':' where host:port was expected; {AS_URL}")
    return Address(None, *_split_endpoint(text.removesuffix("/")))


def _with_login(login: str, server: str) -> Address:
    host, port = _split_endpoint(server.removesuffix("/"))
    path = _BEFORE_PATH.match(login)
    if path is not None:
        # http://gw.example:80/x@y:90 is either a login with a raw '/' or a path.
        before = path[1]
        if _is_endpoint(before) or (":" not in before and "." in before and is_host(before)):
            raise InvalidProxy(
                "a path before the @, or a login with a raw '/', '?' or '#'? "
                "Write these as %2F, %3F, %23 in a login"
            )
    username, colon, password = login.partition(":")
    return Address(
        None, host, port, percent_decoded(username), percent_decoded(password) if colon else None
    )


def _split_endpoint(text: str) -> tuple[str, int]:
    """Split ``host:port``; every reason why it is none is found here."""
    if any(mark in text for mark in "/?#"):
        raise InvalidProxy("a path, query or fragment is not part of a proxy address")
    fields = _split_colons(text)
    if len(fields) > 2:
        _refuse_many_colons(text)
    if len(fields) == 1:
        raise InvalidProxy("no proxy in it: host:port with a port was expected, clients differ")
    port = port_number(fields[1])
    if fields[0].startswith("[") and ":" not in fields[0]:
        raise InvalidProxy("brackets are for IPv6 addresses")
    return canonical_host(bare_host(fields[0])), port


def _refuse_many_colons(text: str) -> NoReturn:
    if _HEX_GROUPS.fullmatch(text):
        raise InvalidProxy(
            "IPv6 without brackets: where does the port start? Write it as [address]:port"
        )
    raise InvalidProxy(f"too many ':', is the rest a password with ':' in it or a name? {AS_URL}")


def _split_colons(text: str) -> list[str]:
    """Split at ``:`` but for those of an IPv6 address in brackets."""
    brackets = _BRACKETS.search(text) if "[" in text else None
    if brackets is None:
        return text.split(":")
    before, after = text[: brackets.start()], text[brackets.end() :]
    return [
        *(before[:-1].split(":") if before else ()),
        brackets[0],
        *(after[1:].split(":") if after else ()),
    ]


def _is_endpoint(text: str) -> bool:
    fields = _split_colons(text)
    return len(fields) == 2 and is_port(fields[1]) and is_host(fields[0])


def _is_address(text: str) -> bool:
    """Whether *text* is an IP address rather than a name."""
    return is_host(text) and (":" in text or text.replace(".", "").isdigit())


def _refuse_rival(host: str, other: str, dotted: bool = False) -> None:
    """Refuse where the user name looks more like the host than the host does."""
    named = (dotted or ("." not in host and ":" not in host)) and "." in other and is_host(other)
    if named or _is_address(other):
        raise InvalidProxy(f"which part is the host? {AS_URL}")
