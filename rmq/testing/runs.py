"""Runs the handlers of a client in the caller's thread, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from rmq import Delivery, Listener, RmqClient, Verb
from rmq.errors import PayloadError, RmqError
from rmq.spi import RECURRING, InlineRunner, inline_runner, moment_at
from rmq.testing.clock import Clock


@dataclass(frozen=True, slots=True)
class Ran:
    """Outcomes of the deliveries of a run.

    Attributes:
        acked: Number of acked deliveries.
        nacked: Number of nacked deliveries, which wait for a retry, or are dead if none was left.
        buried: Number of deliveries that became dead at once, for example because of an invalid payload.
        released: Number of deliveries released as if they had never been claimed.
        lost: Number of deliveries whose lease expired before they were settled. They are not in the other numbers.
        errors: Errors of the handlers, in order, and the `PayloadError` of each invalid payload.

    Examples:
        >>> from rmq.testing import run_until_empty
        >>> jobs = Topic("jobs", TopicType.PRIORITY, max_retries=0)
        >>> @client.listener(jobs)
        ... def work(delivery): raise ValueError("no photo")
        >>> _ = client.producer(jobs).send(PriorityMessage("job:1", 5))
        >>> run_until_empty(client, raises=False)
        Ran(acked=0, nacked=1, buried=0, released=0, lost=0, errors=(ValueError('no photo'),))
    """

    acked: int = 0
    nacked: int = 0
    buried: int = 0
    released: int = 0
    lost: int = 0
    errors: tuple[BaseException, ...] = ()

    @property
    def total(self) -> int:
        """Total number of deliveries."""
        return self.acked + self.nacked + self.buried + self.released + self.lost


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of a run.

    Attributes:
        most: Maximum number of deliveries.
        clock: The clock to move to the next due time when no message is due; `None` to end then.
        raises: Raise the first error, which ends the run.
        must_end: Raise an error if more than `most` deliveries are due.
    """

    most: int
    clock: Clock | None
    raises: bool
    must_end: bool


def run(client: RmqClient, added: Sequence[Listener], rules: Rules) -> Ran:
    """Run the handlers of listeners, one after the other.

    Args:
        client: The client of the listeners.
        added: The listeners.
        rules: Settings of the run.

    Raises:
        RmqError: There are no listeners, or they have been started.
        AssertionError: More deliveries are due than the rules allow.
    """
    if client._listeners.runners:  # pyright: ignore[reportPrivateUsage]
        raise RmqError("the listeners of this client have been started; do not start the client in this test")
    if not added:
        raise RmqError(
            "this client has no listeners; decorate a handler with @client.listener(topic), or call client.add"
        )
    tally = _Tally()
    with ExitStack() as stack:
        runners = [inline_runner(client, each, tally.errors) for each in added]
        for runner in runners:
            stack.callback(runner.close)
        most = rules.most + rules.must_end  # one more than allowed, to detect that there are too many
        while tally.handled < most:
            if _run_once(runners, tally, most, rules.raises):
                continue
            if rules.clock is None or not _advance(rules.clock, runners):
                break
    if tally.handled > rules.most:
        raise AssertionError(
            f"more than {rules.most} deliveries were due: does a handler send to its own topic, or always fail? "
            "Use run_at_most, or a larger limit"
        )
    return tally.ran()


def run_schedules(client: RmqClient, added: Sequence[Listener], most: int) -> int:
    """Put the schedules of listeners, send the messages of all schedules that are due, and return their number.

    Raises:
        AssertionError: A schedule could not be sent, or more than `most` times are due.
    """
    client._put_scheduled(added)  # pyright: ignore[reportPrivateUsage]
    if not client._known.check(RECURRING):  # pyright: ignore[reportPrivateUsage]
        return 0
    sent = 0
    with closing(inline_runner(client, None, [])) as runner:
        while part := runner.step(1):
            for delivery in part:
                outcome = delivery.outcome
                if outcome is not None and outcome.error_type:
                    raise AssertionError(
                        f"schedule {delivery.text} was not sent: {outcome.error_type}: {outcome.error_message}"
                    )
                sent += 1
            if sent > most:
                raise AssertionError(
                    f"more than {most} due times of schedules have passed; move the clock less, or raise limit"
                )
    return sent


def _run_once(runners: Sequence[InlineRunner], tally: _Tally, most: int, raises: bool) -> bool:
    """Run each handler for one claim; return whether there was any message."""
    before = tally.handled
    for runner in runners:
        if (room := most - tally.handled) > 0:
            tally.add(runner.step(room))
            if raises and tally.errors:
                raise tally.errors[0]
    return tally.handled > before


def _advance(clock: Clock, runners: Sequence[InlineRunner]) -> bool:
    """Move the clock to the next due time; return False if there is none."""
    times = [due_ms for runner in runners for due_ms in runner.due_ms() if due_ms > clock.now_ms]
    if times:
        clock.move_to(moment_at(min(times)))
    return bool(times)


@dataclass(slots=True)
class _Tally:
    """Outcomes of the deliveries so far."""

    handled: int = 0
    lost: int = 0
    verbs: dict[Verb, int] = field(default_factory=lambda: dict.fromkeys(Verb, 0))
    errors: list[BaseException] = field(default_factory=list[BaseException])

    def add(self, part: Sequence[Delivery]) -> None:
        for delivery in part:
            self.handled += 1
            if delivery.lost:
                self.lost += 1
            elif delivery.outcome is not None:
                self.verbs[delivery.outcome.verb] += 1
            error = _decoding_error(delivery)
            self.errors += [] if error is None else [error]

    def ran(self) -> Ran:
        verbs = self.verbs
        ended = (verbs[Verb.ACK], verbs[Verb.NACK], verbs[Verb.BURY], verbs[Verb.RELEASE])
        return Ran(*ended, self.lost, tuple(self.errors))


def _decoding_error(delivery: Delivery) -> PayloadError | None:
    """Return the error of a delivery that was buried because of its payload, else None."""
    if delivery.outcome is None or delivery.outcome.error_type != PayloadError.__name__:
        return None
    try:
        delivery.decode()
    except PayloadError as error:
        return error
    return None
