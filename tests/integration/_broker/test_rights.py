"""The rights that docs/operate/operations.md asks for are enough: all runs under that ACL (pitfall 46)."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq import (
    ControlResult,
    DeadFilter,
    DelayedQueue,
    Delivery,
    FixedTimeMessage,
    ImmediateRetry,
    Leading,
    Merge,
    PriorityMessage,
    RangeMergeMessage,
    RedisOwners,
    RmqClient,
    StreamMessage,
    Sum,
    Topic,
    TopicType,
)
from rmq.errors import RmqError, ScriptFailedError
from rmq.spark import calls
from rmq.spark.calls import Driver, How, Reading, refuse_contents
from rmq.spark.marks import Mark, send_once
from tests.support.core import EncodedMessage, EpochFloors, default_scripts, streams
from tests.support.dashboard import served as dashboard
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

OPERATIONS = Path(__file__).resolve().parents[3] / "docs" / "operate" / "operations.md"


def documented() -> list[list[str]]:
    """The ACLs of the page: for all but streams and owners, for streams, and for owners."""
    found = re.findall(r"```\n(ACL SETUSER.*?)```", OPERATIONS.read_text("utf-8"), re.DOTALL)
    assert len(found) == 3
    return [text.split() for text in found]


@contextmanager
def served(acls: list[list[str]], *more: str) -> Generator[RmqClient]:
    with RedisServer() as server, server.connect() as admin:
        for acl in acls:
            admin.execute_command(*acl)
        if more:
            admin.execute_command("ACL", "SETUSER", "rmq", *more)
        with RmqClient(f"redis://rmq:secret@127.0.0.1:{server.port}") as client:
            yield client


@pytest.fixture
def client() -> Iterator[RmqClient]:
    with served(documented()[:1]) as client:
        yield client


def test_no_command_is_missing_and_none_is_granted_in_vain() -> None:
    library, plain = default_scripts(), set[str]()
    for name in library.names():
        plain |= set(re.findall(r"'(Z\w*RANGE)'", library.text(name)))
        for command, sub in re.findall(r"redis\.p?call\(\s*'(\w+)'(?:, '([A-Z]+)')?", library.text(name)):
            plain.add(f"{command}|{sub}" if command in ("XINFO", "XGROUP") else command)
    by_hand = {"evalsha", "script|load", "info", "subscribe", "unsubscribe", "publish", "ping"}
    by_hand |= {"hkeys", "hsetnx", "lrange"}  # the registry and the history read and write without a script
    by_hand |= {"get", "set"}  # workers with owners compare their Redis by its identity
    by_hand |= {"multi", "exec", "hgetall"}  # Spark reads a slot at one instant in a transaction
    granted = {right[1:] for acl in documented() for right in acl if right.startswith("+")}
    assert granted == {command.lower() for command in plain} | by_hand


def test_workers_compare_their_redis_under_the_documented_rights(client: RmqClient) -> None:
    floors = EpochFloors(client._connections)  # pyright: ignore[reportPrivateUsage]
    assert floors.redis("mine") == floors.redis("") == "mine"
    floors.count("zk", 7)
    assert floors.counted() == {"zk": 7}


def test_topics_that_merge_run_under_the_documented_rights(client: RmqClient) -> None:
    merge = Merge(Sum(), window=Leading("1ms"))
    topic = Topic("shop.sums", TopicType.RANGE_MERGE, max_retries=0, retry=ImmediateRetry(), merge=merge)
    producer = client.producer(topic)
    producer.send_many((RangeMergeMessage("a", body=1) for _ in range(3)), fold=True, once="first")
    with client.consumer(topic) as consumer:
        (delivery,) = consumer.poll(timeout=10)
        assert delivery.value == 3
        delivery.nack(error="no")
        assert client.dead(topic).redrive().redriven == 1
        (delivery,) = consumer.poll(timeout=10)
        assert (delivery.value, delivery.ack()) == (3, True)


def test_everything_runs_under_the_documented_rights(client: RmqClient) -> None:
    jobs = Topic("shop.jobs", TopicType.PRIORITY, slots=2, max_retries=1, retry=ImmediateRetry())
    seen: list[str] = []

    @client.listener(jobs)
    def work(delivery: Delivery) -> None:
        seen.append(delivery.text)
        if delivery.text == "bad":
            raise ValueError("no")

    client.start()
    producer = client.producer(jobs)
    producer.send_many(PriorityMessage(f"job:{i}", 100, body=b"b" if i % 2 else None) for i in range(50))
    producer.send(PriorityMessage("bad", 200))
    wait_until(lambda: client.inspect(jobs).stats().total("acked") == 50)
    wait_until(lambda: client.inspect(jobs).stats().dead == 1)
    client.stop()
    assert sorted(set(seen)) == sorted(["bad", *(f"job:{i}" for i in range(50))])
    dead = client.dead(jobs)
    assert [message.error_type for message in dead.list(DeadFilter(matching="b*"))] == ["ValueError"]
    assert dead.redrive().redriven == 1
    assert client.control(jobs).reschedule("bad", priority=300) is ControlResult.DONE
    assert client.control(jobs).promote("bad") is ControlResult.DONE
    assert (client.control(jobs).pause(), client.control(jobs).resume()) == (2, 2)
    assert client.inspect(jobs).find("bad").stored is not None
    assert [found.text for found in client.inspect(jobs).search("b*").messages] == ["bad"]
    assert client.inspect(jobs).dead_reasons().total == 0
    assert len(client.inspect(jobs).audit()) == 6
    assert client.workers() == []
    assert client.control(jobs).cancel("bad") is ControlResult.DONE
    assert client.inspect(jobs).stats().unaccounted == 0
    assert [topic.name for topic in client.topics()] == ["shop.jobs"]


def test_streams_run_under_the_documented_rights() -> None:
    with served(documented()) as client:
        log = Topic("shop.log", TopicType.STREAM, slots=2, max_retries=1, retry=ImmediateRetry())
        seen: list[str] = []

        @client.listener(log, group="mail", start="all")
        def work(delivery: Delivery) -> None:
            seen.append(delivery.text)
            if delivery.text == "bad":
                raise ValueError("no")

        client.producer(log).send_many(StreamMessage(f"entry {i}") for i in range(20))
        client.producer(log).send(StreamMessage("bad"))
        client.start()
        wait_until(lambda: client.stream(log).group("mail").total("acked") == 20)
        wait_until(lambda: client.stream(log).group("mail").dead == 1)
        client.stop()
        stream = client.stream(log)
        assert stream.dead("mail").redrive().redriven == 1
        with client.consumer(log, group="mail", name="me") as consumer:
            found = consumer.poll(timeout=50)
            assert [delivery.text for delivery in found] == ["bad"]
            assert consumer.extend(found) == []
            assert found[0].nack(delay="0s")
            assert [delivery.bury() for delivery in consumer.poll(timeout=50)] == [True]
        assert stream.dead("mail").purge() == 1
        assert len(list(stream.range())) == 21
        assert [stats.group for stats in stream.groups()] == ["mail"]
        assert {each.name for each in stream.consumers("mail")} >= {"me"}
        assert list(stream.pending("mail")) == []
        assert (stream.pause("mail"), stream.resume("mail")) == (2, 2)
        stream.add_group("other", "all")
        stream.move_group("other", "new")
        assert stream.remove_consumer("mail", "me") == 0
        assert stream.remove_group("other")
        first = next(iter(stream.range()))
        assert stream.delete(first.id, slot=first.slot) == 1
        stream.trim()


def test_delayed_queues_run_under_the_documented_rights(client: RmqClient) -> None:
    with DelayedQueue(client, "shop.later") as queue:
        queue.offer("a", "0s")
        queue.offer("b", "1h")
        assert queue.take(timeout=10) == b"a"
        assert (len(queue), list(queue), queue.remove("b")) == (1, [b"b"], True)


def test_a_querys_batches_are_read_and_sent_under_the_documented_rights(client: RmqClient) -> None:
    topic = Topic("shop.spark", TopicType.PRIORITY)
    client.producer(topic).send_many(PriorityMessage(f"m{i}", 100, body=b"b") for i in range(5))
    connections, topic = client._registered(topic)
    run = connections.run
    driver = Driver("q1", run(calls.enter(topic, "q1")).generation)
    assert run(calls.read(topic, Reading(driver, 1, 10, 9, True), 0, 0, 10)).claimed == 5
    assert run(calls.settle(topic, 0, driver, 1, 0, "renew")).done == 5
    assert len(run(calls.read_place(topic, 0, "prepare", "scan", "0", 10)).rows) == 5
    claim, how = calls.Claim(driver, 1, 0), How(None, "", "bad")
    assert run(refuse_contents(topic, 0, claim, how, [b"m0"])).noted == 1
    assert run(refuse_contents(topic, 0, claim, How(1, "", "later"), [b"m1"])).noted == 1
    assert run(calls.settle(topic, 0, driver, 1, 0, "ack")) == calls.Settled(3, 0, 0, 2)
    messages = [EncodedMessage(0, b"new", 100, None)]
    mark = Mark("q1", 1, 0, 60).of(0, messages)
    assert run(send_once(topic, 0, messages, mark)).new == 1


def test_a_query_follows_a_stream_under_the_documented_rights() -> None:
    with served(documented()) as client:
        log = Topic("shop.spark.log", TopicType.STREAM)
        client.producer(log).send_many(StreamMessage(f"e{n}") for n in range(5))
        connections, topic = client._registered(log)
        run = connections.run
        assert run(streams.join(topic, 0, "files", "all"))
        assert run(calls.position(topic, 0, "files", "driver")).sent == 5
        walked = run(calls.walk(topic, 0, "files", calls.Reach("0-0", "+", 10, 1_000, True)))
        assert (walked.number, walked.more) == (5, False)
        assert run(calls.advance(topic, 0, "files", "driver", walked.last, 5, 0))
        assert run(calls.lock_run(topic, "files", "run", 1_000, keep=False))[0] == "run"
        assert run(calls.trim(topic, 0, "files", "driver", walked.last)).number == 5


def test_slots_are_owned_in_redis_under_the_documented_rights() -> None:
    with served(documented()) as client, RmqClient(client.url, owners=RedisOwners(2)) as worker:
        jobs, seen = Topic("shop.jobs", TopicType.PRIORITY, slots=4), list[int | None]()
        worker.listener(jobs)(lambda delivery: seen.append(delivery.fencing_token))
        worker.start()
        client.producer(jobs).send(PriorityMessage("a", 100))
        wait_until(lambda: seen)
        assert seen[0]


def test_the_dashboard_shows_all_under_the_documented_rights() -> None:
    with served(documented()) as client:
        client.producer(Topic("shop.jobs", TopicType.PRIORITY)).send(PriorityMessage("a", 100))
        client.producer(Topic("shop.log", TopicType.STREAM)).send(StreamMessage("a"))
        client.stream("shop.log").add_group("mail", "all")
        with dashboard(client) as address:
            search, dead = "/search?topic=shop.jobs", "/dead?topic=shop.jobs"
            for path in ("/", "/topic/shop.jobs", "/topic/shop.log", search, dead, "/audit"):
                with urllib.request.urlopen(address + path, timeout=30) as answer:
                    assert answer.status == 200, path
                    assert "NOPERM" not in answer.read().decode()


def test_without_a_right_to_the_channels_all_is_found_by_looking() -> None:
    with served(documented(), "resetchannels") as client:
        jobs = Topic("shop.jobs", TopicType.PRIORITY)
        seen: list[str] = []
        client.listener(jobs)(lambda delivery: seen.append(delivery.text))
        client.start()
        assert client.producer(jobs).send(PriorityMessage("a", 100)).new == 1
        assert client.producer(jobs).send_many(PriorityMessage(f"m{i}", 100) for i in range(5)).new == 5
        wait_until(lambda: len(seen) == 6)
        log = Topic("shop.log", TopicType.STREAM)
        assert client.producer(log).send(StreamMessage("a")).accepted == 1
        client.stop()


def test_both_time_topics_too(client: RmqClient) -> None:
    merged = Topic("shop.merged", TopicType.RANGE_MERGE)
    timed = Topic("shop.timed", TopicType.FIXED_TIME)
    for _ in range(2):
        client.producer(merged).send(RangeMergeMessage("a", time_range_ms=50))
    now_ms = client.inspect(merged).stats().slots[0].now_ms
    client.producer(timed).send(FixedTimeMessage("b", fixed_time_ms=now_ms + 500))
    for topic, content in ((merged, "a"), (timed, "b")):
        with client.consumer(topic) as consumer:
            found: list[Delivery] = []
            wait_until(lambda found=found, consumer=consumer: found.extend(consumer.poll(timeout=1.0)) or found)
            assert [delivery.text for delivery in found] == [content]
            assert consumer.extend(found) == []
            assert found[0].nack(delay="0s")
            assert [again.ack() for again in consumer.poll(timeout=50)] == [True]
        assert client.inspect(topic).peek() == []


@pytest.mark.parametrize(
    ("right", "says"),
    [
        ("-hset", r"NOPERM: the definition of topic shop\.jobs was not written"),
        ("-xadd", r"script audit was refused on slot 0 of topic shop\.jobs"),
        ("-evalsha", r"script audit was refused on slot 0 of topic shop\.jobs"),
        ("-@write", r"script audit was refused on slot 0 of topic shop\.jobs"),
    ],
)
def test_who_may_not_change_definitions_is_told_the_key(right: str, says: str) -> None:
    """Or that it is the line in the audit that was refused, which comes first."""
    topic = Topic("shop.jobs", TopicType.PRIORITY)
    with RedisServer() as server, server.connect() as admin:
        admin.execute_command(*documented()[0])
        with RmqClient(f"redis://rmq:secret@127.0.0.1:{server.port}") as client:
            client.producer(topic)
            admin.execute_command("ACL", "SETUSER", "rmq", right)
            with pytest.raises(ScriptFailedError, match=says):
                client.change_topic(topic.changed(max_retries=3))
            assert client.topic("shop.jobs").max_retries == 16


def test_who_may_not_read_definitions_is_told_the_key() -> None:
    with served(documented()[:1], "resetkeys", "~shop.*") as client:
        for use in (client.topics, lambda: client.topic("shop.jobs")):
            with pytest.raises(ScriptFailedError, match="NOPERM: this user of Redis may not read the key rmq:topics"):
                use()


def test_ids_of_ones_own_without_the_right_to_read_the_last_one() -> None:
    """Nothing is stored, and the error names what Redis said."""
    topic = Topic("shop.ids", TopicType.STREAM)
    acls = [[right for right in acl if not right.startswith("+xinfo|stream")] for acl in documented()]
    with served(acls) as client:
        producer = client.producer(topic)
        producer.send(StreamMessage("c"))  # without one it needs no such right
        with pytest.raises(RmqError, match=r"(?i)permission|can't run this command"):
            producer.send(StreamMessage("b", id="9999999999999-0"))
        assert len(list(client.stream(topic).range())) == 1
