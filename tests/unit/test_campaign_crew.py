"""What a campaign says about the ends of its processes; `cat` stands for a producer, which ends with its input."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.campaign.crew import Crew, Place
from tests.histories.journal import Journal


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    path = tmp_path / "journal"
    made = Crew(Journal(path), path, tmp_path, {}, random.Random(1))
    made.senders = [Place("producer 0", "sender", process=subprocess.Popen(["cat"], stdin=subprocess.PIPE))]
    return made


def test_who_was_told_to_end_has_not_ended_by_itself(crew: Crew) -> None:
    crew.end(crew.senders)
    crew.check()  # another lane of faults looks before the next process has started
    assert not crew.bad_exits


def test_who_ends_by_itself_is_noted_once(crew: Crew) -> None:
    [place] = crew.senders
    assert place.process is not None
    assert place.process.stdin is not None
    place.process.stdin.close()
    place.process.wait()
    crew.check()
    crew.check()
    assert crew.bad_exits == ["producer 0 ended by itself with code 0"]
