"""Every error that RMQ raises, in one tree.

RmqError
├── InvalidValueError (also ValueError)    a value that breaks a rule; nothing was written
│   ├── InvalidTopicError
│   │   └── UnreadableTopicError (also UnreadableDocumentError)
│   ├── InvalidMessageError
│   └── InvalidUrlError
├── UnreadableDocumentError                stored by a newer version, or not readable at all
├── TopicInUseError                        a topic to delete still holds messages, or is used
├── TopicMismatchError                     registered with another type or slot count
├── UnknownTopicError                      no process has registered this topic
├── TooManyGroupsError                     a stream topic has the maximum number of groups
├── SendError                              lists the messages that were stored and those that were not
│   ├── InvalidBatchError (also InvalidMessageError)
│   ├── BacklogFullError
│   │   └── CollectionFullError            a Collect has its maximum of items or bytes
│   ├── CallChangedError                   an earlier call with the same `once` sent different messages
│   ├── DurabilityError                    stored on the master, but not confirmed as safe
│   ├── EntryIdError                       an entry's id is not above the last one of its slot
│   ├── FixedTimePassedError
│   ├── MemoryFullError                    Redis is at its maxmemory
│   ├── SumOutOfRangeError                 a Sum would exceed 2^53 - 1 in either direction
│   └── TopicDeletedError (also ScriptFailedError)
├── RedisUnavailableError                  no answer before the deadline
│   └── ReplyLostError                     the call was sent; it may or may not have been executed
├── UnsafeRedisError                       lacks a command, evicts keys, or can't keep the durability
├── ScriptFailedError                      Redis refused a script for another reason
├── EmbeddedServerError                    the embedded Redis does not start
├── PayloadError                           a body does not decode as its topic's payload class
├── LeaseLostError                         the delivery's lease expired; it may have been redelivered
├── AlreadySettledError                    a delivery was acked or nacked twice
├── BatchError                             a batch of a streaming query can't be read or acked any more
│   ├── BatchAckedError
│   ├── BatchChangedError                  a task that was retried produced different rows
│   ├── BatchLostError                     other consumers claimed its messages while it ran
│   └── DriverReplacedError                another driver runs the same query
├── CoordinationError                      owners
│   ├── FencedError                        a newer owner has changed the slot
│   └── EnsembleMismatchError              the slot belongs to another ensemble
├── ClientClosedError
├── WebhookError                           a webhook did not accept a notice
└── ForkedClientError                      a client was used in a forked process
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
    "TopicDeletedError", "TopicInUseError",
    "TopicMismatchError", "UnknownTopicError", "UnreadableDocumentError", "UnreadableTopicError",
    "UnsafeRedisError", "WebhookError",
]
# fmt: on


_MOST_TEXT = 4_000
"""Maximum length of an error's text in characters, so that a value of 20 MB does not fill logs and dead letters."""


def _cut(text: str) -> str:
    part = _MOST_TEXT // 2
    return f"{text[:part]}… ({len(text) - 2 * part:,} characters left out) …{text[-part:]}"


class RmqError(Exception):
    """Root of all errors of RMQ.

    Args:
        message: The error's text: what happened and what to do about it.
        topic: Name of the topic, if any.
        slot: Number of the slot, if any.

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
    """A document in Redis or ZooKeeper needs a newer version of RMQ, or was not written by RMQ.

    Attributes:
        version: Schema version of its writer; `None` if it cannot be read.
        min_reader: The oldest schema version that may use it; `None` if it cannot be read.
    """

    def __init__(
        self, message: str, *, topic: str | None = None, version: int | None = None, min_reader: int | None = None
    ) -> None:
        super().__init__(message, topic=topic)
        self.version = version
        self.min_reader = min_reader


class UnreadableTopicError(UnreadableDocumentError, InvalidTopicError):
    """A topic's registered definition needs a newer version of RMQ, or is not a definition."""


class InvalidMessageError(InvalidValueError):
    """A message breaks a rule of its type or of its topic."""


class InvalidUrlError(InvalidValueError):
    """A URL that RMQ cannot connect to."""


class TopicInUseError(RmqError):
    """A topic was not deleted, since it holds messages, or a worker, a Spark query or a schedule uses it."""


class TopicMismatchError(RmqError):
    """The topic is registered with another type or another number of slots."""


class UnknownTopicError(RmqError):
    """No process has used a topic of this name yet."""


class TooManyGroupsError(RmqError):
    """A stream topic has reached its maximum number of groups."""


