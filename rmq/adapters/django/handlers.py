"""The handlers of a Django project, from the module `rmq_handlers` of each app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from django.apps import apps
from django.db import close_old_connections
from django.utils.module_loading import module_has_submodule

from rmq import Listener, scan

MODULE = "rmq_handlers"
"""Module or package of an app that has functions decorated with `rmq.listener`."""


def discovered() -> list[Listener]:
    """Return the listeners of all installed apps.

    Raises:
        InvalidValueError: A module cannot be imported; its error is the cause.
    """
    listeners: list[Listener] = []
    for app in apps.get_app_configs():
        if app.module is not None and module_has_submodule(app.module, MODULE):
            listeners += scan(f"{app.name}.{MODULE}")
    return [replace(each, handler=with_fresh_connections(each.handler)) for each in listeners]


def with_fresh_connections(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler to close broken and old database connections, as Django does around each request."""

    @wraps(handler)
    def handle(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return handler(*args, **kwargs)
        finally:
            close_old_connections()

    return handle
