"""The Django app of RMQ, which adds a check of the setting `RMQ`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from rmq.adapters.django import client_options
from rmq.errors import InvalidUrlError
from rmq.spi import chosen_url


class RmqConfig(AppConfig):
    """Configuration of the app `"rmq.adapters.django"`, to be listed in `INSTALLED_APPS`."""

    name = "rmq.adapters.django"
    label = "rmq"
    verbose_name = "RMQ"

    def ready(self) -> None:
        """Register the check of the setting `RMQ` for `manage.py check`."""
        checks.register(check_setting)


def check_setting(**options: object) -> list[checks.CheckMessage]:
    """Report an invalid setting `RMQ`, and one without the URL of a Redis."""
    del options
    try:
        url = client_options().get("url")
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="rmq.E001")]
    try:
        chosen_url(url)
    except InvalidUrlError as error:  # a warning only: a build or a migration needs no Redis
        return [checks.Warning(str(error), id="rmq.W001")]
    return []
