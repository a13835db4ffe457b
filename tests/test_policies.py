"""Policies of the user's: which are accepted, what their verdicts mean, what bodies they see."""

from __future__ import annotations

import errno
import gzip
import zlib
from types import SimpleNamespace

import brotli
import pytest
from scrapy import Request, Spider
from scrapy.exceptions import (
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    IgnoreRequest,
    NotConfigured,
)
from scrapy.http import HtmlResponse, Response, TextResponse
from scrapy.settings import Settings
from scrapy.signalmanager import SignalManager

from crawl import crawl
from farm import SiteResponse
from outcome_spiders import Reads
from scrapy_smoothpool import Outcome, OutcomePolicy
from scrapy_smoothpool.exceptions import SettingsError
from scrapy_smoothpool.policies import build_policy

try:
    from rotating_proxies.policy import BanDetectionPolicy
except ImportError:  # the same interface, for machines without that package

    class BanDetectionPolicy:  # type: ignore[no-redef]
        NOT_BAN_STATUSES = frozenset({200, 301, 302})
        NOT_BAN_EXCEPTIONS = (IgnoreRequest,)

        def response_is_ban(self, request, response):
            empty = response.status == 200 and not response.body
            return empty or response.status not in self.NOT_BAN_STATUSES

        def exception_is_ban(self, request, exception):
            return not isinstance(exception, self.NOT_BAN_EXCEPTIONS)


SUCCESS, NEUTRAL = Outcome.SUCCESS, Outcome.NEUTRAL
PROXY_ERROR, AMBIGUOUS, BANNED = Outcome.PROXY_ERROR, Outcome.AMBIGUOUS, Outcome.BANNED

HTTP, HTTPS = Request("http://site.example/page"), Request("https://site.example/page")
HERE = __name__


def crawler(spider: type[Spider] = Spider, settings: dict[str, object] | None = None):
    return SimpleNamespace(
        spidercls=spider,
        spider=spider(name="test"),
        settings=Settings(settings),
        signals=SignalManager(),
    )


def answer(status: int = 200, body: bytes = b"page", **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(HTTPS.url, status=status, body=body, headers=named)


class Says:
    """A policy that answers the same to everything."""

    def __init__(self, verdict: object) -> None:
        self.verdict = verdict

    def response_is_ban(self, request, response):
        return self.verdict

    def exception_is_ban(self, request, exception):
        return self.verdict


# What may be named.


def test_the_default_policy():
    assert type(build_policy(None, crawler())) is OutcomePolicy


class Subclass(OutcomePolicy):
    def classify_response(self, request, response):
        return BANNED if response.status == 418 else super().classify_response(request, response)


class Lookalike:
    def classify_response(self, request, response):
        return NEUTRAL

    def classify_exception(self, request, exception):
        return NEUTRAL


class OnlyResponses:
    def response_is_ban(self, request, response):
        return response.status == 200


class OnlyExceptions:
    def exception_is_ban(self, request, exception):
        return isinstance(exception, DownloadTimeoutError)


class FromCrawler(Says):
    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.settings.getbool("CALL_IT_A_BAN"))


def test_a_subclass_by_its_path_and_by_itself():
    for setting in (f"{HERE}.Subclass", Subclass, Subclass()):
        policy = build_policy(setting, crawler())
        assert isinstance(policy, Subclass)
        assert policy.classify_response(HTTP, answer(418)) is BANNED
        assert policy.classify_response(HTTP, answer(503)) is AMBIGUOUS


def test_a_class_with_the_two_methods_need_not_be_a_subclass():
    policy = build_policy(Lookalike, crawler())
    assert policy.classify_response(HTTP, answer(403)) is NEUTRAL


def test_either_of_the_ban_methods_is_enough():
    policy = build_policy(OnlyResponses, crawler())
    assert policy.classify_response(HTTPS, answer(200)) is BANNED
    assert policy.classify_exception(HTTPS, DownloadTimeoutError()) is AMBIGUOUS
    policy = build_policy(OnlyExceptions, crawler())
    assert policy.classify_response(HTTPS, answer(200)) is SUCCESS
    assert policy.classify_exception(HTTPS, DownloadTimeoutError()) is BANNED


