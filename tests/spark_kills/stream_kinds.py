"""Kinds that follow a STREAM topic or fill topics: no leases, and so no excuses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset  # pyright: ignore[reportMissingTypeStubs]

from rmq import Fixed, Merge, Retention, RmqClient, StreamMessage, Sum, Topic, TopicType
from tests.spark_kills.actors import Cleaner, Collector, Sender
from tests.spark_kills.judging import Verdict, judge_files, judge_target
from tests.spark_kills.kinds import (
    KEEP,
    NOBODY,
    PER_SECOND,
    SETTLED_S,
    Fed,
    Kind,
    add,
    differences,
    entries,
    wait_taken,
)
from tests.spark_kills.lives import Kill
from tests.spark_kills.queue_kinds import FanOut, Queues, Refusals
from tests.support.waiting import wait_until


class Log(Fed):
    """A query that follows a STREAM topic into files, while another group reads and the topic is trimmed."""

    program = "files"

    def __init__(self, client: RmqClient, folder: Path, chance: random.Random) -> None:
        super().__init__(client, folder, chance)
        self.topic = Topic(
            "kills-stream", TopicType.STREAM, slots=4, retention=Retention(max_length=0, approximate=False)
        )
        client.producer(self.topic)
        client.stream(self.topic).add_group("files", start="all")
        self.sender = Sender(client.url, [self.topic], chance, PER_SECOND)
        self.cleaner = Cleaner(client.url, self.topic, "others")

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Let somebody send, and others read and trim."""
        with self.cleaner, self.sender:
            yield

    def told(self, life: int) -> dict[str, Any]:
        """Name the topic."""
        options = {"topic": self.topic.name, "group": "files", "start": "all", "maxMessagesPerTrigger": self.batch}
        return {"source": options}

    def after(self) -> None:
        """Keep what the newest batch has in its files: it may come back."""
        self.keep_newest()

    def judge(self, kills: Collection[Kill]) -> Verdict:
        """Judge files, and what the other group has read."""
        sent = self.sender.sent
        wait_until(lambda: len(self.cleaner.found) >= len(sent), SETTLED_S)
        verdict = judge_files(sent, self.files(), [], NOBODY)
        verdict.changed += self.changed_files(NOBODY)
        stream = self.client.stream(self.topic)
        if (lag := stream.group("files").lag) != 0:
            verdict.accounts.append(f"group files is {lag} entries behind")
        verdict.lost += [f"{content}: not read by the other group" for content in set(sent) - self.cleaner.found.keys()]
        return verdict


