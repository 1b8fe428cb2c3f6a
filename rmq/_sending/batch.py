"""Messages of one slot on their way into one call, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq._model.columns import Columns, gathered
from rmq._model.encoding import Row
from rmq._model.folding import fold_pair
from rmq._model.messages import Encoded
from rmq._model.topics import Topic
from rmq._transport.rpc_ids import RpcId


@dataclass(slots=True)
class Batch:
    """Messages of one slot on their way into one call.

    Attributes:
        slot: Number of the slot.
        encoded: The messages.
        messages: The messages as the user gave them.
        positions: Their positions in the stream, where outcomes are asked for.
        size_bytes: Size of their contents and bodies.
        rpc_id: What names the call for its repeats in other processes.
        folded: Position in `encoded` -> messages that were folded into that one.
    """

    slot: int
    encoded: Columns
    messages: list[Any] = field(default_factory=list[Any])
    positions: list[int] = field(default_factory=list[int])
    size_bytes: int = 0
    rpc_id: RpcId | None = None
    folded: dict[int, list[Any]] = field(default_factory=dict[int, "list[Any]"])
    _places: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def add_rows(
        self,
        indices: list[int],
        first: int,
        contents: Sequence[bytes],
        scores: Sequence[int],
        bodies: Sequence[bytes | None],
    ) -> None:
        """Append rows of columns.

        Args:
            indices: Their places in the columns.
            first: Number of the row whose place is 0: such numbers stand for messages.
            contents: Column of contents.
            scores: Column of scores.
            bodies: Column of bodies; empty where no row has one.
        """
        self.messages += [first + index for index in indices]
        added = gathered(contents, indices)
        added_bodies = gathered(bodies, indices) if bodies else ()
        self.encoded.extend(added, gathered(scores, indices), added_bodies)
        self.size_bytes += sum(map(len, added)) + sum([len(body) for body in added_bodies if body is not None])

    def add(self, row: Row, message: object) -> int:
        """Append a message; return the bytes that it adds."""
        _, content, score, body, flat = row
        columns = self.encoded
        columns.contents.append(content)
        columns.scores.append(score)
        self.messages.append(message)
        size_bytes = len(content)
        if body is not None or flat:
            size_bytes += len(body or b"")
            columns.complete(body, flat)
        self.size_bytes += size_bytes
        return size_bytes

    @property
    def taken(self) -> int:
        """How many of the user's messages it holds."""
        return len(self.messages) + sum(map(len, self.folded.values()))

    def fold(self, topic: Topic, encoded: Encoded, message: object) -> int | None:
        """Fold a message into the last one of its content; return the bytes that it adds, `None` if it stands alone."""
        place = self._places.get(encoded.content)
        older = None if place is None else self.encoded[place]
        together = None if older is None else fold_pair(topic, older, encoded)
        if place is None or older is None or together is None:
            self._places[encoded.content] = len(self.encoded)
            return None
        self.encoded.replace(place, together)
        self.folded.setdefault(place, []).append(message)
        added = len(together.body or b"") - len(older.body or b"")
        self.size_bytes += added
        return added

    def given(self, first: int = 0, last: int | None = None) -> list[Any]:
        """Return the messages that the user gave for those of `encoded` from one position to before another."""
        if not self.folded:
            return self.messages[first:last]
        found: list[Any] = []
        for place, message in list(enumerate(self.messages))[first:last]:
            found += (message, *self.folded.get(place, ()))
        return found
