"""Settings of services: argument before environment before file; secrets in files; mistakes name their place."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rmq import RmqClient, Topic
from rmq._servers.urls import parse_url
from rmq.errors import InvalidValueError
from tests.functional.test_rollover import JOBS, get
from tests.support.cli import Cli
from tests.support.servers import free_port
from tests.support.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path, priority: Topic, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS.format(topic=priority.name).replace("slots=4", "slots=2"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["rmq.toml", "pyproject.toml", "elsewhere.toml"])
def test_a_worker_runs_by_its_file_alone(redis_url: str, folder: Path, name: str) -> None:
    port, wrong = free_port(), free_port()
    table = "tool.rmq" if name == "pyproject.toml" else ""
    lines = ["url-file = 'secret'", f"[{table}.worker]".replace("[.", "["), "target = 'jobs:client'", "processes = 2"]
    lines += [f"health-port = {wrong}", "log-format = 'json'"]
    (folder / name).write_text("\n".join([f"[{table}]" if table else "", *lines]))
    (folder / "secret").write_text(f"{redis_url}\n")
    cli = Cli(redis_url)
    del cli.env["RMQ_URL"]
    env = {
        "RMQ_WORKER_HEALTH_PORT": str(port),
        "RMQ_WORKER_DRAIN": "7",
        **({"RMQ_CONFIG": name} if "else" in name else {}),
    }
    with cli.process("worker", "--drain", "6", cwd=folder, env=env) as process:
        wait_until(lambda: (get(port, "/readyz") or (0,))[0] == 200)
        assert get(wrong, "/readyz") is None
        with RmqClient(redis_url) as client:
            # the two processes have no settings of their own: they start no others, and no second health endpoint
            wait_until(lambda: len([each for each in client.workers() if each.pid != process.pid]) >= 2)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=50)
    assert process.returncode == 0
    assert err.count('"message": "started process') == 2
    assert err.count('"message": "jobs:client runs on') == 2


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[worker]\ndrein = 3", "worker.drein is unknown; the settings are target, drain, "),
        ("[worker]\nreload = 'yes'", "worker.reload must be true or false"),
        ("[worker]\ndrain = true", "worker.drain must be a string or a number"),
        ("[worker]\ndrain = [3]", "worker.drain must be a single value"),
        ("[worker]\nsupervised = true", "worker.supervised is unknown"),
        ("[send]\nlimit = 3", "send is unknown; the settings are worker, metrics, dashboard, url, url-file"),
        ("worker = 3", "worker must be a table, [worker]"),
        ("url = 3", "url must be a string"),
        ("url = 'a'\nurl-file = 'b'", "url-file and url are both set"),
        ("[[", "cannot be read: "),
    ],
)
def test_a_mistake_in_the_file_is_named(cli: Cli, folder: Path, text: str, rule: str) -> None:
    (folder / "rmq.toml").write_text(text)
    err = cli("stats", code=2).err
    assert err.startswith(f"rmq: settings file rmq.toml{'' if rule.startswith('cannot') else ':'} {rule}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("text", "code"), [("tool = 1", 0), ("[tool]\nrmq = 'x'", 2)])
def test_a_project_file_of_another_shape(cli: Cli, folder: Path, text: str, code: int) -> None:
    (folder / "pyproject.toml").write_text(text)
    err = cli("topics", code=code).err
    assert err == ("rmq: settings file pyproject.toml: tool.rmq must be a table, [tool.rmq]\n" if code else "")


def test_a_value_out_of_bounds_names_where_it_stands(cli: Cli, folder: Path) -> None:
    (folder / "rmq.toml").write_text("[worker]\nprocesses = 0\n[dashboard]\nallow-host = ['a', 'b']")
    assert cli("worker", "jobs:client", code=2).err.startswith(
        "rmq: worker.processes in the settings file is '0'; it must"
    )
    env = {"RMQ_METRICS_PORT": "tcp://10.0.0.1:9460"}  # Kubernetes sets it beside a Service rmq-metrics
    assert cli("metrics", code=2, env=env).err.startswith("rmq: RMQ_METRICS_PORT is 'tcp://10.0.0.1:9460'; it must be")


def test_the_url_of_the_file_applies_last(cli: Cli, folder: Path, priority: Topic) -> None:
    (folder / "rmq.toml").write_text("url = 'redis://127.0.0.1:1'")
    assert priority.name in cli("topics", "--json").out
    assert "127.0.0.1:1" in cli("--url", "redis://127.0.0.1:1", "topics", code=1).err


def test_an_argument_takes_the_place_of_a_file_with_the_url(redis_url: str, folder: Path) -> None:
    (folder / "secret").write_text("redis://127.0.0.1:1")
    cli = Cli(redis_url)
    del cli.env["RMQ_URL"]
    port = free_port()
    options = ["--url", redis_url, "jobs:client", "--health-port", str(port)]
    with cli.process("worker", *options, cwd=folder, env={"RMQ_URL_FILE": "secret"}) as process:
        wait_until(lambda: (get(port, "/readyz") or (0,))[0] == 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(50) == 0


def test_a_secret_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("redis://secret-host:7\n")
    monkeypatch.setenv("RMQ_URL_FILE", str(secret))
    monkeypatch.delenv("RMQ_URL", raising=False)
    assert parse_url(None).url == "redis://secret-host:7"
    monkeypatch.setenv("RMQ_URL", "redis://b")
    with pytest.raises(InvalidValueError, match="RMQ_URL and RMQ_URL_FILE are both set"):
        parse_url(None)
    monkeypatch.delenv("RMQ_URL")
    for text, rule in (("", "is empty"), ("a" * 70_000, "is longer than")):
        secret.write_text(text)
        with pytest.raises(InvalidValueError, match=f"^RMQ_URL_FILE names the file .* which {rule}"):
            parse_url(None)
    secret.unlink()
    with pytest.raises(InvalidValueError, match="cannot be read"):
        parse_url(None)
