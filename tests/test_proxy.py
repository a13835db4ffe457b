"""What a Proxy is called, how it is written, and that it keeps its login to itself."""

from __future__ import annotations

import copy
import pickle
import re
import traceback
from dataclasses import FrozenInstanceError, asdict, replace
from hashlib import sha256
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_smoothpool.parsing import parse_proxies
from scrapy_smoothpool.proxy import (
    MAX_NAME_LENGTH,
    MAX_WEIGHT,
    SCHEMES,
    InvalidProxy,
    Proxy,
    distinguish,
    percent_decoded,
)

_label = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,8}[a-z0-9_])?", fullmatch=True)
_tail = st.sampled_from(["example", "vendor", "x", "xn--bcher-kva"])
_hosts = st.one_of(
    st.ip_addresses()
    .map(str)
    .filter(lambda host: host not in ("0.0.0.0", "::") and "%" not in host),
    st.lists(_label, max_size=3).flatmap(lambda ls: _tail.map(lambda t: ".".join([*ls, t]))),
)
_text = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\u2028\u2029"), max_size=20
)
_usernames = _text.filter(lambda text: bool(text) and ":" not in text)
_names = st.from_regex(r"[\w.:/\[\]#-]{1,20}", fullmatch=True)


@st.composite
def proxies(draw: st.DrawFn) -> Proxy:
    username = draw(st.none() | _usernames)
    return Proxy(
        draw(st.sampled_from(sorted(SCHEMES))),
        draw(_hosts),
        draw(st.integers(1, 65535)),
        username,
        draw(st.none() | _text) if username is not None else None,
        draw(st.integers(0, MAX_WEIGHT)),
        draw(st.none() | _names),
        close=draw(st.booleans()),
    )


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("http", "192.0.2.1", 80), "http://192.0.2.1:80"),
        (("HTTP", "Proxy.Vendor.EXAMPLE", 3128), "http://proxy.vendor.example:3128"),
        (("socks5h", "2001:DB8:0::A2", 1080), "socks5h://[2001:db8::a2]:1080"),
        (("http", "::ffff:192.0.2.1", 80), "http://[::ffff:192.0.2.1]:80"),
        (("http", "Bücher.example", 80), "http://xn--bcher-kva.example:80"),
        # Upper case sigma at the end of a word has one small form only here.
        (("http", "ΟΔΟΣ.example", 80), "http://xn--pxavbq.example:80"),
        (("http", "gw.example", 80, "bob", "pw"), f"http://gw.example:80#{digest('bob')}"),
        (("http", "gw.example", 80, "bob"), f"http://gw.example:80#{digest('bob')}"),
        (("http", "gw.example", 80, "иван"), f"http://gw.example:80#{digest('иван')}"),
        (("http", "gw.example", 80, "bob", "pw", 1, "de-1"), "de-1"),
    ],
)
def test_id(parts: tuple[Any, ...], expected: str) -> None:
    assert Proxy(*parts).id == expected


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("http", "192.0.2.1", 80), "http://192.0.2.1:80"),
        (("http", "2001:db8::7", 80, "u", "p"), "http://u:p@[2001:db8::7]:80"),
        (("http", "h", 80, "u@x", "p:/?#%"), "http://u%40x:p%3A%2F%3F%23%25@h:80"),
        # HttpProxyMiddleware of Scrapy raises TypeError on user@host.
        (("http", "h", 80, "key", None), "http://key:@h:80"),
        (("http", "h", 80, "key", ""), "http://key:@h:80"),
    ],
)
def test_url(parts: tuple[Any, ...], expected: str) -> None:
    assert Proxy(*parts).url == expected


