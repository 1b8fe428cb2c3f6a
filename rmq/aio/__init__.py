"""RMQ for asyncio: the names and behaviour of `rmq`, with coroutines for all calls that may talk to Redis.

The logic is that of the plain classes, run in greenlets; see docs/guide/asyncio.md.
"""

from rmq.aio.client import RmqClient
from rmq.aio.delayed import DelayedQueue
from rmq.aio.delivery import Delivery, DeliveryColumns, StreamDelivery
from rmq.aio.facades import (
    Consumer,
    Control,
    DeadLetters,
    DeadNotices,
    GroupDead,
    History,
    Inspection,
    Producer,
    Schedules,
    StreamTopic,
    tail_all,
)
from rmq.aio.listener import HandlerDecorator, ListenerOptions

__all__ = [
    "Consumer",
    "Control",
    "DeadLetters",
    "DeadNotices",
    "DelayedQueue",
    "Delivery",
    "DeliveryColumns",
    "GroupDead",
    "HandlerDecorator",
    "History",
    "Inspection",
    "ListenerOptions",
    "Producer",
    "RmqClient",
    "Schedules",
    "StreamDelivery",
    "StreamTopic",
    "tail_all",
]
