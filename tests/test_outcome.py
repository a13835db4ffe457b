"""What a response or an exception says of the proxy: whose fault, and is it retried elsewhere.

The exceptions are those that Scrapy's three handlers raise, each with the causes it has there,
built from the real classes where they can be imported.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from itertools import pairwise
from types import SimpleNamespace

import pytest
from OpenSSL import SSL
from scrapy import Request
from scrapy import exceptions as scrapy_errors
from scrapy.core.downloader.handlers.http11 import TunnelError
from scrapy.http import Response
from service_identity import VerificationError
from twisted.internet import defer
from twisted.internet import error as twisted_errors
from twisted.python.failure import Failure
from twisted.web._newclient import ParseError, ResponseFailed, ResponseNeverReceived
from twisted.web.http import _DataLoss

from scrapy_smoothpool.exceptions import PoolExhausted
from scrapy_smoothpool.failures import is_descriptor_exhaustion, is_login_fault, retry_after
from scrapy_smoothpool.outcome import Outcome, OutcomePolicy

try:
    import aiohttp
except ImportError:  # Scrapy 2.18 goes without, and then has no such handler
    aiohttp = None  # type: ignore[assignment]

SUCCESS, NEUTRAL = Outcome.SUCCESS, Outcome.NEUTRAL
PROXY_ERROR, AMBIGUOUS, BANNED = Outcome.PROXY_ERROR, Outcome.AMBIGUOUS, Outcome.BANNED

HTTP, HTTPS = Request("http://site.example/page"), Request("https://site.example/page")
POLICY = OutcomePolicy()


def by(error: BaseException, *causes: BaseException) -> BaseException:
    """Return *error* as raised from the first cause, that one from the next, and so on."""
    for above, below in pairwise([error, *causes]):
        above.__cause__ = below
    return error


def foreign(module: str, name: str, *args: object, base: type = Exception) -> BaseException:
    """Return an exception of a library that need not be installed here."""
    return type(name, (base,), {"__module__": module})(*args)


def httpx(name: str, *args: object) -> BaseException:
    return foreign("httpx2", name, *args)


# What the outcomes mean.


@pytest.mark.parametrize(
    ("outcome", "is_failure", "retry_elsewhere"),
    [
        (SUCCESS, False, False),
        (NEUTRAL, False, False),
        (PROXY_ERROR, True, True),
        (AMBIGUOUS, False, True),
        (BANNED, True, True),
    ],
)
def test_blame_and_retry_are_two_questions(outcome, is_failure, retry_elsewhere):
    assert (outcome.is_failure, outcome.retry_elsewhere) == (is_failure, retry_elsewhere)


# Responses.

STATUSES = {
    SUCCESS: [200, 201, 204, 206, 299, 301, 302, 303, 304, 307, 308, 399],
    NEUTRAL: [100, 400, 401, 402, 404, 405, 408, 410, 418, 428, 451, 500, 501, 505, 522, 599],
    PROXY_ERROR: [407],
    AMBIGUOUS: [502, 503, 504],
    BANNED: [403, 429],
}


@pytest.mark.parametrize("request_", [HTTP, HTTPS], ids=["http", "https"])
@pytest.mark.parametrize(
    ("status", "outcome"),
    [(status, outcome) for outcome, statuses in STATUSES.items() for status in statuses],
)
def test_a_status_means_the_same_over_http_and_https(request_, status, outcome):
    response = Response(request_.url, status=status)
    assert POLICY.classify_response(request_, response) is outcome


def test_the_body_does_not_matter():
    response = Response(HTTP.url, status=200, body=b"Access denied. Are you a robot? 403 407")
    assert POLICY.classify_response(HTTP, response) is SUCCESS


# Exceptions: name -> (exception, outcome over http or None where it cannot be, over https).

Cases = dict[str, tuple[BaseException, "Outcome | None", Outcome]]


def connect_refused(status: int, reason: bytes) -> TunnelError:
    return TunnelError(
        "Could not open CONNECT tunnel with proxy gate.example:4070 "
        f"[{ {'status': status, 'reason': reason} }]"
    )


HTTP11: Cases = {
    "refused": (
        by(
            scrapy_errors.DownloadConnectionRefusedError("Connection was refused: 111."),
            twisted_errors.ConnectionRefusedError(errno.ECONNREFUSED),
        ),
        PROXY_ERROR,
        PROXY_ERROR,
    ),
    "its name is unknown": (
        by(scrapy_errors.CannotResolveHostError(), twisted_errors.DNSLookupError("no results")),
        PROXY_ERROR,
        PROXY_ERROR,
    ),
    "dialling took longer than DOWNLOAD_TIMEOUT": (
        by(scrapy_errors.DownloadTimeoutError(), twisted_errors.TimeoutError()),
        PROXY_ERROR,
        PROXY_ERROR,
    ),
    "dialling took longer than the system allows": (
        twisted_errors.TCPTimedOutError(errno.ETIMEDOUT),
        PROXY_ERROR,
        PROXY_ERROR,
    ),
    "reset on accept": (
        twisted_errors.ConnectError(errno.ECONNRESET, "reset by peer"),
        PROXY_ERROR,
        PROXY_ERROR,
    ),
    "no answer": (
        scrapy_errors.DownloadTimeoutError("Getting … took longer than 3.0 seconds."),
        PROXY_ERROR,
        AMBIGUOUS,
    ),
    "closed without an answer": (
        by(
            scrapy_errors.DownloadFailedError(),
            ResponseNeverReceived([Failure(twisted_errors.ConnectionDone())]),
        ),
        PROXY_ERROR,
        AMBIGUOUS,
    ),
    "lost without an answer": (
        by(
            scrapy_errors.DownloadFailedError(),
            ResponseNeverReceived([Failure(twisted_errors.ConnectionLost())]),
        ),
        PROXY_ERROR,
        AMBIGUOUS,
    ),
    "garbage": (
        by(
            scrapy_errors.DownloadFailedError(),
            ResponseFailed([Failure(ParseError("wrong number of parts", b"SSH-2.0"))]),
        ),
        PROXY_ERROR,
        AMBIGUOUS,
    ),
    "closed in the body": (
        by(scrapy_errors.ResponseDataLossError(), ResponseFailed([Failure(_DataLoss())])),
        PROXY_ERROR,
        AMBIGUOUS,
    ),
    "connection done, unwrapped": (twisted_errors.ConnectionDone(), PROXY_ERROR, AMBIGUOUS),
    "connection lost, unwrapped": (twisted_errors.ConnectionLost(), PROXY_ERROR, AMBIGUOUS),
    "CONNECT answered 407": (
        connect_refused(407, b"Proxy Authentication Required"),
        None,
        PROXY_ERROR,
    ),
    "CONNECT answered 403": (connect_refused(403, b"Forbidden"), None, AMBIGUOUS),
    "CONNECT answered 502": (connect_refused(502, b"Bad Gateway"), None, AMBIGUOUS),
    "CONNECT answered 502 at a reason of 407": (connect_refused(502, b"407"), None, AMBIGUOUS),
    "CONNECT answered with garbage": (
        TunnelError("Could not open CONNECT tunnel with proxy 10.0.0.1:407 [b'SSH-2.0']"),
        None,
        AMBIGUOUS,
    ),
    "the site's certificate is bad": (
        by(
            scrapy_errors.DownloadFailedError(),
            ResponseNeverReceived([Failure(SSL.Error([("SSL routines", "", "unknown ca")]))]),
        ),
        None,
        AMBIGUOUS,
    ),
    "the site's certificate is another's": (
        by(
            scrapy_errors.DownloadFailedError(),
            ResponseNeverReceived([Failure(VerificationError(errors=[]))]),
        ),
        None,
        AMBIGUOUS,
    ),
}

HTTPX: Cases = {
    "refused": (
        by(
            scrapy_errors.DownloadConnectionRefusedError("All connection attempts failed"),
            httpx("ConnectError", "All connection attempts failed"),
            foreign("httpcore2", "ConnectError"),
            ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        ),
        PROXY_ERROR,
        PROXY_ERROR,
    ),
    "reset on accept": (
        by(
            scrapy_errors.DownloadConnectionRefusedError(),
            httpx("ConnectError"),
            ConnectionResetError(errno.ECONNRESET, "reset"),
        ),
        PROXY_ERROR,
        PROXY_ERROR,
    ),
    "its name is unknown": (
        by(
            scrapy_errors.CannotResolveHostError(),
            httpx("ConnectError"),
            socket.gaierror(socket.EAI_NONAME, "not known"),
        ),
        PROXY_ERROR,
        PROXY_ERROR,
    ),
    # Over https the handshake inside the tunnel counts as connecting, too.
    "dialling timed out": (
        by(scrapy_errors.DownloadTimeoutError(), httpx("ConnectTimeout")),
        PROXY_ERROR,
        AMBIGUOUS,
    ),
    "no answer": (
        by(scrapy_errors.DownloadTimeoutError(), httpx("ReadTimeout")),
        PROXY_ERROR,
        AMBIGUOUS,
    ),
    "closed without an answer, or garbage": (
        by(
            scrapy_errors.DownloadFailedError(),
            httpx("RemoteProtocolError", "Server disconnected without sending a response."),
        ),
        PROXY_ERROR,
        AMBIGUOUS,
    ),
    "closed in the body": (
        by(scrapy_errors.ResponseDataLossError(), httpx("RemoteProtocolError")),
        PROXY_ERROR,
        AMBIGUOUS,
    ),
    "CONNECT answered 407": (
        by(
            scrapy_errors.DownloadConnectionRefusedError("407 Proxy Authentication Required"),
            httpx("ProxyError", "407 Proxy Authentication Required"),
        ),
        None,
        PROXY_ERROR,
    ),
    "CONNECT answered 502": (
        by(
            scrapy_errors.DownloadConnectionRefusedError("502 Bad Gateway"),
            httpx("ProxyError", "502 Bad Gateway"),
        ),
        None,
        AMBIGUOUS,
    ),
    "the tunnel was closed": (
        by(
            scrapy_errors.DownloadConnectionRefusedError(""),
            httpx("ConnectError"),
            foreign("anyio", "EndOfStream"),
            ssl.SSLEOFError(8, "unexpected EOF"),
        ),
        None,
        AMBIGUOUS,
    ),
    "the tunnel was reset": (
        by(
            scrapy_errors.DownloadConnectionRefusedError(""),
            httpx("ConnectError"),
            foreign("anyio", "BrokenResourceError"),
        ),
        None,
        AMBIGUOUS,
    ),
    "the site's certificate is bad": (
        by(
            scrapy_errors.DownloadConnectionRefusedError(),
            httpx("ConnectError"),
            ssl.SSLCertVerificationError(1, "self-signed certificate"),
        ),
        None,
        AMBIGUOUS,
    ),
}


def aiohttp_cases() -> Cases:
    def connector(name: str, error: OSError) -> BaseException:
        key = SimpleNamespace(host="gate.example", port=8080, is_ssl=False, ssl=True)
        return getattr(aiohttp, name)(key, error)

    def proxy_answered(status: int) -> BaseException:
        # Its own text shows the proxy's URL, password included.
        info = SimpleNamespace(real_url="http://user:secret@gate.example:8080")
        return aiohttp.ClientHttpProxyError(info, (), status=status, message="no")  # type: ignore[arg-type]

    refused = OSError(errno.ECONNREFUSED, "refused")
    reset = ConnectionResetError(errno.ECONNRESET, "reset")
    return {
        "refused": (
            by(
                scrapy_errors.DownloadConnectionRefusedError(),
                connector("ClientProxyConnectionError", refused),
                refused,
            ),
            PROXY_ERROR,
            PROXY_ERROR,
        ),
        "reset on accept": (
            by(
                scrapy_errors.DownloadConnectionRefusedError(),
                connector("ClientProxyConnectionError", reset),
                reset,
            ),
            PROXY_ERROR,
            PROXY_ERROR,
        ),
        "its name is unknown": (
            by(
                scrapy_errors.CannotResolveHostError(),
                connector("ClientConnectorDNSError", OSError(None, "not known")),
            ),
            PROXY_ERROR,
            PROXY_ERROR,
        ),
        # One timeout for dialling, waiting and reading: inside a tunnel nobody can say which.
        "no answer": (
            by(scrapy_errors.DownloadTimeoutError(), TimeoutError()),
            PROXY_ERROR,
            AMBIGUOUS,
        ),
        "closed without an answer": (
            by(scrapy_errors.DownloadFailedError(), aiohttp.ServerDisconnectedError()),
            PROXY_ERROR,
            AMBIGUOUS,
        ),
        "reset after the request": (
            by(
                scrapy_errors.DownloadFailedError(),
                aiohttp.ClientOSError(errno.ECONNRESET, "reset"),
            ),
            PROXY_ERROR,
            AMBIGUOUS,
        ),
        "closed in the body": (
            by(scrapy_errors.ResponseDataLossError(), aiohttp.ClientPayloadError("incomplete")),
            PROXY_ERROR,
            AMBIGUOUS,
        ),
        "CONNECT answered 407": (
            by(scrapy_errors.DownloadFailedError(), proxy_answered(407)),
            None,
            PROXY_ERROR,
        ),
        "CONNECT answered 502": (
            by(scrapy_errors.DownloadFailedError(), proxy_answered(502)),
            None,
            AMBIGUOUS,
        ),
        "the tunnel was closed": (
            by(
                scrapy_errors.DownloadConnectionRefusedError(),
                connector("ClientConnectorError", reset),
                reset,
            ),
            None,
            AMBIGUOUS,
        ),
        "the site's certificate is bad": (
            by(
                scrapy_errors.DownloadConnectionRefusedError(),
                aiohttp.ClientConnectorCertificateError(
                    SimpleNamespace(host="site.example", port=443, is_ssl=True),  # type: ignore[arg-type]
                    ssl.SSLCertVerificationError(1, "self-signed certificate"),
                ),
            ),
            None,
            AMBIGUOUS,
        ),
    }


EXCEPTIONS = {"http11": HTTP11, "httpx": HTTPX, "aiohttp": aiohttp_cases() if aiohttp else {}}


def listed(over_https: bool) -> list:
    return [
        pytest.param(case[0], case[1 + over_https], id=f"{handler}-{name}")
        for handler, cases in EXCEPTIONS.items()
        for name, case in cases.items()
        if case[1 + over_https] is not None
    ]


@pytest.mark.parametrize(("exception", "outcome"), listed(over_https=False))
def test_over_plain_http_the_peer_is_the_proxy(exception, outcome):
    assert POLICY.classify_exception(HTTP, exception) is outcome


@pytest.mark.parametrize(("exception", "outcome"), listed(over_https=True))
def test_inside_a_tunnel_only_what_the_proxy_itself_did_is_certain(exception, outcome):
    assert POLICY.classify_exception(HTTPS, exception) is outcome


# Not the proxy's doing.


def both(exception: BaseException) -> set[Outcome]:
    return {POLICY.classify_exception(request, exception) for request in (HTTP, HTTPS)}


def out_of_descriptors(code: int = errno.EMFILE) -> OSError:
    return OSError(code, "Too many open files")


LOCAL = {
    "http11": twisted_errors.ConnectBindError(errno.EMFILE, "Too many open files"),
    "http11, as a connect error": twisted_errors.ConnectError(errno.EMFILE),
    "http11, in a response that failed": by(
        scrapy_errors.DownloadFailedError(), ResponseFailed([Failure(out_of_descriptors())])
    ),
    "httpx": by(
        scrapy_errors.DownloadConnectionRefusedError("All connection attempts failed"),
        httpx("ConnectError"),
        foreign("httpcore2", "ConnectError"),
        OSError("All connection attempts failed"),
        out_of_descriptors(),
    ),
    "httpx, several addresses": by(
        scrapy_errors.DownloadConnectionRefusedError(),
        httpx("ConnectError"),
        OSError("All connection attempts failed"),
        ExceptionGroup("multiple", [ConnectionRefusedError(111, "no"), out_of_descriptors()]),
    ),
    "whole system": by(
        scrapy_errors.DownloadConnectionRefusedError(), out_of_descriptors(errno.ENFILE)
    ),
    "unwrapped": out_of_descriptors(),
    "no route, http11": twisted_errors.NoRouteError(errno.ENETUNREACH, "unreachable"),
    "no route, httpx": by(
        scrapy_errors.DownloadConnectionRefusedError(),
        httpx("ConnectError"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
    ),
    "no local port left, http11": twisted_errors.ConnectError(errno.EADDRNOTAVAIL),
    "no connection left in httpx's own pool": by(
        scrapy_errors.DownloadTimeoutError(), httpx("PoolTimeout")
    ),
    "not implemented": NotImplementedError("HTTPS proxies for HTTPS destinations"),
}
if aiohttp:
    LOCAL["aiohttp"] = by(
        scrapy_errors.DownloadConnectionRefusedError(),
        aiohttp.ClientProxyConnectionError(
            SimpleNamespace(host="gate.example", port=1, ssl=True),  # type: ignore[arg-type]
            out_of_descriptors(),
        ),
    )


@pytest.mark.parametrize("exception", LOCAL.values(), ids=LOCAL.keys())
def test_a_fault_of_this_machine_is_nobodys_fault_in_any_wrapping(exception):
    assert both(exception) == {NEUTRAL}


def test_a_local_fault_is_found_as_context_too():
    error = scrapy_errors.DownloadConnectionRefusedError()
    error.__context__ = out_of_descriptors()
    assert both(error) == {NEUTRAL}


UNKNOWN = [
    ValueError("invalid hostname"),
    TypeError("no"),
    AssertionError(),
    RuntimeError("a bug"),
    KeyError("x"),
    UnicodeEncodeError("ascii", "ü", 0, 1, "no"),
    PoolExhausted("no proxy"),
    asyncio.CancelledError(),
    scrapy_errors.IgnoreRequest("robots.txt"),
    scrapy_errors.StopDownload(),
    scrapy_errors.CloseSpider("enough"),
    scrapy_errors.NotSupported("scheme"),
    scrapy_errors.UnsupportedURLSchemeError("ftp"),
    by(scrapy_errors.DownloadCancelledError("larger than maxsize"), defer.CancelledError()),
    ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
]


@pytest.mark.parametrize("exception", UNKNOWN, ids=lambda e: type(e).__name__)
def test_what_is_unknown_or_meant_blames_nobody(exception):
    assert both(exception) == {NEUTRAL}


@pytest.mark.parametrize("exception", [RuntimeError, scrapy_errors.IgnoreRequest])
def test_another_components_error_is_its_own_though_a_connection_failed_below_it(exception):
    # A middleware that asks a service of its own, say, and cannot reach it.
    refused = twisted_errors.ConnectionRefusedError(errno.ECONNREFUSED)
    assert both(by(exception("captcha service"), refused)) == {NEUTRAL}


# Chains.


def test_a_cycle_of_causes_ends():
    first, second = scrapy_errors.DownloadFailedError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    second.__context__ = second.__cause__
    assert POLICY.classify_exception(HTTPS, first) is AMBIGUOUS
    assert POLICY.classify_exception(HTTPS, second) is NEUTRAL


def test_a_group_that_holds_its_own_parent_ends():
    inner = ValueError()
    group = ExceptionGroup("several", [inner, OSError(errno.EMFILE, "none left")])
    inner.__cause__ = group
    assert both(by(scrapy_errors.DownloadFailedError(), group)) == {NEUTRAL}


def test_a_very_long_chain_ends():
    error: BaseException = ValueError()
    for _ in range(10_000):
        error = by(scrapy_errors.DownloadFailedError(), error)
    assert POLICY.classify_exception(HTTPS, error) is AMBIGUOUS


def test_subclasses_of_known_exceptions_are_known():
    class Mine(scrapy_errors.DownloadTimeoutError):
        pass

    assert POLICY.classify_exception(HTTP, Mine()) is PROXY_ERROR
    assert POLICY.classify_exception(HTTPS, Mine()) is AMBIGUOUS


def test_the_targets_scheme_is_told_from_its_url():
    tricky = Request("http://site.example/https://other.example/")
    assert POLICY.classify_exception(tricky, scrapy_errors.DownloadFailedError()) is PROXY_ERROR


# Faults that look like others.


def test_a_machine_without_ipv6_does_not_excuse_a_proxy_that_refuses():
    no_ipv6 = OSError(errno.ENETUNREACH, "Network is unreachable")
    for refusal in (ConnectionRefusedError(errno.ECONNREFUSED, "no"), TimeoutError(110, "late")):
        tried = ExceptionGroup("multiple", [no_ipv6, refusal])
        error = by(scrapy_errors.DownloadConnectionRefusedError(), httpx("ConnectError"), tried)
        assert both(error) == {PROXY_ERROR}


def test_a_look_up_that_failed_for_want_of_a_descriptor_does_not_say_so(monkeypatch):
    error = by(scrapy_errors.CannotResolveHostError(), twisted_errors.DNSLookupError("no results"))
    assert both(error) == {PROXY_ERROR}
    assert not is_descriptor_exhaustion(error)

    def starved(*args):
        raise out_of_descriptors()

    monkeypatch.setattr("os.open", starved)
    assert both(error) == {NEUTRAL}
    assert is_descriptor_exhaustion(error)


def test_the_numbers_of_look_ups_are_no_errors_of_the_system():
    # EAI_… share their numbers with errno's on some systems.
    failed = socket.gaierror(errno.EMFILE, "not known")
    error = by(scrapy_errors.CannotResolveHostError(), httpx("ConnectError"), failed)
    assert both(error) == {PROXY_ERROR}


def _build_base_response_args(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [TypeError("not subscriptable"), AssertionError()], ids=repr)
def test_a_connection_that_was_reset_before_its_peer_was_asked_for(error):
    with pytest.raises(type(error)) as caught:
        _build_base_response_args(error)
    assert POLICY.classify_exception(HTTP, caught.value) is PROXY_ERROR
    assert POLICY.classify_exception(HTTPS, caught.value) is AMBIGUOUS


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "no"), PermissionError(errno.EACCES, "no")]
)
def test_a_file_is_no_connection(error):
    assert both(error) == {NEUTRAL}


SOCKS = Request("http://site.example/page", meta={"smoothpool_proxy": "socks5://gate.example:1080"})


def socks(text: str) -> BaseException:
    return by(scrapy_errors.DownloadConnectionRefusedError(text), httpx("ProxyError", text))


def test_by_socks_everything_is_a_tunnel():
    lost = by(scrapy_errors.DownloadFailedError(), httpx("RemoteProtocolError"))
    refused = by(scrapy_errors.DownloadConnectionRefusedError(), httpx("ConnectError"))
    assert POLICY.classify_exception(SOCKS, lost) is AMBIGUOUS
    assert POLICY.classify_exception(SOCKS, refused) is PROXY_ERROR
    unreachable = socks("Proxy Server could not connect: Host unreachable.")
    assert POLICY.classify_exception(SOCKS, unreachable) is AMBIGUOUS
    assert not is_login_fault(unreachable)
    for text in (
        "Invalid username/password",
        "Requested NO AUTHENTICATION REQUIRED from proxy server, but got USERNAME/PASSWORD.",
    ):
        assert POLICY.classify_exception(SOCKS, socks(text)) is PROXY_ERROR
        assert is_login_fault(socks(text))


# What else they say.


def test_a_refused_login_is_known_in_every_form():
    for handler, cases in EXCEPTIONS.items():
        for name, (exception, *_) in cases.items():
            assert is_login_fault(exception) == (name == "CONNECT answered 407"), (handler, name)
    assert is_login_fault(Response(HTTP.url, status=407))
    for status in (200, 401, 403, 502):
        assert not is_login_fault(Response(HTTP.url, status=status))
    assert not is_login_fault(RuntimeError("407 Proxy Authentication Required"))


def test_descriptor_exhaustion_is_known_in_every_wrapping():
    none_left = {name for name, error in LOCAL.items() if is_descriptor_exhaustion(error)}
    others = {"no route", "no local port", "no connection", "not implemented"}
    assert none_left == {name for name in LOCAL if not name.startswith(tuple(others))}
    for cases in EXCEPTIONS.values():
        assert not any(is_descriptor_exhaustion(exception) for exception, *_ in cases.values())


NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("2", 2),
        (" 120 ", 120),
        ("1.5", 1.5),
        ("86400", 86_400),
        ("86401", 86_400),
        ("9" * 5000, 86_400),
        ("Sun, 06 Nov 1994 08:50:07 GMT", 30),
        ("Sun, 06 Nov 1994 09:50:07 +0100", 30),
        ("Sun, 06 Nov 1994 08:50:07 -0000", 30),
        ("Sunday, 06-Nov-94 08:50:07 GMT", 30),
        ("Sun Nov  6 08:50:07 1994", 30),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("Sat, 05 Nov 1994 08:49:37 GMT", 0),
        ("Sun, 06 Nov 2094 08:49:37 GMT", 86_400),
        ("Fri, 31 Dec 9999 23:59:59 -2300", 86_400),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("+5", None),
        ("1e3", None),
        ("nan", None),
        ("inf", None),
        ("2 s", None),
        ("٣", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
    ],
)
def test_retry_after(value, seconds):
    response = Response(HTTP.url, status=429, headers={"Retry-After": value})
    assert retry_after(response, NOW) == seconds


def test_retry_after_is_mostly_not_there():
    assert retry_after(Response(HTTP.url, status=429)) is None


def test_retry_after_is_by_the_present_time():
    response = Response(HTTP.url, headers={"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"})
    assert retry_after(response) == 0


@pytest.mark.parametrize("outcome", Outcome)
def test_an_outcome_and_its_text_are_one_key(outcome):
    assert {str(outcome.value): 1}[outcome] == {outcome: 1}[outcome.value] == 1
