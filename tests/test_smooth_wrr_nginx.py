"""The selector and the plain loop pick what a real nginx picked, request for request."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from reference_wrr import PlainLoop
from scrapy_smoothpool.strategies.smooth_wrr import SmoothWeightedRoundRobin

RECORDED = json.loads(
    (Path(__file__).parent / "cases" / "nginx-smooth-wrr.json").read_text(encoding="utf-8")
)
CASES = RECORDED["cases"]


@pytest.mark.parametrize("selector", [SmoothWeightedRoundRobin, PlainLoop])
@pytest.mark.parametrize(
    "case", CASES, ids=[f"{number}-{case['mode']}" for number, case in enumerate(CASES)]
)
def test_the_picks_are_those_recorded_from_nginx(case, selector):
    wrr = selector(case["weights"])
    failures: Counter[str] = Counter()
    picks = []
    for failing in case["failing"]:
        name = wrr.select()
        picks.append(name)
        if name not in failing:
            continue
        failures[name] += 1
        wrr.penalize(name, case["weights"][name] // case["max_fails"])
        # fail_timeout was an hour: a peer that has failed max_fails times in all stays out.
        if failures[name] >= case["max_fails"]:
            wrr.disable(name)
    assert picks == case["picks"]


def test_the_recording_covers_health_penalties_and_ejection():
    assert {case["mode"] for case in CASES} == {"healthy", "failing", "ejecting"}
    assert all(len(case["failing"]) == len(case["picks"]) for case in CASES)
