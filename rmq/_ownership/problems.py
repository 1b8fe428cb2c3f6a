"""What is wrong at the moment, round by round: told once, not in every round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

CHANGED_S = 60.0
"""When a problem whose text has changed (another number, say) is told again."""

AGAIN_S = 600.0
"""When a problem that lasts is told again."""


@dataclass(slots=True)
class _Problem:
    text: str
    since_s: float
    patience_s: float
    logged: str = ""
    logged_s: float = -inf


class ProblemLog:
    """Collects what each round finds, and says what is to be told."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all: dict[str, _Problem] = {}
        self._noted: set[str] = set()
        self._events: list[str] = []

    def begin(self) -> None:
        """Begin a round."""
        self._noted.clear()

    def note(self, name: str, text: str, patience_s: float = 0.0) -> None:
        """Say that something is wrong in this round; it is told once it has lasted `patience_s`.

        The same name in the next round is the same problem.
        """
        self._noted.add(name)
        problem = self._all.setdefault(name, _Problem(text, self._clock(), patience_s))
        problem.text, problem.patience_s = text, patience_s

    def tell(self, text: str) -> None:
        """Say once that something has happened."""
        self._events.append(text)

    def end(self) -> None:
        """End a round that came to its end: what it has not noted is over."""
        self._all = {name: problem for name, problem in self._all.items() if name in self._noted}

    def news(self) -> list[str]:
        """Return what is to be told now; it counts as told."""
        now_s = self._clock()
        news, self._events = self._events, []
        for problem in self._lasting(now_s):
            if now_s - problem.logged_s >= (AGAIN_S if problem.logged == problem.text else CHANGED_S):
                problem.logged, problem.logged_s = problem.text, now_s
                news.append(problem.text)
        return news

    def current(self) -> tuple[str, ...]:
        """Return the texts of all that has lasted as long as its patience."""
        return tuple(each.text for each in self._lasting(self._clock()))

    def _lasting(self, now_s: float) -> list[_Problem]:
        return [each for each in self._all.values() if now_s - each.since_s >= each.patience_s]
