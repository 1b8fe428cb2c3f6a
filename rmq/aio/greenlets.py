"""Runs the library's plain logic in an event loop: each call is a greenlet, and a task awaits whatever it waits for.

A greenlet can be suspended in the middle of a call and resumed. So the logic, written once for threads, calls `wait`
where it would block. Its task awaits the argument of `wait`, while the loop does other work, and resumes the logic with
the result. SQLAlchemy's asyncio side works the same way.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar, cast

from rmq._io.backend import Lock
from rmq._io.reports import reporter
from rmq.errors import ClientClosedError, RmqError

try:
    from greenlet import GreenletExit, getcurrent, greenlet
except ImportError as error:  # pragma: no cover - the tests have it
    raise ImportError("rmq.aio needs the package greenlet: pip install 'rmq[aio]'") from error

log = reporter("rmq.aio")

P = ParamSpec("P")
T = TypeVar("T")


class _Runner(greenlet):
    """Runs the logic of one `GreenletTask` after another: only there may `wait` be called.

    Python gives each new greenlet a stack of its own, which costs more than most calls.

    Attributes:
        logic: What it runs next.
        ended: The result of the logic, or its error.
    """

    logic: Callable[[], Any]
    ended: tuple[Any, BaseException | None]

    def run_once(self) -> None:
        """Run the logic, and keep its result."""
        try:
            self.ended = self.logic(), None
        except GreenletExit:
            raise
        except BaseException as error:
            self.ended = None, error
        finally:
            del self.logic


def _serve() -> None:
    """Run what the current runner is given. A frame that kept the runner would keep it alive after its thread."""
    while True:
        cast("_Runner", getcurrent()).run_once()
        cast("greenlet", getcurrent().parent).switch(None)


class _Idle(threading.local):
    """The runners of a thread that run nothing. Greenlets cannot change their thread."""

    def __init__(self) -> None:
        self.runners: list[_Runner] = []


_idle = _Idle()

MOST_IDLE = 256
"""Maximum number of idle runners in a thread; each keeps about 20 KiB."""


def wait(awaitable: Awaitable[T], *, breakable: bool = False) -> T:
    """Wait for an awaitable from within plain logic.

    Args:
        awaitable: The awaitable.
        breakable: Whether the logic may end here once no task waits for its result.
    """
    current = getcurrent()
    parent = current.parent
    if not isinstance(current, _Runner) or parent is None:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()
        raise RmqError(
            "a blocking method of an internal object was called; call the methods of the objects that rmq.aio returns, "
            "and await them"
        )
    return cast("T", parent.switch((awaitable, breakable)))


def wait_until(done: asyncio.Future[bool], timeout_s: float | None, *, breakable: bool = False) -> bool:
    """Wait for a future; return False after the timeout."""
    if timeout_s is None:
        return wait(done, breakable=breakable)
    timer = asyncio.get_running_loop().call_later(timeout_s, resolve, done, False)
    try:
        return wait(done, breakable=breakable)
    finally:
        timer.cancel()


def resolve(future: asyncio.Future[bool], value: bool = True) -> None:
    """Set the result of a future, unless it is done."""
    if not future.done():
        future.set_result(value)


class GreenletTask:
    """Plain logic that a task runs.

    Args:
        action: The logic.
    """

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action
        self._task: asyncio.Task[Any] | None = None
        self._driven_in: asyncio.Task[Any] | None = None
        self._broken = self._breakable = False

    async def drive(self) -> Any:
        """Run the logic to its end; return its result or raise its error. Cancellation interrupts its current wait."""
        here = getcurrent()  # the driver may have been made in another greenlet
        self._driven_in = _current_task()
        idle = _idle.runners
        logic = idle.pop() if idle else _Runner(_serve)
        logic.logic, logic.parent, logic.gr_context = self._action, here, here.gr_context
        step: Any = logic.switch()
        while step is not None:
            awaitable, breakable = step
            try:
                if breakable and self._broken:
                    if asyncio.iscoroutine(awaitable):
                        awaitable.close()
                    raise asyncio.CancelledError
                self._breakable = breakable
                value = await awaitable
            except BaseException as error:
                if issubclass(type(error), GeneratorExit) and not self._is_driven():
                    logic.throw(GreenletExit)
                    raise
                self._breakable = False
                logic.parent = getcurrent()
                step = logic.throw(error)
            else:
                self._breakable = False
                logic.parent = getcurrent()  # a task that was begun eagerly has begun in another one
                step = logic.switch(value)
        result, error = logic.ended
        del logic.ended
        logic.gr_context = None
        if len(idle) < MOST_IDLE:
            idle.append(logic)
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # else this frame and the error keep each other

    def _is_driven(self) -> bool:
        """Return whether the loop still runs this task; if not, nothing can be awaited."""
        task = _current_task()
        return task is not None and task is self._driven_in

    def start(self, name: str) -> asyncio.Task[Any]:
        """Run the job in a new task, which starts once the caller awaits, even with an eager task factory."""
        self._task = asyncio.Task(self.drive(), name=name)
        return self._task

    def break_off(self) -> None:
        """End the logic at its current or next breakable wait, since no task waits for its result."""
        self._broken = True
        if self._breakable and self._task is not None:
            self._task.cancel()


class OwnContext:
    """An awaitable whose steps run in a copy of the current context.

    Args:
        awaitable: The awaitable.
        given_up: Returns whether to end it at its current wait if it ignores a cancellation.

    Attributes:
        context: The copy.
    """

    def __init__(self, awaitable: Awaitable[Any], given_up: Callable[[], bool]) -> None:
        self.context = copy_context()
        self._steps: Any = awaitable.__await__()
        self._run = self.context.run
        self._given_up = given_up

    def __await__(self) -> Generator[Any, Any, Any]:
        run, steps = self._run, self._steps
        try:
            step = run(steps.send, None)
            while True:
                try:
                    value = yield step
                except BaseException as error:
                    if issubclass(type(error), asyncio.CancelledError) and self._given_up():
                        log.warning("closing a handler that ignored its cancellation: %s", steps)
                        with suppress(RuntimeError):  # it goes on even now
                            run(steps.close)
                        raise
                    step = run(steps.throw, error)
                else:
                    step = run(steps.send, value)
        except StopIteration as end:
            return end.value


def wait_here(awaitable: Awaitable[object]) -> None:
    """Wait for an awaitable whose steps run in the current context: variables that it sets are set for the caller."""
    steps = OwnContext(awaitable, lambda: False)
    try:
        wait(steps)
    finally:
        for variable, value in steps.context.items():
            if variable.get(None) is not value:
                variable.set(value)


class TaskGroup:
    """The tasks of one client; it waits for them before it closes.

    Args:
        new_semaphore: Creates a semaphore that limits how many calls use connections at the same time.

    Attributes:
        client_semaphore: Held during a call of the client itself, such as the creation of a producer.
        bulk_semaphores: By topic, held while many messages are sent.
        given_up: Whether handlers that ignore their cancellation are ended at their current wait.
    """

    def __init__(self, new_semaphore: Callable[[], Lock]) -> None:
        self.client_semaphore = new_semaphore()
        self.bulk_semaphores = defaultdict[str, Lock](new_semaphore)
        self._finishing: dict[asyncio.Task[Any], GreenletTask] = {}
        self._ending = self.given_up = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def check_loop(self) -> None:
        """Raise in another event loop than that of the first call, to which connections and locks belong."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                raise RmqError("this client belongs to another event loop; create one in the loop that uses it")
            self._loop = loop

    async def run(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run plain logic. If cancelled, it ends at its current wait and closes a connection that awaits a reply."""
        self.check_loop()
        return cast("T", await GreenletTask(functools.partial(action, *args, **kwargs)).drive())

    async def finish(self, action: Callable[[], T], unclaimed: Callable[[T], object] | None = None) -> T:
        """Run plain logic. If the caller is cancelled, the logic goes on to its end, or to its next breakable wait.

        Args:
            action: The logic.
            unclaimed: Plain logic that gets the result if the caller was cancelled.

        Raises:
            ClientClosedError: The client was closed during the call.
            RmqError: Another event loop runs; also raised by `run`.
        """
        self.check_loop()
        driver = GreenletTask(action)
        task = self._tracked(driver, f"rmq-{getattr(action, '__name__', 'call')}")
        try:
            return cast("T", await asyncio.shield(task))
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._ending and task.cancelled() and not (caller is not None and caller.cancelling()):
                raise ClientClosedError("this client was closed during the call") from None
            driver.break_off()
            task.add_done_callback(functools.partial(self._take_unclaimed, unclaimed))
            raise

    def give_up(self) -> None:
        """From now on, end handlers that ignore their cancellation at their current wait."""
        self.given_up = True

    async def settled(self) -> None:
        """End all breakable waits, current and later ones, and wait until all tasks have finished."""
        self._ending = True
        for driver in self._finishing.values():
            driver.break_off()
        while self._finishing:
            await asyncio.wait(set(self._finishing))

    def _take_unclaimed(self, unclaimed: Callable[[Any], object] | None, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.debug("a cancelled call failed: %s", error)
        elif unclaimed is not None and task.result():
            giving_back = GreenletTask(functools.partial(unclaimed, task.result()))
            self._tracked(giving_back, "rmq-unclaimed").add_done_callback(_log_failure)

    def _tracked(self, driver: GreenletTask, name: str) -> asyncio.Task[Any]:
        task = driver.start(name)
        self._finishing[task] = driver
        task.add_done_callback(self._finishing.pop)
        if self._ending:
            driver.break_off()
        return task


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a cancelled call could not return messages; they are redelivered after lease expiry: %s", error)
