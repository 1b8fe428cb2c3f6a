"""The fixtures that all tests share take their Redis from a container, where RMQ_TEST_REDIS names an image."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import yaml

from tests.support.compose import ROOT, run
from tests.support.containers import RedisContainer
from tests.support.servers import BINARY_VARIABLE

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600), pytest.mark.usefixtures("engine")]

TESTS = "tests/lua/test_cancel.py"


@pytest.fixture
def image() -> str:
    """The Redis of docker-compose.yml."""
    compose: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    return compose["services"]["redis-1"]["image"]


def test_a_container_is_gone_with_its_server(image: str) -> None:
    with RedisContainer(image) as server, server.connect() as client:
        client.set("key", "value")
        id = server.id
        assert id in run("docker", "ps", "--quiet", "--no-trunc")
    assert id not in run("docker", "ps", "--all", "--quiet", "--no-trunc")


def test_the_scripts_run_on_the_redis_of_an_image(image: str) -> None:
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS)
    said = run(*command, env={BINARY_VARIABLE: f"docker:{image}"}, timeout_s=500)
    assert " passed" in said
    assert "skipped" not in said