@given(proxies())
def test_url_carries_the_login_to_scrapy(proxy: Proxy) -> None:
    parts = urlsplit(proxy.url)
    assert parts.hostname == proxy.host
    assert parts.port == proxy.port
    if proxy.username is not None:
        assert unquote(parts.username or "") == proxy.username
        assert unquote(parts.password or "") == (proxy.password or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"scheme": "ftp"},
        {"scheme": "socks"},
        {"scheme": ""},
        {"scheme": None},
        {"host": ""},
        {"host": None},
        {"host": b"h"},
        {"host": ["h"]},
        {"host": "a b"},
        {"host": "-a.example"},
        {"host": "a..example"},
        {"host": "a/b"},
        {"host": "a@b"},
        {"host": "a" * 64},
        {"host": "a." * 130},
        {"host": "256.1.1.1"},
        {"host": "1.2.3"},
        {"host": "010.1.1.1"},
        {"host": "0x7f.1"},
        {"host": "2130706433"},
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "fe80::1%eth0"},
        {"host": "[2001:db8::1]"},
        {"host": "2001:db8:::1"},
        {"host": "straße.example"},
        {"host": "STRAẞE.example"},
        {"host": "βόλος.example"},
        {"host": "a\u200db.example"},
        {"host": "a\u200cb.example"},
        {"host": "℀.example"},
        {"host": "h\n"},
        {"port": 0},
        {"port": 65536},
        {"port": -1},
        {"port": True},
        {"port": 80.0},
        {"port": "80"},
        {"weight": -1},
        {"weight": 1.5},
        {"weight": 1.0},
        {"weight": float("nan")},
        {"weight": True},
        {"weight": "3"},
        {"weight": None},
        {"weight": MAX_WEIGHT + 1},
        {"username": ""},
        {"username": None, "password": "S3CR3T"},
        {"username": "", "password": "S3CR3T"},
        {"username": "a:b", "password": "S3CR3T"},
        {"username": "S3CR3T\r\nX-Evil: 1"},
        {"username": "u", "password": "S3CR3T\n"},
        {"username": "u", "password": "S3CR3T\x00"},
        {"username": "u", "password": "S3CR3T\x85"},
        {"username": "u", "password": "S3CR3T\u2028"},
        {"username": "u", "password": "S3CR3T\ud800"},
        {"username": b"S3CR3T"},
        {"username": "u", "password": b"S3CR3T"},
        {"name": ""},
        {"name": "a b"},
        {"name": "a\n"},
        {"name": "u:S3CR3T@host"},
        {"name": "a" * (MAX_NAME_LENGTH + 1)},
        {"name": 3},
    ],
    ids=repr,
)
def test_refused(changes: dict[str, Any]) -> None:
    parts: dict[str, Any] = {"scheme": "http", "host": "h", "port": 80} | changes
    with pytest.raises(ValueError) as caught:
        Proxy(**parts)
    assert "S3CR3T" not in str(caught.value)
    assert caught.value.__context__ is None


def test_drained_proxy_has_weight_0() -> None:
    assert Proxy("http", "h", 80, weight=0).weight == 0


@pytest.mark.parametrize(
    "proxy",
    [
        Proxy("http", "h", 80, "APIKEY77", "S3CR3T"),
        Proxy("http", "h", 80, "APIKEY77", "S3CR3T", password_in_id=True),
        Proxy("http", "h", 80, "APIKEY77", "S3CR3T", 5, "de"),
    ],
)
def test_shows_no_login(proxy: Proxy) -> None:
    shown = [repr(proxy), str(proxy), f"{proxy}", f"{[proxy]}", proxy.id]
    try:
        raise RuntimeError(proxy)
    except RuntimeError:
        shown.append(traceback.format_exc())
    try:
        proxy.port = 81  # type: ignore[misc]
    except FrozenInstanceError as error:
        shown.append(str(error))
    for text in shown:
        assert "APIKEY77" not in text
        assert "S3CR3T" not in text
    assert str(proxy.weight) in repr(proxy)


def test_is_a_value() -> None:
    proxy = Proxy("http", "h", 80, "u", "p", 3)
    assert proxy == Proxy("HTTP", "H", 80, "u", "p", 3)
    assert len({proxy, Proxy("http", "h", 80, "u", "p", 3)}) == 1
    assert proxy != Proxy("http", "h", 80, "u", "q", 3)
    assert copy.copy(proxy) == pickle.loads(pickle.dumps(proxy)) == proxy
    assert replace(proxy, weight=5).weight == 5
    assert asdict(proxy)["id"] == proxy.id


