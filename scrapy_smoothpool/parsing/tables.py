"""CSV with a header line."""

from __future__ import annotations

from dataclasses import dataclass

from ..proxy import SCHEMES, InvalidProxy, Proxy
from .columns import split_fields
from .fields import by_role, read_record, role_of


@dataclass(frozen=True, slots=True)
class Header:
    """What the first line of a table says about the others."""

    delimiter: str
    names: tuple[str, ...]
    places: tuple[tuple[int, str], ...] | None = None
    """Where the columns are that matter, and what for; None where a row's own value decides."""

    def read_row(self, line: str) -> Proxy:
        """Read one row.

        :raises ValueError: (as ``InvalidProxy``) if it does not fit the header.
        """
        fields = split_fields(line.strip("\ufeff\r\n"), self.delimiter)
        if len(fields) != len(self.names):
            raise InvalidProxy(f"{len(fields)} columns where the header names {len(self.names)}")
        if self.places is None:
            return read_record(by_role(dict(zip(self.names, fields, strict=True))))
        return read_record({role: fields[place] for place, role in self.places})


def read_header(line: str) -> Header | None:
    """Return the header that *line* is, or ``None`` if it is none.

    :raises ValueError: (as ``InvalidProxy``) if it is one that cannot be used.
    """
    line = line.strip("\ufeff \t\r\n")
    # Cheap: names of columns have neither of these.
    if "//" in line or "@" in line:
        return None
    delimiter = next((mark for mark in "\t,;|" if mark in line), ",")
    try:
        names = tuple(name.strip().lower() for name in split_fields(line, delimiter))
    except InvalidProxy:
        return None
    if len(names) > 1 and SCHEMES.issuperset(names):
        raise InvalidProxy(
            "a column for each protocol, so each row holds several addresses; "
            "write one proxy a line, with its scheme"
        )
    # A host may well be called "proxy", but no column is called 3128.
    if any(name.isdigit() for name in names) or not any(_is_address_column(name) for name in names):
        return None
    if len(set(names)) != len(names):
        raise InvalidProxy("two columns of the same name")
    all_roles = tuple(map(role_of, names))
    roles = [role for role in all_roles if role not in (None, "on", "off")]
    if len(set(roles)) != len(roles):
        raise InvalidProxy("two columns for one thing")
    if {"on", "off"} & set(all_roles):
        return Header(delimiter, names)
    places = tuple((place, role) for place, role in enumerate(all_roles) if role is not None)
    return Header(delimiter, names, places)


def _is_address_column(name: str) -> bool:
    try:
        return role_of(name) in ("url", "host")
    except InvalidProxy:
        return False  # nearly a known name: only worth a word if another column is known
