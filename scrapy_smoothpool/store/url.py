"""What ``SMOOTHPOOL_REDIS_URL`` may say, checked before the first connection.

redis-py lets much pass: ``redis://host/abc`` silently means database 0, an unknown
option fails only at the first request, and some of its messages quote the URL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from scrapy_smoothpool.exceptions import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

SETTING = "SMOOTHPOOL_REDIS_URL"
ACCEPTED = (
    "redis://[[user]:password@]host[:port][/database], rediss://… for TLS, "
    "or unix://[[user]:password@]/path/to/socket[?db=number]"
)
DEFAULT_PORT = 6379
_HOST = re.compile(r"[\w.%:\-]+", re.ASCII)
# What may be shown of a URL that could not be understood: a host, a port, a database.
_SHOWABLE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.\-]+)(:\d{1,5})?(/\w*)?", re.ASCII)


def _boolean(value: str) -> bool:
    lowered = value.lower()
    if lowered in ("1", "true", "yes", "y"):
        return True
    if lowered in ("0", "false", "no", "n"):
        return False
    raise ValueError("expected True or False")


def _seconds(value: str) -> float:
    number = float(value)
    if not 0 < number < 3600:
        raise ValueError("expected seconds above 0")
    return number


def _count(value: str) -> int:
    if not value.isascii() or not value.isdecimal():
        raise ValueError("expected a whole number")
    return int(value)


def _positive(value: str) -> int:
    if _count(value) < 1:
        raise ValueError("expected a whole number above 0")
    return int(value)


def _protocol(value: str) -> int:
    if value not in ("2", "3"):
        raise ValueError("expected 2 or 3")
    return int(value)


def _text(value: str) -> str:
    return value


# What redis-py 6.4 and later take, with a check each.
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "client_name": _text,
    "db": _count,
    "decode_responses": _boolean,
    "health_check_interval": _count,
    "max_connections": _positive,
    "password": _text,
    "protocol": _protocol,
    "socket_connect_timeout": _seconds,
    "socket_keepalive": _boolean,
    "socket_timeout": _seconds,
    "timeout": _seconds,
    "username": _text,
}
_TLS_OPTIONS: dict[str, Callable[[str], Any]] = {
    "ssl_ca_certs": _text,
    "ssl_cert_reqs": _text,
    "ssl_certfile": _text,
    "ssl_check_hostname": _boolean,
    "ssl_ciphers": _text,
    "ssl_keyfile": _text,
}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A checked URL. ``options`` are redis-py's connection arguments, login included."""

    scheme: str
    place: str
    db: int
    options: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.place}/{self.db}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may hold."""
        return tuple(v for n in ("password", "username") if (v := self.options.get(n)))


def mask(url: str) -> str:
    """Return *url* fit for a message: without login, options, or anything doubtful."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    # The last @, wherever it is: a password with an unescaped / ? or # goes too.
    _, at, place = rest.rpartition("@")
    place, question, _ = place.partition("?")
    socket = scheme == "unix" and place.startswith("/")
    shown = place if socket or _SHOWABLE.fullmatch(place) else "…"
    if not at and not separator:
        shown = "…"
    scheme = scheme if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.\-]{0,20}", scheme) else ""
    return f"{scheme}{separator if scheme else ''}{'***@' if at else ''}{shown}" + (
        "?…" if question else ""
    )


def parse_url(url: str) -> RedisAddress:
    """Check *url* and take it apart.

    :raises SettingsError: naming the setting, the fault and the accepted form,
        without the login.
    """

    def refuse(fault: str) -> SettingsError:
        return SettingsError(f"{SETTING} = {mask(url)!r}: {fault}; accepted: {ACCEPTED}")

    if not isinstance(url, str) or not url.strip():
        raise SettingsError(f"{SETTING} is empty; accepted: {ACCEPTED}")
    url = url.strip()
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise refuse("host or port cannot be read (is the password percent-encoded?)") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise refuse("the scheme must be redis, rediss or unix")
    if parts.fragment:
        raise refuse("a '#' in it must be percent-encoded as %23")

    known = _OPTIONS | (_TLS_OPTIONS if parts.scheme == "rediss" else {})
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            if name in _TLS_OPTIONS:
                raise refuse(f"option {name} needs rediss://")
            # Its name is not repeated: with an unescaped '?' it is part of a password.
            raise refuse("unknown option; known are " + ", ".join(sorted(known)))
        try:
            options[name] = known[name](value)
        except ValueError as error:
            raise refuse(f"option {name}: {_reason(error)}") from None

    if parts.username:
        options["username"] = unquote(parts.username)
    if parts.password:
        options["password"] = unquote(parts.password)

    if parts.scheme == "unix":
        if host or port is not None or not parts.path.strip("/"):
            raise refuse("the path of the socket must be absolute (unix:///path)")
        place = options["path"] = unquote(parts.path)
    else:
        if not host or not _HOST.fullmatch(host):
            raise refuse("a host is missing or cannot be read")
        if port == 0:
            raise refuse("port 0 cannot be used")
        options["host"], options["port"] = unquote(host), port or DEFAULT_PORT
        place = f"[{host}]" if ":" in host else host
        place = f"{place}:{options['port']}"
        _database(parts.path, options, refuse)
    options.setdefault("db", 0)
    return RedisAddress(parts.scheme, place, options["db"], options)


def validate_url(url: str) -> None:
    """Raise :exc:`SettingsError` unless *url* can be used."""
    parse_url(url)


def _database(path: str, options: dict[str, Any], refuse: Callable[[str], SettingsError]) -> None:
    name = unquote(path).strip("/")
    if not name:
        return
    try:
        number = _count(name)
    except ValueError:
        raise refuse("the database must be a number") from None
    if options.get("db", number) != number:
        raise refuse("two different databases are given")
    options["db"] = number


def _reason(error: ValueError) -> str:
    text = str(error)
    return text if text.startswith("expected") else "expected a number"
