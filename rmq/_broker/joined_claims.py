"""Puts claims of several slots into one script call, for servers where a script may touch all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import repeat
from operator import itemgetter
from typing import Any, Generic

from rmq._broker.binding import Bound
from rmq._io.wire import Argument
from rmq._model.replies import ClaimReply, M
from rmq._transport.call import Call
from rmq._transport.refusals import AOF_TROUBLE, error_of, parsed, reply_lost
from rmq.errors import RmqError


class JoinedClaims(Generic[M]):
    """Builds the joined claims of one kind of topic. A call answers each of its claims by itself.

    Args:
        one: The script that claims from one slot. Its last argument is `settlements`.
        many: The script that does so in several: `width`, what is shared, `most_bytes`, and in `claims` how many
            values follow for each slot, then these.
        shared: Names of the arguments that all claims have in common.
        own: Names of those that each slot has, `limit` among them, in the order of `many`.
    """

    def __init__(self, one: Bound, many: Bound, shared: Sequence[str], own: Sequence[str]) -> None:
        self._one, self._many = one, many
        self._shared, self._own = shared, own

    @cached_property
    def _places(self) -> tuple[list[int], list[int], int, int]:
        """Where the shared and the own arguments stand in a claim, the settlements, and the limit among the own."""
        [tail] = self._one.places(["settlements"])
        return self._one.places(self._shared), self._one.places(self._own), tail, self._own.index("limit") + 1

    def __call__(
        self, claims: Sequence[Call[ClaimReply[M]]], most_bytes: int, limits: Sequence[int | None] | None = None
    ) -> Call[list[ClaimReply[M] | RmqError]]:
        """Build one call of claims of one topic.

        Args:
            claims: What `one` would do.
            most_bytes: Most bytes that all of them together hand over.
            limits: Other limits than those of the claims, where not `None`.

        What claims share is taken from the last one.
        """
        first = claims[0]
        shared_at, own_at, tail, limit_at = self._places
        own_of = itemgetter(*own_at)
        names: list[str] = []
        slots: list[Argument] = []
        for call, limit in zip(claims, limits or repeat(None), strict=False):
            args, at = call.args, len(slots)
            names += call.keys
            slots.append(len(own_at) + len(args) - tail)
            slots += own_of(args)
            slots += args[tail:]
            if limit is not None:
                slots[at + limit_at] = limit
        shared = {name: claims[-1].args[at] for name, at in zip(self._shared, shared_at, strict=True)}
        args = self._many.args(width=len(first.keys), most_bytes=most_bytes, claims=slots, **shared)
        parse = partial(_parse, claims)
        return Call(self._many.name, tuple(names), args, parse, self._many.repeatable, first.topic, first.slot)


def _parse(claims: Sequence[Call[ClaimReply[M]]], reply: list[Any]) -> list[ClaimReply[M] | RmqError]:
    return [_parse_one(claim, each) for claim, each in zip(claims, reply, strict=True)]


def _parse_one(claim: Call[ClaimReply[M]], reply: Any) -> ClaimReply[M] | RmqError:
    if not isinstance(reply, bytes):
        try:
            return parsed(claim, reply)
        except RmqError as error:  # what the other slots have claimed is handed over all the same
            return error
    text = reply.decode(errors="replace")
    return reply_lost(claim, text) if AOF_TROUBLE in text else error_of(claim, text)
