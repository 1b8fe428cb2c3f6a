"""The definitions that a client goes by."""

from __future__ import annotations

from collections.abc import Callable

from rmq._model.definitions import differences
from rmq._model.reports import reporter
from rmq._model.schema import MOST_TOLD
from rmq._model.topics import Topic, TopicType
from rmq._model.typed import PayloadT
from rmq._slots.audit import Audit
from rmq._slots.registry import Registry, refusals_named
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError

log = reporter("rmq.registry")

MOST_DETAIL = 1_000
"""Characters of a change that stand in the audit: a retry policy may have thousands of steps."""

_told: set[tuple[str, str]] = set()
"""Where settings of this process do not count, and which: each is told once."""


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
            if registered != topic:
                _tell(f"{self._connections.url.shown} {topic.name}", registered, topic)
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
        """Change a definition by what it is, with lines in the audit. Raises as `Registry.update`."""
        registered = self.get(name)
        wanted = change(registered)
        if wanted == registered:  # a try before may still have to be confirmed
            changed = super().update(name, change)
        else:
            detail = "; ".join(each.worded("now") for each in differences(registered, wanted))[:MOST_DETAIL]
            audit = Audit(self._connections, registered, None)
            with refusals_named(name), audit.step("change topic", detail) as note:
                changed = super().update(name, change)
                note("done")
        self._known.clear()
        return changed


def _tell(where: str, registered: Topic, topic: Topic) -> None:
    """Warn that a program's settings do not count, once a process for each set of them."""
    text = "; ".join(each.worded() for each in differences(registered, topic))
    if (where, text) in _told or len(_told) >= MOST_TOLD:
        return
    _told.add((where, text))
    log.warning(
        "topic %s: the registered settings hold, and this program has others: %s. `rmq topics diff MODULE` shows them, "
        "`rmq topics apply MODULE` registers those of the program",
        topic.name,
        text,
    )
