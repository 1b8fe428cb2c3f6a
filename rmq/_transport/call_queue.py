"""Calls that an owner keeps under way: submitted with a tag, sent together, completed as their replies arrive.

A `CallQueue` has the calls under way of one owner, a thread or a greenlet. Calls that are flushed together go out
in one request for each node, followed by one WAIT or WAITAOF if one of them is durable. Each call completes on its own,
so that a server which stays silent delays only its own calls: after the owner's patience they are late, and later
`completions` return their results without waiting for them.

Every submitted call is pending until it leaves the queue, in one of two ways: `completions` returns its tag with its
result or error; or `dropped` gets its tag, since its reply will not be read: the wait was interrupted, the queue was
closed, or the process is a fork. Then the connections are closed, as an unread reply would be read by their next user.
The queue keeps no call that has a result: the number of a numbered call is closed when the call is deleted.
Source: submission and completion queues of Linux' io_uring.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rmq._model.times import monotonic_s
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq._transport.dispatch import Dispatch, wait_for_any

Tag = TypeVar("Tag")


@dataclass(eq=False, slots=True)
class _Flush:
    """Calls that were sent together.

    Attributes:
        dispatch: The calls.
        first: Number of the first one.
        late: Whether the owner no longer waits for its pending calls.
    """

    dispatch: Dispatch
    first: int
    late: bool = False


class CallQueue(Generic[Tag]):
    """The calls that one owner has under way. For one thread or greenlet at a time.

    Args:
        connections: The connections to the servers.
        dropped: Called with the tag of each call whose reply will not be read: it may or may not be executed.
    """

    def __init__(self, connections: Connections, dropped: Callable[[Tag], object] | None = None) -> None:
        self._connections = connections
        self._dropped = dropped
        self._unsent: list[Call[Any]] = []
        self._flushes: list[_Flush] = []
        self._completed: list[tuple[int, Any]] = []
        self._owed: dict[int, Tag] = {}  # by the numbers of calls, which are numbered as they are submitted
        self._submitted = 0

    def submit(self, call: Call[Any], tag: Tag) -> None:
        """Add a call, which the next `flush` sends."""
        self._unsent.append(call)
        self._owed[self._submitted] = tag
        self._submitted += 1

    def flush(self, deadline_s: float | None = None) -> None:
        """Send the submitted calls without waiting for replies: one request for each node.

        Args:
            deadline_s: Seconds to retry calls that are safe to repeat; the client's deadline by default.

        Raises:
            ClientClosedError: The client is closed. The calls were not sent, and are dropped.
            ForkedClientError: The client was made before a fork; likewise.
        """
        calls, self._unsent = self._unsent, []
        if not calls:
            return
        first = self._submitted - len(calls)
        try:
            self._flushes.append(_Flush(self._connections.dispatch(calls, deadline_s), first))
        except BaseException:
            self._drop(range(first, self._submitted))
            raise

    def completions(self, patience_s: float | None = None) -> list[tuple[Tag, Any]]:
        """Return the tags of completed calls, each with its parsed reply or `RmqError`, and remove them.

        Args:
            patience_s: By default, wait until a call completes, and return nothing only if none was flushed. 0 does not
                wait. Another number waits for all calls that are not late, but on a cluster no longer than this for
                servers that send nothing: these are marked unresponsive, and their calls are late from then on.

        Raises:
            ForkedClientError: The client was made before a fork. All calls are dropped: their replies belong to the
                other process.
        """
        if self._connections.forked:
            self.close()
            self._connections.refuse_misuse()
        try:
            if self._flushes:
                self._wait(patience_s)
        except BaseException:  # a reply that was read may not be recorded
            self.close()
            raise
        completed, self._completed = self._completed, []
        return [(self._owed.pop(number), result) for number, result in completed]

    def owed(self) -> Collection[Tag]:
        """Return the tags of all calls that `completions` has not returned, in the order of submission; a view."""
        return self._owed.values()

    def close(self) -> None:
        """Drop the calls that are not completed, and close their connections. The queue may be used again."""
        for flush in self._flushes:
            flush.dispatch.close()
        self._flushes, self._unsent = [], []
        completed = dict(self._completed)
        self._drop([number for number in self._owed if number not in completed])

    def _wait(self, patience_s: float | None) -> None:
        """Collect results until there is nothing more to wait for; for `patience_s` see `completions`."""
        since_s = monotonic_s()
        limit_s = patience_s if self._connections.multi_node else None
        while True:
            waiting: list[Dispatch] = []
            alone = limit_s is None and patience_s != 0 and len(self._flushes) == 1
            for flush in self._flushes.copy():
                dispatch, polled = flush.dispatch, patience_s == 0 or (flush.late and patience_s is not None)
                is_over = dispatch.step(since_s, None if polled else limit_s, leave=True, alone=alone)
                self._completed += [(flush.first + index, result) for index, result in dispatch.take_settled()]
                if dispatch.done:
                    self._flushes.remove(flush)
                elif is_over:
                    flush.late = True
                elif not polled:
                    waiting.append(dispatch)
            if not waiting or (patience_s is None and self._completed):
                return
            wait_for_any(waiting, self._connections.runtime, limit_s)

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            tag = self._owed.pop(number)
            if self._dropped is not None:
                self._dropped(tag)
