"""Lines copied from nginx, HAProxy and Squid configurations.

Only what weights mean is taken over. Accepted and ignored: nginx ``max_fails``,
``fail_timeout``, ``max_conns``; HAProxy ``maxconn``, ``check``, ``inter``,
``fastinter``, ``downinter``, ``rise``, ``fall``; Squid's ICP port, ``no-query``,
``no-digest``, ``no-netdb-exchange``, ``proxy-only``, ``round-robin``,
``weighted-round-robin``, ``max-conn``, ``connect-timeout``: health and limits are
set by ``SMOOTHPOOL_…`` settings for all proxies alike. Whatever takes a server
out of ordinary service (``down``, ``backup``, ``disabled``, ``drain``,
``default``) is refused, as is everything unknown.
"""

from __future__ import annotations

import re

from ..proxy import InvalidProxy
from .address import Address, bare_host, port_number, read_address

_START = re.compile(r"(?:server|cache_peer)\s")
_OUT_OF_SERVICE = frozenset({"down", "backup", "disabled", "drain", "default"})
_NGINX_IGNORED = frozenset({"max_fails", "fail_timeout", "max_conns"})
_HAPROXY_FLAGS = frozenset({"check"})
_HAPROXY_IGNORED = frozenset({"maxconn", "inter", "fastinter", "downinter", "rise", "fall"})
_SQUID_IGNORED = frozenset(
    {"no-query", "no-digest", "no-netdb-exchange", "proxy-only", "round-robin"}
    | {"weighted-round-robin", "max-conn", "connect-timeout"}
)


def is_server_line(line: str) -> bool:
    """Whether *line* starts like a server line of a known program."""
    return _START.match(line) is not None


def read_server_line(line: str) -> tuple[Address, dict[str, str]]:
    """Read a server line into its address and tags (``weight``, ``name``).

    :raises ValueError: (as ``InvalidProxy``) if anything in it is not understood.
    """
    keyword, *words = line.removesuffix(";").split()
    if any(";" in word for word in words):
        raise InvalidProxy("several directives on one line; write one a line")
    if any(word in _OUT_OF_SERVICE for word in words):
        raise InvalidProxy(
            "the server is out of ordinary service (down, backup, …); leave it out, or weight=0"
        )
    if not words:
        raise InvalidProxy("a server line without an address")
    if keyword == "cache_peer":
        return _read_squid(words)
    if len(words) > 1 and ":" not in words[0]:
        return _read_haproxy(words)
    return _server_address(words[0]), _pairs(words[1:], _NGINX_IGNORED)


def _server_address(text: str) -> Address:
    address = read_address(text)
    if address.scheme is not None or address.username is not None:
        raise InvalidProxy("a server line takes host:port only, without scheme or login")
    return address


def _pairs(words: list[str], ignored: frozenset[str], *also: str) -> dict[str, str]:
    """Collect ``weight=N`` and the names in *also*; anything unknown is refused."""
    tags: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key in tags:
            raise InvalidProxy("a parameter is there twice")
        if key == "weight" or key in also:
            tags[key] = value
        elif key not in ignored:
            raise InvalidProxy("a parameter of a server line that is not understood")
    return tags


def _read_haproxy(words: list[str]) -> tuple[Address, dict[str, str]]:
    """Read ``name host:port [parameter [value]]…``; the server's name is not an id."""
    address = _server_address(words[1])
    tags: dict[str, str] = {}
    rest = iter(words[2:])
    for key in rest:
        if key in _HAPROXY_FLAGS:
            continue
        value = next(rest, None)
        if value is None or not (key == "weight" or key in _HAPROXY_IGNORED):
            raise InvalidProxy("a parameter of a server line that is not understood")
        if key == "weight":
            if key in tags:
                raise InvalidProxy("a parameter is there twice")
            tags[key] = value
    return address, tags


def _read_squid(words: list[str]) -> tuple[Address, dict[str, str]]:
    """Read ``host parent port icp-port [option]…``, ``login=user:password`` included."""
    if len(words) < 4 or not words[3].isdigit():
        raise InvalidProxy("a cache_peer line is: cache_peer host parent port icp-port options")
    if words[1] != "parent":
        raise InvalidProxy("only a parent of Squid forwards requests")
    address = Address(None, bare_host(words[0]), port_number(words[2]))
    tags = _pairs(words[4:], _SQUID_IGNORED, "name", "login")
    login = tags.pop("login", None)
    if login is None:
        return address, tags
    username, colon, password = login.partition(":")
    if not colon or username == "*" or "%" in login:
        raise InvalidProxy("of login= only user:password without '%' is understood")
    return address._replace(username=username, password=password), tags
