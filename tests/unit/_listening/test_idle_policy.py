"""How often an idle process asks Redis."""

from __future__ import annotations

import pytest

from rmq import Listener, Topic, TopicType
from rmq._listening.watcher import NORMAL, idle_policy
from rmq.errors import InvalidValueError

TIMED = Listener(Topic("t", TopicType.RANGE_MERGE, slots=4), print)
STREAM = Listener(Topic("s", TopicType.STREAM, slots=4), print, group="g")


def a_minute(listeners: list[Listener], *, apart: bool) -> float:
    """Return how many commands a process carries out, those inside of scripts included."""
    pace = idle_policy("economy", listeners, multi_node=apart)
    look = 7 if STREAM in listeners else 6  # the script, the time, and what it reads of a slot
    looks = look * 60 / pace.look_s
    trims = 0 if STREAM not in listeners else listeners.count(STREAM) * 15 * 60 / pace.tidy_s
    return 60 / pace.probe_s + looks + trims + 60 / pace.beat_s + 60 / pace.identify_s + (2 if apart else 0)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("listeners", [[TIMED], [STREAM], [TIMED] * 20, [STREAM] * 5, [TIMED, STREAM]])
def test_economy_stays_below_ten_commands_a_minute(listeners: list[Listener], apart: bool) -> None:
    assert a_minute(listeners, apart=apart) < 10


def test_normal_is_as_ever() -> None:
    assert idle_policy("normal", [TIMED, STREAM], multi_node=True) == NORMAL
    assert not NORMAL.economical


@pytest.mark.parametrize("idle", ["", "cheap", "ECONOMY", None, True])
def test_another_word_is_refused(idle: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"idle is {idle!r}; it must be normal or economy"):
        idle_policy(idle, [TIMED], multi_node=False)
