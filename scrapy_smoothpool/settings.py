"""The only reader of ``SMOOTHPOOL_…`` settings.

Everything is checked once, when the crawler is built. A value that cannot be
used raises :exc:`~scrapy_smoothpool.exceptions.SettingsError` naming the
setting, the value and the accepted form, so the crawl ends before any request.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from .exceptions import SettingsError
from .penalties import PenaltyRule

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

PREFIX = "SMOOTHPOOL_"
_FALLBACK = "REDIS_URL"

# Known names whose feature is not there yet: refused, since ignoring one would
# leave a user with a promise that nobody keeps.
NOT_YET = {
    "SMOOTHPOOL_SOURCE": "set SMOOTHPOOL_PROXIES or SMOOTHPOOL_PROXIES_FILE",
    "SMOOTHPOOL_REPORT": "the closing table is in the log",
}


class OnEmpty(StrEnum):
    """The values of ``SMOOTHPOOL_ON_EMPTY``."""

    WAIT = "wait"
    IGNORE = "ignore"
    CLOSE = "close"


class OnRedisDown(StrEnum):
    """The values of ``SMOOTHPOOL_ON_REDIS_DOWN``."""

    WAIT = "wait"
    LOCAL = "local"
    CLOSE = "close"


class OnPanic(StrEnum):
    """The values of ``SMOOTHPOOL_ON_PANIC``."""

    USE = "use"
    WAIT = "wait"


class Scope(StrEnum):
    """The values of ``SMOOTHPOOL_SCOPE``."""

    POOL = "pool"
    SITE = "site"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one crawler, checked. Times are in seconds."""

    enabled: bool = True
    strategy: object = "smooth_wrr"
    redis_url: str | None = field(default=None, repr=False)
    redis_setting: str = "SMOOTHPOOL_REDIS_URL"
    """The name of the setting that ``redis_url`` was read from."""
    redis_params: Mapping[str, Any] | None = field(default=None, repr=False)
    redis_start_timeout: float = 0.0
    on_redis_down: OnRedisDown = OnRedisDown.WAIT
    pool: str = "default"
    key_prefix: str = "smoothpool"
    proxies: object = field(default=None, repr=False)
    proxies_file: object = None
    shuffle: bool = False
    max_fails: int = 3
    penalty: PenaltyRule = PenaltyRule.CONSECUTIVE
    weight_scale: int | None = None
    eject_after: int = 8
    eject_time: float = 30.0
    eject_time_max: float = 1800.0
    eject_max_percent: int = 50
    on_panic: OnPanic = OnPanic.USE
    scope: Scope = Scope.POOL
    retry_times: int = 5
    on_empty: OnEmpty = OnEmpty.WAIT
    wait_timeout: float = 300.0
    start_count: int = 0
    look_ahead: int = 0
    outcome_policy: object = None
    stats_per_proxy: bool = False
    admission: bool | str = False
    admission_concurrency: int = 100
    admission_timeout: float = 5.0
    connection_close: bool = False
    max_idle_connections: int = 0

    @classmethod
    def from_scrapy(cls, settings: BaseSettings) -> Settings:
        """Read and check every ``SMOOTHPOOL_…`` setting of a crawler."""
        given = _given(settings)
        values = {}
        for name, (attribute, read) in _READERS.items():
            if name in given:
                values[attribute] = read(name, given[name])
        if "redis_url" not in values and settings.get(_FALLBACK) is not None:
            # What scrapy-redis calls it.
            values["redis_url"] = _secret_text(_FALLBACK, settings[_FALLBACK])
            values["redis_setting"] = _FALLBACK
        found = cls(**values)
        if found.eject_after and found.penalty is not PenaltyRule.OFF:
            _check_order(found)
        if "SMOOTHPOOL_EJECT_TIME_MAX" in given and found.eject_time_max < found.eject_time:
            raise SettingsError(
                f"SMOOTHPOOL_EJECT_TIME_MAX is {found.eject_time_max:g}; accepted: at least "
                f"SMOOTHPOOL_EJECT_TIME ({found.eject_time:g})"
            )
        if found.connection_close and found.max_idle_connections:
            raise SettingsError(
                f"SMOOTHPOOL_MAX_IDLE_CONNECTIONS is {found.max_idle_connections}, but "
                "SMOOTHPOOL_CONNECTION_CLOSE = True keeps no connection; accepted: one of the two"
            )
        return found


