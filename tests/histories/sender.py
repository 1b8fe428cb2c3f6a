"""A sending process of a history. Run with `python -m tests.histories.sender`; it ends at the end of its input."""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import sys
from functools import partial

from rmq import Producer, RmqClient, TopicType
from tests.histories.journal import Journal
from tests.histories.topics import message, topics
from tests.support.core import Message


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("journal")
    parser.add_argument("seed", type=int)
    parser.add_argument("--per-second", type=float, default=400.0)
    options = parser.parse_args()
    chance, journal = random.Random(options.seed), Journal(options.journal)
    number = 0
    with RmqClient(options.url, deadline_s=25) as client:
        producers = [(topic, client.producer(topic)) for topic in topics()]
        while not select.select([sys.stdin], [], [], 0)[0]:
            topic, producer = chance.choice(producers)
            size = chance.choice((1, 1, 5, 40))
            batch = [
                message(topic, chance.randrange(10**6), f"{os.getpid()}-{number + i}", chance) for i in range(size)
            ]
            number += size
            pairs = [(_content(each), _id(each)) for each in batch]
            due_ms = [_due_ms(each) for each in batch] if topic.type is TopicType.RANGE_MERGE else ()
            journal.send(topic.name, pairs, partial(_send, producer, batch), _id, due_ms)
            if select.select([sys.stdin], [], [], size / options.per_second)[0]:
                break


def _send(producer: Producer, batch: list[Message]) -> None:
    producer.send_many(batch) if len(batch) > 1 else producer.send(batch[0])


def _content(sent: Message) -> str:
    return sent.content if isinstance(sent.content, str) else _id(sent)


def _id(sent: Message) -> str:
    return str(json.loads(str(getattr(sent, "body", None)))["id"])


def _due_ms(sent: Message) -> int:
    return int(json.loads(str(getattr(sent, "body", None)))["due_ms"])


if __name__ == "__main__":
    main()
