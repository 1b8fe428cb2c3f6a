from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import MakeSlot
from tests.support.slots import T0, SlotState

DEAD = {b"young": T0 - 1, b"old": T0 - 3, b"middle": T0 - 2}
SEEDED = SlotState(
    store={b"old": T0}, dead=DEAD, reason={key: {} for key in DEAD}, dead_body={b"old": b"1"}, body={b"old": b"2"}
)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ([b"middle", b"absent", b"middle"], [b"young", b"old"]),
        ([b"old", b"middle"], [b"young"]),
        ([b"absent"], [b"young", b"old", b"middle"]),
        ([b"young", b"old", b"middle"], []),
    ],
)
def test_gone_for_good(names: list[bytes], kept: list[bytes], make_slot: MakeSlot) -> None:
    slot = make_slot()
    before = slot.seed(SEEDED)
    purged = len(DEAD) - len(kept)
    assert slot.purge(*names) == purged
    assert slot.state() == replace(
        before,
        dead={name: DEAD[name] for name in kept},
        reason={key: {} for key in kept},
        dead_body={b"old": b"1"} if b"old" in kept else {},
        totals={"accepted": 4} | ({"purged": purged} if purged else {}),
    )
