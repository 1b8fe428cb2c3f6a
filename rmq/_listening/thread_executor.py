"""How the handlers of a listener run beside its claims: in the thread that claims, one after the other."""

from __future__ import annotations

from rmq._claiming.prefetch_size import PREFETCH_S
from rmq._listening.listener import Listener
from rmq._listening.listener_thread import LOOK_EVERY_S, PIGGYBACK_S, SETTLE_AFTER_S, ListenerThread
from rmq._model.claim_columns import number_of
from rmq._model.times import monotonic_s

SLOW_S = 0.5
"""What waits behind a handler that runs longer than this goes back to the others."""

LEAST_AHEAD_S, AHEAD_S = 0.0003, PREFETCH_S / 2
"""The next claim is on its way while handlers run, if they take so long: at least, since it costs a little more, and at
most, since an urgent message waits behind what is claimed."""

BATCHES_S = 0.002
"""Small batches are claimed together if they take no longer. Their acks go together, too: a process that is killed
repeats more than one of them. Of batches that take longer the trip to Redis is less than a tenth."""


class ThreadExecutor:
    """How the handlers of a listener run beside its claims: in the thread that claims, one after the other.

    Args:
        thread: The thread that claims.
    """

    survived: type[BaseException] = BaseException
    """What does not end the thread: nobody would hear of its end."""

    grace_s = 0.0
    """How long after its timeout a call is given up: nothing can end it."""

    def __init__(self, thread: ListenerThread) -> None:
        self.thread = thread
        self.calls = thread.calls
        self.batch = thread.setup.listener.batch
        self._permits = thread.setup.permits
        self.may_claim_ahead = self._permits is None and not thread.keeps_order
        # a claim in columns is acked as a whole: it is not cut
        self.may_claim_batches = self.may_claim_ahead and not thread.setup.listener.columns

    @staticmethod
    def threads_of(listener: Listener) -> int:
        """Return how many threads claim for a listener."""
        return listener.threads

    def round(self) -> bool:
        """Do a round, in this thread's turn where turns are limited; return whether there was anything to do."""
        permits = self._permits
        if permits is None:
            return self.thread.round()
        if (began_s := permits.begin(0.0, id(self))) is None:
            self.thread.settle_only()  # what is done does not wait for a turn
            if (began_s := permits.begin(LOOK_EVERY_S, id(self))) is None:
                return True
        try:
            return self.thread.round()
        finally:
            permits.end(began_s)

    def room(self) -> int | None:
        """Return how many messages to claim; `None` where a round would bring nothing, not even an outcome."""
        if self._permits is not None and self._permits.one_at_a_time:
            return 1
        messages = self.calls.prefetch.messages
        if self.batch is None:
            room = messages(AHEAD_S if self.may_claim_ahead else PREFETCH_S)
        else:
            room = self.batch * max(1, messages(BATCHES_S) // self.batch if self.may_claim_batches else 1)
        return self.thread.room_beside(room)

    def claims_ahead(self, number: int, slots: int) -> bool:
        """Return whether the next claim is sent before messages of so many slots are handled, to hide some of its time.

        The owner of a stream's slot claims when all before is settled: what goes back must not come after later ones.
        """
        takes_s = self.calls.prefetch.takes_s(number)
        source, is_known = self.thread.planner.broker, self.calls.prefetch.is_known
        long = takes_s >= LEAST_AHEAD_S or (is_known and source.takes_long(number, slots))
        return self.may_claim_ahead and takes_s <= AHEAD_S and long

    def run(self) -> None:
        """Handle, or begin with, what waits in the thread."""
        thread = self.thread
        began_s = last_settled_s = monotonic_s()
        while thread.waiting:
            if thread.setup.stopping.is_set():  # the thread that stops this one may wait for another one's outcomes
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
        """Return whether handlers have become so slow that what is claimed would wait longer than `SLOW_S`.

        Args:
            since_s: When it was claimed, on the clock of `monotonic_s`. One slow call proves nothing.
            parallel: How many handlers work on it.
        """
        late = monotonic_s() - since_s > 2 * PREFETCH_S
        return late and self.calls.prefetch.takes_s(number_of(list(self.thread.waiting))) > SLOW_S * parallel

    def wait(self) -> None:
        """Wait until there may be something to do."""
        self.thread.wait()

    def finish(self) -> None:
        """Begin no more, wait until no handler runs, and let the thread finish."""
        self.thread.finish()

    def join_others(self, timeout_s: float) -> None:
        """Wait for the handlers beside the one that asks for it; here there is none."""
        del timeout_s

    def return_stalled(self) -> None:
        """Give back what waits behind slow handlers, and send off what is done; called from the watcher's thread.

        Else what this thread has claimed would wait as long as a handler runs, while others are idle.
        """
        thread, began_s = self.thread, self.calls.began_s
        running_s = 0.0 if began_s is None else monotonic_s() - began_s
        if running_s > PIGGYBACK_S and thread.held.deferred:
            thread.try_to_settle()  # an error would leave the other threads, and what the hints say
        if running_s < SLOW_S:
            return
        if thread.is_unsettled() or thread.waiting or thread.claims.has_earlier:
            thread.release_waiting(lambda: self.calls.began_s == began_s)
