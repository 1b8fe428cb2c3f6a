"""Topic definitions: registered at first use, so that every process agrees on them; read, compared and changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple, cast

from rmq._broker.binding import SAFE_AGAIN, BoundScript
from rmq._broker.keys import TOPICS_KEY, rate_key
from rmq._io.reports import PassedOver, reporter
from rmq._model.display import brief, shown, span
from rmq._model.merging import same_merging
from rmq._model.schema import Document, new_document, read_document
from rmq._model.topics import UNCHANGEABLE, Topic, is_name
from rmq._registry.audit import Audit
from rmq._registry.deletion import TOMBSTONES, Deletion, clear_slot
from rmq._transport.call import Call, is_one
from rmq._transport.connections import Connections, call_slots
from rmq._transport.refusals import NO_RIGHT
from rmq.errors import (
    DurabilityError,
    InvalidTopicError,
    InvalidValueError,
    MemoryFullError,
    ReplyLostError,
    RmqError,
    ScriptFailedError,
    TopicDeletedError,
    TopicMismatchError,
    UnknownTopicError,
    UnreadableDocumentError,
    UnreadableTopicError,
)

log = reporter("rmq.registry")

_READ, _DEFINE = BoundScript("registry_read"), BoundScript("registry_define", durable=SAFE_AGAIN)

MAX_DEFINITION_BYTES = 65_536
"""A longer definition is neither written nor read; one with all settings takes less than 1 kB."""

READ_AT_ONCE = 100
"""Maximum number of definitions that one call reads; fewer if they are long."""

MOST_TRIES = 100
"""Maximum number of attempts of a change, which starts again if another client changed the definition meanwhile."""

MOST_DETAIL = 1_000
"""Maximum length of a change in the audit, characters: a retry policy may have thousands of steps."""

UNCONFIRMED = "unconfirmed"
"""Field of a document that replicas, or the disk, have yet to confirm: a client that needs this confirms it first."""

_passed_over = PassedOver(logging.getLogger("rmq.registry"))


@dataclass(frozen=True, slots=True)
class Stored:
    """A definition in Redis: its bytes, its document, the topic, and its deletion: `None` if it is registered."""

    text: bytes
    document: Document
    topic: Topic
    deletion: Deletion | None


@dataclass(frozen=True, slots=True)
class UnreadableTopic:
    """A registered definition that this version of RMQ cannot read.

    Attributes:
        name: The topic's name, escaped for display.
        reason: Why the definition cannot be read, and what to do.
        version: Schema version of its writer; `None` if unknown.
        min_reader: The oldest schema version that may act on it; `None` if unknown.

    Examples:
        >>> [each.name for each in client.definitions().unreadable]
        []
    """

    name: str
    reason: str
    version: int | None = None
    min_reader: int | None = None


@dataclass(frozen=True, slots=True)
class Definitions:
    """All registered definitions, sorted by name: those that this version can read, and the others.

    Attributes:
        topics: The topics.
        unreadable: The definitions that this version cannot read.
        deleting: Topics whose deletion has begun and not ended: name -> time of its start and its actor, as text.

    Examples:
        >>> _ = client.producer(Topic("jobs", TopicType.PRIORITY))
        >>> [topic.name for topic in client.definitions().topics]
        ['jobs']
    """

    topics: tuple[Topic, ...] = ()
    unreadable: tuple[UnreadableTopic, ...] = ()
    deleting: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)


def read_definition(name: str | bytes, found: bytes | int) -> Stored:
    """Parse the definition registered under a name; `found` is its text, or its length if it is too long.

    Raises:
        UnreadableTopicError: The definition is for newer versions only, or is not a definition of this topic.
    """
    told = shown(name)
    what = f"the definition of topic {told}"
    plain = name.decode(errors="replace") if isinstance(name, bytes) else name
    try:
        if not is_name(plain):
            raise UnreadableDocumentError(f"{what} cannot be read: its name must be 1 to 128 characters A-Za-z0-9._-")
        if isinstance(found, int):
            raise UnreadableDocumentError(
                f"{what} cannot be read: it has {found} bytes; the maximum is {MAX_DEFINITION_BYTES}"
            )
        document = read_document(found, what)
        topic = Topic.from_document(document)
        deletion = Deletion.of(document.fields, what)
        if topic.name != plain:
            raise UnreadableDocumentError(f"{what} cannot be read: it is the definition of topic {topic.name}")
    except UnreadableDocumentError as error:
        text = str(error).replace("the registered definition", what, 1)
        raise UnreadableTopicError(text, topic=told, version=error.version, min_reader=error.min_reader) from None
    return Stored(found, document, topic, deletion)


class Difference(NamedTuple):
    """A setting that differs between two definitions of a topic."""

    setting: str
    registered: Any
    other: Any
    fixed: bool  # part of the topic's identity, or of its scores: no change of the definition changes it

    def worded(self, between: str = "not") -> str:
        """Return both values in words: `max_retries 16, not 3`."""
        return f"{self.setting} {_value(self.registered)}, {between} {_value(self.other)}"


def differences(registered: Topic, other: Topic) -> list[Difference]:
    """Return the settings in which two definitions of a topic differ; payload and codec are not compared."""
    found: list[Difference] = []
    for each in fields(Topic):
        one, two = getattr(registered, each.name), getattr(other, each.name)
        if each.compare and one != two:
            fixed = each.name in UNCHANGEABLE or (each.name == "merge" and not same_merging(one, two))
            found.append(Difference(each.name, one, two, fixed))
    return found


def _value(value: object) -> str:
    if isinstance(value, timedelta):
        return span(value / timedelta(milliseconds=1))
    return str(value.value) if isinstance(value, Enum) else "none" if value is None else repr(value)


def read(names: Sequence[bytes]) -> Call[list[bytes | int | None]]:
    """Return a call that reads definitions by name: each one's text, its length if it is too long, or `None`.

    If definitions are long, the reply is shorter than `names`: read the rest with further calls.
    """
    return _READ.call_on(TOPICS_KEY, list, {"topics": TOPICS_KEY}, most_bytes=MAX_DEFINITION_BYTES, names=names)


def define(topic: str, expected: bytes, text: bytes, *, durable: bool) -> Call[bool]:
    """Return a call that replaces a definition if it is the expected one; its result is whether it was."""
    call = _DEFINE.call_on(topic, is_one, {"topics": TOPICS_KEY}, name=topic, expected=expected, text=text)
    return call if durable else call._replace(durable="")


def check_name(name: str) -> None:
    """Raise `InvalidValueError` unless the name is a string that can be encoded as UTF-8."""
    try:
        str.encode(name)
    except (TypeError, UnicodeEncodeError):
        raise InvalidValueError(f"topic name is {brief(name, 100)}; it must be a str that UTF-8 can encode") from None


class Registry:
    """The definitions in Redis, in the HASH `rmq:topics`.

    Args:
        connections: The connections to Redis.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def register(self, topic: Topic) -> Topic:
        """Register a topic at first use; return the registered definition.

        Raises:
            TopicMismatchError: The topic has another type, number of slots, or `merge` beyond windows and bounds.
            UnreadableTopicError: The registered definition is for newer versions of RMQ only, or is invalid.
            MemoryFullError: Redis is at its maxmemory, and the topic is not registered yet.
            TopicDeletedError: The topic is being deleted at the moment.
            DurabilityError: The topic is registered, but not confirmed at the client's durability level. Call again.

        Guarantee: atomic and safe to repeat: of two first users one wins, and both get the winner's definition.
        """
        stored = self._find(topic.name)
        if stored is None:  # only then: a full Redis refuses every write
            mark = {UNCONFIRMED: True} if self._connections.confirms else {}
            self._add(topic, new_document({**topic.to_fields(), **mark}).to_json().encode())
            stored = self.stored(topic.name)
        if stored.deletion is not None:
            stored = self._registered_again(stored, topic)
        check_same(stored.topic, topic)
        self._clear(stored)
        if self._connections.confirms and UNCONFIRMED in stored.document.fields:
            self._confirm(stored)
        return stored.topic

    def check(self, topic: Topic) -> bool:
        """Return whether a topic is registered, without registering it.

        Raises:
            TopicMismatchError: The topic has another type, number of slots, or `merge` beyond windows and bounds.
            UnreadableTopicError: The registered definition is for newer versions of RMQ only, or is invalid.
        """
        stored = self._find(topic.name)
        if stored is None or stored.deletion is not None:
            return False
        check_same(stored.topic, topic)
        return True

    def get(self, name: str) -> Topic:
        """Return the registered definition.

        Raises:
            UnknownTopicError: No process has used this topic yet.
            UnreadableTopicError: The registered definition is for newer versions of RMQ only, or is invalid.
        """
        check_name(name)
        stored = self._existing(name)
        self._clear(stored)
        return stored.topic

    def change(self, topic: Topic) -> Topic:
        """Replace registered settings: those that `Topic.changed` has changed, or all of any other definition.

        Running processes keep the old ones until they restart; `max_rate` and `max_burst` take effect within seconds.

        Returns:
            The definition that is registered now.

        Raises:
            UnknownTopicError: The topic is not registered.
            TopicMismatchError: The topic has another type, number of slots, or `merge` beyond windows and bounds.
            DurabilityError: The topic is changed, but not confirmed at the client's durability level. Call again.

        Guarantee: if two clients change different settings at once, both changes take effect; for the same setting the
            last one.
        """
        if not isinstance(topic, Topic):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(f"{brief(topic)} is not a Topic; client.topic(name) returns a registered one")

        def put(registered: Topic) -> Topic:
            check_same(registered, topic)
            chosen = {name: getattr(topic, name) for name in topic.changes}
            return registered.changed(**chosen) if chosen else _ordered_as(registered, topic)

        return self.update(topic.name, put)

    def update(self, name: str, change: Callable[[Topic], Topic]) -> Topic:
        """Replace a definition by a function of the registered one, with audit lines; raises as `change`.

        Args:
            name: The topic's name.
            change: Returns the new definition for the registered one. It is called again if another client was faster.
        """
        self.get(name)  # removes what an ended deletion has left, and so changes the document
        for _ in range(MOST_TRIES):
            stored = self._existing(name)
            registered, changed_to = stored.topic, change(stored.topic)
            check_same(registered, changed_to)
            changes = differences(registered, changed_to)
            if fixed := [each.setting for each in changes if each.fixed]:
                raise TopicMismatchError(f"{fixed[0]} of topic {name} is {UNCHANGEABLE[fixed[0]]}", topic=name)
            document = stored.document.amended(registered.to_fields(), changed_to.to_fields())
            if changes:
                detail = "; ".join(each.worded("now") for each in changes)[:MOST_DETAIL]
                with Audit(self._connections, registered, None).step("change topic", detail) as note:
                    done = self._define(changed_to, stored.text, document.to_json().encode(), durable=True)
                    note("done" if done else "another client was faster")
            else:  # the same once more only so that it is confirmed: a try before may have lost its reply
                done = not self._connections.confirms or self._define(registered, stored.text, stored.text, True)
            if not done:
                continue
            if registered.max_rate or changed_to.max_rate:  # also where an earlier change broke off before this
                self._set_rate(name)
            return Topic.from_document(document)
        raise RmqError(
            f"topic {name} was changed by other clients during each of {MOST_TRIES} attempts; try again", topic=name
        )

    def restore_rate(self, known: Topic) -> bool:
        """Set the registered rate in the token bucket if it differs from the known one; return whether it did."""
        try:
            stored = self._find(known.name)
        except UnreadableTopicError as error:  # whoever runs goes on with what he has read when he could
            _passed_over.tell(f"{self._connections.url.shown} {error.topic}", error)
            return False
        registered = known if stored is None or stored.deletion is not None else stored.topic
        differs = (registered.max_rate, registered.rate_burst) != (known.max_rate, known.rate_burst)
        if differs:
            self._put_rate(registered)
        return differs

    def _set_rate(self, name: str) -> None:
        """Set the registered rate in the bucket; repeat if the registered rate has changed meanwhile."""
        topic = self.get(name)
        for _ in range(MOST_TRIES):
            self._put_rate(topic)
            before, topic = topic, self.get(name)
            if (before.max_rate, before.rate_burst) == (topic.max_rate, topic.rate_burst):
                return

    def _put_rate(self, topic: Topic) -> None:
        rate, burst = repr(topic.max_rate or 0), topic.rate_burst
        self._connections.command("HSET", rate_key(topic.name), "rate", rate, "burst", burst)

    def definitions(self) -> Definitions:
        """Return all registered definitions. One that cannot be read is omitted, and logged once."""
        topics: list[Topic] = []
        unreadable: list[UnreadableTopic] = []
        deleting: dict[str, str] = {}
        for name, stored_text in self._read_all():
            try:
                stored = read_definition(name, stored_text)
                if stored.deletion is None:
                    topics.append(stored.topic)
                elif not stored.deletion.done:
                    deleting[stored.topic.name] = str(stored.deletion)
            except UnreadableTopicError as error:
                _passed_over.tell(f"{self._connections.url.shown} {error.topic}", error)
                unreadable.append(UnreadableTopic(error.topic or "", str(error), error.version, error.min_reader))
        return Definitions(tuple(topics), tuple(unreadable), deleting)

    def _read_all(self) -> Iterator[tuple[bytes, bytes | int]]:
        with _refusals_named():
            names: list[bytes] = self._connections.command("HKEYS", TOPICS_KEY)
        names.sort()
        first = 0
        while first < len(names):
            some = names[first : first + READ_AT_ONCE]
            answers = self._connections.run(read(some))
            for name, stored_text in zip(some, answers, strict=False):  # of long definitions not all that was asked for
                if stored_text is not None:  # deleted meanwhile
                    yield name, stored_text
            first += len(answers)

    def _find(self, name: str) -> Stored | None:
        if not is_name(name):  # nothing of that name can be registered
            return None
        with _refusals_named():
            stored_text: bytes | None = self._connections.command("HGET", TOPICS_KEY, name)
        return None if stored_text is None else read_definition(name, stored_text)

    def _existing(self, name: str) -> Stored:
        stored = self._find(name)
        if stored is None:
            shown_name = shown(name)
            raise UnknownTopicError(
                f"topic {shown_name} is not registered; its first producer or consumer registers it", topic=shown_name
            )
        if stored.deletion is not None:
            raise UnknownTopicError(f"topic {name} was deleted at {stored.deletion}", topic=name)
        return stored

    def stored(self, name: str) -> Stored:
        """Return the definition of a topic, also of a deleted one. Raises the same errors as `get`."""
        check_name(name)
        return self._find(name) or self._existing(name)

    def replace_fields(self, stored: Stored, added: Mapping[str, Any] | None, removed: str = "") -> bool:
        """Replace fields of a definition beside those of its topic, if it is as it was read; return whether it was.

        Args:
            stored: The definition as it was read.
            added: The new fields; `None` to remove the definition.
            removed: Name of a field to remove.
        """
        document = "" if added is None else stored.document.amended({removed: None}, added).to_json()
        return self._define(stored.topic, stored.text, document.encode(), durable=True)

    def _registered_again(self, stored: Stored, topic: Topic) -> Stored:
        """Register a deleted topic again, with the settings of the new definition."""
        name, deletion, was = topic.name, cast("Deletion", stored.deletion), stored.topic
        if not deletion.done:
            raise TopicDeletedError(
                f"the deletion of topic {name} was begun at {deletion} and has not ended; if it was interrupted, "
                f"`rmq topics delete {name}` completes it",
                topic=name,
            )
        if any(each.fixed for each in differences(was, topic)):
            raise TopicMismatchError(
                f"topic {name} was deleted at {deletion} as {was.type.name} with {was.slots} slots; with another type, "
                "merge, ties, max_priority or slots, messages of programs with that definition would be misread. Once "
                f"such programs have ended, `rmq topics delete {name} --forget` frees the name for another definition",
                topic=name,
            )
        fields = {**topic.to_fields(), TOMBSTONES: deletion.id}
        self._define(topic, stored.text, new_document(fields).to_json().encode(), durable=True)
        return self._existing(name)

    def _clear(self, stored: Stored) -> None:
        """Remove the tombstones that a definition still names, of a deletion that is over."""
        if deletion := stored.document.fields.get(TOMBSTONES):
            self.clear(stored.topic, deletion)
            self.replace_fields(stored, {}, TOMBSTONES)

    def clear(self, topic: Topic, deletion: str) -> None:
        """Remove the tombstones of a deletion from all slots; from then on it drops nothing any more."""
        call_slots(self._connections, range(topic.slots), lambda slot: clear_slot(topic, slot, deletion))

    def _confirm(self, stored: Stored) -> None:
        """Wait until replicas or the disk have confirmed a definition, also one of another client; then record that."""
        self._define(stored.topic, stored.text, stored.text, durable=True)
        confirmed = {name: value for name, value in stored.document.fields.items() if name != UNCONFIRMED}
        with suppress(RmqError):  # the next one who needs it has it confirmed once more
            self._define(stored.topic, stored.text, replace(stored.document, fields=confirmed).to_json().encode())

    def _add(self, topic: Topic, text: bytes) -> None:
        """Write a definition if there is none; a plain command, so that no permission to run scripts is needed."""
        _check_length(topic.name, text)
        with _refusals_named(topic.name):
            self._connections.command("HSETNX", TOPICS_KEY, topic.name, text)

    def _define(self, topic: Topic, expected: bytes, text: bytes, durable: bool = False) -> bool:
        """Replace a definition if it is the expected one; return whether it was."""
        _check_length(topic.name, text)
        with _refusals_named(topic.name):
            return self._connections.run(define(topic.name, expected, text, durable=durable))


