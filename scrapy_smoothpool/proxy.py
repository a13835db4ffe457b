"""One proxy: where it is, how to log in, how much it can carry, what it is called.

Everything that a proxy must satisfy is checked here, once, when the object is
made; whoever holds a :class:`Proxy` need not check again. Only the standard
library is used.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from .turns import Steps, at_once, emptied

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMES = frozenset({"http", "https", "socks4", "socks4a", "socks5", "socks5h"})
MAX_WEIGHT = 1_000_000_000
MAX_NAME_LENGTH = 128

_LOOKED_AT = 1_024
"""Proxies that are merely looked at in one step."""

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}")
# RFC 1123 labels plus the underscore, which vendors put into gateway names.
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOSTNAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
# The last label of a name that inet_aton() and browsers would take for a number.
_NUMERIC_END = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")
# IDNA 2003 (the codec of the standard library) and IDNA 2008 disagree on these:
# sharp s (small, capital), final sigma, zero width (non-)joiner.
_DEVIATIONS = re.compile("[\u00df\u1e9e\u03c2\u200c\u200d]")
# Control characters, line breaks in Unicode's sense, and halves of surrogate pairs.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_HEX_ONLY = re.compile("[0-9A-Fa-f:]+")
_NAME = re.compile(r"[\w.:/\[\]#-]+")
_LINE = re.compile(
    r"(?P<scheme>[a-z0-9]+)://"
    r"(?:(?P<username>[^:@\s]*)(?::(?P<password>[^:@\s]*))?@)?"
    r"(?:\[(?P<ipv6>[^\]\s]*)\]|(?P<host>[^:@\s]*)):(?P<port>[0-9]{1,5})"
    r"(?: weight=(?P<weight>[0-9]{1,10}))?(?: name=(?P<name>\S+))?(?P<close> close=yes)?"
)


class InvalidProxy(ValueError):
    """A proxy that cannot exist; the message says why and never holds a login."""


@dataclass(frozen=True, slots=True, repr=False)
class Proxy:
    """A proxy server and the login to use it with.

    :param scheme: one of :data:`SCHEMES`; kept in lower case.
    :param host: address or name without brackets; kept in lower case, IPv6
        compressed, international names as punycode.
    :param port: 1 to 65535.
    :param username: login name, not percent-encoded; ``None`` for no login.
    :param password: not percent-encoded; ``None`` if there is none.
    :param weight: share of the traffic relative to the others, an integer;
        0 means drained: known, but not to be picked.
    :param name: replaces the whole id.
    :param password_in_id: whether the id's hash takes in the password too; set
        by :func:`distinguish` where the user name does not tell entries apart.
    :param close: whether a connection serves one request only, as a gateway with
        another exit for each connection needs it.

    :attr:`id` is what logs, stats and Redis show: ``scheme://host:port``, with a
    login followed by ``#`` and 16 hex digits of SHA-256 over the user name.

    Equality and hash are by value, login included; ``repr`` and ``str`` show the
    id and the weight only, because even a user name may be an API key.

    :raises ValueError: (as :class:`InvalidProxy`) if a part cannot be used.
    """

    scheme: str
    host: str
    port: int
    username: str | None = None
    password: str | None = None
    weight: int = 1
    name: str | None = None
    password_in_id: bool = field(default=False, kw_only=True)
    close: bool = field(default=False, kw_only=True)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        # Frozen: canonical forms are put in place behind the dataclass's back.
        if not isinstance(self.scheme, str) or not isinstance(self.host, str):
            raise InvalidProxy("scheme and host must be text")
        if self.scheme not in SCHEMES:
            object.__setattr__(self, "scheme", canonical_scheme(self.scheme))
        host = canonical_host(self.host)
        if host is not self.host:
            object.__setattr__(self, "host", host)
        check_port(self.port)
        weight = self.weight
        if weight != 1 or type(weight) is not int:
            check_weight(weight)
        if self.username is not None or self.password is not None:
            _check_login(self.username, self.password)
        if self.name is not None:
            _check_name(self.name)
        object.__setattr__(self, "id", self._make_id())

    def _make_id(self) -> str:
        if self.name is not None:
            return self.name
        if self.username is None:
            return self.address
        told = self.username
        if self.password_in_id:
            # No user name holds a NUL, so no two pairs give the same text.
            told = f"{told}\0{self.password or ''}"
        return f"{self.address}#{sha256(told.encode()).hexdigest()[:16]}"

    @property
    def address(self) -> str:
        """``scheme://host:port``, IPv6 in brackets, without the login."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def has_login(self) -> bool:
        """Whether a user name is to be sent to the proxy."""
        return self.username is not None

    @property
    def url(self) -> str:
        """The full URL for ``meta["proxy"]``, login percent-encoded. A secret.

        A missing password is written ``user:@host``, since Scrapy's
        HttpProxyMiddleware raises TypeError on ``user@host``.
        """
        if self.username is None:
            return self.address
        return self._url_with(
            f"{quote(self.username, safe='')}:{quote(self.password or '', safe='')}"
        )

    def _url_with(self, login: str) -> str:
        scheme, _, server = self.address.partition("://")
        return f"{scheme}://{login}@{server}"

    def to_line(self) -> str:
        """The proxy as one canonical line of a list. A secret.

        :meth:`from_line` and ``parse_proxies`` read it back. The line does not
        say :attr:`password_in_id`, which depends on the rest of the list.
        """
        line = self.address
        if self.username is not None:
            login = quote(self.username, safe="")
            if self.password is not None:
                login = f"{login}:{quote(self.password, safe='')}"
            line = self._url_with(login)
        if self.weight != 1:
            line = f"{line} weight={self.weight}"
        if self.name is not None:
            line = f"{line} name={self.name}"
        return f"{line} close=yes" if self.close else line

    @classmethod
    def from_line(cls, line: str, id: str | None = None) -> Proxy:
        """Read back what :meth:`to_line` wrote.

        :param id: the id under which the line was kept; tells whether the
            password was part of it.
        :raises ValueError: (as :class:`InvalidProxy`) if the line is not of that
            form or belongs to another id.
        """
        match = _LINE.fullmatch(line)
        if match is None:
            raise InvalidProxy("not a line as written by Proxy.to_line()")
        proxy = cls(
            match["scheme"],
            match["ipv6"] or match["host"],
            int(match["port"]),
            percent_decoded(match["username"]),
            percent_decoded(match["password"]),
            int(match["weight"] or 1),
            match["name"],
            close=match["close"] is not None,
        )
        if id is None or proxy.id == id:
            return proxy
        proxy = _with_password_in_id(proxy)
        if proxy.id != id:
            raise InvalidProxy("the line belongs to another proxy than the id it is kept under")
        return proxy

    def __repr__(self) -> str:
        return f"<Proxy {self.id} weight={self.weight}>"


