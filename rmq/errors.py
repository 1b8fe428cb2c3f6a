"""Every error that RMQ raises, in one tree.

RmqError
├── InvalidValueError (also ValueError)    a value that breaks a rule; nothing was written
│   ├── InvalidTopicError
│   │   └── UnreadableTopicError (also UnreadableDocumentError)
│   ├── InvalidMessageError
│   └── InvalidUrlError
├── UnreadableDocumentError                stored by a newer version, or not readable at all
├── TopicMismatchError                     registered with another type or slot count
├── UnknownTopicError                      nobody has registered this topic
├── TooManyGroupsError                     a stream topic has its most groups
├── SendError                              says what was stored and what was not
│   ├── InvalidBatchError (also InvalidMessageError)
│   ├── BacklogFullError
│   │   └── CollectionFullError            a Collect has its most items, or bytes
│   ├── CallChangedError                   a call of the same `once` sent other messages before
│   ├── DurabilityError                    stored on the master, but not confirmed as safe
│   ├── EntryIdError                       an entry's id does not rise
│   ├── FixedTimePassedError
│   ├── MemoryFullError                    Redis is at its maxmemory
│   └── SumOutOfRangeError                 a Sum would leave 2^53 - 1, plus or minus
├── RedisUnavailableError                  no answer until the deadline
│   └── ReplyLostError                     sent, but unknown whether it was carried out
├── UnsafeRedisError                       lacks a command, evicts keys, or can't keep the durability
├── ScriptFailedError                      Redis refused a script for another reason
├── EmbeddedServerError                    the embedded Redis does not start
├── PayloadError                           a body does not decode as its topic's payload class
├── LeaseLostError                         this delivery is no longer ours
├── AlreadySettledError                    a delivery was acked or nacked twice
├── BatchError                             a streaming query's batch can't be read or acked as it was
│   ├── BatchAckedError
│   ├── BatchChangedError                  a task that is run again sends other rows than before
│   ├── BatchLostError                     others took messages of it while it ran
│   └── DriverReplacedError                another driver runs the same query
├── CoordinationError                      ZooKeeper
│   ├── FencedError                        a newer owner has touched the slot
│   └── EnsembleMismatchError              the slot belongs to another ensemble
├── ClientClosedError
├── WebhookError                           a webhook did not take a notice
└── ForkedClientError                      a client was carried over a fork
"""

from __future__ import annotations

from typing import Any

# fmt: off
__all__ = [
    "AlreadySettledError", "BacklogFullError", "BatchAckedError", "BatchChangedError", "BatchError",
    "BatchLostError", "CallChangedError", "ClientClosedError", "CollectionFullError",
    "CoordinationError", "DriverReplacedError", "DurabilityError", "EmbeddedServerError",
    "EnsembleMismatchError", "EntryIdError", "FencedError", "FixedTimePassedError", "ForkedClientError",
    "InvalidBatchError", "InvalidMessageError", "InvalidTopicError", "InvalidUrlError",
    "InvalidValueError", "LeaseLostError", "MemoryFullError", "PayloadError", "RedisUnavailableError", "ReplyLostError",
    "RmqError", "ScriptFailedError", "SendError", "SumOutOfRangeError", "TooManyGroupsError",
    "TopicMismatchError", "UnknownTopicError", "UnreadableDocumentError", "UnreadableTopicError",
    "UnsafeRedisError", "WebhookError",
]
# fmt: on


_MOST_TEXT = 4_000
"""Characters of an error's text: a value of 20 MB in it would go into logs and dead letters."""


def _cut(text: str) -> str:
    part = _MOST_TEXT // 2
    return f"{text[:part]}… ({len(text) - 2 * part:,} characters left out) …{text[-part:]}"


class RmqError(Exception):
    """Root of all errors of RMQ.

    Args:
        message: What happened and what to do about it.
        topic: Name of the topic concerned, if any.
        slot: Number of the slot concerned, if any.

    Examples:
        >>> try:
        ...     client.topic("unknown")
        ... except RmqError as error:
        ...     print(type(error).__name__, error.topic)
        UnknownTopicError unknown
    """

    def __init__(self, message: str, *, topic: str | None = None, slot: int | None = None) -> None:
        super().__init__(message if len(message) <= _MOST_TEXT else _cut(message))
        self.topic = topic
        self.slot = slot


class InvalidValueError(RmqError, ValueError):
    """A value breaks a rule. Raised before anything is written.

    Examples:
        >>> try:
        ...     Topic("jobs", TopicType.PRIORITY, slots=3)
        ... except InvalidValueError as error:
        ...     print(error)
        slots of topic jobs is 3; it must be a power of two
    """


class InvalidTopicError(InvalidValueError):
    """A topic's definition breaks a rule."""


class UnreadableDocumentError(RmqError):
    """A document in Redis or ZooKeeper is for newer versions of RMQ only, or is not a document of RMQ.

    Attributes:
        version: Schema version of its writer; `None` where it says none that can be read.
        min_reader: The oldest schema version that may act on it; `None` likewise.
    """

    def __init__(
        self, message: str, *, topic: str | None = None, version: int | None = None, min_reader: int | None = None
    ) -> None:
        super().__init__(message, topic=topic)
        self.version = version
        self.min_reader = min_reader


class UnreadableTopicError(UnreadableDocumentError, InvalidTopicError):
    """A topic's registered definition is for newer versions of RMQ only, or is not a definition."""


class InvalidMessageError(InvalidValueError):
    """A message breaks a rule of its type or of its topic."""


