"""The closing table: complete when short, bounded when long, and always in line."""

from __future__ import annotations

import itertools
import re

import pytest

from scrapy_smoothpool.pool import MemberView
from scrapy_smoothpool.report import LONG, closing_table

NUMBERS = ("weight", "eff.", "picks", "share", "due", "ok", "failed", "unclear", "ejected")


def member(number: int = 0, **values: object) -> MemberView:
    view = MemberView(
        id=f"http://10.0.{number // 250}.{number % 250 + 1}:8080",
        weight=1,
        effective_weight=1.0,
        picks=10,
        successes=10,
        failures=0,
        unclear=0,
        ejections=0,
        consecutive_failures=0,
        out=False,
        reason="",
        last_fault="",
    )
    return view._replace(**values)


def cells(line: str) -> list[re.Match[str]]:
    """Return a line's cells: texts between which there are two blanks or more."""
    return list(re.finditer(r"\S+(?: \S+)*", line))


def rows(table: str) -> dict[str, dict[str, str]]:
    """Return proxy -> column -> cell; one that is empty, the last, as ""."""
    heading, *lines = table.splitlines()
    names = [cell.group() for cell in cells(heading)]
    return {
        found[0].group(): dict(zip(names, [cell.group() for cell in found] + [""], strict=False))
        for found in map(cells, lines)
    }


def assert_in_line(table: str) -> None:
    heading, *lines = table.splitlines()
    first, *columns, fault = cells(heading)
    assert [column.group() for column in columns] == list(NUMBERS)
    assert fault.group() == "last fault"
    for line in lines:
        found = cells(line)
        assert found[0].start() == first.start() == 0
        assert [cell.end() for cell in found[1:10]] == [column.end() for column in columns]
        assert line == line.rstrip()
        assert len(found) in (10, 11)  # the last fault, where there is one
        assert [cell.start() for cell in found[10:]] in ([], [fault.start()])


def test_no_proxies_is_said_in_words():
    assert closing_table([]) == "(no proxies)"


def test_one_proxy_has_it_all():
    found = rows(closing_table([member(weight=3, effective_weight=3.0, picks=7, successes=6)]))
    assert found == {
        "http://10.0.0.1:8080": {
            "proxy": "http://10.0.0.1:8080",
            "weight": "3",
            "eff.": "3",
            "picks": "7",
            "share": "100.0%",
            "due": "100.0%",
            "ok": "6",
            "failed": "0",
            "unclear": "0",
            "ejected": "0",
            "last fault": "",
        }
    }


def test_every_count_is_in_its_own_column():
    view = member(picks=11, successes=12, failures=13, unclear=14, ejections=15)
    (row,) = rows(closing_table([view])).values()
    assert [row[name] for name in ("picks", "ok", "failed", "unclear", "ejected")] == [
        "11",
        "12",
        "13",
        "14",
        "15",
    ]


def test_share_is_of_the_picks_and_due_of_the_weights():
    views = [
        member(0, weight=5, picks=600),
        member(1, weight=2, picks=300),
        member(2, weight=1, picks=100),
    ]
    found = list(rows(closing_table(views)).values())
    assert [row["share"] for row in found] == ["60.0%", "30.0%", "10.0%"]
    assert [row["due"] for row in found] == ["62.5%", "25.0%", "12.5%"]


def test_before_the_first_pick_there_is_no_share():
    found = rows(closing_table([member(0, picks=0), member(1, picks=0)]))
    assert {row["share"] for row in found.values()} == {"-"}
    assert {row["due"] for row in found.values()} == {"50.0%"}


def test_with_all_proxies_drained_nothing_is_due():
    found = rows(closing_table([member(weight=0, picks=0)]))
    assert [row["due"] for row in found.values()] == ["-"]


def test_who_is_out_or_drained_is_said_and_why():
    views = [
        member(0),
        member(1, last_fault="503"),
        member(2, out=True, reason="banned", ejections=1, last_fault="403"),
        member(3, weight=0, effective_weight=0.0),
        member(4, weight=0, effective_weight=0.0, out=True, reason="banned", last_fault="429"),
    ]
    found = [row["last fault"] for row in rows(closing_table(views)).values()]
    assert found == ["", "503", "out: 403", "drained", "out: drained 429"]


def test_one_that_another_worker_put_out_says_why_as_far_as_is_known():
    elsewhere = member(out=True, reason="proxy_error")
    assert [row["last fault"] for row in rows(closing_table([elsewhere])).values()] == [
        "out: proxy_error"
    ]


def test_one_that_is_out_weighs_nothing():
    views = [member(0, weight=5, effective_weight=4.0, out=True, reason="banned")]
    (row,) = rows(closing_table(views)).values()
    assert (row["weight"], row["eff."]) == ("5", "0")


