"""One line of a list: an address or columns, and what may stand around it."""

from __future__ import annotations

import contextlib
import re

from ..proxy import InvalidProxy, Proxy, check_weight, percent_decoded
from .address import AS_URL, Address, has_scheme, read_address
from .columns import SERVER_AT_END, read_columns
from .server_lines import is_server_line, read_server_line

# Short cuts, four times as fast, for the forms that long lists consist of: an
# address with one reading, and one without anything around it.
_COMMON = re.compile(
    r"(?:(https?|socks5h?|socks4a?)://(?:([A-Za-z0-9_.~=+-]+):([A-Za-z0-9_.~=+-]*)@)?)?"
    r"([A-Za-z0-9._-]+):([1-9][0-9]{0,4})(?: weight=([0-9]{1,10}))?"
)
# A password that is no port and a user name without dots leave one reading.
_LOGIN = "(?P<u>[A-Za-z][A-Za-z0-9_~=+-]*):(?P<p>(?=[0-9]*[A-Za-z_])[A-Za-z0-9_.~=+-]+)"
_SERVER = "(?P<h>[A-Za-z0-9._-]+):(?P<n>[1-9][0-9]{0,4})"
_BARE = re.compile(f"{_LOGIN}@{_SERVER}")
_FOUR = re.compile(f"{_SERVER}:{_LOGIN}")
_COLUMNS = re.compile(
    f"{_SERVER}(?:{_LOGIN})?".replace(":(?P<n>", "(?P<d>[,;\t])(?P<n>")
    .replace("(?:(?P<u>", "(?:(?P=d)(?P<u>")
    .replace(":(?P<p>", "(?P=d)(?P<p>")
)
# The same with more around it: other marks in a login, IPv6, a name, a plain comment. What
# is found faulty here goes the long way, which knows the better reason.
_USUAL = re.compile(
    r"(?:(https?|socks5h?|socks4a?)://"
    r"(?:([A-Za-z0-9_.~=+!$%&*^-]+):([A-Za-z0-9_.~=+!$%&*^-]*)@)?)?"
    r"(?:\[([0-9A-Fa-f]*:[0-9A-Fa-f:]*)\]|([A-Za-z0-9._-]+)):([1-9][0-9]{0,4})"
    r"(?: weight=([0-9]{1,9}))?(?: name=([A-Za-z0-9_./-]+))?(?: +#[A-Za-z0-9 .,_-]*)?"
)
_PLAIN = re.compile(r"[A-Za-z0-9._~=+:@-]+")
_TAGS = re.compile(r"(?:\s+(?:weight|name|close)=\S*)+$")
_WEIGHT = re.compile(r"[0-9]{1,10}")
_COMMENT = re.compile(r"\s#.*")
# Blanks other than space and tab, and characters without a width.
_INVISIBLE = re.compile("[\u00a0\u00ad\u1680\u2000-\u200f\u202a-\u202f\u205f-\u2064\u3000\ufeff]")
_AROUND = "\ufeff \t\r\n\u00a0"
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_MAIL_MASK = re.compile(r"\[email[\s\u00a0]*protected|cdn-cgi/l/email-protection", re.IGNORECASE)
_PRINTED = re.compile(r"<|[A-Za-z_][\w.]*\(.*\)[,;]?$")
_SEVERAL = re.compile(r"\.[0-9]+:[0-9]+[^0-9:@.].*\.[0-9]+:[0-9]+")


def stripped(line: str) -> str:
    """Take off what counts for nothing around a line, byte order marks included."""
    return line.strip(_AROUND)


def is_blank(line: str) -> bool:
    """Whether a line holds nothing or a comment only."""
    line = stripped(line)
    return not line or line.startswith("#")


def read_line(line: str, weight: int | None = None) -> Proxy:
    """Read one line that is neither blank nor a comment.

    :param weight: weight given elsewhere for this line; the line's own must not
        differ from it.
    :raises ValueError: (as ``InvalidProxy``) with a reason free of secrets.
    """
    encoded = "%" in line  # which neither of the first two patterns takes
    common = None if encoded else _COMMON.fullmatch(line)
    if common is not None:
        scheme, username, password, host, port, own = common.groups()
        if weight is None and own is None:
            return Proxy(scheme or "http", host, int(port), username, password)
        if weight is None and own is not None and len(own) < 10:
            return Proxy(scheme or "http", host, int(port), username, password, int(own))
        address = Address(scheme, host, int(port), username, password)
        return make_proxy(address, {} if own is None else {"weight": own}, weight)
    login = None if encoded else (_BARE if "@" in line else _FOUR).fullmatch(line)
    if login is not None:
        share = 1 if weight is None else weight
        parts = login.groupdict()
        return Proxy("http", parts["h"], int(parts["n"]), parts["u"], parts["p"], share)
    usual = _USUAL.fullmatch(line)
    if usual is not None:
        with contextlib.suppress(InvalidProxy):
            return _make_usual(usual, weight)
    columns = _COLUMNS.fullmatch(line)
    if columns is not None:
        parts, share = columns.groupdict(), 1 if weight is None else weight
        with contextlib.suppress(InvalidProxy):
            return Proxy("http", parts["h"], int(parts["n"]), parts["u"], parts["p"], share)
    if _PLAIN.fullmatch(line):
        # Nothing around it, no columns; if it is faulty the long way finds a better reason.
        with contextlib.suppress(InvalidProxy):
            return make_proxy(read_address(line), {}, weight)
    return _read_decorated(stripped(line), weight)


