"""`run` leaves what the program has loaded out of garbage collections: see `rmq._processes.heap`."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

from rmq import TopicType
from tests.conftest import MakeTopic

PLAIN = """
    client = RmqClient(sys.argv[1])
    client.producer(topic).send(PriorityMessage("m", 1))
    @client.listener(topic)
    def handle(delivery):
        print(gc.get_freeze_count())
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
            print(gc.get_freeze_count())
            os.kill(os.getpid(), signal.SIGTERM)
        await client.run()
    asyncio.run(main())
"""


def frozen_by(program: str, before: str, redis_url: str, make_topic: MakeTopic) -> int:
    """Run a worker that handles one message; return how many objects were frozen meanwhile."""
    name = make_topic(TopicType.PRIORITY).name
    text = "import gc, os, signal, sys\nfrom rmq import PriorityMessage, RmqClient, Topic, TopicType\n"
    text += f"topic = Topic({name!r}, TopicType.PRIORITY)\n{before}\n{dedent(program)}"
    done = subprocess.run([sys.executable, "-c", text, redis_url], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return int(done.stdout)


@pytest.mark.parametrize("program", [PLAIN, ASYNC], ids=["plain", "asyncio"])
def test_what_is_loaded_is_left_out_of_collections(program: str, redis_url: str, make_topic: MakeTopic) -> None:
    assert frozen_by(program, "", redis_url, make_topic) > 10_000


@pytest.mark.parametrize(("before", "frozen"), [("gc.disable()", 0), ("gc.collect(); kept = []; gc.freeze()", None)])
def test_a_program_that_looks_after_its_collector_keeps_its_way(
    before: str, frozen: int | None, redis_url: str, make_topic: MakeTopic
) -> None:
    found = frozen_by(PLAIN, f"{before}\nby_itself = gc.get_freeze_count()", redis_url, make_topic)
    if frozen is None:  # nothing of what came later: the client, its topic, its threads
        plain = frozen_by(PLAIN, "", redis_url, make_topic)
        assert 0 < found < plain
    else:
        assert found == frozen
