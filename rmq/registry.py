"""Topic definitions, registered at first use so that every process agrees on them."""

from __future__ import annotations

from rmq.connections import Connections
from rmq.errors import MemoryFullError, TopicMismatchError, UnknownTopicError
from rmq.keys import TOPICS_KEY, rate_key
from rmq.topics import Topic
from rmq.wire import ReplyError


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
            MemoryFullError: Redis is at its maxmemory, and the topic is new to it.

        Guarantee: atomic and safe to repeat: of two first users one wins, and both get the winner's definition.
        """
        registered = self._find(topic.name)
        if registered is None:  # only then: a full Redis refuses even a HSETNX that would change nothing
            self._write("HSETNX", topic)
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
        registered = self._find(name)
        if registered is None:
            raise UnknownTopicError(f"topic {name} is not registered; the first send or consumer does it", topic=name)
        return registered

    def change(self, topic: Topic) -> Topic:
        """Put new settings in place of the registered ones.

        Running processes keep theirs until they restart, but `max_rate` and `max_burst` count within seconds.

        Raises:
            UnknownTopicError: Not registered.
            TopicMismatchError: Registered with another type or number of slots.
            MemoryFullError: Redis is at its maxmemory.
        """
        registered = self.get(topic.name)
        if (registered.type, registered.slots) != (topic.type, topic.slots):
            raise TopicMismatchError(f"type and slots of topic {topic.name} can't be changed", topic=topic.name)
        self._write("HSET", topic)
        if (registered.max_rate or topic.max_rate) is not None:  # also where an earlier change broke off before this
            self._set_rate(topic)
        return topic

    def mend_bucket(self, known: Topic) -> bool:
        """Put the registered rate into a bucket that was made from another one; return whether it was another."""
        registered = self._find(known.name) or known
        differs = (registered.max_rate, registered.rate_burst) != (known.max_rate, known.rate_burst)
        if differs:
            self._set_rate(registered)
        return differs

    def _set_rate(self, topic: Topic) -> None:
        rate, burst = repr(topic.max_rate or 0), topic.rate_burst
        self._connections.command("HSET", rate_key(topic.name), "rate", rate, "burst", burst)

    def names(self) -> list[str]:
        """Return the names of all registered topics, sorted."""
        names: list[bytes] = self._connections.command("HKEYS", TOPICS_KEY)
        return sorted(name.decode() for name in names)

    def _find(self, name: str) -> Topic | None:
        text: bytes | None = self._connections.command("HGET", TOPICS_KEY, name)
        return None if text is None else Topic.from_json(text)

    def _write(self, command: str, topic: Topic) -> None:
        try:
            self._connections.command(command, TOPICS_KEY, topic.name, topic.to_json())
        except ReplyError as error:
            if not str(error).startswith("OOM"):
                raise
            raise MemoryFullError(
                f"Redis is at its maxmemory and did not register topic {topic.name}; consume, or raise maxmemory",
                topic=topic.name,
            ) from error
