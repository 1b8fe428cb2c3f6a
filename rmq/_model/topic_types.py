"""The types of topics, and what a send does when a topic is full."""

from __future__ import annotations

from enum import Enum


class TopicType(Enum):
    """Type of a topic: the order of its messages, and how equal contents merge.

    Examples:
        >>> [each.name for each in TopicType]
        ['RANGE_MERGE', 'PRIORITY', 'FIXED_TIME', 'STREAM']
    """

    RANGE_MERGE = "RANGE_MERGE"
    """Due `time_range` after the first send; duplicates until then fold into one delivery."""
    PRIORITY = "PRIORITY"
    """Larger priorities first; a duplicate takes the last priority sent."""
    FIXED_TIME = "FIXED_TIME"
    """Due at a given time; a duplicate takes the last time sent."""
    STREAM = "STREAM"
    """A log on Redis Streams: in the order of sending, without merging, for each of several groups."""

    @property
    def timed(self) -> bool:
        """Whether store scores are due times."""
        return self in (TopicType.RANGE_MERGE, TopicType.FIXED_TIME)


class WhenFull(Enum):
    """Behaviour of a send to a slot that has used up its share of `max_backlog`.

    Examples:
        >>> jobs = client.producer(Topic("jobs", TopicType.PRIORITY, max_backlog=2, when_full=WhenFull.DROP))
        >>> jobs.send_many(PriorityMessage(f"job:{size}", size) for size in (3, 1, 2)).dropped  # job:1 makes room
        1
    """

    REFUSE = "REFUSE"
    """The send raises `BacklogFullError` at once."""
    BLOCK = "BLOCK"
    """The send waits for room, up to `full_timeout`; then it raises `BacklogFullError`."""
    DROP = "DROP"
    """The send succeeds, and messages that would be delivered last (lowest priority, latest due time) are dropped."""