def tell_apart(proxies: Iterable[Proxy]) -> list[Proxy]:
    """Take the password into the ids of those that differ in nothing else.

    Some vendors keep the session in the password, so that the user name is the
    same in thousands of entries. All entries of such a group get the longer
    hash, whatever their order. A missing and an empty password count as one,
    since the same header is sent for both.
    """
    return at_once(tell_apart_in_steps(list(proxies)))


def tell_apart_in_steps(proxies: list[Proxy]) -> Steps[list[Proxy]]:
    """Do what :func:`tell_apart` does, in steps."""
    first: dict[str, str] = {}
    ambiguous: set[str] = set()
    for number, proxy in enumerate(proxies):
        if proxy.username is not None and proxy.name is None:
            password = proxy.password or ""
            if first.setdefault(proxy.id, password) != password:
                ambiguous.add(proxy.id)
        if not number % _LOOKED_AT:
            yield
    yield from emptied(first)
    if not ambiguous:
        return proxies
    told = []
    for number, proxy in enumerate(proxies):
        again = proxy.name is None and proxy.id in ambiguous
        told.append(_with_password_in_id(proxy) if again else proxy)
        if not number % (_LOOKED_AT // 16):
            yield
    return told


def _with_password_in_id(proxy: Proxy) -> Proxy:
    return Proxy(
        proxy.scheme,
        proxy.host,
        proxy.port,
        proxy.username,
        proxy.password,
        proxy.weight,
        proxy.name,
        password_in_id=True,
        close=proxy.close,
    )


def distinguish(proxies: Iterable[Proxy]) -> list[Proxy]:
    """Return *proxies* in the same order, each with an id of its own.

    :raises ValueError: (as :class:`InvalidProxy`) if ids still collide: the same
        proxy twice, the same ``name`` twice, or a name that is another's id.
    """
    result = tell_apart(proxies)
    doubled = [id_ for id_, count in Counter(proxy.id for proxy in result).items() if count > 1]
    if doubled:
        raise InvalidProxy(
            f"several proxies share the id {doubled[0]}; give each a name= of its own"
        )
    return result


# What most logins have encoded: "40" → "@".
_ASCII = {f"{code:02{case}}": chr(code) for code in range(128) for case in "xX"}


def percent_decoded(text: str | None) -> str | None:
    """Decode ``%XX`` in one part of a login; a ``%`` without two hex digits stays.

    :raises ValueError: (as :class:`InvalidProxy`) if the bytes are not UTF-8.
    """
    if text is None or "%" not in text:
        return text
    first, *rest = text.split("%")
    decoded = [first]
    for part in rest:
        character = _ASCII.get(part[:2])
        if character is None:
            return _decoded(text)
        decoded += (character, part[2:])
    return "".join(decoded)


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        pass  # its text holds the login; it must not even be the context of ours
    raise InvalidProxy("the percent-encoded login is not UTF-8; encode it as UTF-8")


def canonical_scheme(scheme: str) -> str:
    """Return *scheme* in lower case, if it is one of :data:`SCHEMES`."""
    known = scheme.lower()
    if known in SCHEMES:
        return known
    if known == "socks":
        raise InvalidProxy("socks without a version: write socks4:// or socks5://")
    raise InvalidProxy(f"unknown scheme; known are {', '.join(sorted(SCHEMES))}")


def canonical_host(host: str) -> str:
    """Return the one spelling of *host* that ids and URLs use.

    :raises ValueError: (as :class:`InvalidProxy`) if it is neither an IP address
        nor a host name.
    """
    if _IPV4.fullmatch(host) and host != "0.0.0.0":
        return host
    return _canonical_ipv6(host) if ":" in host else _canonical_name(host)


# Gateways: one host with tens of thousands of logins.
@lru_cache(maxsize=1024)
def _canonical_name(host: str) -> str:
    if not host:
        raise InvalidProxy("the host is missing")
    if host == "0.0.0.0":
        raise InvalidProxy("0.0.0.0 is no address to connect to")
    if len(host) > 254:
        raise InvalidProxy("the host name is longer than 253 characters")
    ascii_host = (host if host.isascii() else _punycode(host)).lower()
    if _IPV4.fullmatch(ascii_host):
        return canonical_host(ascii_host)
    if _NUMERIC_END.fullmatch(ascii_host):
        raise InvalidProxy(_why_no_ipv4(ascii_host))
    if len(ascii_host.rstrip(".")) > 253 or not _HOSTNAME.fullmatch(ascii_host):
        raise InvalidProxy("the host is neither an IP address nor a host name")
    return ascii_host


def _why_no_ipv4(host: str) -> str:
    octets = host.split(".")
    if len(octets) == 4 and all(octet.isdigit() for octet in octets):
        if any(len(octet) > 1 and octet[0] == "0" for octet in octets):
            return "an octet of the IPv4 address starts with 0: octal or decimal?"
        return "an octet of the IPv4 address is above 255"
    return "the host ends in a number but is no IPv4 address of four octets"


def _canonical_ipv6(host: str) -> str:
    if _HEX_ONLY.fullmatch(host):
        # Five times as fast; where it refuses, or has its own way to write one (those that
        # begin with zeros), the standard library's Python is asked.
        with contextlib.suppress(OSError):
            packed = socket.inet_pton(socket.AF_INET6, host)
            if packed[0] or packed[1]:
                return socket.inet_ntop(socket.AF_INET6, packed)
    address = None
    if "%" not in host:  # a zone has no place in a URL
        with contextlib.suppress(ValueError):
            address = ipaddress.IPv6Address(host)
    if address is None:
        raise InvalidProxy("the host has ':' in it but is no IPv6 address")
    if address.is_unspecified:
        raise InvalidProxy(":: is no address to connect to")
    if address.ipv4_mapped is not None:
        # str() of these changed in Python 3.13; ids must not depend on it.
        return f"::ffff:{address.ipv4_mapped}"
    return address.compressed


def _punycode(host: str) -> str:
    """Encode an international name; the codec lowers case in its own way (nameprep)."""
    if _DEVIATIONS.search(host):
        raise InvalidProxy(
            "the host has a character that the two versions of IDNA encode differently; "
            "write the name as punycode (xn--…)"
        )
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        pass
    raise InvalidProxy("the host is no valid international name; write it as punycode (xn--…)")


def check_port(port: object) -> int:
    """Return *port*; raise :class:`InvalidProxy` unless it is an integer from 1 to 65535."""
    if type(port) is not int or not 1 <= port <= 65535:
        raise InvalidProxy("the port is not a whole number from 1 to 65535")
    return port


def check_weight(weight: object) -> int:
    """Return *weight*; raise :class:`InvalidProxy` unless it is an integer, 0 (drained) or more."""
    if type(weight) is not int or not 0 <= weight <= MAX_WEIGHT:
        raise InvalidProxy(f"the weight is not a whole number from 0 to {MAX_WEIGHT}")
    return weight


def _check_login(username: object, password: object) -> None:
    if username is None or username == "":
        raise InvalidProxy("a login without a user name; Scrapy would send none at all")
    if not isinstance(username, str) or not isinstance(password, str | None):
        raise InvalidProxy("user name and password must be text")
    if ":" in username:
        raise InvalidProxy("the user name has ':' in it, which Basic authentication cannot carry")
    # A line break would let a list write headers of its own.
    if _FORBIDDEN.search(username) or (password and _FORBIDDEN.search(password)):
        raise InvalidProxy("the login has a control character or line break in it")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise InvalidProxy(
            f"a name is 1 to {MAX_NAME_LENGTH} letters, digits and . : / [ ] # _ - "
            "(no blanks, and no '@': names are shown in logs)"
        )
