"""Traffic through a queue while something happens to Redis: what was accepted, what was handled, and what got lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from rmq import Delivery, PriorityMessage, RmqClient, Topic
from rmq.errors import RmqError, SendError
from tests.support.waiting import LIMIT_S, wait_until

SECOND = timedelta(seconds=1)


class Traffic:
    """Sends unique messages and handles them, in threads of their own, from entering the context to leaving it.

    A message counts as accepted when its send says so. One that is refused or unknown is not sent again: what became of
    it is of no interest here.

    Args:
        make_client: Makes a client; called twice, for the sending and the handling side.
        topic: A PRIORITY topic.
        batch: Messages per send.
    """

    def __init__(self, make_client: Callable[[], RmqClient], topic: Topic, batch: int = 20) -> None:
        self.topic = topic
        self.accepted: set[str] = set()
        self.errors: list[str] = []
        self.handled: Counter[str] = Counter()
        self.slowest_send_s = 0.0
        self.longest_gap_s = 0.0
        self._batch = batch
        self._stop = threading.Event()
        self._sending = make_client()
        self.handling = make_client()
        self._thread = threading.Thread(target=self._send, name="traffic")
        self._last_s = time.monotonic()
        self.handling.listener(topic, threads=2)(self._handle)

    def __enter__(self) -> Traffic:
        self.handling.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_sending()
        self.handling.close()
        self._sending.close()

    def stop_sending(self) -> None:
        """Accept no more; what is accepted goes on being handled."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(60)

    def wait_for(self, more: int, timeout: float = LIMIT_S) -> None:
        """Wait until so many more messages have been handled."""
        goal = len(self.handled) + more
        wait_until(lambda: len(self.handled) >= goal, timeout, f"{more} more messages")

    def settle(self, timeout: float = LIMIT_S) -> set[str]:
        """Stop sending, wait until nothing comes any more, and return what was accepted and never handled."""
        self.stop_sending()
        deadline = time.monotonic() + timeout
        while self.lost and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.lost

    @property
    def lost(self) -> set[str]:
        """Accepted and not handled yet."""
        return self.accepted - self.handled.keys()

    def _send(self) -> None:
        producer = self._sending.producer(self.topic)
        number = 0
        while not self._stop.is_set():
            names = [f"{self.topic.name}-{number + i}" for i in range(self._batch)]
            number += self._batch
            started_s = time.monotonic()
            try:
                producer.send_many(PriorityMessage(name, 100) for name in names)
            except SendError as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                bad = {message.content for message in (*error.unknown, *error.not_stored)}
                self.accepted.update(name for name in names if name not in bad)
            except RmqError as error:
                self.errors.append(f"{type(error).__name__}: {error}")
            else:
                self.accepted.update(names)
            self.slowest_send_s = max(self.slowest_send_s, time.monotonic() - started_s)
            self._stop.wait(0.005)

    def _handle(self, delivery: Delivery) -> None:
        now_s = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
        self._last_s = now_s
        self.handled[delivery.text] += 1
