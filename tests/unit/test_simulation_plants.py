"""The bugs that simulations must find can be planted in the library as it is."""

from __future__ import annotations

import pytest

from tests.simulation.planting import planted
from tests.simulation.plants import PLANTS, Plant


@pytest.mark.parametrize("bug", PLANTS, ids=lambda bug: bug.name)
def test_it_can_be_planted(bug: Plant) -> None:
    with planted(bug):
        pass
