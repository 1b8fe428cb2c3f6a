"""The registered definitions of a client's topics, read once, and checked at intervals."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from rmq._broker.keys import RECURRING_TOPIC, TOPICS_KEY
from rmq._io.reports import MOST_TOLD, reporter
from rmq._io.wire import NOTHING
from rmq._model.display import brief
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic, TopicType
from rmq._model.typed import PayloadT
from rmq._registry.registry import Registry, check_same, differences, read_definition
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError, RmqError, TopicMismatchError, UnreadableTopicError

log = reporter("rmq.registry")

LOOK_S = 10.0
"""Interval at which a client checks that its topics are still registered, in seconds: a server can lose data."""

LOOK_PATIENCE_S = 0.25
"""Seconds by which such a check may delay the call before which it is made."""

WARN_EVERY_S = 60.0
"""Interval of the error about a topic that was registered with another type, slots or merging, in seconds."""

LOOKED_AT = 50
"""Maximum number of topics in one such check; a client with more topics checks them in turn."""

_warned: set[tuple[str, str]] = set()
"""Topics, and those of their settings that are ignored in this process: each pair is logged once."""


class KnownTopics(Registry):
    """The registered definitions of a client's topics, each read at its first use and then kept.

    Redis may lose the registry: FLUSHALL, a restart without persistence, a failover, an old backup. So each client
    checks at intervals whether the topics that it uses are registered, and registers them again if they are not.
    Otherwise no list would have them, and a new process with another number of slots would not be refused. If such a
    process was faster, the two use different slots: this is logged as an error for as long as it lasts.

    Args:
        connections: The connections to Redis.

    Attributes:
        look_s: Interval of the checks, in seconds.
    """

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self.look_s = LOOK_S
        self.has_schedules = False
        """Whether the topic of the schedules was registered at the last periodic check."""
        self._known: dict[Topic, Topic] = {}
        self._used: dict[str, tuple[Topic, bytes]] = {}  # by name: what rules, and the text that was seen last
        self._turn = 0
        self._warn_s: dict[str, float] = {}  # by topic, or topic and deletion: when to tell it next
        connections.check_periodically(self._look, LOOK_S)

    def registered(self, topic: Topic[PayloadT]) -> Topic[PayloadT]:
        """Register a topic at its first use; return the registered definition. Raises as `Registry.register`."""
        if not isinstance(topic, Topic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"{brief(topic)} is not a Topic; client.topic(name) returns a registered one")
        registered = self._known.get(topic)
        if registered is None:
            registered = self._known[topic] = self.register(topic)
            if registered != topic:
                _warn_ignored_settings(f"{self._connections.url.shown} {topic.name}", registered, topic)
            self._used[registered.name] = registered, b""
        return registered.with_payload_of(topic)

    def _look(self) -> float:
        """Check whether the topics in use are registered as this client knows them; return when to check again."""
        names = list(self._used)[self._turn : self._turn + LOOKED_AT]
        self._turn = self._turn + LOOKED_AT if len(names) == LOOKED_AT else 0
        if names and not self._connections.unresponsive(TOPICS_KEY):
            asked = ("HMGET", TOPICS_KEY, *names, RECURRING_TOPIC)
            if (texts := self._connections.ask_soon(TOPICS_KEY, LOOK_PATIENCE_S, *asked)) is not NOTHING:
                self.has_schedules = texts[-1] is not None
                for name, text in zip(names, texts, strict=False):
                    self._compare(*self._used[name], text)
        return self.look_s

    def _compare(self, known: Topic, seen: bytes, stored_text: bytes | None) -> None:
        if stored_text is not None and stored_text == seen:
            return
        try:
            if stored_text is None:
                self.register(known)
                log.warning("topic %s was missing from the registry, and was registered again", known.name)
                return
            stored = read_definition(known.name, stored_text)
            if stored.deletion is not None:
                self._warn(
                    f"{known.name} {stored.deletion.id}",
                    f"topic {known.name} was deleted at {stored.deletion}: sends from this process "
                    "are refused, and it receives no more messages from the topic",
                    inf,
                )
                return
            check_same(stored.topic, known)
            # a change that was made meanwhile holds, also once it was forgotten
            self._used[known.name] = stored.topic, stored_text
        except (TopicMismatchError, UnreadableTopicError) as error:
            self._warn(
                known.name,
                f"{error}. This process continues with the definition with which it started. Processes with different "
                "definitions may miss or misread each other's messages: stop those with one of the two definitions",
            )
        except RmqError as error:  # another look comes
            log.warning(
                "topic %s was missing from the registry, and registering it again failed: %s", known.name, error
            )

    def _warn(self, what: str, text: str, pause_s: float = WARN_EVERY_S) -> None:
        if monotonic_s() >= self._warn_s.get(what, 0.0):
            self._warn_s[what] = monotonic_s() + pause_s
            log.error("%s", text)

    def named(self, name: str) -> Topic:
        """Read a registered definition by name, and keep it. Raises the same errors as `Registry.get`."""
        registered = self.get(name)
        if not self._connections.confirms:  # else its first use still has to see it confirmed
            self._known[registered] = registered
        return registered

    def forget(self, name: str) -> None:
        """Forget what is known of a topic, which this client has deleted."""
        self._known = {topic: known for topic, known in self._known.items() if known.name != name}
        self._used.pop(name, None)

    def resolved(self, topic: Topic | str) -> Topic:
        """Return the registered definition of a topic, given as itself or by name."""
        return self.named(topic) if isinstance(topic, str) else self.registered(topic)

    def viewed(self, topic: Topic | str) -> Topic:
        """Return the definition of a topic for a view, which registers none: the given one if none is registered.

        Raises as `Registry.get`, but not for a `Topic` that was never registered; and as `Registry.check`.
        """
        if not isinstance(topic, Topic) or topic in self._known:
            return self.resolved(topic)
        if self._find(topic.name) is None:
            return topic
        registered = self.get(topic.name)
        check_same(registered, topic)
        return registered.with_payload_of(topic)

    def merging(self, topic: Topic | str, instead: str) -> Topic:
        """Return the definition as `viewed`; raise for STREAM topics, which do not support calls by content."""
        resolved = self.viewed(topic)
        if resolved.type is TopicType.STREAM:
            raise InvalidValueError(f"topic {resolved.name} is STREAM; use {instead}", topic=resolved.name)
        return resolved

    def update(self, name: str, change: Callable[[Topic], Topic]) -> Topic:
        """Replace a definition by a function of the registered one. Raises the same errors as `Registry.update`."""
        changed = super().update(name, change)
        self._known.clear()
        if changed.name in self._used:
            self._used[changed.name] = changed, b""
        return changed


def _warn_ignored_settings(where: str, registered: Topic, topic: Topic) -> None:
    """Warn that a program's settings differ from the registered ones, once per process for each set of settings."""
    text = "; ".join(each.worded() for each in differences(registered, topic))
    if (where, text) in _warned or len(_warned) >= MOST_TOLD:
        return
    _warned.add((where, text))
    log.warning(
        "topic %s: the registered settings apply, not those of this program: %s. `rmq topics diff MODULE` shows the "
        "differences, and `rmq topics apply MODULE` registers the settings of the program",
        topic.name,
        text,
    )
