"""RMQ: a message queue on Redis that merges duplicates, orders by priority and delivers at a set time."""

from rmq.adaptive import Adaptive
from rmq.client import RmqClient
from rmq.dead import DeadFilter
from rmq.delayed import DelayedQueue
from rmq.delivery import Delivery
from rmq.errors import RmqError
from rmq.messages import FixedTimeMessage, PriorityMessage, RangeMergeMessage, StreamMessage
from rmq.results import ControlResult, DeadMessage, SendResult
from rmq.retention import Retention
from rmq.retry import ExponentialRetry, ImmediateRetry, LadderRetry
from rmq.scanning import listener, scan
from rmq.stream_values import StreamDelivery, StreamEntry
from rmq.topics import Topic, TopicType, WhenFull

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
    "ControlResult",
    "DeadFilter",
    "DeadMessage",
    "DelayedQueue",
    "Delivery",
    "ExponentialRetry",
    "FixedTimeMessage",
    "ImmediateRetry",
    "LadderRetry",
    "PriorityMessage",
    "RangeMergeMessage",
    "Retention",
    "RmqClient",
    "RmqError",
    "SendResult",
    "StreamDelivery",
    "StreamEntry",
    "StreamMessage",
    "Topic",
    "TopicType",
    "WhenFull",
    "__version__",
    "listener",
    "scan",
]
