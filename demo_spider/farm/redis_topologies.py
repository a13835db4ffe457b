"""Redis as people run it: a primary with its replica and Sentinels, and a cluster."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import redis

from .redis_server import RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

READY_TIMEOUT = 60.0  # seconds
SLOTS = 16_384
# Plus 10000 they stay below the ephemeral ports, so that a node that was killed finds
# the cluster bus's port free as well when it comes back.
CLUSTER_PORTS = range(20_000, 22_768)


class SentinelSetup:
    """One primary, one replica and three Sentinels that watch them::

        with SentinelSetup() as shop:
            shop.failover()

    On entering, the Sentinels know the primary, its replica and each other.

    :param service: the name the Sentinels know the primary by.
    :param args: further arguments for the primary and the replica.
    :param binary: the server to run instead of the first one found.
    """

    def __init__(
        self, service: str = "shop", args: tuple[str, ...] = (), binary: str | None = None
    ) -> None:
        self.service = service
        self.args = ("--repl-diskless-sync-delay", "0", *args)
        self.servers = [RedisServer(args=self.args, binary=binary) for _ in range(2)]
        self.sentinels = [_Sentinel(service, self.servers[0], binary) for _ in range(3)]

    @property
    def url(self) -> str:
        """``redis+sentinel://``, the Sentinels' addresses and the service's name."""
        return f"redis+sentinel://{_addresses(self.sentinels)}/{self.service}"

    @property
    def primary(self) -> RedisServer:
        """The one that is primary now, as a Sentinel has it."""
        for sentinel in self.sentinels:
            if sentinel.running:
                return self._named_by(sentinel)
        raise RuntimeError("no Sentinel is running")

    @property
    def replica(self) -> RedisServer:
        """The other one."""
        primary = self.primary
        return next(server for server in self.servers if server is not primary)

    def start(self) -> Self:
        """Start all of it; done by ``with``."""
        try:
            _start(self.servers)
            primary, replica = self.servers
            self._follow(replica, primary)
            _ask(replica, "REPLICAOF", "127.0.0.1", primary.port)
            _wait(lambda: _in_sync(replica, primary), "the replica to be in sync")
            _start(self.sentinels)
            for sentinel in self.sentinels:
                # Often, so that they meet at once. Redis 7 has it; before, all is slower.
                _try(sentinel, "SENTINEL", "DEBUG", "PUBLISH-PERIOD", 100)
            self.wait_until_healthy()
            for sentinel in self.sentinels:
                _try(sentinel, "SENTINEL", "DEBUG", "PUBLISH-PERIOD", 2000)
                # With the usual 1 s, a new primary is taken for down before its first PING,
                # and the replica is promoted at once.
                _try(sentinel, "SENTINEL", "DEBUG", "PING-PERIOD", 500)
                # Not after 10 s: what they know of a server that is back is then soon true.
                _try(sentinel, "SENTINEL", "DEBUG", "INFO-PERIOD", 1000)
                # What others said of the last primary must not count against the next one.
                _try(sentinel, "SENTINEL", "DEBUG", "ASK-PERIOD", 200)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all of it; does nothing when nothing runs."""
        _stop([*self.sentinels, *self.servers])

    def failover(self, rejoin: bool = True) -> RedisServer:
        """Kill the primary and return the new one once all Sentinels name it.

        The killed one is back by then, empty at first, as a replica in sync; unless not
        to *rejoin*, where that is left to :meth:`rejoin`.
        """
        killed = self.primary
        promoted = next(server for server in self.servers if server is not killed)
        killed.kill()
        self._wait_for_primary(promoted)
        if rejoin:
            self.rejoin(killed)
        return promoted

    def rejoin(self, server: RedisServer) -> None:
        """Start a killed server as a replica; return when the next failover could come."""
        # It would take Sentinels some 10 s to turn a second primary into a replica.
        self._follow(server, self.primary)
        server.restart()
        self.wait_until_healthy()

    def force_failover(self) -> RedisServer:
        """Have a Sentinel swap the two, both of which stay up; return the new primary.

        The old one is told at once to follow; Sentinels leave it a primary for 8 s more.
        """
        old = self.primary
        promoted = next(server for server in self.servers if server is not old)
        _ask(self.sentinels[0], "SENTINEL", "FAILOVER", self.service)
        self._wait_for_primary(promoted)
        self._follow(old, promoted)
        _ask(old, "REPLICAOF", "127.0.0.1", promoted.port)
        self.wait_until_healthy()
        return promoted

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _follow(self, replica: RedisServer, primary: RedisServer) -> None:
        """Have each come back in this role when it is restarted."""
        primary.args = self.args
        replica.args = (*self.args, "--replicaof", f"127.0.0.1 {primary.port}")

    def _named_by(self, sentinel: RedisServer) -> RedisServer:
        _, port = _ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return next(server for server in self.servers if server.port == int(port))

    def _wait_for_primary(self, server: RedisServer) -> None:
        running = [sentinel for sentinel in self.sentinels if sentinel.running]
        _wait(
            lambda: (
                all(self._named_by(sentinel) is server for sentinel in running)
                and _ask(server, "ROLE")[0] == "master"
            ),
            "the Sentinels to name the other server",
        )
        server.args = self.args

    def wait_until_healthy(self) -> None:
        """Return when the next failover could come, whoever is primary by then."""
        _wait(lambda: _in_sync(self.replica, self.primary), "the replica to be in sync")
        for sentinel in self.sentinels:
            if sentinel.running:
                _wait(partial(self._knows_all, sentinel), "a Sentinel to know the others")
        self._follow(self.replica, self.primary)

    def _knows_all(self, sentinel: RedisServer) -> bool:
        def told(*words: str) -> Any:
            return _ask(sentinel, "SENTINEL", *words, self.service)

        primary = _pairs(told("MASTER"))
        replicas = [_pairs(one) for one in told("REPLICAS")]
        others = [_pairs(one) for one in told("SENTINELS")]
        running = sum(one.running for one in self.sentinels)
        # Whole flags are not compared: "master_down" stays with the others for a while.
        return (
            primary["flags"] == "master"
            and [_is_up(one) for one in replicas] == [True]
            and replicas[0]["master-link-status"] == "ok"
            and replicas[0]["master-port"] == primary["port"]
            and sum(_is_up(one) for one in others) == running - 1
        )


class ClusterSetup:
    """Three primaries that share the slots, without replicas.

    On entering, every one knows the others and serves. A node that was killed and
    restarted is in the cluster again, without its keys, after :meth:`wait_until_ok`.

    :param args: further arguments for every node.
    :param binary: the server to run instead of the first one found.
    """

    def __init__(self, args: tuple[str, ...] = (), binary: str | None = None) -> None:
        self.nodes: list[RedisServer] = [_Node(args, binary) for _ in range(3)]

    @property
    def url(self) -> str:
        """``redis+cluster://`` and the nodes' addresses."""
        return f"redis+cluster://{_addresses(self.nodes)}"

    def start(self) -> Self:
        """Start all of it; done by ``with``."""
        try:
            _start(self.nodes)
            bounds = [SLOTS * number // 3 for number in range(4)]
            for number, node in enumerate(self.nodes):
                _ask(node, "CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
                _ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for number, node in enumerate(self.nodes):
                for other in self.nodes[number + 1 :]:
                    _ask(node, "CLUSTER", "MEET", "127.0.0.1", other.port)
            self.wait_until_ok()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all of it; does nothing when nothing runs."""
        _stop(self.nodes)

    def wait_until_ok(self) -> None:
        """Return once every running node serves, knows three, and sees the running ones up."""
        running = [node for node in self.nodes if node.running]

        def settled(node: RedisServer) -> bool:
            fields = [line.split() for line in _ask(node, "CLUSTER", "NODES").splitlines()]
            up = [one for one in fields if "fail" not in one[2] and one[7] == "connected"]
            info = _ask(node, "CLUSTER", "INFO")
            slots = "cluster_slots_assigned:16384" in info
            return (
                "cluster_state:ok" in info
                and slots
                and (len(fields), len(up))
                == (
                    len(self.nodes),
                    len(running),
                )
            )

        for node in running:
            _wait(partial(settled, node), "the cluster to be ok")

    def owner(self, key: str) -> RedisServer:
        """Return the node that has the slot of *key*, be it up or not."""
        error: Exception = RuntimeError("no node is running")
        for node in self.nodes:
            if not node.running:
                continue
            try:
                slot = _ask(node, "CLUSTER", "KEYSLOT", key)
                for first, last, (_, port, *_), *_ in _ask(node, "CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(one for one in self.nodes if one.port == port)
            except (redis.ConnectionError, redis.TimeoutError) as fault:  # a paused one
                error = fault
        raise error

    def other(self, key: str) -> RedisServer:
        """Return a running node that does not have the slot of *key*."""
        owner = self.owner(key)
        return next(node for node in self.nodes if node is not owner and node.running)

    def move_slot(self, key: str, to: RedisServer) -> None:
        """Move the slot of *key* and its keys to another node while all serve."""
        self.begin_move(key, to)
        self.move_keys(key, to)
        self.end_move(key, to)

    def begin_move(self, key: str, to: RedisServer) -> None:
        """Mark the slot as on its way: its owner sends clients on for keys it has not (ASK)."""
        source, slot = self.owner(key), self._slot(key)
        _ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", _ask(source, "CLUSTER", "MYID"))
        _ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", _ask(to, "CLUSTER", "MYID"))

    def move_keys(self, key: str, to: RedisServer) -> None:
        """Move the keys that are in the slot now; between begin and end."""
        source, slot = self.owner(key), self._slot(key)
        while keys := _ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            _ask(source, "MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, key: str, to: RedisServer) -> None:
        """Make it the owner on every running node (MOVED from here on)."""
        source, slot, new = self.owner(key), self._slot(key), _ask(to, "CLUSTER", "MYID")
        rest = [node for node in self.nodes if node not in (to, source)]
        # The new owner first: so there is never one that says "not mine" of all.
        for node in (to, source, *rest):
            if node.running:
                _ask(node, "CLUSTER", "SETSLOT", slot, "NODE", new)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _slot(self, key: str) -> int:
        node = next(node for node in self.nodes if node.running)
        return int(_ask(node, "CLUSTER", "KEYSLOT", key))


class _Sentinel(RedisServer):
    READY = "Sentinel ID is"

    def __init__(self, service: str, primary: RedisServer, binary: str | None) -> None:
        super().__init__(binary=binary)
        self.service = service
        self.primary = primary

    def _furnish(self, directory: Path) -> None:
        super()._furnish(directory)
        # Written once: what it learns, it writes there itself.
        # A split vote is held again after twice the timeout; a promotion needs 1 s of it.
        (directory / "sentinel.conf").write_text(
            f"sentinel monitor {self.service} 127.0.0.1 {self.primary.port} 2\n"
            f"sentinel down-after-milliseconds {self.service} 1000\n"
            f"sentinel failover-timeout {self.service} 1500\n"
            f"sentinel parallel-syncs {self.service} 1\n"
        )

    def _command(self, directory: Path) -> list[str]:
        binary, *options = super()._command(directory)
        return [binary, str(directory / "sentinel.conf"), "--sentinel", *options]


class _Node(RedisServer):
    def __init__(self, args: tuple[str, ...], binary: str | None) -> None:
        cluster = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"]
        cluster += ["--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"]
        super().__init__(args=(*cluster, *args), binary=binary)

    def _choose_port(self) -> int:
        return free_port(CLUSTER_PORTS)


def _addresses(servers: Sequence[RedisServer]) -> str:
    return ",".join(f"127.0.0.1:{server.port}" for server in servers)


def _start(servers: Sequence[RedisServer]) -> None:
    with ThreadPoolExecutor(len(servers)) as executor:
        list(executor.map(lambda server: server.start(), servers))


def _stop(servers: Sequence[RedisServer]) -> None:
    with ThreadPoolExecutor(len(servers)) as executor:
        list(executor.map(lambda server: server.stop(), servers))


def _ask(server: RedisServer, *words: str | int) -> Any:
    """Send one command as it stands; what the client makes of replies it knows is left out."""
    client = redis.Redis(port=server.port, protocol=2, decode_responses=True, socket_timeout=5)
    with client:
        return client.execute_command(*words)  # type: ignore[no-untyped-call]


def _try(server: RedisServer, *words: str | int) -> None:
    try:
        _ask(server, *words)
    except redis.ResponseError:
        return


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _is_up(instance: dict[str, str]) -> bool:
    return not {"s_down", "o_down", "disconnected"} & set(instance["flags"].split(","))


def _in_sync(replica: RedisServer, primary: RedisServer) -> bool:
    role, *rest = _ask(replica, "ROLE")
    if role != "slave" or rest[1:3] != [primary.port, "connected"]:
        return False
    return len(_ask(primary, "ROLE")[2]) == 1


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT
    while True:
        try:
            if condition():
                return
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
            pass  # on the way
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {READY_TIMEOUT:g} s for {what}")
        time.sleep(0.02)
