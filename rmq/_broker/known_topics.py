"""The definitions that a client goes by."""

from __future__ import annotations

from collections.abc import Callable

from rmq._broker.audit import Audit
from rmq._broker.keys import TOPICS_KEY
from rmq._broker.registry import Registry, check_same, refusals_named
from rmq._io.wire import NOTHING
from rmq._model.definitions import differences, read_definition
from rmq._model.reports import reporter
from rmq._model.schema import MOST_TOLD
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic, TopicType
from rmq._model.typed import PayloadT
from rmq._transport.connections import Connections
from rmq.errors import InvalidValueError, RmqError, TopicMismatchError, UnreadableTopicError

log = reporter("rmq.registry")

LOOK_S = 10.0
"""How often a client looks whether its topics are still registered: a server can forget."""

LOOK_PATIENCE_S = 0.25
"""How long such a look may hold up the call before which it is made."""

TELL_S = 60.0
"""How often it is told that a topic was registered with another type, slots or merging meanwhile."""

LOOKED_AT = 50
"""Topics of one look; a client with more of them looks at these in turn."""

MOST_DETAIL = 1_000
"""Characters of a change that stand in the audit: a retry policy may have thousands of steps."""

_told: set[tuple[str, str]] = set()
"""Where settings of this process do not count, and which: each is told once."""


class KnownTopics(Registry):
    """The registered definitions of a client's topics, each read at its first use and then kept.

    The registry can forget: FLUSHALL, a restart without persistence, a failover, a backup of before. So each client
    looks now and then, beside its calls, whether the topics that it uses are registered, and registers them again where
    they are not. Else nobody would see them, and a new process with another number of slots would not be refused. Where
    such a process was faster, the two work past each other: that is logged as an error for as long as it lasts.

    Args:
        connections: Where they are registered.

    Attributes:
        look_s: Seconds between two looks.
    """

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self.look_s = LOOK_S
        self._known: dict[Topic, Topic] = {}
        self._used: dict[str, tuple[Topic, bytes]] = {}  # by name: what rules, and the text that was seen last
        self._turn = 0
        self._tell_s: dict[str, float] = {}  # when the mismatch of a topic may be told next
        connections.look_between(self._look, LOOK_S)

    def registered(self, topic: Topic[PayloadT]) -> Topic[PayloadT]:
        """Register a topic at its first use; return the definition that rules. Raises as `Registry.register`."""
        if not isinstance(topic, Topic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"{topic!r} is not a Topic")
        registered = self._known.get(topic)
        if registered is None:
            registered = self._known[topic] = self.register(topic)
            if registered != topic:
                _tell(f"{self._connections.url.shown} {topic.name}", registered, topic)
            self._used[registered.name] = registered, b""
        return registered.with_payload_of(topic)

    def _look(self) -> float:
        """Look whether the topics in use are registered as this client knows them; return when to look again."""
        names = list(self._used)[self._turn : self._turn + LOOKED_AT]
        self._turn = self._turn + LOOKED_AT if len(names) == LOOKED_AT else 0
        if names and not self._connections.silent(TOPICS_KEY):
            found = self._connections.ask_soon(TOPICS_KEY, LOOK_PATIENCE_S, "HMGET", TOPICS_KEY, *names)
            for name, text in zip(names, () if found is NOTHING else found, strict=False):
                self._compare(*self._used[name], text)
        return self.look_s

    def _compare(self, known: Topic, seen: bytes, found: bytes | None) -> None:
        if found is not None and found == seen:
            return
        try:
            if found is None:
                self.register(known)
                log.warning("topic %s was gone from the registry, and is registered again", known.name)
                return
            stored = read_definition(known.name, found).topic
            check_same(stored, known)
            self._used[known.name] = stored, found  # a change that was made meanwhile holds, also once it was forgotten
        except (TopicMismatchError, UnreadableTopicError) as error:
            if monotonic_s() >= self._tell_s.get(known.name, 0.0):
                self._tell_s[known.name] = monotonic_s() + TELL_S
                log.error(
                    "%s. This process was started with the other definition and goes on with it: it and the processes"
                    " that know the registered one send to, and consume, other slots. Stop those of one of the two",
                    error,
                )
        except RmqError as error:  # another look comes
            log.warning("topic %s is gone from the registry, and could not be registered again: %s", known.name, error)

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
        self._follow(changed)
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
        self._follow(changed)
        return changed

    def _follow(self, changed: Topic) -> None:
        if changed.name in self._used:
            self._used[changed.name] = changed, b""


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