def _given(settings: BaseSettings) -> dict[str, Any]:
    """Return the settings that are set (None means unset), refusing unknown names."""
    given = {}
    for name in settings:
        if not isinstance(name, str):
            continue
        if not name.startswith(PREFIX):
            _refuse_near_miss(name, settings)
            continue
        if name in NOT_YET:
            if settings[name] is not None:
                raise SettingsError(
                    f"{name} is not available in this version ({NOT_YET[name]}); remove it"
                )
        elif name not in _READERS:
            near = difflib.get_close_matches(name, _READERS, n=1, cutoff=0.0)
            raise SettingsError(
                f"unknown setting {name}: did you mean {near[0]}? README.md lists them all"
            )
        elif settings[name] is not None:
            given[name] = settings[name]
    _keep_the_stronger_source(given, settings)
    return given


def _keep_the_stronger_source(given: dict[str, Any], settings: BaseSettings) -> None:
    """Let a list given with a higher priority (the command line, say) replace the other source."""
    pair = ("SMOOTHPOOL_PROXIES", "SMOOTHPOOL_PROXIES_FILE")
    if all(name in given for name in pair):
        first, second = (settings.getpriority(name) or 0 for name in pair)
        if first != second:
            del given[pair[first > second]]


def _refuse_near_miss(name: str, settings: BaseSettings) -> None:
    """Refuse ``SMOOTHPOL_STRATEGY`` and the like: a typo in the prefix hides the whole name."""
    # Cheap tests first: a crawler has some 250 settings, nearly all without "POOL" or "SMOOTH".
    if ("POO" not in name and "SMO" not in name) or settings.getpriority(name) == 0:
        return
    near = difflib.get_close_matches(name, _READERS, n=1, cutoff=0.93)
    if near:
        raise SettingsError(f"unknown setting {name}: did you mean {near[0]}?")


def _check_order(settings: Settings) -> None:
    if settings.eject_after <= settings.max_fails:
        raise SettingsError(
            f"SMOOTHPOOL_EJECT_AFTER is {settings.eject_after}; accepted: 0 (never) or a number "
            f"above SMOOTHPOOL_MAX_FAILS ({settings.max_fails}), since a proxy is first eased "
            'out by penalties (SMOOTHPOOL_PENALTY = "off" lifts this)'
        )


# One reader per kind of value: (name, value) -> checked value. Strings are
# accepted for numbers and booleans because "scrapy crawl -s NAME=VALUE" gives them.

T = TypeVar("T")
Reader = Callable[[str, Any], Any]


def _refuse(name: str, value: object, accepted: str) -> SettingsError:
    return SettingsError(f"{name} is {value!r}; accepted: {accepted}")


def _bool(name: str, value: object) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "0": False, "no": False, "off": False}
    found = words.get(str(value).strip().lower())
    if found is None:
        raise _refuse(name, value, "True or False")
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _integer(least: int, most: int | None = None) -> Reader:
    accepted = f"an integer from {least} to {most}" if most else f"an integer of at least {least}"

    def read(name: str, value: object) -> int:
        number = _number(value)
        if number is None or number != int(number) or number < least or (most and number > most):
            raise _refuse(name, value, accepted)
        return int(number)

    return read


def _seconds(*, zero: bool) -> Reader:
    accepted = "seconds, 0 or more" if zero else "seconds, more than 0"

    def read(name: str, value: object) -> float:
        number = _number(value)
        if number is None or number < 0 or (number == 0 and not zero):
            raise _refuse(name, value, accepted)
        return number

    return read


def _one_of(kind: type[StrEnum]) -> Reader:
    accepted = " or ".join(f'"{member.value}"' for member in kind)

    def read(name: str, value: object) -> StrEnum:
        try:
            return kind(str(value))
        except ValueError:
            raise _refuse(name, value, accepted) from None

    return read


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refuse(name, value, "a text that is not empty")
    return value.strip()


def _secret_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(
            f"{name} is {'empty' if value == '' else 'a ' + type(value).__name__}; "
            'accepted: a URL such as "redis://localhost:6379/0"'
        )
    return value.strip()


def _params(name: str, value: object) -> Mapping[str, Any]:
    accepted = 'a dict such as {"ssl_ca_certs": "/path/to/ca.pem"}, or JSON for one'
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        # What it is, not what it says: it may hold a password.
        raise SettingsError(f"{name} cannot be read; accepted: {accepted}")
    return dict(value)


