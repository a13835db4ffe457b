"""Redis's many errors as the two this package raises.

:exc:`StoreUnavailable` for what may mend by itself, :exc:`StoreError` for what a
person has to mend. redis-py's classes do not draw that line: a wrong password is a
``ConnectionError``, a server that is busy a plain ``ResponseError``.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from redis import exceptions as redis_errors
from redis.asyncio.sentinel import MasterNotFoundError

from scrapy_smoothpool.exceptions import StoreError, StoreUnavailable
from scrapy_smoothpool.store.url import Topology

if TYPE_CHECKING:
    from scrapy_smoothpool.store.url import RedisAddress

#: What a call may raise. RedisClusterException is no RedisError; asyncio's and
#: the system's TimeoutError are OSErrors on Python 3.11.
CAUGHT = (
    redis_errors.RedisError,
    redis_errors.RedisClusterException,
    OSError,
    asyncio.TimeoutError,
    UnicodeDecodeError,
)

# Replies that mean "later", and replies that a person has to mend. The words are
# looked for anywhere: Redis 6.2 wraps what a script met in "ERR Error running script".
_LATER = re.compile(r"\b(BUSY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|NOREPLICAS)\b")
_REMEDIES: dict[str, str] = {
    "LOGIN": "the login was refused: check user and password in {setting}",
    "NOPERM": "the user lacks a permission: allow the commands the store uses and the pool's keys",
    "READONLY": "the server is a read-only replica: point {setting} at the primary",
    "OOM": "the server is out of memory (maxmemory): raise that or free some, or point {setting} "
    "at another",
    "WRONGTYPE": "one of the pool's keys holds something else: delete it, or choose another "
    "SMOOTHPOOL_POOL or SMOOTHPOOL_KEY_PREFIX",
    "MOVED": "the server is one node of a cluster: begin {setting} with redis+cluster://",
    "CROSSSLOT": "the server is a cluster that does not honour hash tags",
    "DATABASE": "there is no database {db}: give another in {setting}",
    "CERTIFICATE": "the server's certificate is not trusted, or ours is not by the server: set "
    "ssl_ca_certs (and ssl_certfile, ssl_keyfile) in {setting} or SMOOTHPOOL_REDIS_PARAMS",
    "PLAIN": "TLS fails: is {setting} that of a server without TLS? Then begin it with redis://",
    "NO SCRIPTS": "the server runs no scripts: is {setting} that of a Sentinel? Then begin it with "
    "redis+sentinel://",
    "NO CLUSTER": "the server is no cluster, or its user may not run CLUSTER SLOTS: begin "
    "{setting} with redis:// or rediss://, or allow +cluster|slots and +command",
}
_KINDS: dict[type[Exception], str] = {
    redis_errors.AuthenticationError: "LOGIN",
    redis_errors.AuthorizationError: "LOGIN",
    redis_errors.AuthenticationWrongNumberOfArgsError: "LOGIN",
    redis_errors.NoPermissionError: "NOPERM",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.AskError: "MOVED",  # MovedError is one
    redis_errors.ClusterCrossSlotError: "CROSSSLOT",
}
_WORDS = re.compile(r"\b(NOAUTH|WRONGPASS|NOPERM|READONLY|OOM|WRONGTYPE|MOVED|CROSSSLOT)\b")


LOGIN_ERRORS = (
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.AuthenticationWrongNumberOfArgsError,
)
"""Which redis-py counts among its connection errors, but trying again does not help."""

# What redis-py, OpenSSL and the servers say, where there is no class of its own.
_PHRASES = (
    (re.compile(r"can't run this command|ACL failure"), "NOPERM"),
    (re.compile(r"unauthenticated"), "LOGIN"),
    (re.compile(r"unknown command .?EVAL"), "NO SCRIPTS"),
    (re.compile(r"Invalid Database|DB index is out of range"), "DATABASE"),
    (re.compile(r"CERTIFICATE|certificate|UNKNOWN_CA|unknown ca", re.ASCII), "CERTIFICATE"),
    (re.compile(r"WRONG_VERSION_NUMBER|RECORD_LAYER|SSL|ssl/tls"), "PLAIN"),
    (re.compile(r"[Cc]luster mode is not enabled|cluster support disabled"), "NO CLUSTER"),
)


def translate(error: BaseException, address: RedisAddress, *, worked: bool = False) -> StoreError:
    """Return what to raise for *error*; raise it ``from None``, the cause may hold a login.

    :param worked: the server took commands before. Then a replica in a primary's place is
        one that was a primary, and a failover is under way.
    """
    where = f"Redis at {address}"
    text = _clean(error, address)
    problem = next((word for kind, word in _KINDS.items() if isinstance(error, kind)), None)
    if isinstance(error, redis_errors.ResponseError) and problem is None:
        if isinstance(error, redis_errors.ClusterDownError) or _LATER.search(text):
            return StoreUnavailable(f"{where} is not ready: {text}")
        if found := _WORDS.search(text):
            problem = found[1] if found[1] in _REMEDIES else "LOGIN"
    if problem is None:
        problem = next((word for phrase, word in _PHRASES if phrase.search(text)), None)
    if problem == "READONLY" and (worked or address.topology is not Topology.SINGLE):
        return StoreUnavailable(f"{where} is a replica now; its primary is being looked for")
    if problem is not None:
        remedy = _REMEDIES[problem].format(setting=address.setting, db=address.db)
        return StoreError(f"{where}: {remedy}{_command(error)}")
    if isinstance(error, redis_errors.ResponseError):
        return StoreError(f"{where} refused the command: {text}")
    if isinstance(error, redis_errors.InvalidResponse | UnicodeDecodeError):
        return StoreError(
            f"{where} does not speak the Redis protocol; check the address in {address.setting}"
        )
    if isinstance(error, redis_errors.ClusterError):  # sent on and on while a slot moves
        return StoreUnavailable(f"{where} is not ready: {text}")
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        return StoreUnavailable(f"{where} did not answer in time")
    unreachable = (redis_errors.ConnectionError, redis_errors.RedisClusterException, OSError)
    if isinstance(error, unreachable):
        return StoreUnavailable(f"{where} cannot be reached: {text}")
    kind = "" if type(error) is redis_errors.RedisError else f"{type(error).__name__}: "
    return StoreError(f"{where}: {kind}{text}")


def _command(error: BaseException) -> str:
    # "User worker has no permissions to run the 'evalsha' command" names the
    # user, who is half of a login: keep the command only.
    found = re.search(r"run the '([\w|]+)' command", str(error))
    return f" (refused: {found[1]})" if found else ""


def _clean(error: BaseException, address: RedisAddress) -> str:
    if isinstance(error, MasterNotFoundError):
        return f"no Sentinel that answers knows a primary named {address.service!r}"
    text = str(error)
    # Before anything is cut or folded, and what is part of another after it.
    for secret in sorted(address.secrets, key=len, reverse=True):
        # One of a letter or two is not looked for inside of words: it would be all over them.
        pattern = re.escape(secret) if len(secret) > 2 else rf"(?<!\w){re.escape(secret)}(?!\w)"
        text = re.sub(pattern, "***", text)
    return " ".join(text.split())[:300] or type(error).__name__
