"""Kinds that drain queues, beside a plain consumer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from rmq import RmqClient, Topic, TopicType
from tests.spark_kills.actors import LEASE_S, Collector, Rival, Sender
from tests.spark_kills.judging import Beside, Verdict, changed_runs, judge_files, judge_target
from tests.spark_kills.kinds import KEEP, PER_SECOND, Fed, add, entries, wait_taken
from tests.spark_kills.lives import Kill


class Queues(Fed):
    """A query that drains queues into files, beside a plain consumer."""

    program = "files"
    types = (TopicType.PRIORITY,)
    name = "source"

    def __init__(self, client: RmqClient, folder: Path, chance: random.Random) -> None:
        super().__init__(client, folder, chance)
        self.topics = [
            Topic(
                f"{self.name}-{type_.value.lower()}", type_, slots=4, lease=timedelta(seconds=LEASE_S), max_retries=200
            )
            for type_ in self.types
        ]
        for topic in self.topics:
            client.producer(topic)
        self.sender = Sender(client.url, self.topics, chance, PER_SECOND)
        self.rival = Rival(client.url, self.topics, chance, nacks=self.program == "files")

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Let somebody send, and a plain consumer work."""
        with self.rival, self.sender:
            yield

    def make_work(self, life: int) -> None:
        """Let the consumer take few again."""
        self.rival.eager.clear()
        super().make_work(life)

    def told(self, life: int) -> dict[str, Any]:
        """Name the topics."""
        return {"source": self.source()}

    def calm(self) -> None:
        """Stop the consumer, too."""
        super().calm()
        self.rival.stop()

    def is_settled(self) -> bool:
        """Return whether nothing is left."""
        stats = [self.client.inspect(topic).stats() for topic in self.topics]
        return not any(each.backlog + each.in_flight + each.waiting for each in stats)

    def source(self) -> dict[str, Any]:
        """Return the options of the source."""
        names = {"topics": ",".join(topic.name for topic in self.topics)}
        where = names if len(self.topics) > 1 else {"topic": self.topics[0].name}
        return {**where, "maxMessagesPerTrigger": self.batch, "maxReplays": 150}

    def after(self) -> None:
        """Keep what the newest batch has in its files: it may come back."""
        self.keep_newest()

    def rest(self, seconds: float) -> None:
        """Let the consumer take many once leases have ended."""
        if seconds > LEASE_S and self.chance.random() < 0.7:
            self.rival.eager.set()

    def judge(self, kills: Collection[Kill]) -> Verdict:
        """Judge files and accounts."""
        beside = self.beside(kills)
        verdict = judge_files(self.expected(), self.files(), self.runs("written"), beside)
        verdict.changed += self.changed_files(beside)
        verdict.accounts += self.accounts()
        return verdict

    def expected(self) -> list[str]:
        """Return the contents that have to be in files."""
        return self.sender.sent

    def beside(self, kills: Collection[Kill]) -> Beside:
        """Return what the consumer had."""
        return Beside(self.rival.deliveries, kills, LEASE_S)

    def accounts(self, dead: int = 0) -> list[str]:
        """Return what is wrong in the counts of the drained topics."""
        found: list[str] = []
        total = Counter[str]()
        for topic in self.topics:
            stats = self.client.inspect(topic).stats()
            total.update(dead=stats.dead, left=stats.backlog + stats.in_flight + stats.waiting)
            total.update(unaccounted=abs(stats.unaccounted))
        expected = {"dead": dead, "left": 0, "unaccounted": 0}
        found += [
            f"{name}: {total[name]} instead of {number}" for name, number in expected.items() if total[name] != number
        ]
        return found


class Refusals(Queues):
    """Several topics in one query, which refuses rows."""

    program = "refusals"
    name = "refusals"
    types = (TopicType.PRIORITY, TopicType.FIXED_TIME, TopicType.RANGE_MERGE)

    def source(self) -> dict[str, Any]:
        """Ask for what refusing needs."""
        return {**super().source(), "columns": "*, attempt, claim"}

    def expected(self) -> list[str]:
        """Return all but those that end with 7: they die."""
        return [content for content in self.sender.sent if not content.endswith("7")]

    def judge(self, kills: Collection[Kill]) -> Verdict:
        """Judge files, runs of batches, and the dead."""
        beside = self.beside(kills)
        verdict = judge_files(self.expected(), self.files(), self.runs("written"), beside)
        verdict.changed += changed_runs(self.runs("ran"), beside)
        bad = {content for content in self.sender.sent if content.endswith("7")}
        dead = Counter(each.text for topic in self.topics for each in self.client.dead(topic).list(limit=1_000_000))
        verdict.lost += [f"{content}: not dead" for content in bad - dead.keys() - self.rival.with_deed("ack")]
        verdict.accounts += [f"{content}: dead" for content in dead.keys() - bad]
        verdict.accounts += self.accounts(dead.total())
        return verdict


class FanOut(Queues):
    """A query that sends each batch to three topics; what is sent twice is there twice."""

    program = "fan-out"
    name = "fan-out"

    def __init__(self, client: RmqClient, folder: Path, chance: random.Random) -> None:
        super().__init__(client, folder, chance)
        self.targets = [Topic(f"target-{n}", TopicType.STREAM, slots=2, retention=KEEP) for n in range(2)]
        self.targets.append(Topic("target-2", TopicType.PRIORITY, slots=2))
        for topic in self.targets:
            client.producer(topic)
        self.collector = Collector(client.url, self.targets[2])

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Let somebody take what comes to the third topic, too."""
        with self.collector, super().at_work():
            yield

    def told(self, life: int) -> dict[str, Any]:
        """Name the targets, too."""
        return {**super().told(life), "targets": [topic.name for topic in self.targets]}

    def judge(self, kills: Collection[Kill]) -> Verdict:
        """Judge each target."""
        beside, runs = self.beside(kills), self.runs("ran")
        wait_taken(self.client, self.targets[2])
        verdict = Verdict(accounts=self.accounts(), changed=changed_runs(runs, beside))
        for topic in self.targets:
            found = self.collector.found if topic is self.targets[2] else entries(self.client, topic)
            add(verdict, judge_target(topic.name, self.sender.sent, found, runs, beside))
        return verdict
