"""Steering a topic and reading what was done to it, on a real Redis."""

from __future__ import annotations

import logging
import threading

import pytest
import redis

from rmq import (
    ControlResult,
    Fixed,
    FixedTimeMessage,
    ImmediateRetry,
    Merge,
    PriorityMessage,
    RangeMergeMessage,
    Redriven,
    RmqClient,
    StreamMessage,
    Sum,
    TopicType,
)
from rmq.errors import InvalidValueError, UnknownTopicError
from tests.conftest import MakeTopic
from tests.support.core import slot_keys
from tests.support.waiting import wait_until

FAR_MS = 4 * 10**12
DONE, IN_FLIGHT, ABSENT = ControlResult.DONE, ControlResult.IN_FLIGHT, ControlResult.ABSENT
HOSTILE = "<script>alert(1)</script>\x1b[31m\n\u202e"


def test_promote_makes_a_later_message_due(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.FIXED_TIME, slots=2)
    client.producer(topic).send(FixedTimeMessage("a", fixed_time_ms=FAR_MS, body="b"))
    assert client.control(topic).promote("nothing") is ABSENT
    assert client.control(topic).promote("a") is DONE
    with client.consumer(topic) as consumer:
        delivery = consumer.poll(1, timeout=50)[0]
        assert (delivery.text, delivery.body) == ("a", b"b")
        assert client.control(topic).promote("a") is IN_FLIGHT
        delivery.ack()


def test_promote_and_reprioritise_change_the_order(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(name, 100) for name in "abcd")
    assert client.control(topic).reprioritise("c", 200) is DONE
    assert client.control(topic).promote("b") is DONE
    with client.consumer(topic) as consumer:
        first = consumer.poll(2, timeout=50)
        assert [each.text for each in first] == ["b", "c"]
        for each in [*first, *consumer.poll(2, timeout=50)]:
            each.ack()


def test_reprioritise_needs_priorities(client: RmqClient, make_topic: MakeTopic) -> None:
    with pytest.raises(InvalidValueError, match="has due times, not priorities"):
        client.control(make_topic(TopicType.FIXED_TIME)).reprioritise("a", 100)


