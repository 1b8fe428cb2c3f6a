"""`run` leaves what the program has loaded out of garbage collections: see `rmq._processes.signals`."""

from __future__ import annotations

import gc
import subprocess
import sys
from textwrap import dedent

import pytest

from rmq import TopicType
from rmq._processes.signals import frozen_objects
from tests.conftest import MakeTopic

PLAIN = """
    client = RmqClient(sys.argv[1])
    client.producer(topic).send(PriorityMessage("m", 1))
    @client.listener(topic)
    def handle(delivery):
        print(gc.get_freeze_count() - first)
        os.kill(os.getpid(), signal.SIGTERM)
    client.run()
"""
ASYNC = """
    import asyncio, rmq.aio
    async def main():
        client = rmq.aio.RmqClient(sys.argv[1])
        await (await client.producer(topic)).send(PriorityMessage("m", 1))
        @client.listener(topic)
        async def handle(delivery):
            print(gc.get_freeze_count() - first)
            os.kill(os.getpid(), signal.SIGTERM)
        await client.run()
    asyncio.run(main())
"""


def frozen_by(program: str, before: str, redis_url: str, make_topic: MakeTopic) -> int:
    """Run a worker that handles one message; return how many objects were frozen since `before` had run."""
    name = make_topic(TopicType.PRIORITY).name
    text = "import gc, os, signal, sys\nfrom rmq import PriorityMessage, RmqClient, Topic, TopicType\n"
    text += f"topic = Topic({name!r}, TopicType.PRIORITY)\nfirst = 0\n{before}\n{dedent(program)}"
    done = subprocess.run([sys.executable, "-c", text, redis_url], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return int(done.stdout)


@pytest.mark.parametrize("program", [PLAIN, ASYNC], ids=["plain", "asyncio"])
def test_what_is_loaded_is_left_out_of_collections(program: str, redis_url: str, make_topic: MakeTopic) -> None:
    assert frozen_by(program, "", redis_url, make_topic) > 10_000


@pytest.mark.parametrize("before", ["gc.disable()", "gc.collect(); gc.freeze()"])
def test_nothing_changes_in_a_program_that_looks_after_its_collector(
    before: str, redis_url: str, make_topic: MakeTopic
) -> None:
    # what is frozen may become less, since it is counted; later objects must not come to it
    assert (
        frozen_by(
            PLAIN, f"{before}\nfirst = gc.get_freeze_count(); later = [[] for _ in range(5_000)]", redis_url, make_topic
        )
        <= 0
    )


def test_python_3_12_begins_with_objects_frozen_and_that_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    for name in ("collect", "freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    with frozen_objects():
        assert calls == ["collect", "freeze"]
    assert calls == ["collect", "freeze", "unfreeze"]
