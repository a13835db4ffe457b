"""Where the proxies of a pool come from: a list, a dict with weights, a file."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from .exceptions import ProxyListError, SettingsError
from .parsing import read_entries, read_proxies, read_weighted
from .proxy import Proxy
from .turns import Steps, at_once

_ACCEPTED = (
    'a list of lines such as ["http://user:pass@host:port", "host:port"], '
    'or a dict of line to weight such as {"host:port": 5}'
)


def load(proxies: object, path: object) -> list[Proxy] | None:
    """Return the proxies of ``SMOOTHPOOL_PROXIES`` or ``SMOOTHPOOL_PROXIES_FILE``.

    None when neither is set (the worker joins a shared pool as it stands).
    Raises :exc:`~scrapy_smoothpool.exceptions.SettingsError` when both are set,
    when a list is empty, or when an entry or the file cannot be used.
    """
    if proxies is not None and path is not None:
        raise SettingsError(
            "SMOOTHPOOL_PROXIES and SMOOTHPOOL_PROXIES_FILE are both set: the pool would not "
            "know which list to follow; set one of them (None switches the other off)"
        )
    if path is not None:
        return from_file(path)
    if proxies is not None:
        return from_setting(proxies)
    return None


def from_setting(value: object) -> list[Proxy]:
    """Read the value of ``SMOOTHPOOL_PROXIES``: a list, a dict, or the text of a list."""
    return at_once(read_setting(value))


def read_setting(value: object, name: str = "SMOOTHPOOL_PROXIES") -> Steps[list[Proxy]]:
    """Do what :func:`from_setting` does, in steps.

    :param name: what errors call the value.
    """
    if isinstance(value, Mapping | Sequence) and not value:
        raise SettingsError(f"{name} is empty; accepted: {_ACCEPTED}")
    try:
        if isinstance(value, Mapping):
            return (yield from read_weighted(value))
        if isinstance(value, str):
            weighted = _json_object(value)
            read = read_proxies(value) if weighted is None else read_weighted(weighted)
            return (yield from read)
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            return (yield from read_entries(value))
    except ProxyListError as error:
        raise error.located(name) from None
    raise SettingsError(f"{name} is a {type(value).__name__}; accepted: {_ACCEPTED}")


def _json_object(text: str) -> dict[str, object] | None:
    """Return line → weight written as JSON, as ``-s NAME='{"host:port": 5}'`` gives it."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    weights = isinstance(found, dict) and all(isinstance(w, int | float) for w in found.values())
    return found if weights and found else None


def from_file(value: object) -> list[Proxy]:
    """Read the file named by ``SMOOTHPOOL_PROXIES_FILE`` (UTF-8, with or without BOM)."""
    return at_once(read_text(value, file_text(value)))


def file_text(value: object, name: str = "SMOOTHPOOL_PROXIES_FILE") -> str:
    """Return what the file holds. Blocks, as long as reading takes.

    Raises :exc:`~scrapy_smoothpool.exceptions.SettingsError`.
    """
    if not isinstance(value, str | Path) or not str(value).strip():
        raise SettingsError(f"{name} is {value!r}; accepted: the path of a text file")
    path = Path(value).expanduser()
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{name}: {path} is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise SettingsError(
            f"{name}: {path} cannot be read ({error.strerror}); accepted: the path of a text "
            "file with one proxy a line"
        ) from None


def read_text(
    value: object, text: str, name: str = "SMOOTHPOOL_PROXIES_FILE"
) -> Steps[list[Proxy]]:
    """Read the proxies of a file, in steps.

    :param value: its path.
    :param text: what it holds.
    """
    try:
        return (yield from read_proxies(text))
    except ProxyListError as error:
        raise error.located(f"{name} ({Path(str(value)).expanduser()})") from None


def shuffled(proxies: Sequence[Proxy], rng: random.Random) -> list[Proxy]:
    """Return the proxies in random order (``SMOOTHPOOL_SHUFFLE``)."""
    order = list(proxies)
    rng.shuffle(order)
    return order
