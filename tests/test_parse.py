"""Whole kinds of lists: what is read, what is refused, and that no reason tells a secret."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_smoothpool.exceptions import ProxyListError
from scrapy_smoothpool.parsing import parse_entries, parse_proxies, parse_weighted
from scrapy_smoothpool.proxy import Proxy

MARK = "S3CR3T"


def refused(text: str) -> list[tuple[int, str]]:
    with pytest.raises(ProxyListError) as caught:
        parse_proxies(text)
    return caught.value.errors


def one(text: str) -> Proxy:
    (proxy,) = parse_proxies(text)
    return proxy


BOB = Proxy("http", "gw.example", 80, "bob", "pW1")


@pytest.mark.parametrize(
    "line",
    [
        "http://bob:pW1@gw.example:80",
        "http://bob:pW1@GW.example:80/",
        "HTTP://bob:pW1@gw.example:80,",
        "bob:pW1@gw.example:80",
        "bob:pW1@gw.example:80/",
        "gw.example:80@bob:pW1",
        "gw.example:80:bob:pW1",
        "http://gw.example:80:bob:pW1",
        "bob:pW1:gw.example:80",
        "gw.example,80,bob,pW1",
        "gw.example, 80, bob, pW1",
        "gw.example;80;bob;pW1",
        "gw.example\t80\tbob\tpW1",
        "gw.example 80 bob pW1",
        "bob,pW1,gw.example,80",
        '"gw.example",80,"bob","pW1"',
        "'http://bob:pW1@gw.example:80',",
        '"gw.example:80:bob:pW1",',
        "http://bob:pW1@gw.example:80;",
        "  http://bob:pW1@gw.example:80  # a comment with bob@example.com",
        "http://bob:pW1@gw.example:80 weight=1",
        "\ufeffhttp://bob:pW1@gw.example:80\r",
        "# first\r\n\r\nhttp://bob:pW1@gw.example:80\r\n",
        "cache_peer gw.example parent 80 0 no-query login=bob:pW1",
        "proxy\nbob:pW1@gw.example:80",
        "host,port,user,pass\ngw.example,80,bob,pW1",
        "Host;Port;Login;Password\n# one\ngw.example;80;bob;pW1",
        "host|port|country|user|pass\ngw.example|80|de|bob|pW1",
        "scheme\thost\tport\tusername\tpassword\nHTTP\tgw.example\t80\tbob\tpW1",
        "server,username,password\nhttp://gw.example:80,bob,pW1",
        '["bob:pW1@gw.example:80"]',
        '{"host": "gw.example", "port": 80, "user": "bob", "pass": "pW1"}',
        '{"ip": "gw.example", "port": "80", "username": "bob", "password": "pW1"}\n'
        '{"ip": "gw.example", "port": "80", "username": "bob", "password": "pW1"}\n',
        '{"server": "gw.example", "port": 80, "username": "bob", "password": "pW1"}',
        '{"proxy": "http://gw.example:80", "port": 80, "user": "bob", "pass": "pW1", "x": [1]}',
        '[{"ip": "gw.example", "port": 80, "protocols": ["http"], "user": "bob", "pass": "pW1"}]',
    ],
)
def test_one_proxy_in_many_spellings(line: str) -> None:
    assert one(line) == BOB


@pytest.mark.parametrize(
    ("line", "username", "password"),
    [
        ("http://KEY:@gw.example:80", "KEY", ""),
        ("KEY@gw.example:80", "KEY", None),
        ("gw.example:80:KEY:", "KEY", ""),
        ("gw.example:80:acme;country=US:pw", "acme;country=US", "pw"),
        ("http://a,b:c,d@gw.example:80", "a,b", "c,d"),
        ("a,b:c,d@gw.example:80", "a,b", "c,d"),
        ("http://u:100%@gw.example:80", "u", "100%"),
        ("http://u:%zz%41@gw.example:80", "u", "%zzA"),
        ("gw.example:80:u:p%40", "u", "p%40"),
        ("gw.example,80,u,p%40@", "u", "p%40@"),
        ("http://bob:8080@gw.example:80", "bob", "8080"),
        ("http://bob.example:8080@gw.example:80", "bob.example", "8080"),
        ("http://u:p|q*r@gw.example:80", "u", "p|q*r"),
    ],
)
def test_unusual_logins(line: str, username: str, password: str | None) -> None:
    assert one(line) == Proxy("http", "gw.example", 80, username, password)


@pytest.mark.parametrize(
    "line",
    ["[2001:db8::7]:80", "http://[2001:DB8::7]:80/", "[2001:db8:0:0::7]:80", "2001:db8::7,80"],
)
def test_ipv6(line: str) -> None:
    assert one(line) == Proxy("http", "2001:db8::7", 80)


def test_ipv6_with_login_between_colons() -> None:
    assert one("[2001:db8::7]:80:u:p") == one("u:p:[2001:db8::7]:80")
    assert one("[2001:db8::7]:80:u:p").username == "u"


def test_weight_and_name() -> None:
    proxy = one("http://u:p@192.0.2.1:80 weight=3 name=de/1 # cheap")
    assert (proxy.weight, proxy.name, proxy.id) == (3, "de/1", "de/1")
    assert one("192.0.2.1:80 name=a weight=0").weight == 0
    assert one("host,port,weight,name\nh,80,4,x") == Proxy("http", "h", 80, weight=4, name="x")
    assert one('[{"host": "h", "port": 80, "weight": 4}]').weight == 4


@pytest.mark.parametrize(
    ("text", "close"),
    [
        ("h:80 close=yes", True),
        ("h:80 close=no", False),
        ("http://h:80 weight=1 close=yes # another exit for each connection", True),
        ("h:80 close=yes weight=1", True),
        ("host,port,close\nh,80,yes", True),
        ("host,port,close\nh,80,No", False),
        ("host,port,close\nh,80,", False),
        ('[{"host": "h", "port": 80, "close": true}]', True),
        ('[{"host": "h", "port": 80, "close": false}]', False),
        ('[{"host": "h", "port": 80, "close": null}]', False),
        ('["h:80 close=yes"]', True),
    ],
)
def test_close(text: str, close: bool) -> None:
    assert one(text) == Proxy("http", "h", 80, close=close)


def test_close_beside_a_weight_in_a_mapping() -> None:
    assert parse_weighted({"h:80 close=yes": 3}) == [
        Proxy("http", "h", 80, None, None, 3, close=True)
    ]


@pytest.mark.parametrize(
    "line",
    [
        "server 192.0.2.1:80 weight=4 max_fails=3 fail_timeout=30s max_conns=5;",
        "\tserver 192.0.2.1:80 weight=4;   # old one",
        "server px_1 192.0.2.1:80 check inter 2s fall 3 rise 2 weight 4 maxconn 10",
        "cache_peer 192.0.2.1 parent 80 0 no-query round-robin weight=4",
    ],
)
def test_server_lines(line: str) -> None:
    assert one(line) == Proxy("http", "192.0.2.1", 80, weight=4)


def test_scheme_and_type_columns() -> None:
    assert one("type,host,port\nsocks5,h,80").scheme == "socks5"
    assert one("protocol,type,host,port\nsocks5,datacenter,h,80").scheme == "socks5"
    assert one('[{"url": "h:80", "protocol": "https"}]').scheme == "https"


def test_password_sessions_get_ids_of_their_own() -> None:
    found = parse_proxies("http://u:s1@h:80\nhttp://u:s2@h:80\nhttp://v:s2@h:80")
    assert len({proxy.id for proxy in found}) == 3
    assert [proxy.password_in_id for proxy in found] == [True, True, False]


@pytest.mark.parametrize(
    "line",
    [
        # two readings
        "192.0.2.1:80:192.0.2.2:80",
        "bob:12345@gw.example:80",
        "gw.example:80@bob:12345",
        "gw.example:80@u:p@h:81",
        "gw.example:80:bob:12345",
        "bob:1234@gw.example:8O80",
        "192.0.2.1:8O80@bob:1234",
        "192.0.2.1:8O80:bob:1234",
        "squid:80:gw.example:8O80",
        "http://gw.example:80/x@h:81",
        "http://gw.example/x@h:81",
        "gw.example,80,u,p@h:81",
        "gw.example:80:u:p,",
        "gw.example,80,u,p,",
        "http://gw.example:80:u:p/",
        "http://bob:8080 #x@gw.example:80",
        "gw.example:80:u:p:q",
        "2001:db8::1:80",
        "1:2:3:4:5:6:7:8:80",
        # something missing, too much, or misspelt
        "gw.example",
        "gw.example:",
        ":80",
        "gw.example:80:u",
        "gw.example:080",
        "gw.example:80a",
        "gw.example:٨٠",
        "gw.example:99999",
        "gw.example:80 extra",
        "gw.example:80 5",
        "gw.example:80 Weight=5",
        "gw.example:80 wieght=5",
        "gw.example:80 max_fails=3",
        "gw.example:80 weight=-1",
        "gw.example:80 weight=1.5",
        "gw.example:80 weight=nan",
        "gw.example:80 weight=",
        "gw.example:80 weight=" + "9" * 5000,
        "gw.example:80 weight=1 weight=1",
        "gw.example:80 name=",
        "gw.example:80 name=u:p@h",
        "gw.example:80 close=",
        "gw.example:80 close=maybe",
        "gw.example:80 close=yes close=yes",
        "gw.example:80 closed=yes",
        "host,port,close\nh,80,sometimes",
        '[{"host": "h", "port": 80, "close": 2}]',
        '[{"host": "h", "port": 80, "close": ["yes"]}]',
        "gw.example:80?x=1",
        "gw.example:80#x",
        "gw.example:80//",
        "http://:80",
        "http://@gw.example:80",
        "http://:pw@gw.example:80",
        "http://a%3Ab:pw@gw.example:80",
        "http://u:p%0d%0aX:1@gw.example:80",
        "http:/gw.example:80",
        "//gw.example:80",
        "htp://gw.example:80",
        "socks://gw.example:80",
        "socks5://socks5://gw.example:80",
        "http://gw.example:80 http://gw.example:81",
        "gw.example:80,gw.example:81",
        "192.0.2.1:80*192.0.2.2:80",
        "192.0.2.1:80|192.0.2.2:80",
        "gw.example,80,u",
        "http,gw.example,80,u,p",
        'gw.example,80,u,"p',
        "gw.example,80,u,two words",
        "http://u:p\x0b@gw.example:80",
        "gw.example:80\x00",
        "gw.example:80:u:p\u200b" + "x",
        "gw.example:80:u:p\u3000",
        "<Proxy US [HTTP] 192.0.2.1:80>",
        "Proxy(host='192.0.2.1', port=80)",
        "<td>192.0.2.1:80</td>",
        "http://u:[email\u00a0protected]:80",
        "direct",
        "server gw.example:80 down;",
        "server gw.example:80 backup;",
        "server gw.example:80 drain;",
        "server gw.example:80 weight=2 weight=3;",
        "server gw.example:80 slow_start=30s;",
        "server gw.example;",
        "server unix:/tmp/x.sock;",
        "server a:80; server b:80;",
        "server px gw.example:80 check backup",
        "server px gw.example:80 disabled",
        "server px gw.example:80 weight",
        "server px gw.example:80 ssl verify none",
        "server",
        "cache_peer gw.example sibling 80 0",
        "cache_peer gw.example parent 80 0 default",
        "cache_peer gw.example parent 80 0 login=PASS",
        "upstream squid {",
        # tables
        "host,port\nh",
        "host,port\nh,80,x",
        "host,port\nh,",
        "host,port,wieght\nh,80,3",
        "host,ip,port\nh,h,80",
        "host,port,port\nh,80,80",
        "host,port,weight\nh,80,-1",
        "host,port,weight\nh,80,2.5",
        "host,port,user,password\nh,80,,p",
        "host,port,type\nh,80,elite",
        "host,port,protocol\nh,80,HTTP/HTTPS",
        "host,port,disabled\nh,80,yes",
        "host,port,auth\nh,80,u:p",
        "url,protocol\nhttp://h:80,socks5",
        "url,port\nhttp://h:80,81",
        "url,user,pass\nhttp://a:b@h:80,c,d",
        "http,https\nh:80,h:81",
        # JSON
        "[]",
        "{}",
        "[",
        "{",
        '["h:80"',
        '["h:80",]',
        '["h:80" "h:81"]',
        '["h:80"] x',
        "['h:80']",
        '[""]',
        '["h:80\\nh:81"]',
        "[80]",
        "[null]",
        "[true]",
        "[NaN]",
        '[["h:80"]]',
        '[{"host": "h"}]',
        '[{"host": "h", "port": true}]',
        '[{"host": "h", "port": 80.0}]',
        '[{"host": 1, "port": 80}]',
        '[{"host": "h", "port": 80, "port": 81}]',
        '[{"host": "h", "port": 80, "weight": true}]',
        '[{"host": "h", "port": 80, "weight": 1.5}]',
        '[{"host": "h", "port": 80, "weight": ' + "9" * 5000 + "}]",
        '[{"host": "h", "port": 80, "enabled": false}]',
        '[{"host": "h", "port": 80, "protocols": ["http", "socks5"]}]',
        '[{"host": "h", "port": 80, "username": 5, "password": "x"}]',
        '{"http://h:80": 3}',
        "[" * 100_000,
        # no list at all
        "",
        "\ufeff",
        " \n\n# only this\n",
    ],
    ids=lambda line: repr(line[:60]),
)
def test_refused(line: str) -> None:
    for number, reason in refused(line):
        assert 1 <= number <= line.count("\n") + 1
        assert reason
        assert len(reason) < 200


def test_every_bad_line_is_named_once() -> None:
    errors = refused("192.0.2.1:80\nfoo\n# x\n192.0.2.2:0\n\n192.0.2.3:80 weight=x\n")
    assert [number for number, _ in errors] == [2, 4, 6]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_numbers_are_those_of_an_editor(newline: str) -> None:
    assert refused(newline.join(["h:80", "", "# \x0c", "bad"]))[0][0] == 4


def test_lines_of_json_entries() -> None:
    errors = refused('[\n  "h:80",\n  null,\n  {"host": "h", "port": 0},\n  "h:81"\n]')
    assert [number for number, _ in errors] == [3, 4]


def test_same_proxy_with_another_weight_or_name() -> None:
    ((number, reason),) = refused("h:80 weight=2\nh:81\nhttp://h:80/ weight=3")
    assert number == 3
    assert "line 1" in reason
    ((number, reason),) = refused("h:80 name=a\nh:80 name=b")
    assert number == 2
    assert "line 1" in reason
    ((number, reason),) = refused("h:80\nh:80 close=yes")
    assert number == 2
    assert "line 1" in reason
    assert len(parse_proxies("h:80 weight=2\nh:80 weight=2\nh:81\nh:81 weight=1")) == 2
    assert len(parse_proxies("KEY:@h:80\nKEY@h:80")) == 1


@pytest.mark.parametrize("text", ["h:80 name=a\nh:81 name=a", "h:80\nh:81 name=http://h:80"])
def test_ids_that_collide(text: str) -> None:
    ((number, reason),) = refused(text)
    assert number == 2
    assert "line 1" in reason


def test_a_host_may_be_called_like_a_column() -> None:
    assert one("proxy,3128").host == "proxy"
    assert one("host:3128").host == "host"


def test_entries() -> None:
    assert parse_entries(["h:80", " h:81 weight=2 # x\n"]) == [
        Proxy("http", "h", 80),
        Proxy("http", "h", 81, weight=2),
    ]
    with pytest.raises(ProxyListError) as caught:
        parse_entries(["h:80", None, "", "  ", "# x", 5, b"h:80", "h:1\nh:2", "bad", ["h:80"]])
    assert [number for number, _ in caught.value.errors] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert "entry 2 is None" in str(caught.value)
    with pytest.raises(ProxyListError):
        parse_entries([])


def test_weighted() -> None:
    assert parse_weighted({"h:80": 3, "h:81 weight=2": 2, "h:82": 0}) == [
        Proxy("http", "h", 80, weight=3),
        Proxy("http", "h", 81, weight=2),
        Proxy("http", "h", 82, weight=0),
    ]
    bad: dict[Any, Any] = {
        "h:1": -1,
        "h:2": 1.5,
        "h:3": True,
        "h:4": None,
        "h:5": "3",
        "h:6 weight=2": 3,
        None: 1,
        "server h:7 weight=2;": 3,
        "h:8 x": 1,
    }
    with pytest.raises(ProxyListError) as caught:
        parse_weighted(bad)
    assert [number for number, _ in caught.value.errors] == list(range(1, 10))
    with pytest.raises(ProxyListError):
        parse_weighted({})


_PIECES = st.sampled_from(
    [
        "http://",
        "socks5://",
        "socks://",
        "x://",
        "user",
        "bob",
        ":",
        "@",
        ":80",
        ":0",
        "/",
        "?",
        "#",
        " ",
        "\t",
        ",",
        ";",
        "|",
        "*",
        '"',
        "'",
        "[",
        "]",
        "{",
        "}",
        "<",
        ">",
        "(",
        ")",
        "%",
        "%ff",
        "%0a",
        "192.0.2.1",
        "gw.example",
        "2001:db8::7",
        "[2001:db8::7]",
        "weight=",
        "name=",
        "3",
        "server ",
        "cache_peer ",
        "parent ",
        "login=",
        "weight ",
        "check ",
        "\n",
        "\r",
        "null",
        "host,port,password",
        "host",
        "port",
        "password",
        "type",
        "=",
        "-",
        ".",
        "é",
        "ß",
        "\x00",
        "\ud800",
        "\u200b",
        "\u2028",
        "\ufeff",
        '["',
        '"]',
        '{"host": "',
        '", "password": "',
        '"}',
    ]
)
_lists = st.lists(_PIECES, max_size=14).map("".join)


@given(st.one_of(st.text(), _lists))
@example("[" + "9" * 5000 + "]")
def test_never_raises_anything_else(text: str) -> None:
    try:
        found = parse_proxies(text)
    except ProxyListError:
        return
    assert len({proxy.id for proxy in found}) == len(found) > 0
    # What was understood is understood again, and in the same way.
    again = parse_proxies("\n".join(proxy.to_line() for proxy in found))
    assert again == found


@given(st.one_of(st.text(max_size=20), _lists), st.one_of(st.text(max_size=20), _lists))
def test_no_error_tells_a_secret(before: str, after: str) -> None:
    text = f"{before}{MARK}{after}"
    for read in (parse_proxies, lambda entry: parse_entries([entry, {"k": entry}, [entry]])):
        try:
            read(text)
        except ProxyListError:
            assert MARK not in traceback.format_exc()


@pytest.mark.parametrize(
    "template",
    [
        "http://u:{}@h",
        "http://u:{} x@h:80",
        "h:{}",
        "{}",
        "h,80,u,{},x",
        "h:80 {}=1",
        "h:80 name={}@",
        "{}://h:80",
        "http://{}:x:y@h",
        "server h:80 {};",
        "cache_peer h parent 80 0 login={}",
        "host,port,{}\nh,0,x",
        '["{}"]',
        '[{{"host": "h", "{}": 1}}]',
        '["h:80", "{}',
        "http://{}",
        "http://{}%ff:p@h:80",
        "http://u:p@{}ß.example:80",
        "h:80:u:{}\nh:80:u:{} weight=2",
    ],
)
def test_no_reason_quotes_the_line(template: str) -> None:
    with pytest.raises(ProxyListError) as caught:
        parse_proxies(template.format(MARK, MARK))
    assert MARK.lower() not in str(caught.value).lower()
    assert caught.value.__context__ is None


_FIELD = st.sampled_from(
    ["bob", "b.x", "192.0.2.1", "0.0.0.0", "gw.example", "80", "8O80", "p1", ""]
)


@given(st.lists(_FIELD, min_size=1, max_size=6), st.lists(st.sampled_from(":@"), min_size=6))
def test_short_cuts_read_as_the_long_way_does(fields: list[str], marks: list[str]) -> None:
    line = "".join(field + mark for field, mark in zip(fields, marks, strict=False))[:-1]
    for text in (line, f"http://{line}"):
        results: list[Any] = []
        for spelling in (text, f"{text}  # the long way"):
            try:
                results.append(parse_proxies(spelling))
            except ProxyListError:
                results.append(None)
        assert results[0] == results[1]


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=5))
def test_json_fields_are_literal(logins: list[tuple[str, str]]) -> None:
    entries = [{"host": "h", "port": 80, "username": u, "password": p} for u, p in logins]
    try:
        found = parse_proxies(json.dumps(entries))
    except ProxyListError:
        return
    assert {(p.username or "", p.password or "") for p in found} == set(logins)
