"""What others may watch: sends, handlers, outcomes. Metrics and traces are built on it; unused, it costs nothing."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from rmq.delivery import Delivery
from rmq.topics import Topic

log = logging.getLogger("rmq.observing")


class Observer:
    """Watches a client; a subclass takes what it wants. Its methods are called from many threads, and must be quick."""

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        """Stand around a send; `messages` is 0 for a stream of them. Gives the trace context to go along, or ""."""
        del topic, messages
        yield ""

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Stand around a handler; its exception passes through. Deliveries nacked by itself have an `outcome`."""
        del deliveries
        yield

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Learn that outcomes have reached Redis; `lost` tells which came too late."""


class Observers:
    """All observers of a client."""

    def __init__(self) -> None:
        self.all: list[Observer] = []

    @contextmanager
    def sending(self, topic: Topic, messages: int) -> Generator[str]:
        """Let all of them stand around a send; the last context given goes along."""
        with ExitStack() as stack:
            traces = [stack.enter_context(each.sending(topic, messages)) for each in self.all]
            yield next((trace for trace in reversed(traces) if trace), "")

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Let all of them stand around a handler."""
        with ExitStack() as stack:
            for each in self.all:
                stack.enter_context(each.handling(deliveries))
            yield

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Tell all of them; the outcomes stand in Redis, whatever becomes of that."""
        for each in self.all:
            try:
                each.settled(deliveries)
            except Exception:
                log.exception("an observer failed")
