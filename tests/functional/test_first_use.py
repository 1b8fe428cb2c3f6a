"""The traps of a first use: each is told in words that say what to do, and nothing is lost in silence."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmq import (
    Delivery,
    InvalidUrlError,
    InvalidValueError,
    PriorityMessage,
    RmqClient,
    RmqError,
    Topic,
    TopicType,
    aio,
    listener,
)
from rmq.adapters.fastapi import Rmq as FastApiRmq
from rmq.adapters.flask import Rmq as FlaskRmq
from tests.support.cli import Cli

ROOT = Path(__file__).parents[2]
JOBS = Topic("jobs", TopicType.PRIORITY)
UNSET = "no Redis URL is set; set RMQ_URL: redis://host:6379; or embedded:///folder"
SEND = """
from rmq import PriorityMessage, RmqClient, Topic, TopicType

with RmqClient() as client:
    print(client.producer(Topic("jobs", TopicType.PRIORITY)).send(PriorityMessage("job:1", 5)).new)
"""
WORKER = """
from rmq import RmqClient, Topic, TopicType

client = RmqClient({url})

@client.listener(Topic("jobs", TopicType.PRIORITY))
def work(delivery): ...
"""


def run(*command: str, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python without RMQ_URL, but for what the variables say."""
    environment = {name: value for name, value in os.environ.items() if name != "RMQ_URL"}
    environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "80", **variables}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=90
    )