def check_same(registered: Topic, topic: Topic) -> None:
    """Raise `TopicMismatchError` if a topic is registered with other values of settings that cannot be changed."""
    if (registered.type, registered.slots) != (topic.type, topic.slots):
        raise TopicMismatchError(
            f"topic {topic.name} is registered as {registered.type.name} with {registered.slots} slots, "
            f"not as {topic.type.name} with {topic.slots}; type and slots can't be changed",
            topic=topic.name,
        )
    if not same_merging(registered.merge, topic.merge):
        raise TopicMismatchError(
            f"topic {topic.name} is registered with merge={registered.merge!r}, not with {topic.merge!r}; only "
            "its window, max_count (except PER_MESSAGE), and max_items, max_bytes and when_full of Collect may differ",
            topic=topic.name,
        )


def _ordered_as(other: Topic, topic: Topic) -> Topic:
    """Return a definition with the `ties` and `max_priority` of another, if both have the same type."""
    same = other.type is topic.type
    return replace(topic, ties=other.ties, max_priority=other.max_priority) if same else topic


def _check_length(name: str, text: bytes) -> None:
    if len(text) > MAX_DEFINITION_BYTES:
        raise InvalidTopicError(
            f"the definition of topic {name} takes {len(text)} bytes, more than {MAX_DEFINITION_BYTES}; "
            "use fewer steps in its retry policy",
            topic=name,
        )


