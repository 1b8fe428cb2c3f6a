"""Queries that follow STREAM topics, on a real Redis without Spark: Spark's calls are made by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from rmq import Retention, RmqClient, StreamMessage, Topic, TopicType
from rmq.errors import BatchAckedError, BatchError, BatchLostError, DriverReplacedError, InvalidValueError
from rmq.spark.options import parse_options
from rmq.spark.schema import ENTRIES
from rmq.spark.source.commits import tell
from rmq.spark.source.reader import LogStreamReader
from tests.conftest import MakeTopic
from tests.support.waiting import wait_until

ALL = ReadAllAvailable()
LIMIT_S = 30


class Query:
    """A query on a checkpoint that is kept here: `end` of its last batch, and whether Spark has committed that."""

    def __init__(self, url: str, topic: Topic, **options: str) -> None:
        given = {"url": url, "topic": topic.name, "group": "files", "start": "all", **options}
        self._make = lambda: LogStreamReader(ENTRIES, parse_options(given), topic)
        self.reader = self._make()
        self.start = self.end = self._logged(self.reader.initialOffset())

    def _logged(self, offset: Mapping[str, Any]) -> dict[str, Any]:
        return json.loads(json.dumps(offset))

    def restart(self) -> None:
        """End the driver, as a kill does, and start the next one on the same checkpoint."""
        self.reader.stop()
        self.reader = self._make()

    def plan(self, limit: ReadLimit = ALL) -> bool:
        """Commit the last batch, and plan the next; return whether there is one."""
        found = self._logged(self.reader.latestOffset(self.end, limit))
        self.start, planned, self.end = self.end, found != self.end, found
        return planned

    def read(self) -> list[tuple[int, str, bytes]]:
        rows: list[tuple[int, str, bytes]] = []
        for part in self.reader.partitions(self.start, self.end):
            for batch in self.reader.read(part):
                rows += [(row["slot"], row["id"], row["content"]) for row in batch.to_pylist()]
        return rows

    def batches(self, limit: ReadLimit = ALL, most: int = 1_000) -> list[list[str]]:
        """Read batch by batch until there is nothing."""
        found: list[list[str]] = []
        while len(found) < most and self.plan(limit):
            found.append([content.decode() for _, _, content in self.read()])
        return found


MakeQuery = Callable[..., Query]


@pytest.fixture
def make_query(redis_url: str) -> Iterator[MakeQuery]:
    made: list[Query] = []

    def make(topic: Topic, **options: str) -> Query:
        made.append(Query(redis_url, topic, **options))
        return made[-1]

    yield make
    for query in made:
        query.reader.stop()


@pytest.fixture
def log(make_topic: MakeTopic, sender: RmqClient) -> Topic:
    topic = make_topic(TopicType.STREAM, slots=4, checked=False, retention=Retention(max_length=0, approximate=False))
    sender.producer(topic)
    return topic


def fill(sender: RmqClient, topic: Topic, number: int, name: str = "e") -> list[str]:
    contents = [f"{name}{n}" for n in range(number)]
    sender.producer(topic).send_many(StreamMessage(content) for content in contents)
    return contents


def test_batches_have_all_entries_once_and_in_order(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    sent = fill(sender, log, 5_000)
    query = make_query(log)
    batches = query.batches(ReadMaxRows(1_200))
    assert [len(batch) for batch in batches] == [1_200] * 4 + [200]
    found = [content for batch in batches for content in batch]
    assert sorted(found) == sorted(sent)
    for slot in range(4):
        own = [content for content in sent if log.slot_of(content.encode()) == slot]
        assert [content for content in found if content in set(own)] == own
    assert sender.stream(log).group("files").lag == 0
    progress = query.reader.reportLatestOffset() or {}
    assert progress.pop("redis_s") > 0
    done = {"acked": 5_000, "redelivered": 0, "lost": 0}
    assert progress == {"topic": log.name, "group": "files", "behind": 0, **done}


def test_a_replay_is_identical_whatever_was_sent_meanwhile(
    sender: RmqClient, log: Topic, make_query: MakeQuery
) -> None:
    fill(sender, log, 500)
    query = make_query(log)
    assert query.plan(ReadMaxRows(200))
    before = query.read()
    assert len(before) == 200
    fill(sender, log, 100, "later")
    sender.stream(log).trim()
    query.restart()
    assert query.read() == before
    assert query.read() == before, "a second action"
    rest = query.batches()
    assert sum(map(len, rest)) == 400
    query.reader.stop()
    [report] = sender.stream(log).spark_queries()
    assert (report.role, report.name, report.behind) == ("source", "files", 0)
    assert report.totals == {"acked": 600, "refused": 0, "redelivered": 200, "lost": 0}
    assert report.redis_s > 0


def test_clean_ups_leave_what_is_not_committed(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    fill(sender, log, 400)
    query = make_query(log)
    assert query.plan(ReadMaxRows(100))
    sender.stream(log).trim()
    assert sender.stream(log).stats().length == 400, "the batch is not committed"
    assert len(query.read()) == 100
    assert query.plan(ReadMaxRows(100))
    sender.stream(log).trim()
    assert sender.stream(log).stats().length == 300
    query.restart()
    assert sum(map(len, query.batches())) == 200
    sender.stream(log).trim()
    assert sender.stream(log).stats().length == 0


def test_the_group_moves_when_spark_tells_of_its_commit(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    fill(sender, log, 50)
    query = make_query(log)
    assert query.plan()
    assert len(query.read()) == 50
    assert sender.stream(log).group("files").lag == 50
    assert tell(json.dumps(query.end))
    wait_until(lambda: sender.stream(log).group("files").lag == 0, LIMIT_S)
    assert not query.plan()
    stats = sender.stream(log).group("files")
    assert [stats.total(name) for name in ("fresh", "acked", "skipped")] == [50, 50, 0]


def test_a_driver_that_ends_between_commit_and_ack_repeats_nothing(
    sender: RmqClient, log: Topic, make_query: MakeQuery
) -> None:
    fill(sender, log, 50)
    query = make_query(log)
    assert query.plan()
    assert len(query.read()) == 50
    query.restart()
    query.reader.commit(query.end)  # Spark tells of the last committed batch again
    fill(sender, log, 7, "later")
    assert sum(map(len, query.batches())) == 7
    assert sender.stream(log).group("files").lag == 0


@pytest.mark.parametrize("how", ["running", "restarted"])
def test_a_failover_that_has_lost_commits_repeats_and_reports_nothing(
    sender: RmqClient, redis_client: redis.Redis, log: Topic, make_query: MakeQuery, how: str
) -> None:
    fill(sender, log, 80)
    query = make_query(log)
    assert query.plan(ReadMaxRows(20))
    query.read()
    groups = [f"group:files{{{log.name}_{slot}}}" for slot in range(4)]
    before = [redis_client.dump(group) for group in groups]
    assert len(query.batches(ReadMaxRows(20), most=2)) == 2
    for slot, (group, kept) in enumerate(zip(groups, before, strict=True)):  # as of the replica that took over
        redis_client.xgroup_setid(f"{log.name}_{slot}", "files", "0-0")
        redis_client.restore(group, 0, kept or b"", replace=True)
    if how == "restarted":
        query.restart()
    assert sum(map(len, query.batches(ReadMaxRows(10)))) == 20
    fill(sender, log, 8, "later")
    wait_until(lambda: query.plan(), LIMIT_S)
    assert len(query.read()) == 8
    assert not query.plan()
    wait_until(lambda: not query.plan() and sender.stream(log).group("files").total("fresh") == 88, LIMIT_S)
    sender.stream(log).trim()
    assert (sender.stream(log).group("files").lag, sender.stream(log).stats().length) == (0, 0)


def test_others_that_consume_as_the_group_end_the_query(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    fill(sender, log, 40)
    query = make_query(log)
    assert query.plan(ReadMaxRows(20))
    with sender.consumer(log, group="files") as consumer:
        while deliveries := consumer.poll(max_messages=50, timeout=0.1):
            for delivery in deliveries:
                delivery.ack()
    with pytest.raises(BatchAckedError, match="another consumer uses this group"):
        query.plan()


def test_a_checkpoint_of_another_topic_is_refused(
    sender: RmqClient, make_topic: MakeTopic, log: Topic, make_query: MakeQuery
) -> None:
    other = make_topic(TopicType.STREAM, slots=4, checked=False)
    fill(sender, log, 4)
    sender.producer(other)
    query, wrong = make_query(log), make_query(other)
    assert query.plan()
    wrong.end = query.end
    with pytest.raises(BatchError, match=f"this checkpoint belongs to topic {log.name} and group files"):
        wrong.plan()


@pytest.mark.parametrize("how", ["new", "all", "id", "time"])
def test_where_a_new_group_begins(sender: RmqClient, log: Topic, make_query: MakeQuery, how: str) -> None:
    basis = "one slot"
    first = [sender.producer(log).send(StreamMessage(f"a{n}", slot_basis=basis)).ids[0] for n in range(3)]
    wait_until(lambda: time.time() * 1_000 > int(first[-1].split("-")[0]) + 1, LIMIT_S)
    time_ms = int(sender.producer(log).send(StreamMessage("b", slot_basis=basis)).ids[0].split("-")[0])
    start = {"id": first[1], "time": datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat()}.get(how, how)
    query = make_query(log, start=start)
    expected = {"new": [], "all": ["a0", "a1", "a2", "b"], "id": ["a2", "b"], "time": ["b"]}[how]
    assert [content for batch in query.batches() for content in batch] == expected
    sender.producer(log).send(StreamMessage("c", slot_basis=basis))
    assert [content for batch in query.batches() for content in batch] == ["c"]
    other = make_query(log, start="all")
    assert other.batches() == [], "the group is not new any more"


def test_available_now_ends(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    fill(sender, log, 300)
    query = make_query(log)
    query.reader.prepareForTriggerAvailableNow()
    assert query.plan(ReadMaxRows(100))
    fill(sender, log, 100, "later")
    assert sum(map(len, query.batches(ReadMaxRows(150)))) == 200
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert sum(map(len, query.batches(ReadMaxRows(30)))) == 100
    assert sender.stream(log).group("files").lag == 0


def test_a_last_entry_ends_what_is_read(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    sender.producer(log).send_many(StreamMessage(f"old{n}", id=f"{1_000 + n}-0") for n in range(20))
    fill(sender, log, 10)
    for last, number in (("1011", 12), ("1011-0", 0), ("1019-5", 8), ("2000", 0)):
        query = make_query(log, last=last)
        query.reader.prepareForTriggerAvailableNow()
        assert sum(map(len, query.batches(ReadMaxRows(5)))) == number
    assert sum(map(len, make_query(log).batches())) == 10


def test_a_bound_in_bytes(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    messages = [StreamMessage(f"e{n}", body=bytes(100_000), slot_basis="one slot") for n in range(30)]
    sender.producer(log).send_many(messages)
    query = make_query(log, maxBytesPerTrigger="1m")
    assert [len(batch) for batch in query.batches()] == [10, 10, 10]
    sender.producer(log).send(StreamMessage("large", body=bytes(1_000_000), slot_basis="one slot"))
    assert [len(batch) for batch in make_query(log, group="other", maxBytesPerTrigger="1").batches(most=3)] == [1] * 3


def test_a_large_entry_behind_empty_slots_is_read(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    name = next(name for name in map(str, range(100)) if log.slot_of(name.encode()) == 3)
    sender.producer(log).send(StreamMessage(name, body=bytes(100_000)))
    query = make_query(log, maxBytesPerTrigger="10")
    assert query.plan(ReadMaxRows(1))
    assert len(query.read()) == 1


@pytest.mark.parametrize("fails", [True, False])
def test_entries_that_vanish_before_they_are_planned_are_told_of(
    sender: RmqClient, log: Topic, make_query: MakeQuery, fails: bool
) -> None:
    fill(sender, log, 40)
    query = make_query(log, failOnDataLoss=str(fails).lower())
    assert len(query.batches(ReadMaxRows(10), most=1)) == 1
    assert query.plan(ReadMaxRows(10))
    gone = list(sender.stream(log).range())[-3:]
    for entry in gone:
        sender.stream(log).delete(entry.id, slot=entry.slot)
    if fails:
        with pytest.raises(BatchError, match=r"entries of slot \d were trimmed or deleted before group files"):
            query.plan()
        return
    assert sum(map(len, query.batches())) == 17
    assert sender.stream(log).group("files").total("skipped") == 3
    assert not query.plan(), "told of once"
    assert sender.stream(log).group("files").lag == 0


def test_a_slot_of_which_all_is_gone_is_told_of_once(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    fill(sender, log, 40)
    query = make_query(log, failOnDataLoss="false")
    assert query.plan()
    assert len(query.read()) == 40
    assert not query.plan()
    fill(sender, log, 40, "later")
    for entry in [entry for entry in sender.stream(log).range() if entry.slot == 2]:
        sender.stream(log).delete(entry.id, slot=2)
    gone = sum(log.slot_of(f"later{n}".encode()) == 2 for n in range(40))
    wait_until(lambda: query.plan(), LIMIT_S)
    assert len(query.read()) == 40 - gone
    assert not query.plan()
    query.restart()
    assert not query.plan()
    assert sender.stream(log).group("files").total("skipped") == gone


@pytest.mark.parametrize("fails", [True, False])
def test_entries_that_vanish_after_they_are_planned_are_told_of(
    sender: RmqClient, log: Topic, make_query: MakeQuery, fails: bool
) -> None:
    fill(sender, log, 40)
    query = make_query(log, failOnDataLoss=str(fails).lower())
    assert query.plan()
    entry = next(iter(sender.stream(log).range()))
    sender.stream(log).delete(entry.id, slot=entry.slot)
    if fails:
        with pytest.raises(BatchLostError, match="1 entries of slot"):
            query.read()
    else:
        assert len(query.read()) == 39


@pytest.mark.parametrize("fails", [True, False])
def test_a_group_that_is_gone_is_told_of(sender: RmqClient, log: Topic, make_query: MakeQuery, fails: bool) -> None:
    fill(sender, log, 40)
    query = make_query(log, failOnDataLoss=str(fails).lower())
    assert sum(map(len, query.batches())) == 40
    sender.stream(log).remove_group("files")
    query.restart()
    fill(sender, log, 5, "later")
    if fails:
        with pytest.raises(BatchError, match="is missing in 4 slots"):
            query.plan()
    else:
        assert sum(map(len, query.batches())) == 5


def test_a_driver_that_was_replaced_commits_nothing(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    fill(sender, log, 40)
    old = make_query(log)
    assert old.plan(ReadMaxRows(20))
    new = make_query(log)
    assert new.plan()
    assert len(new.read()) == 40
    with pytest.raises(DriverReplacedError, match="another driver"):
        old.plan()
    assert not new.plan()


def test_an_old_copy_of_a_checkpoint_is_refused(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    fill(sender, log, 40)
    query = make_query(log)
    assert query.plan(ReadMaxRows(20))
    old = query.end
    assert sum(map(len, query.batches())) == 20
    query.end = old
    query.restart()
    with pytest.raises(BatchAckedError, match="Its checkpoint is an old copy"):
        query.plan()


def test_a_group_with_consumers_is_refused(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    fill(sender, log, 4)
    with sender.consumer(log, group="files", start="all") as consumer:
        assert consumer.poll(max_messages=10, timeout=5)
        query = make_query(log)
        with pytest.raises(InvalidValueError, match="the group has 1 consumers"):
            query.plan()


def test_a_paused_group_reads_nothing(sender: RmqClient, log: Topic, make_query: MakeQuery) -> None:
    fill(sender, log, 4)
    query = make_query(log)
    assert sum(map(len, query.batches())) == 4
    fill(sender, log, 4, "later")
    sender.stream(log).pause("files")
    query.restart()
    assert not query.plan()
    sender.stream(log).resume("files")
    query.restart()
    assert sum(map(len, query.batches())) == 4


def test_an_idle_query_asks_little(
    sender: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic, make_query: MakeQuery
) -> None:
    topic = make_topic(TopicType.STREAM, slots=64, checked=False)
    sender.producer(topic)
    query = make_query(topic)
    assert not query.plan()

    def asked() -> int:
        return redis_client.info("stats")["total_commands_processed"]  # pyright: ignore[reportIndexIssue, reportReturnType, reportUnknownVariableType]

    before = asked()
    for _ in range(10):  # two seconds of triggers that follow one another
        assert not query.plan()
    assert asked() - before <= 100
    sender.producer(topic).send(StreamMessage("a"))
    wait_until(lambda: query.plan(), LIMIT_S)
    assert len(query.read()) == 1