class InvalidUrlError(InvalidValueError):
    """A URL that RMQ cannot connect to."""


class TopicMismatchError(RmqError):
    """The topic is registered with another type or another number of slots."""


class UnknownTopicError(RmqError):
    """No process has used a topic of this name yet."""


class TooManyGroupsError(RmqError):
    """A stream topic has as many groups as it may have."""


class SendError(RmqError):
    """Some messages of a send were not stored.

    Attributes:
        stored: How many messages are known to be stored (new or merged).
        not_stored: Messages known not to be stored, in the order of sending.
        unknown: Messages whose reply was lost: stored or not. What is sent again merges with what is in the backlog,
            and is delivered once more where that was handled meanwhile. It counts twice on topics with `merge=`,
            unless both calls have the same `once`; as entries of a stream, unless they name ids; and in a
            `DelayedQueue`, unless that has `merge=True`.

    Examples:
        >>> jobs = client.producer(Topic("jobs", TopicType.PRIORITY, max_backlog=2))
        >>> try:
        ...     jobs.send_many(PriorityMessage(f"job:{number}", 5) for number in range(3))
        ... except SendError as error:
        ...     print(type(error).__name__, error.stored, [message.content for message in error.not_stored])
        BacklogFullError 0 ['job:0', 'job:1', 'job:2']
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        slot: int | None = None,
        stored: int = 0,
        not_stored: tuple[Any, ...] = (),
        unknown: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(message, topic=topic, slot=slot)
        self.stored = stored
        self.not_stored = not_stored
        self.unknown = unknown


class InvalidBatchError(SendError, InvalidMessageError):
    """A message in the middle of a `send_many` breaks a rule; the error says what was stored before it."""


class BacklogFullError(SendError):
    """The slot's share of the topic's `max_backlog` is used up.

    Attributes:
        room: How many new messages the slot would have taken when it refused these.
    """

    room: int = 0


class EntryIdError(SendError):
    """An entry of a stream topic asks for an id that does not lie above all others of its slot."""


class CollectionFullError(BacklogFullError):
    """A message holds as many items, or bytes of them, as its topic's `Collect` allows, and takes no more."""


class SumOutOfRangeError(SendError):
    """A send takes a `Sum` beyond 2^53 - 1, where not every whole number can be stored."""


class CallChangedError(SendError):
    """A call of the same name, `once`, sent other messages before; these were not sent."""


class DurabilityError(SendError):
    """Something is done on the master, but too few replicas, or no disk, confirmed it in time.

    It holds unless the master fails now. Messages are in `unknown`; there, and in the text of the error, stands what
    comes of sending them again. What steers, such as `cancel`, `pause` or `purge`, and the definition of a topic raise
    this, too: repeating them is safe, but `purge` also drops what has been sent since.

    Attributes:
        missing: What was not confirmed, in words.
    """

    missing: str = ""


class FixedTimePassedError(SendError):
    """A fixed time did not lie ahead of Redis' time when it arrived."""


class MemoryFullError(SendError):
    """Redis is at its `maxmemory` and refuses to store more; consumers can still drain."""


class RedisUnavailableError(RmqError):
    """Redis gave no answer until the deadline; the call was not carried out."""


class ReplyLostError(RedisUnavailableError):
    """The connection broke after a call was sent: it may or may not have been carried out."""


class UnsafeRedisError(RmqError):
    """RMQ refuses this Redis: it lacks a command, its eviction policy drops keys, or it can't keep the durability."""


class ScriptFailedError(RmqError):
    """Redis refused a script: a foreign key of the same name, a missing right, or a bug."""


class EmbeddedServerError(RmqError):
    """The embedded Redis could not be found, started or shared."""


class PayloadError(RmqError):
    """A body does not decode as the payload class of its topic. A listener buries its message at once."""


class LeaseLostError(RmqError):
    """The lease of this delivery ran out: another consumer may have it by now."""


class AlreadySettledError(RmqError):
    """This delivery was acked, nacked or buried before."""


class BatchError(RmqError):
    """A batch of a streaming query can't be read or acked as it was."""


class BatchAckedError(BatchError):
    """The batch is acked: a reader comes too late, or works from an old copy of the query's checkpoint."""


class BatchChangedError(BatchError):
    """A task that is run again sends other rows than before, on a topic where each send counts."""


class BatchLostError(BatchError):
    """Leases ran out while the batch ran, and others took messages of it."""


class DriverReplacedError(BatchError):
    """A newer driver runs this query: after a restart, or from a copy of its checkpoint."""


class CoordinationError(RmqError):
    """ZooKeeper could not be used, or an ownership rule was broken."""


class FencedError(CoordinationError):
    """A newer owner has touched this slot: an older owner can no longer change it.

    Attributes:
        epoch: The newer owner's.
    """

    def __init__(self, message: str, *, topic: str | None = None, slot: int | None = None, epoch: int = 0) -> None:
        super().__init__(message, topic=topic, slot=slot)
        self.epoch = epoch


class EnsembleMismatchError(CoordinationError):
    """The slot's epochs come from another ZooKeeper ensemble; `RmqClient.adopt` moves the slot on purpose."""


class ClientClosedError(RmqError):
    """The client was closed; make a new one."""


class WebhookError(RmqError):
    """A webhook did not answer, or not with success; the same notice is posted again."""


class ForkedClientError(RmqError):
    """Connections do not survive a fork: make the client in the process that uses it."""


for _name in __all__:
    globals()[_name].__module__ = "rmq"  # where users import it from: a traceback says `rmq.SendError`
