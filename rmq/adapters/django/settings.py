"""The setting `RMQ` of a Django project: a dict of options of `rmq.RmqClient`, in capitals."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from rmq import RmqClient
from rmq.spi import chosen_url

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
