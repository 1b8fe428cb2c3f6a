"""RMQ: a message queue on Redis that merges duplicates, orders by priority and delivers at a set time."""

from rmq.client import RmqClient
from rmq.dead import DeadFilter
from rmq.delivery import Delivery
from rmq.errors import RmqError
from rmq.messages import FixedTimeMessage, PriorityMessage, RangeMergeMessage
from rmq.results import ControlResult, DeadMessage, SendResult
from rmq.retry import ExponentialRetry, ImmediateRetry, LadderRetry
from rmq.scanning import listener, scan
from rmq.topics import Topic, TopicType

__version__ = "0.1.0"

__all__ = [
    "ControlResult",
    "DeadFilter",
    "DeadMessage",
    "Delivery",
    "ExponentialRetry",
    "FixedTimeMessage",
    "ImmediateRetry",
    "LadderRetry",
    "PriorityMessage",
    "RangeMergeMessage",
    "RmqClient",
    "RmqError",
    "SendResult",
    "Topic",
    "TopicType",
    "__version__",
    "listener",
    "scan",
]
