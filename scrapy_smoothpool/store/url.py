"""What ``SMOOTHPOOL_REDIS_URL`` may say, checked before the first connection.

redis-py lets much pass: ``redis://host/abc`` silently means database 0, an unknown
option fails only at the first request, and some of its messages quote the URL. It
knows no URL for Sentinel and none for several nodes of a cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from scrapy_smoothpool.exceptions import SettingsError
from scrapy_smoothpool.store import options as checks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SETTING = "SMOOTHPOOL_REDIS_URL"
PARAMS = "SMOOTHPOOL_REDIS_PARAMS"
ACCEPTED = (
    "redis://[[user]:password@]host[:port][/database], rediss://… for TLS (valkey:// and "
    "valkeys:// mean the same), unix://[[user]:password@]/path/to/socket[?db=number], "
    "redis+sentinel://[[user]:password@]host[:port],…/service[?db=number], or "
    "redis+cluster://[[user]:password@]host[:port],… (rediss+sentinel:// and rediss+cluster:// "
    "for TLS)"
)
DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
_SCHEME = re.compile(r"(redis|valkey)(s?)(\+sentinel|\+cluster)?")
_HOST = re.compile(r"[\w.%:\-]+", re.ASCII)
_SERVICE = re.compile(r"[\w.\-]+", re.ASCII)
# What may be shown of a URL that could not be understood: hosts, ports, a service, a database.
_ONE = r"(\[[0-9A-Fa-f:.]+\]|[\w.\-]+)(:\d{1,5})?"
_SHOWABLE = re.compile(rf"{_ONE}(,{_ONE})*(/[\w.\-]*){{0,2}}", re.ASCII)


class Topology(StrEnum):
    """How the servers behind a URL belong together."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A checked URL. ``options`` are redis-py's connection arguments, login included."""

    place: str
    """For a log: ``host:port``, several of them, or a socket's path."""
    db: int
    topology: Topology = Topology.SINGLE
    tls: bool = False
    nodes: tuple[tuple[str, int], ...] = ()
    """Host and port: of the server, the Sentinels, or some nodes; none for a socket."""
    path: str = ""
    """Of a socket."""
    service: str = ""
    """What the Sentinels call the primary."""
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    setting: str = SETTING
    """Where the URL was given, for messages."""

    def __str__(self) -> str:
        if self.topology is Topology.CLUSTER:
            return f"cluster {self.place}"
        if self.topology is Topology.SENTINEL:
            return f"{self.service}/{self.db} (Sentinel {self.place})"
        return f"{self.place}/{self.db}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may hold."""
        return tuple(v for name in checks.SECRET if (v := self.options.get(name)))


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


def parse_url(
    url: str, params: Mapping[str, Any] | None = None, setting: str = SETTING
) -> RedisAddress:
    """Check *url* and take it apart.

    :param params: ``SMOOTHPOOL_REDIS_PARAMS``, options beside those in the URL.
    :param setting: where the URL was given, for messages.
    :raises SettingsError: naming the setting, the fault and the accepted form,
        without the login.
    """

    def refuse(fault: str) -> SettingsError:
        return SettingsError(f"{setting} = {mask(url)!r}: {fault}; accepted: {ACCEPTED}")

    if not isinstance(url, str) or not url.strip():
        raise SettingsError(f"{setting} is empty; accepted: {ACCEPTED}")
    url = url.strip()
    try:
        parts = urlsplit(url)
    except ValueError:
        raise refuse("host or port cannot be read (is the password percent-encoded?)") from None
    if parts.scheme != "unix" and not _SCHEME.fullmatch(parts.scheme):
        raise refuse("the scheme is none that is known")
    if parts.fragment:
        raise refuse("a '#' in it must be percent-encoded as %23")
    scheme = _SCHEME.fullmatch(parts.scheme)
    tls = bool(scheme and scheme[2])
    topology = Topology(scheme[3][1:]) if scheme and scheme[3] else Topology.SINGLE

    known = checks.known(
        tls=tls, sentinel=topology is Topology.SENTINEL, socket=parts.scheme == "unix"
    )
    options = _options(parts, known, refuse)
    found: dict[str, Any] = {}
    if parts.scheme == "unix":
        if parts.netloc.rpartition("@")[2] or not parts.path.strip("/"):
            raise refuse("the path of the socket must be absolute (unix:///path)")
        found["path"] = place = unquote(parts.path)
    else:
        port = SENTINEL_PORT if topology is Topology.SENTINEL else DEFAULT_PORT
        nodes = _nodes(parts.netloc, port, topology, refuse)
        found["nodes"] = tuple(nodes)
        place = ",".join(f"[{host}]:{n}" if ":" in host else f"{host}:{n}" for host, n in nodes)
        path = parts.path.strip("/")
        if topology is Topology.SENTINEL:
            found["service"], _, path = unquote(path).partition("/")
            if not _SERVICE.fullmatch(found["service"]):
                raise refuse("the name by which the Sentinels know the primary is missing")
        _database(path, options, refuse)
    for name, value in _given(params, known).items():
        if name in options:
            raise SettingsError(
                f"{PARAMS} has {name}, which {setting} gives, too; accepted: one of the two"
            )
        options[name] = value
    options.setdefault("db", 0)
    if "credential_provider" in options and {"username", "password"} & set(options):
        raise SettingsError(
            f"{PARAMS} has a credential_provider, but {setting} or {PARAMS} a login, too; "
            "accepted: one of the two"
        )
    if topology is Topology.CLUSTER and options["db"]:
        raise refuse("a cluster has no database but 0")
    if tls and (fault := checks.certificate_fault(options)) is not None:
        name, reason = fault
        where = PARAMS if params and name in params else setting
        raise SettingsError(f"{where}: option {name} cannot be used: {reason}")
    return RedisAddress(
        place, options["db"], topology, tls, options=options, setting=setting, **found
    )