class Sinks(Fed):
    """Three queries that send one stream to three topics: to a STREAM, to a queue, and to a topic that sums."""

    program = "sinks"

    def __init__(self, client: RmqClient, folder: Path, chance: random.Random) -> None:
        super().__init__(client, folder, chance)
        self.topic = Topic("kills-in", TopicType.STREAM, slots=4, retention=KEEP)
        self.log = Topic("kills-log", TopicType.STREAM, slots=2, retention=KEEP)
        self.queue = Topic("kills-queue", TopicType.PRIORITY, slots=2)
        self.sums = Topic("kills-sums", TopicType.RANGE_MERGE, slots=2, merge=Merge(Sum(), window=Fixed("300ms")))
        for topic in (self.topic, self.log, self.queue, self.sums):
            client.producer(topic)
        for group in (self.log, self.queue, self.sums):
            client.stream(self.topic).add_group(group.name, start="all")
        self.sender = Sender(client.url, [self.topic], chance, PER_SECOND)
        self.collectors = [Collector(client.url, topic) for topic in (self.queue, self.sums)]

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Let somebody send, and others take what comes."""
        with ExitStack() as stack:
            for each in (*self.collectors, self.sender):
                stack.enter_context(each)
            yield

    def told(self, life: int) -> dict[str, Any]:
        """Name the topics."""
        text = "cast(content as string)"
        return {
            "source": {"topic": self.topic.name, "maxMessagesPerTrigger": self.batch},
            "targets": {
                self.log.name: ["content", "body"],
                self.queue.name: ["content", "body", "1 + slot as priority"],
                self.sums.name: [f"right({text}, 2) content", f"cast(substr({text}, 2) as int) as value"],
            },
        }

    def judge(self, kills: Collection[Kill]) -> Verdict:
        """Judge each target."""
        sent = self.sender.sent
        for topic in (self.queue, self.sums):
            wait_taken(self.client, topic)
        verdict = judge_target(self.log.name, sent, entries(self.client, self.log), [], NOBODY)
        add(verdict, judge_target(self.queue.name, sent, self.collectors[0].found, [], NOBODY))
        sums, counts = Counter[str](), Counter[str]()
        for content in sent:
            sums[content[-2:]] += int(content[1:])
            counts[content[-2:]] += 1
        verdict.accounts += differences("values", sums, self.collectors[1].values)
        verdict.accounts += differences("merged", counts, self.collectors[1].merged)
        verdict.rows += len(sent)
        return verdict


class Once(Kind):
    """A job that writes a table to a topic that sums, under a name; it is run again until it has ended."""

    program = "once"
    rows, contents, rate = 120_000, 500, 30_000

    def __init__(self, client: RmqClient, folder: Path, chance: random.Random) -> None:
        super().__init__(client, folder, chance)
        self.topic = Topic("kills-once", TopicType.RANGE_MERGE, slots=4, merge=Merge(Sum(), window=Fixed("300ms")))
        client.producer(self.topic)
        self.collector = Collector(client.url, self.topic)

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Let somebody take what comes."""
        with self.collector:
            yield

    def told(self, life: int) -> dict[str, Any]:
        """Say what to write."""
        return {"topic": self.topic.name, "rows": self.rows, "contents": self.contents, "rate": self.rate}

    def judge(self, kills: Collection[Kill]) -> Verdict:
        """Judge sums and counts."""
        wait_taken(self.client, self.topic)
        jobs = len(list((self.folder / "done").iterdir()))
        each = jobs * self.rows // self.contents
        expected = {f"c{n}": each for n in range(self.contents)}
        verdict = Verdict(rows=jobs * self.rows)
        verdict.accounts += differences("values", expected, self.collector.values)
        verdict.accounts += differences("merged", expected, self.collector.merged)
        return verdict


class Archive(Kind):
    """The job that moves old entries of a STREAM topic to files."""

    program = "archive"
    old_per_life, hour_ms, first_ms = 4_500, 3_600_000, 1_780_000_000_000

    def __init__(self, client: RmqClient, folder: Path, chance: random.Random) -> None:
        super().__init__(client, folder, chance)
        self.topic = Topic("kills-archive", TopicType.STREAM, slots=8, retention=Retention(max_length=None))
        self._producer = client.producer(self.topic)
        self.sent = 0

    def make_work(self, life: int) -> None:
        """Send entries of old days: three batches."""
        first = self.sent
        spread_ms = 12 * self.hour_ms // self.old_per_life
        self._producer.send_many(
            StreamMessage(f"old{n}", id=f"{self.first_ms + n * spread_ms}-0")
            for n in range(first, first + self.old_per_life)
        )
        self.sent += self.old_per_life

    def told(self, life: int) -> dict[str, Any]:
        """Say what to do, and what archive and topic have together."""
        settings = {"topic": self.topic.name, "older_than_ms": self.hour_ms, "batch": self.batch}
        return {"settings": settings, "sent": {"old": self.sent}, "check": life % 3 == 2}

    def judge(self, kills: Collection[Kill]) -> Verdict:
        """Judge the archive's files, the topic, and what runs had seen of both as one table."""
        old = {f"old{n}" for n in range(self.sent)}
        found = dataset.dataset(f"{self.folder}/archive/entries", partitioning="hive")
        stored = Counter(content.decode() for content in found.to_table(["content"])["content"].to_pylist())
        verdict = Verdict(rows=len(old))
        verdict.lost += sorted(old - stored.keys())
        verdict.twice += [f"{content}: {times} times" for content, times in stored.items() if times > 1]
        verdict.accounts += [f"{content}: nobody has sent it" for content in stored.keys() - old]
        if left := self.client.stream(self.topic).stats().length:
            verdict.accounts.append(f"{left} archived entries are still in the topic")
        looks = self.runs("looked")
        verdict.accounts += [f"run {each.life} saw {each.number} wrong rows" for each in looks if each.number]
        return verdict


KINDS: dict[str, type[Kind]] = {
    "source": Queues,
    "refusals": Refusals,
    "stream": Log,
    "archive": Archive,
    "sinks": Sinks,
    "fan-out": FanOut,
    "once": Once,
}
