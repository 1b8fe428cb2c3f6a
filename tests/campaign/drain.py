"""What is left at the end of a campaign, and whether Redis' own accounts add up."""

from __future__ import annotations

import time

from rmq import RmqClient
from rmq.delayed import ID_BYTES
from tests.campaign.topics import DELAYED, GROUP, STREAM, topics
from tests.histories.journal import now_s

DRAIN_S = 180.0
MERGING = (*(topic.name for topic in topics() if topic.name != STREAM), DELAYED)


def drain(client: RmqClient) -> dict[str, int]:
    """Wait until the workers have handled all; return what is left."""
    end_s = now_s() + DRAIN_S
    left: dict[str, int] = {"all": 1}
    while left and now_s() < end_s:
        time.sleep(0.5)
        left = {}
        for name in MERGING:
            stats = client.inspect(name).stats()
            left[name] = stats.backlog + stats.in_flight + stats.waiting
        left[STREAM] = sum((group.lag or 0) + group.pending for group in client.stream(STREAM).groups())
        left = {name: number for name, number in left.items() if number}
    return left


def unaccounted(client: RmqClient) -> dict[str, int]:
    """Return by how many messages the accounts of a topic are wrong."""
    wrong = {name: client.inspect(name).stats().unaccounted for name in MERGING}
    stream = client.stream(STREAM)
    wrong[STREAM] = stream.stats().unaccounted
    wrong |= {f"{STREAM} of {group.group}": group.unaccounted for group in stream.groups()}
    return {name: number for name, number in wrong.items() if number}


def report_dead(client: RmqClient) -> set[tuple[str, str]]:
    """Return topic and content of all that is dead."""
    found = {(name, _name(name, each.content)) for name in MERGING for each in client.dead(name).list()}
    return found | {(STREAM, each.content.decode()) for each in client.stream(STREAM).dead(GROUP).list()}


def _name(topic: str, content: bytes) -> str:
    """Return a content as the story has it: a value of the delayed queue without what sets equal values apart."""
    return (content[ID_BYTES:] if topic == DELAYED else content).decode()
