"""A sending process of a history. Run with `python -m tests.histories.sender`; it ends at the end of its input."""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import sys

from rmq import RmqClient, TopicType
from rmq.errors import RmqError, SendError
from tests.histories.journal import Journal, now_s
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
            begun_s = now_s()
            state: dict[str, str] = {}
            try:
                producer.send_many(batch) if size > 1 else producer.send(batch[0])
            except SendError as error:
                state = {_id(each): "unknown" for each in error.unknown}
                state |= {_id(each): "refused" for each in error.not_stored}
            except RmqError:
                state = {_id(each): "unknown" for each in batch}
            for each in batch:
                sent_id = _id(each)
                content = sent_id if not isinstance(each.content, str) else each.content
                due_ms = _due_ms(each) if topic.type is TopicType.RANGE_MERGE else 0
                journal.write(
                    "send", topic.name, content, sent_id, begun_s, state.get(sent_id, "accepted"), due_ms, now_s()
                )
            if select.select([sys.stdin], [], [], size / options.per_second)[0]:
                break


def _id(sent: Message) -> str:
    return str(json.loads(str(getattr(sent, "body", None)))["id"])


def _due_ms(sent: Message) -> int:
    return int(json.loads(str(getattr(sent, "body", None)))["due_ms"])


if __name__ == "__main__":
    main()
