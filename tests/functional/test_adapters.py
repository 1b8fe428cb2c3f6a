"""The example applications run as they stand, with the real frameworks, and the pages show them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from rmq import PriorityMessage, RmqClient, Topic, TopicType, scheduled
from rmq.adapters.fastapi import Rmq
from rmq.aio import Delivery
from rmq.errors import UnknownTopicError
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
WEB, DJANGO = ROOT / "examples/web", ROOT / "examples/django_shop"
PROGRAMS = {
    "fastapi": [WEB / "fastapi_shop.py"],
    "flask": [WEB / "flask_shop.py"],
    "django": [DJANGO / "shop" / name for name in ("settings.py", "models.py", "views.py", "rmq_handlers.py")],
}
"""Page -> the programs that it shows."""

TOPIC = "price-image"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("page", PROGRAMS)
def test_each_block_of_the_page_stands_in_the_example(page: str) -> None:
    text = (ROOT / f"docs/guide/{page}.md").read_text("utf-8")
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    programs = "\n".join(path.read_text("utf-8") for path in PROGRAMS[page])
    assert blocks
    assert [block for block in blocks if block not in programs] == []


def run(*command: str | Path, url: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"RMQ_URL": url, "PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(*command: str | Path, url: str, folder: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, cwd=folder, env=os.environ | {"RMQ_URL": url, "PYTHONPATH": str(ROOT)} | environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stopped(worker: subprocess.Popen[Any]) -> int:
    worker.send_signal(signal.SIGTERM)
    return worker.wait(60)


def acked(client: RmqClient) -> int:
    try:
        return client.inspect(TOPIC).stats().total("acked")
    except UnknownTopicError:
        return 0


def test_handlers_of_a_service_share_a_bound(server: RedisServer) -> None:
    """Of `handlers`, over both listeners."""
    service = Rmq(server.url, handlers=4)
    topics = [Topic(f"shared{number}", TopicType.PRIORITY, slots=4) for number in range(2)]
    running = most = done = 0

    async def handle(delivery: Delivery) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        done += 1

    for topic in topics:
        service.listener(topic, concurrency=8, weight=2.0)(handle)

    async def use() -> None:
        async with service.lifespan():
            for topic in topics:
                producer = await service.producer(topic)()
                await producer.send_many(PriorityMessage(f"m{number}", 1) for number in range(100))
            while done < 200:
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(use(), 60))
    assert most == 4


def test_fastapi(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_URL", server.url)
    monkeypatch.syspath_prepend(str(WEB))
    monkeypatch.delitem(sys.modules, "fastapi_shop", raising=False)
    import fastapi_shop  # pyright: ignore[reportMissingImports]

    async def use() -> None:
        for _ in range(2):  # as each test of an application does
            transport = httpx.ASGITransport(fastapi_shop.app)
            async with (
                fastapi_shop.app.router.lifespan_context(fastapi_shop.app),
                httpx.AsyncClient(transport=transport, base_url="http://service") as web,
            ):
                posted = await asyncio.gather(*(web.post(f"/items/i{number % 5}") for number in range(20)))
                assert {answer.status_code for answer in posted} == {200}
                assert sum(not answer.json()["merged"] for answer in posted) >= 5
                while (await web.get("/stats")).json()["backlog"]:
                    await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(use(), 60))
    assert set(fastapi_shop.drawn) == {f"i{number}" for number in range(5)}
    with RmqClient(server.url) as client:
        stats = client.inspect(TOPIC).stats()
        assert (stats.unaccounted, stats.in_flight) == (0, 0)


def test_flask(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_URL", server.url)
    monkeypatch.syspath_prepend(str(WEB))
    monkeypatch.delitem(sys.modules, "flask_shop", raising=False)
    import flask_shop  # pyright: ignore[reportMissingImports]

    web = flask_shop.app.test_client()
    assert [web.post(f"/items/{name}").json for name in ("mug", "mug", "cup")] == [
        {"merged": False},
        {"merged": True},
        {"merged": False},
    ]
    assert web.get("/stats").json == {"backlog": 2, "drawn": 0}
    command = [
        sys.executable,
        "-m",
        "flask",
        "--app",
        WEB / "flask_shop.py",
        "rmq-worker",
        "--drain",
        "20",
        "--exit-when-hung",
    ]
    with running(*command, url=server.url, folder=tmp_path) as worker:
        wait_until(lambda: web.get("/stats").json == {"backlog": 0, "drawn": 2}, 40)
        assert stopped(worker) == 0
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["cup.txt", "mug.txt"]
    flask_shop.rmq.close(flask_shop.app)


HANGING = """
import time
from datetime import timedelta
from flask import Flask
from rmq import PriorityMessage, Topic, TopicType
from rmq.adapters.flask import Rmq

app, topic = Flask("hanging"), Topic("hanging", TopicType.PRIORITY)
rmq = Rmq(app)

@rmq.listener(topic, timeout=timedelta(milliseconds=100))
def handle(delivery):
    time.sleep(3_600)

with app.app_context():
    rmq.producer(topic).send(PriorityMessage("m", 5))
