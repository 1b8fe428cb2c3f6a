"""What a task of Spark knows of itself, without Spark."""

from __future__ import annotations

QUERY = "9b9b2a4e-6d55-4f3c-9d32-0a3d3c0f8a11"


class Task:
    """The context of a task of a streaming query."""

    partition = 0
    batch = 0

    def partitionId(self) -> int:
        """Return the number of its partition."""
        return self.partition

    def taskAttemptId(self) -> int:
        """Return a number that no other attempt has."""
        return 7

    def getLocalProperty(self, name: str) -> str:
        """Return which batch of which query it writes."""
        return {"streaming.sql.batchId": str(self.batch), "sql.streaming.queryId": QUERY}[name]
