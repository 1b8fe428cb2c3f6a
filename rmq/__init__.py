"""RMQ: a message queue on Redis that merges duplicates, orders by priority and delivers at a set time.

The public names are in this module and in `rmq.adapters`, `rmq.aio`, `rmq.metrics`, `rmq.otel`, `rmq.spark` and
`rmq.testing`.
"""

from rmq import errors
from rmq._admin.adopt import Adoption
from rmq._admin.control import Control
from rmq._admin.dead_letters import DeadFilter, DeadLetters, GroupDead, RedriveResult
from rmq._admin.deletion import DeletedTopic
from rmq._admin.figures import (
    ConsumerStats,
    GroupSlot,
    GroupStats,
    Rates,
    ServerMemory,
    SlotStats,
    StreamSlot,
    StreamStats,
    TopicStats,
)
from rmq._admin.history import History, Minute
from rmq._admin.inspection import Inspection
from rmq._admin.messages import (
    Attempt,
    AuditLine,
    DeadEntry,
    DeadMessage,
    DeadReasons,
    Failure,
    FoundMessage,
    PeekedMessage,
    SearchPage,
    Whereabouts,
)
from rmq._admin.notices import DeadNotices, Webhook
from rmq._admin.stream_topic import StreamTopic, tail_all
from rmq._admin.view import SparkQuery
from rmq._claiming.consumer import Consumer, poll_all
from rmq._io.observers import Observer, Observers
from rmq._listening.adaptive_limit import Adaptive
from rmq._listening.listener import (
    HandlerDecorator,
    Listener,
    ListenerOptions,
    ScheduleOptions,
    listener,
    scan,
    scheduled,
)
from rmq._model.claims import DeliveryColumns
from rmq._model.codecs import Codec, EncryptedCodec, JsonCodec, MsgpackCodec, ZstdCodec
from rmq._model.deliveries import Delivery
from rmq._model.encoding import ArrowArray
from rmq._model.entries import PendingEntry, StreamDelivery, StreamEntry, Trimmed
from rmq._model.merging import (
    PER_MESSAGE,
    Collect,
    Fixed,
    Keep,
    Leading,
    Max,
    Merge,
    Min,
    Newest,
    Overflow,
    PerMessage,
    PriorityRule,
    Replace,
    Sliding,
    Sum,
    json_merge_patch,
)
from rmq._model.messages import FixedTimeMessage, JoinMessage, PriorityMessage, RangeMergeMessage, StreamMessage
from rmq._model.outcomes import Outcome, Verb
from rmq._model.replies import CancelledMatches, ControlResult, Owner, Redriven, SendResult
from rmq._model.retry import ExponentialRetry, ImmediateRetry, LadderRetry, RetryAfterError, RetryPolicy
from rmq._model.scores import Ties
from rmq._model.topics import Retention, Topic, TopicType, WhenFull
from rmq._model.typed import MessageOptions
from rmq._model.workers import HandlerTimes, Health, ListenerInfo, RunningHandler, WorkerInfo
from rmq._ownership import Coordinator, DigestAuth, Ownership, RedisOwners, SaslAuth, Tls
from rmq._processes.embedded import EmbeddedServer
from rmq._registry.registry import Definitions, UnreadableTopic
from rmq._schedules.schedule import Schedule, ScheduleInfo, SchedulePut
from rmq._schedules.schedules import Schedules
from rmq._sending.producer import Producer
from rmq.client import RmqClient
from rmq.delayed import DelayedQueue
from rmq.errors import *  # noqa: F403 - all of them
from rmq.logs import JsonFormatter, LogContext

__version__ = "0.2.0"

# fmt: off
__all__ = [
    "PER_MESSAGE", "Adaptive", "Adoption", "ArrowArray", "Attempt", "AuditLine", "CancelledMatches", "Codec", "Collect",
    "Consumer", "ConsumerStats", "Control", "ControlResult", "Coordinator", "DeadEntry", "DeadFilter", "DeadLetters",
    "DeadMessage", "DeadNotices", "DeadReasons", "Definitions", "DelayedQueue", "DeletedTopic", "Delivery",
    "DeliveryColumns",
    "DigestAuth", "EmbeddedServer", "EncryptedCodec", "ExponentialRetry", "Failure", "Fixed", "FixedTimeMessage",
    "FoundMessage", "GroupDead", "GroupSlot", "GroupStats", "HandlerDecorator", "HandlerTimes", "Health", "History",
    "ImmediateRetry", "Inspection", "JoinMessage", "JsonCodec", "JsonFormatter", "Keep", "LadderRetry", "Leading",
    "Listener", "ListenerInfo", "ListenerOptions", "LogContext", "Max", "Merge", "MessageOptions", "Min", "Minute",
    "MsgpackCodec", "Newest", "Observer", "Observers", "Outcome", "Overflow", "Owner", "Ownership", "PeekedMessage",
    "PendingEntry", "PerMessage", "PriorityMessage", "PriorityRule", "Producer", "RangeMergeMessage", "Rates",
    "RedisOwners", "RedriveResult", "Redriven", "Replace", "Retention", "RetryAfterError", "RetryPolicy", "RmqClient",
    "RunningHandler", "SaslAuth", "Schedule", "ScheduleInfo", "ScheduleOptions", "SchedulePut", "Schedules",
    "SearchPage", "SendResult", "ServerMemory", "Sliding", "SlotStats", "SparkQuery", "StreamDelivery", "StreamEntry",
    "StreamMessage", "StreamSlot", "StreamStats", "StreamTopic", "Sum", "Ties", "Tls", "Topic", "TopicStats",
    "TopicType", "Trimmed", "UnreadableTopic", "Verb", "Webhook", "WhenFull", "Whereabouts", "WorkerInfo", "ZstdCodec",
    "__version__", "json_merge_patch", "listener", "poll_all", "scan", "scheduled", "tail_all",
]
# fmt: on
__all__ += errors.__all__
