"""The parts of the test support that need no server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.compose import ROOT, DockerError, find_engine, run
from tests.support.faults import Faults
from tests.support.resp import FrameSplitter, command_name
from tests.support.waiting import wait_until

FRAMES = [
    b"+OK\r\n",
    b":12\r\n",
    b"-ERR no\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"$0\r\n\r\n",
    b"$5\r\na\r\nbc\r\n",
    b"*0\r\n",
    b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
    b"%1\r\n+a\r\n*2\r\n:1\r\n_\r\n",
    b"|1\r\n+ttl\r\n:1\r\n$1\r\nx\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
]


@given(st.lists(st.sampled_from(FRAMES)), st.integers(1, 20))
def test_the_splitter_finds_every_value_however_the_stream_is_cut(frames: list[bytes], step: int) -> None:
    stream, splitter, found = b"".join(frames), FrameSplitter(), list[bytes]()
    for start in range(0, len(stream), step):
        found += splitter.feed(stream[start : start + step])
    assert found == frames


def test_the_splitter_refuses_what_is_no_resp() -> None:
    with pytest.raises(ValueError, match="not RESP"):
        FrameSplitter().feed(b"GET / HTTP/1.1\r\n")


def test_command_names_are_in_capitals() -> None:
    assert command_name(b"*2\r\n$3\r\nget\r\n$1\r\na\r\n") == "GET"


def test_faults_are_limited_to_their_command() -> None:
    faults = Faults()
    faults.drop(1, "evalsha")
    assert faults.decide(b"+OK\r\n", "PING").forward == b"+OK\r\n"
    assert faults.decide(b"+OK\r\n", "EVALSHA").forward == b""
    assert faults.decide(b"+OK\r\n", "EVALSHA").forward == b"+OK\r\n"
    assert faults.dropped == 1


def test_a_cut_counts_replies_and_happens_once() -> None:
    faults = Faults()
    faults.cut_before_reply(2, None)
    assert [faults.decide(b"+OK\r\n", "PING").cut for _ in range(4)] == [False, True, False, False]


def test_a_cut_counts_bytes_over_replies() -> None:
    faults = Faults()
    faults.cut_after_bytes(7)
    verdicts = [faults.decide(b"+OK\r\n", "PING") for _ in range(3)]
    assert [verdict.forward for verdict in verdicts] == [b"+OK\r\n", b"+O", b"+OK\r\n"]
    assert [verdict.cut for verdict in verdicts] == [False, True, False]


def test_random_delays_repeat_with_their_seed() -> None:
    def draw(seed: int) -> list[float]:
        faults = Faults()
        faults.delay(0.1, 0.5, seed, None)
        return [faults.decide(b"", "").delay_s for _ in range(5)]

    assert draw(1) == draw(1) != draw(2)
    assert all(0.1 <= delay_s <= 0.5 for delay_s in draw(3))


def test_waiting_returns_what_came() -> None:
    values = iter([0, "", "there"])
    assert wait_until(lambda: next(values)) == "there"


def test_waiting_ends_with_what_was_missing() -> None:
    start = time.monotonic()
    with pytest.raises(AssertionError, match=r"not within 0.05 s: the moon \(last value: 0\)"):
        wait_until(lambda: 0, 0.05, "the moon")
    assert time.monotonic() - start < 30


def test_tests_in_containers_begin_within_their_budget_only() -> None:
    command = [sys.executable, "-m", "pytest", "-m", "docker", "-p", "no:cacheprovider", "tests/docker/test_image.py"]
    environment = {**os.environ, "RMQ_DOCKER_BUDGET_S": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, " passed" in done.stdout) == (0, False)
    assert "the tests in containers had 0 s to begin (RMQ_DOCKER_BUDGET_S)" in done.stdout


@pytest.mark.parametrize(
    ("version", "told"),
    [("1.29.2", "no Compose v2: found 1.29.2"), ("dev", "no Compose v2: found dev"), ("v2.24.1", "")],
)
def test_only_compose_v2_counts(version: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("docker", '[ "$1" = version ]'), ("docker-compose", f"echo {version}")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    if told:
        with pytest.raises(DockerError, match=told):
            find_engine()
    else:
        assert find_engine() == ("docker-compose",)


def test_a_command_of_docker_that_hangs_is_told_of() -> None:
    with pytest.raises(DockerError, match=r"^sleep 60 did not end within 0\.1 s$"):
        run("sleep", "60", timeout_s=0.1)
