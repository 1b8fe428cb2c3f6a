"""The way of a PRIORITY topic from `ties="any"`, which topics of releases before have, to `ties="oldest"`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rmq._broker import control, viewing
from rmq._broker.each import call_each
from rmq._model.display import shown
from rmq._model.scores import Ties
from rmq._model.topics import Topic, TopicType
from rmq._transport.connections import Connections
from rmq.errors import InvalidTopicError

AT_ONCE = 500
"""Messages that one call gives an age: about 1 ms of the server."""


def order_oldest_first(
    connections: Connections, topic: Topic, max_priority: int | None, define: Callable[[Topic], Topic]
) -> int:
    """Change a topic over; see `RmqClient.order_oldest_first`.

    Args:
        connections: Where the topic is.
        topic: The registered definition.
        max_priority: The largest priority from now on; `None` for the default.
        define: Registers the new definition, unless the oldest are first already; returns the registered one.
    """
    if topic.type is not TopicType.PRIORITY:
        raise InvalidTopicError(f"topic {topic.name} is {topic.type.name}: it has no priorities", topic=topic.name)
    wanted = topic
    if topic.ties is Ties.ANY:
        wanted = replace(topic, ties=Ties.OLDEST, max_priority=max_priority)
        _check_highest(connections, topic, wanted.priorities[1])
    # another client may have been faster, with its own max_priority; and a try before may not have been confirmed
    topic = define(wanted)
    if max_priority not in (None, topic.max_priority):
        raise InvalidTopicError(
            f"max_priority of topic {topic.name} is {topic.max_priority} and can't be changed",
            topic=topic.name,
        )
    changed = 0
    slots: list[int] = list(range(topic.slots))
    while slots:
        found = call_each(connections, slots, lambda slot: control.add_ages(topic, slot, AT_ONCE))
        changed += sum(found)
        slots = [slot for slot, number in zip(slots, found, strict=True) if number == AT_ONCE]
    return changed


def _check_highest(connections: Connections, topic: Topic, highest: int) -> None:
    """Refuse before anything is written where a priority of the backlog is higher than the topic will take."""
    pages = call_each(connections, range(topic.slots), lambda slot: viewing.peek(topic, slot, "store", 0, 1))
    for slot, (_, messages, _) in enumerate(pages):
        for content, priority, _ in messages:
            if priority > highest:
                raise InvalidTopicError(
                    f"slot {slot} of topic {topic.name} has {shown(content)} with priority {priority}, above the "
                    f"wanted max_priority {highest}; give a larger max_priority, or that message a smaller priority",
                    topic=topic.name,
                )
