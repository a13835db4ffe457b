"""JSON: a list of lines or objects, one object, or one object a line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ..proxy import InvalidProxy, Proxy
from ..turns import Steps
from .fields import by_role, read_record
from .line import is_blank, read_line

_START = re.compile(r"\s*(?:\{|\[(?![0-9A-Fa-f.]*:|email))", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\r\n]*")

Accept = Callable[[int, Proxy], None]
Refuse = Callable[[int, str], None]


def looks_like_json(text: str) -> bool:
    """Whether *text* starts as JSON does, and not as an IPv6 address in brackets."""
    return _START.match(text) is not None


def read_json(text: str, accept: Accept, refuse: Refuse) -> Steps[None]:
    """Read every entry, one a step; line numbers are those of the entries' first character."""
    walker = _Walker(text, refuse)
    if walker.peek() == "[":
        walker.position += 1
        yield from walker.read_array(accept)
    else:
        yield from walker.read_objects(accept)


def _no_constant(_: str) -> object:
    raise InvalidProxy("NaN and Infinity are no values of JSON")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise InvalidProxy("an object with the same key twice")
    return result


class _Walker:
    """Goes through the entries one by one, so that each has a line number."""

    def __init__(self, text: str, refuse: Refuse) -> None:
        self.text = text
        self.position = 0
        self._refuse = refuse
        self._line = 1
        self._counted = 0
        self._decoder = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique)

    def peek(self) -> str:
        """Skip white space and return the next character, "" at the end."""
        match = _SPACE.match(self.text, self.position)
        self.position = match.end() if match else self.position
        return self.text[self.position : self.position + 1]

    def line(self) -> int:
        self._line += self.text.count("\n", self._counted, self.position)
        self._counted = self.position
        return self._line

    def read_array(self, accept: Accept) -> Steps[None]:
        if self.peek() == "]":
            self.position += 1
        else:
            while self._entry(accept):
                yield
                mark = self.peek()
                if mark not in (",", "]"):
                    self._stop("JSON ends too early" if not mark else "no JSON: ',' or ']' missing")
                    return
                self.position += 1
                if mark == "]":
                    break
            else:
                return
        if self.peek():
            self._stop("something follows the JSON list")

    def read_objects(self, accept: Accept) -> Steps[None]:
        while self.peek():
            if not self._entry(accept):
                return
            yield
            self.position += 1 if self.peek() == "," else 0

    def _stop(self, reason: str) -> None:
        self._refuse(self.line(), reason)

    def _entry(self, accept: Accept) -> bool:
        """Read one entry; False if reading cannot go on."""
        if not self.peek():
            self._stop("JSON ends too early")
            return False
        number = self.line()
        try:
            value, self.position = self._decoder.raw_decode(self.text, self.position)
        except InvalidProxy as error:
            self._refuse(number, str(error))
            return False
        except RecursionError:
            self._refuse(number, "JSON nested too deep")
            return False
        except ValueError as error:  # its text is ours to choose: it quotes the document
            self._refuse(number, _why_no_json(error, self.text))
            return False
        try:
            accept(number, read_value(value))
        except InvalidProxy as error:
            self._refuse(number, str(error))
        return True


def _why_no_json(error: ValueError, text: str) -> str:
    if isinstance(error, json.JSONDecodeError):
        if error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip()):
            return "JSON ends too early"
        if text[error.pos : error.pos + 1] == "'":
            return "not JSON: texts need double quotes"
    return "not JSON"


def read_value(value: object) -> Proxy:
    """Read one entry of a JSON list.

    :raises ValueError: (as ``InvalidProxy``) if it is neither a line nor an object.
    """
    if value is None:
        raise InvalidProxy("null would mean a direct connection")
    if isinstance(value, str):
        if is_blank(value):
            raise InvalidProxy("an empty text instead of a proxy")
        return read_line(value)
    if isinstance(value, dict):
        return read_record(by_role(value))
    raise InvalidProxy("an entry is a line in double quotes or an object with host and port")