def validate_url(url: str) -> None:
    """Raise :exc:`SettingsError` unless *url* can be used."""
    parse_url(url)


def _options(
    parts: SplitResult,
    known: Mapping[str, Callable[[str], Any]],
    refuse: Callable[[str], SettingsError],
) -> dict[str, Any]:
    """Return the options in the URL, its login among them."""
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            if name in checks.TLS:
                raise refuse(f"option {name} needs rediss://")
            # Its name is not repeated: with an unescaped '?' it is part of a password.
            raise refuse("unknown option; known are " + ", ".join(sorted(known)))
        try:
            options[name] = known[name](value)
        except ValueError as error:
            raise refuse(f"option {name}: {checks.why(error)}") from None
    login = parts.netloc.rpartition("@")[0]
    for name, value in zip(("username", "password"), login.split(":", 1), strict=False):
        if value and name in options:
            raise refuse(f"the {name} is given twice")
        if value:
            options[name] = unquote(value)
    return options


def _given(
    params: Mapping[str, Any] | None, known: Mapping[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """Check ``SMOOTHPOOL_REDIS_PARAMS``."""
    options: dict[str, Any] = {}
    for name, value in (params or {}).items():
        if name == "credential_provider":
            if not callable(getattr(value, "get_credentials", None)):
                raise SettingsError(
                    f"{PARAMS}: credential_provider is a {type(value).__name__}; accepted: an "
                    "object with redis-py's get_credentials()"
                )
            options[name] = value
            continue
        if name not in known:
            fault = "needs rediss://" if name in checks.TLS else "is unknown"
            accepted = ", ".join(sorted([*known, "credential_provider"]))
            raise SettingsError(f"{PARAMS}: option {name!r} {fault}; accepted: {accepted}")
        try:
            if not isinstance(value, str | int | float):
                raise ValueError("expected a text or a number")
            options[name] = known[name](str(value))
        except ValueError as error:
            raise SettingsError(f"{PARAMS}: option {name}: {checks.why(error)}") from None
    return options


def _nodes(
    authority: str, port: int, topology: Topology, refuse: Callable[[str], SettingsError]
) -> list[tuple[str, int]]:
    login, _, netloc = authority.rpartition("@")
    if "," in netloc and topology is Topology.SINGLE:
        raise refuse("several hosts make sense with redis+sentinel:// or redis+cluster:// only")
    if "@" in login and topology is not Topology.SINGLE:
        raise refuse("the login stands once, before the first host (and an '@' in it is %40)")
    nodes = []
    for node in netloc.split(","):
        try:
            one = urlsplit(f"//{node}")
            host, given = one.hostname, one.port
        except ValueError:
            raise refuse("host or port cannot be read (is the password percent-encoded?)") from None
        if not host or not _HOST.fullmatch(host):
            raise refuse("a host is missing or cannot be read")
        if given == 0:
            raise refuse("port 0 cannot be used")
        nodes.append((unquote(host), given or port))
    return nodes


def _database(path: str, options: dict[str, Any], refuse: Callable[[str], SettingsError]) -> None:
    name = unquote(path)
    if not name:
        return
    try:
        number = checks.count(name)
    except ValueError:
        raise refuse("the database must be a number") from None
    if options.get("db", number) != number:
        raise refuse("two different databases are given")
    options["db"] = number
