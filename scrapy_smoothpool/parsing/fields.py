"""Named fields, as of a CSV row or a JSON object, to a proxy.

Fields are literal: nothing is percent-decoded but the login inside a URL.
Columns that say nothing about how to use a proxy (country, anonymity, …) are
ignored, unless their name is nearly one that matters.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from ..proxy import SCHEMES, InvalidProxy, Proxy, canonical_host, check_weight
from .address import Address, bare_host, is_host, is_port, port_number, read_address
from .line import make_proxy, quick_address

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROLES = {
    "url": ("url", "proxy", "server", "proxy url", "proxyurl", "ip:port", "host:port"),
    "host": (
        "host",
        "ip",
        "ip address",
        "hostname",
        "address",
        "addr",
        "proxy address",
        "proxy host",
    ),
    "port": ("port", "proxy port"),
    "scheme": ("scheme", "protocol", "protocols"),
    "type": ("type", "proxy type", "proxytype"),
    "username": ("username", "user", "login", "user name", "proxy user", "proxy username"),
    "password": ("password", "pass", "passwd", "pwd", "proxy pass", "proxy password"),
    "weight": ("weight",),
    "name": ("name",),
    "close": ("close", "connection close"),
    "off": ("down", "backup", "disabled", "drain"),
    "on": ("enabled",),
    # Holds a login in a form of its own; without it the proxy would be no use.
    "auth": ("auth", "authorization", "credentials", "proxy authorization"),
}
_ROLE_OF = {alias: role for role, aliases in _ROLES.items() for alias in aliases}
# Long enough that a near miss is a typing error rather than another word.
_EASILY_MISTYPED = [alias for alias in _ROLE_OF if len(alias) > 3]
_TEXTS = ("url", "host", "scheme", "username", "password")
_QUICK = frozenset({*_TEXTS, "port", "weight"})
_URL_AND_WEIGHT = frozenset({"url", "weight"})
_TEXT_OR_NONE = {str, type(None)}
_HOST = re.compile("[A-Za-z0-9._-]+")
# 1 equals True and 0 False.
_TRUE = frozenset({True, "1", "true", "yes", "on"})
_FALSE = frozenset({False, None, "", "0", "false", "no", "off"})


# The same few names come back in every row.
@lru_cache(maxsize=256)
def role_of(name: str) -> str | None:
    """Return what a column is for, or ``None`` if it does not matter.

    :raises ValueError: (as ``InvalidProxy``) if the name is nearly a known one.
    """
    name = re.sub(r"[\s_-]+", " ", name.strip().lower())
    if name in _ROLE_OF:
        return _ROLE_OF[name]
    near = get_close_matches(name, _EASILY_MISTYPED, 1, 0.82)
    if near:
        raise InvalidProxy(f"a column's name is nearly '{near[0]}'; correct or rename it")
    return None


def by_role(record: Mapping[str, object]) -> dict[str, object]:
    """Sort the fields that matter by what they are for."""
    result: dict[str, object] = {}
    for name, value in record.items():
        role = role_of(name)
        if role in ("on", "off"):
            _refuse_out_of_service(role, value)
        elif role is not None:
            if role in result:
                raise InvalidProxy(f"two columns for one thing ({role})")
            result[role] = value
    return result


def read_record(fields: Mapping[str, object]) -> Proxy:
    """Make a proxy of fields sorted by :func:`by_role`.

    :raises ValueError: (as ``InvalidProxy``) if fields are missing, of the wrong
        kind, or contradict each other.
    """
    quick = _quickly(fields)
    if quick is not None:
        return quick
    address = _address(fields)
    scheme = _scheme(fields)
    if scheme is not None:
        if address.scheme not in (None, scheme):
            raise InvalidProxy("the address and the protocol column name different schemes")
        address = address._replace(scheme=scheme)
    if fields.get("auth") not in (None, ""):
        raise InvalidProxy("a login in one column; name a username and a password column")
    address = _with_login(address, fields)
    tags: dict[str, str] = {}
    weight = fields.get("weight")
    if isinstance(weight, str) and weight.strip():
        tags["weight"] = weight.strip()
    name = _text(fields, "name")
    if name:
        tags["name"] = name
    if _is_true(fields.get("close")):
        tags["close"] = "yes"
    if weight is None or isinstance(weight, str):
        return make_proxy(address, tags)
    return make_proxy(address, tags, check_weight(weight))


def _quickly(fields: Mapping[str, object]) -> Proxy | None:
    """Make a proxy of the fields that long lists have; None where there is more to look at."""
    if not _QUICK.issuperset(fields):
        return None
    if _URL_AND_WEIGHT.issuperset(fields):
        return _quickly_of_url(fields.get("url"), fields.get("weight"))
    text, host, scheme, username, password = map(fields.get, _TEXTS)
    port, own = fields.get("port"), _quick_weight(fields.get("weight"))
    if not {type(text), type(host), type(scheme), type(username), type(password)} <= _TEXT_OR_NONE:
        return None
    if own is None or (scheme and scheme not in SCHEMES):
        return None
    if text and not (host or port not in (None, "") or username or password):
        address = quick_address(cast("str", text))
        if address is None or (scheme and address.scheme not in (None, scheme)):
            return None
        own_scheme, host, port, username, password, _ = address
        scheme = own_scheme or scheme
    elif text or not host or not _HOST.fullmatch(cast("str", host)):
        return None
    else:
        port = int(port) if type(port) is str and is_port(port) else port
        if not username and not password:
            username = password = None
    try:
        return Proxy(scheme or "http", host, port, username, password, own)  # type: ignore[arg-type]
    except InvalidProxy:
        return None  # the long way knows the better reason


def _quickly_of_url(text: object, weight: object) -> Proxy | None:
    if type(text) is not str or (address := quick_address(text)) is None:
        return None
    scheme, host, port, username, password, _ = address
    own = _quick_weight(weight)
    if own is None:
        return None
    try:
        return Proxy(scheme or "http", host, port, username, password, own)
    except InvalidProxy:
        return None  # the long way knows the better reason


def _quick_weight(given: object) -> int | None:
    """Read a weight; 1 where none is given, None where there is more to look at."""
    if given is None or given == "":
        return 1
    if type(given) is str and given.isascii() and given.isdigit() and len(given) < 10:
        return int(given)
    return given if type(given) is int else None


def _address(fields: Mapping[str, object]) -> Address:
    url, host = _text(fields, "url"), _text(fields, "host")
    port = _port(fields)
    if url and not host and port is not None and is_host(url.strip()):
        url, host = None, url
    if url:
        address = read_address(url.strip())
        other_host = host and not _same_host(host.strip(), address.host)
        if other_host or port not in (None, address.port):
            raise InvalidProxy("the address and the host or port column differ")
        return address
    if not host:
        raise InvalidProxy("no address in it")
    if port is None:
        return read_address(host.strip())
    return Address(None, bare_host(host.strip()), port)


def _same_host(one: str, other: str) -> bool:
    return canonical_host(bare_host(one)) == canonical_host(bare_host(other))


def _port(fields: Mapping[str, object]) -> int | None:
    port = fields.get("port")
    if port is None or port == "":
        return None
    if type(port) is int:
        return port_number(str(port)) if 0 <= port < 10**6 else port_number("")
    return port_number(port.strip() if isinstance(port, str) else "")


def _scheme(fields: Mapping[str, object]) -> str | None:
    schemes = fields.get("scheme")
    if isinstance(schemes, list):
        if len(schemes) != 1:
            raise InvalidProxy("several protocols for one address; write one entry for each in use")
        schemes = schemes[0]
    scheme = (_text({"scheme": schemes}, "scheme") or "").strip().lower()
    kind = fields.get("type")
    kind = kind.strip().lower() if isinstance(kind, str) else ""
    # "type" is a protocol in some tables and datacenter or elite in others.
    if not scheme:
        if kind and kind not in SCHEMES:
            raise InvalidProxy(
                "the type column names no known scheme; name the scheme or rename it"
            )
        return kind or None
    if scheme not in SCHEMES:
        raise InvalidProxy(f"the protocol column takes one of {', '.join(sorted(SCHEMES))}")
    if kind in SCHEMES and kind != scheme:
        raise InvalidProxy("the type and the protocol column name different schemes")
    return scheme


def _with_login(address: Address, fields: Mapping[str, object]) -> Address:
    username, password = _text(fields, "username"), _text(fields, "password")
    if not username and not password:
        return address
    if address.username is None:
        return address._replace(username=username, password=password)
    if (address.username, address.password or "") != (username, password or ""):
        raise InvalidProxy("the login in the address and the one in the columns differ")
    return address


def _text(fields: Mapping[str, object], role: str) -> str | None:
    value = fields.get(role)
    if value is None or isinstance(value, str):
        return value
    raise InvalidProxy(f"{role} is not text")


def _is_true(value: object) -> bool:
    if isinstance(value, str):
        value = value.strip().lower()
    if not isinstance(value, bool | int | str | None) or value not in _TRUE | _FALSE:
        raise InvalidProxy("the close column takes yes or no")
    return value in _TRUE


def _refuse_out_of_service(role: str, value: object) -> None:
    if isinstance(value, str):
        value = value.strip().lower()
    in_service = _FALSE if role == "off" else _TRUE
    if not isinstance(value, bool | int | str | None) or value not in in_service:
        raise InvalidProxy("the proxy is marked as out of service; leave it out, or weight 0")
