"""The profile `spark` of docker-compose.yml: a streaming job sends, and the workers handle what it sends."""

from __future__ import annotations

import json

import pytest

from tests.docker.test_image import IMPORT_ALL, OF_OTHER_EXTRAS, in_image
from tests.support.compose import ComposeProject, run
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1_200)]

IMAGE = "rmq-spark:local"


def test_the_workers_handle_what_a_streaming_job_sends(cluster: ComposeProject) -> None:
    cluster("--profile", "spark", "build", "spark", slow=True)
    failed = json.loads(in_image(IMAGE, "python", "-", text=IMPORT_ALL))["failed"]
    assert [name for name in sorted(failed) if not name.startswith(OF_OTHER_EXTRAS)] == []
    cluster("--profile", "spark", "up", "--detach", "--no-recreate", "spark", slow=True)
    wait_until(lambda: "drawing stream-item:" in cluster("logs", "--no-color", "worker"), 300, "items of the stream")
    assert "Traceback" not in cluster("--profile", "spark", "logs", "--no-color", "spark")
    (job,) = cluster.containers("spark")
    cluster("--profile", "spark", "stop", "spark", slow=True)
    assert run("docker", "inspect", "--format", "{{.State.ExitCode}}", job).strip() == "0"
