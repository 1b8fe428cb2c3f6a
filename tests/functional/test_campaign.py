"""A small campaign: a few thousand messages and a dozen faults on a cluster; `make campaign` gives it half an hour."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign.shards import Shards
from tests.campaign.topics import topics
from tests.histories.journal import Journal
from tests.support.unmeasured import unmeasured
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MESSAGES, FAULTS = 4_000, 12


@pytest.mark.timeout(600)
@pytest.mark.parametrize("owners", ["zookeeper", "redis"])
def test_a_small_campaign_breaks_no_promise(owners: str, tmp_path: Path):
    result = tmp_path / "campaign.json"
    # how long a slot may be without an owner is for a machine that has nothing else to do: here it may take long
    options = [
        "--messages",
        MESSAGES,
        "--faults",
        FAULTS,
        "--minutes",
        0.4,
        "--brief",
        "--no-spark",
        "--owners",
        owners,
    ]
    options += ["--recovery", 60, "--keep", tmp_path / "events", "--json", result]
    command = [sys.executable, "-m", "tests.campaign", *map(str, options)]
    # the release before, which runs in it, is not this one, and its processes take five times as long
    with unmeasured():
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-6000:]
    report = json.loads(result.read_text("utf-8"))
    assert report["violations"] == {}
    assert sum(report["faults"].values()) == FAULTS
    assert report["accepted"] > MESSAGES / 10
    assert report["runs"] > len(topics())


def test_a_replica_that_redis_gave_to_another_shard_is_given_back(tmp_path: Path) -> None:
    shards = Shards(Journal(tmp_path / "events"), elections=False, disk=None, keeps_owners=False)
    try:
        (master, replica), (other, _) = shards.pair(0), shards.pair(1)

        def follows() -> int:
            with replica.connect() as client:
                return client.info("replication")["master_port"]

        shards.cluster.ask(replica, "CLUSTER", "REPLICATE", shards.cluster.node_id(other))
        wait_until(lambda: follows() == other.port)
        shards.settle()
        assert follows() == master.port
    finally:
        shards.stop()
