"""The setting `RMQ` of a Django project: options of `rmq.RmqClient` in capitals."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from rmq._transport.urls import chosen_url
from rmq.client import RmqClient

OPTIONS = ("URL", "ZOOKEEPER", "DURABILITY", "REPLICAS", "TIMEOUT_S", "DEADLINE_S")


def client_options() -> dict[str, Any]:
    """Return the options of the client that the setting names.

    Raises:
        ImproperlyConfigured: It is no dict, or has another key.
    """
    setting: object = getattr(settings, "RMQ", {})
    if not isinstance(setting, dict):
        raise ImproperlyConfigured(
            f"the setting RMQ is {setting!r}; it must be a dict, such as {{'URL': 'redis://...'}}"
        )
    options = cast("dict[str, Any]", setting)
    if unknown := sorted(map(str, options.keys() - set(OPTIONS))):
        raise ImproperlyConfigured(f"the setting RMQ has {', '.join(unknown)}; it may have {', '.join(OPTIONS)}")
    return {name.lower(): value for name, value in options.items()}


def new_client() -> RmqClient:
    """Return a new client as the setting says.

    Raises:
        InvalidUrlError: Neither the setting nor `RMQ_URL` names a Redis.
    """
    options = client_options()
    options["url"] = chosen_url(options.get("url")).url
    return RmqClient(**options)
