"""Does every benchmark run, and does docs/performance.md hold what they wrote? No timings here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
ABOUT = {
    "date": "2026-01-02 03:04 UTC",
    "machine": {"cores": 2, "processor": "a processor", "system": "a system"},
    "versions": {"Python": "3.99.0", "server": "Redis 9.9.9"},
    "commit": "abc1234",
}
# Keys that the figures have, and those of one thing measured, by the path that leads to it.
SMALLEST = {
    "smoothness": (
        "smoothness.py --quick --seeds 1",
        {"picks", "seeds", "sets"},
        ["sets", "10 equal", "smooth_wrr"],
        {"deviation", "run"},
    ),
    "server_time": (
        "server_time.py --sizes 10 --rounds 1 --calls 60",
        {"rounds", "calls", "sizes", "must_hold"},
        ["sizes", "10"],
        {"µs", "publish"},
    ),
    "workers": (
        "workers.py --workers 2 --requests 20 --proxies 4 --rounds 1",
        {"requests", "proxies", "rows"},
        ["rows", 1],
        {"strategy", "workers", "rate", "cpu_us", "server_us", "spread"},
    ),
    "memory": (
        "memory.py --from 30 --to 90 --sessions 10 --sites 5 --reload 40",
        {"first", "last", "variants", "must_hold"},
        ["variants", "smooth_wrr by site"],
        {"first_mb", "last_mb", "grew_mb", "more_mb", "retries", "ejections", "restorations"},
    ),
    "gaps": (
        "gaps.py --proxies 3 --requests 150 --rounds 1 --stall 0.2",
        {"requests", "rounds", "stall", "sizes", "must_hold"},
        ["sizes", "3", "least_used, stalled"],
        {"gap_999_ms", "busy_999_ms", "gap_max_ms", "closing_ms", "more_ms", "ticks"},
    ),
    "crawls": (
        "crawls.py --rounds 1 --requests 20 --proxies 3 --variants cycle smooth_wrr",
        {"sizes", "must_hold"},
        ["sizes", "3", "smooth_wrr"],
        {"cpu_us", "rate", "ratio", "more_us", "speed", "gap_more_ms"},
    ),
}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each script writes, filled as they run."""
    folder = tmp_path_factory.mktemp("figures")
    found = {}
    for name, (command, *_) in SMALLEST.items():
        script, *arguments = command.split()
        file = folder / f"{name}.json"
        done = run(BENCHMARKS / script, *arguments, "--json", file)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        found[name] = json.loads(file.read_text("utf-8"))
    return found


def write_results(folder: Path, figures: dict[str, Any]) -> None:
    for name, one in figures.items():
        result = {"about": ABOUT, "command": f"the {name} one", "seconds": 1.0, "figures": one}
        (folder / f"{name}.json").write_text(json.dumps(result), "utf-8")


def make_page(results: Path, page: Path) -> str:
    done = run(BENCHMARKS / "page.py", "--results", results, "--page", page, "--no-plots")
    assert done.returncode == 0, done.stderr
    return page.read_text("utf-8")


@pytest.mark.parametrize("name", SMALLEST)
def test_a_script_writes_json_of_its_shape(name: str, figures: dict[str, Any]) -> None:
    _, keys, path, inner = SMALLEST[name]
    found = figures[name]
    assert keys <= found.keys()
    for one in found.get("must_hold", []):
        assert one.keys() == {"what", "figure", "holds"}
    for step in path:
        found = found[step]
    assert inner <= found.keys()


def test_smoothness_is_that_of_the_sequences(figures: dict[str, Any]) -> None:
    sets = figures["smoothness"]["sets"]
    assert sets["5, 1, 1"]["smooth_wrr"] == {"deviation": pytest.approx(4 / 7), "run": 4}
    assert sets["5, 1, 1"]["cycle"]["run"] == 5
    assert sets["10 equal"]["least_used"] == {"deviation": pytest.approx(0.9), "run": 1}
    assert sets["zipf, 100"]["least_used"] is None


def test_workers_together_pick_evenly(figures: dict[str, Any]) -> None:
    [shared] = [row for row in figures["workers"]["rows"] if row["strategy"] == "least_used"]
    assert shared["spread"] <= 1


def test_the_page_is_made_of_the_figures(figures: dict[str, Any], tmp_path: Path) -> None:
    write_results(tmp_path, figures)
    page = make_page(tmp_path, tmp_path / "page.md")
    for word in ("2 cores, a processor", "Redis 9.9.9", "abc1234", "2026-01-02", "make bench"):
        assert word in page
    for name in SMALLEST:
        assert f"`the {name} one`" in page
    assert f"| {figures['workers']['rows'][0]['cpu_us'][0]:.0f} |" in page


def test_the_page_of_the_docs_is_that_of_the_results(tmp_path: Path) -> None:
    assert make_page(BENCHMARKS / "results", tmp_path / "page.md") == (
        ROOT / "docs" / "performance.md"
    ).read_text("utf-8")


def test_a_script_that_fails_is_named_and_the_others_run(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import run_all, page, sections
from parts import Part
parts = [
    Part("worse", "Worse", "no_such_script.py", "", "", sections.load),
    Part("smoothness", "Good", "smoothness.py", "--quick --seeds 1", "", sections.smoothness),
]
run_all.PARTS[:] = parts
page.write = lambda found, target, **words: target.write_text(page.render(found, **words)[0])
sys.argv = ["run_all.py", "--results", {str(tmp_path)!r}, "--page", {str(tmp_path / "page.md")!r}]
run_all.main()
"""
    done = run("-c", code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "failed: worse"
    result = json.loads((tmp_path / "smoothness.json").read_text("utf-8"))
    assert result.keys() == {"about", "command", "seconds", "figures"}
    assert result["about"].keys() == {"date", "machine", "versions", "commit"}
    assert "## Good" in (tmp_path / "page.md").read_text("utf-8")