def _scale(name: str, value: object) -> int | None:
    if value == "auto":
        return None
    number = _number(value)
    if number is None or number != int(number) or number < 1:
        raise _refuse(name, value, '"auto" or an integer of at least 1 (1 is nginx to the letter)')
    return int(number)


def _admission(name: str, value: object) -> bool | str:
    accepted = "False, True, or the http(s) URL that checks are to fetch"
    text = str(value).strip()
    if "://" not in text:
        try:
            return _bool(name, value)
        except SettingsError:
            raise _refuse(name, value, accepted) from None
    if "@" in text.partition("://")[2].partition("/")[0]:
        # A login, maybe: a proxy's URL put here by mistake has one.
        raise SettingsError(f"{name} is a URL with an '@' before its path; accepted: {accepted}")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not isinstance(value, str) or not usable or not text.isprintable() or " " in text:
        raise _refuse(name, value, accepted)
    return text


def _as_is(name: str, value: T) -> T:
    return value


_READERS: Mapping[str, tuple[str, Reader]] = {
    "SMOOTHPOOL_ENABLED": ("enabled", _bool),
    "SMOOTHPOOL_STRATEGY": ("strategy", _as_is),
    "SMOOTHPOOL_REDIS_URL": ("redis_url", _secret_text),
    "SMOOTHPOOL_REDIS_PARAMS": ("redis_params", _params),
    "SMOOTHPOOL_REDIS_START_TIMEOUT": ("redis_start_timeout", _seconds(zero=True)),
    "SMOOTHPOOL_ON_REDIS_DOWN": ("on_redis_down", _one_of(OnRedisDown)),
    "SMOOTHPOOL_POOL": ("pool", _text),
    "SMOOTHPOOL_KEY_PREFIX": ("key_prefix", _text),
    "SMOOTHPOOL_PROXIES": ("proxies", _as_is),
    "SMOOTHPOOL_PROXIES_FILE": ("proxies_file", _as_is),
    "SMOOTHPOOL_SHUFFLE": ("shuffle", _bool),
    "SMOOTHPOOL_MAX_FAILS": ("max_fails", _integer(1)),
    "SMOOTHPOOL_PENALTY": ("penalty", _one_of(PenaltyRule)),
    "SMOOTHPOOL_WEIGHT_SCALE": ("weight_scale", _scale),
    "SMOOTHPOOL_EJECT_AFTER": ("eject_after", _integer(0)),
    "SMOOTHPOOL_EJECT_TIME": ("eject_time", _seconds(zero=False)),
    "SMOOTHPOOL_EJECT_TIME_MAX": ("eject_time_max", _seconds(zero=False)),
    "SMOOTHPOOL_ON_PANIC": ("on_panic", _one_of(OnPanic)),
    "SMOOTHPOOL_SCOPE": ("scope", _one_of(Scope)),
    "SMOOTHPOOL_EJECT_MAX_PERCENT": ("eject_max_percent", _integer(0, 100)),
    "SMOOTHPOOL_RETRY_TIMES": ("retry_times", _integer(0)),
    "SMOOTHPOOL_ON_EMPTY": ("on_empty", _one_of(OnEmpty)),
    "SMOOTHPOOL_WAIT_TIMEOUT": ("wait_timeout", _seconds(zero=True)),
    "SMOOTHPOOL_LOOK_AHEAD": ("look_ahead", _integer(0, 1_000)),
    "SMOOTHPOOL_START_COUNT": ("start_count", _integer(0)),
    "SMOOTHPOOL_OUTCOME_POLICY": ("outcome_policy", _as_is),
    "SMOOTHPOOL_STATS_PER_PROXY": ("stats_per_proxy", _bool),
    "SMOOTHPOOL_ADMISSION": ("admission", _admission),
    "SMOOTHPOOL_ADMISSION_CONCURRENCY": ("admission_concurrency", _integer(1)),
    "SMOOTHPOOL_ADMISSION_TIMEOUT": ("admission_timeout", _seconds(zero=False)),
    "SMOOTHPOOL_CONNECTION_CLOSE": ("connection_close", _bool),
    "SMOOTHPOOL_MAX_IDLE_CONNECTIONS": ("max_idle_connections", _integer(0)),
}

NAMES = (*_READERS, *NOT_YET)
"""Every ``SMOOTHPOOL_…`` name that is known."""
