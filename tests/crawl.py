"""Run a crawl as a user does: ``scrapy crawl`` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"

DEFAULTS: dict[str, Any] = {
    "BOT_NAME": "test",
    "SPIDER_MODULES": ["spiders"],
    "ADDONS": {"scrapy_smoothpool.Addon": 500},
    "EXTENSIONS": {"spiders.Recorder": 0},
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "DOWNLOAD_TIMEOUT": 5,
    "LOG_LEVEL": "DEBUG",
}
REACTORLESS = {"TWISTED_REACTOR_ENABLED": False}

Requests = Sequence[Mapping[str, Any] | str]


@dataclass
class Crawl:
    """A finished crawl and all that it left."""

    exit_code: int
    log: str
    folder: Path
    seconds: float
    result: dict[str, Any]

    @property
    def stats(self) -> dict[str, Any]:
        return self.result.get("stats", {})

    def stat(self, name: str) -> Any:
        return self.stats.get(f"smoothpool/{name}", 0)

    @property
    def arrived(self) -> list[dict[str, Any]]:
        return self.result.get("arrived", [])

    @property
    def failed(self) -> list[dict[str, Any]]:
        return self.result.get("failed", [])

    @property
    def signals(self) -> list[list[Any]]:
        return self.result.get("signals", [])

    @property
    def finish_reason(self) -> str | None:
        return self.result.get("finish_reason")

    @property
    def attempts(self) -> dict[str, list[str]]:
        """For each URL the ids of the proxies it was given, in order.

        Not read off the proxies' logs: handlers may repeat a GET on a reused connection.
        """
        by_url: dict[str, list[str]] = {}
        for url, proxy_id in self.result.get("assigned", []):
            by_url.setdefault(url, []).append(proxy_id)
        return by_url

    @property
    def proxies(self) -> list[str]:
        """The ids of the proxies that pages arrived by, in order of arrival."""
        return [page["proxy"] for page in self.arrived]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.proxies)

    def table(self) -> list[list[str]]:
        """The closing table as rows of cells, without the header."""
        _, _, rest = self.log.partition(" at close:\n")
        rows = [line.split() for line in rest.splitlines()]
        assert rows[0][:2] == ["proxy", "weight"], self.log[-3000:]
        found = []
        for row in rows[1:]:
            if len(row) < 9 or not row[1].isdigit():
                break
            found.append(row)
        return found


class Running:
    """A crawl under way."""

    def __init__(
        self,
        requests: Requests,
        settings: Mapping[str, Any],
        *,
        spider: str = "list",
        extra: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        python: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        arguments: Iterable[str] = (),
    ) -> None:
        self._own = None if folder else tempfile.TemporaryDirectory(prefix="smoothpool-crawl-")
        self.folder = folder or Path(self._own.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.result = self.folder / "result.json"
        self.result.unlink(missing_ok=True)
        self.log = self.folder / "crawl.log"
        jobs = [{"url": r} if isinstance(r, str) else dict(r) for r in requests]
        job = {"requests": jobs, "result": str(self.result), **(extra or {})}
        (self.folder / "job.json").write_text(json.dumps(job))
        (self.folder / "job_settings.json").write_text(json.dumps({**DEFAULTS, **settings}))
        (self.folder / "job_settings.py").write_text(
            "import json, pathlib\n"
            "here = pathlib.Path(__file__).parent\n"
            "globals().update(json.loads((here / 'job_settings.json').read_text()))\n"
        )
        path = os.pathsep.join([str(self.folder), str(TESTS), str(ROOT)])
        env = {
            **{k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")},
            "PYTHONPATH": path,
            "SCRAPY_SETTINGS_MODULE": "job_settings",
            **(environment or {}),
        }
        command = [sys.executable, *python, "-m", "scrapy", "crawl", spider]
        command += ["-a", f"job={self.folder / 'job.json'}", *arguments]
        self.started = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def log_has(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = 30) -> None:
        """Wait until the log holds *text*."""
        end = time.monotonic() + timeout
        while not self.log_has(text):
            assert time.monotonic() < end, f"{text!r} not logged:\n{self.tail()}"
            assert self.process.poll() is None, f"ended before {text!r}:\n{self.tail()}"
            time.sleep(0.02)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def wait(self, timeout: float = 90) -> Crawl:
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the crawl did not end in {timeout} s:\n{self.tail()}") from None
        seconds = time.monotonic() - self.started
        result = json.loads(self.result.read_text()) if self.result.exists() else {}
        return Crawl(code, self.log.read_text(errors="replace"), self.folder, seconds, result)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.kill()
        if self._own is not None:
            self._own.cleanup()


def crawl(requests: Requests, settings: Mapping[str, Any], **options: Any) -> Crawl:
    """Run a crawl to its end."""
    timeout = options.pop("timeout", 90)
    with Running(requests, settings, **options) as running:
        return running.wait(timeout)
