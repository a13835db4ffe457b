"""A ``scrapy crawl`` of the demo as a process: its pages counted, its log filtered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROJECT = Path(__file__).resolve().parent
#: The start of a log record in Scrapy's own format.
_RECORD = re.compile(r"^\d{4}-\d\d-\d\d \S+ \[(?P<logger>[^\]]+)\] (?P<level>[A-Z]+): (?P<text>.*)")
_OURS = "scrapy_smoothpool"


class Worker:
    """One crawling process.

    Of its log, single lines of the proxy pool are told to *say* at once and longer
    messages (the closing table) are kept in ``tables``; all the rest goes to a file.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        settings: Mapping[str, str],
        arguments: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.tables: list[str] = []
        self._say = say
        self._feed = directory / f"{name}.jsonl"
        self._log = directory / f"{name}.log"
        command = [sys.executable, "-m", "scrapy", "crawl", "pages", "-O", str(self._feed)]
        for option, pairs in (("-s", settings), ("-a", arguments)):
            for key, value in pairs.items():
                command += [option, f"{key}={value}"]
        self._process = subprocess.Popen(
            command,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=name)
        self._reader.start()

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit status; after *timeout* seconds end it."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._say(f"{self.name} is not done after {timeout:.0f} s: ending it")
            status = 124
        self.close()
        return status

    def close(self) -> None:
        """End the process if it still runs, and read its log to the end."""
        if self.running:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def paths(self) -> set[str]:
        """Return the paths of the pages that arrived."""
        if not self._feed.exists():
            return set()
        lines = self._feed.read_text("utf-8").splitlines()
        return {urlsplit(json.loads(line)["url"]).path or "/" for line in lines if line.strip()}

    def log_tail(self, lines: int = 30) -> str:
        """Return the end of the whole log, for when something went wrong."""
        return "\n".join(self._log.read_text("utf-8").splitlines()[-lines:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        message: list[str] = []
        with self._log.open("w", encoding="utf-8") as log, self._process.stdout as output:
            for line in output:
                log.write(line)
                record = _RECORD.match(line)
                if record:
                    self._tell(message)
                    ours = record["logger"].partition(".")[0] == _OURS
                    message = [record["text"]] if ours else []
                elif message:
                    message.append(line.rstrip())
            self._tell(message)

    def _tell(self, message: list[str]) -> None:
        if len(message) > 1:
            self.tables.append("\n".join(message))
        elif message:
            self._say(f"{self.name}: {message[0]}")