"""


def test_a_worker_of_flask_ends_once_a_handler_hangs(server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    command = [sys.executable, "-m", "flask", "--app", tmp_path / "hanging.py", "rmq-worker", "--exit-when-hung"]
    with running(*command, url=server.url, folder=tmp_path) as worker:
        assert worker.wait(100) == 75


@pytest.mark.parametrize("adds", ["decorated", "scanned"])
def test_a_service_of_fastapi_runs_its_schedules(server: RedisServer, adds: str) -> None:
    service, handled = Rmq(server.url), list[str]()

    async def tick(delivery: Delivery) -> None:
        handled.append(delivery.text)

    name = f"tick-{adds}"
    if adds == "decorated":
        service.scheduled(name, every="1s", catch_up=True)(tick)
    else:
        module = ModuleType("ticks")
        vars(module)["tick"] = scheduled(name, every="1s", catch_up=True)(tick)
        service.scan(module)

    async def use() -> None:
        async with service.lifespan():
            while len(set(handled)) < 2:
                await asyncio.sleep(0.02)
            await (await service.client()).schedules.remove(name)

    asyncio.run(asyncio.wait_for(use(), 60))
    assert all(each.startswith(f"{name}:2") for each in handled)


SCHEDULES_OF_FLASK = """
from flask import Flask, current_app
from rmq.adapters.flask import Rmq

app = Flask("ticking")
rmq = Rmq(app)

@rmq.scheduled("tick-flask", every="1s", catch_up=True)
def tick(delivery):
    print(current_app.name, delivery.text, flush=True)
"""
HANDLERS_OF_DJANGO = """
import rmq
from django.conf import settings

@rmq.scheduled("tick-django", every="1s", catch_up=True)
def tick(delivery):
    print(settings.INSTALLED_APPS[1], delivery.text, flush=True)
"""
WORKER_OF_DJANGO = """
from django.conf import settings
settings.configure(INSTALLED_APPS=["rmq.adapters.django", "ticking"])
import django
django.setup()
from django.core.management import call_command
call_command("rmq_worker")
"""


@pytest.mark.parametrize("framework", ["flask", "django"])
def test_a_worker_of_a_framework_runs_its_schedules(server: RedisServer, tmp_path: Path, framework: str) -> None:
    if framework == "flask":
        (tmp_path / "ticking.py").write_text(SCHEDULES_OF_FLASK)
        command = [sys.executable, "-m", "flask", "--app", "ticking", "rmq-worker"]
    else:
        (tmp_path / "ticking").mkdir()
        (tmp_path / "ticking/__init__.py").touch()
        (tmp_path / "ticking/rmq_handlers.py").write_text(HANDLERS_OF_DJANGO)
        command = [sys.executable, "-c", WORKER_OF_DJANGO]
    environment = os.environ | {"RMQ_URL": server.url, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, encoding="utf-8") as worker:
        assert worker.stdout is not None
        handled = {worker.stdout.readline() for _ in range(2)}
        assert stopped(worker) == 0
    assert [each.partition(":")[0] for each in handled] == [f"ticking tick-{framework}"] * 2
    with RmqClient(server.url) as client:
        assert client.schedules.remove(f"tick-{framework}")


DJANGO_REQUESTS = """
import django
django.setup()
from django.core.management import call_command
from django.test import Client
call_command("check")
call_command("migrate", run_syncdb=True, verbosity=0)
web = Client(raise_request_exception=False)
print([web.post(f"/items/{path}").status_code for path in ("mug/399", "mug/450", "cup/100", "jug/0")])
from rmq.adapters.django import client
print(sorted(message.text for message in client().inspect("price-image").peek(limit=10)))
"""
DJANGO_PRICES = """
import django
django.setup()
from shop.models import Item
print(sorted(Item.objects.values_list("name", "price", "drawn_price")))
"""


def test_django(server: RedisServer, tmp_path: Path) -> None:
    settings = {"SHOP_FOLDER": str(tmp_path), "DJANGO_SETTINGS_MODULE": "shop.settings"}
    sent = run(sys.executable, "-c", DJANGO_REQUESTS, url=server.url, folder=DJANGO, **settings)
    assert sent.splitlines()[-2:] == ["[200, 200, 200, 500]", "['cup', 'mug']"]  # jug was rolled back
    command = [sys.executable, "manage.py", "rmq_worker", "--drain", "20", "--exit-when-hung"]
    with running(*command, url=server.url, folder=DJANGO, **settings) as worker, RmqClient(server.url) as client:
        wait_until(lambda: acked(client) == 2, 40)
        assert stopped(worker) == 0
    prices = run(sys.executable, "-c", DJANGO_PRICES, url=server.url, folder=DJANGO, **settings)
    assert prices.strip() == "[('cup', 100, 100), ('mug', 450, 450)]"


@pytest.mark.parametrize(("setting", "message"), [("{'HOST': 1}", "HOST"), ("5", "must be a dict")])
def test_django_reports_a_wrong_setting(setting: str, message: str) -> None:
    program = f"""
from django.conf import settings
settings.configure(INSTALLED_APPS=["rmq.adapters.django"], RMQ={setting})
import django
django.setup()
from django.core.management import call_command
call_command("check")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 1
    assert "rmq.E001" in done.stderr
    assert message in done.stderr
