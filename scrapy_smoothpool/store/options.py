"""Options of the connection to Redis: in the URL's query or ``SMOOTHPOOL_REDIS_PARAMS``.

What redis-py 6.4 and later take, each with a check of its own, since redis-py finds
an unknown option only at the first request and a missing certificate at the first
connection.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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


def count(value: str) -> int:
    """Read a whole number, 0 or more. Raises ValueError."""
    if not value.isascii() or not value.isdecimal():
        raise ValueError("expected a whole number")
    return int(value)


def _positive(value: str) -> int:
    if count(value) < 1:
        raise ValueError("expected a whole number above 0")
    return int(value)


def _protocol(value: str) -> int:
    if value not in ("2", "3"):
        raise ValueError("expected 2 or 3")
    return int(value)


def _text(value: str) -> str:
    return value


def _requirement(value: str) -> str:
    if value.lower() not in ("none", "optional", "required"):
        raise ValueError("expected none, optional or required")
    return value.lower()


def _tls_version(value: str) -> ssl.TLSVersion:
    versions = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    if value not in versions:
        raise ValueError("expected 1.2 or 1.3")
    return versions[value]


_PLAIN: dict[str, Callable[[str], Any]] = {
    "client_name": _text,
    "db": count,
    "decode_responses": _boolean,
    "health_check_interval": count,
    "max_connections": _positive,
    "password": _text,
    "protocol": _protocol,
    "socket_connect_timeout": _seconds,
    "socket_keepalive": _boolean,
    "socket_timeout": _seconds,
    "timeout": _seconds,
    "username": _text,
}
_NETWORK = ("socket_keepalive",)  # not known to redis-py's connections to a Unix socket
TLS: dict[str, Callable[[str], Any]] = {
    "ssl_ca_certs": _text,
    "ssl_ca_data": _text,
    "ssl_cert_reqs": _requirement,
    "ssl_certfile": _text,
    "ssl_check_hostname": _boolean,
    "ssl_ciphers": _text,
    "ssl_keyfile": _text,
    "ssl_min_version": _tls_version,
}
SENTINEL: dict[str, Callable[[str], Any]] = {
    "sentinel_password": _text,
    "sentinel_username": _text,
}
SECRET = ("password", "username", "sentinel_password", "sentinel_username")
"""Options that no message may show."""
OWN = ("max_connections", "timeout", *SENTINEL)
"""Options that are this package's to keep: they mean nothing to a single connection."""


def known(
    *, tls: bool = False, sentinel: bool = False, socket: bool = False
) -> dict[str, Callable[[str], Any]]:
    """Return name → check of the options that such a server may have."""
    found = _PLAIN | (TLS if tls else {}) | (SENTINEL if sentinel else {})
    return {name: check for name, check in found.items() if not (socket and name in _NETWORK)}


def why(error: ValueError) -> str:
    """Return what a check says, without the value: it may be a password."""
    text = str(error)
    return text if text.startswith("expected") else "expected a number"


def certificate_fault(options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the name of an option whose file or text cannot be used, and why; None if all can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authorities, data = options.get("ssl_ca_certs"), options.get("ssl_ca_data")
    certificate, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    if authorities is not None or data is not None:
        name = "ssl_ca_certs" if authorities is not None else "ssl_ca_data"
        try:
            context.load_verify_locations(authorities, cadata=data)
        except (OSError, ValueError) as error:
            return name, _fault(error, "certificates in PEM form")
    if key is not None and certificate is None:
        return "ssl_keyfile", "needs ssl_certfile beside it"
    if certificate is not None:
        try:
            # A callback, or OpenSSL would ask at the terminal for the key's password.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (OSError, ValueError) as error:
            both = "a certificate in PEM form, with its key (without a password) there or in "
            return "ssl_certfile", _fault(error, f"{both}ssl_keyfile")
    if "ssl_ciphers" in options:
        try:
            context.set_ciphers(options["ssl_ciphers"])
        except ssl.SSLError:
            return "ssl_ciphers", "expected ciphers as OpenSSL lists them"
    return None


def _fault(error: Exception, wanted: str) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return f"{error.strerror or type(error).__name__}; expected the path of {wanted}"
    return f"expected {wanted}"
