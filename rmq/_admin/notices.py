"""Notifications of dead messages: a background thread reads new ones and calls a function with them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Self

from rmq._admin.calls.dead import Turn, Untold
from rmq._io.backend import Background
from rmq._io.reports import Sparing, reporter
from rmq._model.handlers import refuse_unfinished
from rmq._model.settings import check_name
from rmq._model.times import check_day
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.connections import Connections, call_slots
from rmq.errors import RedisUnavailableError, RmqError

log = reporter("rmq.notices")

Tell = Callable[[list[Any]], object]
"""Function that is called with dead messages: a list of `DeadMessage`, or on a stream topic of `DeadEntry`."""

AT_ONCE = 100
"""Maximum number of dead messages in one call of the function."""

TRIP = 8
"""Slots read in one round trip; each may return 4 MiB."""

HOLD_S = 60.0
"""Time after the next check in which no other process calls its function. Then one takes over from a crashed one."""
LONGEST_PAUSE_S = 60.0
"""Maximum pause before the function is called again after failures."""

PATIENCE_S = 10.0
"""Maximum time that `close` waits for a running call."""


class _NotifyFailedError(Exception):
    """The function raised; its error is the cause."""


BuildUnnotified = Callable[[int, Turn, int], Call[Untold[Any]]]


class DeadNotifier(Background):
    """Calls a function with the messages that die in a topic, until it is closed.

    Args:
        connections: Connections of the client.
        topic: The topic.
        build: Builds the call that reads a slot's next dead messages.
        tell: The function to call.
        name: Name of the subscription.
        every_s: Seconds between two checks.
    """

    def __init__(
        self, connections: Connections, topic: Topic, build: BuildUnnotified, tell: Tell, *, name: str, every_s: float
    ) -> None:
        check_day("every_s", every_s, 0.01)
        check_name("name", name, most=64)
        super().__init__(connections.runtime, f"rmq-dead-{topic.name}")
        self._connections, self._build, self._tell = connections, build, tell
        self._about, self._every_s = topic.name, every_s
        turn = Turn(name, uuid.uuid4().hex, int((HOLD_S + every_s) * 1_000))
        self._turns = dict.fromkeys(range(topic.slots), turn)
        self._first = 0
        self._troubles = Sparing()
        self.failures = 0

    def begin(self) -> Self:
        """Record the position to start from, raising its errors to the caller, and start the thread."""
        call_slots(self._connections, list(self._turns), lambda slot: self._build(slot, self._turns[slot], 0))
        self.start()
        self._connections.close_with_us(self)
        return self

    def run(self) -> None:
        """Check regularly. Errors are logged, and the check is repeated."""
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            wait_s = self._every_s
            try:
                if self._look():
                    wait_s = 0.0
                self.failures = 0
            except _NotifyFailedError as failed:
                self.failures += 1
                wait_s = self.pause_s(self._every_s, self.failures)
                kind, error = type(failed.__cause__).__name__, failed.__cause__
                text = "on_dead function of topic %s failed; retrying in %.1f s: %s: %s"
                self._troubles.warning(log, kind, text, self._about, wait_s, kind, error)
            except Exception as error:
                self._troubles.warning(
                    log, type(error), "cannot read dead messages of topic %s: %s", self._about, error
                )

    @staticmethod
    def pause_s(every_s: float, failures: int) -> float:
        """Return the seconds to wait before the next check, after a number of successive failures."""
        return min(max(LONGEST_PAUSE_S, every_s), every_s * 2 ** min(failures, 20))

    def _look(self) -> bool:
        """Call the function for all slots with new dead messages; return whether there may be more.

        An error of the function ends the check. A slot that cannot be read does not: its error is logged, and the next
        check reads it again.
        """
        slots = [*range(self._first, len(self._turns)), *range(self._first)]
        more = False
        for at in range(0, len(slots), TRIP):
            part = slots[at : at + TRIP]
            calls = [self._build(slot, self._turns[slot], AT_ONCE) for slot in part]
            replies = self._connections.run_many(calls)
            if all(isinstance(reply, RedisUnavailableError) for reply in replies):
                raise replies[0]
            for slot, unnotified in zip(part, replies, strict=True):
                if self._stopping.is_set():
                    return False
                if isinstance(unnotified, RmqError):
                    text = "cannot read dead messages of topic %s in slot %d: %s"
                    self._troubles.warning(log, type(unnotified), text, self._about, slot, unnotified)
                    continue
                # start with the next slot next time: errors of one must not delay the others
                self._first = (slot + 1) % len(self._turns)
                if unnotified.dead:
                    self._notify(list(unnotified.dead))
                self._turns[slot] = self._turns[slot].done(unnotified)
                more = more or unnotified.more
        return more

    def _notify(self, dead: list[Any]) -> None:
        try:
            refuse_unfinished(self._tell(dead))
        except (Exception, SystemExit) as error:  # SystemExit would end this thread without a log entry
            raise _NotifyFailedError from error

    def close(self) -> None:
        """Stop, wait up to 10 s for a running call, and let another process take over at once."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self.join(PATIENCE_S)
        if self.is_alive():  # another process takes over after HOLD_S
            return
        try:
            call_slots(self._connections, list(self._turns), self._release_turn)
        except RmqError as error:
            log.debug("topic %s: the lock on notices of dead messages was not released: %s", self._about, error)

    def _release_turn(self, slot: int) -> Call[Untold[Any]]:
        turn = self._turns[slot]
        return self._build(slot, Turn(turn.name, turn.holder, 0, turn.since, turn.after), 0)


class DeadNotices:
    """Calls a function with messages that die, until it is closed. Returned by `on_dead` of the dead letters.

    Examples:
        >>> jobs = Topic("jobs", TopicType.PRIORITY)
        >>> _ = client.producer(jobs)
        >>> with client.dead(jobs).on_dead(print) as notices:
        ...     notices.failures
        0
    """

    def __init__(self, notifier: DeadNotifier) -> None:
        self._notifier = notifier

    @property
    def failures(self) -> int:
        """Number of successive failed calls. The same messages are passed again until a call succeeds."""
        return self._notifier.failures

    def close(self) -> None:
        """Stop, and wait up to 10 s for a running call, so that another process can take over at once.

        If the call still runs then, another process takes over up to `every_s` and a minute later.
        """
        self._notifier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
