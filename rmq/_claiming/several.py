"""Reads several topics at once: their claims run in parallel, and one wait covers the hints of all."""

# pyright: reportPrivateUsage=false
# A read of several consumers does what `Consumer.poll` does, step by step for all of them.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from typing import cast

from rmq._claiming.consumer import LOOK_EVERY_S, POLL_BYTES, Consumer, checked_poll
from rmq._claiming.wakeups import WakeupSubscriber
from rmq._io.reports import reporter
from rmq._model.claims import Selection, bytes_of, cut, deliveries_of, size_of, whole
from rmq._model.deliveries import Delivery
from rmq._model.retry import CHANCE
from rmq._model.times import monotonic_s, seconds
from rmq.errors import ClientClosedError, InvalidValueError, RedisUnavailableError

log = reporter("rmq.consumer")


def poll_all(
    consumers: Iterable[Consumer], max_messages: int = 100, timeout: float | timedelta = 0.0
) -> list[Delivery]:
    """Claim due messages of several topics, or of several groups of a stream topic, in one read.

    All consumers claim at the same time, which takes one round trip however many there are. Those with messages get
    equal shares, or take turns if there are fewer messages than consumers. `delivery.topic` is the topic of a delivery;
    `delivery.ack()` and `Consumer.ack` settle it.

    Args:
        consumers: Consumers of any topics, of one client or several; at least one.
        max_messages: Maximum number of messages in total, 1 to 10,000; fewer if they exceed 16 MiB.
        timeout: How long to wait for the first message, in seconds or as a `timedelta`; 0 does not wait.

    Returns:
        The deliveries, consumer by consumer; empty if no message became due in time.

    Raises:
        InvalidValueError: There are no consumers, or `max_messages` or `timeout` is out of range.
        RmqError: As `Consumer.poll`. It is logged instead if other consumers have returned messages.
        ClientClosedError: A consumer is closed, or another thread has closed it in the meantime.

    Guarantee: as `Consumer.poll`.

    Examples:
        >>> pictures, films = Topic("pictures", TopicType.PRIORITY), Topic("films", TopicType.PRIORITY)
        >>> _ = client.producer(films).send(PriorityMessage("film:1", 5))
        >>> with client.consumer(pictures) as first, client.consumer(films) as second:
        ...     for delivery in poll_all([first, second], timeout=5):
        ...         print(delivery.topic.name, delivery.text, delivery.ack())
        films film:1 True
    """
    timeout_s, distinct = seconds(timeout, "timeout"), list(dict.fromkeys(consumers))
    checked_poll(max_messages, "max_messages")
    if not distinct:
        raise InvalidValueError("consumers is empty; give at least one")
    with ExitStack() as turns:
        for each in sorted(distinct, key=id):  # in one order, whichever thread reads them
            if each._connections.forked:
                each._connections.refuse_misuse()
            turns.enter_context(cast("AbstractContextManager[object]", each._poll_lock))
        claimed = _poll(CHANCE.sample(distinct, len(distinct)), max_messages, timeout_s)  # none is always the first one
    return deliveries_of(claimed)


def _poll(consumers: Sequence[Consumer], most: int, timeout_s: float) -> list[Selection]:
    until_s = monotonic_s() + timeout_s
    while True:
        for each in consumers:
            _prepare(each, timeout_s)
        if claimed := _claim(consumers, most):
            return claimed
        left_s = until_s - monotonic_s()
        if left_s <= 0:
            if all(each._planner.all_unresponsive() for each in consumers):
                names = ", ".join(each.topic.name for each in consumers)
                raise RedisUnavailableError(f"no answer from Redis for topics {names}")
            return []
        wait_s = min(each._planner.wait_s(min(left_s, LOOK_EVERY_S)) for each in consumers)
        if wait_s > 0:
            WakeupSubscriber.wait_for_any([each._hints for each in consumers], wait_s)


def _prepare(consumer: Consumer, timeout_s: float) -> None:
    """Update the due times of all consumers' slots, if that is due."""
    if consumer._closed:
        consumer._hints.close()
        raise ClientClosedError(f"this consumer of topic {consumer.topic.name} is closed", topic=consumer.topic.name)
    if timeout_s:
        consumer._listen(0)
    else:
        consumer._next_look_s = 0.0  # without a wait there are no hints
    consumer._look_now_and_then(at_all=not timeout_s)


def _claim(consumers: Sequence[Consumer], most: int) -> list[Selection]:
    """Claim from all consumers with due slots, round by round. An error of one does not lose the messages of others."""
    claimed: dict[Consumer, list[Selection]] = {}
    trouble: Exception | None = None
    number = size_bytes = empty_rounds = 0
    max_empty_rounds = max(each._max_empty_rounds for each in consumers)
    try:
        for each in consumers:
            claimed[each] = each._return_buffer.take()
            number += size_of(claimed[each])
            size_bytes += bytes_of(claimed[each])
        due = list(consumers)
        while number < most and size_bytes < POLL_BYTES and empty_rounds < max_empty_rounds and trouble is None:
            due = [each for each in due if each._planner.wait_s(1) == 0 or each._claims.has_earlier]
            if not due:
                break
            _begin(due, most - number)
            empty_rounds += 1
            for each in due:
                try:
                    claims = [*map(whole, each._claims.collect().claims)]
                except Exception as error:
                    trouble = trouble or error
                    continue
                claimed[each] += claims
                number += size_of(claims)
                size_bytes += bytes_of(claims)
                empty_rounds = 0 if claims else empty_rounds
    except BaseException:
        for each, selections in claimed.items():
            each._return_buffer.keep(selections)  # for the next poll
        raise
    if trouble is not None:
        if not number:
            raise trouble
        log.warning("%s", trouble)
    return _first(claimed, most)


def _begin(consumers: Sequence[Consumer], most: int) -> None:
    """Send the claims of all consumers, in equal shares."""
    share, extra = divmod(most, len(consumers))
    for index, each in enumerate(consumers):
        if limit := share + (index < extra):
            each._claims.begin(each._planner.plan(limit))


def _first(claimed: dict[Consumer, list[Selection]], most: int) -> list[Selection]:
    """Return up to `most` messages, and keep the rest for the next poll: late replies may add more."""
    taken: list[Selection] = []
    for each, selections in claimed.items():
        first, rest = cut(selections, most - size_of(taken))
        taken += first
        each._return_buffer.keep(rest)
    return taken
