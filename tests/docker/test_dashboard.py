"""The dashboard of docker-compose.yml: on this machine's port, behind a login."""

from __future__ import annotations

import urllib.error
import urllib.request
from base64 import b64encode

import pytest

from rmq.demo.cluster import PICTURES
from tests.support.compose import ComposeProject
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


def test_it_shows_the_topic_to_who_logs_in(cluster: ComposeProject) -> None:
    wait_until(lambda: cluster.healthy("dashboard"), 300, "a healthy dashboard")
    address = f"http://127.0.0.1:{cluster.ports['RMQ_DASHBOARD_PORT']}/"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(address, timeout=60)
    login = b64encode(b"rmq:rmq").decode()
    request = urllib.request.Request(address, headers={"authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert PICTURES.name in answer.read().decode()
