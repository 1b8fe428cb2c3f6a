"""Runs the handlers of a listener in the thread that claims, one after the other."""

from __future__ import annotations

from rmq._claiming.prefetch_size import MOST_BATCHED, MOST_PREFETCHED, PREFETCH_S
from rmq._listening.listener import Listener
from rmq._listening.worker import LOOK_EVERY_S, PIGGYBACK_S, SETTLE_AFTER_S, Worker
from rmq._model.times import monotonic_s

SLOW_S = 0.5
"""Messages that wait behind a handler which runs longer than this are released to other workers."""

LEAST_AHEAD_S, AHEAD_S = 0.0003, PREFETCH_S / 2
"""The next claim is sent before the handlers run if their expected duration is within these bounds: a shorter one does
not pay for the extra cost, and after a longer one an urgent message would have to wait."""

BATCHES_S = 0.002
"""Batches are claimed together if they take no longer than this together. Their acks are sent together, too, so that
several are redelivered if the process is killed. For longer batches a round trip to Redis is below a tenth of the time.
"""


class ThreadExecutor:
    """Runs the handlers of a listener in the thread that claims, one after the other.

    Args:
        thread: The thread that claims.
    """

    survived: type[BaseException] = BaseException
    """Exceptions that do not end the thread, since its end would go unnoticed."""

    grace_s = 0.0
    """Time between the timeout of a call and its abandonment; 0, since a thread cannot be interrupted."""

    def __init__(self, thread: Worker) -> None:
        self.thread = thread
        self.calls = thread.calls
        self.batch = thread.setup.listener.batch
        self._permits = thread.setup.permits
        self.may_claim_ahead = self._permits is None and not thread.keeps_order

    @staticmethod
    def threads_of(listener: Listener) -> int:
        """Return the number of threads that claim for a listener."""
        return listener.threads

    def round(self) -> bool:
        """Claim, settle and handle once, with a permit if limited; return whether there was anything to do."""
        permits = self._permits
        if permits is None:
            return self.thread.round()
        if (began_s := permits.begin(0.0, id(self))) is None:
            self.thread.settle_only()  # outcomes do not wait for a permit
            if (began_s := permits.begin(LOOK_EVERY_S, id(self))) is None:
                return True
        try:
            return self.thread.round()
        finally:
            permits.end(began_s)

    def room(self) -> int | None:
        """Return how many messages to claim; `None` if a round would not even have an outcome to send."""
        if self._permits is not None and self._permits.one_at_a_time:
            return 1
        messages, nodes = self.calls.prefetch.messages, self.thread.planner.nodes
        if self.batch is None:
            room = min(messages(AHEAD_S if self.may_claim_ahead else PREFETCH_S), nodes * MOST_PREFETCHED)
        else:
            ahead = min(messages(BATCHES_S), nodes * MOST_BATCHED) if self.may_claim_ahead else 0
            room = self.batch * max(1, ahead // self.batch)
        return self.thread.room_beside(room)

    def claims_ahead(self, number: int, slots: int) -> bool:
        """Return whether to send the next claim before handling these messages, to hide its latency.

        The owner of a stream's slot claims only when all earlier entries are settled, so that a released entry does not
        come after later ones.
        """
        takes_s = self.calls.prefetch.takes_s(number)
        source, is_known = self.thread.planner.broker, self.calls.prefetch.is_known
        long = takes_s >= LEAST_AHEAD_S or (is_known and source.takes_long(number, slots))
        return self.may_claim_ahead and takes_s <= AHEAD_S and long

    def run(self) -> None:
        """Handle the waiting messages of the thread."""
        thread = self.thread
        began_s = last_settled_s = monotonic_s()
        while thread.waiting:
            if thread.setup.stopping.is_set():  # the stopping thread may be waiting for another thread's outcomes
                thread.stop_starting()
                return
            if thread.planner.held_back_s():
                thread.release_waiting()
                return
            self.calls.handle(thread.take_waiting(self.batch or 1))
            if (self._permits is not None and self._permits.over_limit) or (
                thread.waiting and self.waits_too_long(began_s)
            ):
                thread.release_waiting()
            if thread.waiting and monotonic_s() - last_settled_s > SETTLE_AFTER_S:
                thread.settle_only()
                last_settled_s = monotonic_s()

    def waits_too_long(self, since_s: float, parallel: int = 1) -> bool:
        """Return whether handlers have become so slow that waiting messages would wait longer than `SLOW_S`.

        Args:
            since_s: Time at which they were claimed, on the clock of `monotonic_s`; recent claims are ignored, since
                one slow call proves nothing.
            parallel: Number of handlers that work on them.
        """
        late = monotonic_s() - since_s > 2 * PREFETCH_S
        return late and self.calls.prefetch.takes_s(self.thread.number_waiting()) > SLOW_S * parallel

    def wait(self) -> None:
        """Wait until there may be something to do."""
        self.thread.wait()

    def finish(self) -> None:
        """Start no more handlers, wait for the running ones, and let the thread finish."""
        self.thread.finish()

    def join_others(self, timeout_s: float) -> None:
        """Wait for handlers other than the calling one; here there are none."""
        del timeout_s

    def return_stalled(self) -> None:
        """Release messages that wait behind a slow handler, and send outcomes; called from the watcher's thread.

        Otherwise the claimed messages would wait for the handler while other workers are idle.
        """
        thread, began_s = self.thread, self.calls.began_s
        running_s = 0.0 if began_s is None else monotonic_s() - began_s
        if running_s > PIGGYBACK_S and thread.held.deferred:
            thread.try_to_settle()  # an error must not keep the watcher from the other threads and the wakeups
        if running_s < SLOW_S:
            return
        if thread.is_unsettled() or thread.waiting or thread.claims.has_earlier:
            thread.release_waiting(lambda: self.calls.began_s == began_s)
