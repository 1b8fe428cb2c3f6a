"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from rmq.adapters.django.settings import client_options


class RmqConfig(AppConfig):
    """`"rmq.adapters.django"` in `INSTALLED_APPS`."""

    name = "rmq.adapters.django"
    label = "rmq"
    verbose_name = "RMQ"

    def ready(self) -> None:
        """Have `manage.py check` look at the setting."""
        checks.register(check_setting)


def check_setting(**options: object) -> list[checks.CheckMessage]:
    """Report a wrong setting `RMQ`."""
    del options
    try:
        client_options()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="rmq.E001")]
    return []