class SendError(RmqError):
    """Some messages of a send were not stored.

    Attributes:
        stored: Number of messages known to be stored (new or merged).
        not_stored: Messages known not to be stored, in the order of sending.
        unknown: Messages whose reply was lost: they may or may not be stored. If you send one again, it merges with the
            copy in the backlog, or is delivered a second time if that copy was already handled. It counts twice on
            topics with `merge=` (unless both calls have the same `once`), on streams (unless entries have ids) and in
            a `DelayedQueue` (unless `merge=True`).

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
    """A message of a `send_many` is invalid; the error says which messages were stored before it."""


class BacklogFullError(SendError):
    """The slot's share of the topic's `max_backlog` is used up.

    Attributes:
        room: Number of new messages that the slot could still store when it refused these.
    """

    room: int = 0


class EntryIdError(SendError):
    """The id given for an entry of a stream topic is not greater than the last id of its slot."""


class CollectionFullError(BacklogFullError):
    """A message has reached the number of items or bytes that its topic's `Collect` allows."""


class SumOutOfRangeError(SendError):
    """A send would take a `Sum` beyond 2^53 - 1, above which not every whole number can be stored."""


class CallChangedError(SendError):
    """An earlier call with the same `once` sent different messages; nothing was sent."""


class DurabilityError(SendError):
    """A write was executed on the master, but not confirmed in time by enough replicas or by the disk.

    It is lost only if the master fails now. Messages are in `unknown`; see there, and the text of the error, for the
    effect of sending them again. Management calls such as `cancel`, `pause` or `purge` and registering a topic raise
    this error, too. Repeating them is safe, but `purge` also drops messages sent in the meantime.

    Attributes:
        missing: Description of the missing confirmation.
    """

    missing: str = ""


class FixedTimePassedError(SendError):
    """A fixed time was already past, by Redis' clock, when the message arrived."""


class MemoryFullError(SendError):
    """Redis has reached its `maxmemory` and stores no more messages. Consumers can still claim and ack."""


class RedisUnavailableError(RmqError):
    """Redis did not answer before the deadline; the call was not executed."""


class ReplyLostError(RedisUnavailableError):
    """The connection broke after a call was sent: it may or may not have been executed."""


class UnsafeRedisError(RmqError):
    """RMQ refuses this Redis: it lacks a command, its eviction policy drops keys, or it can't keep the durability."""


class ScriptFailedError(RmqError):
    """Redis refused a script: another program uses a key of that name, a permission is missing, or RMQ has a bug."""


class TopicDeletedError(SendError, ScriptFailedError):
    """The topic was deleted with `RmqClient.delete_topic` or `rmq topics delete`: nothing is sent to it or claimed.

    Redis only says that a slot's key is of another type: another program that has written it causes the same error.
    """


class EmbeddedServerError(RmqError):
    """The embedded Redis could not be found, started or shared."""


class PayloadError(RmqError):
    """A body does not decode as the payload class of its topic. A listener moves its message to the dead letters."""


class LeaseLostError(RmqError):
    """The lease of this delivery expired: the message may have been delivered to another consumer."""


class AlreadySettledError(RmqError):
    """This delivery was acked, nacked or buried before."""


class BatchError(RmqError):
    """A batch of a streaming query can't be read or acked any more."""


class BatchAckedError(BatchError):
    """The batch is already acked: the reader is late, or uses an old copy of the query's checkpoint."""


class BatchChangedError(BatchError):
    """A task that was retried produced different rows, on a topic where every send counts."""


class BatchLostError(BatchError):
    """Leases expired while the batch ran, and other consumers claimed its messages."""


class DriverReplacedError(BatchError):
    """A newer driver runs this query, after a restart or from a copy of its checkpoint."""


class CoordinationError(RmqError):
    """The keeper of owners, ZooKeeper or Redis, could not be used, or an ownership rule was broken."""


class FencedError(CoordinationError):
    """A newer owner has changed this slot: an older owner can no longer change it.

    Attributes:
        epoch: Epoch of the newer owner.
    """

    def __init__(self, message: str, *, topic: str | None = None, slot: int | None = None, epoch: int = 0) -> None:
        super().__init__(message, topic=topic, slot=slot)
        self.epoch = epoch


class EnsembleMismatchError(CoordinationError):
    """The slot's epochs come from another ensemble; `RmqClient.adopt` moves the slot to this one."""


class ClientClosedError(RmqError):
    """The client was closed; create a new one."""


class WebhookError(RmqError):
    """A webhook did not answer, or answered with an error; the same notice is posted again."""


class ForkedClientError(RmqError):
    """Connections do not survive a fork: create the client in the process that uses it."""


for _name in __all__:
    globals()[_name].__module__ = "rmq"  # so that a traceback says `rmq.SendError`
