"""After a lost reply: what is sent again, and what the sender may believe then."""

from __future__ import annotations

from typing import Any

import pytest

from rmq import calls
from rmq.calls import Call, Nack
from rmq.errors import FixedTimePassedError, RedisUnavailableError, ReplyLostError
from rmq.exchange import Exchange
from rmq.messages import Encoded
from rmq.results import SendResult
from rmq.scripts import default_scripts
from rmq.topics import Topic, TopicType
from rmq.urls import Address

FIXED = Topic("t", TopicType.FIXED_TIME)
SEND = calls.send(FIXED, 0, [Encoded(0, b"a", 5_000, None)], "PUBLISH")

REPEATED = {
    "send": SEND,
    "cancel": calls.cancel(FIXED, 0, [b"a"]),
    "reschedule": calls.reschedule(FIXED, 0, [b"a"], "at", 5, "PUBLISH"),
    "redrive named": calls.redrive(FIXED, 0, "at", 5, overwrite=True, limit=1, publish="PUBLISH", contents=[b"a"]),
    "purge named": calls.purge_dead(FIXED, 0, contents=[b"a"]),
    "list_dead": calls.list_dead(FIXED, 0, 0, 1),
    "peek": calls.peek(FIXED, 0, "store", 0, 1),
    "stats": calls.stats(FIXED, 0),
    "look": calls.look(FIXED, [0]),
}
NEVER_REPEATED = {
    "claim": calls.claim(FIXED, 0, 1),
    "ack": calls.ack(FIXED, 0, [(b"a", 1)]),
    "nack": calls.nack(FIXED, 0, [Nack(b"a", 1)], "PUBLISH"),
    "extend": calls.extend(FIXED, 0, [(b"a", 1)]),
    "redrive the longest dead": calls.redrive(FIXED, 0, "at", 5, overwrite=True, limit=1, publish="PUBLISH"),
    "purge the longest dead": calls.purge_dead(FIXED, 0, limit=1),
}


def lose_reply(*sent: Call[Any]) -> Exchange:
    exchange = Exchange(sent, default_scripts())
    fly(exchange).lost("cut")
    return exchange


def fly(exchange: Exchange) -> Any:
    return exchange.flight([index for index, _, _ in exchange.take_open()], Address("h", 1))


@pytest.mark.parametrize("name", NEVER_REPEATED)
def test_what_takes_or_settles_is_never_sent_again(name: str) -> None:
    # pitfall 1
    exchange = lose_reply(NEVER_REPEATED[name])
    assert exchange.done
    (error,) = exchange.results
    assert isinstance(error, ReplyLostError)
    assert (error.topic, error.slot) == ("t", 0)
    assert "cut" in str(error)


@pytest.mark.parametrize("name", REPEATED)
def test_sends_and_reads_are_sent_again(name: str) -> None:
    # pitfall 1
    exchange = lose_reply(REPEATED[name])
    assert not exchange.done


def test_a_repeated_send_counts_by_its_second_reply() -> None:
    exchange = lose_reply(SEND)
    fly(exchange).take_reply([b"0", b""])
    assert exchange.results == [SendResult(0, 1)]


def test_a_repeated_send_that_is_refused_may_be_stored_all_the_same() -> None:
    exchange = lose_reply(SEND)
    fly(exchange).take_error("RMQ_PAST 6000")
    (error,) = exchange.results
    assert isinstance(error, ReplyLostError)
    assert "sent again, it was refused: fixed_time 5000 does not lie ahead" in str(error)


def test_a_first_send_that_is_refused_is_not_stored() -> None:
    exchange = Exchange([SEND], default_scripts())
    fly(exchange).take_error("RMQ_PAST 6000")
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
