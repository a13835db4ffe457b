"""The connection to Redis that every script and command goes through.

Explicit limits and timeouts (:mod:`.clients`), one breaker (:mod:`.breaker`), two kinds
of errors (:mod:`.errors`).
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError

from scrapy_smoothpool.exceptions import StoreError, StoreUnavailable
from scrapy_smoothpool.store.breaker import Breaker
from scrapy_smoothpool.store.clients import (
    TIMEOUT,
    close_client,
    make_client,
    most,
    patience,
    ping,
)
from scrapy_smoothpool.store.errors import CAUGHT, LOGIN_ERRORS, translate
from scrapy_smoothpool.store.url import RedisAddress, Topology, parse_url, validate_url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from scrapy_smoothpool.store.script import Script

__all__ = ["RedisConnection", "ping_once", "validate_url"]

_ALTOGETHER = 3 * TIMEOUT
"""Seconds that one call may take where several servers are asked for the way: each of them
may hang for as long as a timeout."""


class RedisConnection:
    """A few connections to one server, or to whichever server has the pool now.

    Connects at the first call.

    :param address: a checked ``SMOOTHPOOL_REDIS_URL``, or one to be checked. Options in
        it win over the defaults here.
    :raises SettingsError: for a URL that cannot be used.
    """

    def __init__(self, address: RedisAddress | str) -> None:
        self._address = parse_url(address) if isinstance(address, str) else address
        self._client = make_client(self._address)
        self._places = asyncio.Semaphore(most(self._address))
        self._patience = patience(self._address)
        several = self._address.topology is not Topology.SINGLE
        self._limit = _ALTOGETHER if several else None
        self._breaker = Breaker(f"Redis at {self._address}")
        self._closed = False

    def describe(self) -> str:
        """Return ``host:port/database``, or the socket's path, for a log."""
        return str(self._address)

    @property
    def address(self) -> RedisAddress:
        """Where this connects to."""
        return self._address

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[str | int] = (),
        *,
        sent_whole: bool = False,
    ) -> Any:
        """Run *script* and return its reply: bytes, int, list or None.

        EVALSHA, and EVAL when the server does not know the script (any more), so
        that SCRIPT LOAD need not be permitted. At most one retry, and only when
        the connection broke: a call that timed out may still be carried out.

        :param sent_whole: EVAL without trying EVALSHA before.
        :raises StoreUnavailable: for what may mend by itself.
        :raises StoreError: for what a person has to mend.
        """
        rest = (len(keys), *keys, *args)

        async def evaluate(client: Any) -> Any:
            if not sent_whole:
                with suppress(NoScriptError):
                    return await client.execute_command("EVALSHA", script.sha, *rest)
            return await client.execute_command("EVAL", script.text, *rest)

        return await self.call(evaluate)

    async def call(self, command: Callable[[Any], Awaitable[Any]]) -> Any:
        """Await ``command(client)``; the same errors as :meth:`run`."""
        if self._closed:
            raise self._is_closed()
        breaker = self._breaker
        trial = breaker.admit()
        try:
            reply = await self._bounded(command, trial)
        except StoreError as error:
            breaker.failed(error)
            raise
        finally:
            breaker.ended(trial)
            if self._closed:
                # Closed meanwhile: the retry may have opened a connection anew.
                await close_client(self._client)
        breaker.succeeded()
        return reply

    async def _bounded(self, command: Callable[[Any], Awaitable[Any]], trial: bool) -> Any:
        """Await the command when fewer than the most are under way."""
        places = self._places
        if places.locked():
            try:
                await asyncio.wait_for(places.acquire(), self._patience)
            except TimeoutError:
                raise self._late() from None
            if not trial and (refusal := self._breaker.refusal()) is not None:
                places.release()  # those before it were not answered
                raise refusal
        else:
            await places.acquire()
        try:
            return await self._try(command)
        finally:
            places.release()

    async def _try(self, command: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            if self._limit is None:
                return await self._twice(command)
            async with asyncio.timeout(self._limit):
                return await self._twice(command)
        except Exception as error:
            if self._closed:
                # redis-py takes its connections apart under a call in flight, which then
                # stumbles over whatever is missing first (an AttributeError, say).
                raise self._is_closed() from None
            if not isinstance(error, CAUGHT):
                raise
            if isinstance(error, ReadOnlyError):
                await self._primary_gone()
            raise translate(error, self._address, worked=self._breaker.answered) from None

    async def _twice(self, command: Callable[[Any], Awaitable[Any]]) -> Any:
        """Await the command, and once more when its connection broke.

        That one is stale is found out by using it. Not after a timeout: what was sent may
        still be carried out.
        """
        try:
            return await command(self._client)
        except RedisConnectionError as error:
            if self._closed or isinstance(error, LOGIN_ERRORS):
                raise
        await asyncio.sleep(0.05)
        return await command(self._client)

    async def _primary_gone(self) -> None:
        # Behind the same name there may be another primary by now: look it up again.
        if self._address.topology is Topology.SINGLE:
            await self._client.connection_pool.disconnect(inuse_connections=False)

    def _late(self) -> StoreUnavailable:
        return StoreUnavailable(f"Redis at {self._address} did not answer in time")

    def _is_closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"Redis at {self._address}: the connection is closed")

    def begin_telling(self) -> None:
        """Tell in the log, from now on, what goes wrong; before, whoever opens the pool does."""
        self._breaker.tells = True

    async def aclose(self) -> None:
        """Close all connections. Never raises; calls in flight fail."""
        self._closed = True
        await close_client(self._client)


def ping_once(address: RedisAddress | str, timeout: float = TIMEOUT) -> None:
    """Connect, log in and PING, blocking for *timeout* seconds at most.

    :raises SettingsError: for a URL that cannot be used.
    :raises StoreUnavailable: when nothing (or a server that is not ready) answers.
    :raises StoreError: when the login is refused or no Redis is there.
    """
    found = parse_url(address) if isinstance(address, str) else address
    outcome: list[StoreError | None] = []
    # A thread, since socket timeouts bound neither the look-up of a host's name
    # nor the sum of the steps.
    thread = threading.Thread(
        target=lambda: outcome.append(_ping(found, timeout)), daemon=True, name="smoothpool-ping"
    )
    thread.start()
    thread.join(timeout)
    if not outcome:
        hint = " (is it a server without TLS?)" if found.tls else ""
        raise StoreUnavailable(f"Redis at {found} did not answer within {timeout:g} s{hint}")
    if outcome[0] is not None:
        raise outcome[0]


def _ping(address: RedisAddress, timeout: float) -> StoreError | None:
    try:
        ping(address, timeout)
    except CAUGHT as error:
        return translate(error, address)
    except Exception as error:  # the thread must not die with a traceback that nobody asked for
        return StoreError(f"Redis at {address}: {type(error).__name__}")
    return None