def test_a_paused_topic_is_not_claimed_from_by_anybody_and_goes_on_when_resumed(
    client: RmqClient, make_topic: MakeTopic, redis_url: str
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    seen: list[str] = []
    lock = threading.Lock()

    @client.listener(topic)
    def handle(delivery: object) -> None:
        with lock:
            seen.append(str(delivery))

    with RmqClient(redis_url) as operator:
        assert operator.control(topic).pause() == 4
        assert operator.control(topic).pause() == 0
        client.start()
        client.producer(topic).send_many(PriorityMessage(f"m{n}", 100) for n in range(40))
        threading.Event().wait(1.5)  # longer than a listener's own look
        assert seen == []
        stats = operator.inspect(topic).stats()
        assert (stats.backlog, all(slot.paused for slot in stats.slots)) == (40, True)
        assert operator.control(topic).resume([0]) == 1
        assert operator.control(topic).resume() == 3
        wait_until(lambda: len(seen) == 40)
        wait_until(lambda: operator.inspect(topic).stats().total("acked") == 40)
    client.stop()


def test_a_paused_stream_group(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, slots=2, checked=False)
    client.producer(topic).send(StreamMessage("before"))
    with client.consumer(topic, group="g", start="all") as consumer:
        stream = client.stream(topic)
        assert stream.pause("g") == 2
        assert consumer.poll(5, timeout=0.3) == []
        assert stream.resume("g", actor="alice") == 2
        delivery = consumer.poll(5, timeout=50)[0]
        delivery.ack()
    assert [(line.actor == "alice", line.action) for line in stream.audit()] == [(True, "resume"), (False, "pause")]
    assert stream.dead("g", actor="bob").purge() == 0
    assert [(line.actor, line.outcome) for line in stream.audit(2)] == [("bob", "nothing done"), ("bob", "begun")]
    with pytest.raises(InvalidValueError, match="no group"):
        stream.pause("unknown")
    assert stream.stats().groups == ("g",)


def test_purge_needs_the_name_and_leaves_what_is_in_flight(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    client.producer(topic).send_many(PriorityMessage(f"m{n}", 100 + n, body="b") for n in range(2_500))
    control = client.control(topic, actor="alice")
    with client.consumer(topic) as consumer:
        held = consumer.poll(1, timeout=50)[0]
        for wrong in ("", "yes", topic.name + "x"):
            with pytest.raises(InvalidValueError, match="it must be the topic's name"):
                control.purge("store", confirm=wrong)
        with pytest.raises(InvalidValueError, match="must be store or retry"):
            control.purge("dead", confirm=topic.name)
        progress: list[int] = []
        assert control.purge("store", confirm=topic.name, limit=100) == 100
        assert control.purge("store", confirm=topic.name, progress=progress.append) == 2_399
        assert progress[-1] == 2_399
        held.nack(delay="1m")
    stats = client.inspect(topic).stats()
    assert (stats.backlog, stats.waiting, stats.total("purged"), stats.unaccounted) == (0, 1, 2_499, 0)
    assert control.purge("retry", confirm=topic.name) == 1
    assert client.inspect(topic).stats().unaccounted == 0
    lines = client.inspect(topic).audit()
    assert [line.outcome for line in lines[:2]] == ["dropped 1", "begun"]
    assert {line.actor for line in lines} == {"alice"}


def test_redrive_and_purge_of_one_dead(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, max_retries=0, retry=ImmediateRetry())
    client.producer(topic).send_many(PriorityMessage(name, 100) for name in "ab")
    with client.consumer(topic) as consumer:
        for delivery in consumer.poll(2, timeout=50):
            delivery.nack()
        consumer.poll(1, timeout=0)
    control = client.control(topic)
    assert (control.redrive("a"), control.redrive("a"), control.redrive("x")) == (
        Redriven.DONE,
        Redriven.ABSENT,
        Redriven.ABSENT,
    )
    assert (control.purge_dead("b"), control.purge_dead("b")) == (True, False)


def test_every_step_leaves_a_line_in_redis_and_in_the_log(
    client: RmqClient, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=2)
    client.producer(topic).send(PriorityMessage(HOSTILE, 100))
    control = client.control(topic, actor="mallory\x1b[2J")
    with caplog.at_level(logging.INFO, "rmq.audit"):
        control.promote(HOSTILE)
        control.reprioritise(HOSTILE, 300)
        control.reschedule(HOSTILE, priority=400)
        control.cancel(HOSTILE)
        control.cancel(HOSTILE)
        control.pause([1])
        control.resume([1])
        client.dead(topic, actor="bob").redrive(limit=7)
        client.dead(topic, actor="bob").purge()
    lines = client.inspect(topic).audit()
    done = [(line.action, line.outcome) for line in sorted(lines, key=lambda line: (line.time_ms, line.id))]
    assert sorted(done) == sorted(
        [
            ("promote", "done"),
            ("reprioritise", "done"),
            ("reschedule", "done"),
            ("cancel", "done"),
            ("cancel", "absent"),
            ("pause", "done"),
            ("resume", "done"),
            ("redrive", "begun"),
            ("redrive", "nothing done"),
            ("purge dead", "begun"),
            ("purge dead", "nothing done"),
        ]
    )
    assert {line.content for line in lines if line.content} == {HOSTILE.encode()}
    assert next(line.detail for line in lines if line.action == "redrive") == "all dead messages limit=7"
    assert len(caplog.records) == len(lines)
    assert all(record.getMessage().isprintable() for record in caplog.records), "nothing in a log acts on a terminal"


def test_what_was_done_stays_done_where_the_audit_takes_no_last_line(
    client: RmqClient, make_topic: MakeTopic, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=1, max_retries=0, retry=ImmediateRetry())
    client.producer(topic).send(PriorityMessage("a", 100))
    with client.consumer(topic) as consumer:
        assert consumer.poll(1, timeout=50)[0].nack(error=ValueError("no"))
    audit = slot_keys(topic.name, 0).audit

    def break_it(_: int) -> None:
        redis_client.delete(audit)
        redis_client.set(audit, "foreign")

    assert client.dead(topic).purge(progress=break_it) == 1
    assert f"topic {topic.name}: the result of 'purge dead' may be missing from the audit log" in caplog.text
    redis_client.delete(audit)


def test_the_audit_is_bounded(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY)
    control = client.control(topic)
    for _ in range(1_300):
        control.cancel("a")
    assert len(client.inspect(topic).audit(1_000)) == 1_000
    assert client._connections.command("XLEN", f"audit{{{topic.name}_0}}") < 1_200


@pytest.mark.parametrize("actor", ["", "x" * 257])
def test_an_actor_has_a_name(client: RmqClient, make_topic: MakeTopic, actor: str) -> None:
    with pytest.raises(InvalidValueError, match="actor"):
        client.control(make_topic(TopicType.PRIORITY), actor=actor)


def test_what_is_not_there(client: RmqClient, make_topic: MakeTopic) -> None:
    with pytest.raises(UnknownTopicError):
        client.control("no-such-topic")
    topic = make_topic(TopicType.PRIORITY, slots=2)
    for slots in ([2], [-1], [True]):
        with pytest.raises(InvalidValueError, match="has no slot "):
            client.control(topic).pause(slots)
    with pytest.raises(InvalidValueError, match="STREAM"):
        client.control(make_topic(TopicType.STREAM, checked=False)).promote("a")


def test_all_messages_of_a_tenant_are_cancelled(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    producer, control = client.producer(topic), client.control(topic, actor="ann")
    producer.send_many(PriorityMessage(f"tenant:7:{number}", 1_000 + number, body="b") for number in range(3_000))
    producer.send_many(PriorityMessage(f"tenant:77:{number}", 100) for number in range(50))
    with client.consumer(topic) as consumer:
        held = consumer.poll(5, timeout=50)
        assert len(held) == 5
        held[0].nack(delay="10m")
        wait_until(lambda: client.inspect(topic).stats().waiting == 1)
        found = control.cancel_matching(prefix="tenant:7:", dry_run=True)
        assert (found.cancelled, found.in_flight) == (2_996, 4)
        assert client.inspect(topic).audit() == []
        told: list[int] = []
        assert control.cancel_matching(prefix="tenant:7:", progress=told.append) == found
        assert told == sorted(told)
        assert told[-1] == 2_996
        stats = client.inspect(topic).stats()
        assert (stats.backlog, stats.waiting, stats.in_flight) == (50, 0, 4)
        assert {slot.unaccounted for slot in stats.slots} == {0}
        newest = client.inspect(topic).audit()[0]
        assert (newest.actor, newest.action, newest.outcome) == (
            "ann",
            "cancel matching",
            "cancelled 2996; 4 in flight",
        )
        assert newest.detail == "prefix tenant:7: in all 4 slots"
        for each in held[1:]:
            each.ack()
    assert control.cancel_matching("tenant:*:1?", slots=[topic.slot_of(b"tenant:77:10")]).cancelled >= 1
    assert control.cancel_matching("tenant:*:1?").cancelled >= 0
    assert client.inspect(topic).stats().backlog == 40


def test_cancelling_all_that_match_needs_a_pattern(client: RmqClient, make_topic: MakeTopic) -> None:
    control = client.control(client.producer(make_topic(TopicType.PRIORITY)).topic)
    for wrong in ({}, {"pattern": "a", "prefix": "b"}, {"pattern": "a", "slots": [9]}):
        with pytest.raises(InvalidValueError):
            control.cancel_matching(**wrong)  # pyright: ignore[reportArgumentType]


def test_a_merged_message_is_cancelled_with_its_record(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.RANGE_MERGE, slots=2, merge=Merge(Sum(), window=Fixed("1h")))
    producer = client.producer(topic)
    producer.send_many(RangeMergeMessage(f"a:{number % 20}", body=1) for number in range(60))
    assert client.control(topic).cancel_matching("a:1*").cancelled == 11
    stats = client.inspect(topic).stats()
    assert (stats.backlog, stats.unaccounted) == (9, 0)
    producer.send(RangeMergeMessage("a:1", body=5))  # begins anew
    [found] = client.inspect(topic).search("a:1").messages
    assert found.value == 5
