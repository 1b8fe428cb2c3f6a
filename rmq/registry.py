"""Topic definitions, registered at first use so that every process agrees on them."""

from __future__ import annotations

from rmq.connections import Connections
from rmq.errors import TopicMismatchError, UnknownTopicError
from rmq.keys import TOPICS_KEY
from rmq.topics import Topic


class Registry:
    """The definitions in Redis, in the HASH `rmq:topics`.

    Args:
        connections: Where they are.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def register(self, topic: Topic) -> Topic:
        """Register a topic at first use; return the definition that rules.

        Raises:
            TopicMismatchError: Registered with another type or number of slots.

        Guarantee: atomic and safe to repeat: of two first users one wins, and both get the winner's definition.
        """
        self._connections.command("HSETNX", TOPICS_KEY, topic.name, topic.to_json())
        registered = self.get(topic.name)
        if (registered.type, registered.slots) != (topic.type, topic.slots):
            raise TopicMismatchError(
                f"topic {topic.name} is registered as {registered.type.name} with {registered.slots} slots, "
                f"not as {topic.type.name} with {topic.slots}; type and slots can't be changed",
                topic=topic.name,
            )
        return registered

    def get(self, name: str) -> Topic:
        """Return the registered definition.

        Raises:
            UnknownTopicError: No process has used this topic yet.
        """
        text: bytes | None = self._connections.command("HGET", TOPICS_KEY, name)
        if text is None:
            raise UnknownTopicError(f"topic {name} is not registered; the first send or consumer does it", topic=name)
        return Topic.from_json(text)

    def change(self, topic: Topic) -> Topic:
        """Put new settings in place of the registered ones. Running processes keep theirs until they restart.

        Raises:
            UnknownTopicError: Not registered.
            TopicMismatchError: Registered with another type or number of slots.
        """
        registered = self.get(topic.name)
        if (registered.type, registered.slots) != (topic.type, topic.slots):
            raise TopicMismatchError(f"type and slots of topic {topic.name} can't be changed", topic=topic.name)
        self._connections.command("HSET", TOPICS_KEY, topic.name, topic.to_json())
        return topic

    def names(self) -> list[str]:
        """Return the names of all registered topics, sorted."""
        names: list[bytes] = self._connections.command("HKEYS", TOPICS_KEY)
        return sorted(name.decode() for name in names)
