"""The search field of all pages: finds topics, groups and workers by part of their name, messages by content."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from rmq import TopicType
from rmq.dashboard.queries import Reader
from rmq.dashboard.rendering import link
from rmq.errors import RedisUnavailableError, RmqError

MOST_RESULTS = 50
MOST_TOPICS = 50
"""Maximum number of topics in which a message is searched, since each topic costs a call."""


class Result(NamedTuple):
    """A search result: kind, name, address of its page, and location."""

    kind: str
    name: str
    address: str
    more: str


def results_of(reader: Reader, asked: str) -> tuple[list[Result], bool]:
    """Return the results of a search, exact names first, and whether there are more than `MOST_RESULTS`."""
    lowered = asked.lower()
    names = [Result("topic", each.name, f"/topic/{quote(each.name)}", "") for each in reader.topics()]
    for now in reader.overview().topics:
        name, page = now.topic.name, f"/topic/{quote(now.topic.name)}/group/"
        names += [Result("group", group.group, page + quote(group.group), f"of {name}") for group in now.groups]
    names += [Result("worker", each.name, f"/worker/{quote(each.name)}", "") for each in reader.workers()]
    results = [each for each in names if lowered in each.name.lower()]
    results.sort(key=lambda each: (each.name != asked, not each.name.lower().startswith(lowered)))
    results += _messages(reader, asked)
    return results[:MOST_RESULTS], len(results) > MOST_RESULTS


def _messages(reader: Reader, content: str) -> list[Result]:
    results: list[Result] = []
    for topic in [each for each in reader.topics() if each.type is not TopicType.STREAM][:MOST_TOPICS]:
        try:
            message = reader.client.inspect(topic).find(content)
        except RedisUnavailableError:
            raise
        except RmqError:  # a topic that cannot be read, or whose contents cannot be as long
            continue
        if not message.gone:
            address = link("/message", topic=topic.name, content=content)
            results.append(Result("message", content, address, f"in {topic.name}"))
    return results
