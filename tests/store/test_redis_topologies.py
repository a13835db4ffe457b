from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from farm import redis_server, redis_topologies
from farm.redis_server import RedisServer, ServerLacksTls
from farm.redis_topologies import ClusterSetup, SentinelSetup

if TYPE_CHECKING:
    from collections.abc import Iterator

DEMO = Path(redis_server.__file__).parents[1]


def client(server: RedisServer, **options: object) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True, protocol=2, **options)


def test_a_tls_server_is_trusted_with_its_ca_alone() -> None:
    server = RedisServer(tls=True)
    try:
        server.start()
    except ServerLacksTls:
        # The crawls that need TLS then have one in front (redis_setups.tls).
        with pytest.raises(ServerLacksTls, match="TLS"):
            server.start()
        return
    with server:
        assert server.url == f"rediss://127.0.0.1:{server.port}/0"
        with client(server, ssl_ca_certs=str(server.ca_file)) as trusting:
            assert trusting.ping()
            server.restart()
            assert trusting.ping()
        with client(server) as other, pytest.raises(redis.ConnectionError, match="certificate"):
            other.ping()
        with (
            redis.Redis(port=server.port, protocol=2) as plain,
            pytest.raises(redis.ConnectionError),
        ):
            plain.ping()


@pytest.mark.parametrize(
    "said", ["# Failed finding TLS support.", ">>> 'tls-port \"20000\"'\\nBad directive"]
)
def test_a_server_without_tls_says_so(tmp_path: Path, said: str) -> None:
    binary = tmp_path / "server"
    binary.write_text(
        f"#!/bin/sh\nprintf '%b' '{said.replace(chr(39), chr(92) + '047')}'\nexit 1\n"
    )
    binary.chmod(0o700)
    server = RedisServer(tls=True, binary=str(binary))
    with pytest.raises(ServerLacksTls):
        server.start()
    assert server.directory is None
    with pytest.raises(ValueError, match="Unix socket"):
        RedisServer(unix=True, tls=True)


def test_a_durable_server_comes_back_with_its_data_or_without() -> None:
    with RedisServer(durable=True) as server, client(server) as own:
        own.set("kept", "1")
        server.kill()
        server.start()
        assert own.get("kept") == "1"
        server.restart(keep_data=True)
        assert own.get("kept") == "1"
        server.restart()
        assert own.get("kept") is None
    with pytest.raises(ValueError, match="durable"):
        RedisServer().restart(keep_data=True)


def test_sentinels_name_the_replica_when_the_primary_is_killed() -> None:
    with SentinelSetup() as shop:
        old, new = shop.primary, shop.replica
        ports = [f"127.0.0.1:{sentinel.port}" for sentinel in shop.sentinels]
        assert shop.url == f"redis+sentinel://{','.join(ports)}/shop"
        finder = redis.Sentinel([("127.0.0.1", sentinel.port) for sentinel in shop.sentinels])
        assert finder.discover_master("shop") == ("127.0.0.1", old.port)
        with client(old) as writer:
            # On one connection: WAIT counts what that one wrote.
            assert writer.pipeline(transaction=False).set("k", "v").wait(1, 3000).execute()[1] == 1
        assert shop.failover() is new
        assert shop.primary is new
        assert shop.replica is old
        assert finder.discover_master("shop") == ("127.0.0.1", new.port)
        for sentinel in finder.sentinels:
            sentinel.close()
        for server in (old, new):
            with client(server) as reader:
                assert reader.get("k") == "v"
        assert shop.force_failover() is old
    assert not any(server.running for server in (*shop.servers, *shop.sentinels))


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterSetup]:
    with ClusterSetup() as running:
        yield running


def test_a_slot_moves_with_its_keys(cluster: ClusterSetup) -> None:
    source = cluster.owner("{s}1")
    to = cluster.other("{s}1")
    with client(source) as old, client(to) as new:
        for number in range(250):
            old.set(f"{{s}}{number}", number)
        cluster.begin_move("{s}1", to)
        with pytest.raises(redis.exceptions.AskError):
            old.get("{s}absent")
        cluster.move_keys("{s}1", to)
        cluster.end_move("{s}1", to)
        assert cluster.owner("{s}1") is to
        assert new.get("{s}249") == "249"
        with pytest.raises(redis.exceptions.MovedError):
            old.get("{s}249")
    cluster.move_slot("{s}1", source)
    assert cluster.owner("{s}1") is source
    startup = [redis.cluster.ClusterNode("127.0.0.1", node.port) for node in cluster.nodes]
    with redis.RedisCluster(startup_nodes=startup, decode_responses=True) as client_of_all:
        assert client_of_all.get("{s}7") == "7"


def test_a_killed_node_comes_back_with_its_slots_and_without_its_keys(
    cluster: ClusterSetup,
) -> None:
    node, port = cluster.owner("lost"), cluster.owner("lost").port
    with client(node) as own:
        own.set("lost", "1")
        node.kill()
        assert cluster.owner("lost") is node
        node.restart()
        cluster.wait_until_ok()
        assert node.port == port
        assert own.get("lost") is None
    assert cluster.url.count(f"127.0.0.1:{port}") == 1


def test_lost_races_for_ports_leave_no_half_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    free_port = redis_server.free_port
    with RedisServer() as taken:
        # Two of three get this one first, and one is tried once only.
        ports = iter([taken.port, free_port(), taken.port])
        monkeypatch.setattr(redis_topologies, "free_port", lambda *_: next(ports, taken.port))
        monkeypatch.setattr(redis_server, "TRIES", 2)
        setup = ClusterSetup()
        with pytest.raises(redis_server.PortTaken):
            setup.start()
        assert not any(node.running or node.directory for node in setup.nodes)
        monkeypatch.setattr(redis_topologies, "free_port", free_port)


def test_it_all_goes_away_when_its_parent_is_killed() -> None:
    code = (
        "import time; from farm.redis_topologies import SentinelSetup; "
        "s = SentinelSetup().start(); print(*(one.pid for one in (*s.servers, *s.sentinels)), "
        "*(one.directory for one in (*s.servers, *s.sentinels)), flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=DEMO
    )
    assert parent.stdout is not None
    with parent.stdout:
        words = parent.stdout.readline().split()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert len(words) == 10
    deadline = time.monotonic() + 5
    while any(Path(word).exists() for word in words[5:]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
