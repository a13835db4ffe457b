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

from scrapy_smoothpool.exceptions import StoreError, StoreUnavailable

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
    "LOGIN": "the login was refused: check user and password in SMOOTHPOOL_REDIS_URL",
    "NOPERM": "the user lacks a permission: allow the commands the store uses and the pool's keys",
    "READONLY": "the server is a read-only replica: point SMOOTHPOOL_REDIS_URL at the primary",
    "OOM": "the server is out of memory: raise maxmemory or free some",
    "WRONGTYPE": "one of the pool's keys holds something else: delete it, or choose another "
    "SMOOTHPOOL_POOL or SMOOTHPOOL_KEY_PREFIX",
    "MOVED": "the server is one node of a cluster: give the address of the node that holds "
    "the pool's slot, or a server that is not clustered",
    "CROSSSLOT": "the server is a cluster that does not honour hash tags",
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


def translate(error: BaseException, address: RedisAddress) -> StoreError:
    """Return what to raise for *error*; raise it ``from None``, the cause may hold a login."""
    where = f"Redis at {address}"
    text = _clean(error, address)
    problem = next((word for kind, word in _KINDS.items() if isinstance(error, kind)), None)
    if isinstance(error, redis_errors.ResponseError) and problem is None:
        if isinstance(error, redis_errors.ClusterDownError) or _LATER.search(text):
            return StoreUnavailable(f"{where} is not ready: {text}")
        if found := _WORDS.search(text):
            problem = found[1] if found[1] in _REMEDIES else "LOGIN"
        else:
            return StoreError(f"{where} refused the command: {text}")
    if problem is not None:
        return StoreError(f"{where}: {_REMEDIES[problem]}{_command(error)}")
    if isinstance(error, redis_errors.InvalidResponse | UnicodeDecodeError):
        return StoreError(f"{where} does not speak the Redis protocol; check the address")
    if isinstance(error, redis_errors.TimeoutError | TimeoutError):
        return StoreUnavailable(f"{where} did not answer in time")
    if isinstance(error, redis_errors.ConnectionError | OSError):
        return StoreUnavailable(f"{where} cannot be reached: {text}")
    return StoreError(f"{where}: {type(error).__name__}: {text}")


def _command(error: BaseException) -> str:
    # "User worker has no permissions to run the 'evalsha' command" names the
    # user, who is half of a login: keep the command only.
    found = re.search(r"run the '([\w|]+)' command", str(error))
    return f" (refused: {found[1]})" if found else ""


def _clean(error: BaseException, address: RedisAddress) -> str:
    text = " ".join(str(error).split())[:300] or type(error).__name__
    for secret in address.secrets:
        text = text.replace(secret, "***")
    return text