@pytest.mark.parametrize(
    ("effective", "shown"),
    [(0.0, "0"), (1.0, "1"), (2 / 3, "0.667"), (9_999.5, "9999.5"), (123_456.0, "123456")],
)
def test_an_effective_weight_is_shown_as_a_plain_number(effective, shown):
    (row,) = rows(closing_table([member(weight=200_000, effective_weight=effective)])).values()
    assert row["eff."] == shown


def test_a_healthy_proxys_effective_weight_reads_like_its_weight():
    views = [member(i, weight=10**i, effective_weight=float(10**i)) for i in range(10)]
    for row in rows(closing_table(views)).values():
        assert row["eff."] == row["weight"]


# Length.


def many(n: int) -> list[MemberView]:
    """Number i brought i pages; every seventh is out."""
    return [
        member(i, picks=2 * i, successes=i, failures=i % 3, out=i % 7 == 0, last_fault="403")
        for i in range(n)
    ]


@pytest.mark.parametrize("n", [1, 2, LONG])
def test_a_short_pool_is_shown_whole_and_in_list_order(n):
    views = many(n)
    assert list(rows(closing_table(views))) == [view.id for view in views]


@pytest.mark.parametrize("n", [25, 26, 1_000, 50_000])
def test_a_long_pool_is_shown_by_its_best_its_worst_and_sums(n):
    assert n > LONG
    views = many(n)
    table = closing_table(views)
    assert len(table.splitlines()) == 1 + 8 + 1 + 8 + 1
    shown = list(rows(table))
    ids = [view.id for view in views]
    assert shown[:8] == ids[: n - 9 : -1]
    assert shown[9:17] == ids[7::-1]
    assert shown[8] == f"… {n - 16} more"
    assert shown[17] == f"all {n}"


@pytest.mark.parametrize("n", [25, 1_000])
def test_the_sums_of_a_long_pool_are_those_of_all(n):
    views = many(n)
    found = rows(closing_table(views))
    everyone, rest = found[f"all {n}"], found[f"… {n - 16} more"]
    assert everyone["picks"] == str(sum(view.picks for view in views))
    assert everyone["ok"] == str(sum(view.successes for view in views))
    assert everyone["failed"] == str(sum(view.failures for view in views))
    assert everyone["weight"] == str(n)
    assert everyone["eff."] == str(sum(not view.out for view in views))  # nothing while out
    assert everyone["share"] == everyone["due"] == "100.0%"
    assert everyone["last fault"] == f"{sum(view.out for view in views)} out"
    one_by_one = [row for name, row in found.items() if name not in (f"all {n}",)]
    for column in ("weight", "picks", "ok", "failed", "unclear", "ejected"):
        assert sum(int(row[column]) for row in one_by_one) == int(everyone[column])
    assert rest["weight"] == str(n - 16)


def test_of_two_that_brought_as_much_the_one_that_failed_less_is_better():
    views = [member(i, failures=50 - i) for i in range(50)]
    shown = list(rows(closing_table(views)))
    assert shown[0] == views[49].id
    assert shown[16] == views[0].id


# Form.


@pytest.mark.parametrize("n", [1, 24, 25, 1_000])
def test_columns_are_in_line(n):
    assert_in_line(closing_table(many(n)))


def test_columns_are_in_line_whatever_their_width():
    assert_in_line(
        closing_table(
            [
                member(0, id="a", picks=0, successes=0),
                member(1, id="https://[2001:db8:85a3::8a2e:370:7334]:65535#0123456789abcdef"),
                member(2, picks=10**9, successes=10**9, weight=10**6, out=True, last_fault="x"),
                member(3, weight=0, effective_weight=0.0),
            ]
        )
    )


@pytest.mark.parametrize("n", [1, 24, 25, 1_000])
def test_a_table_of_ordinary_proxies_fits_a_wide_terminal(n):
    views = [
        view._replace(
            id=f"http://gate{i}.example:10000#0123456789abcdef", picks=123_456, successes=120_000
        )
        for i, view in enumerate(many(n))
    ]
    heading, *lines = closing_table(views).splitlines()
    assert cells(heading)[9].end() <= 125  # all the numbers
    assert max(map(len, [heading, *lines])) <= 140


def test_the_table_is_no_wider_than_its_cells_need():
    table = closing_table([member(0), member(1, picks=1_234_567)])
    heading, *lines = table.splitlines()
    # Two blanks between the widest cells of neighbouring columns, nowhere more.
    edges = [cell.end() for cell in cells(heading)[:10]]
    edges[0] = max(cells(line)[0].end() for line in lines)
    for left, right in itertools.pairwise(edges):
        cut = [line[left:right] for line in [heading, *lines]]
        assert all(text.startswith("  ") for text in cut)
        assert any(text[2] != " " for text in cut)
