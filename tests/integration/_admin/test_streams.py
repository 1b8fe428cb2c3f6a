"""Stream topics against a real Redis: groups, leases, retries, the dead, trimming, reading (docs/guide/streams.md)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rmq import Delivery, Retention, RmqClient, StreamMessage, Topic, TopicType
from rmq.errors import (
    AlreadySettledError,
    BacklogFullError,
    InvalidMessageError,
    InvalidTopicError,
    InvalidValueError,
    RmqError,
    SendError,
    TooManyGroupsError,
)
from tests.conftest import MakeTopic
from tests.integration.conftest import MakeStream
from tests.support.core import Connections, group_keys, group_rate_key, rate_key, slot_keys
from tests.support.sides import Side
from tests.support.streams import drain_entries, entry, ids, pending_rows
from tests.support.waiting import wait_until

SECOND = timedelta(seconds=1)


def send(client: RmqClient, topic: Topic, *contents: str, slot_basis: str | None = None) -> tuple[str, ...]:
    """Send contents; return their ids."""
    messages = [StreamMessage(content, slot_basis=slot_basis) for content in contents]
    return client.producer(topic).send_many(messages, outcomes=True).ids


# --- 1: sending, order, groups


def test_a_send_appends_and_returns_ids(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=4)
    producer = client.producer(topic)
    one = producer.send(StreamMessage("same"))
    two = producer.send(StreamMessage("same"))
    assert (one.new, one.merged, two.new) == (1, 0, 1)
    assert one.ids != two.ids  # ids are unique within a slot
    many = producer.send_many([StreamMessage(f"m{number}") for number in range(1_500)], outcomes=True)
    assert (many.new, many.merged, len(many.ids), many.outcomes) == (1_500, 0, 1_500, (True,) * 1_500)
    assert producer.send_many([StreamMessage("quiet")]).ids == ()
    assert client.stream(topic).stats().length == 1_503


def test_order_is_kept_per_slot(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=4)
    messages = [StreamMessage(f"{key}:{number}", slot_basis=key) for number in range(500) for key in "abcdefgh"]
    client.producer(topic).send_many(messages)
    with client.consumer(topic, group="g", start="all") as consumer:
        found = drain_entries(consumer)
    for key in "abcdefgh":
        assert [text for text in found if text.startswith(key)] == [f"{key}:{number}" for number in range(500)]


def test_content_body_and_fields(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream()
    producer = client.producer(topic)
    producer.send(StreamMessage("plain", body=b"\x00\xff"))
    producer.send(StreamMessage(b"\xff\x00"))
    producer.send(StreamMessage({"order": "7", "raw": b"\xff"}, slot_basis="7"))
    producer.send(StreamMessage({"content": "c", "body": "b"}))
    with client.consumer(topic, group="g", start="all") as consumer:
        plain, raw, fields, named = map(entry, consumer.poll())
        assert (plain.text, plain.body) == ("plain", b"\x00\xff")
        assert dict(plain.fields) == {"content": b"plain", "body": b"\x00\xff"}
        assert (raw.content, raw.body, raw.attempt, raw.retries_left) == (b"\xff\x00", None, 1, 16)
        assert dict(fields.fields) == {"order": b"7", "raw": b"\xff"}
        assert fields.content == b'{"order":"7","raw":"\\\\xff"}'
        assert (named.content, named.body) == (b"c", b"b")
        assert (plain.due_ms, plain.priority, plain.group) == (None, None, "g")
        assert abs(plain.time_ms - time.time() * 1000) < 60_000
        assert plain.id in repr(plain)
        consumer.ack([plain, raw, fields, named])


@pytest.mark.parametrize(
    ("content", "body"),
    [({}, None), ({"rmq:group": "x"}, None), ({"": "x"}, None), ({"a": "b"}, "body"), ("", None), ({"a": 1}, None),
     ({"a": "x" * 1_048_577}, None), ("x" * 65_537, None), (7, None), ({f"f{n}": "" for n in range(501)}, None)],
)  # fmt: skip
def test_a_bad_entry_is_refused(client: RmqClient, make_stream: MakeStream, content: object, body: object) -> None:
    topic = make_stream()
    with pytest.raises(InvalidMessageError):
        client.producer(topic).send(StreamMessage(content, body=body))  # pyright: ignore[reportArgumentType]


def test_each_group_gets_every_message_and_inside_a_group_one_consumer_does(
    client: RmqClient, make_stream: MakeStream
) -> None:
    topic = make_stream(slots=2)
    send(client, topic, *(f"m{number}" for number in range(1_000)))
    everything = sorted(f"m{number}" for number in range(1_000))
    for group in ("billing", "mail"):
        with (
            client.consumer(topic, group=group, start="all") as one,
            client.consumer(topic, group=group, start="all") as two,
        ):
            found: list[Delivery] = []
            while page := [*one.poll(100), *two.poll(100)]:
                found += page
            assert sorted(delivery.text for delivery in found) == everything
            by_holder = {stats.name: stats.pending for stats in client.stream(topic).consumers(group)}
            assert len(by_holder) == 2
            assert sum(by_holder.values()) == 1_000
            for delivery in found:
                assert delivery.ack()


def test_where_a_group_begins(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream()
    sent = send(client, topic, "a", "b", "c")
    for group, start in (("all", "all"), ("new", "new"), ("after", sent[1])):
        client.stream(topic).add_group(group, start)
        client.stream(topic).add_group(group, "all")  # stays where it is
    assert client.stream(topic).group("all").lag == 3
    assert client.stream(topic).group("new").lag == 0
    assert client.stream(topic).group("after").lag == 1
    send(client, topic, "d")
    assert client.stream(topic).group("after").lag == 2
    for group, expected in (("all", "abcd"), ("new", "d"), ("after", "cd")):
        with client.consumer(topic, group=group) as consumer:
            assert drain_entries(consumer, 0.1) == list(expected)
            assert client.stream(topic).group(group).lag == 0


def test_the_lag_of_a_group_that_began_at_an_id_is_counted_within_bounds(
    client: RmqClient, make_stream: MakeStream
) -> None:
    topic = make_stream()
    stream, first = client.stream(topic), send(client, topic, "first")[0]
    stream.add_group("small", first)
    client.producer(topic).send_many(StreamMessage(f"m{number}") for number in range(1_200))
    assert stream.group("small").lag in (1_000, 1_200)  # Redis knows it where all were read one after the other
    large = send(client, topic, "last")[0]
    client.producer(topic).send_many(StreamMessage(f"l{number}", body=bytes(200_000)) for number in range(30))
    stream.add_group("large", large)
    assert stream.group("large").lag in (10, 30)


def test_groups_are_bounded(client: RmqClient, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq._broker.streams.MAX_GROUPS", 2)
    topic = make_stream()
    view = client.stream(topic)
    view.add_group("a")
    view.add_group("b")
    with pytest.raises(TooManyGroupsError, match="2 groups"):
        view.add_group("c")
    assert view.remove_group("a")
    assert not view.remove_group("a")
    view.add_group("c")
    assert view.stats().groups == ("b", "c")


def test_an_id_that_two_slots_have_deletes_neither(
    client: RmqClient, make_stream: MakeStream, redis_client: Any
) -> None:
    topic = make_stream(slots=2)
    view = client.stream(topic)
    for slot in range(2):
        redis_client.xadd(f"{topic.name}_{slot}", {"content": slot}, id="5-0")
        redis_client.hset(f"meta{{{topic.name}_{slot}}}", "accepted", 1)
    for entry_id in ("5-0", "5"):
        with pytest.raises(InvalidValueError, match=r"entry 5\S* of topic \S+ exists in slots 0, 1"):
            view.delete(entry_id)
    assert view.delete("5-0", slot=1) == 1
    assert view.delete("5-0") == 1


def test_what_takes_away_is_in_the_audit(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=2)
    view = client.stream(topic)
    first, *_ = send(client, topic, "a", "b", "c")
    view.add_group("g", "all")
    with client.consumer(topic, group="g", name="one") as consumer:
        assert len(consumer.poll(1)) == 1
    assert view.remove_consumer("g", "one", actor="ann") == 1
    assert view.remove_gone_consumers("g", actor="ann") == []
    with client.consumer(topic, group="g", name="two") as consumer:
        assert len(consumer.poll(1)) == 1
    assert view.remove_gone_consumers("g", 0.0, actor="ann") == ["two"]
    slot = next(entry.slot for entry in view.range() if entry.content == b"a")
    deleted = view.delete(first, slot=slot, actor="ann")
    dropped = sum(slot.dropped for slot in view.trim(actor="ann"))
    assert view.remove_group("g", actor="ann")
    lines = [(line.actor, line.action, line.detail, line.outcome) for line in reversed(view.audit())]
    assert lines[1::2] == [
        ("ann", "remove consumer", "group g: one", "gave back 1"),
        ("ann", "remove consumer", "group g: 1 idle consumer", "removed 1"),
        ("ann", "delete", f"{first} on slot {slot}", f"deleted {deleted}"),
        ("ann", "trim", "by its retention", f"dropped {dropped}"),
        ("ann", "remove group", "group g", "removed"),
    ]
    assert {line[3] for line in lines[::2]} == {"begun"}


def test_a_poll_waits_and_wakes_up(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=2)
    with client.consumer(topic, group="g") as consumer:
        started = time.monotonic()
        assert consumer.poll(10) == []
        assert consumer.poll(10, 0.2) == []
        assert time.monotonic() - started >= 0.2
        timer = threading.Timer(0.3, send, (client, topic, "late"))
        timer.start()
        started = time.monotonic()
        found = consumer.poll(10, 50)
        assert [delivery.text for delivery in found] == ["late"]
        assert time.monotonic() - started < 30, "it wakes before its time is over"
        consumer.ack(found)
        timer.join()


def test_groups_are_for_streams_and_streams_need_one(
    client: RmqClient, make_stream: MakeStream, make_topic: MakeTopic
) -> None:
    topic, other = make_stream(), make_topic(TopicType.PRIORITY)
    with pytest.raises(InvalidValueError, match="needs a group"):
        client.consumer(topic)
    with pytest.raises(InvalidValueError, match="needs a group"):
        client.listener(topic)
    with pytest.raises(InvalidValueError, match="only STREAM"):
        client.consumer(other, group="g")
    for wrong in ({"group": "a:b"}, {"group": ""}, {"group": "g", "name": "(waiting)"}, {"group": "g", "start": "old"}):
        with pytest.raises(InvalidValueError):
            client.consumer(topic, **wrong)  # pyright: ignore[reportArgumentType]
    for refused in (client.inspect, client.dead, client.control):
        with pytest.raises(InvalidValueError, match=r"client\.stream"):
            refused(topic)
    with pytest.raises(InvalidValueError, match="it must be STREAM"):
        client.stream(other)
    with pytest.raises(InvalidTopicError, match="only STREAM"):
        Topic("x", TopicType.PRIORITY, retention=Retention())
    client.consumer(topic, group="g").close()


def test_a_full_stream_refuses(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(max_backlog=3)
    send(client, topic, "a", "b")
    with pytest.raises(BacklogFullError, match="2 messages"):
        send(client, topic, "c", "d")
    assert client.stream(topic).stats().length == 2


# --- 2: leases, nacks, retries, the dead


def test_an_expired_delivery_goes_to_one_other_consumer(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(lease=3 * SECOND)
    send(client, topic, "a", "b")
    with (
        client.consumer(topic, group="g", start="all") as dead,
        client.consumer(topic, group="g") as one,
        client.consumer(topic, group="g") as two,
    ):
        claimed_s = time.monotonic()
        lost = dead.poll(1)
        assert [delivery.text for delivery in lost] == ["a"]
        assert [delivery.text for delivery in one.poll(1)] == ["b"]  # nothing waits for it
        found = wait_until(lambda: [*one.poll(5), *two.poll(5)])
        again = [delivery for delivery in found if delivery.text == "a"]
        assert time.monotonic() - claimed_s > 2.9
        assert [delivery.attempt for delivery in again] == [2]
        assert lost[0].ack() is False
        assert lost[0].lost
        for delivery in found:
            assert delivery.ack()
    rest = client.stream(topic).group("g")
    assert rest.total("expired") >= 1
    drain_until_acked(client, topic, "g", 2)


def drain_until_acked(client: RmqClient, topic: Topic, group: str, number: int) -> None:
    with client.consumer(topic, group=group) as consumer:

        def done() -> bool:
            consumer.ack(consumer.poll(100))
            return client.stream(topic).group(group).total("acked") == number

        wait_until(done)


def test_a_lease_is_renewed_without_counting_a_delivery(
    client: RmqClient, redis_client: Any, make_stream: MakeStream
) -> None:
    topic = make_stream(lease=4 * SECOND)
    send(client, topic, "a")
    with client.consumer(topic, group="g", start="all") as consumer, client.consumer(topic, group="g") as other:
        held = consumer.poll(1)
        for _ in range(6):
            time.sleep(1)
            assert consumer.extend(held) == []
            assert other.poll(1) == []
        assert pending_rows(redis_client, topic, 0, "g")[0]["times_delivered"] == 1
        assert held[0].ack()
        assert consumer.extend(held) == held
        assert held[0].lost
        with pytest.raises(AlreadySettledError):
            held[0].ack()


@pytest.mark.parametrize("delay_s", [0.3, 1.5])  # within the lease, and beyond it
def test_a_nack_with_a_delay_comes_back_when_it_ends(
    client: RmqClient, redis_client: Any, make_stream: MakeStream, delay_s: float
) -> None:
    topic = make_stream(lease=SECOND)
    send(client, topic, "a", "b")
    with client.consumer(topic, group="g", start="all") as consumer:
        first, second = consumer.poll(2)
        started = time.monotonic()
        assert first.nack(delay=timedelta(seconds=delay_s), error=ValueError("no"))
        assert second.ack()
        stats = client.stream(topic).group("g")
        assert (stats.waiting, stats.in_flight) == (1, 0)
        assert [row.consumer for row in client.stream(topic).pending("g")] == [None]
        found = consumer.poll(2, 50)
        assert time.monotonic() - started >= delay_s - 0.01
        assert [(delivery.text, delivery.attempt) for delivery in found] == [("a", 2)]
        assert pending_rows(redis_client, topic, 0, "g")[0]["times_delivered"] == 2
        assert found[0].ack()


def test_retries_end_in_the_dead_of_the_group_with_the_reason(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(max_retries=2)
    sent = send(client, topic, "bad", "good")
    client.stream(topic).add_group("other", "all")
    with client.consumer(topic, group="g", start="all") as consumer:
        attempts: list[int] = []
        while deliveries := consumer.poll(10, 0.2):
            for delivery in deliveries:
                if delivery.text == "bad":
                    attempts.append(delivery.attempt)
                    delivery.nack(error=ValueError(f"no {delivery.attempt}"))
                else:
                    delivery.ack()
    assert attempts == [1, 2, 3]
    view = client.stream(topic)
    (dead,) = view.dead("g").list()
    assert (dead.id, dead.text, dead.group, dead.attempts) == (sent[0], "bad", "g", 3)
    assert (dead.error_type, dead.error_message, dead.fields) == ("ValueError", "no 3", {"content": b"bad"})
    assert dead.first_failed_ms <= dead.last_failed_ms <= dead.died_ms
    assert (view.group("g").dead, view.group("other").dead, view.dead("other").count()) == (1, 0, 0)


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_redrive_goes_into_the_group_that_failed_only(
    client: RmqClient, make_stream: MakeStream, trimmed: bool
) -> None:
    topic = make_stream(retention=Retention(max_length=0, approximate=False))
    send(client, topic, "bad", "worse")
    view = client.stream(topic)
    with (
        client.consumer(topic, group="g", start="all") as consumer,
        client.consumer(topic, group="other", start="all") as other,
    ):
        for delivery in consumer.poll(10):
            delivery.bury("hopeless")
        assert drain_entries(other, 0.1) == ["bad", "worse"]
        if trimmed:
            assert sum(slot.dropped for slot in view.trim()) == 2
        assert view.dead("g").redrive(limit=1).redriven == 1
        found = list(map(entry, consumer.poll(10, 1.0)))
        assert [(each.text, each.attempt, dict(each.fields)) for each in found] == [("bad", 1, {"content": b"bad"})]
        assert other.poll(10, 0.2) == []
        assert view.group("other").lag == 0
        found[0].nack(delay="0s")
        found = consumer.poll(10, 1.0)
        assert [delivery.attempt for delivery in found] == [2]
        found[0].bury()  # a copy dies and comes back like any other
        assert view.dead("g").redrive().redriven == 2
        assert sorted(drain_entries(consumer)) == ["bad", "worse"]
        assert drain_entries(other, 0.1) == []
        assert view.dead("g").redrive().redriven == 0
        late = client.consumer(topic, group="late", start="all")
        assert drain_entries(late, 0.1) == ([] if trimmed else ["bad", "worse"])
        late.close()


def test_a_redrive_leaves_an_entry_that_is_too_long_to_copy(
    client: RmqClient, make_stream: MakeStream, redis_client: Any
) -> None:
    """Put in by hand, it failed each redrive of its slot."""
    topic = make_stream(slots=1, retention=Retention(max_length=0, approximate=False))
    store = slot_keys(topic.name, 0).store
    redis_client.hincrby(slot_keys(topic.name, 0).meta, "accepted", 2)
    long = [redis_client.xadd(store, {f"f{n}": n for n in range(number)}).decode() for number in (3_949, 4_100)]
    send(client, topic, *map(str, range(120)))
    dead = client.stream(topic).dead("g")
    with client.consumer(topic, group="g", start="all") as consumer:
        for delivery in consumer.poll(200, 5):
            delivery.bury()
        client.stream(topic).trim()
        for redriven in (121, 0):
            with pytest.raises(SendError, match=f"1 trimmed entry stayed dead, the first is {long[1]} in slot 0") as e:
                dead.redrive()
            assert (e.value.stored, [entry.id for entry in e.value.not_stored]) == (redriven, long[1:])
        assert [entry.id for entry in dead.list()] == long[1:]
        assert sorted(len(entry(each).fields) for each in consumer.poll(200, 5)) == [1] * 120 + [3_949]
        assert dead.purge() == 1


def test_all_groups_are_read_in_one_round(
    client: RmqClient, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_stream(slots=2)
    send(client, topic, *map(str, range(20)))
    view = client.stream(topic)
    for group in "abc":
        view.add_group(group, "all")
    rounds: list[int] = []
    run_many = Connections.run_many

    def counted(self: Connections, calls: Any, *more: Any) -> Any:
        rounds.append(len(calls))
        return run_many(self, calls, *more)

    with monkeypatch.context() as patched:
        patched.setattr(Connections, "run_many", counted)
        stats, groups = view.with_groups()
    assert rounds == [6]  # what the slots hold is read by one call before
    assert (stats.length, stats.groups) == (20, ("a", "b", "c"))
    assert [(group.group, group.lag, len(group.slots)) for group in groups] == [(name, 20, 2) for name in "abc"]
    assert groups == view.groups() == [view.group(name) for name in "abc"]


@pytest.mark.parametrize("how", ["redrive", "purge"])
def test_what_dies_in_a_later_slot_while_the_dead_are_gone_through_is_left_alone(
    client: RmqClient, make_stream: MakeStream, redis_client: Any, how: str
) -> None:
    """Else a redrive of what fails at once would take the same entries again and again."""
    topic = make_stream(slots=2)
    send(client, topic, *map(str, range(40)))
    dead = client.stream(topic).dead("g")
    with client.consumer(topic, group="g", start="all") as consumer:
        found = list(map(entry, consumer.poll(40)))
        for delivery in found:
            delivery.bury()
    early = [delivery for delivery in found if delivery.slot == 0]
    late = [delivery.id for delivery in found if delivery.slot == 1][1:]

    def die_again(done: int) -> None:
        if done == len(early):
            time.sleep(0.005)  # later than it began
            seconds, micros = redis_client.time()
            redis_client.zadd(group_keys(topic.name, 1, "g").dead, dict.fromkeys(late, seconds * 1000 + micros // 1000))

    took = dead.purge(progress=die_again) if how == "purge" else dead.redrive(progress=die_again).redriven
    assert early
    assert late
    assert (took, dead.count()) == (len(early) + 1, len(late))


def test_the_dead_are_purged(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=2)
    send(client, topic, *"abcd")
    with client.consumer(topic, group="g", start="all") as consumer:
        for delivery in consumer.poll(10):
            delivery.bury()
    dead = client.stream(topic).dead("g")
    assert dead.count() == 4
    assert dead.purge(limit=1) == 1
    assert dead.purge() == 3
    assert (dead.count(), client.stream(topic).group("g").total("purged")) == (0, 4)


def test_the_dead_are_bounded(client: RmqClient, make_stream: MakeStream) -> None:
    # pitfall 36
    topic = make_stream(max_dead=2)
    send(client, topic, *"abcd")
    with client.consumer(topic, group="g", start="all") as consumer:
        for delivery in consumer.poll(10):
            delivery.bury()
    assert [entry.text for entry in client.stream(topic).dead("g").list()] == ["c", "d"]


def test_a_release_comes_back_uncounted_and_in_order(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream()
    sent = send(client, topic, *(f"m{number}" for number in range(30)))
    with client.consumer(topic, group="g", start="all") as consumer:
        held = consumer.poll(20)
        for delivery in reversed(held):
            assert delivery.release()
        again = consumer.poll(100, 1.0)
        again += consumer.poll(100)
        assert ids(again) == list(sent)
        assert {delivery.attempt for delivery in again} == {1}
        consumer.ack(again)


def test_a_group_that_crashes_at_every_step_loses_nothing(client: RmqClient, make_stream: MakeStream) -> None:
    """A consumer dies after reading, after handling, and after acking; at the end all were handled."""
    topic = make_stream(slots=2, lease=SECOND, max_retries=99)
    everything = [f"m{number}" for number in range(300)]
    send(client, topic, *everything)
    handled: Counter[str] = Counter()
    acked: set[str] = set()
    step = 0
    client.stream(topic).add_group("g", "all")
    until = time.monotonic() + 60
    while len(acked) < len(everything) and time.monotonic() < until:
        with client.consumer(topic, group="g") as consumer:  # as a new process; the old one is gone
            for delivery in consumer.poll(40, 0.3):
                step += 1
                if step % 7 == 0:
                    continue  # read, then dead
                handled[delivery.text] += 1
                if step % 5 == 0:
                    continue  # handled, then dead
                if delivery.ack():
                    assert delivery.text not in acked
                    acked.add(delivery.text)
    assert sorted(acked) == sorted(everything)
    assert set(handled) == set(everything)
    group = client.stream(topic).group("g")
    assert (group.pending, group.dead, group.total("acked")) == (0, 0, 300)
    assert sum(handled.values()) - 300 <= group.total("expired")


@pytest.mark.slow
def test_10_000_of_a_dead_consumer_are_taken_over_once_each_oldest_first(
    client: RmqClient, make_stream: MakeStream
) -> None:
    topic = make_stream(lease=8 * SECOND)
    messages = [StreamMessage(f"old{number}") for number in range(10_000)]
    old = client.producer(topic).send_many(messages, outcomes=True).ids
    with client.consumer(topic, group="g", start="all", name="dead") as dead:
        held = dead.poll(10_000)
        while len(held) < 10_000:
            held += dead.poll(10_000)
    client.producer(topic).send_many(StreamMessage(f"new{number}") for number in range(500))
    survivors = [client.consumer(topic, group="g", name=f"survivor{number}") for number in range(3)]
    found: list[Delivery] = []
    first = survivors[0].poll(1_000, 50)
    assert first[0].text.startswith("new")  # the leases still run, and new ones do not wait for them
    assert survivors[0].ack(first) == []
    found += first
    time.sleep(8.5)  # a pass goes by id: those whose leases end behind it would come with the next one
    deadline = time.monotonic() + 60
    new_before_the_end = 0
    client.producer(topic).send_many(StreamMessage(f"later{number}") for number in range(500))
    while len(found) < 11_000 and time.monotonic() < deadline:
        for survivor in survivors:
            page = survivor.poll(200)
            survivor.ack(page)
            found += page
            if sum(delivery.text.startswith("old") for delivery in found) < 10_000:
                new_before_the_end += sum(delivery.text.startswith("later") for delivery in page)
    counts = Counter(delivery.text for delivery in found)
    assert len(found) == len(counts) == 11_000
    assert ids(delivery for delivery in found if delivery.text.startswith("old")) == list(old)
    assert {delivery.attempt for delivery in found if delivery.text.startswith("old")} == {2}
    assert new_before_the_end > 0
    for survivor in survivors:
        survivor.close()


def test_a_listener_handles_renews_retries_and_buries(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=4, lease=4 * SECOND, max_retries=1)
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    @client.listener(topic, group="g", start="all", threads=3)
    def handle(delivery: Delivery) -> None:
        with lock:
            seen[delivery.text] += 1
        if delivery.text == "slow":
            time.sleep(5.5)  # its lease is renewed
        if delivery.text == "bad":
            raise ValueError("no")

    @client.listener(topic, group="batches", start="all", batch=100)
    def handle_batch(deliveries: list[Delivery]) -> None:
        with lock:
            seen.update(f"batch {delivery.text}" for delivery in deliveries)

    client.start()
    try:
        send(client, topic, "slow", "bad", *(f"m{number}" for number in range(2_000)))
        view = client.stream(topic)
        wait_until(lambda: view.group("g").total("acked") == 2_001)
        wait_until(lambda: view.group("batches").total("acked") == 2_002)
    finally:
        client.stop()
    assert seen["slow"] == 1
    assert seen["bad"] == 2
    assert all(seen[f"m{number}"] == seen[f"batch m{number}"] == 1 for number in range(2_000))
    assert [dead.error_message for dead in view.dead("g").list()] == ["no"]


def test_a_stopped_listener_gives_back_what_was_not_begun(
    client: RmqClient, side: Side, redis_url: str, make_stream: MakeStream
) -> None:
    topic = make_stream()
    sent = send(client, topic, *(f"m{number}" for number in range(50)))
    begun = threading.Event()
    with side.client(redis_url) as worker:

        @worker.listener(topic, group="g", start="all")
        def handle(delivery: Delivery) -> None:
            del delivery
            begun.set()
            time.sleep(0.2)

        worker.start()
        assert begun.wait(60)
        worker.stop()
    acked = client.stream(topic).group("g").total("acked")
    with client.consumer(topic, group="g") as consumer:
        rest = consumer.poll(100)
        rest += consumer.poll(100)
        assert ids(rest) == list(sent[acked:])
        assert {delivery.attempt for delivery in rest} == {1}
        consumer.ack(rest)


# --- 3: trimmed while pending


@pytest.mark.parametrize("how", ["deleted", "trimmed"])
def test_what_is_gone_while_pending_does_not_stick(
    client: RmqClient, redis_client: Any, make_stream: MakeStream, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_stream(lease=3 * SECOND, retention=Retention(max_length=0, approximate=False, unacked=True))
    view = client.stream(topic)
    view.trim()  # so that the acks do not
    sent = send(client, topic, "expires", "nacked", "waits", "buried", "acked")
    with client.consumer(topic, group="g", start="all") as consumer:
        _, nacked, waits, buried, acked = consumer.poll(10)
        assert waits.nack(delay="200ms")
        if how == "deleted":
            assert view.delete(*sent) == 5
        else:
            assert view.trim()[0].dropped == 5
        assert nacked.nack(delay="0s")
        assert buried.bury()
        assert acked.ack()  # done is done
        wait_until(lambda: consumer.poll(10) == [] and view.group("g").pending == 0)
    assert pending_rows(redis_client, topic, 0, "g") == []
    group = view.group("g")
    assert (group.total("lost"), group.total("acked"), group.dead) == (4, 1, 0)
    assert "trimmed or deleted before they were acked" in caplog.text


# --- 4: trimming


def acked_by(client: RmqClient, topic: Topic, group: str, number: int) -> None:
    """Have a group ack the oldest so many, and no more."""
    with client.consumer(topic, group=group, start="all") as consumer:
        left = number
        while left:
            page = consumer.poll(min(left, 1_000), 1.0)
            consumer.ack(page)
            left -= len(page)


@pytest.mark.parametrize("approximate", [False, True])
def test_trimming_by_length_spares_what_a_group_has_not_acked(
    client: RmqClient, make_stream: MakeStream, approximate: bool
) -> None:
    topic = make_stream(retention=Retention(max_length=100, approximate=approximate))
    send(client, topic, *(f"m{number}" for number in range(12_000)))
    view = client.stream(topic)
    view.add_group("slow", "all")
    acked_by(client, topic, "fast", 12_000)
    (trimmed,) = view.trim()
    assert (trimmed.due, trimmed.dropped) == (True, 0)
    acked_by(client, topic, "slow", 11_000)
    (trimmed,) = view.trim()
    assert trimmed.dropped == 11_000 if not approximate else 10_800 <= trimmed.dropped <= 11_000
    acked_by(client, topic, "slow", 1_000)
    (trimmed,) = view.trim()
    assert trimmed.length == 100 if not approximate else 100 <= trimmed.length < 300
    assert view.stats().total("trimmed") == 12_000 - trimmed.length


def test_a_pending_entry_holds_up_trimming_and_unacked_says_otherwise(
    client: RmqClient, make_stream: MakeStream
) -> None:
    keep = make_stream(retention=Retention(max_length=0, approximate=False))
    drop = make_stream(retention=Retention(max_length=0, approximate=False, unacked=True))
    for topic in (keep, drop):
        client.stream(topic).trim()  # so that the acks do not
        send(client, topic, *(f"m{number}" for number in range(10)))
        with client.consumer(topic, group="g", start="all") as consumer:
            deliveries = consumer.poll(10)
            consumer.ack(deliveries[:4] + deliveries[5:])
            (trimmed,) = client.stream(topic).trim()
            assert trimmed.dropped == (4 if topic is keep else 10)
            assert deliveries[4].ack()


def test_trimming_by_age(client: RmqClient, redis_client: Any, make_stream: MakeStream) -> None:
    topic = make_stream(retention=Retention(max_length=None, max_age=timedelta(hours=1), approximate=False))
    seconds, _ = redis_client.time()
    for number in range(150):
        redis_client.xadd(f"{topic.name}_0", {"content": f"old{number}"}, id=f"{(seconds - 7_200) * 1_000}-{number}")
    redis_client.hset(f"meta{{{topic.name}_0}}", "accepted", 150)
    send(client, topic, "young")
    (trimmed,) = client.stream(topic).trim()
    assert (trimmed.dropped, trimmed.length) == (150, 1)


def test_shrinking_keeps_what_arrived_since_the_last_time(
    client: RmqClient, redis_client: Any, make_stream: MakeStream
) -> None:
    topic = make_stream(slots=2, retention=Retention(max_length=None, shrink=True, approximate=False))
    view = client.stream(topic)
    for number in range(4):
        send(client, topic, *(f"{number}:{each}" for each in range(100)))
        dropped = sum(slot.dropped for slot in view.trim())
        assert dropped == (100 if number else 0)
        assert {each.text.split(":")[0] for each in view.range()} == {str(number)}
    names: list[bytes] = sorted(redis_client.keys("sizes{" + topic.name + "*"))
    assert names == [f"sizes{{{topic.name}_{slot}}}".encode() for slot in range(2)]
    assert sum(int(redis_client.hget(name, name.decode()[6:-1]) or 0) for name in names) == 100


def test_shrinking_is_not_misled_by_deletions(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(retention=Retention(max_length=None, shrink=True, approximate=False))
    view = client.stream(topic)
    sent = send(client, topic, *(f"old{number}" for number in range(10)))
    view.trim()
    view.delete(*sent[:5])
    send(client, topic, *(f"new{number}" for number in range(10)))
    assert view.trim()[0].dropped == 5
    assert view.stats().length == 10


def test_listeners_clean_up_one_of_them_per_slot(
    client: RmqClient, side: Side, redis_url: str, make_stream: MakeStream
) -> None:
    topic = make_stream(slots=2, retention=Retention(max_length=0, approximate=False, every=SECOND))
    clients = [side.client(redis_url) for _ in range(3)]
    for each in clients:
        each.listener(topic, group="g", start="all")(lambda delivery: None)
        each.start()
    try:
        send(client, topic, *(f"m{number}" for number in range(500)))
        view = client.stream(topic)
        wait_until(lambda: view.stats().length == 0)
    finally:
        for each in clients:
            each.close()
    assert view.stats().total("trimmed") == 500


# --- 5: reading without groups, inspection


def test_ranges_by_id_and_time_in_both_directions(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=4)
    send(client, topic, *(f"a{number}" for number in range(700)))
    time.sleep(0.05)
    between = datetime.now(UTC)
    time.sleep(0.05)
    sent = send(client, topic, *(f"b{number}" for number in range(700)))
    view = client.stream(topic)
    everything = list(view.range())
    assert len(everything) == 1_400
    assert [each.time_ms for each in everything] == sorted(each.time_ms for each in everything)
    down = list(view.range(newest_first=True))
    assert sorted(each.id for each in down) == sorted(each.id for each in everything)
    assert [each.time_ms for each in down] == sorted((each.time_ms for each in everything), reverse=True)
    assert {each.text[0] for each in view.range(between)} == {"b"}
    assert {each.text[0] for each in view.range(last=between)} == {"a"}
    assert len(list(view.range(limit=3))) == 3
    assert [each.id for each in view.range(newest_first=True, limit=1)] == [view.stats().last_id]
    found = view.get(sent[5])
    assert found is not None
    assert found.id == sent[5]
    assert view.get("1-1") is None
    ordered = [each.id for each in view.range(slots=[0])]
    assert [each.id for each in view.range(f"({ordered[3]}", f"({ordered[7]}", slots=[0])] == ordered[4:7]
    for wrong_id in ("(1-1", "x"):
        with pytest.raises(InvalidValueError, match="entry_id is"):
            view.get(wrong_id)
    for slot in range(4):
        part = list(view.range(slots=[slot]))
        assert {each.slot for each in part} == {slot}
    for wrong in ({"first": "x"}, {"last": datetime(2024, 1, 1)}, {"slots": [4]}):
        with pytest.raises(InvalidValueError):
            list(view.range(**wrong))  # pyright: ignore[reportArgumentType]


def test_pending_entries_from_an_id_by_idle_time_and_number(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream()
    view = client.stream(topic)
    view.add_group("g", "all")
    sent = send(client, topic, *(f"m{number}" for number in range(6)))
    with client.consumer(topic, group="g", name="me") as consumer:
        consumer.poll(6)
        for holder in (None, "me"):

            def pending(holder: str | None = holder, **options: Any) -> list[str]:
                return [row.id for row in view.pending("g", holder, **options)]

            assert pending() == list(sent)
            assert pending(start=sent[2]) == list(sent[2:])
            assert pending(start=f"({sent[2]}", limit=2) == list(sent[3:5])
            assert pending(idle_s=timedelta(hours=1)) == []
            wait_until(lambda: pending(idle_s=0.05) == list(sent))
        for wrong in ({"start": "x"}, {"limit": -1}, {"idle_s": -1.0}):
            with pytest.raises(InvalidValueError):
                list(view.pending("g", **wrong))  # pyright: ignore[reportArgumentType]


def test_a_clean_up_may_have_bounds_of_its_own(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=2, retention=Retention(max_length=1_000))
    view = client.stream(topic)
    send(client, topic, *(f"m{number}" for number in range(100)))
    assert sum(each.dropped for each in view.trim()) == 0
    view.trim(retention=Retention(max_length=10, approximate=False))
    assert view.stats().length == 10
    assert "max_length=10" in view.audit()[0].detail
    assert client.topic(topic.name).retention == Retention(max_length=1_000)


def test_a_tail_from_now_and_from_an_id(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=2)
    sent = send(client, topic, "a", "b", "c", slot_basis="x")
    view = client.stream(topic)
    from_now, found, later = view.tail(timeout=3.0), threading.Event(), list[str]()

    def keep_sending() -> None:
        while not found.wait(0.3):  # the first ones may come before the tail begins
            later.append(f"later {len(later)}")
            send(client, topic, later[-1])

    sending = threading.Thread(target=keep_sending)
    sending.start()
    seen = [next(from_now).text]
    found.set()
    sending.join()
    seen += [each.text for each in from_now]
    assert seen == later[-len(seen) :]
    assert [each.text for each in view.tail(sent[0], timeout=0.1, slots=[topic.slot_of(b"x")])][:2] == ["b", "c"]


def test_deleting_single_entries(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=2)
    sent = send(client, topic, "a", "b", "c", slot_basis="x")
    view = client.stream(topic)
    assert view.delete(sent[1]) == 1
    assert view.delete(sent[1]) == 0
    assert view.delete() == 0
    assert [each.text for each in view.range()] == ["a", "c"]
    with pytest.raises(InvalidValueError):
        view.delete("b")


def test_inspection_in_plain_words(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream(slots=2)
    view = client.stream(topic)
    assert (view.stats().length, view.stats().first_id, view.stats().last_id, view.groups()) == (0, "", "", [])
    sent = send(client, topic, *(f"m{number}" for number in range(10)), slot_basis="x")
    stats = view.stats()
    assert (stats.length, stats.first_id, stats.last_id) == (10, sent[0], sent[-1])
    with (
        client.consumer(topic, group="g", start="all", name="one") as one,
        client.consumer(topic, group="g", name="two") as two,
    ):
        assert view.group("g").lag == 10
        held = one.poll(3)
        more = two.poll(2)
        assert view.group("g").lag == 5
        assert (view.group("g").pending, view.group("g").in_flight, view.group("g").waiting) == (5, 5, 0)
        found = [(each.name, each.pending, each.gone) for each in view.consumers("g")]
        assert found == [("one", 3, False), ("two", 2, False)]
        rows = list(view.pending("g", "one"))
        assert [(row.id, row.consumer, row.deliveries) for row in rows] == [(id_, "one", 1) for id_ in sent[:3]]
        assert all(0 <= row.idle_ms < 50_000 for row in rows)
        slot = next(each for each in view.group("g").slots if each.last_id != "0-0")
        assert (slot.last_id, slot.oldest_id) == (sent[4], sent[0])
        with pytest.raises(RmqError, match="have pending entries: one"):
            view.remove_group("g")
        one.ack(held)
        two.ack(more)


def test_consumers_that_are_gone_are_seen_and_removed(client: RmqClient, make_stream: MakeStream) -> None:
    topic = make_stream()
    send(client, topic, *"abc")
    view = client.stream(topic)
    with client.consumer(topic, group="g", start="all", name="dead") as dead:
        dead.poll(2)
    assert [each.gone for each in view.consumers("g")] == [False]
    time.sleep(0.3)
    assert view.remove_gone_consumers("g", idle_s=60) == []
    assert view.remove_gone_consumers("g", idle_s=0.2) == ["dead"]
    assert view.consumers("g") == []
    with client.consumer(topic, group="g") as consumer:  # long before the lease of 60 s
        found = consumer.poll(10, 2.0)
        assert sorted((delivery.text, delivery.attempt) for delivery in found) == [("a", 2), ("b", 2), ("c", 1)]
        assert view.remove_consumer("g", "nobody") == 0
        consumer.ack(found)
    assert view.remove_consumer("g", view.consumers("g")[0].name) == 0
    assert view.consumers("g") == []


def test_a_group_that_is_gone_with_its_stream_begins_anew(
    client: RmqClient, redis_client: Any, make_stream: MakeStream
) -> None:
    topic = make_stream()
    with client.consumer(topic, group="g") as consumer:
        redis_client.delete(f"{topic.name}_0")  # as after a failover that lost it
        send(client, topic, "a")
        assert drain_entries(consumer, 2.0) == ["a"]


# --- all together


def test_fan_out_to_3_groups_of_4_consumers(
    redis_url: str, client: RmqClient, side: Side, make_stream: MakeStream
) -> None:
    topic = make_stream(slots=4)
    number = 10_000
    seen = {group: Counter[str]() for group in ("a", "b", "c")}
    lock = threading.Lock()
    clients: list[RmqClient] = []
    for group, counter in seen.items():
        for _ in range(4):
            worker = side.client(redis_url)
            clients.append(worker)

            @worker.listener(topic, group=group, start="all", batch=500)
            def handle(deliveries: list[Delivery], counter: Counter[str] = counter) -> None:
                with lock:
                    counter.update(delivery.text for delivery in deliveries)

            worker.start()
    try:
        client.producer(topic).send_many(StreamMessage(f"m{each}") for each in range(number))
        view = client.stream(topic)
        wait_until(lambda: all(group.total("acked") == number for group in view.groups()), 60)
    finally:
        for worker in clients:
            worker.close()
    for group, counter in seen.items():
        assert len(counter) == sum(counter.values()) == number, group
    assert [(group.pending, group.lag, group.dead) for group in view.groups()] == [(0, 0, 0)] * 3


def test_an_ack_of_some_leaves_the_others_of_their_claim(
    client: RmqClient, make_stream: MakeStream, redis_client: Any
) -> None:
    """Claims after a full one hold what they read in names of their own, which one command acks: not here."""
    topic = make_stream()
    send(client, topic, *(str(number) for number in range(400)))
    with client.consumer(topic, group="g", start="all") as consumer:
        consumer.ack(consumer.poll(100))
        page = consumer.poll(100)
        (name,) = {str(row["consumer"]) for row in pending_rows(redis_client, topic, 0, "g")}
        assert "#" in name
        assert consumer.ack(page[:60]) == []
        assert consumer.extend(page[60:]) == []
        assert page[60].nack(delay="0s")
        left = sorted(row.id for row in client.stream(topic).pending("g"))
        assert left == sorted(ids(page[60:]))
        assert consumer.ack(page[61:]) == []
        rest = consumer.poll(300)
        assert {each.id: each.attempt for each in map(entry, rest)}[entry(page[60]).id] == 2
        assert consumer.ack(rest) == []
    group = client.stream(topic).group("g")
    assert (group.pending, len(rest), client.stream(topic).stats().length) == (0, 201, 400)


def test_who_only_polls_keeps_a_stream_within_its_bounds(side: Side, redis_url: str, make_stream: MakeStream) -> None:
    """No listener runs, which would trim it."""
    bounds = Retention(max_length=100, every=timedelta(seconds=1), approximate=False)
    topic = make_stream(slots=2, retention=bounds)
    with side.client(redis_url) as client:
        stream = client.stream(topic)
        stream.add_group("billing", "all")
        for number in range(4):
            send(client, topic, *(f"m{number}-{i}" for i in range(100)))
        with client.consumer(topic, group="billing") as consumer:

            def within() -> bool:
                consumer.ack(consumer.poll(1_000, timeout=0))
                return stream.stats().length <= 104

            wait_until(within, message="the entries beyond the bound to go")


def test_each_group_has_the_whole_rate(client: RmqClient, make_stream: MakeStream, redis_client: Any) -> None:
    topic = make_stream(max_rate=0.001, max_burst=5)
    stream, groups = client.stream(topic), ("billing", "audit", "late")
    for group in groups:
        stream.add_group(group, "all")
    send(client, topic, *(f"m{i}" for i in range(20)))
    for group in groups[:2]:
        with client.consumer(topic, group=group) as consumer:
            assert sum(len(drain_entries(consumer)) for _ in range(3)) == 5
    client.change_topic(topic.changed(max_burst=2))
    with client.consumer(topic, group="late") as consumer:
        assert len(drain_entries(consumer)) == 2
    for group in groups:
        assert redis_client.exists(group_rate_key(topic.name, group))
        stream.remove_group(group, force=True)
        assert not redis_client.exists(group_rate_key(topic.name, group))
    redis_client.delete(rate_key(topic.name))
