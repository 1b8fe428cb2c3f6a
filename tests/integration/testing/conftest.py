"""A test server, and what the plugin's fixtures give. The plugin runs in tests/functional/test_tested_shop.py."""

from __future__ import annotations

import pytest

from rmq import RmqClient
from rmq.testing import Clock, Server


@pytest.fixture
def clock(server: Server, rmq: RmqClient) -> Clock:
    return server.clock()
