"""A local cluster's folder, as far as no process is needed to see it."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from rmq._processes import local_cluster
from rmq._processes.local_cluster import LOCK_FILE


def test_a_cluster_runs_while_its_keeper_holds_the_lock(tmp_path: Path) -> None:
    with (tmp_path / LOCK_FILE).open("w") as lock:
        assert not local_cluster.runs(tmp_path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert local_cluster.runs(tmp_path)


def test_a_folder_that_is_deleted_meanwhile_has_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _path: True)
    assert not local_cluster.runs(tmp_path)
