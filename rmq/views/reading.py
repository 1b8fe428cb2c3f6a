"""Reads the figures in which findings are looked for: topics, workers and the memory of servers, through a client."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rmq import Definitions, Inspection, Minute, SearchPage, ServerMemory, Topic, TopicStats, TopicType, WorkerInfo
from rmq.client import RmqClient
from rmq.errors import RedisUnavailableError, RmqError
from rmq.spi import id_key, minute_of
from rmq.views.findings import GROWTH_MINUTES, Reading, TopicReading

log = logging.getLogger("rmq.status")
T = TypeVar("T")

PAGE_BUDGET = 20_000
"""Number of entries that one call of a search examines, a few ms of Redis."""

SECONDS_OF_RATES = 10, 90
"""Age in seconds of a reading from which a rate can be computed: younger is too short, older is no longer the rate."""


def read_all(client: RmqClient, names: Iterable[str] | None = None) -> Reading:
    """Read topics, all by default, with the workers and the servers' memory.

    Parts that cannot be read are left out with a warning, topics have a `trouble`.

    Raises:
        UnknownTopicError: There is no topic of one of the `names`.
        RedisUnavailableError: Redis does not answer.
    """
    definitions = client.definitions() if names is None else Definitions(tuple(map(client.topic, names)))
    topics = [with_trouble(topic, lambda topic=topic: read_topic(client, topic)) for topic in definitions.topics]
    topics = [with_recorded_rates(each) for each in topics]
    return Reading(topics, *read_servers(client), definitions.unreadable, definitions.deleting)


def read_servers(client: RmqClient) -> tuple[Sequence[WorkerInfo], Mapping[str, ServerMemory]]:
    """Return the workers, and the memory of the servers; empty if they cannot be read."""
    return read_or("the workers", client.workers, ()), read_or("the memory", client.server_memory, {})


def with_trouble(topic: Topic, read: Callable[[], TopicReading]) -> TopicReading:
    """Read a topic; one that cannot be read says why in `trouble`. Raises only `RedisUnavailableError`."""
    try:
        return read()
    except RedisUnavailableError:
        raise
    except RmqError as error:  # the other topics are still worth seeing
        return TopicReading(topic, Minute(0), trouble=str(error))


def read_topic(client: RmqClient, topic: Topic) -> TopicReading:
    """Read a topic; raise the error if it cannot be read."""
    queue = topic.type is not TopicType.STREAM
    reading = _read_queue(client, topic) if queue else _read_stream(client, topic)
    view = client.inspect(topic) if queue else client.stream(topic)
    records = read_or("the history", lambda: client.history().last(topic.name, GROWTH_MINUTES), ())
    recent = [each for each in records if each.minute >= reading.figures.minute - GROWTH_MINUTES]
    ends = (recent[0], recent[-1]) if recent else (None, None)
    queries = read_or("the reports of Spark", view.spark_queries, ())
    return replace(reading, earlier=ends[0], last=ends[1], queries=queries)


def _read_queue(client: RmqClient, topic: Topic) -> TopicReading:
    stats = client.inspect(topic).stats()
    figures = minute_of(stats.now_ms // 60_000, stats)
    return TopicReading(topic, figures, sum(slot.paused for slot in stats.slots), stats)


def _read_stream(client: RmqClient, topic: Topic) -> TopicReading:
    view = client.stream(topic)
    stream, groups = view.with_groups()
    now_ms = max(slot.now_ms for slot in stream.slots)
    unread = {group.group: next(view.unread(group.group, 1), None) for group in groups if group.lag}
    ages = {name: max(0, now_ms - id_key(entry.id)[0]) for name, entry in unread.items() if entry is not None}
    figures = replace(minute_of(now_ms // 60_000, stream, groups), late_ms=max(ages.values(), default=0))
    paused = sum(slot.paused for group in groups for slot in group.slots)
    return TopicReading(topic, figures, paused, None, stream, tuple(groups), ages)


def read_or(name: str, read: Callable[[], T], otherwise: T) -> T:
    """Read a shared key; return `otherwise` if it cannot be read, as when another program has written to it."""
    try:
        return read()
    except RedisUnavailableError:
        raise
    except RmqError as error:
        log.warning("cannot read %s: %s", name, error)
        return otherwise


def search_pages(
    view: Inspection, pattern: str | bytes | None, most: int, budget: int = sys.maxsize, **where: Any
) -> Iterator[SearchPage]:
    """Yield the pages of a search until it ends, `most` messages are found, or about `budget` entries are examined.

    `where` are further arguments of `Inspection.search`. The last page's cursor is `None` if the search has ended.
    """
    number = looked_at = 0
    while number < most and looked_at < budget:
        bounds = {"limit": min(1_000, most - number), "budget": min(PAGE_BUDGET, budget - looked_at)}
        yield (page := view.search(pattern, **bounds, **where))
        if page.cursor is None:
            return
        number, looked_at, where["cursor"] = number + len(page.messages), looked_at + page.looked_at, page.cursor


def rates_between(before: Minute, after: Minute, seconds: float) -> dict[str, float]:
    """Return the rates per second of the totals between two readings; a total that decreased counts as unchanged."""
    names = ("accepted", "merged", "acked", "retried", "buried")
    risen = {name: max(0, getattr(after, name) - getattr(before, name)) for name in names}
    return {name: number / seconds for name, number in risen.items()}


def with_recorded_rates(reading: TopicReading) -> TopicReading:
    """Return a reading with its rates since the last recorded minute; unchanged if that is too old or too young."""
    now_ms = _now_ms(reading)
    if reading.last is None or now_ms is None:
        return reading
    seconds = now_ms / 1_000 - reading.last.minute * 60  # it was recorded when its minute began
    shortest, longest = SECONDS_OF_RATES
    if not shortest <= seconds <= longest:
        return reading
    return replace(reading, rates=rates_between(reading.last, reading.figures, seconds))


def _now_ms(reading: TopicReading) -> int | None:
    slots = (reading.stats or reading.stream or TopicStats(reading.topic, ())).slots
    return max((slot.now_ms for slot in slots), default=None)
