"""Each public name has a docstring with an example that runs, or a reason for none."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rmq
from docs_site.reference import MODULES
from rmq import RmqClient
from tests.support.servers import RedisServer

AS_THE_OTHER_SIDE = "the example of the same name in rmq shows it, and that of rmq.aio.RmqClient how to await it"
BY_SPARK = "needs Spark: docs/guide/spark*.md have programs, and tests/spark/ runs them"
IN_A_PROJECT = "needs a Django project: examples/django_shop is one, and tests/functional/test_adapters.py runs it"
RAISED = "raised by RMQ, and never by its users; RmqError, InvalidValueError and SendError show how to catch it"
REASONS = {
    "rmq.__version__": "a text",
    "rmq.adapters.django.client": IN_A_PROJECT,
    "rmq.adapters.django.producer": IN_A_PROJECT,
    "rmq.adapters.django.send_on_commit": IN_A_PROJECT,
    "rmq.aio.Consumer": AS_THE_OTHER_SIDE,
    "rmq.aio.Control": AS_THE_OTHER_SIDE,
    "rmq.aio.DeadLetters": AS_THE_OTHER_SIDE,
    "rmq.aio.DeadNotices": AS_THE_OTHER_SIDE,
    "rmq.aio.Delivery": AS_THE_OTHER_SIDE,
    "rmq.aio.DeliveryColumns": AS_THE_OTHER_SIDE,
    "rmq.aio.GroupDead": AS_THE_OTHER_SIDE,
    "rmq.aio.HandlerDecorator": AS_THE_OTHER_SIDE,
    "rmq.aio.History": AS_THE_OTHER_SIDE,
    "rmq.aio.Inspection": AS_THE_OTHER_SIDE,
    "rmq.aio.ListenerOptions": AS_THE_OTHER_SIDE,
    "rmq.aio.Producer": AS_THE_OTHER_SIDE,
    "rmq.aio.Schedules": AS_THE_OTHER_SIDE,
    "rmq.aio.StreamDelivery": AS_THE_OTHER_SIDE,
    "rmq.aio.StreamTopic": AS_THE_OTHER_SIDE,
    "rmq.aio.tail_all": AS_THE_OTHER_SIDE,
    "rmq.spark.RmqDataSource": BY_SPARK,
    "rmq.spark.Refused": BY_SPARK,
    "rmq.spark.keyed": BY_SPARK,
    "rmq.spark.merged": BY_SPARK,
    "rmq.spark.open_session": BY_SPARK,
    "rmq.spark.refuse": BY_SPARK,
    "rmq.spark.refuse_rows": BY_SPARK,
    "rmq.spark.register": BY_SPARK,
    "rmq.spark.save": BY_SPARK,
    "rmq.spark.with_slot": BY_SPARK,
}
"""Public names without an example, and why."""


def public() -> Iterator[tuple[str, Any]]:
    """Yield all public names, and what they stand for."""
    for module in map(importlib.import_module, MODULES):
        for name in sorted(module.__all__):
            yield f"{module.__name__}.{name}", getattr(module, name)


def examples_of(name: str, value: Any) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(inspect.getdoc(value) or "", name)


def is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, rmq.RmqError)


PUBLIC = dict(public())
WITH_EXAMPLE = sorted(name for name, value in PUBLIC.items() if examples_of(name, value))


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_the_example_runs_as_it_stands(name: str, server: RedisServer) -> None:
    with RmqClient(server.url) as client:
        names = {each: getattr(rmq, each) for each in rmq.__all__}
        names |= {"client": client, "timedelta": timedelta, "datetime": datetime, "UTC": UTC}
        test = doctest.DocTestParser().get_doctest(inspect.getdoc(PUBLIC[name]) or "", names, name, None, None)
        said: list[str] = []
        doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
        assert not said, "".join(said)
    with server.connect() as connection:
        connection.flushall()


def test_every_public_name_has_an_example_or_a_reason_for_none() -> None:
    without = [
        name
        for name, value in PUBLIC.items()
        if name not in WITH_EXAMPLE and name not in REASONS and not is_error(value)
    ]
    assert without == []


def test_no_reason_is_given_for_what_has_an_example() -> None:
    assert sorted(REASONS.keys() & set(WITH_EXAMPLE)) == []
    assert sorted(REASONS.keys() - PUBLIC.keys()) == []


def test_every_error_says_when_it_is_raised() -> None:
    assert [name for name, value in PUBLIC.items() if is_error(value) and not (value.__doc__ or "").strip()] == []
