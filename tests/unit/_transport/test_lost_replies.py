"""After a lost reply: what is sent again, and what the sender may believe then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq import SendResult, Topic, TopicType
from rmq._broker import sends as sending
from rmq._model.batches import Batch, EncodedMessage
from rmq._model.replies import PartlySent
from rmq._servers.urls import Address
from rmq._transport.call import Call
from rmq._transport.exchange import Exchange
from rmq._transport.script_library import default_scripts
from rmq.errors import FixedTimePassedError, RedisUnavailableError, ReplyLostError
from tests.lua.cases import script_of
from tests.lua.every_case import QUEUES, STREAMS
from tests.unit.test_contract import NEVER_REPEATED

FIXED = Topic("t", TopicType.FIXED_TIME)
SEND = sending.send_calls(FIXED)(0, [EncodedMessage(0, b"a", 5_000, None)])

CALLS = {name: example.make(example.topic(), example.unseeded) for name, example in (QUEUES | STREAMS).items()}
"""An example call of each script."""
REPEATED = [name for name in CALLS if script_of(name) not in NEVER_REPEATED]


def lose_reply(*sent: Call[Any]) -> Exchange:
    exchange = Exchange(sent, default_scripts())
    exchange.lost(fly(exchange), "cut")
    return exchange


def fly(exchange: Exchange) -> Any:
    return exchange.request_batch([index for index, _, _ in exchange.take_open()], Address("h", 1))


@pytest.mark.parametrize("name", sorted(CALLS.keys() - REPEATED))
def test_what_takes_or_settles_is_never_sent_again(name: str) -> None:
    # pitfall 1
    exchange = lose_reply(CALLS[name])
    assert exchange.done
    (error,) = exchange.results
    assert isinstance(error, ReplyLostError)
    assert (error.topic, error.slot) == ("t", 0)
    assert "cut" in str(error)


@pytest.mark.parametrize("name", REPEATED)
def test_sends_and_reads_are_sent_again(name: str) -> None:
    # pitfall 1
    exchange = lose_reply(CALLS[name])
    assert not exchange.done


def test_a_repeated_send_counts_by_its_second_reply() -> None:
    exchange = lose_reply(SEND)
    exchange.take_reply(fly(exchange), [5, [0, b""]])
    assert exchange.results == [SendResult(0, 1)]


def test_a_repeated_send_that_is_refused_may_be_stored_all_the_same() -> None:
    exchange = lose_reply(SEND)
    exchange.take_error(fly(exchange), "RMQ_PAST 6000 5000")
    (error,) = exchange.results
    assert isinstance(error, ReplyLostError)
    assert "its repeat was refused: fixed_time 5000 is in the past" in str(error)


def test_messages_that_a_repeat_refuses_by_themselves_may_be_stored_all_the_same() -> None:
    two = [EncodedMessage(0, content, 5_000, None) for content in (b"a", b"b")]
    calls = sending.send_calls(FIXED)
    assert isinstance(calls, sending.QueueSends)
    call = calls(0, two, partly="each")
    refused = PartlySent(1, 0, done=2, refused={1: "RMQ_PAST"})
    first, exchange = Exchange([call], default_scripts()), lose_reply(call)
    for each in (first, exchange):
        each.take_reply(fly(each), [5, [1, b"14"]])
    assert (first.results, exchange.results) == ([refused], [replace(refused, repeated=True)])


def test_a_slot_that_a_server_without_its_aof_was_sent_to_may_be_stored_all_the_same() -> None:
    calls = sending.send_calls(FIXED)
    assert isinstance(calls, sending.QueueSends)
    parts = [Batch.of([EncodedMessage(slot, b"a", 5_000, None)]) for slot in (0, 1)]
    trouble = b"ERR Error running script: -MISCONF Errors writing to the AOF file"
    lost, stored = calls.joined(parts).parse([5, trouble, [1, b""]])
    assert isinstance(lost, ReplyLostError)
    assert (lost.slot, stored) == (0, SendResult(1, 0))


def test_a_first_send_that_is_refused_is_not_stored() -> None:
    exchange = Exchange([SEND], default_scripts())
    exchange.take_error(fly(exchange), "RMQ_PAST 6000 5000")
    assert isinstance(exchange.results[0], FixedTimePassedError)


def test_at_the_deadline_what_was_never_sent_is_told_from_what_may_be_stored() -> None:
    exchange = lose_reply(SEND)
    exchange.not_sent([index for index, _, _ in exchange.take_open()], "refused")
    exchange.give_up(15)
    assert isinstance(exchange.results[0], ReplyLostError)
    exchange = Exchange([SEND], default_scripts())
    exchange.not_sent([index for index, _, _ in exchange.take_open()], "refused")
    exchange.give_up(15)
    assert type(exchange.results[0]) is RedisUnavailableError
