"""Whole lists: every entry read, every fault collected, duplicates merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exceptions import ProxyListError
from ..proxy import InvalidProxy, Proxy, check_weight, tell_apart_in_steps
from ..turns import Steps, at_once, emptied
from .json_lists import looks_like_json, read_json
from .line import is_blank, read_line, stripped
from .tables import Header, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LINES = 32
"""Lines read in one step; each takes some 10 to 50 µs."""
_LOOKED_AT = 1_024
"""Proxies that are merely looked at in one step."""


def parse_proxies(text: str) -> list[Proxy]:
    """Read a proxy list, as of a file.

    Understood are lines (URLs, ``host:port`` with or without a login in the usual
    orders, columns, ``weight=N``, ``name=…`` and ``close=yes`` after the address, comments),
    CSV with a header, JSON, and server lines of nginx, HAProxy and Squid, of which
    ``max_fails``, ``fail_timeout``, ``maxconn``, ``check``, ``inter`` and the like
    are accepted and ignored.

    :returns: the proxies in list order, exact duplicates merged, ids distinct.
    :raises ProxyListError: naming every bad line, counted from 1, without secrets.
    """
    return at_once(read_proxies(text))


def read_proxies(text: str) -> Steps[list[Proxy]]:
    """Do what :func:`parse_proxies` does, in steps."""
    collector = _Collector()
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if looks_like_json(text):
        yield from read_json(text, collector.accept, collector.refuse)
    else:
        yield from _read_lines(text, collector)
    return (yield from collector.finish())


def parse_entries(entries: Sequence[object]) -> list[Proxy]:
    """Read a list whose items are one line each; they are counted from 1.

    :raises ProxyListError: naming every bad entry, without secrets.
    """
    return at_once(read_entries(entries))


def read_entries(entries: Sequence[object]) -> Steps[list[Proxy]]:
    """Do what :func:`parse_entries` does, in steps."""
    collector = _Collector()
    for number, entry in enumerate(entries, 1):
        _read_entry(collector, number, entry)
        if not number % _LINES:
            yield
    return (yield from collector.finish())


def parse_weighted(weights: Mapping[str, object]) -> list[Proxy]:
    """Read a mapping of line to weight; entries are counted from 1.

    :param weights: whole numbers from 0 (drained) up. A weight on the line as
        well is refused if it differs.
    :raises ProxyListError: naming every bad entry, without secrets.
    """
    return at_once(read_weighted(weights))


def read_weighted(weights: Mapping[str, object]) -> Steps[list[Proxy]]:
    """Do what :func:`parse_weighted` does, in steps."""
    collector = _Collector()
    for number, (entry, weight) in enumerate(weights.items(), 1):
        try:
            checked = check_weight(weight)
        except InvalidProxy as error:
            collector.refuse(number, str(error))
        else:
            _read_entry(collector, number, entry, checked)
        if not number % _LINES:
            yield
    return (yield from collector.finish())


def _split(text: str) -> Iterator[str]:
    # As text.split("\n"), but one by one.
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _read_lines(text: str, collector: _Collector) -> Steps[None]:
    header: Header | None = None
    first = True
    # Not str.splitlines(): editors do not count form feeds and the like as lines.
    for number, line in enumerate(_split(text), 1):
        if not number % _LINES:
            yield
        body = stripped(line)
        if not body or body[0] == "#":
            continue
        try:
            if first:
                first = False
                header = read_header(line)
                if header is not None:
                    continue
            collector.accept(number, header.read_row(line) if header else read_line(body))
        except InvalidProxy as error:
            collector.refuse(number, str(error))


def _read_entry(
    collector: _Collector, number: int, entry: object, weight: int | None = None
) -> None:
    if entry is None:
        collector.refuse(number, f"entry {number} is None, which would mean a direct connection")
    elif not isinstance(entry, str):
        collector.refuse(number, f"entry {number} is not text but {type(entry).__name__}")
    elif is_blank(entry):
        collector.refuse(number, f"entry {number} is empty, it holds no proxy")
    elif len(entry.strip().splitlines()) > 1:
        collector.refuse(number, f"entry {number} holds several lines; write one entry for each")
    else:
        try:
            collector.accept(number, read_line(entry, weight))
        except InvalidProxy as error:
            collector.refuse(number, str(error))


class _Collector:
    """Proxies and faults in the order found; duplicates are found here."""

    def __init__(self) -> None:
        self._errors: list[tuple[int, str]] = []
        self._found: dict[tuple[object, ...], tuple[int, Proxy]] = {}

    def accept(self, number: int, proxy: Proxy) -> None:
        # No password and an empty one make the same header, so the same proxy.
        key = (proxy.scheme, proxy.host, proxy.port, proxy.username, proxy.password or "")
        line, known = self._found.setdefault(key, (number, proxy))
        if known is proxy:
            return
        if known.weight != proxy.weight:
            self.refuse(number, f"the same proxy as line {line} with another weight")
        elif known.name != proxy.name:
            self.refuse(number, f"the same proxy as line {line} with another name")
        elif known.close != proxy.close:
            self.refuse(number, f"the same proxy as line {line}, one of them with close=yes")

    def refuse(self, number: int, reason: str) -> None:
        self._errors.append((number, reason))

    def finish(self) -> Steps[list[Proxy]]:
        if not self._errors and not self._found:
            self.refuse(1, "no proxy in it")
        lines, found = [], []
        for number, (line, proxy) in enumerate(self._found.values()):
            lines.append(line)
            found.append(proxy)
            if not number % _LOOKED_AT:
                yield
        yield from emptied(self._found)
        proxies = yield from tell_apart_in_steps(found)
        owners: dict[str, int] = {}
        for number, (line, proxy) in enumerate(zip(lines, proxies, strict=True)):
            owner = owners.setdefault(proxy.id, line)
            if owner != line:
                self.refuse(line, f"the same name or id as line {owner}; names must differ")
            if not number % _LOOKED_AT:
                yield
        yield from emptied(owners, lines)
        if self._errors:
            raise ProxyListError(sorted(self._errors))
        return proxies