@pytest.mark.parametrize("ban", [True, False])
def test_from_crawler_is_honoured(ban):
    policy = build_policy(FromCrawler, crawler(settings={"CALL_IT_A_BAN": ban}))
    assert policy.classify_response(HTTPS, answer()) is (BANNED if ban else SUCCESS)


class Half(OutcomePolicy):
    classify_exception = None


class NoMethods:
    pass


class NeedsArguments(Says):
    pass


class Unconfigured(Says):
    @classmethod
    def from_crawler(cls, crawler):
        raise NotConfigured("no key")


class Nothing(Says):
    @classmethod
    def from_crawler(cls, crawler):
        return None


class Asynchronous(OnlyExceptions):
    async def response_is_ban(self, request, response):
        return False


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("nowhere.Policy", "cannot be imported"),
        (f"{HERE}.Missing", "cannot be imported"),
        ("Policy", "cannot be imported"),
        ("", "cannot be imported"),
        (42, "accepted"),
        ([Subclass], "accepted"),
        (len, "accepted"),
        (NoMethods, "accepted"),
        (Half, "without classify_exception"),
        (NeedsArguments, "cannot be built (TypeError"),
        # It must not pass: Scrapy would only log it and crawl on without proxies.
        (Unconfigured, "cannot be built (NotConfigured: no key)"),
        (Nothing, "cannot be built (TypeError"),
        (Asynchronous, "response_is_ban is async"),
    ],
    ids=repr,
)
def test_anything_else_is_refused(setting, reason):
    with pytest.raises(SettingsError) as caught:
        build_policy(setting, crawler())
    message = str(caught.value)
    assert message.startswith(f"SMOOTHPOOL_OUTCOME_POLICY is {setting!r}")
    assert reason in message
    assert "accepted" in message


# What verdicts mean.

RESPONSES = [
    # status, by default, banned?, not banned?
    (200, SUCCESS, BANNED, SUCCESS),
    (302, SUCCESS, BANNED, SUCCESS),
    (404, NEUTRAL, BANNED, NEUTRAL),
    (403, BANNED, BANNED, NEUTRAL),
    (429, BANNED, BANNED, NEUTRAL),
    (503, AMBIGUOUS, BANNED, NEUTRAL),
    (407, PROXY_ERROR, PROXY_ERROR, PROXY_ERROR),
]


