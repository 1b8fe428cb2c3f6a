"""`rmq topics diff` and `apply`: what a program's modules say beside what is registered."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from rmq import ImmediateRetry, RmqClient, Topic, TopicType
from tests.conftest import MakeTopic
from tests.support.cli import Cli

PROGRAM = """
from datetime import timedelta
from rmq import *

CALM = Topic({name!r}, TopicType.PRIORITY, slots={slots}, max_retries=3, retry=ImmediateRetry(),
    lease=timedelta(seconds=30))
ALL = [CALM, Topic({name!r} + ".listed", TopicType.RANGE_MERGE)]
client = RmqClient()

@client.listener(Topic({name!r} + ".heard", TopicType.FIXED_TIME))
def hear(delivery): ...

@listener(Topic({name!r} + ".marked", TopicType.PRIORITY))
def mark(delivery): ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package that can be imported, with an empty module `jobs`."""
    name = f"shop_{uuid4().hex}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return name


def write(shop: str, text: str) -> None:
    Path(shop, "jobs.py").write_text(text)
    for name in (shop, f"{shop}.jobs"):
        sys.modules.pop(name, None)


def test_what_a_program_says_is_compared_and_applied(
    cli: Cli, client: RmqClient, make_topic: MakeTopic, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = client.producer(make_topic(TopicType.PRIORITY, slots=2)).topic
    others = [f"{known.name}.{each}" for each in ("heard", "listed", "marked")]
    write(shop, PROGRAM.format(name=known.name, slots=2))
    monkeypatch.setenv("RMQ_URL", cli.env["RMQ_URL"])
    ran = cli("topics", "diff", shop, code=3)
    assert ran.out == (
        f"{known.name}\n  registered: max_retries 16, not 3\n  registered: lease 1 m, not 30 s\n"
        "  registered: retry ExponentialRetry(base='1s', cap='10m'), not ImmediateRetry()\n"
        + "".join(f"{each}  is not registered\n" for each in others)
    )
    assert ran.err == f"4 of 4 topics of {shop} differ\n"
    document = cli("topics", "diff", f"{shop}.jobs", "--json", code=3).json
    assert [each["topic"] for each in document["differing"]] == [known.name, *others]
    assert document["differing"][0]["settings"] == ["max_retries", "lease", "retry"]
    assert (document["differing"][0]["registered"]["lease_s"], document["differing"][0]["program"]["lease_s"]) == (
        60,
        30,
    )
    assert client.topic(known.name) == known  # nothing was changed

    applied = cli("topics", "apply", shop)
    assert applied.out.splitlines()[0] == (
        f"{known.name}  max_retries 16, now 3; lease 1 m, now 30 s; "
        "retry ExponentialRetry(base='1s', cap='10m'), now ImmediateRetry()"
    )
    assert "keep the old settings until they restart" in applied.err
    now = client.topic(known.name)
    assert (now.max_retries, now.lease, now.retry) == (3, timedelta(seconds=30), ImmediateRetry())
    assert [client.topic(each).name for each in others] == others
    lines = client.inspect(now).audit()
    assert [(line.action, line.outcome) for line in lines] == [("change topic", "done"), ("change topic", "begun")]
    assert lines[0].detail.startswith("max_retries 16, now 3; lease 1 m, now 30 s")
    assert cli("topics", "diff", shop).err == f"0 of 4 topics of {shop} differ\n"
    assert cli("topics", "apply", shop, "--json").json == {"topics": 4, "applied": []}
    assert len(client.inspect(now).audit()) == 2


def test_what_cannot_be_changed_is_refused_and_nothing_is_applied(
    cli: Cli, client: RmqClient, make_topic: MakeTopic, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = client.producer(make_topic(TopicType.PRIORITY, slots=2)).topic
    write(shop, PROGRAM.format(name=known.name, slots=4))
    monkeypatch.setenv("RMQ_URL", cli.env["RMQ_URL"])
    assert "registered: slots 2, not 4 (cannot be changed)" in cli("topics", "diff", shop, code=3).out
    assert "is registered with slots 2, not 4, which cannot be changed" in cli("topics", "apply", shop, code=1).err
    assert client.topic(known.name) == known
    assert f"{known.name}.heard" not in {each.name for each in client.topics()}
    assert client.inspect(known).audit() == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "defines neither a Topic nor a listener"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        (
            "from rmq import *\na, b = (Topic('t', TopicType.PRIORITY, slots=each) for each in (1, 2))",
            "defines topic t twice, with different settings: slots 1, not 2",
        ),
    ],
)
def test_a_module_without_clear_topics_is_refused(text: str, rule: str, cli: Cli, shop: str) -> None:
    write(shop, text)
    for command in ("diff", "apply"):
        write(shop, text)
        assert rule in cli("topics", command, shop, code=2).err
    assert "no_such_module cannot be imported" in cli("topics", "diff", "no_such_module", code=2).err


def test_a_topic_in_a_dict_counts(cli: Cli, shop: str, topic_name: str) -> None:
    write(shop, f"from rmq import *\nBY_NAME = {{'a': Topic({topic_name!r}, TopicType.STREAM), 'b': 5}}")
    assert cli("topics", "apply", shop).out == f"{topic_name}  registered\n"
    with RmqClient(cli.env["RMQ_URL"]) as client:
        assert client.topic(topic_name) == Topic(topic_name, TopicType.STREAM)
    for command in (("apply", shop), ("change", topic_name, "--lease", "20s")):
        write(shop, f"from rmq import *\nT = Topic({topic_name!r}, TopicType.STREAM, lease=timedelta(seconds=30))")
        Path(shop, "jobs.py").write_text("from datetime import timedelta\n" + Path(shop, "jobs.py").read_text())
        said = " ".join(cli("topics", *command).err.split())
        assert f"topic {topic_name} is a stream topic: stop all consumers of a group before the first one" in said


def test_a_topic_is_deleted(cli: Cli, client: RmqClient, make_topic: MakeTopic) -> None:
    name = client.producer(make_topic(TopicType.PRIORITY, slots=2, checked=False)).topic.name
    cli("send", name, "a", "b", "c", "--priority", "20")
    assert cli("topics", "delete", name, code=1).err == (
        f"rmq: topic {name} was not deleted: it holds 3 messages; use force (--force) to delete it anyway\n"
    )
    assert cli("topics", "delete", name, "--force").out == f"topic {name} deleted, with 3 messages\n"
    assert f"topic {name} was deleted at 2" in cli("send", name, "d", "--priority", "20", code=2).err
    assert cli("topics", "delete", name, "--forget", "--json").json == {
        "topic": name,
        "slots": 2,
        "messages": 3,
        "schedules": [],
    }
    assert cli("topics", "create", name, "--type", "range-merge", "--slots", "4", "--json").json["slots"] == 4
