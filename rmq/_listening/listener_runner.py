"""Threads that claim messages, call a handler, and send its outcomes with the next claim."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from rmq._broker.broker import Broker, QueueBroker
from rmq._broker.stream_broker import join_group
from rmq._claiming.claim_planner import REST_S, ClaimPlanner
from rmq._claiming.leases import LeaseHolder, LeaseLostNotifier
from rmq._claiming.wakeups import Wakeups
from rmq._io.backend import Job
from rmq._io.observers import Observers
from rmq._io.reports import Sparing, reporter
from rmq._listening.concurrency import ConcurrencyLimiter, ListenerPermits
from rmq._listening.handler_invoker import ListenerSetup
from rmq._listening.listener import Listener
from rmq._listening.worker import Worker
from rmq._model.claims import size_of
from rmq._model.deliveries import Delivery
from rmq._model.display import shown
from rmq._model.replies import Owner
from rmq._model.times import monotonic_s
from rmq._model.topics import Topic
from rmq._model.workers import BUCKETS, MOST_CONTENT, MOST_RUNNING, HandlerTimes, ListenerInfo, RunningHandler
from rmq._ownership import Coordinator
from rmq._ownership.assignment import spread_slots
from rmq._ownership.follower import OWNED_LOOK_S
from rmq._ownership.values import Ownership, SlotKey
from rmq._transport.connections import Connections

log = reporter("rmq.runtime")

JOIN_S = 0.2
"""Seconds between checks of a stop whether only hung handlers are left."""

WATCHER_S = 2.0
"""Seconds that a stop waits for jobs that only maintain state in Redis, since their calls may get no answer."""

HANGS_S, STARVING_S = 10.0, 60.0
"""With owners: seconds after which the other slots of a running handler's thread move to free threads, and seconds
without a free thread after which a problem is reported."""

RELIEVE_EVERY_S, WATCHFUL_S = 0.25, 1.0
"""Interval at which the watcher checks running handlers, and for how long after a message was due or held."""


TIMES_S = 300.0
"""Period over which the durations of handlers are reported."""

MOST_BUSY = 1_000
"""Maximum number of busy slots that a listener reports."""


class ListenerRunner:
    """A running listener: its threads. A `Watcher` and a `LeaseKeeper` serve all listeners of a client.

    Without owners the threads share all slots. With it, they share the slots that this process owns, each slot in
    one thread: its messages run one after the other. A slot moves to another thread only if a handler of another slot
    hangs in its thread, and no message of the slot is in flight.

    Args:
        connections: Connections to Redis.
        listener: The listener to run.
        coordinator: This process as a worker that owns slots; `None` without owners.
        pool: Limits the number of parallel handlers of this process.
        observers: Observers of the handlers.
        lost_calls: Calls `on_lost` of the listeners of this process.
        worker: The class of its workers.
    """

    def __init__(
        self,
        connections: Connections,
        listener: Listener,
        coordinator: Coordinator | None,
        pool: ConcurrencyLimiter,
        observers: Observers,
        lost_calls: LeaseLostNotifier,
        worker: type[Worker] = Worker,
    ) -> None:
        topic, runtime = listener.topic, connections.runtime
        self.listener = listener
        self.stopping = runtime.event()
        self._coordinator = coordinator
        source: Broker
        if listener.group is None:
            source = QueueBroker(connections, topic)
        else:
            source = join_group(connections, topic, listener.group, listener.start, resume_as=listener.resume_as)
        self._lost_calls = lost_calls
        self._permits: ListenerPermits | None = None  # if only `threads` limits the number of handlers
        if pool.shared or listener.adaptive is not None:
            self._permits = pool.permits(listener.weight, listener.adaptive, listener.threads)
        setup = ListenerSetup(
            listener, self.stopping, coordinator, self._permits, observers, self._on_lost, self._hold_back
        )
        threads = 1 if worker.claims_for_all else listener.threads
        if coordinator is None:
            self.planners = [ClaimPlanner(connections, topic, range(topic.slots), source=source)]
            shared = self.planners * threads
        else:
            shared = self.planners = [
                ClaimPlanner(connections, topic, (), self._may_claim, source, self._note_fenced) for _ in range(threads)
            ]
        self._threads = [worker(setup, planner, number) for number, planner in enumerate(shared)]
        self._spread: dict[int, int] = {}
        self._moved_from: set[int] = set()  # threads with a hanging handler that slots have left
        self._said: dict[str, str] = {}  # troubles that the coordinator was told
        held = [thread.held for thread in self._threads]
        self.leases = LeaseHolder(source, held, self._on_lost, lambda: any(each.is_alive() for each in self._threads))
        self._releaser = runtime.job(self._release, f"rmq-release-{topic.name}")
        self._troubles = Sparing()
        self._watchful_until_s = 0.0
        self._reported = monotonic_s(), 0, 0  # time of the last report, and the totals in it
        self._readings = deque[tuple[float, Sequence[int]]]([(monotonic_s(), [0] * BUCKETS)])

    def start(self) -> None:
        """Start the threads of the listener."""
        for thread in self._threads:
            thread.start()

    def _on_lost(self, delivery: Delivery) -> None:
        """Call `on_lost` of the listener in another job; does not wait."""
        if self.listener.on_lost is not None:
            self._lost_calls.notify(self.listener.on_lost, delivery)

    def _note_fenced(self, slot: int, epoch: int, ensemble: str) -> None:
        """Report that Redis has a newer epoch of a slot."""
        if self._coordinator is not None:
            self._coordinator.fenced(epoch, ensemble, (self.place, slot))

    def _hold_back(self, delay_s: float) -> None:
        """Claim no messages for `delay_s` seconds."""
        for planner in self.planners:
            planner.hold_back(delay_s)

    @property
    def place(self) -> str:
        """The name under which the listener's slots are owned."""
        return self.listener.ownership_name

    @property
    def topic(self) -> Topic:
        """The registered definition of the listener's topic."""
        return self.listener.topic

    def slots(self) -> Collection[int]:
        """Return the slots to serve: all of them, or with owners those that this process owns."""
        if self._coordinator is None:
            return range(self.listener.topic.slots)
        return [slot for place, slot in self._coordinator.owned() if place == self.listener.ownership_name]

    def info(self, *, economical: bool) -> ListenerInfo:
        """Return the current figures of the listener; rates are averages since the previous call.

        Args:
            economical: Whether the durations stay unchanged until the next call ends, since each change costs a report.
        """
        held = [claim for thread in self._threads for claim in thread.held.all()]
        handled = sum(thread.calls.handled for thread in self._threads)
        failed = sum(thread.calls.failed for thread in self._threads)
        now_s, (before_s, handled_before, failed_before) = monotonic_s(), self._reported
        self._reported = now_s, handled, failed
        seconds = max(now_s - before_s, 0.001)
        limit, pause_s = (None, 0.0) if self._permits is None else self._permits.state()
        rest_s = max(planner.held_back_s() for planner in self.planners)
        return ListenerInfo(
            self.topic.name,
            self.listener.group,
            self.listener.threads,
            tuple(sorted(self.slots())),
            tuple(sorted({claim.slot for claim in held})[:MOST_BUSY]),
            sum([len(claim.held_rows()) for claim in held]),
            handled,
            failed,
            round((handled - handled_before) / seconds, 3),
            round((failed - failed_before) / seconds, 3),
            self._times(now_s, economical),
            self._running(),
            limit,
            int(max(rest_s, pause_s) * 1000),
            max(planner.rate_limiter.held_back_s for planner in self.planners) >= before_s,
        )

    def _times(self, now_s: float, economical: bool) -> HandlerTimes:
        """Return the durations of the calls of the last `TIMES_S`; for the arguments see `info`."""
        counts = [sum(counts) for counts in zip(*(thread.calls.times.counts for thread in self._threads), strict=True)]
        readings = self._readings
        if not economical or readings[-1][1] != counts:
            readings.append((now_s, counts))
            while len(readings) > 1 and readings[1][0] <= now_s - TIMES_S:
                readings.popleft()
        return HandlerTimes.of([now - before for now, before in zip(counts, readings[0][1], strict=True)])

    def _running(self) -> tuple[RunningHandler, ...]:
        """Return the longest-running calls of the handler, the longest first."""
        calls = [
            (*call, hung)
            for thread in self._threads
            for hung, part in ((False, thread.calls.running), (True, thread.calls.hung))
            for call in list(part.values())
        ]
        calls.sort(key=lambda call: call[0])
        now_s, columns = monotonic_s(), self.listener.columns
        return tuple(
            RunningHandler(
                ready[0].claim.slot,
                "" if columns else shown(ready[0].claim.rows.contents[ready[0].rows[0]], MOST_CONTENT),
                size_of(ready),
                int((now_s - began_s) * 1000),
                hung,
            )
            for began_s, ready, hung in calls[:MOST_RUNNING]
        )

    def finished(self) -> int:
        """Return the number of deliveries whose handlers have ended, with or without an error."""
        return sum(thread.calls.handled + thread.calls.failed for thread in self._threads)

    def request_stop(self) -> None:
        """Stop claiming, and release messages that are not started yet. Does not wait."""
        for thread in self._threads:
            thread.request_stop()
        self.stopping.set()
        for planner in self.planners:
            planner.wake_all()
        self._releaser.start()

    def join(self, until_s: float) -> list[Delivery]:
        """Wait for running handlers until `until_s`, on the clock of `monotonic_s`.

        Returns:
            The deliveries whose handlers still run; they stay claimed until their leases expire.
        """
        for thread in (self._releaser, *self._threads):
            self._join(thread, until_s)
        held = [claim for thread in self._threads if thread.is_alive() for claim in thread.held.all()]
        return [delivery for claim in held for delivery in claim.deliveries(claim.held_rows())]

    def _join(self, thread: Job, until_s: float) -> None:
        """Wait for a thread, but not for calls of the handler that were abandoned, or that called this method.

        Outcomes that such calls have recorded are sent by another job: Redis may take longer to answer than a stop may.
        """
        hangs = False
        while thread.is_alive() and (left_s := until_s - monotonic_s()) > 0 and not hangs:
            thread.join(min(left_s, JOIN_S))
            if isinstance(thread, Worker):
                thread.give_up_hung()
                hangs = thread.hangs
        if hangs and isinstance(thread, Worker):
            last = thread.runtime.job(thread.try_to_settle, f"rmq-settle-{self.listener.topic.name}")
            last.start()
            last.join(max(0.0, until_s - monotonic_s()))

    @property
    def works(self) -> bool:
        """Whether all threads of the listener run."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def runs_here(self) -> bool:
        """Whether the caller is a handler of this listener."""
        return any(thread.calls.runs_here for thread in self._threads)

    @property
    def hangs(self) -> bool:
        """Whether a call of the handler has exceeded its timeout and was abandoned."""
        return any(thread.calls.hung for thread in self._threads)

    def _release(self) -> None:
        """Release messages that are not started yet. Runs as a job, so that a slow Redis does not delay the stop."""
        for thread in self._threads:  # before the first call: the others would begin more messages meanwhile
            thread.stop_starting()
        for thread in self._threads:
            if monotonic_s() < thread.gives_up_s:
                thread.release_waiting()

    def refresh_ownership(self, owned: Mapping[SlotKey, Ownership]) -> bool:
        """Claim only from the slots that this process owns now, and hand over revoked slots once they are drained.

        Args:
            owned: The slots that this process owns, in all topics.

        Returns:
            True if slots wait for running handlers. The caller must then call again, since no event reports their end.
        """
        coordinator = self._coordinator
        if coordinator is None:
            return False
        name = self.listener.ownership_name
        owners = {
            slot: Owner(ownership.epoch, ownership.ensemble)
            for (topic, slot), ownership in owned.items()
            if topic == name
        }
        revoking = {slot for topic, slot in coordinator.revoking() if topic == name}
        present = owners.keys() | revoking
        lingering = self._lingering(present)
        full = self._hanging(HANGS_S)
        self._moved_from &= full.keys()
        kept = self._kept(owners, full)
        self._spread = spread_slots(present | lingering, len(self.planners), kept, full)
        self._share_out(owners)
        self._say(f"hang {name}", self._hang_text(full))
        self._say(f"ensemble {name}", self._foreign_text(owners))
        for slot in revoking:
            number = self._spread[slot]
            if self._threads[number].has_left(slot):
                coordinator.drained(name, slot)
        return bool(revoking or lingering)

    def _lingering(self, present: Collection[int]) -> set[int]:
        """Return the slots that this process has lost but that may still have a running handler here.

        They keep their thread: after a short break of the connection to ZooKeeper they are owned again, and another
        thread would run a handler in parallel with the present one.
        """
        gone = {slot: number for slot, number in self._spread.items() if slot not in present}
        busy = {number: self._threads[number].slots_held() for number in set(gone.values())}
        return {slot for slot, number in gone.items() if slot in busy[number]}

    def _hanging(self, for_s: float) -> dict[int, int]:
        """Return thread → slot of its handler, for threads whose handler has run for more than `for_s` seconds."""
        before_s = monotonic_s() - for_s
        hanging: dict[int, int] = {}
        for number, thread in enumerate(self._threads):
            if (thread.calls.began_s or before_s) < before_s:
                for _, ready in (*thread.calls.running.values(), *thread.calls.hung.values()):
                    hanging[number] = ready[0].claim.slot
        return hanging

    def _kept(self, owners: Mapping[int, Owner], full: Collection[int]) -> dict[int, int]:
        """Return slot → thread without the slots that leave a thread in which the handler of another slot hangs."""
        if not full or len(full) == len(self._threads):
            return self._spread
        leaving = {slot: number for slot, number in self._spread.items() if number in full and slot in owners}
        for slot in [slot for slot, number in leaving.items() if slot in self._threads[number].slots_held()]:
            del leaving[slot]
        if not leaving:
            return self._spread
        # no claim may begin any more before it is certain that none is under way
        self._share_out({slot: owner for slot, owner in owners.items() if slot not in leaving})
        for slot in [slot for slot, number in leaving.items() if slot in self._threads[number].slots_held()]:
            del leaving[slot]
        self._moved_from.update(leaving.values())
        return {slot: number for slot, number in self._spread.items() if slot not in leaving}

    def _share_out(self, owners: Mapping[int, Owner]) -> None:
        for number, planner in enumerate(self.planners):
            planner.set_owned({slot: owner for slot, owner in owners.items() if self._spread.get(slot) == number})

    def _hang_text(self, full: Mapping[int, int]) -> str:
        """Describe hung handlers if they hold up other slots; else return ""."""
        if len(full) == len(self._threads):
            full = self._hanging(STARVING_S)
        free = len(full) < len(self._threads)
        shared = [number for number in full if number in self._moved_from]
        if not full or (free and not shared):
            return ""
        slots = ", ".join(map(str, sorted({full[number] for number in shared} if free else set(full.values()))[:10]))
        text = f"topic {self.listener.topic.name}: a handler has been running for a long time in slot {slots}"
        if free:
            return f"{text}; messages of that slot wait, and the other slots of its thread have moved to other threads"
        return f"{text}, so that no thread is free and all slots of this worker wait; give the listener more threads"

    def _foreign_text(self, owners: Mapping[int, Owner]) -> str:
        foreign = [(slot, each.foreign.get(slot)) for each in self.planners for slot in list(each.foreign)]
        texts = [text for slot, text in foreign if text and slot in owners]
        return f"this worker cannot claim from {len(texts)} of its slots: {min(texts)}" if texts else ""

    def _say(self, name: str, text: str) -> None:
        """Report a problem to the coordinator; an empty text reports its end. Unchanged texts are not repeated."""
        if self._coordinator is not None and self._said.get(name, "") != text:
            self._said[name] = text
            self._coordinator.report(name, text)

    def _may_claim(self, slot: int, owner: Owner) -> bool:
        if self._coordinator is None:
            return True
        ownership = self._coordinator.owned().get((self.listener.ownership_name, slot))
        return ownership is not None and ownership.epoch == owner.epoch

    def take_wakeups(self, due: Sequence[tuple[int, int]]) -> None:
        """Process wake hints: slots, and when they are due."""
        for planner in self.planners:
            planner.take_wakeups(Wakeups(tuple(due), False))
            planner.rate_limiter.refresh()

    def check(self) -> float:
        """Abandon calls of the handler that exceed their timeout, and release messages that wait behind a slow one.

        Called from the watcher's thread.

        Returns:
            The seconds until the next check: few while messages are due or in flight.
        """
        try:
            if self._permits is not None:
                self._permits.decide()
            for thread in self._threads:
                thread.return_stalled()
                if thread.give_up_hung():
                    thread.release_waiting(lambda: False)  # what waits behind them
        except Exception as error:
            text = "topic %s: running handlers could not be checked: %s"
            self._troubles.warning(log, type(error), text, self.listener.topic.name, error)
        now_s, due_s = monotonic_s(), min(planner.wait_s(REST_S) for planner in self.planners)
        if self._permits is not None or not due_s or any(map(_is_at_work, self._threads)):
            self._watchful_until_s = now_s + WATCHFUL_S
        if now_s < self._watchful_until_s:
            return RELIEVE_EVERY_S
        return due_s if self._coordinator is None else min(due_s, OWNED_LOOK_S)  # slots of others may come


def _is_at_work(thread: Worker) -> bool:
    """Return whether a thread claims or holds deliveries: a claim in flight is in neither the schedule nor `held`."""
    if not thread.held.lock.acquire(blocking=False):
        return True
    thread.held.lock.release()
    return bool(thread.held.all()) or thread.claims.has_earlier
