"""The definitions that a client goes by."""

from __future__ import annotations

from collections.abc import Callable

from rmq._model.topics import Topic, TopicType
from rmq._model.typed import PayloadT
from rmq._slots.registry import Registry
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError


class KnownTopics(Registry):
    """The registered definitions of a client's topics, each read at its first use and then kept.

    Args:
        connections: Where they are registered.
    """

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._known: dict[Topic, Topic] = {}

    def registered(self, topic: Topic[PayloadT]) -> Topic[PayloadT]:
        """Register a topic at its first use; return the definition that rules. Raises as `Registry.register`."""
        if not isinstance(topic, Topic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"{topic!r} is not a Topic")
        registered = self._known.get(topic)
        if registered is None:
            registered = self._known[topic] = self.register(topic)
        return registered.with_payload_of(topic)

    def named(self, name: str) -> Topic:
        """Read a registered definition, which is then known. Raises as `Registry.get`."""
        found = self.get(name)
        if not self._connections.confirms:  # else its first use still has to see it confirmed
            self._known[found] = found
        return found

    def resolved(self, topic: Topic | str) -> Topic:
        """Return the definition that rules, of a topic or of the name of one that is registered."""
        return self.named(topic) if isinstance(topic, str) else self.registered(topic)

    def merging(self, topic: Topic | str, instead: str) -> Topic:
        """Return the definition that rules; refuse a stream topic, whose entries have no contents to go by."""
        resolved = self.resolved(topic)
        if resolved.type is TopicType.STREAM:
            raise InvalidValueError(f"topic {resolved.name} is STREAM; use {instead}", topic=resolved.name)
        return resolved

    def reorder(self, topic: Topic) -> Topic:
        """Register that the oldest of equal priorities are first. Raises as `Registry.update`."""
        changed = super().reorder(topic)
        self._known.clear()
        return changed

    def update(self, name: str, change: Callable[[Topic], Topic]) -> Topic:
        """Change a definition by what it is. Raises as `Registry.update`."""
        changed = super().update(name, change)
        self._known.clear()
        return changed
