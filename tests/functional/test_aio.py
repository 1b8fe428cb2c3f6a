"""The asyncio side in programs: a web service's lifespan, a worker that a signal ends, an end without a close."""

from __future__ import annotations

import asyncio
import runpy
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.sides import SIDES
from tests.support.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi_lifespan.py"

WORKER = """
import asyncio, sys
from rmq import Topic, TopicType
from rmq.aio import RmqClient

client = RmqClient(sys.argv[1])

@client.listener(Topic(sys.argv[2], TopicType.PRIORITY, slots=4), concurrency=10)
async def handle(delivery):
    print("begun", delivery.text, flush=True)
    await asyncio.sleep(float(sys.argv[3]))
    print("ended", delivery.text, flush=True)

async def main():
    if len(sys.argv) > 4:  # ends without having closed anything
        await client.start()
        await asyncio.sleep(1)
    else:
        print("left", len(await client.run(drain_s=20)), flush=True)

asyncio.run(main())
"""


def test_a_web_service_sends_and_consumes_from_its_start_to_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RMQ_URL", f"embedded://{tmp_path / 'data'}")

    async def use(app: Any) -> None:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://service") as web,
        ):
            posted = await asyncio.gather(*(web.post(f"/items/i{number % 20}") for number in range(200)))
            assert {answer.status_code for answer in posted} == {200}
            new = sum(not answer.json()["merged"] for answer in posted)
            async with asyncio.timeout(30):
                while (await web.get("/stats")).json() != {"backlog": 0, "drawn": new}:
                    await asyncio.sleep(0.05)
            assert len(app.state.drawn) == new >= 20

    asyncio.run(use(runpy.run_path(str(EXAMPLE))["app"]))


def worker(url: str, topic: Topic, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", WORKER, url, topic.name, *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")


def test_a_signal_lets_running_handlers_finish(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4)
    with RmqClient(redis_url) as client, worker(redis_url, topic, "4") as process:
        client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(100))
        assert process.stdout is not None
        assert process.stdout.readline().startswith("begun")
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output.splitlines()[-1]) == (0, "left 0"), errors
        stats = client.inspect(topic).stats()
        ended = output.count("ended")
        assert 1 <= ended <= 10
        assert (stats.total("acked"), stats.in_flight, stats.backlog) == (ended, 0, 100 - ended)


def test_a_program_that_ends_without_a_close_ends(redis_url: str, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.PRIORITY, slots=4, lease=timedelta(seconds=1))
    with RmqClient(redis_url) as client:
        client.producer(topic).send_many(PriorityMessage(f"m{i}", 100) for i in range(20))
        with worker(redis_url, topic, "3600", "end") as process:
            process.communicate(timeout=60)
        assert process.returncode == 0
        with client.consumer(topic) as consumer:

            def all_acked() -> bool:
                consumer.ack(consumer.poll(100, 0.5))
                return client.inspect(topic).stats().total("acked") == 20

            wait_until(all_acked)


ENDS_IN_A_HANDLER = """
import asyncio, sys
from rmq import PriorityMessage, RmqClient, Topic, TopicType, aio

side, action, options = sys.argv[3], sys.argv[4], {"exit_when_hung": True} if sys.argv[5:] else {}
topic = Topic(sys.argv[2], TopicType.PRIORITY, lease="20m")
messages = [PriorityMessage(content, 1) for content in ("a", "b", "c")]

def on_threads():
    client = RmqClient(sys.argv[1])

    @client.listener(topic, threads=3)
    def handle(delivery):
        getattr(client, action)()

    client.producer(topic).send_many(messages)
    print("left", len(client.run(**options)), flush=True)

async def on_asyncio():
    client = aio.RmqClient(sys.argv[1])

    @client.listener(topic, concurrency=3)
    async def handle(delivery):
        await getattr(client, action)()

    await (await client.producer(topic)).send_many(messages)
    print("left", len(await client.run(**options)), flush=True)

asyncio.run(on_asyncio()) if side == "asyncio" else on_threads()
"""


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("action", ["close", "stop"])
@pytest.mark.parametrize("options", [(), ("exit_when_hung",)])
def test_run_ends_when_handlers_end_the_client(
    action: str, options: tuple[str, ...], side: str, redis_url: str, make_topic: MakeTopic
) -> None:
    """Several at once do not wait for each other, and what they handled is acked: no worker gets it again."""
    topic = make_topic(TopicType.PRIORITY)
    command = [sys.executable, "-c", ENDS_IN_A_HANDLER, redis_url, topic.name, side, action, *options]
    ended = subprocess.run(command, capture_output=True, timeout=240, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left 0\n", "")
    with RmqClient(redis_url) as client:
        stats = client.inspect(topic).stats()
    assert stats.in_flight == 0
    assert stats.total("acked") > 0
