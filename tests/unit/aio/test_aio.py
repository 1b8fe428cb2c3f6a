"""The asyncio side has all names of the plain one, and nothing of the plain one blocks by itself."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq import aio, consumer, control, dead, history, inspection, producer, stream_dead, stream_topic
from rmq.aio.greenlets import Tasks, wait
from rmq.errors import RmqError

PACKAGE = Path(rmq.__file__).parent

MAY_BLOCK = {
    "blocking": "the place for it",
    "wire": "of threads; the asyncio side has one of its own",
    "embedded": "called in a thread of its own",
    "embedded_guard": "a process of its own",
    "client": "only `run`, which waits for signals",
    "cluster_setup": "of the command line",
    "cluster_demo": "of the command line",
    "local_cluster": "of the command line",
    "supervisor": "of the command line",
    "zookeeper_server": "of the command line",
}
FOR_THE_LIBRARY = {"settle", "still_owner", "claim", "finish", "put_back", "value_of", "mark", "refuse_if_settled"}


@pytest.mark.parametrize(
    ("plain", "awaited"),
    [
        (rmq.RmqClient, aio.RmqClient),
        (rmq.DelayedQueue, aio.DelayedQueue),
        (producer.Producer, aio.Producer),
        (consumer.Consumer, aio.Consumer),
        (control.Control, aio.Control),
        (dead.DeadLetters, aio.DeadLetters),
        (history.History, aio.History),
        (inspection.Inspection, aio.Inspection),
        (stream_topic.StreamTopic, aio.StreamTopic),
        (stream_dead.GroupDead, aio.GroupDead),
    ],
)
def test_the_names_are_the_same(plain: type[Any], awaited: type[Any]) -> None:
    names = {name for name in dir(plain) if not name.startswith("_")} - FOR_THE_LIBRARY
    assert names <= set(dir(awaited)), names - set(dir(awaited))


@pytest.mark.parametrize(
    "path", [*sorted(PACKAGE.glob("*.py")), *sorted((PACKAGE / "topologies").glob("*.py"))], ids=lambda path: path.stem
)
def test_nothing_else_blocks_by_itself(path: Path) -> None:
    if path.stem in MAY_BLOCK:
        return
    tree = ast.parse(path.read_text("utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    called = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    harmless = {"threading.Lock", "threading.get_ident"}  # one that nobody waits under
    used = {name for name in called if name.startswith(("threading.", "select.", "time.sleep"))} - harmless
    assert not used, f"{path.name} uses {used}; take it from Connections.blocking"
    assert not imported & {"select", "selectors", "socket", "queue", "concurrent.futures"} - (
        {"socket"} if path.stem in ("stream_consumer", "audit", "census") else set()
    )


def test_plain_logic_waits_only_where_it_was_awaited() -> None:
    async def main() -> None:
        with pytest.raises(RmqError, match="awaited"):
            wait(asyncio.sleep(0))
        assert await Tasks().run(lambda: wait(asyncio.sleep(0, "done"))) == "done"

    asyncio.run(main())


def test_logic_goes_on_after_a_cancellation_and_gives_back_what_nobody_claims() -> None:
    async def main() -> None:
        tasks, gone_on, given_back = Tasks(), asyncio.Event(), list[str]()

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
        tasks, ended = Tasks(), list[str]()

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
