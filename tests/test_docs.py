"""Does docs/health.md say what the code does? Its tables are fed to it, its numbers made of it."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from scrapy import exceptions as scrapy_errors
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from twisted.internet import error as twisted_errors

from scrapy_smoothpool import (
    Outcome,
    comparison,
    extension,
    health,
    local_judge,
    panic,
    rests,
    shared_judge,
)
from scrapy_smoothpool.failures import RETRY_AFTER_MAX
from scrapy_smoothpool.policies import BanPolicy, build_policy
from scrapy_smoothpool.settings import OnPanic, Settings
from test_outcome import EXCEPTIONS, HTTP, HTTPS, POLICY, STATUSES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "health.md").read_text("utf-8")
DEFAULT = Settings()


def tables() -> list[list[list[str]]]:
    """The page's tables, each as rows of cells without header and rule."""
    found, table = [], []
    for line in [*PAGE.splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
        elif table:
            found.append(table[2:])
            table = []
    return found


OUTCOMES, FAILURES, EVIDENCE, ANSWERS = tables()


def test_the_table_of_outcomes_is_what_they_do():
    counts = {
        Outcome.SUCCESS: "success",
        Outcome.NEUTRAL: "nothing",
        Outcome.AMBIGUOUS: "nothing, or failure by comparison",
        Outcome.PROXY_ERROR: "failure, certain",
        Outcome.BANNED: "failure",
    }
    assert [row[0] for row in OUTCOMES] == [outcome.value for outcome in Outcome]
    for name, counts_as, retried in OUTCOMES:
        outcome = Outcome(name)
        assert counts_as == counts[outcome]
        assert counts_as.startswith("failure") == outcome.is_failure
        assert retried == ("yes" if outcome.retry_elsewhere else "no")


# The table of failures: what each row means, as responses and exceptions.

ALL_STATUSES = [status for statuses in STATUSES.values() for status in statuses]
_LISTED = {403, 407, 429, 502, 503, 504}

OF_EXCEPTIONS = {
    "407, also to CONNECT or by SOCKS": ["CONNECT answered 407"],
    "the proxy refuses the connection, or resets it at once": ["refused", "reset on accept"],
    "the proxy's name is unknown": ["its name is unknown"],
    "dialling the proxy takes too long (a dead address)": [
        "dialling timed out",
        "dialling took longer than DOWNLOAD_TIMEOUT",
        "dialling took longer than the system allows",
    ],
    "no answer in time": ["no answer"],
    "closed or reset before the answer": [
        "closed without an answer",
        "closed without an answer, or garbage",
        "connection done, unwrapped",
        "connection lost, unwrapped",
        "lost without an answer",
        "reset after the request",
    ],
    "an answer that is not HTTP": ["garbage", "closed without an answer, or garbage"],
    "a body cut short": ["closed in the body"],
    "CONNECT refused with any status but 407, 403 and 429 included": [
        "CONNECT answered 403",
        "CONNECT answered 502",
        "CONNECT answered 502 at a reason of 407",
        "CONNECT answered with garbage",
    ],
    "the tunnel opens, then closes or is reset": ["the tunnel was closed", "the tunnel was reset"],
    "the site's certificate is bad": [
        "the site's certificate is bad",
        "the site's certificate is another's",
    ],
}
"""By row, the names of the exceptions in ``test_outcome``."""

LOCAL = {
    "no file descriptor, memory or network on this machine": [
        twisted_errors.ConnectBindError(errno.EMFILE, "too many open files"),
        OSError(errno.ENFILE, "too many open files"),
        OSError(errno.ENOMEM, "no memory"),
        twisted_errors.NoRouteError(errno.ENETUNREACH, "no route"),
    ],
    "larger than `DOWNLOAD_MAXSIZE`, or stopped by the crawl itself": [
        scrapy_errors.DownloadCancelledError(),
        scrapy_errors.StopDownload(),
        scrapy_errors.CloseSpider("asked"),
    ],
    "raised by a middleware: IgnoreRequest, ValueError, …": [
        scrapy_errors.IgnoreRequest(),
        ValueError("a bug"),
    ],
}

OF_RESPONSES = {
    "a status from 200 to 399": [status for status in ALL_STATUSES if 200 <= status < 400],
    "403 or 429": [403, 429],
    "407, also to CONNECT or by SOCKS": [407],
    "502, 503 or 504": [502, 503, 504],
    "any other status: 404, 500, …": [
        status for status in ALL_STATUSES if not 200 <= status < 400 and status not in _LISTED
    ],
}


@pytest.mark.parametrize("row", FAILURES, ids=[row[0] for row in FAILURES])
def test_the_table_of_failures_is_what_the_policy_says(row):
    label, *cells = row
    for column, request in enumerate((HTTP, HTTPS)):
        found: set[str] = set()
        for status in OF_RESPONSES.get(label, ()):
            found.add(POLICY.classify_response(request, Response(request.url, status=status)))
        for exception in LOCAL.get(label, ()):
            found.add(POLICY.classify_exception(request, exception))
        for cases in EXCEPTIONS.values():
            for name in OF_EXCEPTIONS.get(label, ()):
                if name in cases and cases[name][1 + column] is not None:
                    found.add(POLICY.classify_exception(request, cases[name][0]))
        assert found == (set() if cells[column] == "-" else set(cells[column].split(" or ")))


def test_the_table_of_failures_leaves_nothing_out():
    known = {*OF_RESPONSES, *OF_EXCEPTIONS, *LOCAL}
    assert {row[0] for row in FAILURES} == known
    told = {name for names in OF_EXCEPTIONS.values() for name in names}
    assert told == {name for cases in EXCEPTIONS.values() for name in cases}
    assert sorted(ALL_STATUSES) == sorted(
        status for statuses in OF_RESPONSES.values() for status in statuses
    )


def least(others_rate: float, step: int) -> str:
    """Outcomes that are enough when every *step*-th is a failure; the last one is."""
    others = 1_000_000
    found = (
        n
        for n in range(step, 500, step)
        if comparison.stands_out(n // step, n, round(others_rate * others), others)
    )
    return str(next(found, "never"))


@pytest.mark.parametrize("row", EVIDENCE, ids=[row[0] for row in EVIDENCE])
def test_the_table_of_evidence_is_what_the_comparison_asks_for(row):
    others, in_a_row, every_other = row
    rate = 0.0 if others == "never" else int(others.removesuffix(" %")) / 100
    assert [in_a_row, every_other] == [least(rate, 1), least(rate, 2)]


@pytest.mark.parametrize("row", ANSWERS, ids=[row[0] for row in ANSWERS])
def test_the_table_of_answers_is_what_becomes_of_them(row):
    answer = {"True": True, "False": False, "None": None}[row[0]]
    given = SimpleNamespace(
        response_is_ban=lambda request, response: answer,
        exception_is_ban=lambda request, exception: answer,
    )
    policy = BanPolicy(POLICY, given, SimpleNamespace(spider=None))  # type: ignore[arg-type]
    for status in ALL_STATUSES:
        response = Response(HTTP.url, status=status)
        expected = {
            "banned": Outcome.BANNED,
            "success from 200 to 399, else neutral": (
                Outcome.SUCCESS if 200 <= status < 400 else Outcome.NEUTRAL
            ),
            "the default decides": POLICY.classify_response(HTTP, response),
        }[row[1]]
        if status == 407:
            expected = Outcome.PROXY_ERROR
        assert policy.classify_response(HTTP, response) is expected
    hangs = scrapy_errors.DownloadTimeoutError()
    expected = {
        "banned": Outcome.BANNED,
        "neutral": Outcome.NEUTRAL,
        "the default decides": Outcome.AMBIGUOUS,
    }[row[2]]
    assert policy.classify_exception(HTTPS, hangs) is expected
    assert policy.classify_exception(HTTP, hangs) is (
        Outcome.PROXY_ERROR  # certain: not asked
    )


# The numbers.


def sentences() -> list[str]:
    """What the page says with numbers in it, made from the code's own."""
    assert comparison.LEAST_OTHERS == 10  # said twice below, of probes as well
    assert RETRY_AFTER_MAX == rests.MAX_REST == 86_400  # "a day at most"
    assert DEFAULT.on_panic is OnPanic.USE  # "the default"
    assert comparison.LEAST_RATIO == 2  # "when half of the others fail"
    return [
        f"up to {DEFAULT.retry_times} times (`SMOOTHPOOL_RETRY_TIMES`)",
        f"at least {comparison.LEAST_OWN} failures there, and the others at least "
        f"{comparison.LEAST_OTHERS} outcomes",
        f"its rate is at least {100 * comparison.LEAST_RATE:g} %, and more than "
        f"{comparison.LEAST_RATIO} times the others' rate",
        f"at most one of {comparison.ODDS} such stretches",
        f"the last {comparison.WINDOW / 2:g} to {comparison.WINDOW:g} seconds",
        f"about 10 of {comparison.ODDS} failures are blamed on a proxy by chance",
        f"half is less than {health.POOR} %",
        f"fails more than {DEFAULT.max_fails} times in a row (`SMOOTHPOOL_MAX_FAILS`)",
        f"after {DEFAULT.eject_after} failures in a row (`SMOOTHPOOL_EJECT_AFTER`; 0 means never)",
        f"at least {health.POOR} % of its last {health.WINDOW} outcomes were failures, of at least "
        f"{health.LEAST}",
        f"lasts {DEFAULT.eject_time:g} s (`SMOOTHPOOL_EJECT_TIME`), each further one twice as "
        f"long, up to {DEFAULT.eject_time_max:g} s (`SMOOTHPOOL_EJECT_TIME_MAX`)",
        f"Each {health.FALL_BACK * DEFAULT.eject_time:g} s without another ejection",
        "draw each ejection out by up to 10 %",
        f"less than half of the last {comparison.LEAST_OTHERS} outcomes of the others",
        f"at most {DEFAULT.eject_max_percent} % of the pool (`SMOOTHPOOL_EJECT_MAX_PERCENT`)",
        f"{panic.LEAST_BARREN} failures (or 2 for each proxy, if that is more)",
        f"at most {1 / panic.PACE:g} picks a second",
        f"one request every {panic.PAUSE:g} s",
        f"its own limit of {DEFAULT.eject_max_percent} % (`SMOOTHPOOL_EJECT_MAX_PERCENT`)",
        f"at most {local_judge.MAX_SITES}, and fewer for long lists ({local_judge.MAX_SEATS} "
        "proxies times sites)",
        f"up to {shared_judge.KEPT} outcomes are kept",
        f"Up to {DEFAULT.admission_concurrency} checks run at a time "
        f"(`SMOOTHPOOL_ADMISSION_CONCURRENCY`), {DEFAULT.admission_timeout:g} s each at most",
    ]


TEXT = " ".join(PAGE.split())


@pytest.mark.parametrize("sentence", sentences())
def test_the_numbers_are_those_of_the_code(sentence):
    assert sentence in TEXT


def test_no_number_on_the_page_goes_unchecked():
    rest = " ".join(line for line in PAGE.splitlines() if not line.startswith("|"))
    rest = " ".join(rest.split())
    for sentence in sentences():
        rest = rest.replace(sentence, "")
    statuses = {str(status) for status in ALL_STATUSES}
    assert set(re.findall(r"\d+", rest)) - statuses == set()


def test_the_numbers_that_are_no_constants():
    drawn_out = [extension._jitter() for _ in range(1000)]
    assert 1.0 <= min(drawn_out) < 1.01
    assert 1.09 < max(drawn_out) <= 1.1
    for size in (2, 10, 30):
        found = panic.Panic(lambda: 0.0)
        began = [found.failure(spared=True, size=size) for _ in range(200)]
        assert began.index(True) + 1 == max(panic.LEAST_BARREN, 2 * size)


def test_every_setting_it_names_is_one():
    from scrapy_smoothpool.settings import NAMES

    named = set(re.findall(r"SMOOTHPOOL_[A-Z_]+", PAGE))
    assert named
    assert named <= set(NAMES)


def test_every_stat_it_names_is_one():
    from scrapy_smoothpool import stats

    keys = {value for value in vars(stats).values() if isinstance(value, str)}
    named = set(re.findall(r"`(smoothpool/[a-z_/]+)`", PAGE))
    assert named
    assert named <= keys


# The examples.


def example(name: str) -> type:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (block,) = (block for block in blocks if f"class {name}" in block)
    scope: dict[str, type] = {}
    exec(block, scope)
    return scope[name]


@pytest.mark.parametrize("name", ["MyPolicy", "MyBans"])
def test_the_examples_of_policies_work_and_read_compressed_bodies(name):
    import gzip

    crawler = get_crawler()
    policy = build_policy(example(name), crawler)
    denied = Response(
        HTTP.url,
        headers={"Content-Encoding": "gzip"},
        body=gzip.compress(b"<p>Access denied</p>"),
    )
    assert policy.classify_response(HTTP, denied) is Outcome.BANNED
    assert policy.classify_response(HTTP, Response(HTTP.url, body=b"welcome")) is Outcome.SUCCESS
    refused = scrapy_errors.DownloadConnectionRefusedError()
    assert policy.classify_exception(HTTP, refused) is Outcome.PROXY_ERROR


def test_a_policy_that_asks_for_no_bodies_sees_them_as_they_came():
    seen = []

    class Plain(example("MyPolicy")):  # type: ignore[misc]
        wants_body = False

        def classify_response(self, request, response):
            seen.append(response.body)
            return super().classify_response(request, response)

    response = Response(HTTP.url, headers={"Content-Encoding": "gzip"}, body=b"\x1f\x8b...")
    build_policy(Plain, get_crawler()).classify_response(HTTP, response)
    assert seen == [b"\x1f\x8b..."]


def test_the_readme_leads_to_it():
    assert "docs/health.md" in (ROOT / "README.md").read_text("utf-8")