def _make_usual(parts: re.Match[str], weight: int | None) -> Proxy:
    scheme, username, password, ipv6, host, port, own, name = parts.groups()
    share = int(own) if own is not None else 1 if weight is None else weight
    if weight is not None and share != weight:
        raise InvalidProxy("the weight on the line and the one beside it differ")
    return Proxy(
        scheme or "http",
        ipv6 or host,
        int(port),
        percent_decoded(username),
        percent_decoded(password),
        share,
        name,
    )


def quick_address(text: str) -> Address | None:
    """Read an address of the forms that long lists consist of; None for any other."""
    found = _COMMON.fullmatch(text)
    if found is None or found[6] is not None:
        return None
    scheme, username, password, host, port, _ = found.groups()
    return Address(scheme, host, int(port), username, password)


def _read_decorated(line: str, weight: int | None) -> Proxy:
    _refuse_what_is_no_line(line)
    body = _without_comment(line)
    if is_server_line(body):
        address, tags = read_server_line(body)
        return make_proxy(address, tags, weight)
    trailing = body.endswith((",", ";"))
    if trailing:
        body = body[:-1].rstrip()
    unquoted = _unquote(body)
    trailing = trailing and unquoted == body
    body, tags = _split_tags(unquoted)
    address = _read_body(_unquote(body))
    if trailing and address.login_last and not tags:
        raise InvalidProxy(f"does the last character belong to the password? {AS_URL}")
    return make_proxy(address, tags, weight)


def make_proxy(address: Address, tags: dict[str, str], weight: int | None = None) -> Proxy:
    """Put an address and its ``weight``, ``name`` and ``close`` together."""
    own = tags.get("weight")
    if own is not None:
        if not _WEIGHT.fullmatch(own):
            raise InvalidProxy("weight= takes a whole number from 0 up")
        if weight is not None and int(own) != weight:
            raise InvalidProxy("the weight on the line and the one beside it differ")
        weight = int(own)
    if weight is None:
        weight = 1
    else:
        check_weight(weight)
    return Proxy(
        address.scheme or "http",
        address.host,
        address.port,
        address.username,
        address.password,
        weight,
        tags.get("name"),
        close="close" in tags and _yes(tags["close"]),
    )


def _yes(value: str) -> bool:
    if value not in ("yes", "no"):
        raise InvalidProxy("close= takes yes or no")
    return value == "yes"


def _read_body(body: str) -> Address:
    try:
        if not has_scheme(body):
            columns = read_columns(body)
            if columns is not None:
                return columns
        if len(body.split()) > 1:
            _refuse_blank(body)
        return read_address(body)
    except InvalidProxy:
        hint = _hint(body)
        if hint is None:
            raise
    raise InvalidProxy(hint)


def _hint(body: str) -> str | None:
    """A better reason for a line that could not be read, if there is one."""
    if _SEVERAL.search(body):
        return "several addresses on one line; write one a line"
    if "|" in body and "@" not in body:
        return "columns that nobody named; add a header line such as host|port|country"
    return None


def _refuse_what_is_no_line(line: str) -> None:
    if _MAIL_MASK.search(line):
        raise InvalidProxy("masked as a mail address by the web page it was copied from")
    if _CONTROL.search(line):
        raise InvalidProxy("a control character or line break; is the file UTF-8 text?")
    if _INVISIBLE.search(line):
        raise InvalidProxy("an invisible character, probably copied along from a web page")
    if _PRINTED.match(line):
        raise InvalidProxy("a printed object or markup, not an address")


def _without_comment(line: str) -> str:
    comment = _COMMENT.search(line) if "#" in line else None
    if comment is None:
        return line
    body = line[: comment.start()].rstrip()
    if SERVER_AT_END.search(comment[0]) and "@" not in body:
        raise InvalidProxy(
            "a comment, or a login with a blank and '#'? Write these as %20 and %23 in a login, "
            "and a comment with an address on a line of its own"
        )
    return body


def _unquote(body: str) -> str:
    if len(body) > 1 and body[0] == body[-1] and body[0] in "\"'" and body.count(body[0]) == 2:
        return body[1:-1].strip()
    return body


def _split_tags(body: str) -> tuple[str, dict[str, str]]:
    match = _TAGS.search(body) if "=" in body else None
    tags: dict[str, str] = {}
    if match is None:
        return body, tags
    for token in match[0].split():
        key, _, value = token.partition("=")
        if key in tags:
            raise InvalidProxy(f"{key}= is there twice")
        tags[key] = value
    return body[: match.start()].rstrip(), tags


def _refuse_blank(body: str) -> None:
    head, tail = body.split(maxsplit=1)
    # Says what is wrong with the address itself, if anything is.
    in_login = "@" in tail and not (has_scheme(tail) or "@" in head)
    if not in_login:
        read_address(head)
    if in_login:
        raise InvalidProxy("a blank inside: password or next column? Write %20 in a login")
    if tail.isdigit():
        raise InvalidProxy("a number without a name after the address; write weight=N")
    raise InvalidProxy(
        "after the address only weight=N, name=…, close=yes and a comment after ' #' are understood"
    )
