"""Tokens of a rate limit: never above the rate in any window, all of it used, only Redis' clock counts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tests.support.servers import RedisServer
from tests.support.slots import CLOCK_KEY, scripts_with_fake_clock

BUCKET = "rate:t-tokens"
T0 = 1_790_000_000_000


@pytest.fixture(scope="module")
def server(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    yield redis_client
    redis_client.delete(BUCKET)


def take(server: redis.Redis, now_ms: int, wanted: int, rate: float = 10, burst: int = 10) -> tuple[int, int, float]:
    server.set(CLOCK_KEY, now_ms)
    script = scripts_with_fake_clock()["take_tokens"]
    granted, wait_ms, known, _ = server.eval(script.text, 2, BUCKET, BUCKET, str(wanted), repr(rate), str(burst))  # pyright: ignore[reportGeneralTypeIssues]
    return int(granted), int(wait_ms), float(known)


def test_a_new_bucket_is_full_and_fills_up_again(server: redis.Redis) -> None:
    server.delete(BUCKET)
    assert take(server, T0, 4) == (4, 0, 10)
    assert take(server, T0, 100) == (6, 100, 10)
    assert take(server, T0 + 99, 1) == (0, 1, 10)
    assert take(server, T0 + 100, 1) == (1, 0, 10)
    assert take(server, T0 + 60_000, 100)[0] == 10  # not more than the burst


def test_what_is_given_back_can_be_taken_again_but_not_beyond_the_burst(server: redis.Redis) -> None:
    server.delete(BUCKET)
    assert take(server, T0, 10)[0] == 10
    assert take(server, T0, -3)[0] == 0
    assert take(server, T0, 10)[0] == 3
    take(server, T0, -1_000)
    assert take(server, T0, 1_000)[0] == 10


def test_what_the_bucket_says_goes_before_what_a_caller_believes(server: redis.Redis) -> None:
    server.delete(BUCKET)
    take(server, T0, 10)
    server.hset(BUCKET, mapping={"rate": "1000", "burst": "50"})
    assert take(server, T0 + 20, 100) == (20, 50, 1000)
    server.hset(BUCKET, mapping={"rate": "0", "burst": "0"})
    assert take(server, T0 + 20, 500) == (500, 0, 0)


def test_a_clock_that_jumps_back_gives_nothing_and_takes_nothing(server: redis.Redis) -> None:
    server.delete(BUCKET)
    take(server, T0, 10)
    assert take(server, T0 - 10_000, 1)[0] == 0
    assert take(server, T0 - 10_000 + 100, 1)[0] == 1


def test_a_bucket_that_was_not_there_is_told(server: redis.Redis) -> None:
    server.delete(BUCKET)
    server.set(CLOCK_KEY, T0)
    script = scripts_with_fake_clock()["take_tokens"]
    told = [server.eval(script.text, 2, BUCKET, BUCKET, "1", rate, "5")[3] for rate in ("0", "5")]  # pyright: ignore[reportIndexIssue]
    assert told == [b"1", b"0"]


def test_a_slow_rate_adds_up_however_often_it_is_asked_for(server: redis.Redis) -> None:
    server.delete(BUCKET)
    rate = 1 / 86_400
    take(server, T0, 1, rate, 1)
    for step in range(1, 301):
        take(server, T0 + step, 1, rate, 1)
    kept = server.hget(BUCKET, "tokens")
    assert kept is not None
    assert float(kept) == pytest.approx(0.3 * rate)  # pyright: ignore[reportArgumentType, reportUnknownMemberType]


def test_each_bucket_of_one_limit_has_the_whole_rate(server: redis.Redis) -> None:
    buckets = [f"{{{BUCKET}}}@{group}" for group in "ab"]
    server.delete(BUCKET, *buckets)
    server.set(CLOCK_KEY, T0)
    script = scripts_with_fake_clock()["take_tokens"]
    for _ in range(2):
        granted = [server.eval(script.text, 2, BUCKET, bucket, "8", "10", "10")[0] for bucket in buckets]  # pyright: ignore[reportIndexIssue]
        server.set(CLOCK_KEY, T0 + 600)
        assert granted == [b"8", b"8"]
    granted = [server.eval(script.text, 2, BUCKET, bucket, "8", "10", "10")[0] for bucket in buckets]  # pyright: ignore[reportIndexIssue]
    assert granted == [b"0", b"0"], "each has used up its own"
    server.hset(BUCKET, mapping={"rate": "1", "burst": "1"})
    server.set(CLOCK_KEY, T0 + 60_000)
    granted = [server.eval(script.text, 2, BUCKET, bucket, "8", "10", "10")[0] for bucket in buckets]  # pyright: ignore[reportIndexIssue]
    assert granted == [b"1", b"1"]
    assert server.hgetall(BUCKET) == {b"rate": b"1", b"burst": b"1"}
    server.delete(BUCKET, *buckets)


CALLS = st.lists(st.tuples(st.integers(0, 700), st.integers(1, 60)), min_size=1, max_size=60)


@given(st.sampled_from([0.5, 3, 10, 333.3, 20_000]), st.integers(1, 40), CALLS)
def test_no_window_has_more_than_its_share(
    redis_server: object, redis_url: str, rate: float, burst: int, calls: list[tuple[int, int]]
) -> None:
    del redis_server
    with redis.Redis.from_url(redis_url) as server:
        server.delete(BUCKET)
        now_ms, granted, hungry = T0, list[tuple[int, int]](), True
        for pause_ms, wanted in calls:
            now_ms += pause_ms
            got, wait_ms, _ = take(server, now_ms, wanted, rate, burst)
            granted.append((now_ms, got))
            assert 0 <= got <= wanted
            assert (wait_ms == 0) == (got == wanted)
            hungry = hungry and got < wanted
        for first in range(len(granted)):
            total = 0
            for at_ms, number in granted[first:]:
                total += number
                assert total <= burst + rate * (at_ms - granted[first][0]) / 1000 + 1e-3
        if hungry and max(pause_ms for pause_ms, _ in calls[1:] or [(0, 0)]) * rate / 1000 + 1 < burst:
            # somebody always wanted more, and the bucket never ran over: nothing of the rate is lost
            total = sum(number for _, number in granted)
            assert total >= math.floor(burst + rate * (now_ms - granted[0][0]) / 1000 - 1e-3)


def test_the_bucket_of_a_group_expires_once_it_is_full(server: redis.Redis) -> None:
    """Groups come and go, and nobody deletes the bucket of one that a last consumer still asks after."""
    bucket = f"{{{BUCKET}}}@gone"
    server.delete(BUCKET, bucket)
    server.set(CLOCK_KEY, T0)
    script = scripts_with_fake_clock()["take_tokens"]
    for rate, left_ms in (("0.5", 16_000), ("1e-300", 10**14)):
        server.delete(BUCKET, bucket)
        assert server.eval(script.text, 2, BUCKET, bucket, "8", rate, "10")[0] == b"8"  # pyright: ignore[reportIndexIssue]
        assert 0 <= left_ms + 60_000 - server.pttl(bucket) < 60_000  # pyright: ignore[reportOperatorIssue]
    assert server.pttl(BUCKET) == -1, "the limit stays"
    server.delete(BUCKET, bucket)


def test_a_full_redis_still_hands_out_tokens() -> None:
    # pitfall 9
    with RedisServer() as small:
        server = small.connect()
        assert take(server, T0, 4)[0] == 4
        small.config_set("maxmemory", 1)
        script = scripts_with_fake_clock()["take_tokens"]
        assert server.eval(script.text, 2, BUCKET, BUCKET, "2", "10", "10")[0] == b"2"  # pyright: ignore[reportIndexIssue]


def test_a_key_of_another_type_changes_nothing(server: redis.Redis) -> None:
    # pitfall 8
    server.delete(BUCKET)
    server.set(BUCKET, "foreign")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        take(server, T0, 1)
    assert server.get(BUCKET) == b"foreign"
    server.delete(BUCKET)


@pytest.mark.parametrize("field", ["rate", "burst", "tokens", "at_ms"])
@pytest.mark.parametrize("value", ["", "x", "-1", "nan", "inf", "1e999", b"\xff"])
def test_a_value_that_is_no_number_is_put_right(server: redis.Redis, field: str, value: str | bytes) -> None:
    server.delete(BUCKET)
    assert take(server, T0, 10) == (10, 0, 10)
    server.hset(BUCKET, field, value)
    assert take(server, T0, 10)[0] == (0 if field in ("rate", "burst") else 10)
    assert take(server, T0 + 1_000, 10) == (10, 0, 10)


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-9])
def test_the_slowest_rates_are_asked_for_again(server: redis.Redis, rate: float) -> None:
    server.delete(BUCKET)
    assert take(server, T0, 2, rate, 1) == (1, 86_400_000, rate)
