"""Whether a server is fit for RMQ: forgetful and badly set up ones are refused or warned of, and what lacks a command.

A server is asked for what it can do, and not for its version: Valkey calls itself Redis 7.2.4, and others do likewise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from rmq._io.wire import ReplyError, Wire, pack
from rmq._model.reports import reporter
from rmq._transport.call import SHARDED_PUBLISH
from rmq._transport.durability import Durability, DurabilityLevel
from rmq._transport.exchange import not_executed
from rmq.errors import UnsafeRedisError

log = reporter("rmq.connections")

NEWEST_NEEDED = "ZMSCORE"
"""Of the commands that scripts need, one of the newest: it came with Redis 6.2."""

Commands = frozenset[str]
"""Names of commands that a server has, of those that it was asked for."""


def check_server(wire: Wire, shown: str, durability: Durability, warned: set[str]) -> Commands:
    """Look at a server, in one round trip, and return which commands it has.

    Args:
        wire: A connection to it.
        shown: Its name in messages.
        durability: What it must be able to do.
        warned: What the last look has warned of, and is not logged again; becomes what holds now.

    Raises:
        UnsafeRedisError: It would lose messages, or can't do what was promised.
        ReplyError: It refuses for another reason.
        WireBrokenError: No answer.
    """
    asked = (NEWEST_NEEDED, SHARDED_PUBLISH)
    probe = durability.probe()
    # A command without its arguments is refused before anybody looks at rights: as unknown, or for their number.
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
    """Raise `UnsafeRedisError` for a server that would lose messages."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys"):
        raise UnsafeRedisError(
            f"Redis at {shown} has maxmemory-policy {policy}, which drops whole slots "
            "when memory is short; set it to noeviction"
        )


def refuse_weak(refusal: str, shown: str, durability: Durability) -> None:
    """Raise `UnsafeRedisError` for a server that can't do what was promised.

    Args:
        refusal: How it refuses the probe of the durability.
        shown: Its name in messages.
        durability: What it must be able to do.
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
    # a replica refuses it, too; it is not sent there


_NOT_CHECKED = "does not let this user call INFO: its maxmemory-policy was not checked"

_INSTEAD_OF_FSYNC = (
    "use Redis 7.2 or newer, or Valkey, or durability replicated, or durability memory with appendfsync always"
)


def warnings_about(info: Mapping[str, str], save_points: str | None, durability: Durability) -> list[str]:
    """Return what is dangerous about a server, in words.

    Args:
        info: Its INFO.
        save_points: Its setting `save`; `None` if unknown.
        durability: What it must be able to do.
    """
    commands: list[str] = []
    if info.get("role") != "master":
        return commands
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("volatile"):
        commands.append(
            f"has maxmemory-policy {policy}: when memory is short it drops what Spark's queries and idempotent writes "
            "remember of their batches, and the history; set it to noeviction"
        )
    replicas = int(info.get("connected_slaves", "0"))
    if replicas and info.get("aof_enabled") == "0" and save_points == "":
        commands.append(
            "has replicas but no persistence: if it restarts by itself, it comes back empty and empties them, too; "
            "set appendonly yes, or keep it from restarting"
        )
    if durability.replicas > replicas:
        commands.append(f"has {replicas} replicas; durability {durability.level.value} waits for {durability.replicas}")
    return commands


def _info(wire: Wire) -> dict[str, str]:
    """Read the reply to INFO; nothing where this user has no right to it."""
    try:
        text = cast("bytes", wire.read()).decode()
    except ReplyError as error:
        if not str(error).startswith("NOPERM"):
            raise
        return {}
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _refusal(wire: Wire) -> str:
    """Read a reply; return its text where it is an error, else nothing."""
    try:
        wire.read()
    except ReplyError as error:
        return str(error)
    return ""


def _software(info: Mapping[str, str]) -> str:
    """Return name and version of the software, as messages add them to an address; nothing where INFO does not tell."""
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
