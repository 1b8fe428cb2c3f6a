"""Which functions can be handlers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rmq._model.handlers import ASYNC, ASYNC_GENERATOR, GENERATOR, check_async, check_plain, kind_of, refuse_unfinished
from rmq.errors import InvalidValueError


def plain(delivery: object) -> None: ...


async def awaited(delivery: object, more: int = 0) -> None: ...


def generator(delivery: object) -> Iterator[int]:
    yield 1


async def async_generator(delivery: object) -> AsyncIterator[int]:
    yield 1


class Handler:
    def __call__(self, delivery: object) -> None: ...
    def method(self, delivery: object) -> None: ...
    async def awaited(self, delivery: object) -> None: ...
    @classmethod
    async def of_the_class(cls, delivery: object) -> None: ...
    @staticmethod
    async def static(delivery: object) -> None: ...


class Awaited:
    async def __call__(self, delivery: object) -> None: ...


class Generating:
    def __call__(self, delivery: object) -> Iterator[int]:
        yield 1


class AsyncGenerating:
    async def __call__(self, delivery: object) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (plain, ""), (functools.partial(plain), ""), (Handler(), ""), (Handler().method, ""), (Handler, ""),
        (print, ""), ([].append, ""), (lambda delivery: None, ""), (Awaited, ""),
        (awaited, ASYNC), (functools.partial(awaited, more=1), ASYNC), (Awaited(), ASYNC), (Handler().awaited, ASYNC),
        (functools.partial(functools.partial(Awaited()), 1), ASYNC), (Awaited().__call__, ASYNC),
        (functools.partial(Handler().awaited), ASYNC), (Handler.of_the_class, ASYNC), (Handler.static, ASYNC),
        (generator, GENERATOR), (functools.partial(generator), GENERATOR), (Generating(), GENERATOR),
        (async_generator, ASYNC_GENERATOR), (functools.partial(async_generator), ASYNC_GENERATOR),
        (AsyncGenerating(), ASYNC_GENERATOR),
    ],
)  # fmt: skip
def test_what_a_handler_is(handler: Any, kind: str) -> None:
    assert kind_of(handler) == kind
    if kind:
        with pytest.raises(InvalidValueError, match="does nothing"):
            check_plain(handler)
    else:
        check_plain(handler)
    if kind == ASYNC:
        check_async(handler)
    else:
        with pytest.raises(InvalidValueError, match="not an async function"):
            check_async(handler)


def test_a_handler_has_to_be_callable() -> None:
    with pytest.raises(InvalidValueError, match="must be a function"):
        check_plain("handle")


def test_unfinished_work_is_refused_and_closed() -> None:
    for result in (None, 0, "text", [], object(), Handler()):
        refuse_unfinished(result)
    coroutine, entries = awaited(1), generator(1)
    for unfinished in (coroutine, entries, async_generator(1)):
        with pytest.raises(InvalidValueError, match="has returned a"):
            refuse_unfinished(unfinished)
    assert coroutine.cr_frame is None
    assert entries.gi_frame is None  # pyright: ignore
    loop = asyncio.new_event_loop()
    with pytest.raises(InvalidValueError, match="Future"):
        refuse_unfinished(loop.create_future())
    loop.close()
