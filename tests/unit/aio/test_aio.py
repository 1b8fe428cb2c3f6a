"""Nothing that both sides share blocks by itself."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq._io.backend import Runtime
from rmq.aio import DelayedQueue, RmqClient
from rmq.aio.backend import EventLoop, call_semaphore
from rmq.aio.greenlets import TaskGroup, wait
from rmq.errors import RmqError

PACKAGE = Path(rmq.__file__).parent

MAY_BLOCK = {
    "_io": "the place for it; the asyncio side has its own of both files",
    "_ownership": "in a thread of its own",
    "_processes": "called in a thread of its own, a process of its own, or of the command line",
    "client.py": "only `run`, which waits for signals",
}
FACES = {"aio", "cli", "dashboard", "demo", "metrics", "spark"}


def _shared_by_both_sides() -> list[Path]:
    found = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]
    return [path for path in found if path.parts[0] not in MAY_BLOCK.keys() | FACES]


@pytest.mark.parametrize("path", _shared_by_both_sides(), ids=str)
def test_nothing_else_blocks_by_itself(path: Path) -> None:
    tree = ast.parse((PACKAGE / path).read_text("utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    called = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    harmless = {f"threading.{name}" for name in ("Lock", "get_ident", "current_thread", "main_thread")}
    used = {name for name in called if name.startswith(("threading.", "select.", "time.sleep"))} - harmless
    assert not used, f"{path} uses {used}; take it from rmq._io.backend.Runtime"
    runtime = {"select", "selectors", "socket", "queue", "concurrent.futures"}
    assert {name for name in called if name.split(".")[0] in imported & runtime} <= {"socket.gethostname"}


def test_the_event_loop_inherits_no_operation_of_threads() -> None:
    assert {name for name in vars(Runtime) if not name.startswith("_")} <= vars(EventLoop).keys()


def test_plain_logic_waits_only_where_it_was_awaited() -> None:
    async def main() -> None:
        with pytest.raises(RmqError, match="and await them"):
            wait(asyncio.sleep(0))
        assert await TaskGroup(call_semaphore).run(lambda: wait(asyncio.sleep(0, "done"))) == "done"

    asyncio.run(main())


@pytest.mark.parametrize("error", [GeneratorExit, asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_what_an_awaited_call_raises_by_itself_ends_no_logic(error: type[BaseException]) -> None:
    """GeneratorExit, too, which else says that the loop is gone."""

    async def fail() -> None:
        raise error

    def logic() -> list[str]:
        seen: list[str] = []
        for turn in range(3):
            try:
                wait(fail())
            except BaseException as caught:
                seen.append(f"{type(caught).__name__} {turn} {wait(asyncio.sleep(0, 'still here'))}")
        return seen

    async def main() -> list[str]:
        return await TaskGroup(call_semaphore).run(logic)

    assert asyncio.run(main()) == [f"{error.__name__} {turn} still here" for turn in range(3)]


def test_logic_whose_loop_is_gone_ends() -> None:
    ended: list[str] = []

    def logic() -> None:
        try:
            wait(asyncio.sleep(3_600))
        finally:
            ended.append("there")

    loop = asyncio.new_event_loop()
    task = loop.create_task(TaskGroup(call_semaphore).run(logic))
    loop.run_until_complete(asyncio.sleep(0))
    coroutine = task.get_coro()
    assert coroutine is not None
    coroutine.close()
    task.cancel()
    with pytest.raises((asyncio.CancelledError, RuntimeError)):
        loop.run_until_complete(task)
    loop.close()
    assert ended == ["there"]


def test_logic_goes_on_after_a_cancellation_and_gives_back_what_nobody_claims() -> None:
    async def main() -> None:
        tasks, gone_on, given_back = TaskGroup(call_semaphore), asyncio.Event(), list[str]()

        def logic() -> str:
            wait(gone_on.wait())
            return "result"

        caller = asyncio.create_task(tasks.finish(logic, given_back.append))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        gone_on.set()
        await tasks.settled()
        assert given_back == ["result"]

    asyncio.run(main())


def test_logic_that_waits_for_news_ends_when_nobody_waits_for_it() -> None:
    async def main() -> None:
        tasks, ended = TaskGroup(call_semaphore), list[str]()

        def logic() -> None:
            try:
                wait(asyncio.sleep(3_600), breakable=True)
            except asyncio.CancelledError:
                ended.append("there")
                raise

        caller = asyncio.create_task(tasks.finish(logic))
        await asyncio.sleep(0.01)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await tasks.settled()
        assert ended == ["there"]

    asyncio.run(main())


def test_an_option_that_does_not_exist_is_refused_at_once() -> None:
    options: dict[str, Any] = {"durabilty": "fsync"}
    with pytest.raises(TypeError, match="durabilty"):
        RmqClient("redis://localhost", **options)
    with pytest.raises(TypeError, match="durabilty"):
        DelayedQueue(RmqClient("redis://localhost"), "later", **options)
