"""Columns without a header: ``host, port`` or ``host, port, user, password``."""

from __future__ import annotations

import csv
import re

from ..proxy import InvalidProxy
from .address import AS_URL, Address, bare_host, four_fields, is_host, port_number

SERVER_AT_END = re.compile(r"@[^\s@]+:[0-9]{1,5}/?$")
_COLUMN_START = re.compile(r"[^:@,;\t]+\s*[,;\t]\s*\"?[0-9]+\"?\s*(?:[,;\t]|$)")


def read_columns(body: str) -> Address | None:
    """Read ``host, port[, user, password]``; the fields are literal."""
    delimiter = next((mark for mark in "\t,;" if mark in body), None)
    if delimiter is None:
        fields = body.split()
        if len(fields) < 2 or not (is_host(fields[0]) and fields[1].isdigit()):
            return None
    else:
        if SERVER_AT_END.search(body):
            if _COLUMN_START.match(body):
                raise InvalidProxy(f"columns, or a login with a separator in it? {AS_URL}")
            return None
        fields = split_fields(body, delimiter)
        if ":" in "".join(fields[:2]) and not is_host(fields[0]):
            return None
        if '"' not in body and any(len(field.split()) > 1 for field in fields):
            raise InvalidProxy("a blank inside a column; put the column in double quotes")
    if len(fields) == 4:
        return four_fields(*fields)
    if len(fields) != 2:
        raise InvalidProxy(
            "columns that nobody named; two or four are understood: host, port, user, password"
        )
    return Address(None, bare_host(fields[0]), port_number(fields[1]))


def split_fields(line: str, delimiter: str) -> list[str]:
    """Split one line of CSV; blanks around fields without quotes do not count.

    :raises ValueError: (as ``InvalidProxy``) if the quotes do not match.
    """
    if '"' not in line:
        return [field.strip() for field in line.split(delimiter)]
    try:
        rows = list(csv.reader([line], delimiter=delimiter, skipinitialspace=True, strict=True))
    except csv.Error:
        rows = []
    if len(rows) != 1:
        raise InvalidProxy("the double quotes do not match")
    return rows[0]
