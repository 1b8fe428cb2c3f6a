"""Breadth-first search of all states that a model can reach: each state once, by the shortest way."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, TypeVar

S = TypeVar("S")

Step = tuple[str, S]
"""What happens, in words, and the state after it."""


class BrokenPromiseError(AssertionError):
    """A state that must not be reached; says the shortest way there."""

    def __init__(self, what: str, path: Iterable[str]) -> None:
        self.what, self.path = what, tuple(path)
        super().__init__("\n  ".join([f"{what}, after", *self.path]))


@dataclass
class Space(Generic[S]):
    """What a search has found.

    Attributes:
        states: Key of each state -> its first representative.
        edges: Key of each state -> keys of those after it, with what leads there.
        before: Key of each state -> the state from which it was found first, and what led there.
        depth: Steps to the farthest state.
        closed: Whether every step of every state was taken: there are no other states.
        seconds: How long it took.
    """

    states: dict[Hashable, S] = field(default_factory=dict[Hashable, S])
    edges: dict[Hashable, list[tuple[str, Hashable]]] = field(
        default_factory=dict[Hashable, list[tuple[str, Hashable]]]
    )
    before: dict[Hashable, tuple[Hashable, str]] = field(default_factory=dict[Hashable, tuple[Hashable, str]])
    depth: int = 0
    closed: bool = False
    seconds: float = 0.0

    @property
    def transitions(self) -> int:
        return sum(map(len, self.edges.values()))

    def path(self, key: Hashable) -> list[str]:
        """Return the shortest way to a state."""
        words: list[str] = []
        while key in self.before:
            key, word = self.before[key]
            words.append(word)
        return words[::-1]

    def backwards(self, goals: Iterable[Hashable], along: Callable[[str], bool]) -> set[Hashable]:
        """Return the states from which steps of some kind lead to one of the goals."""
        sources: dict[Hashable, list[Hashable]] = {}
        for key, edges in self.edges.items():
            for word, target in edges:
                if along(word):
                    sources.setdefault(target, []).append(key)
        found = set(goals)
        waiting = list(found)
        while waiting:
            for source in sources.get(waiting.pop(), ()):
                if source not in found:
                    found.add(source)
                    waiting.append(source)
        return found


def explore(
    first: S,
    key_of: Callable[[S], Hashable],
    steps: Callable[[S], Iterable[Step[S]]],
    broken: Callable[[S], str | None],
    depth: int = 10**9,
) -> Space[S]:
    """Visit all states that can be reached.

    Args:
        first: Where it begins.
        key_of: What is equal of states that are taken for the same.
        steps: What can happen in a state.
        broken: The promise that a state breaks, in words; None where it breaks none.
        depth: Most steps from the first state.

    Raises:
        BrokenPromiseError: A state breaks a promise; it is one of those nearest to the first.
    """
    begun_s = perf_counter()
    space: Space[S] = Space()
    key = key_of(first)
    space.states[key] = first
    level = [key]
    while level and space.depth < depth:
        following: list[Hashable] = []
        for key in level:
            edges = space.edges.setdefault(key, [])
            for word, state in steps(space.states[key]):
                target = key_of(state)
                edges.append((word, target))
                if target not in space.states:
                    space.states[target] = state
                    space.before[target] = (key, word)
                    if what := broken(state):
                        raise BrokenPromiseError(what, space.path(target))
                    following.append(target)
        space.depth += bool(following)
        level = following
    space.closed = not level
    space.seconds = perf_counter() - begun_s
    return space
