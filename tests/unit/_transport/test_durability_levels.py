"""Which confirmation each durability level asks for, and which servers are refused or warned of."""

from __future__ import annotations

import pytest

from rmq._transport.durability import Durability, DurabilityLevel, parse_durability
from rmq._transport.server_check import refuse_unsafe, warnings_about
from rmq.errors import InvalidValueError, UnsafeRedisError

MEMORY = parse_durability("memory")
MASTER = {"redis_version": "7.2.5", "role": "master", "connected_slaves": "1", "aof_enabled": "1"}


@pytest.mark.parametrize(
    ("level", "replicas", "command"),
    [
        ("memory", None, None),
        ("replicated", None, ("WAIT", 1, 700)),
        ("replicated", 2, ("WAIT", 2, 700)),
        ("fsync", None, ("WAITAOF", 1, 0, 700)),
        ("fsync", 1, ("WAITAOF", 1, 1, 700)),
    ],
)
def test_confirmations(level: str, replicas: int | None, command: tuple[object, ...] | None) -> None:
    assert parse_durability(level, replicas).confirmation(700) == command


@pytest.mark.parametrize(
    ("level", "replicas", "match"),
    [
        ("safe", None, "must be memory, replicated or fsync"),
        ("replicated", 0, "at least 1 replica"),
        ("memory", 1, "waits for no replica"),
        ("fsync", -1, "whole number"),
        ("fsync", True, "whole number"),
    ],
)
def test_what_does_not_go_together(level: str, replicas: int | None, match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        parse_durability(level, replicas)


def test_shortfalls() -> None:
    replicated, fsync = parse_durability("replicated", 2), parse_durability("fsync", 1)
    assert (replicated.shortfall(2), replicated.shortfall(3)) == ("", "")
    assert replicated.shortfall(1) == "1 of 2 replicas confirmed"
    assert fsync.shortfall([1, 1]) == ""
    assert fsync.shortfall([0, 1]) == "the master's AOF is not on disk"
    assert fsync.shortfall([1, 0]) == "0 of 1 replicas confirmed"


@pytest.mark.parametrize(
    ("changes", "durability", "match"),
    [
        ({"redis_version": "6.0.16"}, MEMORY, "needs 6.2"),
        ({"maxmemory_policy": "allkeys-lru"}, MEMORY, "drops whole slots"),
        ({"redis_version": "7.0.15"}, parse_durability("fsync"), r"came with Redis 7\.2; the one at here is 7\.0\.15"),
        ({"aof_enabled": "0"}, parse_durability("fsync"), "appendonly yes"),
    ],
)
def test_unsafe_servers(changes: dict[str, str], durability: Durability, match: str) -> None:
    refuse_unsafe(MASTER, "here", durability)
    with pytest.raises(UnsafeRedisError, match=match):
        refuse_unsafe({**MASTER, **changes}, "here", durability)


def test_warnings() -> None:
    """Pitfall 21."""
    forgetful = {**MASTER, "aof_enabled": "0"}
    assert warnings_about(MASTER, "", MEMORY) == []
    assert warnings_about(forgetful, "3600 1", MEMORY) == []
    assert warnings_about(forgetful, None, MEMORY) == []  # unknown: say nothing
    [warning] = warnings_about(forgetful, "", MEMORY)
    assert "comes back empty" in warning
    assert warnings_about({**forgetful, "role": "slave"}, "", MEMORY) == []
    [warning] = warnings_about(MASTER, None, Durability(DurabilityLevel.REPLICATED, 2))
    assert warning == "has 1 replicas; durability replicated waits for 2"
    [warning] = warnings_about({**MASTER, "maxmemory_policy": "volatile-lru"}, "", MEMORY)
    assert "volatile-lru: when memory is short it drops" in warning
