"""The profile `spark` of docker-compose.yml: on Spark's cluster a job fills a topic, reads it, and sends to workers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmq.demo.cluster import PICTURES
from tests.docker.test_image import IMPORT_ALL, OF_OTHER_EXTRAS, in_image
from tests.support.compose import ComposeProject, run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1_200)]

IMAGE = "rmq-spark:local"
SLOW_START = "Timed out while waiting for the Python worker to connect back"
"""Spark gives a Python source 10 s to start. On a busy machine the job ends by this, and Compose starts it again."""
SERVICES = ("spark-master", "spark-worker", "spark-job")
MASTER = "import urllib.request as web; print(web.urlopen('http://localhost:8080/json/').read().decode())"


def totals(cluster: ComposeProject, topic: str) -> dict[str, int]:
    (found,) = json.loads(cluster("exec", "-T", "worker", "rmq", "stats", topic, "--json"))["topics"]
    return found["totals"]


def merges_and_drains(cluster: ComposeProject) -> bool:
    """Tell whether several changes have become one, and Spark's source has read and acked such."""
    changes = totals(cluster, "price-change")
    return changes["merged"] > changes["acked"] > 0


def inspected(container: str) -> dict[str, Any]:
    (found,) = json.loads(run("docker", "inspect", container))
    return found


def test_the_workers_handle_what_a_streaming_job_reads_and_sends(cluster: ComposeProject) -> None:
    cluster("--profile", "spark", "build", "spark-job", slow=True)
    failed = json.loads(in_image(IMAGE, "python", "-", text=IMPORT_ALL))["failed"]
    assert [name for name in sorted(failed) if not name.startswith(OF_OTHER_EXTRAS)] == []
    cluster("--profile", "spark", "up", "--detach", "--no-recreate", *SERVICES, slow=True)
    wait_until(lambda: "drawing stream-item:" in cluster("logs", "--no-color", "worker"), 600, "items of the stream")
    said = cluster("--profile", "spark", "logs", "--no-color", "spark-job")
    assert "Traceback" not in said or SLOW_START in said, said[-4_000:]
    master = json.loads(cluster("--profile", "spark", "exec", "-T", "spark-master", "python", "-c", MASTER))
    assert [(each["state"], each["coresused"]) for each in master["workers"]] == [("ALIVE", 2)]
    assert [each["name"] for each in master["activeapps"]] == ["price stream"]
    wait_until(lambda: merges_and_drains(cluster), 120, "changes that merge")
    assert totals(cluster, PICTURES.name)["acked"] > 0
    for service in SERVICES:
        (container,) = cluster.containers(service)
        found = inspected(container)
        assert found["Config"]["User"] == "rmq", service
        assert found["HostConfig"]["ReadonlyRootfs"], service
        assert found["HostConfig"]["Memory"] > 0, service
    wait_until(lambda: all(cluster.healthy(service) for service in SERVICES), 120, "health of Spark's services")
    (job,) = cluster.containers("spark-job")
    cluster("--profile", "spark", "stop", "spark-job", slow=True)
    assert inspected(job)["State"]["ExitCode"] == 0
