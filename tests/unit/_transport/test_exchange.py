"""What is sent where, and what each reply means, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from rmq import Topic, TopicType
from rmq._servers.cluster_map import Redirect
from rmq._transport.exchange import FREE_REDIRECTS, DurabilityBarrier, Exchange, RequestBatch
from rmq.errors import (
    BacklogFullError,
    DurabilityError,
    FencedError,
    RedisUnavailableError,
    ReplyLostError,
    ScriptFailedError,
)
from tests.support.core import Address, Call, ClaimPart, claims, default_scripts, not_executed, parse_durability

HERE, THERE = Address("h", 1), Address("h", 2)


def call(script: str = "stats", *, repeatable: bool = True, durable: bool = False) -> Call[Any]:
    return Call(
        script, ("key",), (), lambda reply: reply, repeatable, "t", 0, "Repeating it is safe" if durable else ""
    )


def exchange(*calls: Call[Any], durability: str = "memory") -> Exchange:
    level = parse_durability(durability)
    command = level.confirmation(100)
    return Exchange(calls, default_scripts(), DurabilityBarrier(command, level.missing) if command else None)


def fly(state: Exchange) -> tuple[RequestBatch, list[Address | None]]:
    taken = list(state.take_open())
    return state.request_batch([index for index, _, _ in taken], HERE), [asked for _, _, asked in taken]


@pytest.mark.parametrize(
    "message",
    [
        "READONLY You can't write against a read only replica.",
        "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -READONLY You can't write",
        "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -MISCONF Redis is configured to save "
        "RDB snapshots, but it is currently not able to persist on disk.",
        "@user_script: 48: -MISCONF Errors writing to the AOF file: Input/output error",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "TRYAGAIN Multiple keys",
        "CLUSTERDOWN Hash slot not served",
        "MASTERDOWN Link with MASTER is down",
        "NOREPLICAS Not enough good replicas to write.",
    ],
)
def test_what_was_not_executed_is_repeated_even_if_it_must_not_be_twice(message: str) -> None:
    assert not_executed(message)
    state = exchange(call(repeatable=False))
    batch, _ = fly(state)
    state.take_error(batch, message)
    assert (state.done, state.pause_needed) == (False, True)
    batch, _ = fly(state)
    state.take_reply(batch, 7)
    assert (state.done, state.results) == (True, [7])


BROKEN_OFF = (
    "Error running script (call to f_1): @user_script:9: @user_script: 9: -MISCONF Errors writing to the AOF file: "
    "Input/output error"
)
"""What 6.2.14 answered when fdatasync failed in its other thread: the script's first write was made, its second not."""


def test_a_script_that_a_sick_disk_broke_off_counts_as_carried_out_or_not() -> None:
    """Redis 6.2 looks before each write of a script; a claim is not repeated, a send is."""
    state = exchange(call(repeatable=False), call())
    batch, _ = fly(state)
    state.take_error(batch, BROKEN_OFF)
    state.take_error(batch, BROKEN_OFF)
    assert isinstance(state.results[0], ReplyLostError)
    assert (state.done, state.pause_needed, [index for index, _, _ in state.take_open()]) == (False, True, [1])


def test_a_claim_of_many_slots_tells_of_the_slot_where_it_broke_off() -> None:
    topic = Topic("t", TopicType.PRIORITY, slots=2)
    many = claims.queue_claims(topic)([ClaimPart(slot, 10) for slot in range(2)])
    answers = many.parse([BROKEN_OFF.partition("9: ")[2].encode(), b"RMQ_FENCED 7 0"])
    assert [type(answer) for answer in answers] == [ReplyLostError, FencedError]


def test_a_text_that_quotes_a_code_is_an_error_of_its_own() -> None:
    assert not not_executed("ERR RMQ_PAST READONLY")


def test_ask_goes_once_to_the_other_node_after_asking() -> None:
    state = exchange(call(), call())
    batch, asked = fly(state)
    assert asked == [None, None]
    state.take_error(batch, "ASK 5 h:2")
    state.take_reply(batch, "b")
    assert (state.pause_needed, state.take_moved(), state.partly_done) == (False, [], True)
    batch, asked = fly(state)
    assert asked == [THERE]
    assert batch.request.count(b"ASKING") == 1
    state.take_reply(batch, b"OK")
    state.take_error(batch, "TRYAGAIN Multiple keys")
    batch, asked = fly(state)
    assert (asked, b"ASKING" in batch.request) == ([None], False)
    state.take_reply(batch, "a")
    assert state.results == ["a", "b"]


def test_what_waits_for_a_hash_slot_that_moves_says_so_in_the_end() -> None:
    state = exchange(call(), call())
    batch, _ = fly(state)
    state.take_error(batch, "TRYAGAIN Multiple keys")
    state.take_error(batch, "TRYAGAIN Multiple keys")
    batch, _ = fly(state)
    state.take_error(batch, "TRYAGAIN Multiple keys")
    state.take_error(batch, "LOADING")  # it moves no more
    state.give_up(0.5)
    assert ["redis-cli --cluster fix h:1" in str(result) for result in state.results] == [True, False]


