"""One writer a minute, a ring of bounded length, no keys but the declared ones."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
import redis

from rmq._admin.history import KEEP_S, MINUTES
from tests.support.core import Script
from tests.support.slots import CLOCK_KEY, scripts_with_fake_clock

LOCK, RING = "t-history-lock", "t-history-ring"
MINUTE = 29_000_000


@pytest.fixture
def server(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    redis_client.delete(LOCK, RING)
    yield redis_client
    redis_client.delete(LOCK, RING)


def run(server: redis.Redis, name: str, key: str, *args: object) -> Any:
    script: Script = scripts_with_fake_clock()[name]
    return server.eval(script.text, 1, key, *map(str, args))


def take(server: redis.Redis, now_ms: int) -> list[int]:
    server.set(CLOCK_KEY, now_ms)
    holder = token_hex(4)
    last, till_ms, time_ms = run(server, "take_lock", LOCK, "minute", holder, 60_000, "period")
    return [int(time_ms), int(till_ms) // 60_000 - 1 if last.decode() == holder else 0]


def test_one_turn_a_minute(server: redis.Redis) -> None:
    now_ms = MINUTE * 60_000
    assert take(server, now_ms + 1) == [now_ms + 1, MINUTE]
    assert [take(server, now_ms + later)[1] for later in (2, 59_999)] == [0, 0]
    assert take(server, now_ms + 60_000)[1] == MINUTE + 1
    assert take(server, now_ms)[1] == 0  # a clock that jumps back records nothing twice
    assert 0 < server.ttl(LOCK) <= 120  # pyright: ignore[reportOperatorIssue]


def test_a_turn_far_ahead_is_from_a_clock_that_was_wrong(server: redis.Redis) -> None:
    now_ms = MINUTE * 60_000
    assert take(server, now_ms + 3_600_000)[1] == MINUTE + 60
    assert [take(server, now_ms)[1], take(server, now_ms + 1)[1]] == [MINUTE, 0]
    assert take(server, now_ms + 60_000)[1] == MINUTE + 1


def test_records_of_minutes_that_lie_ahead_make_room(server: redis.Redis) -> None:
    for minute in (MINUTE, MINUTE + 60, MINUTE + 61):
        assert write(server, minute)
    assert write(server, MINUTE + 1, now=MINUTE + 1)
    assert server.lrange(RING, 0, -1) == [b"%d 1 2" % MINUTE, b"%d 1 2" % (MINUTE + 1)]
    assert not write(server, MINUTE, now=MINUTE), "the clock of another server may be a minute ahead"


def write(server: redis.Redis, minute: int, most: int = 3, now: int | None = None) -> bool:
    server.set(CLOCK_KEY, 60_000 * (minute if now is None else now))
    return run(server, "history_write", RING, f"{minute} 1 2", minute, most, KEEP_S) == [b"1"]


def test_a_minute_is_written_once_and_old_ones_go(server: redis.Redis) -> None:
    assert [write(server, minute) for minute in (5, 5, 4, 6, 7, 8, 8)] == [True, False, False, True, True, True, False]
    assert server.lrange(RING, 0, -1) == [b"6 1 2", b"7 1 2", b"8 1 2"]
    assert 0 < server.ttl(RING) <= KEEP_S  # pyright: ignore[reportOperatorIssue]


def test_a_record_that_is_none_does_not_stop_the_next(server: redis.Redis) -> None:
    server.rpush(RING, b"what is this")
    assert write(server, 5)


def test_a_full_ring_stays_within_its_bound(server: redis.Redis) -> None:
    for minute in range(MINUTES + 50):
        assert write(server, minute + 1, MINUTES)
    assert server.llen(RING) == MINUTES
    assert (server.memory_usage(RING) or 0) < 100_000  # pyright: ignore[reportOperatorIssue]


@pytest.mark.parametrize(
    ("script", "key", "args"),
    [("take_lock", LOCK, ["minute", "a", "10", "period"]), ("history_write", RING, ["5 1", "5", "3", "10"])],
)
def test_only_the_declared_key_is_touched(server: redis.Redis, script: str, key: str, args: list[str]) -> None:
    # pitfall 18
    text = scripts_with_fake_clock()[script].text
    server.set(CLOCK_KEY, 60_000)
    options: dict[str, Any] = dict(server.connection_pool.connection_kwargs)
    server.execute_command(
        "ACL", "SETUSER", "narrow-history", "reset", "on", "nopass", f"~{key}", f"~{CLOCK_KEY}", "+@all"
    )
    with redis.Redis(
        connection_pool=redis.ConnectionPool(
            connection_class=server.connection_pool.connection_class,
            **{**options, "username": "narrow-history", "password": "x"},
        )
    ) as narrow:
        narrow.eval(text, 1, key, *args)
    server.execute_command("ACL", "DELUSER", "narrow-history")
