"""Which confirmation each durability level asks for, and which servers are refused or warned of."""

from __future__ import annotations

import pytest

from rmq._io.wire import ReplyError
from rmq._servers.durability import Durability, DurabilityLevel, parse_durability
from rmq._servers.server_check import refuse_unsafe, refuse_weak, warnings_about
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
        ("replicated", 0, "needs at least 1"),
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
    assert (replicated.missing(2), replicated.missing(3)) == ("", "")
    assert replicated.missing(1) == "1 of 2 replicas confirmed"
    assert fsync.missing([1, 1]) == ""
    assert fsync.missing([0, 1]).startswith("the master did not sync its AOF to disk: ")
    assert fsync.missing([1, 0]) == "0 of 1 replicas confirmed"


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_servers_that_drop_slots_are_refused(policy: str) -> None:
    refuse_unsafe(MASTER, "here")
    with pytest.raises(
        UnsafeRedisError, match=f"Redis at here has maxmemory-policy {policy}, which evicts the messages of whole slots"
    ):
        refuse_unsafe({**MASTER, "maxmemory_policy": policy}, "here")


@pytest.mark.parametrize(
    ("level", "probe"), [("memory", None), ("replicated", ("WAIT", 0, 1)), ("fsync", ("WAITAOF", 1, 0, 1))]
)
def test_a_probe_is_what_the_confirmation_needs(level: str, probe: tuple[object, ...] | None) -> None:
    durability = parse_durability(level)
    assert durability.probe() == probe
    assert durability.command == ("" if probe is None else probe[0])


@pytest.mark.parametrize(
    ("level", "refusal", "match"),
    [
        (
            "fsync",
            "ERR unknown command 'WAITAOF', with args",
            r"WAITAOF, which Redis at here does not have; use .* 7\.2",
        ),
        (
            "fsync",
            "ERR unknown command `WAITAOF`, with args",
            r"WAITAOF, which Redis at here does not have; use .* 7\.2",
        ),
        ("replicated", "ERR unknown command 'WAIT'", "WAIT, which Redis at here does not have; use durability memory"),
        ("fsync", "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.", "set appendonly yes"),
        ("fsync", "NOPERM User a has no permissions", r"this user of Redis at here may not call; grant \+waitaof"),
    ],
)
def test_servers_that_cannot_keep_the_promise_are_refused(level: str, refusal: str, match: str) -> None:
    with pytest.raises(UnsafeRedisError, match=match):
        refuse_weak(refusal, "here", parse_durability(level))


def test_a_refusal_for_now_is_waited_for_and_that_of_a_replica_is_none() -> None:
    with pytest.raises(ReplyError, match="LOADING"):
        refuse_weak("LOADING Redis is loading the dataset in memory", "here", parse_durability("fsync"))
    refuse_weak("ERR WAITAOF cannot be used with replica instances.", "here", parse_durability("fsync"))


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
    assert warning == "has 1 of the 2 replicas for durability replicated"
    [warning] = warnings_about({**MASTER, "maxmemory_policy": "volatile-lru"}, "", MEMORY)
    assert "volatile-lru: when memory is short it evicts" in warning