def by(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


EXCEPTIONS = [
    (DownloadTimeoutError(), AMBIGUOUS, BANNED, NEUTRAL),
    (DownloadFailedError(), AMBIGUOUS, BANNED, NEUTRAL),
    # A handler of the user's own may raise what nobody here knows.
    (RuntimeError("browser gone"), NEUTRAL, BANNED, NEUTRAL),
    # The proxy's own fault, and this machine's.
    (
        by(DownloadConnectionRefusedError(), ConnectionRefusedError(errno.ECONNREFUSED, "no")),
        PROXY_ERROR,
        PROXY_ERROR,
        PROXY_ERROR,
    ),
    (
        by(DownloadConnectionRefusedError(), OSError(errno.EMFILE, "none left")),
        NEUTRAL,
        NEUTRAL,
        NEUTRAL,
    ),
    (DownloadCancelledError("too large"), NEUTRAL, NEUTRAL, NEUTRAL),
    (IgnoreRequest(), NEUTRAL, NEUTRAL, NEUTRAL),
]


@pytest.mark.parametrize("row", RESPONSES, ids=lambda row: str(row[0]))
def test_verdicts_on_responses(row):
    status, *outcomes = row
    for verdict, outcome in zip((None, True, False), outcomes, strict=True):
        policy = build_policy(Says(verdict), crawler())
        assert policy.classify_response(HTTPS, answer(status)) is outcome, verdict


@pytest.mark.parametrize("row", EXCEPTIONS, ids=lambda row: repr(row[0]))
def test_verdicts_on_exceptions(row):
    exception, *outcomes = row
    for verdict, outcome in zip((None, True, False), outcomes, strict=True):
        policy = build_policy(Says(verdict), crawler())
        assert policy.classify_exception(HTTPS, exception) is outcome, verdict


def test_answers_are_read_as_python_reads_them():
    # As in "ban = super().response_is_ban(...) or re.search(...)"; None only is "don't know".
    for verdict, outcome in ((1, BANNED), ("match", BANNED), (0, NEUTRAL), ("", NEUTRAL)):
        policy = build_policy(Says(verdict), crawler())
        assert policy.classify_response(HTTPS, answer(503)) is outcome


class Both(Subclass, Says):
    def __init__(self):
        super().__init__(None)


def test_a_class_may_classify_and_know_bans():
    policy = build_policy(Both, crawler())
    assert policy.classify_response(HTTPS, answer(418)) is BANNED
    assert policy.classify_response(HTTPS, answer(200)) is SUCCESS


# Spiders.


class BanSpider(Spider):
    def response_is_ban(self, request, response):
        return b"banned" in response.body or None

    def exception_is_ban(self, request, exception):
        return isinstance(exception, DownloadTimeoutError)


def test_a_spiders_methods():
    policy = build_policy(None, crawler(BanSpider))
    assert policy.classify_response(HTTPS, answer(200, b"you are banned")) is BANNED
    assert policy.classify_response(HTTPS, answer(200)) is SUCCESS
    assert policy.classify_exception(HTTPS, DownloadTimeoutError()) is BANNED
    assert policy.classify_exception(HTTPS, DownloadFailedError()) is NEUTRAL


def test_a_spiders_methods_come_before_the_classs():
    policy = build_policy(Says(True), crawler(BanSpider))
    assert policy.classify_response(HTTPS, answer(200)) is SUCCESS
    assert policy.classify_exception(HTTPS, DownloadFailedError()) is NEUTRAL


def test_a_spider_that_is_made_later():
    late = crawler(BanSpider)
    late.spider = None
    policy = build_policy(None, late)
    late.spider = BanSpider(name="late")
    assert policy.classify_response(HTTPS, answer(200, b"you are banned")) is BANNED


def test_an_async_method_of_a_spider_is_refused():
    class AsyncSpider(Spider):
        async def exception_is_ban(self, request, exception):
            return False

    with pytest.raises(SettingsError, match=r"AsyncSpider.*exception_is_ban is async"):
        build_policy(None, crawler(AsyncSpider))


# scrapy-rotating-proxies.


class Captcha(BanDetectionPolicy):
    NOT_BAN_STATUSES = BanDetectionPolicy.NOT_BAN_STATUSES | {404}
    NOT_BAN_EXCEPTIONS = (*BanDetectionPolicy.NOT_BAN_EXCEPTIONS, DownloadTimeoutError)

    def response_is_ban(self, request, response):
        ban = super().response_is_ban(request, response)
        return ban or b"captcha" in response.body

    def exception_is_ban(self, request, exception):
        return super().exception_is_ban(request, exception)


def test_a_policy_written_for_scrapy_rotating_proxies():
    policy = build_policy(f"{HERE}.Captcha", crawler())
    packed = answer(200, gzip.compress(b"solve this captcha"), Content_Encoding="gzip")
    judged = {
        "page": policy.classify_response(HTTPS, answer()),
        "captcha": policy.classify_response(HTTPS, packed),
        "empty": policy.classify_response(HTTPS, answer(200, b"")),
        "404": policy.classify_response(HTTPS, answer(404)),
        "500": policy.classify_response(HTTPS, answer(500)),
        "timeout": policy.classify_exception(HTTPS, DownloadTimeoutError()),
        "lost": policy.classify_exception(HTTPS, DownloadFailedError()),
        "ignored": policy.classify_exception(HTTPS, IgnoreRequest()),
    }
    assert judged == {
        "page": SUCCESS,
        "captcha": BANNED,
        "empty": BANNED,
        "404": NEUTRAL,
        "500": BANNED,
        "timeout": NEUTRAL,
        "lost": BANNED,
        "ignored": NEUTRAL,
    }


# Bodies.

PAGE = "<html><body>Access denied, señor</body></html>".encode("latin-1")


class Sees(Says):
    """Keep what it is shown."""

    def __init__(self) -> None:
        super().__init__(None)
        self.shown: list[Response] = []

    def response_is_ban(self, request, response):
        self.shown.append(response)


def shown(response: Response, request: Request = HTTPS, **settings: object) -> Response:
    policy = Sees()
    build_policy(policy, crawler(settings=settings)).classify_response(request, response)
    (found,) = policy.shown
    return found


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(PAGE)),
        ("x-gzip", gzip.compress(PAGE)),
        ("deflate", zlib.compress(PAGE)),
        ("deflate", deflated(PAGE)),
        ("br", brotli.compress(PAGE)),
        ("deflate, gzip", gzip.compress(zlib.compress(PAGE))),
    ],
)
def test_bodies_are_shown_decompressed_and_as_the_right_kind(encoding, body):
    headers = {"Content_Encoding": encoding, "Content_Type": "text/html; charset=latin-1"}
    response = answer(200, body, **headers)
    before = response.headers.to_unicode_dict(), response.body
    found = shown(response)
    assert isinstance(found, HtmlResponse)
    assert "señor" in found.text
    assert found.css("body::text").get() == "Access denied, señor"
    assert "Content-Encoding" not in found.headers
    assert (found.status, found.url, found.request) == (200, HTTPS.url, HTTPS)
    # Scrapy's own middleware still has its work to do.
    assert (response.headers.to_unicode_dict(), response.body) == before
    assert response.request is None