def rmq(*words: str, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    return run("-c", "from rmq.cli import main; main()", *words, folder=folder, **variables)


# --- which Redis it is


def test_who_names_no_redis_is_warned_though_no_logging_is_set_up() -> None:
    ran = run("-c", SEND)
    assert (ran.returncode, ran.stdout) == (0, "1\n")
    assert ran.stderr.startswith("no Redis URL is set: this client starts a temporary Redis.")
    assert "when the client is closed or its process ends. To avoid this warning, set RMQ_URL" in ran.stderr


def test_who_names_one_is_not_warned(tmp_path: Path) -> None:
    for url in ("embedded://", f"embedded://{tmp_path}/shop"):
        ran = run("-c", SEND, RMQ_URL=url)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")


def test_asyncio_warns_as_well(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("RMQ_URL", raising=False)

    async def use() -> None:
        async with aio.RmqClient() as client:
            await (await client.producer(JOBS)).send(PriorityMessage("job:1", 5))

    with caplog.at_level(logging.WARNING, "rmq"):
        asyncio.run(use())
    assert [record.name for record in caplog.records if "no Redis URL is set" in record.message] == ["rmq.client"]


def test_an_empty_url_is_an_error_and_no_private_redis() -> None:
    ran = run("-c", SEND, RMQ_URL="")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "InvalidUrlError: RMQ_URL is set, but empty; set it to the URL of a Redis: redis://host:6379" in ran.stderr
    for words in (("stats",), ("--url", "", "stats"), ("stats", "--url", "")):
        ran = rmq(*words, RMQ_URL="" if words == ("stats",) else "embedded://")
        assert (ran.returncode, ran.stdout) == (2, ""), ran
        assert "empty; set it to the URL of a Redis" in " ".join(ran.stderr.split())


@pytest.mark.parametrize("words", ["consume jobs", "dashboard", "metrics --once", "send jobs a", "stats"])
def test_a_command_wants_to_know_which_redis(words: str) -> None:
    ran = rmq(*words.split())
    assert (ran.returncode, ran.stdout) == (2, "")
    assert UNSET in " ".join(ran.stderr.split())


def test_a_worker_wants_to_know_which_redis(tmp_path: Path) -> None:
    (tmp_path / "unset.py").write_text(WORKER.format(url=""))
    (tmp_path / "own.py").write_text(WORKER.format(url="'embedded://'"))
    for options in ([], ["--processes", "2"]):
        ran = rmq("worker", "unset:client", *options, folder=tmp_path)
        assert ran.returncode == 2
        said = " ".join(ran.stderr.split())
        assert "client unset:client has no Redis URL; set RMQ_URL or --url, such as redis://host:6379" in said
    ran = rmq("worker", "own:client", "--processes", "2", folder=tmp_path)
    assert ran.returncode == 2
    assert "with --processes or --reload use one that processes share, such as embedded:///folder" in " ".join(
        ran.stderr.split()
    )


def test_programs_that_name_one_folder_share_one_redis(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/shop"
    with RmqClient(url) as client:
        producer = client.producer(JOBS)
        assert run("-c", SEND, RMQ_URL=url).stdout == "1\n"
        assert client.inspect(JOBS).stats().backlog == 1
        assert producer.send(PriorityMessage("job:1", 5)).merged == 1
        assert Cli(url)("stats", "jobs", "--json").json["topics"][0]["backlog"] == 1


def test_the_adapters_want_to_know_which_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    import flask

    monkeypatch.delenv("RMQ_URL", raising=False)

    async def serve() -> None:
        async with FastApiRmq().lifespan():
            pass

    with pytest.raises(InvalidUrlError, match=UNSET):
        asyncio.run(serve())
    app = flask.Flask("shop")
    flask_rmq = FlaskRmq(app)
    with app.app_context(), pytest.raises(InvalidUrlError, match=UNSET):
        flask_rmq.client()


def test_django_wants_to_know_which_redis() -> None:
    program = """
from django.conf import settings
settings.configure(INSTALLED_APPS=["rmq.adapters.django"], RMQ={"URL": None})
import django
django.setup()
from django.core.management import call_command
call_command("check")
from rmq.adapters.django import client
client()
"""
    ran = run("-c", program)
    assert "WARNINGS:\n?: (rmq.W001) no Redis URL is set; set RMQ_URL" in ran.stderr
    assert f"InvalidUrlError: {UNSET}" in ran.stderr
    ran = run("-c", program, RMQ_URL="embedded://")
    assert (ran.returncode, ran.stderr) == (0, "")


# --- which settings hold


def test_settings_in_code_that_do_not_count_are_told(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/shop"
    program = """
from rmq import PriorityMessage, RmqClient, Topic, TopicType

with RmqClient() as client:
    for _ in range(2):
        client.producer(Topic("jobs", TopicType.PRIORITY, max_retries=3)).send(PriorityMessage("job:1", 5))
"""
    with RmqClient(url) as client:
        client.producer(JOBS)
        ran = run("-c", program, RMQ_URL=url)
        assert ran.returncode == 0
        assert ran.stderr.count("\n") == 1
        assert (
            "topic jobs: the registered settings apply, not those of this program: max_retries 16, not 3" in ran.stderr
        )
        assert client.inspect(JOBS).stats().backlog == 1


# --- what a handler can be


def nothing() -> None: ...
def from_a_dict(order: dict[str, str], delivery: Delivery) -> None: ...
def handle(delivery: Delivery) -> None: ...
async def handle_async(delivery: aio.Delivery) -> None: ...
async def nothing_async() -> None: ...


def test_a_handler_that_cannot_be_called_is_refused_when_it_is_declared() -> None:
    """Else it is registered, and each message dies of a TypeError once its retries are used up."""
    with RmqClient("embedded://") as client:
        for handler in (nothing, from_a_dict):
            with pytest.raises(InvalidValueError, match="on topic jobs"):
                client.listener(JOBS)(handler)  # pyright: ignore
            with pytest.raises(InvalidValueError, match="on topic jobs"):
                listener(JOBS)(handler)  # pyright: ignore
        with pytest.raises(InvalidValueError, match="on topic jobs"):
            aio.RmqClient("embedded://").listener(JOBS)(nothing_async)  # pyright: ignore
        with pytest.raises(InvalidValueError, match=r"on_lost .* must take one argument, a Delivery"):
            client.listener(JOBS, on_lost=nothing)  # pyright: ignore
        with pytest.raises(InvalidValueError, match=r"tell .* must take one argument, a list of DeadMessage"):
            client.dead(JOBS).on_dead(nothing)  # pyright: ignore
        with pytest.raises(RmqError, match="has no listener"):  # nothing was registered
            client.start()


@pytest.mark.parametrize("wrong", [handle, "jobs", None])
def test_a_decorator_without_a_topic_says_what_is_missing(wrong: Any) -> None:
    with RmqClient("embedded://") as client:
        for decorate in (client.listener, listener, aio.RmqClient("embedded://").listener):
            with pytest.raises(
                InvalidValueError, match=r"a listener takes a Topic, .* write @client.listener\(TOPIC\)"
            ):
                decorate(wrong)


def test_two_listeners_of_one_topic_are_refused_unless_they_say_that_they_share_it() -> None:
    clicks = Topic("clicks", TopicType.STREAM)
    with RmqClient("embedded://") as client:
        client.listener(JOBS)(handle)
        rule = "this client has two listeners of topic jobs: handle and handle. Each message would go to one of them"
        for options in ({}, {"shared": True}):
            with pytest.raises(InvalidValueError, match=rule):
                client.listener(JOBS, **options)(handle)  # pyright: ignore
        client.listener(clicks, group="a")(handle)
        client.listener(clicks, group="b")(handle)
        with pytest.raises(InvalidValueError, match="listeners of topic clicks, group a"):
            client.listener(clicks, group="a")(handle)
        for _ in range(2):
            client.listener(Topic("both", TopicType.PRIORITY), shared=True)(handle)
    other = aio.RmqClient("embedded://")
    other.listener(JOBS)(handle_async)
    with pytest.raises(InvalidValueError, match="two listeners of topic jobs"):
        other.listener(JOBS)(handle_async)