def test_a_script_that_is_missing_where_asked_to_is_loaded_there() -> None:
    state = exchange(call())
    batch, _ = fly(state)
    state.take_error(batch, "ASK 5 h:2")
    [index] = [index for index, _, asked in state.take_open() if asked == THERE]
    batch = state.request_batch([index], THERE)
    state.take_reply(batch, b"OK")
    state.take_error(batch, "NOSCRIPT No matching script.")
    [(index, _, asked)] = state.take_open()
    assert asked == THERE
    batch = state.request_batch([index], THERE)
    assert [batch.request.count(part) for part in (b"LOAD", b"ASKING", b"EVALSHA")] == [1, 1, 1]
    for reply in (b"sha", b"OK", 7):
        state.take_reply(batch, reply)
    assert (state.done, state.results) == (True, [7])


def test_moved_is_learnt_and_after_some_hops_waited_for() -> None:
    state = exchange(call())
    for hop in range(FREE_REDIRECTS + 1):
        batch, _ = fly(state)
        state.take_error(batch, "MOVED 5 h:2")
        assert state.take_moved() == [Redirect(5, THERE, once=False)]
        assert state.pause_needed == (hop >= FREE_REDIRECTS)


def test_a_missing_script_is_loaded_with_the_next_request() -> None:
    state = exchange(call(), call(), call("look"))
    batch, _ = fly(state)
    for _ in range(3):
        state.take_error(batch, "NOSCRIPT No matching script.")
    assert not state.pause_needed
    batch, _ = fly(state)
    assert (batch.request.count(b"SCRIPT"), len(batch.expected)) == (2, 5)
    for reply in (b"sha", b"sha", 1, 2, 3):
        state.take_reply(batch, reply)
    assert state.results == [1, 2, 3]


def test_a_script_that_may_not_be_loaded_fails() -> None:
    state = exchange(call())
    batch, _ = fly(state)
    state.take_error(batch, "NOSCRIPT No matching script.")
    batch, _ = fly(state)
    state.take_error(batch, "NOPERM this user has no permissions to run the 'script|load' command")
    state.take_error(batch, "NOSCRIPT No matching script.")
    [error] = state.results
    assert isinstance(error, ScriptFailedError)
    assert "cannot be loaded: NOPERM" in str(error)


def test_a_lost_connection() -> None:
    state = exchange(call(), call(repeatable=False), call(repeatable=False))
    batch, _ = fly(state)
    state.take_reply(batch, "a")
    state.lost(batch, "cut")
    assert state.done
    assert state.results[0] == "a"
    assert all(isinstance(result, ReplyLostError) for result in state.results[1:])


def test_what_is_open_at_the_deadline_fails_and_the_order_is_kept() -> None:
    state = exchange(call(), call(), call())
    list(state.take_open())
    state.not_sent([2], "refused")
    state.not_sent([0], "refused")
    assert [index for index, _, _ in state.take_open()] == [0, 2]
    state.not_sent([0, 2], "refused")
    state.give_up(3.0)
    assert isinstance(state.results[0], RedisUnavailableError)
    assert "within 3 s (refused)" in str(state.results[2])


@pytest.mark.parametrize(("reply", "good"), [(1, True), (0, False)])
def test_one_confirmation_for_all_sends_of_a_request(reply: int, good: bool) -> None:
    state = exchange(call(durable=True), call(), call(durable=True), durability="replicated")
    batch, _ = fly(state)
    assert (batch.request.count(b"WAIT"), len(batch.expected)) == (1, 4)
    for answer in ("a", "b", "c"):
        state.take_reply(batch, answer)
    assert not state.done
    state.take_reply(batch, reply)
    assert state.done
    if good:
        assert state.results == ["a", "b", "c"]
    else:
        assert state.results[1] == "b"
        assert isinstance(state.results[0], DurabilityError)
        assert "not confirmed: 0 of 1 replicas" in str(state.results[2])


def test_reads_wait_for_no_confirmation() -> None:
    state = exchange(call(), durability="replicated")
    batch, _ = fly(state)
    assert (b"WAIT" in batch.request, len(batch.expected)) == (False, 1)


def test_a_confirmation_that_gets_lost_or_refused() -> None:
    state = exchange(call(durable=True), durability="replicated")
    batch, _ = fly(state)
    state.take_reply(batch, "a")
    state.lost(batch, "cut")
    assert not state.done  # sent again: it merges
    batch, _ = fly(state)
    state.take_reply(batch, "b")
    state.take_error(batch, "ERR WAIT cannot be used with replica instances.")
    [error] = state.results
    assert isinstance(error, DurabilityError)


def joined(*results: Any) -> Call[Any]:
    """Return a send to several slots that brings these results."""
    return call(durable=True)._replace(parse=lambda reply: list(results))


def test_a_refusal_of_one_slot_after_a_lost_reply_may_have_been_stored_the_first_time() -> None:
    full = BacklogFullError("full", topic="t", slot=1)
    state = exchange(joined(full, "stored"))
    batch, _ = fly(state)
    state.lost(batch, "cut")
    batch, _ = fly(state)
    state.take_reply(batch, [])
    [[refused, stored]] = state.results
    assert stored == "stored"
    assert isinstance(refused, ReplyLostError)
    assert "its repeat was refused: full" in str(refused)


@pytest.mark.parametrize("reply", [0, 1])
def test_of_several_slots_only_those_that_stored_something_lack_a_confirmation(reply: int) -> None:
    full = BacklogFullError("full", topic="t", slot=1)
    state = exchange(joined("a", full, "b"), durability="replicated")
    batch, _ = fly(state)
    state.take_reply(batch, [])
    state.take_reply(batch, reply)
    [found] = state.results
    assert found[1] is full
    if reply:
        assert found == ["a", full, "b"]
    else:
        assert [type(each) for each in found] == [DurabilityError, BacklogFullError, DurabilityError]