def test_replace_keeps_an_id_with_the_password() -> None:
    proxy = Proxy("http", "h", 80, "u", "p", password_in_id=True)
    assert replace(proxy, weight=5).id == proxy.id


def test_password_tells_apart_what_the_user_name_does_not() -> None:
    alone = Proxy("http", "h", 80, "other", "p")
    first, second, third = (Proxy("http", "h", 80, "u", p) for p in ("s1", "s2", None))
    result = distinguish([first, alone, second, third])
    assert [proxy.id for proxy in result] == [
        f"http://h:80#{digest('u' + chr(0) + 's1')}",
        alone.id,
        f"http://h:80#{digest('u' + chr(0) + 's2')}",
        f"http://h:80#{digest('u' + chr(0))}",
    ]
    assert {p.id for p in distinguish([second, third, first])} == {
        p.id for p in result if p is not alone
    }


@pytest.mark.parametrize(
    "group",
    [
        [Proxy("http", "h", 80), Proxy("http", "h", 80)],
        [Proxy("http", "h", 80, name="a"), Proxy("http", "i", 80, name="a")],
        [Proxy("http", "h", 80), Proxy("http", "i", 80, name="http://h:80")],
        [Proxy("http", "h", 80, "u", "p", name="a"), Proxy("http", "h", 80, "u", "q", name="a")],
        [Proxy("http", "h", 80, "u", None), Proxy("http", "h", 80, "u", "")],
    ],
)
def test_ids_that_still_collide_are_refused(group: list[Proxy]) -> None:
    with pytest.raises(ValueError, match="share the id"):
        distinguish(group)


@given(proxies())
def test_line_is_read_back(proxy: Proxy) -> None:
    line = proxy.to_line()
    assert Proxy.from_line(line, id=proxy.id) == proxy
    plain = replace(proxy, password_in_id=False)
    assert Proxy.from_line(line) == plain
    assert parse_proxies(line) == [plain]


@given(st.lists(proxies(), max_size=6))
def test_password_ids_survive_the_line(group: list[Proxy]) -> None:
    try:
        told = distinguish(group)
    except ValueError:
        return
    assert [Proxy.from_line(proxy.to_line(), id=proxy.id) for proxy in told] == told


@pytest.mark.parametrize(
    "line",
    [
        "",
        "h:80",
        "http://u:S3CR3T@h",
        "http://u:S3CR3T@h:80 wieght=3",
        "http://u:S3CR3T@h:99999",
        "http://u:S3CR3T@h:80\n",
        "http://u%ff:S3CR3T@h:80",
    ],
)
def test_foreign_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError) as caught:
        Proxy.from_line(line)
    assert "S3CR3T" not in str(caught.value)


def test_line_under_another_id_is_refused() -> None:
    with pytest.raises(ValueError, match="another proxy") as caught:
        Proxy.from_line("http://u:S3CR3T@h:80", id="http://i:80")
    assert "S3CR3T" not in str(caught.value)


def test_ids_are_ascii_unless_named() -> None:
    assert all(re.fullmatch(r"[!-~]+", Proxy(s, "Bücher.example", 80, "ü").id) for s in SCHEMES)


@given(
    st.lists(
        st.sampled_from(["%", "%4", "%40", "%3a", "%7F", "%C3", "%c3%BC", "%%", "a", "ü", "+"])
    )
)
def test_percent_encoded_text_is_decoded_as_the_standard_library_does(pieces):
    text = "".join(pieces)
    try:
        expected = unquote(text, errors="strict")
    except UnicodeDecodeError:
        with pytest.raises(InvalidProxy, match="not UTF-8"):
            percent_decoded(text)
    else:
        assert percent_decoded(text) == expected
