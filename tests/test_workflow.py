"""Does .github/workflows/test.yml name what there is? It runs on GitHub only."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / ".github" / "workflows" / "test.yml").read_text("utf-8")
WORKFLOW = yaml.safe_load(TEXT)
JOBS: dict[str, Any] = WORKFLOW["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PREFIX = "Programming Language :: Python :: "
PYTHONS = [c.removeprefix(PREFIX) for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]


def scripts(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def python(name: str) -> str:
    (found,) = (
        step["with"]["python-version"]
        for step in JOBS[name]["steps"]
        if step.get("uses", "").startswith("actions/setup-python@")
    )
    return found


def test_it_runs_for_a_change_and_may_write_nothing():
    # YAML 1.1 takes "on" for True.
    assert set(WORKFLOW[True]) == {"push", "pull_request", "workflow_dispatch"}
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_every_python_of_the_classifiers_is_run():
    assert JOBS["newest"]["strategy"]["matrix"]["python"] == PYTHONS
    assert python("newest") == "${{ matrix.python }}"
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert python("lowest") == PYTHONS[0]
    assert python("macos") == PYTHONS[-1]
    for name in ("lint", "servers"):
        assert python(name) in PYTHONS


def test_every_target_of_make_exists():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    called = {
        name: re.findall(r"^ *make ([a-z][a-z-]*)", "\n".join(scripts(job)), re.M)
        for name, job in JOBS.items()
    }
    assert called == {
        "lint": ["lint"],
        "newest": ["test"],
        "lowest": ["test-lowest"],
        "macos": ["test"],
        "servers": ["test"],
    }
    assert {target for found in called.values() for target in found} <= targets


def test_the_servers_are_those_that_the_page_names():
    lines = JOBS["servers"]["strategy"]["matrix"]["include"]
    found = [(each["server"], each["line"]) for each in lines]
    assert found == [("redis", "6.2.*"), ("redis", "7.*"), ("redis", "*"), ("valkey", "*")]
    page = (ROOT / "docs" / "redis.md").read_text("utf-8")
    assert "Redis 6.2, 7 and the newest, and Valkey." in page
    # How the tests find it, and under which name it is built.
    assert JOBS["servers"]["env"]["REDIS_SERVER_BINARY"].endswith("/${{ matrix.server }}-server")
    assert "REDIS_SERVER_BINARY" in (ROOT / "demo_spider/farm/redis_server.py").read_text("utf-8")


def test_its_scripts_are_scripts():
    for job in JOBS.values():
        for script in scripts(job):
            plain = re.sub(r"\$\{\{.*?\}\}", "x", script)
            done = subprocess.run(["bash", "-n"], input=plain, text=True, capture_output=True)
            assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
@pytest.mark.parametrize(
    ("line", "newest"), [("6.2.*", "6.2.14"), ("7.*", "7.10.1"), ("*", "8.2.0")]
)
def test_the_newest_release_of_a_line_is_found(tmp_path, line, newest):
    here = {"cwd": tmp_path, "check": True, "capture_output": True, "text": True}
    subprocess.run(["git", "init", "-q"], **here)
    author = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    subprocess.run(["git", *author, "commit", "-q", "--allow-empty", "-m", "x"], **here)
    for tag in ("6.2.9", "6.2.14", "7.0.15", "7.9.0", "7.10.1", "8.2.0", "8.4-rc1", "9.0.0-rc2"):
        subprocess.run(["git", "tag", tag], **here)
    for tag in ("unstable", "2.2.107-scripting", "v1.3.6"):
        subprocess.run(["git", "tag", tag], **here)
    (script,) = (step["run"] for step in JOBS["servers"]["steps"] if step.get("id") == "release")
    script = script.replace("https://github.com/$REPOSITORY", str(tmp_path))
    output = tmp_path / "output"
    environment = {"LINE": line, "GITHUB_OUTPUT": str(output), "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-e", "-c", script], env=environment, **here)
    assert output.read_text() == f"tag={newest}\n"


def test_the_tests_with_a_server_are_found():
    *_, script = scripts(JOBS["servers"])
    (pattern,) = re.findall(r"grep -lE '(.*?)'", script)
    texts = {path.name: path.read_text("utf-8") for path in (ROOT / "tests").glob("test_*.py")}
    found = {name for name, text in texts.items() if re.search(pattern, text)}
    starts = r"RedisServer\(|SentinelSetup\(|ClusterSetup\(|SETUPS"
    assert {name for name, text in texts.items() if re.search(starts, text)} <= found
    assert "test_crawl_redis_down.py" in found
