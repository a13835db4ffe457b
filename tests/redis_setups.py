"""Redis as people run it, for crawls: each is started, disturbed and looked into alike."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from farm.certificate import certificate_pem, server_context
from farm.redis_server import RedisServer, ServerLacksTls
from farm.redis_topologies import ClusterSetup, SentinelSetup
from scrapy_smoothpool.store.keys import Keys
from scrapy_smoothpool.store.shared_pool import COMMANDS

KEYS = Keys()
USER, PASSWORD = "w0rker", "s3cret"


@dataclass
class Setup:
    """One way to run Redis."""

    url: str
    settings: dict[str, Any] = field(default_factory=dict)

    def server(self) -> RedisServer:
        """The server that has the pool now."""
        raise NotImplementedError

    def disturb(self) -> None:
        """Do what such a setup is there for, while a crawl is under way."""

    def counts(self) -> dict[str, float]:
        with Redis(port=self.server().port, decode_responses=True) as client:
            return dict(client.zrange(KEYS.allocations, 0, -1, withscores=True))


class Single(Setup):
    def __init__(self, server: RedisServer, url: str = "", **settings: Any) -> None:
        super().__init__(url or server.url, settings)
        self._server = server

    def server(self) -> RedisServer:
        return self._server


class Sentinel(Setup):
    def __init__(self, shop: SentinelSetup) -> None:
        super().__init__(shop.url)
        self.shop = shop

    def server(self) -> RedisServer:
        return self.shop.primary

    def disturb(self) -> None:
        self.shop.failover()


class Cluster(Setup):
    """A slot moves, then the node that had it is killed, and comes back empty."""

    def __init__(self, cluster: ClusterSetup) -> None:
        super().__init__(cluster.url)
        self.cluster = cluster

    def server(self) -> RedisServer:
        return self.cluster.owner(KEYS.allocations)

    def disturb(self) -> None:
        former = self.server()
        self.cluster.move_slot(KEYS.allocations, self.cluster.other(KEYS.allocations))
        former.kill()
        former.restart()
        self.cluster.wait_until_ok()


@contextmanager
def single() -> Iterator[Setup]:
    with RedisServer() as server:
        yield Single(server)


@contextmanager
def unix() -> Iterator[Setup]:
    with RedisServer(unix=True) as server:
        setup = Single(server)
        setup.counts = lambda: _counts_by_socket(server)  # type: ignore[method-assign]
        yield setup


def _counts_by_socket(server: RedisServer) -> dict[str, float]:
    with Redis.from_url(server.url, decode_responses=True) as client:
        return dict(client.zrange(KEYS.allocations, 0, -1, withscores=True))


@contextmanager
def acl() -> Iterator[Setup]:
    """A user that may run what the documentation lists, and nothing else."""
    with RedisServer() as server:
        with Redis(port=server.port) as client:
            allowed = [f"+{command.lower()}" for command in COMMANDS]
            rules = ["on", f">{PASSWORD}", "resetkeys", "~smoothpool:{default}:*", "-@all"]
            client.execute_command("ACL", "SETUSER", USER, *rules, *allowed)
        yield Single(server, server.url.replace("//", f"//{USER}:{PASSWORD}@"))


@contextmanager
def tls() -> Iterator[Setup]:
    """Redis's own TLS, or one in front where the server was built without."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = folder / "ca.pem"
        authority.write_text(certificate_pem())
        params = {"ssl_ca_certs": str(authority)}
        plain = None
        try:
            server = stack.enter_context(RedisServer(tls=True))
            url = server.url
        except ServerLacksTls:
            plain = stack.enter_context(RedisServer())
            port = stack.enter_context(tls_in_front(plain.port))
            url = f"rediss://127.0.0.1:{port}/0"
        setup = Single(plain or server, url, SMOOTHPOOL_REDIS_PARAMS=params)
        setup.counts = lambda: _counts_by_tls(url, authority)  # type: ignore[method-assign]
        yield setup


def _counts_by_tls(url: str, authority: Path) -> dict[str, float]:
    with Redis.from_url(url, ssl_ca_certs=str(authority), decode_responses=True) as client:
        return dict(client.zrange(KEYS.allocations, 0, -1, withscores=True))


@contextmanager
def tls_in_front(target: int) -> Iterator[int]:
    """Yield a port that speaks TLS for the server at another."""
    started: list[int] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.transport.abort()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(carry(reader, back), carry(there, writer))

    async def main() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=server_context())
        started.append(server.sockets[0].getsockname()[1])
        ready.set()
        await ending.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.1)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(10)
        loop.close()


@contextmanager
def sentinel() -> Iterator[Setup]:
    with SentinelSetup() as shop:
        yield Sentinel(shop)


@contextmanager
def cluster() -> Iterator[Setup]:
    with ClusterSetup() as nodes:
        yield Cluster(nodes)


SETUPS = {
    "single": single,
    "unix": unix,
    "acl": acl,
    "tls": tls,
    "sentinel": sentinel,
    "cluster": cluster,
}