def test_a_body_that_is_not_compressed_is_shown_as_it_is():
    response = TextResponse(HTTP.url, body=PAGE, encoding="latin-1")
    assert shown(response).text == response.text


@pytest.mark.parametrize(
    ("body", "encoding", "settings"),
    [
        (b"no gzip at all", "gzip", {}),
        (PAGE, "quantum", {}),
        (gzip.compress(bytes(100_000)), "gzip", {"DOWNLOAD_MAXSIZE": 50_000}),
    ],
    ids=["broken", "unknown", "too large"],
)
def test_a_body_that_cannot_be_decompressed_is_shown_compressed(body, encoding, settings):
    found = shown(answer(200, body, Content_Encoding=encoding), **settings)
    assert found.body == body
    assert found.headers["Content-Encoding"] == encoding.encode()


def test_a_head_request_has_no_body_to_decompress():
    request = HTTPS.replace(method="HEAD")
    assert shown(answer(200, b"", Content_Encoding="gzip"), request).body == b""


def test_a_policy_that_classifies_may_ask_for_bodies():
    response = answer(200, gzip.compress(PAGE), Content_Encoding="gzip")
    assert build_policy(Reads, crawler()).classify_response(HTTP, response) is BANNED

    class Blind(Reads):
        wants_body = False

    assert build_policy(Blind, crawler()).classify_response(HTTP, response) is SUCCESS


# In a crawl.


@pytest.mark.parametrize("policy", ["outcome_spiders.AccessDenied", "outcome_spiders.Reads"])
def test_a_ban_page_with_status_200_that_came_compressed(farm, mode, policy):
    bad, good = farm.proxy("bad"), farm.proxy("good")
    headers = (("Content-Type", "text/html"), ("Content-Encoding", "gzip"))

    def page(request):
        text = b"Access denied" if request.via == "bad" else b"welcome"
        return SiteResponse(200, gzip.compress(b"<html>%s</html>" % text), headers)

    site = farm.site(page)
    settings = {
        "SMOOTHPOOL_PROXIES": [bad.url, good.url],
        "SMOOTHPOOL_OUTCOME_POLICY": policy,
        **mode,
    }
    done = crawl([f"{site.url}/page/{number}" for number in range(1, 7)], settings)
    assert done.exit_code == 0, done.log[-3000:]
    assert done.proxies == [good.url] * 6
    assert done.stat("outcome/banned") == len(bad.hits) > 0
    # The pages were decompressed for the spider as well.
    assert done.stats["httpcompression/response_count"] == len(good.hits)
