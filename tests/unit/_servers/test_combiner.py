"""Who sends calls that may share a round trip: the first caller alone, then one of those that wait."""

from __future__ import annotations

from typing import Any

from rmq import PriorityMessage, Topic, TopicType
from tests.support.core import THREADS, Call, Combiner, Encoder, QueueSends, WaitingCall, groups_of, plain

CALL = plain("GET", "key")


class OneAtOnce(type(THREADS)):
    """Threads of which one calls alone."""

    calls_at_once = 1


def queued(combiner: Combiner, call: Call[Any] = CALL) -> WaitingCall:
    waiting = combiner.enter(call)
    assert waiting is not None
    return waiting


def test_of_those_that_wait_the_first_one_combines_and_takes_all():
    combiner = Combiner(OneAtOnce())
    assert combiner.enter(CALL) is None
    first, second = queued(combiner), queued(combiner)
    combiner.leave()
    assert (first.combines, second.combines) == (True, False)
    first.wait()
    assert combiner.take(first) == [first, second]
    later = queued(combiner)
    combiner.leave(served=[first, second])
    assert later.combines
    later.wait()
    combiner.take(later)
    combiner.leave(served=[later])
    assert combiner.enter(CALL) is None


def test_who_is_interrupted_hands_over():
    combiner = Combiner(OneAtOnce())
    assert combiner.enter(CALL) is None
    first, second, third = (queued(combiner) for _ in range(3))
    combiner.give_up(second)
    combiner.leave()
    combiner.give_up(first)
    assert third.combines
    assert combiner.take(third) == [third]


def test_to_a_server_far_away_several_requests_are_under_way():
    combiner = Combiner(OneAtOnce())
    assert combiner.enter(CALL) is None
    waiting = [queued(combiner) for _ in range(60)]
    combiner.leave(0.003)
    assert [each.combines for each in waiting[:2]] == [True, False], "one long round trip may be that of a connection"
    for _ in range(59):
        combiner.leave(0.003)
    assert all(each.combines for each in waiting)
    combiner.leave()
    assert [combiner.enter(CALL) for _ in range(4)] == [None] * 4


def test_eight_threads_call_alone_at_once():
    combiner = Combiner(THREADS)
    assert [combiner.enter(CALL) for _ in range(8)] == [None] * 8
    waiting = queued(combiner)
    combiner.leave(0.000_1)
    assert waiting.combines
    combiner.leave(0.000_1)
    assert combiner.enter(CALL) is None


def test_calls_of_topics_in_turn_are_joined_by_what_they_have_in_common():
    plain_topic = Topic("a", TopicType.PRIORITY, slots=4)
    bounded = Topic("b", TopicType.PRIORITY, slots=4, max_backlog=8)
    calls: list[WaitingCall] = []
    for index in range(12):
        topic = (plain_topic, bounded)[index % 2]
        message = Encoder(topic).one(PriorityMessage(f"m{index}", 1))
        calls.append(WaitingCall(QueueSends(topic)(message.slot, (message,)), THREADS.lock()))
    assert [len(group) for group in groups_of([*calls, WaitingCall(CALL, THREADS.lock())], True)] == [6, 6, 1]
    slots = {each.call.keys[0] for each in calls}
    assert len(groups_of(calls, False)) == len(slots)
