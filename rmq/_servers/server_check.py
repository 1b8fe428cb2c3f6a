"""Checks the commands and settings of a server: refuses it, or logs a warning, if it may lose messages.

A server is tested for commands instead of its version, since Valkey and others report a version of Redis.
`not_executed` tells which error replies mean that nothing was executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from rmq._io.reports import reporter
from rmq._io.wire import ReplyError, Wire, pack
from rmq._servers.durability import Durability, DurabilityLevel
from rmq.errors import UnsafeRedisError

log = reporter("rmq.connections")

PUBLISH, SHARDED_PUBLISH = "PUBLISH", "SPUBLISH"
"""Commands that send wakeups. A call names the first; it is replaced by the second with sharded pub/sub."""

NEWEST_NEEDED = "ZMSCORE"
"""One of the newest commands that the scripts need: it was added in Redis 6.2."""

Commands = frozenset[str]
"""Names of the tested commands that a server has."""

_NOT_EXECUTED = (
    "NOSCRIPT", "LOADING", "BUSY ", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "NOREPLICAS", "MISCONF",
    "MOVED ", "ASK ",
)  # fmt: skip
_IN_SCRIPT = (": -READONLY ", ": -NOREPLICAS ", ": -MISCONF Redis is configured to save RDB ")
"""The same errors as Redis 6.2 reports them from within a script. Each means that the first write was refused."""

AOF_TROUBLE = ": -MISCONF Errors writing to the AOF file"
"""Error that Redis 6.2 may raise between two writes of a script, which is then partly executed.

It checks the state of the AOF before each write, and a background thread may set it meanwhile. Redis 7.0 and later
check it only before the first write.
"""


def not_executed(message: str) -> bool:
    """Return whether an error reply means that nothing was executed, so that any call is safe to repeat."""
    if AOF_TROUBLE in message:  # returned by a script that tests one write first, not raised between two writes
        return message.startswith("@user_script")
    return message.startswith(_NOT_EXECUTED) or any(code in message for code in _IN_SCRIPT)


def check_server(wire: Wire, shown: str, durability: Durability, warned: set[str]) -> Commands:
    """Check a server, in one round trip, and return the tested commands that it has.

    Args:
        wire: A connection to the server.
        shown: Name of the server in messages.
        durability: The durability level that it must support.
        warned: Warnings of the last check, which are not logged again; replaced by the present ones.

    Raises:
        UnsafeRedisError: The server may lose messages, or does not support the durability level.
        ReplyError: The server refuses a command for another reason.
        WireBrokenError: The server does not answer.
    """
    asked = (NEWEST_NEEDED, SHARDED_PUBLISH)
    probe = durability.probe()
    # A command without arguments is refused before permissions are checked: as unknown, or for its arity.
    requests = (("INFO",), *((name,) for name in asked), *(() if probe is None else (probe,)))
    wire.send(b"".join(pack(*request) for request in requests))
    info = _info(wire)
    commands = frozenset(name for name in asked if "unknown command" not in _refusal(wire))
    refusal = "" if probe is None else _refusal(wire)
    software = _software(info)
    if NEWEST_NEEDED not in commands:
        raise UnsafeRedisError(
            f"Redis at {shown}{software} has no command {NEWEST_NEEDED}; RMQ needs Redis 6.2 or newer, or Valkey"
        )
    refuse_unsafe(info, shown)
    if refusal:
        refuse_weak(refusal, f"{shown}{software}", durability)
    warnings = warnings_about(info, _save_points(wire, info), durability) if info else [_NOT_CHECKED]
    for warning in warnings:
        if warning not in warned:
            log.warning("Redis at %s %s", shown, warning)
    warned.intersection_update(warnings)
    warned.update(warnings)
    return commands


def refuse_unsafe(info: Mapping[str, str], shown: str) -> None:
    """Raise `UnsafeRedisError` for a server that may lose messages."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys"):
        raise UnsafeRedisError(
            f"Redis at {shown} has maxmemory-policy {policy}, which evicts the messages of whole slots "
            "when memory is short; set it to noeviction"
        )


def refuse_weak(refusal: str, shown: str, durability: Durability) -> None:
    """Raise `UnsafeRedisError` for a server that does not support the durability level.

    Args:
        refusal: Its error reply to `Durability.probe`.
        shown: Name of the server in messages.
        durability: The durability level.
    """
    level, command = durability.level.value, durability.command
    if "unknown command" in refusal:
        advice = "use durability memory" if durability.level is DurabilityLevel.REPLICATED else _INSTEAD_OF_FSYNC
        raise UnsafeRedisError(
            f"durability {level} needs the command {command}, which Redis at {shown} does not have; {advice}"
        )
    if refusal.startswith("NOPERM"):
        raise UnsafeRedisError(
            f"durability {level} needs the command {command}, which this user of Redis at {shown} may not call; "
            f"grant +{command.lower()} ({refusal})"
        )
    if "appendonly is disabled" in refusal:
        raise UnsafeRedisError(f"durability fsync needs an AOF; Redis at {shown} has none: set appendonly yes")
    if not_executed(refusal):
        raise ReplyError(refusal)
    # a replica refuses the probe, too, but durable calls are not sent to replicas


_NOT_CHECKED = "does not allow this user to call INFO: its maxmemory-policy was not checked"

_INSTEAD_OF_FSYNC = (
    "use Redis 7.2 or newer, or Valkey, or durability replicated, or durability memory with appendfsync always"
)


def warnings_about(
    info: Mapping[str, str],
    save_points: str | None,
    durability: Durability = Durability(),  # noqa: B008 - frozen
) -> list[str]:
    """Return warnings about dangerous settings of a server.

    Args:
        info: The server's reply to INFO.
        save_points: The server's setting `save`; `None` if unknown.
        durability: The durability level.
    """
    commands: list[str] = []
    if info.get("role") != "master":
        return commands
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("volatile"):
        commands.append(
            f"has maxmemory-policy {policy}: when memory is short it evicts the history, and the batch records of "
            "Spark's queries and idempotent writes; set it to noeviction"
        )
    replicas = int(info.get("connected_slaves", "0"))
    if replicas and info.get("aof_enabled") == "0" and save_points == "":
        commands.append(
            "has replicas but no persistence: if it restarts automatically, it comes back empty and the replicas are "
            "emptied, too; set appendonly yes, or disable automatic restarts"
        )
    if durability.replicas > replicas:
        commands.append(f"has {replicas} of the {durability.replicas} replicas for durability {durability.level.value}")
    return commands


def _info(wire: Wire) -> dict[str, str]:
    """Read the reply to INFO; empty if this user has no permission for it."""
    try:
        text = cast("bytes", wire.read()).decode()
    except ReplyError as error:
        if not str(error).startswith("NOPERM"):
            raise
        return {}
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _refusal(wire: Wire) -> str:
    """Read a reply; return its text if it is an error, else ""."""
    try:
        wire.read()
    except ReplyError as error:
        return str(error)
    return ""


def _software(info: Mapping[str, str]) -> str:
    """Return name and version of the server's software in parentheses, for messages; "" if INFO lacks them."""
    if number := info.get("valkey_version"):
        return f" (Valkey {number})"
    return f" ({info['redis_version']})" if "redis_version" in info else ""


def _save_points(wire: Wire, info: Mapping[str, str]) -> str | None:
    if info.get("connected_slaves", "0") == "0":
        return None
    try:
        pairs: list[bytes] = wire.call("CONFIG", "GET", "save")
    except ReplyError:  # not for this user, or not with this provider
        return None
    return pairs[1].decode() if len(pairs) == 2 else None
