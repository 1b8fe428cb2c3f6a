"""RMQ in Django: `"rmq.adapters.django"` in `INSTALLED_APPS`, the setting `RMQ`, and `manage.py rmq_worker`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

try:
    from django.db import transaction
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("rmq.adapters.django needs the package django: pip install 'rmq[django]'") from error

from rmq._model.messages import Message
from rmq._model.topics import Topic
from rmq._sending.producer import Producer
from rmq.adapters._process import ProcessClient
from rmq.adapters.django.settings import new_client
from rmq.client import RmqClient

__all__ = ["client", "producer", "send_on_commit"]

_process = ProcessClient(new_client)


def client() -> RmqClient:
    """Return the client of this process, as the setting `RMQ` says. It is made at first use, and closed at the end.

    Raises:
        ImproperlyConfigured: The setting is wrong.
        RmqError: As `rmq.RmqClient`.
    """
    return _process.get()


def producer(topic: Topic) -> Producer:
    """Return the topic's producer, which all threads of this process share; raises as `client`."""
    return _process.producer(topic)


def send_on_commit(topic: Topic, *messages: Message, using: str | None = None, robust: bool = False) -> None:
    """Send messages once the running transaction is committed; at once where none runs. A rollback sends nothing.

    Args:
        topic: Where to.
        messages: What to send.
        using: The database whose transaction is meant; by default Django's.
        robust: True if an error of the send is logged, and later callbacks of the commit still run.

    Raises:
        SendError: What the send raises, at the commit: the transaction is committed then. Not with `robust`.

    Guarantee: at most once. A process that ends between the commit and the send sends nothing.
    """
    transaction.on_commit(partial(_send, topic, messages), using=using, robust=robust)


def _send(topic: Topic, messages: Iterable[Message]) -> None:
    producer(topic).send_many(messages)
