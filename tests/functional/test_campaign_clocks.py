"""Processes of a campaign whose wall clocks jump: they work as others do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign.clocks import NOT_HERE, Clock, library

FAKETIME = library()

WAITING = """
import threading, time

waited, stop = [], threading.Event()

def wait():
    while not stop.is_set():
        stop.wait(0.001)
    waited.append(time.thread_time())

threads = [threading.Thread(target=wait) for _ in range(10)]
for thread in threads:
    thread.start()
while time.thread_time() < 0.5:
    pass
worked = time.thread_time()
stop.set()
for thread in threads:
    thread.join()
print(sum(waited) / worked)
"""


@pytest.mark.skipif(FAKETIME is None, reason=NOT_HERE)
def test_threads_that_wait_for_pythons_lock_take_no_time_of_the_processor(tmp_path: Path) -> None:
    """They took ten times as much as the thread that worked: on a busy machine their process stood still for long."""
    assert FAKETIME is not None
    clock = Clock(tmp_path / "clock", FAKETIME)
    command = [sys.executable, "-c", WAITING]
    done = subprocess.run(command, env={**os.environ, **clock.environment}, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 2.0