@contextmanager
def _refusals_named(name: str | None = None) -> Generator[None]:
    """Explain the refusal of a command: the definition of a topic was not written, or none can be read."""
    try:
        yield
    except DurabilityError as error:
        unconfirmed = DurabilityError(
            f"the definition of topic {name} is on the master, but not confirmed: {error.missing}; it may get lost if "
            "the master fails now. Registering or changing it again is safe",
            topic=name,
        )
        unconfirmed.missing = error.missing
        raise unconfirmed from error
    except MemoryFullError as error:
        raise MemoryFullError(
            f"Redis is at its maxmemory and did not define or change topic {name}; consume messages or raise maxmemory",
            topic=name,
        ) from error
    except (ReplyLostError, ScriptFailedError) as error:
        if "WRONGTYPE" in str(error):
            text = f"key {TOPICS_KEY} is not a hash, so a program other than RMQ has written it: rename or delete it"
        elif not any(words in str(error) for words in NO_RIGHT):
            raise
        elif name is None:
            text = (
                f"NOPERM: this user of Redis may not read the key {TOPICS_KEY}, which has the definitions of topics "
                f"({error})"
            )
        else:
            text = (
                f"NOPERM: the definition of topic {name} was not written, since this user of Redis may not write the "
                f"key {TOPICS_KEY}, or may not use this command ({error})"
            )
        raise ScriptFailedError(text, topic=name) from error
