"""Whether a server is fit for RMQ: old, forgetful and badly set up ones are refused or warned of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from rmq._io.wire import ReplyError, Wire
from rmq._model.reports import reporter
from rmq._transport.durability import Durability, DurabilityLevel
from rmq.errors import UnsafeRedisError

log = reporter("rmq.connections")

Version = tuple[int, int]
OLDEST_VERSION = (6, 2)
WAITAOF_VERSION = (7, 2)


def check_server(wire: Wire, shown: str, durability: Durability) -> Version:
    """Look at a server and return its version; `OLDEST_VERSION` where it won't tell.

    Args:
        wire: A connection to it.
        shown: Its name in messages.
        durability: What it must be able to do.

    Raises:
        UnsafeRedisError: It would lose messages, or can't do what was promised.
        ReplyError: It refuses for another reason.
        WireBrokenError: No answer.
    """
    try:
        info = _info(wire)
    except ReplyError as error:
        if not str(error).startswith("NOPERM"):
            raise
        log.warning("this Redis user may not call INFO: version and eviction policy were not checked")
        return OLDEST_VERSION
    version = version_of(info)
    refuse_unsafe(info, shown, durability)
    for warning in warnings_about(info, _save_points(wire, info), durability):
        log.warning("Redis at %s %s", shown, warning)
    return version


def version_of(info: Mapping[str, str]) -> Version:
    """Return the version that INFO tells."""
    major, minor, *_ = info["redis_version"].split(".")
    return int(major), int(minor)


def refuse_unsafe(info: Mapping[str, str], shown: str, durability: Durability) -> None:
    """Raise `UnsafeRedisError` for a server that would lose messages, or can't do what was promised."""
    number = info["redis_version"]
    if version_of(info) < OLDEST_VERSION:
        raise UnsafeRedisError(f"Redis at {shown} is {number}; RMQ needs 6.2 or newer")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys"):
        raise UnsafeRedisError(
            f"Redis at {shown} has maxmemory-policy {policy}, which drops whole slots "
            "when memory is short; set it to noeviction"
        )
    if durability.level is not DurabilityLevel.FSYNC:
        return
    if version_of(info) < WAITAOF_VERSION:
        raise UnsafeRedisError(
            f"durability fsync needs WAITAOF, which came with Redis 7.2; the one at {shown} is {number}. "
            "Use a newer one, or durability replicated, or memory with appendfsync always"
        )
    if info.get("aof_enabled") != "1":
        raise UnsafeRedisError(f"durability fsync needs an AOF; Redis at {shown} has none: set appendonly yes")


def warnings_about(info: Mapping[str, str], save_points: str | None, durability: Durability) -> list[str]:
    """Return what is dangerous about a server, in words.

    Args:
        info: Its INFO.
        save_points: Its setting `save`; `None` if unknown.
        durability: What it must be able to do.
    """
    found: list[str] = []
    if info.get("role") != "master":
        return found
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("volatile"):
        found.append(
            f"has maxmemory-policy {policy}: when memory is short it drops what Spark's queries and idempotent writes "
            "remember of their batches, and the history; set it to noeviction"
        )
    replicas = int(info.get("connected_slaves", "0"))
    if replicas and info.get("aof_enabled") == "0" and save_points == "":
        found.append(
            "has replicas but no persistence: if it restarts by itself, it comes back empty and empties them, too; "
            "set appendonly yes, or keep it from restarting"
        )
    if durability.replicas > replicas:
        found.append(f"has {replicas} replicas; durability {durability.level.value} waits for {durability.replicas}")
    return found


def _info(wire: Wire) -> dict[str, str]:
    text = cast("bytes", wire.call("INFO")).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _save_points(wire: Wire, info: Mapping[str, str]) -> str | None:
    if info.get("connected_slaves", "0") == "0":
        return None
    try:
        pairs: list[bytes] = wire.call("CONFIG", "GET", "save")
    except ReplyError:  # not for this user, or not with this provider
        return None
    return pairs[1].decode() if len(pairs) == 2 else None
