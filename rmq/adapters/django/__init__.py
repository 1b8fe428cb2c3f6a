"""RMQ in Django: `"rmq.adapters.django"` in `INSTALLED_APPS`, the setting `RMQ`, and `manage.py rmq_worker`.

The setting is a dict of options of `rmq.RmqClient`, in capitals.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

try:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.db import transaction
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("rmq.adapters.django needs the package django: pip install 'rmq[django]'") from error

from rmq import Producer, RmqClient, Topic
from rmq.adapters._process import ProcessClient
from rmq.spi import Message, chosen_url

__all__ = ["client", "producer", "send_on_commit"]

OPTIONS = ("URL", "ZOOKEEPER", "OWNERS", "DURABILITY", "REPLICAS", "TIMEOUT_S", "DEADLINE_S")


def client_options() -> dict[str, Any]:
    """Return the client options from the setting.

    Raises:
        ImproperlyConfigured: The setting is not a dict, or has an unknown key.
    """
    setting: object = getattr(settings, "RMQ", {})
    if not isinstance(setting, dict):
        raise ImproperlyConfigured(
            f"the setting RMQ is {setting!r}; it must be a dict, such as {{'URL': 'redis://...'}}"
        )
    options = cast("dict[str, Any]", setting)
    if unknown := sorted(map(str, options.keys() - set(OPTIONS))):
        raise ImproperlyConfigured(
            f"the setting RMQ has unknown keys {', '.join(unknown)}; the known keys are {', '.join(OPTIONS)}"
        )
    return {name.lower(): value for name, value in options.items()}


def new_client() -> RmqClient:
    """Return a new client with the options of the setting.

    Raises:
        InvalidUrlError: Neither the setting nor the environment variable `RMQ_URL` has a URL.
    """
    options = client_options()
    options["url"] = chosen_url(options.get("url")).url
    return RmqClient(**options)


_process = ProcessClient(new_client)


def client() -> RmqClient:
    """Return the client of this process, from the setting `RMQ`. It is created at first use and closed at exit.

    Raises:
        ImproperlyConfigured: The setting is invalid.
        RmqError: As for `rmq.RmqClient`.
    """
    return _process.get()


def producer(topic: Topic) -> Producer:
    """Return the topic's producer, shared by all threads. Raises as `client` and `rmq.RmqClient.producer`."""
    return _process.producer(topic)


def send_on_commit(topic: Topic, *messages: Message, using: str | None = None, robust: bool = False) -> None:
    """Send messages when the current transaction is committed, or at once outside a transaction.

    Args:
        topic: The topic.
        messages: The messages, sent as by `Producer.send_many`.
        using: Alias of the transaction's database; by default, the default database of Django.
        robust: If true, an error of the send is logged instead of raised, and later callbacks of the commit still run.

    Raises:
        RmqError: The send failed, as for `client` and `Producer.send_many`; the transaction is committed. Not raised
            with `robust`.

    Guarantee: at most once. A rollback sends nothing, and neither does a process that ends between the commit and the
        send.
    """
    transaction.on_commit(partial(_send, topic, messages), using=using, robust=robust)


def _send(topic: Topic, messages: Iterable[Message]) -> None:
    producer(topic).send_many(messages)
